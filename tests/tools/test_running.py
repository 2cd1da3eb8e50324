"""The tools exec and job: commands, limits, output of any length, and work that continues between calls."""

import asyncio
import hashlib

import pytest

from tests.tools.real_tools import done, open_tools, refused

pytestmark = pytest.mark.slow


async def test_a_command_answers_with_output_exit_code_and_duration() -> None:
    """What a command did is data, whatever it did (B1, B2)."""
    async with open_tools() as tools:
        result = await done(tools, "exec", command="echo out; echo err >&2; exit 3")
        assert result.structured["exit_code"] == 3
        assert result.structured["stdout"] == "out\n"
        assert result.structured["stderr"] == "err\n"
        assert result.structured["duration_sec"] > 0
        assert result.structured["verdict"]["cause"] == "exit"
        assert "out" in result.text
        assert "err" in result.text
        assert "exit code 3" in result.text
        python = await done(tools, "exec", command=["python3", "-c", "print(6*7)"])
        assert python.structured["stdout"] == "42\n"


async def test_environment_directory_and_input_are_of_one_call() -> None:
    async with open_tools() as tools:
        given = {"command": "pwd; echo $A; cat", "cwd": "/tmp", "env": {"A": "b"}, "stdin": "in"}
        assert (await done(tools, "exec", **given)).structured["stdout"] == "/tmp\nb\nin"
        assert (await done(tools, "exec", command="cd /tmp; A=b")).structured["exit_code"] == 0
        assert (await done(tools, "exec", command="pwd; echo $A")).structured["stdout"] == "/workspace\n\n"


async def test_an_empty_command_is_refused_when_it_is_run() -> None:
    """B7."""
    async with open_tools() as tools:
        await refused(tools, "exec", "invalid", command="  ")
        await refused(tools, "exec", "invalid", command=[])
        assert (await done(tools, "exec", command="echo fine")).structured["stdout"] == "fine\n"


async def test_a_timeout_ends_the_command_and_keeps_the_box() -> None:
    """The process group is killed; files and jobs of the box are as they were (B4, lesson 16)."""
    async with open_tools() as tools:
        await done(tools, "write", path="kept.txt", content="kept")
        job = (await done(tools, "job", action="start", command="sleep 1000")).structured["job"]
        result = await done(tools, "exec", command="sleep 1000", timeout=0.3)
        verdict = result.structured["verdict"]
        assert verdict["cause"] == "timeout"
        assert verdict["limit"] == 0.3
        assert "0.3 s" in result.text
        assert "job" in result.text  # what to try
        assert (await done(tools, "read", path="kept.txt")).structured["text"] == "kept"
        assert (await done(tools, "job", action="read", job=job)).structured["state"] == "running"


async def test_long_output_is_paged_without_loss() -> None:
    """Head and tail are shown, the notice says how much is missing, and the handle gives every byte (B3, lesson 17)."""
    async with open_tools() as tools:
        script = "import sys\nfor n in range(60000): sys.stdout.write(f'line {n:06d} ' + 'x' * (n % 50) + '\\n')"
        result = await done(tools, "exec", command=["python3", "-c", script])
        answer = result.structured
        expected = "".join(f"line {n:06d} " + "x" * (n % 50) + "\n" for n in range(60000))
        assert answer["stdout_truncated"]
        assert answer["stdout_total"] == len(expected)
        assert answer["stdout"].startswith("line 000000")
        assert answer["stdout"].endswith(expected[-1000:])
        assert len(answer["stdout"]) < 31_000
        head, _, tail = answer["stdout"].partition("[…")
        assert 1.2 < len(head) / len(tail) < 1.8  # 60 to 40
        handle, offset, pages, digest = answer["stdout_handle"], 1, 0, hashlib.sha256()
        assert handle in result.text
        while offset:
            page = (await done(tools, "read", path=handle, offset=offset)).structured
            digest.update(page["text"].encode())
            offset = 0 if page["eof"] else page["next_line"]
            pages += 1
        assert pages > 10
        assert digest.digest() == hashlib.sha256(expected.encode()).digest()


async def test_output_without_line_ends_is_paged_by_bytes() -> None:
    """A single line of megabytes, of characters that pages must not cut (lesson 17)."""
    async with open_tools() as tools:
        result = await done(tools, "exec", command=["python3", "-c", "print('ä€' * 300000, end='')"])
        assert "�" not in result.structured["stdout"]
        assert 'unit="bytes"' in result.text
        offset, text, eof = 0, "", False
        while not eof:
            page = await done(
                tools, "read", path=result.structured["stdout_handle"], unit="bytes", offset=offset, limit=100_001
            )
            text += page.structured["text"]
            offset, eof = page.structured["next_byte"], page.structured["eof"]
        assert text == "ä€" * 300000


async def test_what_ended_a_command_is_said_with_limit_and_advice() -> None:
    """The verdict names memory, processes, disk, system calls or signals, and the box survives each (lesson 24)."""
    # mount(2): forbidden to everybody in a box
    forbidden = "import ctypes; ctypes.CDLL(None).syscall(165, 0, 0, 0, 0, 0)"
    async with open_tools(spec={"memory_mb": 64, "pids": 24, "disk_mb": 16}) as tools:
        await done(tools, "write", path="kept.txt", content="kept")

        async def ended_by(command: str | list[str]) -> tuple[dict[str, object], str]:
            result = await done(tools, "exec", command=command, timeout=60)
            assert (await done(tools, "read", path="kept.txt")).structured["text"] == "kept"
            return result.structured["verdict"], result.text

        verdict, text = await ended_by(["python3", "-c", "x = bytearray(300 << 20)"])
        assert verdict["cause"] == "oom"
        assert verdict["limit"] == 64
        assert "64 MB" in text
        assert "pieces" in text
        many = "import subprocess; [subprocess.Popen(['sleep', '100']) for _ in range(60)]"
        verdict, text = await ended_by(["python3", "-c", many])
        assert verdict["cause"] == "pids"
        assert "24" in text
        await done(tools, "exec", command="pkill sleep")
        verdict, text = await ended_by("head -c 64M /dev/zero > big")
        assert verdict["cause"] == "disk"
        assert "remove files" in text
        await done(tools, "exec", command="rm -f big")
        verdict, text = await ended_by("kill -SEGV $$")
        assert verdict["cause"] == "signal"
        assert "SIGSEGV" in text
        verdict, text = await ended_by(["python3", "-c", forbidden])
        assert verdict["cause"] in ("ok", "syscall_denied")  # refused with an error, or killed: the kernel's choice


async def test_a_command_killed_for_its_system_call_gets_the_reason() -> None:
    """SIGSYS is how the kernel says that a call was forbidden (lesson 24)."""
    async with open_tools() as tools:
        result = await done(tools, "exec", command="kill -SYS $$")
        assert result.structured["verdict"]["cause"] == "syscall_denied"
        assert "another way" in result.text


async def test_memory_is_not_limited_by_address_space() -> None:
    """A program that reserves far more than it uses runs in a small box (lesson 25)."""
    async with open_tools(spec={"memory_mb": 64}) as tools:
        reserve = (
            "import mmap; m = mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000); m[0] = 1"
        )
        result = await done(tools, "exec", command=["python3", "-c", reserve])
        assert result.structured["exit_code"] == 0, result.text


async def test_descendants_that_keep_the_output_open_are_reported_not_waited_for() -> None:
    """Lesson 26."""
    async with open_tools() as tools:
        result = await done(tools, "exec", command="sleep 1000 & echo started", timeout=60)
        assert result.structured["stdout"] == "started\n"
        assert result.structured["lingering"]
        assert result.structured["verdict"]["cause"] == "ok"
        assert "still hold its output" in result.text


async def test_paths_in_a_command_are_not_rewritten() -> None:
    """What the model writes is what the program gets (lesson 23)."""
    async with open_tools() as tools:
        text = "/workspace/../workspace //workspace /etc/../workspace C:\\workspace file:///workspace"
        assert (await done(tools, "exec", command=["echo", "-n", text])).structured["stdout"] == text


async def test_a_job_is_read_written_signalled_and_waited_for() -> None:
    """A process in the background is a resource (lesson 22)."""
    async with open_tools() as tools:
        started = await done(
            tools, "job", action="start", command="while read line; do echo got $line; done", name="echo"
        )
        job = started.structured["job"]
        assert job in started.text
        await done(tools, "job", action="write", job=job, input="one\n")
        read = await done(tools, "job", action="read", job=job, wait=30)
        assert read.structured["text"] == "got one\n"
        await done(tools, "job", action="write", job=job, input="two\n")
        read = await done(tools, "job", action="read", job=job, wait=30)
        assert read.structured["text"] == "got two\n"  # goes on where the last read ended
        again = await done(tools, "job", action="read", job=job, offset=0)
        assert again.structured["text"] == "got one\ngot two\n"
        listed = (await done(tools, "job", action="list")).structured["jobs"]
        assert [(each["job"], each["name"], each["state"]) for each in listed] == [(job, "echo", "running")]
        waited = await done(tools, "job", action="wait", job=job, wait=0.05)
        assert waited.structured["state"] == "running"
        await done(tools, "job", action="signal", job=job, signal="sigterm")
        ended = await done(tools, "job", action="wait", job=job, wait="30")
        assert ended.structured["state"] == "exited"
        assert ended.structured["signal"] == 15
        assert "got one" in ended.text
        await refused(tools, "job", "conflict", action="write", job=job, input="three\n")


async def test_a_job_with_a_terminal_ends_as_it_wants() -> None:
    """Programs close their terminal just before they exit: that must not end them by SIGHUP, not once in 20 times."""
    async with open_tools() as tools:
        for _ in range(20):
            job = (await done(tools, "job", action="start", command="tty; cat", terminal=True)).structured["job"]
            read = await done(tools, "job", action="read", job=job, wait=30)
            assert "/dev/pts" in read.structured["text"]
            await done(tools, "job", action="write", job=job, close_input=True)
            ended = await done(tools, "job", action="wait", job=job)
            assert ended.structured["exit_code"] == 0, ended.text


async def test_a_waited_job_shows_head_and_tail_of_what_it_wrote() -> None:
    async with open_tools() as tools:
        job = (await done(tools, "job", action="start", command="seq 1 500000; echo e >&2")).structured["job"]
        ended = await done(tools, "job", action="wait", job=job)
        assert ended.structured["stdout"].startswith("1\n2\n")
        assert ended.structured["stdout"].endswith("499999\n500000\n")
        assert ended.structured["stderr"] == "e\n"
        assert len(ended.text) < 40_000
        assert ended.structured["stdout_handle"] in ended.text


async def test_what_a_job_action_lacks_is_said_with_an_example() -> None:
    async with open_tools() as tools:
        for action, field in (("start", "command"), ("read", "job"), ("wait", "job"), ("signal", "job")):
            result = await refused(tools, "job", "invalid", action=action)
            assert result.structured["error"]["details"]["field"] == field
            assert action in result.structured["error"]["hint"]
        result = await refused(tools, "job", "not_found", action="read", job="nope")
        assert "list" in result.structured["error"]["hint"]
        job = (await done(tools, "job", action="start", command="sleep 1000")).structured["job"]
        await refused(tools, "job", "invalid", action="write", job=job)
        await refused(tools, "job", "invalid", action="signal", job=job, signal="BANANA")


async def test_cancelling_a_call_kills_the_command() -> None:
    async with open_tools() as tools:
        await done(tools, "exec", command="true")
        call = asyncio.create_task(tools.call("exec", {"command": "echo $$ > pid; exec sleep 1000", "timeout": 100}))
        box, _ = await tools.agent().box()
        while not await box.files.exists("pid"):
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        gone = "for i in $(seq 500); do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 0.02; done; exit 1"
        assert (await done(tools, "exec", command=gone)).structured["exit_code"] == 0


async def test_long_work_reports_progress() -> None:
    async with open_tools() as tools:
        answer: list[tuple[float, float | None, str]] = []
        seen = asyncio.Event()

        async def progress(seconds: float, total: float | None, message: str) -> None:
            answer.append((seconds, total, message))
            seen.set()

        call = asyncio.create_task(
            tools.call("exec", {"command": "read line < go; echo $line", "timeout": 60}, progress=progress)
        )
        box, _ = await tools.agent().box()
        await box.exec("mkfifo go")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        call = asyncio.create_task(
            tools.call("exec", {"command": "read line < go; echo $line", "timeout": 60}, progress=progress)
        )
        await seen.wait()
        await box.exec("echo went > go")
        assert (await call).structured["stdout"] == "went\n"
        assert answer[0][1] == 60
        assert "read line" in answer[0][2]
