"""From the template into a box: join its control group and namespaces, drop everything, and go on as a process of it.

The steps are those of a root guest (`providers.native.spawn.enter`), but the process becomes the box's ordinary user,
with the same filter, Landlock domain and limits as every process of the box. Standard library only.
"""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from hutch.linux import identity, kernel, landlock, pid_namespace, seccomp
from hutch.providers.native.spawn import kernel_limits

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET | kernel.CLONE_NEWCGROUP
)  # fmt: skip
_GUEST_OOM_SCORE, _KERNEL_OOM_SCORE = "400", "800"
"""Where memory runs out, a kernel goes first, then the guest that all kernels share, and the box's own guest last."""
_PLACEHOLDER_SECONDS = 120.0


class Settings(NamedTuple):
    """Everything that is the same for every box."""

    last_capability: int
    filter: seccomp.Filter
    landlock: int
    """The ABI version of the machine's Landlock."""
    guest_domain: landlock.Domain
    """Not confined in its signals: the kernel guest signals its first kernel, which has a domain of its own."""
    kernel_domain: landlock.Domain
    command_line: kernel.CommandLine


class EntryRequest(NamedTuple):
    """The box to enter. All descriptors were opened by the keeper."""

    pidfd: int
    groups: tuple[int, ...]
    """The `tasks` files of v1 groups, and with `unified` the directory of the v2 group as the last."""
    unified: bool
    pid: int
    """A process of the box, whose limits are copied."""
    has_id_ranges: bool


class Entry:
    """Takes a fork of the template into a box."""

    def __init__(self, settings: Settings, request: EntryRequest) -> None:
        self._settings = settings
        self._request = request
        self.step = "begin"
        """What it does now: the keeper is told which step has failed."""
        self.host_pid = 0

    def join(self, kept: Sequence[int]) -> int:
        """Join the box's control group and namespaces, and go on inside. Only the descriptors in `kept` stay open.

        Returns the descriptor of the box's base directory, for `confine`.
        """
        request = self._request
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # An interrupt waits until the kernel, which inherits this, can take it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        kernel.close_all_but([request.pidfd, *request.groups, *kept])
        kernel.run_calls(kernel_limits.rlimit_calls_of(request.pid))
        _set_oom_score(_GUEST_OOM_SCORE)
        self.step = "join the control group"
        for tasks in request.groups[: -1 if request.unified else None]:
            os.write(tasks, b"0")
        self.step = "enter the namespaces"
        kernel.setns(request.pidfd, _NAMESPACES)
        if request.has_id_ranges:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        base = os.open("/", os.O_PATH | os.O_CLOEXEC)
        os.chroot("m")
        os.chdir("/")
        kernel.close_all_but([base, *kept])
        self.step = "go on in the pid namespace"
        self.host_pid = pid_namespace.fork_into_pid_namespace()
        return base

    def confine(self, base: int, name: str, domain: landlock.Domain) -> int:
        """Give up every privilege. Returns the descriptor on which the filter asks."""
        settings = self._settings
        settings.command_line.show(name)
        os.setsid()
        self.step = "give up privileges"
        kernel.run_calls(identity.drop_bounding_set_calls(settings.last_capability, frozenset()))
        kernel.run_calls(identity.become_user_calls(identity.USER, has_id_ranges=self._request.has_id_ranges))
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        domain.enter((base,))
        os.close(base)
        asking = settings.filter.load()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        return asking


def become_program(streams: Sequence[int], command_line: kernel.CommandLine) -> None:
    """Become like any program of the box, with these standard streams and no other descriptor.

    Its own user may look at it, and send it signals.
    """
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    kernel.close_from(3)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    _set_oom_score(_KERNEL_OOM_SCORE)
    command_line.show("python3")


def be_placeholder() -> None:
    """Wait for the memory of a kernel of another box."""
    time.sleep(_PLACEHOLDER_SECONDS)


def streams_of(actions: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the descriptors that a job's process gets as its standard streams."""
    moved = {action[2]: action[1] for action in actions if action[0] == os.POSIX_SPAWN_DUP2}
    return [moved[number] for number in range(3)]


def _set_oom_score(value: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(value)
