"""Which keepers are alive: what a keeper asks about others, and the answer by file locks for those on one machine.

Each keeper holds a lock on a file of its own as long as its process lives. The kernel drops the lock when the process
dies, however it dies, so one non-blocking attempt shows whether that keeper is alive. A keeper has one lock where its
records are (the state directory) and one where its boxes are (the run directory): each directory may be shared with
keepers that do not share the other.
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class Claimant(Protocol):
    """A keeper that claims to be alive."""

    id: str

    async def confirm(self) -> None:
        """Check which boxes are still this keeper's, because others may have taken it for dead."""

    async def adopt(self) -> None:
        """Take over the boxes of keepers that have died."""


class Liveness(Protocol):
    """Distinguishes living keepers from dead ones. `claim` comes before anything else, `release` at the end."""

    @property
    def place(self) -> str:
        """The name of this keeper's machine: only keepers of one place can reach its boxes. "" if all share one."""

    async def claim(self, claimant: Claimant) -> None: ...

    async def alive(self, keeper: str) -> bool:
        """Whether that keeper is alive. A name never seen is dead."""

    async def address(self, keeper: str) -> str:
        """Return the URL at which clients reach that keeper's server; "" if it has none that others can reach."""

    def lapsed(self) -> bool:
        """Whether others may take this keeper for dead by now, although it is alive."""

    async def sweep(self) -> None:
        """Remove what dead keepers have left of their claims."""

    async def release(self) -> None: ...


class LockLiveness:
    """Liveness by file locks, for stores on this machine: the kernel drops a lock with its process."""

    place = ""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._locks: list[KeeperLock] = []

    async def claim(self, claimant: Claimant) -> None:
        self._locks = [KeeperLock(directory, claimant.id) for directory in self._directories]

    async def alive(self, keeper: str) -> bool:
        return any(holds_lock(directory, keeper) for directory in self._directories)

    async def address(self, keeper: str) -> str:
        return ""

    def lapsed(self) -> bool:
        return False

    async def sweep(self) -> None:
        for directory in self._directories:
            remove_dead_locks(directory)

    async def release(self) -> None:
        locks, self._locks = self._locks, []
        for lock in locks:
            lock.release()


class KeeperLock:
    """The lock of a keeper: its own, or (with `wait=False`) the one that a dead keeper has left.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is False.
    """

    def __init__(self, directory: Path, keeper: str, *, wait: bool = True) -> None:
        locks = directory / "keepers"
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = locks / keeper
        self._fd = self._lock(fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _lock(self, how: int) -> int:
        """Lock the file; create it again if a sweep removed it between open and flock."""
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


def lock_directories(state_dir: Path, run_dir: Path) -> tuple[Path, ...]:
    """Return the directories of a keeper's locks: one, if state and run directory are the same."""
    return tuple(dict.fromkeys((state_dir, run_dir)))


def holds_lock(directory: Path, keeper: str) -> bool:
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


def remove_dead_locks(directory: Path) -> None:
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
