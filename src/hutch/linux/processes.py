"""Identifies processes beyond the reuse of pids: by pid, start time and the machine's boot.

A pid alone may name another process by the time it is used, so no signal is sent to a bare pid.
Standard library only.
"""

import contextlib
import functools
import os
import select
import signal
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


@functools.cache
def boot_id() -> str:
    """The id of this boot, which no process outlives."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _stat(pid: int) -> list[bytes]:
    """Fields 3 and on of /proc/<pid>/stat; empty if there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        return os.read(fd, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return []
    finally:
        os.close(fd)


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat, in clock ticks since boot; None if there is no such process or it is a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process and of the children it has waited for; zero if it is gone."""
    fields = _stat(pid)
    if not fields:
        return 0.0, 0.0
    user, system, children_user, children_system = (int(field) / _TICKS for field in fields[11:15])
    return user + children_user, system + children_system


class Identity(NamedTuple):
    """One process of one boot."""

    pid: int
    start: int
    boot: str

    def __str__(self) -> str:
        return f"{self.pid} {self.start} {self.boot}"

    @staticmethod
    def parse(text: str) -> "Identity | None":
        words = text.split()
        if len(words) != 3 or not words[0].isdigit() or not words[1].isdigit():
            return None
        return Identity(int(words[0]), int(words[1]), words[2])

    def alive(self) -> bool:
        return start_time(self.pid) == self.start and boot_id() == self.boot

    def open(self) -> int | None:
        """A pidfd of exactly this process, or None if it is gone."""
        if boot_id() != self.boot:
            return None
        try:
            fd = os.pidfd_open(self.pid)
        except (ProcessLookupError, OSError):
            return None
        # The start time is compared after opening, because the descriptor can no longer come to mean another process.
        if start_time(self.pid) == self.start:
            return fd
        os.close(fd)
        return None


def kill(pidfd: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def wait(pidfd: int, timeout: float) -> bool:
    """Wait up to `timeout` seconds and return whether the process has ended. This blocks."""
    return bool(select.select([pidfd], [], [], timeout)[0])
