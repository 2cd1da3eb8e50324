"""The process table of the box, and stray processes: those that belong to no running job.

What a command leaves behind (`server &`) keeps running, as on any machine, until one of two things happens:

- A start fails because the process limit is reached. Then every stray is killed and the start is tried once more, or a
  fork bomb would outlive its command and keep the box for itself.
- A job times out, is cancelled or killed. Its session is killed, and with it what left that session (setsid, a double
  fork): strays that are no older than the job and that nothing connects to another job.

A process belongs to a job by its session or its parents. Nothing can hide in the session of a running job, because
setsid(2) only creates sessions and nobody can join one from outside. A daemon that cut both ties while two jobs ran may
have come from either; the job that is killed first takes it along.
"""

import os
import signal
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from fcntl import ioctl
from typing import NamedTuple

KILL_TIMEOUT = 2.0
"""Seconds to wait for killed processes before a start is tried again; the guest serves nothing else meanwhile."""
_MAX_ROUNDS = 64
_PIDFD_INFO = struct.Struct("=Q52xi")
"""struct pidfd_info: the mask of what is asked for and answered, and the exit status."""
_PIDFD_INFO_EXIT = 8
_PIDFD_GET_INFO = 0xC040FF0B


class Process(NamedTuple):
    """One process. `start` counts clock ticks since boot, so no child is older than its parent."""

    pid: int
    parent: int
    session: int
    threads: int
    start: int
    user_ticks: int
    system_ticks: int
    """CPU time of the process and of the children it has waited for."""


def processes() -> list[Process]:
    """List every process but this one. A zombie counts: if only its first thread ended, others may still run."""
    own = str(os.getpid())
    found = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit() or name == own:
            continue
        try:
            file = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # A command's name may contain anything, also ") R 1", so fields are counted from the last parenthesis.
            fields = os.read(file, 1024).rpartition(b")")[2].split()
        except OSError:
            continue
        finally:
            os.close(file)
        if len(fields) > 19:
            user, system = int(fields[11]) + int(fields[13]), int(fields[12]) + int(fields[14])
            pid, parent, session = int(name), int(fields[1]), int(fields[3])
            found.append(Process(pid, parent, session, int(fields[17]), int(fields[19]), user, system))
    return found


def newest_pid() -> int:
    """Return the last number given to a process or thread of this pid namespace; numbers rise by one, proc(5)."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def owner(pid: int) -> int | None:
    """Return the real user of a process. The owner of its /proc files is root if it is not dumpable, prctl(2)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"Uid:")), b"")
    except OSError:
        return None
    return int(line.split()[1]) if line else None


def exit_status(pidfd: int) -> int | None:
    """Return how a process ended that somebody has reaped, as wait(2) tells it; None if this kernel does not tell.

    It does since Linux 6.15, to whoever opened the descriptor before that (PIDFD_GET_INFO).
    """
    answer = bytearray(_PIDFD_INFO.size)
    struct.pack_into("=Q", answer, 0, _PIDFD_INFO_EXIT)
    try:
        ioctl(pidfd, _PIDFD_GET_INFO, answer)
    except OSError:
        return None
    known, status = _PIDFD_INFO.unpack(answer)
    return int(status) if known & _PIDFD_INFO_EXIT else None


def knows_exit_statuses() -> bool:
    """Return whether this kernel tells how a process has ended to another one than its parent."""
    pid = os.fork()
    if pid == 0:
        os._exit(1)
    pidfd = os.pidfd_open(pid)
    try:
        os.waitpid(pid, 0)
        return exit_status(pidfd) is not None
    finally:
        os.close(pidfd)


Selection = Callable[[list[Process]], list[Process]]


class Strays:
    """Finds and kills stray processes: PID 1 all that it may signal, a secondary guest those of its own user.

    A guest outside a box kills none, because every process of the machine would be a stray.
    """

    def __init__(self, *, is_init: bool, is_secondary: bool) -> None:
        self._is_init = is_init and os.getpid() == 1
        # A secondary guest with the same user as PID 1 cannot tell its own processes from those of PID 1's jobs.
        self._is_root_guest = is_secondary and owner(1) not in (None, os.getuid())

    def kill_all(self, running: Collection[int], reap: Callable[[], None]) -> int:
        """Kill every stray, wait until all are gone, and return their number. `running`: sessions of running jobs."""

        def without_job(table: list[Process]) -> list[Process]:
            return _unrelated(table, lambda process: process.session in running)

        deadline = time.monotonic() + KILL_TIMEOUT
        killed: set[int] = set()
        while True:
            selected = self._kill(without_job)
            killed |= selected
            reap()  # a dead process counts against the limit until it is reaped
            if not selected or time.monotonic() > deadline:
                return len(killed)
            time.sleep(0.002)

    def kill_escaped(self, leader: int, others: Collection[int]) -> None:
        """Kill what left a job's session. Its leader is not reaped yet; `others` are the sessions of all other jobs."""
        began = next((process.start for process in self._table() if process.pid == leader), None)
        if began is None:
            return

        def of_this_job(table: list[Process]) -> list[Process]:
            return _unrelated(
                table,
                lambda process: process.session != leader and (process.session in others or process.start < began),
            )

        self._kill(of_this_job)

    def _table(self) -> list[Process]:
        if self._is_init:
            return processes()
        if self._is_root_guest:
            return [process for process in processes() if process.pid != 1 and owner(process.pid) == os.getuid()]
        return []

    def _kill(self, select: Selection) -> set[int]:
        """Kill the selected processes even if they fork. PID 1 may not signal those of other users, and leaves them."""
        table = self._table()
        selected = select(table)
        if not selected:
            return set()
        if self._is_init and len(selected) == len(table):
            # If every process is selected, kill(-1) reaches all under the lock that fork needs, so none escapes.
            reached = {process.pid for process in selected if _signal(process.pid, 0)}
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            return reached
        self._stop(select)
        return {process.pid for process in select(self._table()) if _signal(process.pid, signal.SIGKILL)}

    def _stop(self, select: Selection) -> None:
        """Stop processes until no new one appears: a fork that meets a pending signal is undone, so none is
        replaced."""
        seen: set[int] = set()
        for _ in range(_MAX_ROUNDS):
            unseen = [process.pid for process in select(self._table()) if process.pid not in seen]
            if not unseen:
                return
            for pid in unseen:
                _signal(pid, signal.SIGSTOP)
            seen.update(unseen)


def _unrelated(table: list[Process], spared: Callable[[Process], bool]) -> list[Process]:
    """Return all processes but the spared ones, their descendants, and the guest's own children."""
    own = os.getsid(0)
    children: dict[int, list[int]] = {}
    related: set[int] = set()
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
        if process.session == own or spared(process):
            related.add(process.pid)
    waiting = list(related)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in related:
                related.add(child)
                waiting.append(child)
    return [process for process in table if process.pid not in related]


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
