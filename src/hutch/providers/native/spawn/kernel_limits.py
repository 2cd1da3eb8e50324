"""Kernel limits of a box beside its control groups: resource limits of processes, and sysctls of namespaces.

Threat: some kernel objects are counted for a user or for the whole machine, and a box that took them all would leave
none to others. As root, a box is charged to an id of its own (`prestart`). The boxes of an ordinary user share the
user's limits, so each may have only a part of them. The sysctls of a namespace are written by its first process,
through the box's own /proc, before that is made read-only. Standard library only.
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

MAX_TERMINALS = 64
"""Most pseudoterminals of a box. The whole machine has 4,096 (kernel.pty.max)."""

_OF_USER_NAMESPACE = {
    # The second defence behind the seccomp filter: not even a process with capabilities can make a namespace.
    "user/max_user_namespaces": 0,
    "user/max_mnt_namespaces": 0,
    "user/max_net_namespaces": 0,
    # By default a user has 128 instances and 10,000 to 1,000,000 watches (inotify(7)).
    "user/max_inotify_instances": 64,
    "user/max_inotify_watches": 65536,
}
_OF_NETWORK_NAMESPACE = {
    # No control group counts this kernel memory: data sent to a connection that nobody has accepted yet, and
    # connections that wait for late packets after their end.
    "net/core/somaxconn": 128,
    "net/ipv4/tcp_max_tw_buckets": 2048,
}
_OF_PROCESSES = {
    RLIMIT_CORE: 0,
    RLIMIT_SIGPENDING: 4096,  # pending signals and POSIX timers
    RLIMIT_MSGQUEUE: 819_200,  # bytes; the default of Linux
}
_NAMES = {
    "Max core file size": RLIMIT_CORE,
    "Max processes": RLIMIT_NPROC,
    "Max open files": RLIMIT_NOFILE,
    "Max pending signals": RLIMIT_SIGPENDING,
    "Max msgqueue size": RLIMIT_MSGQUEUE,
}
"""The limits of a guest, by their names in /proc/<pid>/limits."""

Sysctl = tuple[str, bytes]
"""A file below /proc/sys, and its content."""


class NamespaceLimits(NamedTuple):
    """The sysctls that this kernel knows, of a box's user namespace and of its network namespace."""

    user: tuple[Sysctl, ...]
    network: tuple[Sysctl, ...]

    @staticmethod
    def known(top: str = "/proc/sys") -> "NamespaceLimits":
        return NamespaceLimits(_known(_OF_USER_NAMESPACE, top), _known(_OF_NETWORK_NAMESPACE, top))


def _known(names: dict[str, int], top: str) -> tuple[Sysctl, ...]:
    return tuple((name, str(most).encode()) for name, most in names.items() if os.path.exists(f"{top}/{name}"))


def rlimit_call(kind: int, value: int, spared: int = 0) -> Call:
    """The call that sets a resource limit, no higher than this process's own hard limit minus `spared`, or half of it.

    A child cannot raise a limit above that of its parent, which writes this call.
    """
    hard = getrlimit(kind)[1]
    most = value if hard == RLIM_INFINITY else min(value, max(hard - spared, hard // 2))
    return "prlimit64", 0, kind, pack("=QQ", most, most), None


def process_rlimit_calls() -> list[Call]:
    """The calls for the first process of a box. Its children inherit the limits."""
    return [rlimit_call(kind, value) for kind, value in _OF_PROCESSES.items()]


def rlimit_calls_of(pid: int) -> list[Call]:
    """The calls that give a process which enters a box the limits of the guest `pid`.

    The limits are read as text, because prlimit(2) needs a capability that root of a container may lack.
    """
    with open(f"/proc/{pid}/limits") as file:
        words = {name: line[len(name) :].split()[1] for line in file for name in _NAMES if line.startswith(name)}
    return [rlimit_call(_NAMES[name], int(hard)) for name, hard in words.items() if hard.isdecimal()]
