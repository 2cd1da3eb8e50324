"""Which keepers live: each holds a lock on a file of its own as long as its process does.

The kernel drops the lock when the process dies, however it dies, so "is that keeper alive?" is one non-blocking try.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class Claim:
    """This keeper's own lock."""

    def __init__(self, state_dir: Path, keeper: str) -> None:
        directory = state_dir / "keepers"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = directory / keeper
        self._fd = self._lock()

    def _lock(self) -> int:
        """Between open and flock a sweeper may take the file for a dead keeper's: then it is made again."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            os.close(fd)

    def release(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)


def alive(state_dir: Path, keeper: str) -> bool:
    """Whether the keeper of that name still holds its lock. A name never seen is dead."""
    try:
        fd = os.open(state_dir / "keepers" / keeper, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def sweep(state_dir: Path) -> None:
    """Remove the lock files of dead keepers."""
    directory = state_dir / "keepers"
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        with suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
