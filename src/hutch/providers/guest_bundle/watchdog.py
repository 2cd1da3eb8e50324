"""Holds memory and processes where the engine's control groups hold only the wall around the box, not what is inside.

Under gVisor the machine's kernel sees one sandbox: if that used too much, all of it would be killed, guest included,
and its threads say nothing of the box's processes. So the guest looks itself, and kills what is too much before that.
Runs inside the box: standard library only.
"""

import contextlib
import os
import signal
import threading
import time

from hutch.guest.processes import Process, processes

PERIOD = 0.05
IDLE = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watchdog(threading.Thread):
    """One look after the other, at processes of the guest's own user: no other can be signalled."""

    def __init__(self, memory_bytes: int, pids: int) -> None:
        super().__init__(daemon=True)
        self.memory_bytes = memory_bytes
        self.pids = pids
        self.memory_kills = 0
        self.process_kills = 0

    def run(self) -> None:
        while True:
            time.sleep(PERIOD if self.look() else IDLE)

    def look(self) -> bool:
        """Whether there was anybody to look at."""
        own = [process for process in processes() if _is_ours(process.pid)]
        self._end_youngest(own)
        self._end_largest(own)
        return bool(own)

    def _end_youngest(self, table: list[Process]) -> None:
        excess = sum(process.threads for process in table) - self.pids
        for process in sorted(table, key=lambda each: (each.start, each.pid), reverse=True):
            if excess <= 0:
                return
            excess -= process.threads
            self.process_kills += _kill(process.pid)

    def _end_largest(self, table: list[Process]) -> None:
        sizes = sorted(((_resident(process.pid), process.pid) for process in table), reverse=True)
        if sum(size for size, _ in sizes) > self.memory_bytes:
            self.memory_kills += _kill(sizes[0][1])


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _kill(pid: int) -> int:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        return 1
    return 0
