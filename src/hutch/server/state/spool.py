"""Disk space for boxes that are exported or imported: a private directory with reservations.

Unlike /tmp, no other user can read it or create names in it. Each export or import first reserves the bytes that it may
write, and is refused if that would fill the disk, or fill it with one key's boxes.
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from hutch.config import directories
from hutch.errors import QuotaExceeded
from hutch.keeper.locks import run_uncancelled

KEPT_FREE = 256 << 20
"""Bytes of the disk that are never reserved."""
_PREFIX = "moving-"


class Spool:
    """The spool of one server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reserved: dict[str, int] = {}
        """Reserved bytes by key."""

    def clear(self) -> None:
        """Remove what a killed server left behind; a state directory has one server at a time."""
        for leftover in self.directory.glob(f"{_PREFIX}*") if self.directory.exists() else ():
            shutil.rmtree(leftover, ignore_errors=True)

    def free_for(self, key: str) -> int:
        """Bytes that this key may reserve now: one key gets at most half of what is free."""
        directories.make(self.directory)
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize - KEPT_FREE
        mine = self._reserved.get(key, 0)
        return max(0, min(free - sum(self._reserved.values()), free // 2 - mine))

    def allocate(self, key: str, size: int) -> "SpoolDirectory":
        """A directory for at most `size` bytes; QuotaExceeded if there is no space for them."""
        if size > (free := self.free_for(key)):
            raise QuotaExceeded(
                f"moving this box may take {size >> 20} MB of the server's disk, which has {free >> 20} MB for it",
                retry_after=5.0,
                details={"wanted": size, "free": free},
                remedy=f"free space in {self.directory}, or wait until other moves have ended",
            )
        return SpoolDirectory(self, key, size)

    def reserve(self, key: str, size: int) -> None:
        reserved = self._reserved.pop(key, 0) + size
        if reserved:
            self._reserved[key] = reserved


class SpoolDirectory:
    """One directory of the spool; its user must `remove` it."""

    def __init__(self, spool: Spool, key: str, size: int) -> None:
        self._spool = spool
        self._key = key
        self._size = size
        spool.reserve(key, size)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=spool.directory))
        except OSError:
            spool.reserve(key, -size)
            raise

    @property
    def file(self) -> Path:
        return self.path / "box"

    async def remove(self) -> None:
        """Remove the directory in a thread, because a box may have very many files."""
        try:
            await run_uncancelled(asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True))
        finally:
            self._spool.reserve(self._key, -self._size)
