"""The watchdogs against real processes and files, as root and as an ordinary user."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hutch.providers.native.watch import processes as box_processes
from hutch.providers.native.watch.memory import LimitHit, MemoryWatchdog
from hutch.providers.native.watch.processes import BoxProcesses

MB = 1024 * 1024

# A stand-in for the guest: not dumpable, adopts orphans, starts what the test asks for, and reaps.
GUEST = """
import ctypes, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
prctl = ctypes.CDLL(None).prctl
prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
for line in sys.stdin:
    process = subprocess.Popen([sys.executable, "-ISc", eval(line)], stdout=subprocess.PIPE)
    process.stdout.readline()  # it has set itself up
    print(process.pid, flush=True)
"""
HOLD = "x = bytearray(b'1') * ({size} << 20)\nprint(flush=True)\nimport time; time.sleep(600)"


class Guest:
    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-ISc", GUEST]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        self.pid = self.process.pid

    def start(self, code: str) -> int:
        """Run Python code in the box; returns its pid once it has printed a line."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{code!r}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def running_guest() -> Iterator[Guest]:
    guest = Guest()
    try:
        guest.start("print()")  # now it is not dumpable
        yield guest
    finally:
        guest.end()


@pytest.fixture
def guest() -> Iterator[Guest]:
    with running_guest() as started:
        yield started


@pytest.fixture
def memory() -> Iterator[MemoryWatchdog]:
    watchdog = MemoryWatchdog()
    yield watchdog
    watchdog.close()


def dead(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return "State:\tZ" in status


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.005)


def look(watchdog: MemoryWatchdog) -> list[LimitHit]:
    """One round in which every box is due."""
    for box in watchdog._boxes.values():
        box.due = 0.0
    return watchdog.check()


def kill_the_hog(memory: MemoryWatchdog, guest: Guest) -> None:
    bystander, hog = guest.start(HOLD.format(size=8)), guest.start(HOLD.format(size=120))
    memory.watch("box", guest.pid, 300 * MB)
    assert look(memory) == []
    memory.limit("box", 100 * MB)
    (hit,) = look(memory)
    assert (hit.box_id, hit.limit, hit.killed, hit.allowed) == ("box", "memory", hog, 100 * MB)
    assert 120 * MB < hit.used < 200 * MB and hit.killed_name.startswith("python")
    memory.limit("held by a control group", 100 * MB)  # of a box of which another watchdog counts the disk
    assert memory.oom_kills("box") == 1
    until(lambda: dead(hog), "the hog's death")
    assert look(memory) == [], "one excess, one death"
    assert not dead(bystander) and guest.process.poll() is None


def test_largest_process_pays_and_the_box_lives_on(memory: MemoryWatchdog, guest: Guest) -> None:
    """Memory is held without cgroups, and neither guest nor neighbours die of it (B17, lesson 16)."""
    kill_the_hog(memory, guest)


def test_the_guest_is_closed_to_us_and_its_box_is_watched_all_the_same(memory: MemoryWatchdog, guest: Guest) -> None:
    """The guest is not dumpable: its own user must still see, count and kill what runs below it."""
    assert box_processes.obstacle() == ""
    if os.getuid() != 0:
        with pytest.raises(PermissionError):
            os.readlink(f"/proc/{guest.pid}/ns/pid")
    kill_the_hog(memory, guest)


def test_pages_shared_by_forks_are_counted_once(memory: MemoryWatchdog, guest: Guest) -> None:
    """A program that loads once and forks workers holds little more than one of them."""
    code = "import os\nx = bytearray(b'1') * (60 << 20)\nfor _ in range(3): os.fork()\nprint(flush=True)\n"
    guest.start(code + "import time; time.sleep(600)")
    processes = BoxProcesses(guest.pid)
    until(lambda: len(processes.users()) >= 8, "eight processes")
    processes.close()
    memory.watch("box", guest.pid, 200 * MB)
    assert look(memory) == []
    memory.limit("box", 40 * MB)
    assert len(look(memory)) == 1


def test_process_that_hides_its_memory_map_gains_nothing(memory: MemoryWatchdog, guest: Guest) -> None:
    """Threat: user code makes itself undumpable to evade the count."""
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
    hog = guest.start(hide + HOLD.format(size=100))
    memory.watch("box", guest.pid, 64 * MB)
    assert [hit.killed for hit in look(memory)] == [hog]


def test_shared_mappings_count(memory: MemoryWatchdog, guest: Guest) -> None:
    """Threat: anonymous shared memory is neither private nor in any tmpfs of the box."""
    code = "import mmap\nm = mmap.mmap(-1, 100 << 20)\nm.write(b'1' * (100 << 20))\nprint(flush=True)\n"
    hog = guest.start(code + "import time; time.sleep(600)")
    memory.watch("box", guest.pid, 64 * MB)
    assert [hit.killed for hit in look(memory)] == [hog]


def test_orphans_and_their_children_are_found(memory: MemoryWatchdog, guest: Guest) -> None:
    """Threat: a daemon that forks twice to leave its parent."""
    code = f"import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-ISc', {HOLD.format(size=100)!r}]).stdout"
    guest.start(f"{code}\nprint(flush=True)")
    memory.watch("box", guest.pid, 64 * MB)
    until(lambda: bool(look(memory)), "the orphan is found")
    assert memory.oom_kills("box") == 1


def test_process_that_entered_from_outside_counts(memory: MemoryWatchdog, guest: Guest) -> None:
    """Warm kernels and root execs are not the guest's children."""
    entered = subprocess.Popen([sys.executable, "-ISc", HOLD.format(size=100)], stdout=subprocess.PIPE)
    try:
        assert entered.stdout and entered.stdout.readline()
        memory.watch("box", guest.pid, 64 * MB)
        assert look(memory) == []
        memory.include("box", entered.pid)
        assert [hit.killed for hit in look(memory)] == [entered.pid]
    finally:
        entered.kill()
        entered.communicate()
    assert look(memory) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a tmpfs")
def test_files_in_the_boxs_tmpfs_count(memory: MemoryWatchdog, guest: Guest, tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o size=128m none {tmp_path} && head -c 64M /dev/zero >{tmp_path}/f && echo && exec cat"
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout and holder.stdout.readline() == b"\n"
        store = os.open(f"/proc/{holder.pid}/root{tmp_path}", os.O_RDONLY | os.O_DIRECTORY)
        small = guest.start(HOLD.format(size=10))
        memory.watch("box", guest.pid, 64 * MB, [store])
        os.close(store)
        (hit,) = look(memory)
        assert hit.killed == small and hit.used > 74 * MB
    finally:
        holder.communicate()


def test_the_pid_of_a_dead_guest_is_never_watched(memory: MemoryWatchdog, guest: Guest) -> None:
    """Threat: its number may belong to a stranger by now; and no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    guest.start(HOLD.format(size=100))
    memory.watch("box", guest.pid, 10 * MB)
    os.kill(guest.pid, signal.SIGKILL)  # it stays a zombie, and its child lives
    until(lambda: dead(guest.pid), "the guest's death")
    assert look(memory) == []
    memory.forget("box")
    memory.forget("box")
    assert memory.oom_kills("box") is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_loop_reports_and_outlives_a_failing_callback(
    memory: MemoryWatchdog, guest: Guest, log_lines: list[str]
) -> None:
    """A callback that raises does not end the watch (lesson 12)."""
    memory.watch("box", guest.pid, 64 * MB)
    pids: list[int] = []

    async def scenario() -> None:
        seen: asyncio.Queue[int | None] = asyncio.Queue()

        def on_hit(hit: LimitHit) -> None:
            pids.append(hit.killed or 0)
            seen.put_nowait(hit.killed)
            if len(pids) == 1:
                raise RuntimeError("the first callback fails")

        watching = asyncio.create_task(memory.run(on_hit))
        for _ in range(2):
            hog = await asyncio.to_thread(guest.start, HOLD.format(size=100))
            memory.note_activity("box")
            async with asyncio.timeout(30):
                assert await seen.get() == hog
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())
    assert "the first callback fails" in "".join(log_lines)
