"""Commands, streams and jobs: the same in every form of Hutch (see conftest.py)."""

import asyncio

import pytest

from hutch.errors import (
    Conflict,
    FileMissing,
    Gone,
    Invalid,
    NotFound,
    NotRunnable,
    Refused,
    Timeout,
    Unsupported,
)
from hutch.model.boxes import BoxInfo, State
from hutch.model.results import Cause, JobInfo, JobState, Result, Usage
from hutch.model.spec import EffectiveSpec
from tests.both.forms import TIMEOUT, Open


async def test_a_box_and_its_commands(open_hutch: Open, rootless: bool) -> None:
    """Create, exec in all its forms, the result whatever the command did, gone at the end."""
    async with open_hutch() as hutch:
        async with hutch.box(memory_mb=200, labels={"a": "b"}) as box:
            assert isinstance(box.spec, EffectiveSpec)
            assert (box.spec.limits.memory_mb, box.spec.labels["a"]) == (200, "b")
            result = await box.exec("echo out; echo err >&2; exit 3")
            assert isinstance(result, Result)
            assert (result.stdout, result.stderr, result.exit_code, result.verdict.cause) == (
                "out\n", "err\n", 3, Cause.EXIT,
            )  # fmt: skip
            options = {"cwd": "/tmp", "env": {"A": "é"}, "stdin": b"\xff\x00in"}
            result = await box.exec(["sh", "-c", "pwd; echo $A; cat"], **options)  # type: ignore[arg-type]
            assert result.stdout_bytes == "/tmp\né\n".encode() + b"\xff\x00in"
            assert (await box.exec("cat", stdin="text")).stdout == "text"
            if rootless:
                with pytest.raises(Unsupported, match="root"):
                    await box.exec("id -u", user="root")
            else:
                assert (await box.exec("id -u", user="root")).stdout == "0\n"
            late = await box.exec("sleep 60", timeout=0.2)
            assert (late.verdict.cause, late.ok) == (Cause.TIMEOUT, False)
            short = await box.exec("head -c 100000 /dev/zero", keep_output=1000)
            assert (len(short.stdout_bytes), short.stdout_total, short.stdout_truncated) == (1000, 100000, True)
            clamped = await box.exec("true", timeout=100_000)
            assert clamped.notes and "timeout" in clamped.notes[0]
            assert isinstance(await box.usage(), Usage)
            info = await box.info()
            assert isinstance(info, BoxInfo)
            assert (info.id, info.state, await box.state()) == (box.id, State.RUNNING, State.RUNNING)
            assert [each.id for each in await hutch.boxes() if each.id == box.id] == [box.id]
            with pytest.raises(NotRunnable):
                await box.exec(["/no/such/program"])
            with pytest.raises(Invalid):
                await box.exec("  ")
        with pytest.raises(Gone):
            await hutch.attach(box.id)
        await hutch.destroy(box.id)


async def test_errors_are_the_builtin_ones_too(open_hutch: Open) -> None:
    """Errors survive the wire: class, code, details, remedy, and the builtin a programmer expects."""
    async with open_hutch() as hutch, hutch.box() as box:
        with pytest.raises(FileNotFoundError) as missing:
            await box.files.read("nowhere")
        assert isinstance(missing.value, FileMissing)
        assert missing.value.code == "file_not_found"
        with pytest.raises(IsADirectoryError):
            await box.files.read("/tmp")
        with pytest.raises(ValueError, match="memry_mb"):
            await hutch.create(memry_mb=1)
        with pytest.raises(NotFound):
            await hutch.attach("a" * 20)
        with pytest.raises(LookupError):
            await box.job("none-1")
        with pytest.raises(Refused):
            await hutch.create(mounts=["/etc:/mnt/etc:rw"])
        job = await box.start("sleep 1000")
        with pytest.raises(TimeoutError) as late:
            await job.wait(0.05)
        assert isinstance(late.value, Timeout)


async def test_a_command_that_is_read_along(open_hutch: Open) -> None:
    """Streams: pieces as they come, the result at the end, nothing lost; leaving early kills."""
    async with open_hutch() as hutch, hutch.box() as box:
        stream = box.stream("cat; echo err >&2; seq 200000", stdin="in\n")
        parts = {"stdout": b"", "stderr": b""}
        async for name, data in stream:
            parts[name] += data
        assert parts["stderr"] == b"err\n"
        assert parts["stdout"] == b"in\n" + b"".join(b"%d\n" % number for number in range(1, 200_001))
        assert stream.result.ok
        assert not await box.jobs()
        pieces = aiter(box.stream("yes"))
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        assert not await box.jobs()
        with pytest.raises(Invalid):
            _ = box.stream("true").result
        with pytest.raises(NotRunnable):
            async for _ in box.stream(["/no/such"]):
                pass


async def test_cancelling_kills(open_hutch: Open) -> None:
    """A command ends with the caller that disconnects."""
    async with open_hutch() as hutch, hutch.box() as box:
        running = asyncio.create_task(box.exec("touch begun; sleep 1000; touch ended"))
        while not await box.files.exists("begun"):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while (await box.exec("pgrep -x sleep")).ok:
            await asyncio.sleep(0.01)


async def test_jobs(open_hutch: Open) -> None:
    """A process as a resource: read by cursor, written, signalled, resized, waited for, forgotten."""
    async with open_hutch() as hutch, hutch.box() as box:
        job = await box.start("cat; echo bye >&2", name="cat")
        await job.write("one\n")
        chunk = await job.read(wait=TIMEOUT)
        assert (chunk.data, chunk.cursor, chunk.eof) == (b"one\n", 4, False)
        await job.write(b"two\n")
        assert (await job.read(wait=TIMEOUT)).data == b"two\n", "it goes on where the last read ended"
        assert (await job.read(1, limit=2)).data == b"ne"
        info = await job.info()
        assert isinstance(info, JobInfo)
        assert (info.name, info.state) == ("cat", JobState.RUNNING)
        with pytest.raises(Conflict):
            await box.forget(job.id)
        await job.close_stdin()
        result = await job.wait(TIMEOUT)
        assert (result.stdout, result.stderr, result.exit_code) == ("one\ntwo\n", "bye\n", 0)
        again = await box.job(job.id)
        got = [piece async for piece in again.follow(stdout=4)]
        assert sorted(got) == [("stderr", b"bye\n"), ("stdout", b"two\n")]
        with pytest.raises(Conflict):
            await job.write("x")
        await box.forget(job.id)
        assert not await box.jobs()
        shell = await box.start(
            "trap 'stty size; exit 5' USR1; stty size; while :; do sleep 0.01; done", pty=True, rows=11, cols=22
        )
        assert b"11 22" in (await shell.read(wait=TIMEOUT)).data
        await shell.resize(33, 44)
        await shell.signal(10)
        assert (await shell.wait(TIMEOUT)).exit_code == 5
        assert b"33 44" in (await shell.read(wait=TIMEOUT)).data
        with pytest.raises(Invalid):
            await job.read(stream="stdin")
