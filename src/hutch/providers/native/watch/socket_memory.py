"""Counts the memory in the buffers of a box's TCP and UDP sockets, and ends the process that holds most of it.

Control groups charge for a connection only once it is accepted (Linux 6.18): data sent to a connection that nobody
accepts is charged to nobody. And the memory watchdog sees no buffers at all. So they are counted from outside.

The kernel counts the bytes of each protocol for the whole machine, and lists the sockets of each network namespace. The
first is cheap and never too low. The second walks through tables of the whole machine, so it is read only when a box
may be over its limit. Both are readable for everybody. A file of its own, because most keepers need no other watchdog.
"""

import os
import signal
from collections.abc import Callable

from hutch.providers.native.watch.processes import open_files

_PAGE = os.sysconf("SC_PAGESIZE")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_OVERHEAD = {"tcp": 2, "tcp6": 2, "udp": 1, "udp6": 1}
"""TCP lists bytes of content, which the kernel keeps in larger buffers; UDP lists the size of the buffers."""


def of_machine() -> int:
    """Bytes that all sockets of the machine hold. If one box may have as many, no box needs to be checked."""
    return at_most("self")


def at_most(pid: int | str) -> int:
    """An upper bound of the bytes that the sockets in this process's network namespace hold; 0 without sockets."""
    facts = {line.partition(":")[0]: line.split()[1:] for line in _lines(pid, "sockstat")}
    if facts.get("sockets", ["used", "0"])[1] == "0":
        return 0
    # The last number of each line counts the protocol's pages on the whole machine.
    return sum(int(facts[kind][-1]) for kind in ("TCP", "UDP") if kind in facts) * _PAGE


def held(pid: int) -> int:
    """Bytes that the sockets in this process's network namespace hold."""
    return sum(_OVERHEAD[name] * _queued(line) for name in _TABLES for line in _lines(pid, name)[1:])


def _queued(line: str) -> int:
    """The bytes of a row of proc_pid_net(5) that wait to be sent or read."""
    sending, _, receiving = line.split()[4].partition(":")
    return int(sending, 16) + int(receiving, 16)


def _lines(pid: int | str, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/net/{name}") as file:
            return file.read().splitlines()
    except OSError:
        return []  # a kernel without IPv6, or a box that is about to end


def end_holder(members: Callable[[], set[int]]) -> int | None:
    """Kill the process of a box that has most files open, and return its pid, or None if it had ended.

    The kernel does not say which process holds which socket.
    """
    victim = max(members(), key=open_files, default=None)
    if victim is None:
        return None
    try:
        pidfd = os.pidfd_open(victim)
    except ProcessLookupError:
        return None
    try:
        # The pidfd pins the pid: if that still belongs to the box, the pidfd is that process, or one that ended.
        if victim not in members():
            return None
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return None
    finally:
        os.close(pidfd)
    return victim
