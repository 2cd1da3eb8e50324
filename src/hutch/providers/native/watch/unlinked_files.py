"""Files that have lost their last name while a process holds them open: no walk through a tree finds them.

Threat: a box opens a file, removes it and fills it. Not seen: one that is mapped or on its way through a socket, and
open nowhere.
"""

import os
import stat
from collections.abc import Iterable

_BLOCK = 512


def nameless_bytes(pids: Iterable[int]) -> int:
    """What the processes hold of such files on their root, in bytes."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            memory = _in_memory(pid)
            for name in os.listdir(f"/proc/{pid}/fd"):
                status = _status(f"/proc/{pid}/fd/{name}")
                if status is None or status.st_nlink or not stat.S_ISREG(status.st_mode):
                    continue
                # An overlay's device has no major number; one that has is a mount of the machine's, not the box's disk.
                if os.major(status.st_dev) == 0 and status.st_dev not in memory:
                    found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is a guest, which is closed to an ordinary user and holds nothing of the kind
    return sum(found.values())


def _in_memory(pid: int) -> set[int]:
    """Devices of files that are memory: those of memfd_create(2), and the box's /dev/shm."""
    memfd = os.memfd_create("device")
    try:
        devices = {os.fstat(memfd).st_dev}
    finally:
        os.close(memfd)
    shared = _status(f"/proc/{pid}/root/dev/shm")
    return devices | {shared.st_dev} if shared else devices


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None  # closed meanwhile
