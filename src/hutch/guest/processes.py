"""The process table, as /proc tells it to the guest."""

import os
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
