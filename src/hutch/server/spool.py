"""Where boxes lie while they are moved: a directory of the server's own, with a count of what may be written there.

Nobody else can read it or put a name into it, unlike /tmp. Whoever moves a box says first how many bytes that may take,
and is refused if the disk would become full of it, or full of one key's boxes.
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from hutch.config import directories
from hutch.errors import QuotaExceeded
from hutch.keeper.locks import run_uncancelled

LEFT_FREE = 256 << 20
"""Bytes of the disk that are never promised to anybody."""
_PREFIX = "moving-"


class Spool:
    """One of a server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._promised: dict[str, int] = {}
        """Bytes by key."""

    def clear(self) -> None:
        """Remove what a server left that was killed. The state directory has one server at a time."""
        for left in self.directory.glob(f"{_PREFIX}*") if self.directory.exists() else ():
            shutil.rmtree(left, ignore_errors=True)

    def room(self, key: str) -> int:
        """Bytes that may be promised to this key now: never more than half of all that is free goes to one."""
        directories.make(self.directory)
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize - LEFT_FREE
        mine = self._promised.get(key, 0)
        return max(0, min(free - sum(self._promised.values()), free // 2 - mine))

    def place(self, key: str, size: int) -> "Place":
        """A directory in which at most `size` bytes will be written. QuotaExceeded if there is no room for them."""
        if size > (room := self.room(key)):
            raise QuotaExceeded(
                f"moving this box may take {size >> 20} MB of the server's disk, which has {room >> 20} MB for it",
                retry_after=5.0,
                details={"wanted": size, "free": room},
                remedy=f"make room in {self.directory}, or wait until others have moved theirs",
            )
        return Place(self, key, size)

    def promise(self, key: str, size: int) -> None:
        left = self._promised.pop(key, 0) + size
        if left:
            self._promised[key] = left


class Place:
    """One directory of a spool; `remove` it."""

    def __init__(self, spool: Spool, key: str, size: int) -> None:
        self._spool = spool
        self._key = key
        self._size = size
        spool.promise(key, size)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=spool.directory))
        except OSError:
            spool.promise(key, -size)
            raise

    @property
    def file(self) -> Path:
        return self.path / "box"

    async def remove(self) -> None:
        """A thread does it: a box may have very many files."""
        try:
            await run_uncancelled(asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True))
        finally:
            self._spool.promise(self._key, -self._size)
