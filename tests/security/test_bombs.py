"""Bombs: a box takes what it may, reports the limit it reached, and answers the next command; its keeper hardly notices
(B17).

Lessons 16 and 24. Every bomb is bounded by its own code too, so that one that finds no defence does no harm. So each
has its control: the same bomb in a box whose limit lies above that bound ends well.
"""

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.security.attacks import Arena, outcome, python

from hutch.errors import HutchError, NotRunnable
from hutch.linux.cgroup_files import PIDS_HEADROOM
from hutch.providers.native import probe
from hutch.sync import Box

MB = 1 << 20
KEEPER_MAY_GROW = 96 * MB
"""What a bomb may cost the keeper: far below what each of them throws, far above what the allocator does not return."""
SMALL = {"memory_mb": 96, "disk_mb": 16, "pids": 64, "open_files": 256}
LARGE = {"memory_mb": 1024, "disk_mb": 96, "pids": 512, "open_files": 2048}
"""More than any bomb here takes that has a control."""


def resident(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextmanager
def bombed(arena: Arena, **spec: Any) -> Iterator[Box]:
    """A box that must live through what is done to it, at no cost to this process, which is its keeper."""
    with arena.box(**spec) as box:
        assert box.exec("true").ok
        before = resident()
        yield box
        assert box.exec("echo alive", timeout=60).stdout == "alive\n"
        assert box.state() == "running"
        assert resident() - before < KEEPER_MAY_GROW


# --- memory ------------------------------------------------------------------------------------------------------

# They keep what they got for a while: a watchdog looks now and then, and cannot see what is gone again.
HEAP = "x = bytearray(256 << 20); time.sleep(hold)"
MAPPED = """
    import mmap
    held = [mmap.mmap(-1, 1 << 20) for _ in range(256)]
    for part in held:
        part.write(b"x" * (1 << 20))
    time.sleep(hold)
"""
MEMFD = """
    file = os.memfd_create("bomb")
    for _ in range(256):
        os.write(file, bytes(1 << 20))
"""
SEGMENTS = """
    libc.shmat.restype = ctypes.c_void_p
    for _ in range(256):
        segment = libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600)
        place = ctypes.c_void_p(libc.shmat(segment, None, 0))
        ctypes.memset(place, 1, 1 << 20)
        libc.shmdt(place)
        held.append(segment)
    for segment in held:
        libc.shmctl(segment, 0, None)
"""
SOCKETS = """
    sent = 0
    for _ in range(120):
        held.append(socket.socketpair())
        for end in held[-1]:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            end.setblocking(False)
            while sent < 256 << 20 and tried(end.send, bytes(1 << 16)) == "ok":
                sent += 1 << 16
"""
UNMAPPED = pytest.mark.parametrize(
    "bomb", [MEMFD, SEGMENTS, SOCKETS], ids=["memfd", "System V segments", "socket buffers"]
)


@pytest.mark.parametrize("bomb", [HEAP, MAPPED], ids=["heap", "mapped"])
def test_memory(arena: Arena, bomb: str) -> None:
    with bombed(arena, **SMALL) as box:
        result = box.exec(python(bomb, hold=60), timeout=60)
        assert result.verdict.cause == "oom", result
        assert result.verdict.remedy
    with arena.box(**LARGE) as control:
        assert control.exec(python(bomb, hold=0), timeout=60).verdict.cause == "ok"


@UNMAPPED
def test_memory_that_no_process_has_mapped(arena: Arena, bomb: str) -> None:
    """A control group counts it. The watchdog cannot see it, which docs/threat-model.md says of its grade."""
    if not probe.look().cgroups.memory:
        pytest.skip("only a control group counts memory that no process has mapped")
    with bombed(arena, **SMALL) as box:
        assert box.exec(python(bomb, held=[]), timeout=60).verdict.cause == "oom"
    with arena.box(**LARGE) as control:
        assert control.exec(python(bomb, held=[]), timeout=60).verdict.cause == "ok"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/workspace", "/var/tmp", "/home/user", "/run"])
def test_files_in_memory(arena: Arena, place: str) -> None:
    """Every place that can be written to has a size, or the box's files would be a way around its memory limit."""
    code = """
        written = 0
        try:
            with open(f"{place}/bomb", "wb", buffering=0) as file:
                while written < 64 << 20:
                    written += file.write(bytes(1 << 20))
        except OSError as error:
            tell([errno.errorcode[error.errno], written >> 20])
        else:
            tell(["ok", written >> 20])
    """
    with bombed(arena, **SMALL) as box:
        answer, written_mb = outcome(box, code, place=place)
        assert answer == "ENOSPC"
        assert written_mb <= SMALL["disk_mb"]
    with arena.box(**LARGE) as control:
        assert outcome(control, code, place=place) == ["ok", 64]


# --- processes and processor -------------------------------------------------------------------------------------


# Each process forks as often as the others, so that their number doubles with each turn. All of them are there until
# the last has tried: it is then that nobody holds the second pipe's end any more. Each says once that it lives, and
# each time that it was refused.
FORKS = """
    told, tell_parent = os.pipe()
    waiting, trying = os.pipe()
    for _ in range(doublings):
        try:
            os.fork()
        except BlockingIOError:
            os.write(tell_parent, b"r")
    os.write(tell_parent, b"l")
    os.close(trying)
    os.read(waiting, 1)
    if os.getpid() != PARENT:
        time.sleep(hold)
        os._exit(0)
    answers = os.read(told, 1 << 16)
    tell([answers.count(b"l"), answers.count(b"r")])
    os._exit(b"r" in answers)
"""


def test_a_fork_bomb(arena: Arena) -> None:
    """Memory is not what stops it: there are never more processes than the limit, and the verdict says which."""
    spec = LARGE | {"pids": SMALL["pids"]}
    with bombed(arena, **spec) as box:
        result = box.exec(python(FORKS, doublings=8, hold=60), timeout=60)
        lived, refused = json.loads(result.stdout)
        assert SMALL["pids"] // 2 < lived <= SMALL["pids"] + PIDS_HEADROOM
        assert refused > 0
        assert result.verdict.cause == "pids", result
        assert result.verdict.limit == SMALL["pids"]
        assert result.verdict.remedy
    with arena.box(**LARGE) as control:
        result = control.exec(python(FORKS, doublings=8, hold=0), timeout=60)
        assert json.loads(result.stdout) == [256, 0]
        assert result.verdict.cause == "ok"


def test_threads_are_processes(arena: Arena) -> None:
    code = """
        import threading
        started = 0
        try:
            for _ in range(200):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
                started += 1
        except RuntimeError:
            pass
        tell(started)
        sys.stdout.flush()
        os._exit(0)
    """
    with bombed(arena, **SMALL) as box:
        assert SMALL["pids"] // 2 < outcome(box, code) <= SMALL["pids"] + PIDS_HEADROOM
    with arena.box(**LARGE) as control:
        assert outcome(control, code) == 200


def test_a_busy_box_does_not_starve_others(arena: Arena) -> None:
    """Eight spinning processes have one box's share of the processor; the neighbour and the keeper get theirs."""
    with bombed(arena, **SMALL) as box, arena.box() as neighbour:
        box.start("for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait")
        for number in range(20):
            assert neighbour.exec(f"echo {number}", timeout=60).stdout == f"{number}\n"


# --- files -------------------------------------------------------------------------------------------------------


def test_disk(arena: Arena) -> None:
    bomb = "head -c 64M /dev/zero > zeros"
    with bombed(arena, **SMALL) as box:
        assert box.exec(bomb, timeout=60).verdict.cause == "disk"
        with pytest.raises(HutchError):
            box.files.write("more", bytes(MB))
        box.files.remove("zeros")
        assert box.files.write("more", b"x").size == 1
    with arena.box(**LARGE) as control:
        assert control.exec(bomb, timeout=60).verdict.cause == "ok"
        assert control.files.stat("zeros").size == 64 * MB


def test_inodes(arena: Arena) -> None:
    code = """
        os.mkdir("many")
        for number in range(20_000):
            os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
    """
    with bombed(arena, **SMALL) as box:
        result = box.exec(python(code), timeout=60)
        assert (result.verdict.cause, result.verdict.unit) == ("disk", "files")
        with pytest.raises(HutchError):
            box.files.write("more", b"x")
        box.files.remove("many", recursive=True)
        assert box.files.write("more", b"x").size == 1
    with arena.box(**LARGE) as control:
        assert control.exec(python(code), timeout=60).verdict.cause == "ok"


def test_open_files(arena: Arena) -> None:
    """Of each process; and what many processes hold together is bounded by their number."""
    code = """
        held = []
        try:
            while len(held) < 1000:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            tell([errno.errorcode[error.errno], len(held)])
        else:
            tell(["ok", len(held)])
    """
    with bombed(arena, **SMALL) as box:
        answer, count = outcome(box, code)
        assert answer == "EMFILE"
        assert count == SMALL["open_files"] - 3, "its three streams count too"
    with arena.box(**LARGE) as control:
        assert outcome(control, code) == ["ok", 1000]


def test_a_deep_tree(arena: Arena) -> None:
    """Deeper than any path may be long: searched within bounds, and removed."""
    with bombed(arena, **SMALL) as box:
        code = """
            for _ in range(2500):
                os.mkdir("d")
                os.chdir("d")
            open("needle", "w").write("needle")
            tell("ok")
        """
        assert outcome(box, code) == "ok"
        assert [entry.path for entry in box.files.list(".")] == ["d"]
        box.files.glob("**/nothing-of-this-name")
        box.files.grep("needle", timeout_sec=5.0)
        box.files.remove("d", recursive=True)
        assert box.files.list(".") == []


def test_a_huge_directory(arena: Arena) -> None:
    """Answers have bounds that are said, and no caller gets more than was asked for."""
    with bombed(arena, memory_mb=128, disk_mb=128) as box:
        code = """
            os.mkdir("many")
            for number in range(20_000):
                os.close(os.open(f"many/{number:0200}", os.O_CREAT | os.O_WRONLY))
            tell("ok")
        """
        assert outcome(box, code) == "ok"
        assert len(box.files.list("many")) == 20_000
        found = box.files.glob("**", root="many", limit=100)
        assert len(found.paths) == 100
        assert not found.complete
        assert not box.files.grep("x", root="many", limit=10).hits
        box.files.remove("many", recursive=True)


def test_loops_of_links(arena: Arena) -> None:
    """Directories that contain themselves, however often: a search ends, a copy and a removal do not follow."""
    with bombed(arena, **SMALL) as box:
        code = """
            os.makedirs("maze/a/b")
            for number in range(30):
                os.symlink("..", f"maze/a/b/up{number}")
                os.symlink("../..", f"maze/a/top{number}")
            os.symlink("self", "maze/self")
            open("maze/needle", "w").write("needle")
            tell("ok")
        """
        assert outcome(box, code) == "ok"
        assert box.files.glob("maze/**/needle").paths == ("maze/needle",)
        assert [hit.path for hit in box.files.grep("needle", root="maze").hits] == ["maze/needle"]
        with pytest.raises(HutchError):
            box.files.read("maze/self")
        target = arena.place / "maze-copy"
        assert box.files.copy_out("maze", target) == len("needle")
        assert (target / "a/b/up0").is_symlink()
        box.files.remove("maze", recursive=True)
        assert not box.files.exists("maze")


@pytest.mark.parametrize("path", ["/dev/zero", "terabyte", "pipe"])
def test_files_without_an_end(arena: Arena, path: str) -> None:
    """A typed error, in time, and nothing larger than a read may be comes to the keeper."""
    with bombed(arena, **SMALL) as box:
        assert box.exec("truncate -s 1T terabyte; mkfifo pipe").ok
        with pytest.raises(HutchError):
            box.files.read(path)
        with pytest.raises(HutchError):
            box.files.edit(path, "old", "new")
        assert not box.files.grep("x", root=path, timeout_sec=1.0).hits


# --- output ------------------------------------------------------------------------------------------------------


def spilled(arena: Arena, box: Box) -> int:
    """Bytes of output on the host's disk."""
    return sum(path.stat().st_size for path in arena.place.glob(f"*/r/{box.id}/spill*/*"))


def guest_memory(box: Box) -> int:
    pages = int(outcome(box, "tell(int(open('/proc/1/statm').read().split()[1]))"))
    return pages * os.sysconf("SC_PAGESIZE")


def test_a_gigabyte_of_output_that_nobody_reads(arena: Arena) -> None:
    """Head and tail stay, the middle is counted as lost; neither guest nor keeper holds it, and the disk is bounded."""
    with bombed(arena, memory_mb=128, disk_mb=16) as box:
        result = box.exec("yes 0123456789abcdef | head -c 1G", timeout=110)
        assert result.verdict.cause == "output_limit", result.verdict
        assert result.stdout_total == 1 << 30
        assert result.stdout_truncated
        assert len(result.stdout_bytes) <= MB
        assert guest_memory(box) < 64 * MB
        assert 0 < spilled(arena, box) <= 257 * MB


def test_control_a_flood_below_the_bound_is_kept_whole(arena: Arena) -> None:
    """The bound of 256 MB cannot be raised. A flood that stays below it is all on the disk: so it is what held the
    other, and neither the box's disk nor its memory, which are smaller."""
    with arena.box(memory_mb=128, disk_mb=16) as box:
        result = box.exec("yes 0123456789abcdef | head -c 200M", timeout=110)
        assert (result.verdict.cause, result.stdout_total) == ("ok", 200 * MB)
        job = box.start("yes 0123456789abcdef | head -c 200M")
        assert job.wait(110).verdict.cause == "ok"
        assert spilled(arena, box) > 190 * MB


def test_a_flood_of_both_streams_from_many_jobs(arena: Arena) -> None:
    """The spill is the box's, not the job's: newer output pushes out what was read, or is older."""
    with bombed(arena, memory_mb=128, disk_mb=16) as box:
        jobs = [box.start("head -c 60M /dev/zero; head -c 60M /dev/zero >&2") for _ in range(4)]
        for job in jobs:
            result = job.wait(60)
            assert result.stdout_total == result.stderr_total == 60 * MB
        assert 0 < spilled(arena, box) <= 257 * MB


@pytest.mark.parametrize("refused", ["fork", "thread"])
def test_a_fork_bomb_that_cleaned_up_still_gets_the_limit_in_its_verdict(arena: Arena, refused: str) -> None:
    """Also where no control group counts refusals, as for most ordinary users, the verdict names the limit and its
    remedy, though the box is empty again when it is asked. The control stays below the limit (P4, lesson 12)."""
    code = """
        import threading
        def start():
            if refused == "thread":
                threading.Thread(target=time.sleep, args=(0.2,)).start()
            elif os.fork() == 0:
                time.sleep(0.2)
                os._exit(0)
        try:
            for _ in range(many):
                start()
        finally:
            while refused == "fork" and tried(os.wait) == "ok":
                pass
        os._exit(7)
    """
    with arena.box(**LARGE | {"pids": SMALL["pids"]}) as box:
        result = box.exec(python(code, refused=refused, many=200), timeout=60)
        assert (result.exit_code, result.verdict.cause) == (1, "pids"), result
        assert "limits.pids" in result.verdict.remedy
        result = box.exec(python(code, refused=refused, many=20), timeout=60)
        assert (result.exit_code, result.verdict.cause) == (7, "exit"), result


# Sends descriptors to itself until the kernel refuses, and keeps them on their way.
IN_FLIGHT = """
    import array
    held, sent, refusal = [], 0, "none"
    message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))]
    while sent < most and refusal == "none":
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        for _ in range(8):
            answer = tried(held[-1][0].sendmsg, [b"x"], message)
            if answer != "ok":
                refusal = answer
                break
            sent += 250
    tell([sent, refusal])
    sys.stdin.read()
"""


def test_descriptors_in_flight_do_not_stop_the_makers_of_boxes(arena: Arena) -> None:
    """Threat: descriptors on their way through sockets count for the user, and once they are more than a process of
    his may have open, it can send none itself: neither keeper nor spawner could make a box any more."""
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user: as root each box has ids, and so an account, of its own")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as most have it
    try:
        with arena.opened(state="flight") as hutch, hutch.box(open_files=1024) as box:
            job = box.start(python(IN_FLIGHT, most=5000))
            said = b""
            while b"\n" not in said:
                said += job.read(len(said), wait=30).data
            assert json.loads(said)[1] == "ETOOMANYREFS", "the attack is one: the box itself can send no more"
            for memory in (64, 80, 96):  # no two alike, so that none was begun ahead
                with hutch.box(memory_mb=memory) as other:
                    assert other.exec("echo made").stdout == "made\n"
            job.close_stdin()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_floods_of_several_users_of_a_box(arena: Arena) -> None:
    """Threat: who may run commands as another user of the box has as many budgets on the host's disk as it has users.
    The control is a flood of root alone, which is as large and kept whole."""
    if os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user's boxes have one user")
    flood = "yes 0123456789abcdef | head -c 120M"
    with bombed(arena, memory_mb=128, disk_mb=16) as box:
        assert box.start(flood, user="root").wait(60).verdict.cause == "ok"
        assert spilled(arena, box) > 110 * MB
        assert box.start(flood).wait(60).verdict.cause == "ok"
        result = box.start(flood, user="7").wait(60)
        assert (result.verdict.cause, result.stdout_total) == ("output_limit", 120 * MB)
        assert 0 < spilled(arena, box) <= 257 * MB


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["true", "x" * (10 << 20)], None),
        (["true", *["x"] * 1_000_000], None),
        (["true"], {f"NAME{number}": "x" * 100_000 for number in range(40)}),
        (["true"], {"NAME": "x" * (3 << 20)}),
    ],
    ids=["a long argument", "many arguments", "a large environment", "a large variable"],
)
def test_arguments_that_no_kernel_takes(arena: Arena, command: list[str], env: dict[str, str] | None) -> None:
    with bombed(arena, **SMALL) as box:
        with pytest.raises(NotRunnable, match="too long"):
            box.exec(command, env=env)


def test_thousands_of_commands_and_jobs(arena: Arena) -> None:
    """Ended jobs are remembered within bounds, and their number costs nothing that matters."""
    with bombed(arena, **SMALL) as box:
        for _ in range(1000):
            assert box.exec(["true"]).ok
        for _ in range(1000):
            box.start(["true"], timeout=60)
        deadline = time.monotonic() + 60
        while any(job.state == "running" for job in box.jobs()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(box.jobs()) == 1000
        assert guest_memory(box) < 64 * MB
