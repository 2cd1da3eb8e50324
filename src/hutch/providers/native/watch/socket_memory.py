"""What lies in the buffers of a box's TCP and UDP sockets, and who pays if it is too much.

Control groups charge for a connection only once it is accepted (Linux 6.18): what was sent to one that nobody accepts
is nobody's. And a watchdog of memory sees no buffers at all. So they are looked at from outside.

The kernel counts the bytes of each protocol for the whole machine, and lists the sockets of each network namespace. The
first is cheap and never too low, so that the second, which walks through tables of the whole machine, is read only when
a box may be over its limit. Both are open to everybody, whoever the box's processes belong to.
"""

import os
import signal
from collections.abc import Callable

from hutch.providers.native.watch.processes import open_files

_PAGE = os.sysconf("SC_PAGESIZE")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_OVERHEAD = {"tcp": 2, "tcp6": 2, "udp": 1, "udp6": 1}
"""TCP lists bytes of content, and the kernel keeps them in larger pieces; UDP lists the pieces."""


def of_machine() -> int:
    """Bytes that all sockets of the machine hold: usually less than one box may have, and then no box is looked at."""
    return at_most("self")


def at_most(pid: int | str) -> int:
    """Bytes that the sockets in this process's network namespace hold at most; 0 if there is none."""
    facts = {line.partition(":")[0]: line.split()[1:] for line in _lines(pid, "sockstat")}
    if facts.get("sockets", ["used", "0"])[1] == "0":
        return 0
    # The last of each line is the number of its pages, on the whole machine.
    return sum(int(facts[kind][-1]) for kind in ("TCP", "UDP") if kind in facts) * _PAGE


def held(pid: int) -> int:
    """Bytes that they do hold."""
    return sum(_OVERHEAD[name] * _queued(line) for name in _TABLES for line in _lines(pid, name)[1:])


def _queued(line: str) -> int:
    """Of a row of proc_pid_net(5): what waits to be sent, and what waits to be read."""
    sending, _, receiving = line.split()[4].partition(":")
    return int(sending, 16) + int(receiving, 16)


def _lines(pid: int | str, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/net/{name}") as file:
            return file.read().splitlines()
    except OSError:
        return []  # a kernel without IPv6, or a box that is about to end


def end_holder(members: Callable[[], set[int]]) -> int | None:
    """Kill that process of a box which has most files open; its pid, or None if it was gone. Which sockets are whose
    the kernel does not say."""
    victim = max(members(), key=open_files, default=None)
    if victim is None:
        return None
    try:
        pidfd = os.pidfd_open(victim)
    except ProcessLookupError:
        return None
    try:
        # Now the number is pinned: if it still is one of the box's, the pidfd is that process or one that ended.
        if victim not in members():
            return None
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return None
    finally:
        os.close(pidfd)
    return victim
