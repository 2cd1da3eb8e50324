"""What the kernel counts for a box beside its control groups, and how far the box may go.

Some kernel objects are counted for a user or for the whole machine: a box that took them all would leave none to the
others. As root a box is charged to an id of its own (`stems`). An ordinary user's boxes share his accounts, so that
each may have a part of them. Bounds of a namespace are written by its first process, while it still has the right to,
through the box's own /proc, and before that is made read-only. Standard library only.
"""

import os
from resource import (
    RLIM_INFINITY,
    RLIMIT_CORE,
    RLIMIT_MSGQUEUE,
    RLIMIT_NOFILE,
    RLIMIT_NPROC,
    RLIMIT_SIGPENDING,
    getrlimit,
)
from struct import pack
from typing import NamedTuple

from hutch.linux.kernel import Call

TERMINALS = 64
"""Pseudoterminals of a box; the machine has 4,096 for everybody (kernel.pty.max)."""

_OF_USER_NAMESPACE = {
    # The second wall behind the filter: no namespace can be made in the box's, not even with its capabilities.
    "user/max_user_namespaces": 0,
    "user/max_mnt_namespaces": 0,
    "user/max_net_namespaces": 0,
    # A user has 128 and some 10,000 to 1,000,000 by default (inotify(7)).
    "user/max_inotify_instances": 64,
    "user/max_inotify_watches": 65536,
}
_OF_NETWORK_NAMESPACE = {
    # Both are kernel memory that no control group counts: what was sent to a connection that nobody has accepted yet,
    # and connections that wait for late packets after their end.
    "net/core/somaxconn": 128,
    "net/ipv4/tcp_max_tw_buckets": 2048,
}
_OF_PROCESSES = {
    RLIMIT_CORE: 0,
    RLIMIT_SIGPENDING: 4096,  # signals that wait, and POSIX timers
    RLIMIT_MSGQUEUE: 819_200,  # bytes; the default of Linux
}
_NAMES = {
    "Max core file size": RLIMIT_CORE,
    "Max processes": RLIMIT_NPROC,
    "Max open files": RLIMIT_NOFILE,
    "Max pending signals": RLIMIT_SIGPENDING,
    "Max msgqueue size": RLIMIT_MSGQUEUE,
}
"""In /proc/<pid>/limits, of what a guest is held to."""

Bound = tuple[str, bytes]
"""A file below /proc/sys, and what to write to it."""


class Bounds(NamedTuple):
    """Those that this kernel knows. A box that is to share the machine's network has none for it."""

    user: tuple[Bound, ...]
    network: tuple[Bound, ...]

    @staticmethod
    def known(top: str = "/proc/sys") -> "Bounds":
        return Bounds(_known(_OF_USER_NAMESPACE, top), _known(_OF_NETWORK_NAMESPACE, top))


def _known(names: dict[str, int], top: str) -> tuple[Bound, ...]:
    return tuple((name, str(most).encode()) for name, most in names.items() if os.path.exists(f"{top}/{name}"))


def limiting(kind: int, value: int, spared: int = 0) -> Call:
    """A child cannot have more than its parent, who writes this down, may have itself; and it leaves the parent
    `spared`, or half."""
    hard = getrlimit(kind)[1]
    most = value if hard == RLIM_INFINITY else min(value, max(hard - spared, hard // 2))
    return "prlimit64", 0, kind, pack("=QQ", most, most), None


def limiting_processes() -> list[Call]:
    """For the first process of a box, whose children inherit it."""
    return [limiting(kind, value) for kind, value in _OF_PROCESSES.items()]


def limiting_like(pid: int) -> list[Call]:
    """For a process that enters a box from outside: the limits of its guest. They are read as text, because the other
    way (prlimit(2)) needs a capability that root of a container may lack."""
    with open(f"/proc/{pid}/limits") as file:
        words = {name: line[len(name) :].split()[1] for line in file for name in _NAMES if line.startswith(name)}
    return [limiting(_NAMES[name], int(hard)) for name, hard in words.items() if hard.isdecimal()]
