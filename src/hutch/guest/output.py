"""What a job wrote: the head and the tail in memory, the middle spilled to a file, past every bound only counted.

Positions are bytes since the job's start. `[0, len(head))` and `[total - len(tail), total)` are in memory, `pieces` are
in the spill file; what is in none of them is lost.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

HEAD = (1 << 20) * 3 // 5
TAIL = (1 << 20) - HEAD
"""Together the default of what `run` returns, in its proportion: a result rarely needs the file."""
SLACK = 1 << 18
"""The tail may grow by so much before its oldest bytes move on, so that they move in large writes."""
SPILL_LIMIT = 256 << 20
"""Of a box, whoever of its users wrote it."""
_COUNTED_AFTER = 1 << 20
"""Bytes that a guest may store before it counts again what the box's other guests have stored."""


class Spill:
    """The box's directory for output, outside the user's view, and what may still be written there.

    A box has one directory and one limit. Each of its guests (one for every user that commands run as) knows what it
    has stored itself, and counts the files of the others; so together they pass the limit by a megabyte each at most.
    """

    def __init__(self, directory: int | None, limit: int = SPILL_LIMIT, owner: str = "guest") -> None:
        """`directory`: O_PATH will do. `owner` begins the names of this guest's files, and of no other's."""
        self._directory = directory
        self._mark = f"{owner}."
        self._others = 0
        self._uncounted = _COUNTED_AFTER
        self.left = limit if directory is not None else 0
        self.make_room: Callable[[int], None] | None = None
        """Asked to free so many bytes, by letting go of older output."""

    def claim(self, size: int) -> int:
        """How many of `size` bytes have room; older output of this guest makes way for them."""
        self._uncounted += size
        if self._uncounted >= _COUNTED_AFTER and self._directory is not None:
            self._uncounted = 0
            others = self._count_others()
            self.left -= others - self._others
            self._others = others
        if self.left < size and self.make_room is not None:
            self.make_room(size)
        return max(0, min(size, self.left))

    def open(self, name: str, flags: int) -> int:
        return os.open(self._mark + name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)

    def remove(self, name: str) -> None:
        os.unlink(self._mark + name, dir_fd=self._directory)

    def clear(self) -> None:
        """Remove what an earlier guest of the same owner has left: nobody can read it any more."""
        for entry in self._entries():
            if entry.name.startswith(self._mark):
                with suppress(OSError):  # it counts as another's then, which is the safe side
                    os.unlink(entry.name, dir_fd=self._directory)

    def _count_others(self) -> int:
        sizes = 0
        for entry in self._entries():
            if not entry.name.startswith(self._mark):
                with suppress(OSError):  # removed this moment
                    sizes += entry.stat(follow_symlinks=False).st_size
        return sizes

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        try:
            listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError:
            return  # no descriptor is free, or the box is being removed: then nothing can be stored either
        try:
            with os.scandir(listing) as entries:
                yield from entries
        finally:
            os.close(listing)


class Output:
    """One stream of one job."""

    __slots__ = ("_file", "_name", "_size", "_spill", "discard", "dropped", "head", "pieces", "tail", "total")

    def __init__(self, spill: Spill, name: str) -> None:
        self._spill = spill
        self._name = name
        self._file = -1
        self._size = 0
        self.head = bytearray()
        self.tail = bytearray()
        self.pieces: list[tuple[int, int, int]] = []
        """(first position, end, offset in the file), in order."""
        self.total = 0
        self.dropped = 0
        self.discard = False
        """A reader reads along and has already been given what leaves the tail."""

    def append(self, data: bytes | memoryview) -> None:
        self.total += len(data)
        if not self.tail and len(self.head) < HEAD and self.total - len(data) == len(self.head):
            room = HEAD - len(self.head)
            self.head += data[:room]
            data = data[room:]
            if not data:
                return
        self.tail += data
        if len(self.tail) > TAIL + SLACK:
            self._shorten()

    def _shorten(self) -> None:
        """Move the oldest bytes of the tail to the file, or let them go."""
        excess = len(self.tail) - TAIL
        if not self.discard:
            start = self.total - len(self.tail)
            kept = self._store(start, memoryview(self.tail)[:excess])
            self.dropped += excess - kept
        del self.tail[:excess]

    def _store(self, position: int, data: memoryview) -> int:
        """Append to the spill file; returns how many bytes found room."""
        wanted = self._spill.claim(len(data))
        if not wanted:
            return 0
        stored = 0
        try:
            if self._file < 0:
                self._file = self._spill.open(self._name, os.O_RDWR | os.O_CREAT)
            while stored < wanted:
                stored += os.pwrite(self._file, data[stored:wanted], self._size + stored)
        except OSError:
            # The host's disk is full, or the directory is gone: the rest counts as dropped.
            self._spill.left = 0
        if not stored:
            return 0
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last[1] == position:
            self.pieces[-1] = (last[0], position + stored, last[2])
        else:
            self.pieces.append((position, position + stored, self._size))
        self._size += stored
        self._spill.left = max(0, self._spill.left - stored)
        return stored

    def read(self, cursor: int, limit: int) -> tuple[int, bytes]:
        """The first bytes at or after `cursor` that are still there, and where they begin; no bytes at the end."""
        if cursor < len(self.head):
            return cursor, bytes(self.head[cursor : cursor + limit])
        for start, end, offset in self.pieces:
            if cursor < end:
                cursor = max(cursor, start)
                data = self._load(offset + cursor - start, min(limit, end - cursor))
                if data:
                    return cursor, data
                self._lose_file()
                return self.read(cursor, limit)
        start = self.total - len(self.tail)
        cursor = max(cursor, start)
        with memoryview(self.tail) as tail:
            return min(cursor, self.total), bytes(tail[cursor - start : cursor - start + limit])

    def _load(self, offset: int, size: int) -> bytes:
        try:
            if self._file >= 0:
                return os.pread(self._file, size, offset)
            file = self._spill.open(self._name, os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.pread(file, size, offset)
        except OSError:
            return b""
        finally:
            os.close(file)

    def _lose_file(self) -> None:
        """Somebody on the host has taken the file away."""
        self.dropped += sum(end - start for start, end, _ in self.pieces)
        self.pieces.clear()

    def ends(self, keep: int) -> list[tuple[int, int]]:
        """What a result of `keep` bytes shows: everything, or 60 % from the beginning and 40 % from the end."""
        if self.total <= keep:
            return [(0, self.total)] if self.total else []
        head = keep * 3 // 5
        return [(0, head), (self.total - (keep - head), self.total)]

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self.head) + len(self.tail)

    @property
    def spilled(self) -> int:
        return self._size

    def park(self) -> None:
        """Give the memory back: everything that is left goes to the file, or is lost."""
        tail_start = self.total - len(self.tail)
        stored = self._store(tail_start, memoryview(self.tail)) if self.tail else 0
        self.dropped += len(self.tail) - stored
        self.tail = bytearray()
        if self.head:
            stored = self._store(0, memoryview(self.head))
            self.dropped += len(self.head) - stored
            self.head = bytearray()
            self.pieces.sort()
        self.rest()

    def rest(self) -> None:
        """No more will be written for now: hold no descriptor."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def forget(self) -> None:
        """Everything written so far is lost from here on; its count stays."""
        self.rest()
        if self._size:
            self._spill.left += self._size
            self._size = 0
            self.pieces.clear()
            with suppress(OSError):
                self._spill.remove(self._name)
        self.head = bytearray()
        self.tail = bytearray()
