"""Enforces memory and process limits inside a sandbox whose control groups count only the sandbox as a whole.

Under gVisor the host's kernel sees one sandbox: if that used too much, all of it would be killed, the guest included,
and its threads say nothing about the box's processes. So the guest looks itself, and kills the offender before that.
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
    """Checks the processes of the guest's own user again and again; no others can be signalled."""

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
        """Enforce the limits once. Return whether any process was there."""
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
