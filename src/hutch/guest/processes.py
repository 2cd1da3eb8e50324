"""The process table of the box, and stray processes: those that no running job accounts for.

What a command leaves behind (`server &`) goes on, as on any machine, until one of two things happens:

- A start fails because the process limit is reached. Then every stray is killed, and the start is tried once more: a
  fork bomb outlives the command that lit it, and would keep the box for itself.
- A job times out, is cancelled or killed. Its session goes, and with it what had left that session (setsid, a double
  fork): strays that are no older than the job and that nothing ties to another job.

Whose a process is, is told by its session and its parents. A session cannot be joined from outside, setsid(2) only
makes new ones, so that nothing can hide in the session of a running job. A daemon that has cut both ties while two
jobs ran may have come from either; the one that is killed first takes it along.
"""

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple


class Process(NamedTuple):
    """One process. `start` counts clock ticks since boot: no child is older than its parent."""

    pid: int
    parent: int
    session: int
    threads: int
    start: int
    user_ticks: int
    system_ticks: int
    """CPU time, its own and that of the children it has waited for."""


def processes() -> list[Process]:
    """Every process but this one, zombies too: one whose first thread has ended looks dead and may still run others."""
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
            # The command's name may hold anything, also ") R 1": fields count from the last parenthesis.
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


def newest() -> int:
    """The number that was given last, to a process or thread of our pid namespace; they rise by one (proc(5))."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def owner(pid: int) -> int | None:
    """Its real user. Not the owner of its files in /proc: those are root's if it hides its memory (prctl(2))."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"Uid:")), b"")
    except OSError:
        return None
    return int(line.split()[1]) if line else None


PATIENCE = 2.0
"""Seconds that the dying may take until a start is tried again; nobody else in the box is served meanwhile."""
_ROUNDS = 64

Choice = Callable[[list[Process]], list[Process]]


class Strays:
    """Those of one guest: as PID 1 all that it may signal, as a deputy its own user's, outside of a box none.

    Outside, the processes of the whole machine would be strays.
    """

    def __init__(self, *, is_init: bool, is_deputy: bool) -> None:
        self._is_init = is_init and os.getpid() == 1
        # A deputy that shares its user with PID 1 cannot tell its own processes from those of PID 1's jobs.
        self._is_deputy = is_deputy and owner(1) not in (None, os.getuid())

    def make_room(self, running: Collection[int], reap: Callable[[], None]) -> int:
        """Kill every stray and see it gone. `running`: sessions of running jobs. Returns how many there were."""

        def of_nobody(table: list[Process]) -> list[Process]:
            return _but_kin(table, lambda process: process.session in running)

        deadline = time.monotonic() + PATIENCE
        killed: set[int] = set()
        while True:
            chosen = self._kill(of_nobody)
            killed |= chosen
            reap()  # a dead process counts against the limit until then
            if not chosen or time.monotonic() > deadline:
                return len(killed)
            time.sleep(0.002)

    def end_with(self, leader: int, others: Collection[int]) -> None:
        """Kill what left a job's session. Its leader is not reaped yet; `others`: the sessions of all other jobs."""
        began = next((process.start for process in self._table() if process.pid == leader), None)
        if began is None:
            return

        def of_the_job(table: list[Process]) -> list[Process]:
            return _but_kin(
                table,
                lambda process: process.session != leader and (process.session in others or process.start < began),
            )

        self._kill(of_the_job)

    def _table(self) -> list[Process]:
        if self._is_init:
            return processes()
        if self._is_deputy:
            return [process for process in processes() if process.pid != 1 and owner(process.pid) == os.getuid()]
        return []

    def _kill(self, choose: Choice) -> set[int]:
        """End what is chosen, also while it forks. Another user's processes are not PID 1's to signal, and are left."""
        table = self._table()
        chosen = choose(table)
        if not chosen:
            return set()
        if self._is_init and len(chosen) == len(table):
            # Nobody is spared: the kernel signals all processes under the lock that a fork needs, so none escapes.
            reached = {process.pid for process in chosen if _signal(process.pid, 0)}
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            return reached
        self._stop(choose)
        return {process.pid for process in choose(self._table()) if _signal(process.pid, signal.SIGKILL)}

    def _stop(self, choose: Choice) -> None:
        """Until a look finds nobody new: a fork that meets a pending signal is undone, so the stopped cannot refill."""
        seen: set[int] = set()
        for _ in range(_ROUNDS):
            fresh = [process.pid for process in choose(self._table()) if process.pid not in seen]
            if not fresh:
                return
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            seen.update(fresh)


def _but_kin(table: list[Process], spared: Callable[[Process], bool]) -> list[Process]:
    """All processes but the spared ones, their descendants, and the guest's own children."""
    own = os.getsid(0)
    children: dict[int, list[int]] = {}
    kin: set[int] = set()
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
        if process.session == own or spared(process):
            kin.add(process.pid)
    waiting = list(kin)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in kin:
                kin.add(child)
                waiting.append(child)
    return [process for process in table if process.pid not in kin]


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
