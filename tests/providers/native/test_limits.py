"""Limits bite, each with its verdict and its grade, and the box answers the next command (B17, lessons 16, 24, 25)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.guest.guest_process import LIMITS

from hutch.errors import Refused
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.embedded import Hutch
from hutch.linux.cgroup_files import PIDS_HEADROOM
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.results import Cause, Result
from hutch.providers.guest_client.verdicts import Counters, End, Room, decide
from hutch.providers.native.watch.processes import BoxProcesses

pytestmark = pytest.mark.slow

# It keeps what it got: a watchdog looks now and then, and cannot see what is gone again.
HOG = "python3 -c 'import time; x = bytearray(400 << 20); time.sleep(60)'"


@asynccontextmanager
async def limited(**spec: Any) -> AsyncIterator[tuple[BoxHandle, Grades]]:
    """A box that must still answer when the test is done with it."""
    async with Hutch(provider="native") as hutch, hutch.box(**spec) as box:
        grades = (await hutch._keeper.engines.capabilities("native")).grades
        yield box, grades
        assert (await box.exec("echo alive")).stdout == "alive\n"


def kernel_says(box: BoxHandle, *names: str) -> str | None:
    """What the box's control group has in the first of these files; None: no group holds that limit here."""
    groups = recorded(box, "groups")
    files = [Path(directory, name) for name in names for directory in groups]
    return next((file.read_text().strip() for file in files if file.exists()), None)


def recorded(box: BoxHandle, name: str) -> Any:
    running = box._live.running
    assert running is not None
    return running.record.data[name]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


def said(result: Result, cause: Cause) -> None:
    """The verdict names the cause, in words, with something to do about it."""
    assert result.verdict.cause is cause, result
    assert result.verdict.message
    assert result.verdict.remedy


async def test_memory() -> None:
    async with limited(memory_mb=64, disk_mb=16) as (box, grades):
        result = await box.exec(HOG, timeout=60)
        said(result, Cause.OOM)
        assert result.verdict.limit == 64
        written = kernel_says(box, "memory.max", "memory.limit_in_bytes")
        assert written in (None, str((64 + 16) << 20)), "the box's files are in memory too"
        assert grades.memory_mb is (EnforcedBy.CGROUP if written else EnforcedBy.WATCHDOG)


async def test_memory_of_many_small_processes_kills_them_not_the_box() -> None:
    """The guest is the last to be chosen, though every process is smaller than it."""
    async with limited(memory_mb=64, disk_mb=16, pids=100) as (box, _):
        script = (
            "import subprocess, sys\n"
            "hog = [sys.executable, '-c', 'x = bytearray(8 << 20); import time; time.sleep(2)']\n"
            "sys.exit(any([p.wait() for p in [subprocess.Popen(hog) for _ in range(40)]]))"
        )
        said(await box.exec(["python3", "-c", script], timeout=60), Cause.OOM)


async def test_memory_may_be_used_up_to_the_limit() -> None:
    """No small RLIMIT_AS, so a sparse address space is nobody's problem (lesson 25)."""
    async with limited(memory_mb=128) as (box, _):
        result = await box.exec("python3 -c 'import mmap; m = mmap.mmap(-1, 8 << 30); x = bytearray(64 << 20)'")
        assert result.ok, result


async def test_pids() -> None:
    async with limited(pids=16) as (box, grades):
        result = await box.exec("python3 -c 'import os, time\nfor _ in range(64):\n if not os.fork(): time.sleep(60)'")
        said(result, Cause.PIDS)
        assert result.verdict.limit == 16
        written = kernel_says(box, "pids.max")
        assert written in (None, str(16 + PIDS_HEADROOM))
        assert grades.pids is (EnforcedBy.CGROUP if written else EnforcedBy.RLIMIT)


def test_a_full_box_is_the_best_guess_where_nobody_counts_refusals() -> None:
    """RLIMIT_NPROC has no counter: a command that failed in a box full of processes probably failed for that."""
    end = End(
        job="1", ended=True, exit_code=1, signal=None, timed_out=False, cancelled=False, lingering=False, shared=False,
        wall=1.0, usage=(0.0, 0.0, 0), stdout_total=0, stderr_total=0, dropped=0,
    )  # fmt: skip
    none = Counters()
    full = decide(end, before=none, after=none, limits=LIMITS, room=Room(space={}, tasks=LIMITS.pids))
    assert full.cause is Cause.PIDS
    assert not full.certain
    roomy = Room(space={}, tasks=LIMITS.pids - 1)
    assert decide(end, before=none, after=none, limits=LIMITS, room=roomy).cause is Cause.EXIT


async def test_disk() -> None:
    async with limited(disk_mb=16) as (box, grades):
        result = await box.exec("head -c 64M /dev/zero > big")
        said(result, Cause.DISK)
        assert (result.verdict.limit, result.verdict.unit) == (16, "MB")
        assert (await box.files.stat("big")).size <= 16 << 20
        assert grades.disk_mb is EnforcedBy.QUOTA
        await box.exec("rm big")


async def test_strict_refuses_a_box_whose_disk_only_a_watchdog_holds() -> None:
    """A persistent box's files are a directory of the machine, which nothing bounds by its size (B17)."""
    async with Hutch(provider="native", strict=True) as hutch:
        if (await hutch._keeper.engines.capabilities("native")).grades.cpus is not EnforcedBy.CGROUP:
            pytest.skip("strict refuses every box here: there are no control groups")
        async with hutch.box() as box:
            assert (await box.exec("echo made")).stdout == "made\n"
        with pytest.raises(Refused, match=r"disk_mb is not held .*only a watchdog"):
            await hutch.create(retention="persistent")


async def test_inodes() -> None:
    """They are part of the disk: the same size holds both."""
    async with limited(disk_mb=16) as (box, grades):
        script = "python3 -c 'import os\nfor n in range(20000): os.close(os.open(f\"f{n}\", os.O_CREAT))'"
        result = await box.exec(script, timeout=60)
        said(result, Cause.DISK)
        assert result.verdict.unit == "files"
        made = len(await box.files.list("."))
        assert result.verdict.limit is not None
        assert made <= result.verdict.limit < 20000
        assert grades.disk_mb is EnforcedBy.QUOTA
        await box.exec("find . -name 'f*' -delete")


async def test_open_files() -> None:
    """The program itself gets the error and says so: nobody counts whom the kernel refused, so that the verdict is of
    its exit code."""
    async with limited(open_files=64) as (box, grades):
        result = await box.exec("python3 -c 'x = [open(\"/dev/null\") for _ in range(100)]'")
        assert "Too many open files" in result.stderr
        assert (result.verdict.cause, result.exit_code) == (Cause.EXIT, 1)
        raised = await box.exec("ulimit -n 4096")
        assert raised.exit_code, "the hard limit holds too"
        assert (await box.exec("ulimit -Hn; ulimit -Sn")).stdout == "64\n64\n"
        assert grades.open_files is EnforcedBy.RLIMIT


BUSY = "import os\nwhile not os.path.exists('enough'): pass"


async def test_cpu_share() -> None:
    """Half a CPU: a busy loop gets about half of its wall time, on any machine. A share slows down and ends nobody, so
    that the verdict is of the command alone; that it is held can be seen in the kernel."""
    async with limited(cpus=0.5) as (box, grades):
        quota = kernel_says(box, "cpu.max", "cpu.cfs_quota_us")
        assert quota in (None, "50000", "50000 100000")
        assert grades.cpus is (EnforcedBy.CGROUP if quota else EnforcedBy.WATCHDOG)
        job = await box.start(["python3", "-c", BUSY])
        with suppress(TimeoutError):  # Beside much other work it does not even get its half.
            await until(lambda: held_back(box))
        await asyncio.sleep(1)  # what may be saved up and spent at once weighs less then
        await box.files.write("enough", "")
        result = await job.wait(60)
        assert result.verdict.cause is Cause.OK
        assert result.usage.cpu_user_sec + result.usage.cpu_system_sec < 0.85 * result.usage.wall_sec


def held_back(box: BoxHandle) -> bool:
    """Whether the kernel has throttled the box's group; without one, whether its processes stand still."""
    facts = kernel_says(box, "cpu.stat")
    if facts is not None:
        return int(dict(line.split() for line in facts.splitlines())["nr_throttled"]) > 0
    processes = BoxProcesses(recorded(box, "pid"))
    try:
        return any(state(pid) == "T" for pid in processes.users())
    finally:
        processes.close()


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


async def test_timeout_kills_the_group_and_keeps_the_box() -> None:
    """What was started before and files are still there (lesson 16, B4)."""
    async with limited() as (box, grades):
        assert grades.timeout_sec is EnforcedBy.WATCHDOG
        await box.files.write("kept.txt", "kept")
        job = await box.start("sleep 60")
        result = await box.exec("sleep 50 & sleep 60", timeout=0.3)
        said(result, Cause.TIMEOUT)
        assert result.verdict.limit == 0.3
        assert await box.files.read_text("kept.txt") == "kept"
        assert (await job.info()).state == "running"
        left = await box.exec("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done")
        assert "sleep 50" not in left.stdout


async def test_a_signal_is_a_verdict() -> None:
    async with limited() as (box, _):
        result = await box.exec("kill -SEGV $$")
        assert result.verdict.cause is Cause.SIGNAL
        assert result.signal == 11


async def test_a_refused_system_call_is_a_verdict() -> None:
    """Died of SIGSYS. A process raises it itself; what the filter kills for is in the attack suite (B24)."""
    async with limited() as (box, _):
        said(await box.exec("kill -SYS $$"), Cause.SYSCALL_DENIED)


async def test_concurrent_commands_are_not_blamed_by_guess() -> None:
    """What cannot be attributed to one of several commands is reported as uncertain."""
    async with limited(memory_mb=64, disk_mb=16) as (box, _):
        hog = box.exec(HOG, timeout=60)
        other = box.exec("sleep 1; exit 3", timeout=60)
        eaten, bystander = await asyncio.gather(hog, other)
        assert eaten.verdict.cause is Cause.OOM
        assert bystander.verdict.cause is Cause.EXIT or not bystander.verdict.certain
