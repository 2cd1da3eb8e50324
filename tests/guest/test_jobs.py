"""Jobs in a real guest: started, read, fed, timed out, cancelled, lingering, in a terminal."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.guest.guest_process import TIMEOUT, instance_of, running_guest, until

from hutch.errors import Conflict, Invalid, NotFound, NotRunnable, Timeout, Unavailable, Unsupported
from hutch.model.results import Cause, JobState
from hutch.providers.base import Command


def alive(pid: int) -> bool:
    """Return whether it runs and is not a zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_result_says_what_the_command_did() -> None:
    """A result has exit code, separate streams, duration and usage (B2)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            result = await box.run(Command(command="echo out; echo err >&2; exit 3"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert result.verdict.cause is Cause.EXIT
    assert result.usage.wall_sec > 0
    assert (result.usage.memory_peak_mb or 0) > 0
    assert not result.stdout_truncated
    assert not result.lingering


async def test_argv_environment_and_directory() -> None:
    with running_guest() as guest:
        (guest.workdir / "sub").mkdir()
        async with instance_of(guest) as box:
            argv = await box.run(Command(command=("printf", "%s|", "a b", "$HOME", "")))
            env = await box.run(Command(command="echo $GREETING", env={"GREETING": "hello"}))
            cwd = await box.run(Command(command="pwd -P", cwd="sub"))
            again = await box.run(Command(command="pwd -P"))
    assert argv.stdout == "a b|$HOME||"
    assert env.stdout == "hello\n"
    assert cwd.stdout.strip() == str(guest.workdir / "sub")
    assert again.stdout.strip() == str(guest.workdir)


async def test_bytes_that_are_no_text_pass_both_ways() -> None:
    """Arguments and environment are bytes to the kernel; what is not UTF-8 is passed as surrogates."""
    odd = os.fsdecode(b"\xff\xfe")
    with running_guest() as guest:
        async with instance_of(guest) as box:
            result = await box.run(Command(command=("sh", "-c", 'printf %s "$1$ODD"', "sh", odd), env={"ODD": odd}))
    assert result.stdout_bytes == b"\xff\xfe\xff\xfe"


@pytest.mark.parametrize("command", ["", "  \n", (), ("", "x")])
async def test_an_empty_command_is_refused(command: str | tuple[str, ...]) -> None:
    """It is refused at execution, before anything is started (B7)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            with pytest.raises(Invalid):
                await box.run(Command(command=command))
            assert await box.jobs() == ()


@pytest.mark.parametrize(
    ("command", "name", "what"),
    [
        (Command(command=("no-such-program",)), "ENOENT", "program"),
        (Command(command=("/no/such/program",)), "ENOENT", "program"),
        (Command(command=("./plain",)), "EACCES", "program"),
        (Command(command=("./empty",)), "ENOEXEC", "program"),
        (Command(command=("/",)), "EACCES", "program"),
        (Command(command="true", cwd="nowhere"), "ENOENT", "cwd"),
        (Command(command="true", cwd="plain"), "ENOTDIR", "cwd"),
        (Command(command=("true", "a\0b")), "EINVAL", "arguments"),
        (Command(command="true", env={"A=B": "c"}), "EINVAL", "arguments"),
        (Command(command="true", cwd="a\0b"), "EINVAL", "cwd"),
        (Command(command=("true", "x" * (10 << 20))), "E2BIG", "arguments"),
    ],
)
async def test_what_cannot_be_started_says_why(command: Command, name: str, what: str) -> None:
    with running_guest() as guest:
        (guest.workdir / "plain").write_text("no program")
        (guest.workdir / "empty").write_bytes(b"\0\1\2")
        (guest.workdir / "empty").chmod(0o755)
        async with instance_of(guest) as box:
            for way in (box.run, box.start):
                with pytest.raises(NotRunnable) as caught:
                    await way(command)
                assert caught.value.details["errno"] == name
                assert caught.value.details["what"] == what
            assert (await box.run(Command(command="echo fine"))).stdout == "fine\n"


async def test_a_timeout_kills_the_command_and_keeps_the_box() -> None:
    """The process group dies with what it started, and the next command finds its files (B4, lesson 16)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            script = (
                "echo before; touch kept; sleep 1000 & echo $! > child; (set -m; sleep 1000 & echo $! > other); wait"
            )
            result = await box.run(Command(command=script, timeout_sec=1.5))
            assert result.verdict.cause is Cause.TIMEOUT
            assert result.verdict.limit == 1.5
            assert result.signal == signal.SIGKILL
            assert result.exit_code == 128 + signal.SIGKILL
            assert result.stdout == "before\n"
            for name in ("child", "other"):
                pid = int((guest.workdir / name).read_text())
                await until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
            assert (await box.run(Command(command="ls kept"))).stdout == "kept\n"


async def test_cancelling_a_call_kills_its_command() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            task = asyncio.create_task(box.run(Command(command="echo $$ > pid; exec sleep 1000")))
            await until(lambda: (guest.workdir / "pid").exists() and (guest.workdir / "pid").read_text().strip() != "")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            pid = int((guest.workdir / "pid").read_text())
            await until(lambda: not alive(pid))
            assert (await box.run(Command(command="echo fine"))).stdout == "fine\n"
            assert await box.jobs() == ()


async def test_a_lost_connection_ends_what_was_run_and_not_what_was_started() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command="echo $$ > started; sleep 0.2; echo late; exec sleep 1000"))
            task = asyncio.create_task(box.run(Command(command="echo $$ > ran; exec sleep 1000")))
            await until(lambda: all((guest.workdir / name).exists() for name in ("started", "ran")))
            await until(lambda: (guest.workdir / "ran").read_text().strip() != "")
            await box.close()
            with pytest.raises(Unavailable):
                await task
            ran = int((guest.workdir / "ran").read_text())
            await until(lambda: not alive(ran))
        async with instance_of(guest) as later:
            again = await later.job(job.id)
            chunk = await again.read(wait=TIMEOUT)
            assert chunk.data == b"late\n"
            assert (await again.info()).state is JobState.RUNNING
            await again.signal(signal.SIGTERM)
            assert (await again.wait(TIMEOUT)).signal == signal.SIGTERM


async def test_descendants_that_hold_the_output_are_reported_and_not_waited_for() -> None:
    """What they write later is still read, and writing does not kill them (lesson 26)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            script = "(while [ ! -e go ]; do sleep 0.02; done; echo more; echo $? > wrote) & echo done"
            result = await box.run(Command(command=script))
            assert result.lingering
            assert (result.exit_code, result.stdout) == (0, "done\n")
            job = await box.job(result.job_id)
            assert (await job.read()).eof
            (guest.workdir / "go").touch()
            await until(lambda: (guest.workdir / "wrote").exists())
            while (await job.info()).stdout_total <= len("done\n"):
                await asyncio.sleep(0.01)
            assert (await job.read(len("done\n"))).data == b"more\n"
            assert (guest.workdir / "wrote").read_text() == "0\n"


async def test_a_job_is_read_written_and_ended() -> None:
    """Background processes can be read, written to and killed (lesson 22)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command=("cat",), name="echo"))
            await job.write(b"one\n")
            first = await job.read(wait=TIMEOUT)
            assert first.data == b"one\n"
            assert not first.eof
            await job.write(b"two\n")
            second = await job.read(first.cursor, wait=TIMEOUT)
            assert second.data == b"two\n"
            (listed,) = await box.jobs()
            assert (listed.id, listed.name, listed.state, listed.command) == (
                job.id, "echo", JobState.RUNNING, ("cat",)
            )  # fmt: skip
            with pytest.raises(Conflict):
                await box.forget(job.id)
            for seconds in (0, 0.05):
                with pytest.raises(Timeout):
                    await job.wait(seconds)
            await job.close_stdin()
            await job.close_stdin()
            result = await job.wait(TIMEOUT)
            assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
            assert (await job.wait(0)).exit_code == 0
            with pytest.raises(Conflict):
                await job.write(b"three\n")
            assert (await job.read(second.cursor)).eof
            assert (await job.info()).state is JobState.EXITED
            await box.forget(job.id)
            assert await box.jobs() == ()
            with pytest.raises(NotFound):
                await box.job(job.id)


async def test_a_writer_learns_that_the_reader_is_gone() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            job = await box.start(Command(command="exec 0<&-; echo closed; exec sleep 1000"))
            assert (await job.read(wait=TIMEOUT)).data == b"closed\n"
            async with asyncio.timeout(TIMEOUT):
                with pytest.raises(Conflict):
                    while True:
                        await job.write(b"x")
                        await asyncio.sleep(0.01)
            await job.signal(signal.SIGKILL)
            assert (await job.wait(TIMEOUT)).signal == signal.SIGKILL


async def test_input_larger_than_every_buffer() -> None:
    data = os.urandom(1 << 20) * 12
    with running_guest() as guest:
        async with instance_of(guest) as box:
            counted = await box.run(Command(command="sleep 0.1; wc -c", stdin=data))
            unread = await box.run(Command(command="true", stdin=data))
            job = await box.start(Command(command=("wc", "-c"), stdin=data))
            assert (await job.wait(TIMEOUT)).stdout.strip() == str(len(data))
    assert counted.stdout.strip() == str(len(data))
    assert unread.exit_code == 0


async def test_signals_are_as_a_program_expects_them() -> None:
    """Commands do not ignore what the guest ignores: a pipeline ends by SIGPIPE, and a shell can be interrupted."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            pipeline = await box.run(Command(command="yes | head -1; echo ${PIPESTATUS[0]}", timeout_sec=TIMEOUT))
            masks = await box.run(Command(command=("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")))
    assert pipeline.stdout == "y\n141\n"
    internal = 1 << 31 | 1 << 32  # glibc's posix_spawn leaves its own two signals ignored
    assert [int(line.split()[1], 16) & ~internal for line in masks.stdout.splitlines()] == [0, 0]


async def test_commands_see_no_descriptor_of_the_guest() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            await box.start(Command(command="exec sleep 1000"))
            result = await box.run(Command(command=("ls", "/proc/self/fd")))
    assert result.stdout.split() == ["0", "1", "2", "3"]


async def test_out_of_memory_takes_commands_before_the_guest() -> None:
    """The kernel should kill commands before the guest, whose end would be the end of the box."""
    with running_guest(victims=True) as guest:
        async with instance_of(guest) as box:
            for command in (Command(command=("cat", "/proc/self/oom_score_adj")), Command(command=("nothing",))):
                try:
                    assert int((await box.run(command)).stdout) >= 800
                except NotRunnable:
                    assert command.command == ("nothing",)
            own = Path("/proc/self/oom_score_adj").read_text()
            assert Path(f"/proc/{guest.pid}/oom_score_adj").read_text() == own


async def test_no_magic_link_leads_out_by_way_of_the_guest() -> None:
    """The guest holds a directory of the host, and before its exec a child has the guest's descriptors."""
    with running_guest() as guest:
        (guest.directory / "outside").write_text("#!/bin/sh\necho escaped\n")
        (guest.directory / "outside").chmod(0o755)
        async with instance_of(guest) as box:
            await box.check()
            held = [fd for fd in guest.descriptors() if leads_to(guest.pid, fd, guest.spill)]
            assert held
            door = f"/proc/self/fd/{held[0]}/.."
            for command in (
                Command(command=(f"{door}/outside",)),
                Command(command=("outside",), env={"PATH": door}),
                Command(command=("./outside",), cwd=door),
            ):
                with pytest.raises(NotRunnable):
                    await box.run(command)


def leads_to(pid: int, fd: str, target: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}") == str(target)
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("pty", [False, True])
async def test_a_failed_start_leaves_no_descriptor(pty: bool) -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            await box.check()
            before = guest.descriptors()
            for _ in range(20):
                with pytest.raises(NotRunnable):
                    await box.start(Command(command=("no-such-program",), pty=pty))
            assert guest.descriptors() == before


async def test_many_at_once_and_one_after_another_leave_nothing() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            await box.run(Command(command="true"))
            before = len(guest.descriptors())
            results = await asyncio.gather(*(box.run(Command(command=f"echo {n}")) for n in range(60)))
            assert [result.stdout for result in results] == [f"{n}\n" for n in range(60)]
            for _ in range(1000):
                assert (await box.run(Command(command=("true",)))).ok
            assert len(guest.descriptors()) == before
            assert await box.jobs() == ()
            assert guest.children() == []


async def test_overlapping_commands_are_marked_as_shared() -> None:
    """A fact of the box is certain only if the command ran alone (lesson 24)."""
    with running_guest() as guest:
        async with instance_of(guest) as box:
            alone = await box.run(Command(command="kill -SYS $$"))
            other = await box.start(Command(command="exec sleep 1000"))
            async with guest.link() as link:
                answer = await link.request("run", command="true")
            await other.signal(signal.SIGKILL)
    assert alone.verdict.cause is Cause.SYSCALL_DENIED
    assert answer["shared"]


class TestTerminals:
    async def test_a_terminal_is_controlling_and_has_a_size(self) -> None:
        with running_guest() as guest:
            async with instance_of(guest) as box:
                script = "tty; stty size; echo to-tty > /dev/tty; exit 4"
                job = await box.start(Command(command=script, pty=True, rows=40, cols=100))
                result = await job.wait(TIMEOUT)
        lines = result.stdout.split()
        assert lines[0].startswith("/dev/pts/")
        assert lines[1:] == ["40", "100", "to-tty"]
        assert result.exit_code == 4
        assert not result.lingering

    async def test_resize_reaches_the_program(self) -> None:
        with running_guest() as guest:
            async with instance_of(guest) as box:
                script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.02; done"
                job = await box.start(Command(command=script, pty=True))
                await job.read(wait=TIMEOUT)
                await job.resize(50, 132)
                assert "50 132" in (await job.wait(TIMEOUT)).stdout
                plain = await box.start(Command(command="exec sleep 1000"))
                with pytest.raises(Unsupported):
                    await plain.resize(50, 132)
                with pytest.raises(Invalid):
                    await job.resize(0, 1 << 20)

    async def test_the_end_of_input_is_typed(self) -> None:
        with running_guest() as guest:
            async with instance_of(guest) as box:
                job = await box.start(Command(command="cat; echo over", pty=True))
                await job.write(b"line\n")
                await job.close_stdin()
                assert "over" in (await job.wait(TIMEOUT)).stdout
                shown = await box.run(Command(command="test -t 0 && echo yes", pty=True, stdin=b""))
                assert "yes" in shown.stdout

    async def test_typing_an_interrupt(self) -> None:
        with running_guest() as guest:
            async with instance_of(guest) as box:
                job = await box.start(Command(command="echo ready; exec sleep 1000", pty=True))
                await job.read(wait=TIMEOUT)
                await job.write(b"\x03")
                assert (await job.wait(TIMEOUT)).signal == signal.SIGINT

    async def test_the_last_output_is_not_lost(self) -> None:
        with running_guest() as guest:
            async with instance_of(guest) as box:
                for _ in range(20):
                    job = await box.start(Command(command="seq 500", pty=True))
                    assert (await job.wait(TIMEOUT)).stdout.split() == [str(n) for n in range(1, 501)]
