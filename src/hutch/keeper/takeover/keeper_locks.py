"""Which keepers live: each holds a lock on a file of its own as long as its process does.

The kernel drops the lock when the process dies, however it dies, so "is that keeper alive?" is one non-blocking try.
A keeper has one lock where its records are (the state directory) and one where its boxes are (the run directory): each
may be shared with keepers that do not share the other.
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Claim:
    """A lock by a keeper's name: its own, or (with `wait=False`) the one that a dead keeper has left.

    Raises BlockingIOError if it does not wait and another process has the lock.
    """

    def __init__(self, directory: Path, keeper: str, *, wait: bool = True) -> None:
        locks = directory / "keepers"
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = locks / keeper
        self._fd = self._lock(fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _lock(self, how: int) -> int:
        """Between open and flock a sweeper may take the file for a dead keeper's: then it is made again."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, how)
            except BlockingIOError:
                os.close(fd)
                raise
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            os.close(fd)

    def release(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)


def homes(state_dir: Path, run_dir: Path) -> tuple[Path, ...]:
    """Where a keeper's locks are; one, if somebody has made the two directories the same."""
    return tuple(dict.fromkeys((state_dir, run_dir)))


def alive_in_any(directories: Sequence[Path], keeper: str) -> bool:
    return any(alive(directory, keeper) for directory in directories)


def alive(directory: Path, keeper: str) -> bool:
    """Whether the keeper of that name still holds its lock. A name never seen is dead."""
    try:
        fd = os.open(directory / "keepers" / keeper, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def sweep(directory: Path) -> None:
    """Remove the lock files of dead keepers."""
    locks = directory / "keepers"
    if not locks.is_dir():
        return
    for path in locks.iterdir():
        with suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
