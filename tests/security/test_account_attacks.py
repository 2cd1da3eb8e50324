"""Attacks on what the kernel counts for a user or for the whole machine: signals, inotify, terminals, namespaces.

Finding: as root every box was charged to the host's root, and no limit covered these accounts. Each attack stops at a
number of its own; the control is a box without the bound, or one that root itself has made.
"""

import os
from pathlib import Path

import pytest
from tests.security.attacks import Arena, outcome, python

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's boxes have no id but his own")

SIGNALS = """
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    info = struct.pack("iiiiii", number, 0, -1, 0, PARENT, os.getuid()) + bytes(104)
    sent = 0
    while sent < most and call("rt_sigqueueinfo", PARENT, number, info) == 0:
        sent += 1
    print(sent, flush=True)
    time.sleep(60)
"""


def waiting_signals() -> int:
    """How many signals wait for the user who runs this, whichever process they are for."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigQ:")]
    return int(line.split()[1].partition("/")[0])


def queued(arena: Arena, *without: str, most: int) -> tuple[int, int]:
    """How many signals a box could queue, and how many of them the user who runs this was charged for."""
    with arena.box(*without) as box:
        before = waiting_signals()
        job = box.start(python(SIGNALS, most=most))
        sent = int(job.read(wait=30.0).text)
        charged = waiting_signals() - before
    return sent, charged


def test_signals_that_wait_are_bounded(arena: Arena) -> None:
    """Threat: signals take kernel memory until somebody takes them, and a count for each user runs out."""
    assert queued(arena, most=5000)[0] == 4096
    assert queued(arena, "accounts", most=5000)[0] == 5000, "control"


@ROOT_ONLY
def test_signals_are_not_charged_to_root(arena: Arena) -> None:
    """Threat: with root's account full no process of the machine's root gets a real-time signal or a timer."""
    sent, charged = queued(arena, most=3000)
    assert sent == 3000
    assert charged < 1000
    sent, charged = queued(arena, "own accounts", most=3000)
    assert (sent, charged >= 2000) == (3000, True), "control: root has made the box's user namespace"


HOLD = "    time.sleep(60)\n"
INOTIFY = """
    opened = 0
    while opened < most and not isinstance(call("inotify_init1", 0), str):
        opened += 1
    tell(opened)
"""


def test_inotify_is_bounded(arena: Arena) -> None:
    """Threat: a user has 128 instances in all; a box that takes them leaves no program of that user any."""
    with arena.box() as box:
        assert outcome(box, INOTIFY, most=80) == 64
    if os.geteuid() == 0:  # an ordinary user's other programs may have the rest
        with arena.box("accounts") as control:
            assert outcome(control, INOTIFY, most=80) == 80


@ROOT_ONLY
def test_inotify_is_not_charged_to_root(arena: Arena) -> None:
    """Threat: three boxes take what the machine's root has. Control: one that root has made stops at root's limit."""
    with arena.box() as first, arena.box() as second, arena.box() as third:
        jobs = [box.start(python(INOTIFY + HOLD, most=60)) for box in (first, second, third)]
        assert [job.read(wait=30.0).text.strip() for job in jobs] == ["60"] * 3
    limit = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    if limit > 900:
        pytest.skip(f"the control would take {limit} instances of root's")
    with arena.opened("own accounts", "accounts", state="inotify") as hutch, hutch.box(open_files=1024) as box:
        assert outcome(box, INOTIFY, most=limit + 1) <= limit


TERMINALS = """
    opened = 0
    while opened < most and tried(os.openpty) == "ok":
        opened += 1
    tell(opened)
"""


def test_terminals_are_bounded(arena: Arena) -> None:
    """Threat: the machine has 4,096 pseudoterminals for everybody; without one nobody can log in."""
    spec = {"open_files": 512}
    with arena.box(**spec) as box:
        assert outcome(box, TERMINALS, most=100) == 64
    with arena.box("accounts", **spec) as control:
        assert outcome(control, TERMINALS, most=100) == 100


NAMESPACES = "tell([called('unshare', flag) for flag in (0x40000000, 0x00020000)])"


def test_no_namespace_even_with_capabilities(arena: Arena) -> None:
    """The second wall behind the filter: a process with all capabilities in a box could still make no network namespace
    and no mount namespace, where most of the kernel's privileged code is reached."""
    holes = ("capabilities", "seccomp:unshare", "landlock")
    with arena.box(*holes) as box:
        assert outcome(box, NAMESPACES) == ["ENOSPC", "ENOSPC"]
    with arena.box(*holes, "accounts") as control:
        assert outcome(control, NAMESPACES) == ["ok", "ok"]


@ROOT_ONLY
def test_the_boxs_root_has_the_limits_of_its_user(arena: Arena) -> None:
    """Threat: what enters a box from outside brings the limits of the process that it comes from."""
    with arena.box(open_files=300) as box:
        shown = "ulimit -n; ulimit -c; ulimit -i; ulimit -q"
        assert box.exec(shown, user="root").stdout == box.exec(shown).stdout == "300\n0\n4096\n819200\n"
