"""Processes that outlive their command: they may stay, until they stand in the way or belong to what was given up.

Lesson 16: a timeout costs the command, all of it, and nothing but it. B17: a bomb that is left behind does not own the
box. See `hutch.guest.processes` for the rules.
"""

import time
from collections.abc import Callable

import pytest
from tests.security.attacks import Arena, outcome, python

from hutch.model.results import Result
from hutch.sync import Box

TIMEOUT = 30.0

# Its first process ends when the box is full; the others fork whenever they can, and take no error for an answer.
BOMB = """
    while True:
        try:
            os.fork()
        except OSError:
            if os.getpid() == PARENT:
                os._exit(3)
"""
# As a bomb that knows how it would be fought: each process wakes up all the others.
STUBBORN_BOMB = """
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            if os.getpid() == PARENT:
                os._exit(3)
            os.kill(-1, signal.SIGCONT)
"""
# A daemon by the book: two forks and a session of its own, so that neither parent nor session says whose it is.
DAEMON = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", str(seconds)])
        os._exit(0)
    os.wait()
"""


def command_lines(box: Box) -> list[str]:
    """What runs in the box, but for the guest, the one who looks, and the dying."""
    code = """
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (1, PARENT):
                try:
                    with open(f"/proc/{name}/cmdline") as file:
                        found.append(file.read().replace("\\0", " ").strip())
                except OSError:
                    pass
        tell(sorted(filter(None, found)))
    """
    return [str(line) for line in outcome(box, code)]


def wait_until_left(box: Box, *lines: str) -> None:
    """What was killed takes its time to die; what is spared is still there then."""
    deadline = time.monotonic() + TIMEOUT
    while (found := command_lines(box)) != sorted(lines):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def wait_for(box: Box, line: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while line not in command_lines(box):
        assert time.monotonic() < deadline, f"{line} never ran"
        time.sleep(0.02)


def first_cleared(start: Callable[[], Result]) -> Result:
    """The first command that had to make room for itself; until the bomb has filled the box again, one may slip in."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        result = start()
        assert result.stdout.strip() == "alive", result
        if result.notes:
            return result
        assert time.monotonic() < deadline, "the bomb never stood in the way"


def echo(box: Box) -> Callable[[], Result]:
    return lambda: box.exec(["echo", "alive"], timeout=60)


def test_what_a_command_leaves_behind_stays(arena: Arena) -> None:
    """The control of every test below: nothing is killed without a reason."""
    with arena.box() as box:
        assert box.exec("sleep 1001 >/dev/null 2>&1 &").ok
        assert box.exec(python(DAEMON, seconds=1002)).ok
        assert not box.exec("true").notes
        wait_until_left(box, "sleep 1001", "sleep 1002")


@pytest.mark.parametrize("bomb", [BOMB, STUBBORN_BOMB], ids=["bomb", "stubborn bomb"])
def test_a_bomb_left_behind_is_cleared_away(arena: Arena, bomb: str) -> None:
    with arena.box(pids=48, memory_mb=512) as box:
        assert box.exec(python(bomb), timeout=60).exit_code == 3
        (note,) = first_cleared(echo(box)).notes
        assert "left behind" in note
        assert not box.exec("true").notes, "it must be gone for good"
        wait_until_left(box)


def test_a_fork_bomb_left_behind_is_killed_and_running_jobs_stay(arena: Arena) -> None:
    """Also a running job's descendants in sessions of their own: only what no running job accounts for is killed."""
    with arena.box(pids=48, memory_mb=512) as box:
        job = box.start("setsid sleep 1001 & echo started; exec sleep 1000")
        wait_for(box, "sleep 1001")
        assert box.exec(python(BOMB), timeout=60).exit_code == 3
        first_cleared(echo(box))
        wait_until_left(box, "sleep 1000", "sleep 1001")
        assert job.info().state == "running"


def test_a_job_can_start_after_a_bomb(arena: Arena) -> None:
    """Jobs and terminals make room as commands do, and their result says so."""
    with arena.box(pids=48, memory_mb=512) as box:
        assert box.exec(python(BOMB), timeout=60).exit_code == 3
        first_cleared(lambda: box.start(["echo", "alive"]).wait(60))
        assert box.exec(python(BOMB), timeout=60).exit_code == 3
        first_cleared(lambda: box.start(["echo", "alive"], pty=True).wait(60))


def test_a_running_bomb_is_not_a_stray(arena: Arena) -> None:
    """A limit that a running job uses up is that job's right: the next command reports it, and the job can be ended."""
    with arena.box(pids=32, memory_mb=512) as box:
        job = box.start(python("while True:\n    try:\n        os.fork()\n    except OSError:\n        pass"))
        deadline = time.monotonic() + TIMEOUT
        while (result := box.exec("true", timeout=60)).ok:
            assert time.monotonic() < deadline, "the bomb never filled the box"
        assert result.verdict.cause == "pids"
        job.signal(9)
        job.wait(60)
        deadline = time.monotonic() + TIMEOUT
        while not box.exec("true", timeout=60).ok:
            assert time.monotonic() < deadline


def test_a_timeout_ends_a_bomb_that_still_forks(arena: Arena) -> None:
    with arena.box(pids=48, memory_mb=512) as box:
        code = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
        assert box.exec(python(code), timeout=1).verdict.cause == "timeout"
        result = box.exec("echo alive")
        assert result.stdout == "alive\n"
        assert not result.notes, "nothing was left to be killed"
        wait_until_left(box)


def test_a_timeout_ends_detached_descendants_too(arena: Arena) -> None:
    """setsid, a double fork, a daemon: nobody escapes a timeout by leaving the session."""
    with arena.box() as box:
        detached = "setsid sleep 1001 & (setsid sleep 1002 &); sleep 0.2;"
        daemon = python(DAEMON + "    time.sleep(1000)", seconds=1003)
        first, second = box.exec(detached + " sleep 1000", timeout=1), box.exec(daemon, timeout=1)
        assert first.verdict.cause == second.verdict.cause == "timeout"
        wait_until_left(box)


def test_a_timeout_spares_what_is_not_its_own(arena: Arena) -> None:
    """Earlier strays, their new children, running jobs and their descendants, and strays of commands that ended
    meanwhile in a session that is known: all stay."""
    with arena.box() as box:
        assert box.exec("(while sleep 0.1; do setsid sleep 1001 & wait $!; done) >/dev/null 2>&1 &").ok
        assert box.exec(python(DAEMON, seconds=1002)).ok
        running = box.start("setsid sleep 1003 & exec sleep 1004")
        slow = box.start("sleep 1000", timeout=1.5)
        assert box.exec("sleep 1005 >/dev/null 2>&1 &").ok
        assert slow.wait(60).verdict.cause == "timeout"
        for number in range(1001, 1006):
            wait_for(box, f"sleep {number}")
        assert "sleep 1000" not in command_lines(box)
        assert running.info().state == "running"


def test_a_caller_that_stops_reading_leaves_no_daemon(arena: Arena) -> None:
    """Leaving a stream early gives up on its command, and gets rid of all of it (B4)."""
    with arena.box() as box:
        code = f"{DAEMON}\n    print('it runs', flush=True)\n    time.sleep(1000)"
        for _ in box.stream(python(code, seconds=1001)):
            wait_for(box, "sleep 1001")
            break
        wait_until_left(box)


# --- as root of the box -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bomber", "next_user"), [("user", "root"), ("root", "user"), ("root", "root")])
def test_a_bomb_of_another_user(arena: Arena, rootless: bool, bomber: str, next_user: str) -> None:
    """No guest may or should judge another user's processes, so each is asked to clear away its own."""
    if rootless:
        pytest.skip("an ordinary user's boxes have one user")
    with arena.box(pids=48, memory_mb=512) as box:
        spared = [box.start(["sleep", "1000"], user=user) for user in ("user", "root")]
        assert box.exec(python(BOMB), user=bomber, timeout=60).exit_code == 3
        first_cleared(lambda: box.exec(["echo", "alive"], user=next_user, timeout=60))
        assert [job.info().state for job in spared] == ["running", "running"]
        wait_until_left(box, "hutch-deputy", "sleep 1000", "sleep 1000")


def test_a_bomb_before_root_was_ever_needed(arena: Arena, rootless: bool) -> None:
    """Root's guest is made when it is first asked for: it needs a process, too."""
    if rootless:
        pytest.skip("an ordinary user's boxes have one user")
    with arena.box(pids=48, memory_mb=512) as box:
        assert box.exec(python(BOMB), timeout=60).exit_code == 3
        assert box.exec("id -u", user="root", timeout=60).stdout == "0\n"


def test_a_killed_job_of_root_takes_its_daemon_and_no_user_process(arena: Arena, rootless: bool) -> None:
    if rootless:
        pytest.skip("an ordinary user's boxes have one user")
    with arena.box() as box:
        slow = box.start(python(DAEMON + "    time.sleep(1000)", seconds=1001), user="root")
        wait_for(box, "sleep 1001")
        assert box.exec(python(DAEMON, seconds=1002)).ok
        slow.signal(9)
        assert slow.wait(60).signal == 9
        wait_until_left(box, "hutch-deputy", "sleep 1002")
