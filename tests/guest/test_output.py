"""Output of every size: complete, head and tail, spilled, dropped, followed with and without a slow reader."""

import asyncio
import hashlib
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guest.guest_process import TIMEOUT, GuestProcess, instance_of, running_guest, until

from hutch.guest.output import HEAD, SLACK, TAIL, Output, Spill
from hutch.model.results import Cause
from hutch.providers.base import Command

MB = 1 << 20


class TestStore:
    """The store alone: whatever was appended is returned, or is counted as dropped."""

    @given(sizes=st.lists(st.integers(0, 300_000), max_size=20), limit=st.integers(0, 3 * MB), step=st.integers(1, MB))
    def test_nothing_is_lost_silently(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, step: int
    ) -> None:
        directory = os.open(tmp_path_factory.mktemp("spill"), os.O_RDONLY | os.O_DIRECTORY)
        output = Output(Spill(directory, limit), "x")
        whole = b"".join(bytes([number % 251]) * size for number, size in enumerate(sizes))
        start = 0
        for size in sizes:
            output.append(memoryview(whole)[start : start + size])
            start += size
        try:
            cursor, missing = 0, 0
            while cursor < output.total:
                begin, data = output.read(cursor, step)
                missing += begin - cursor
                assert data == whole[begin : begin + len(data)]
                assert 0 < len(data) <= step
                cursor = begin + len(data)
            assert output.total == len(whole)
            assert missing == output.dropped
            assert output.dropped == 0 or len(whole) > limit
            assert output.in_memory <= HEAD + TAIL + SLACK
        finally:
            output.forget()
            os.close(directory)

    def test_parked_output_is_read_from_the_file(self, tmp_path: Path) -> None:
        directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        spill = Spill(directory, 8 * MB)
        output = Output(spill, "x")
        whole = os.urandom(2 * MB)
        output.append(whole)
        output.move_to_file()
        assert output.in_memory == 0
        assert output.ends(4 * MB) == [(0, 2 * MB)]
        assert output.ends(100) == [(0, 60), (2 * MB - 40, 2 * MB)]
        parts, cursor = [], 0
        while cursor < output.total:
            start, data = output.read(cursor, 100_000)
            assert start == cursor
            parts.append(data)
            cursor += len(data)
        assert b"".join(parts) == whole
        output.forget()
        assert os.listdir(tmp_path) == []
        assert spill.left == 8 * MB
        os.close(directory)

    def test_the_guests_of_a_box_share_one_limit(self, tmp_path: Path) -> None:
        """A second user of a box does not get a second budget; what one guest frees another may use (B17)."""
        directory = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
        limit = 8 * MB
        outputs = [Output(Spill(directory, limit, owner), "x") for owner in ("guest", "deputy", "deputy-7")]
        for output in outputs:
            for _ in range(6 * 4):
                output.append(bytes(MB // 4))
        stored = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert stored == sum(output.spilled for output in outputs)
        assert limit - MB < stored <= limit + MB
        assert outputs[0].dropped == 0
        assert outputs[2].dropped > 4 * MB
        outputs[0].forget()
        before = outputs[2].spilled
        for _ in range(3 * 4):
            outputs[2].append(bytes(MB // 4))
        assert outputs[2].spilled - before > 2 * MB
        # A guest whose predecessor was killed removes what that one had stored, and nothing else.
        Spill(directory, limit, "deputy").clear()
        assert [path.name for path in tmp_path.iterdir()] == ["deputy-7.x"]
        os.close(directory)

    def test_a_file_that_vanished_counts_as_dropped(self, tmp_path: Path) -> None:
        directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        output = Output(Spill(directory), "x")
        output.append(bytes(3 * MB))
        output.close_file()
        (tmp_path / "guest.x").unlink()
        start, data = output.read(HEAD, 100)
        assert data
        assert start == HEAD + output.dropped
        os.close(directory)


async def test_truncation_keeps_head_and_tail_and_the_rest_is_read_by_cursor() -> None:
    """A truncated result shows 60/40 and says so, and nothing is lost (B3, lesson 17)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            result = await box.run(Command(command="seq 1000000", keep_output=1000))
            whole = "".join(f"{n}\n" for n in range(1, 1_000_001)).encode()
            assert result.stdout_truncated
            assert not result.stderr_truncated
            assert result.stdout_total == len(whole)
            assert result.stdout_bytes == whole[:600] + whole[-400:]
            assert result.ok
            job = await box.job(result.job_id)
            parts, cursor = [], 0
            while True:
                chunk = await job.read(cursor, limit=1 << 20)
                parts.append(chunk.data)
                cursor = chunk.cursor
                assert chunk.dropped == 0
                if chunk.eof:
                    break
            assert b"".join(parts) == whole
            assert list(guest.spill.iterdir())
            await box.forget(job.id)
            assert not list(guest.spill.iterdir())


async def test_a_result_larger_than_the_window() -> None:
    """The result is never in the guest's memory, which is the box's."""
    size = 40 * MB
    with running_guest() as guest:
        async with instance_of(guest) as box:
            script = f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2"
            result = await box.run(Command(command=script, keep_output=size))
            assert peak_kb(guest) < 64 << 10
    assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (size, size)
    assert not result.stdout_truncated


async def test_past_every_bound_head_and_tail_stay_and_the_middle_is_counted() -> None:
    """Without a spill directory, what does not fit in memory is dropped, and the verdict says so (B3)."""
    with running_guest(spilling=False) as guest:
        async with instance_of(guest) as box:
            result = await box.run(
                Command(command="echo first; head -c 20000000 /dev/zero; echo last", keep_output=1000)
            )
            assert result.verdict.cause is Cause.OUTPUT_LIMIT
            assert result.exit_code == 0
            assert result.stdout_bytes.startswith(b"first\n")
            assert result.stdout_bytes.endswith(b"last\n")
            job = await box.job(result.job_id)
            chunk = await job.read(HEAD)
            assert chunk.dropped > 0
            assert chunk.dropped == (await job.info()).dropped


async def test_a_process_never_waits_for_a_reader_who_does_not_read() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command="head -c 50000000 /dev/zero; touch done"))
            await until(lambda: (guest.workdir / "done").exists())
            assert (await job.wait(TIMEOUT)).stdout_total == 50_000_000


async def test_following_gives_every_byte_of_both_streams() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            script = "seq 200000; seq 200000 >&2; exit 5"
            for follow in (True, False):
                job = await box.start(Command(command=script, follow=follow))
                streams = {"stdout": b"", "stderr": b""}
                async for stream, data in job.follow():
                    streams[stream] += data
                expected = "".join(f"{n}\n" for n in range(1, 200_001)).encode()
                assert streams == {"stdout": expected, "stderr": expected}
                assert (await job.wait(TIMEOUT)).exit_code == 5
                part = [data async for _, data in job.follow(len(expected) - 7, len(expected))]
                assert b"".join(part) == b"200000\n"


async def test_a_followed_process_waits_for_its_reader_and_nothing_is_spilled() -> None:
    """Back-pressure reaches the process; when its reader leaves, it continues."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command="head -c 40000000 /dev/zero; touch done", follow=True))
            stream = job.follow()
            received = len((await anext(stream))[1])
            for _ in range(20):
                await asyncio.sleep(0.01)
                assert (await job.info()).stdout_total < 10_000_000
            assert not (guest.workdir / "done").exists()
            async for _, data in stream:
                received += len(data)
            assert received == 40_000_000
            assert not list(guest.spill.iterdir())

            abandoned = await box.start(Command(command="head -c 40000000 /dev/zero; touch gone", follow=True))
            leaving = abandoned.follow()
            await anext(leaving)
            await leaving.aclose()  # type: ignore[attr-defined]
            await until(lambda: (guest.workdir / "gone").exists())
            assert (await abandoned.wait(TIMEOUT)).stdout_total == 40_000_000


async def test_a_follower_survives_a_broken_connection() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command="for n in $(seq 40); do echo $n; sleep 0.01; done"))
            received = b""
            async for _, data in job.follow():
                received += data
                if received.endswith(b"10\n"):
                    (await box.link()).close()
    assert received.split() == [str(n).encode() for n in range(1, 41)]


async def test_large_output_streams_with_bounded_memory() -> None:
    """Followed output is passed on and not collected anywhere."""
    size = 256 * MB
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command=("head", "-c", str(size), "/dev/zero"), follow=True))
            digest = hashlib.sha256()
            async for _, data in job.follow():
                digest.update(data)
            assert peak_kb(guest) < 64 << 10
    assert digest.hexdigest() == hashlib.sha256(bytes(size)).hexdigest()


def peak_kb(guest: GuestProcess) -> int:
    """Return the largest resident set that the guest ever had; the interpreter takes about 17 MB."""
    status = Path(f"/proc/{guest.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


async def test_ended_jobs_give_their_memory_back() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            for _ in range(40):
                job = await box.start(Command(command=("head", "-c", "600000", "/dev/zero")))
                await job.wait(TIMEOUT)
            first = (await box.jobs())[0]
            process = await box.job(first.id)
            assert (await process.wait(TIMEOUT)).stdout_bytes == bytes(600_000)
            assert list(guest.spill.iterdir())
            assert (await process.info()).dropped == 0


async def test_waiting_for_output_ends_with_the_job() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command="exec sleep 1000"))
            empty = await job.read(wait=0.05)
            assert (empty.data, empty.eof) == (b"", False)
            reading = asyncio.create_task(job.read(wait=TIMEOUT))
            await asyncio.sleep(0)
            await job.signal(signal.SIGTERM)
            assert (await reading).eof
