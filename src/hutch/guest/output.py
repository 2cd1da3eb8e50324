"""A job's stored output: head and tail are in memory, the middle is in a spill file, and the excess is only counted.

Positions are bytes since the job's start. `[0, len(head))` and `[total - len(tail), total)` are in memory, `pieces` are
in the spill file; what is in none of them is lost.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

HEAD = (1 << 20) * 3 // 5
TAIL = (1 << 20) - HEAD
"""Together the default size of a result of `run`, in its proportion, so that a result rarely needs the file."""
SLACK = 1 << 18
"""The tail may grow by this much before its oldest bytes are written to the file in one large write."""
SPILL_LIMIT = 256 << 20
"""Limit for a whole box, whichever of its users wrote the output."""
_RECOUNT_BYTES = 1 << 20
"""Bytes that a guest may store before it counts again what the box's other guests have stored."""


class Spill:
    """The box's directory for output, outside the user's view, and the space left in it.

    A box has one directory and one limit. Each of its guests (one for every user that commands run as) knows what it
    stored itself and counts the files of the others, so each can exceed the limit by a megabyte at most.
    """

    def __init__(self, directory: int | None, limit: int = SPILL_LIMIT, owner: str = "guest") -> None:
        """`directory` may be an O_PATH descriptor. `owner` is the prefix of this guest's files, and of no other's."""
        self._directory = directory
        self._prefix = f"{owner}."
        self._used_by_others = 0
        self._bytes_since_count = _RECOUNT_BYTES
        self.left = limit if directory is not None else 0
        self.free_space: Callable[[int], None] | None = None
        """Called to free this many bytes by dropping older output."""

    def claim(self, size: int) -> int:
        """Return how many of `size` bytes may be stored; older output of this guest is dropped for them."""
        self._bytes_since_count += size
        if self._bytes_since_count >= _RECOUNT_BYTES and self._directory is not None:
            self._bytes_since_count = 0
            others = self._count_others()
            self.left -= others - self._used_by_others
            self._used_by_others = others
        if self.left < size and self.free_space is not None:
            self.free_space(size)
        return max(0, min(size, self.left))

    def open(self, name: str, flags: int) -> int:
        return os.open(self._prefix + name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)

    def remove(self, name: str) -> None:
        os.unlink(self._prefix + name, dir_fd=self._directory)

    def clear(self) -> None:
        """Remove the files of an earlier guest of the same owner, which nobody can read any more."""
        for entry in self._entries():
            if entry.name.startswith(self._prefix):
                with suppress(OSError):  # then it counts as another guest's file, which is safe
                    os.unlink(entry.name, dir_fd=self._directory)

    def _count_others(self) -> int:
        sizes = 0
        for entry in self._entries():
            if not entry.name.startswith(self._prefix):
                with suppress(OSError):  # it was removed just now
                    sizes += entry.stat(follow_symlinks=False).st_size
        return sizes

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        try:
            listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError:
            return  # no descriptor is free, or the box is being removed; then nothing can be stored either
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
        """(start position, end position, offset in the file), in order."""
        self.total = 0
        self.dropped = 0
        self.discard = False
        """Whether to drop what leaves the tail, because a live reader has already received it."""

    def append(self, data: bytes | memoryview) -> None:
        self.total += len(data)
        if not self.tail and len(self.head) < HEAD and self.total - len(data) == len(self.head):
            space = HEAD - len(self.head)
            self.head += data[:space]
            data = data[space:]
            if not data:
                return
        self.tail += data
        if len(self.tail) > TAIL + SLACK:
            self._trim_tail()

    def _trim_tail(self) -> None:
        """Move the oldest bytes of the tail to the file, or drop them."""
        excess = len(self.tail) - TAIL
        if not self.discard:
            start = self.total - len(self.tail)
            kept = self._store(start, memoryview(self.tail)[:excess])
            self.dropped += excess - kept
        del self.tail[:excess]

    def _store(self, position: int, data: memoryview) -> int:
        """Append to the spill file and return how many bytes were stored."""
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
        """Return the first bytes at or after `cursor` that are still stored, and their position; none at the end."""
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
        """Count spilled output as dropped, because somebody on the host removed the file."""
        self.dropped += sum(end - start for start, end, _ in self.pieces)
        self.pieces.clear()

    def ends(self, keep: int) -> list[tuple[int, int]]:
        """Ranges for a result of `keep` bytes: everything, or 60 % from the start and 40 % from the end."""
        if self.total <= keep:
            return [(0, self.total)] if self.total else []
        head = keep * 3 // 5
        return [(0, head), (self.total - (keep - head), self.total)]

    @property
    def in_memory(self) -> int:
        """Number of bytes in memory."""
        return len(self.head) + len(self.tail)

    @property
    def spilled(self) -> int:
        return self._size

    def move_to_file(self) -> None:
        """Free the memory: everything goes to the file, or is lost."""
        tail_start = self.total - len(self.tail)
        stored = self._store(tail_start, memoryview(self.tail)) if self.tail else 0
        self.dropped += len(self.tail) - stored
        self.tail = bytearray()
        if self.head:
            stored = self._store(0, memoryview(self.head))
            self.dropped += len(self.head) - stored
            self.head = bytearray()
            self.pieces.sort()
        self.close_file()

    def close_file(self) -> None:
        """Close the spill file until it is needed again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def forget(self) -> None:
        """Drop everything written so far; only its count stays."""
        self.close_file()
        if self._size:
            self._spill.left += self._size
            self._size = 0
            self.pieces.clear()
            with suppress(OSError):
                self._spill.remove(self._name)
        self.head = bytearray()
        self.tail = bytearray()
