"""Trees as a stream: what `copy_in` and `copy_out` send, made and taken apart by the same code on both ends.

A stream is a sequence of entries, each one line of JSON and, for a file, its content:

    {"path": "src/a.py", "kind": "file", "mode": 420, "mtime": 1700000000000000000}\\n   piece piece ... end
    {"path": "src", "kind": "directory", "mode": 493, "mtime": ...}\\n
    {"path": "src/b", "kind": "symlink", "target": "a.py"}\\n
    {"path": "pipe", "kind": "skipped"}\\n                                              a device, FIFO or socket

The first entry has the path "" and is the file or directory itself; a directory comes before what is in it. A piece is
`type (1) | length (8)`, little endian: DATA is followed by that many bytes, HOLE stands for that many zeros, END closes
the content. Sizes are not announced, because a file may grow or shrink while it is read.

The stream comes from the other side of the box's wall. Taking it apart never leaves the target: names are single
components, directories are opened one by one without following symlinks, symlinks are made but never used, and setuid
bits are dropped.
"""

import errno
import json
import os
import stat
import struct
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from hutch.guest.path_steps import BLOCK, failure

PIECE = struct.Struct("<BQ")
DATA, HOLE, END = 1, 2, 0
MODE = 0o777
"""Bits of a mode that travel."""
MAX_HEADER = 64 << 10
MAX_DEPTH = 256
"""Levels of directories: each costs an open descriptor while it is read or filled."""
_MAX_LOOKS = 1000

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def pack(top: int, path: str) -> Generator[bytes | None, None, None]:
    """The stream of an open file or directory, which is closed at the end. None: nothing to send yet."""
    out = bytearray()
    levels: list[_Level] = []
    try:
        info = os.fstat(top)
        if stat.S_ISDIR(info.st_mode):
            out += _header("", "directory", info)
            levels.append(_Level(top, "", os.scandir(top)))
        else:
            out += _header("", "file", info)
            yield from _content(top, out)
        while levels:
            level = levels[-1]
            entry = next(level.entries, None)
            if entry is None:
                levels.pop().close(keep=top)
                continue
            below = yield from _entry(level.directory, entry.name, level.prefix + entry.name, out, len(levels))
            if below is not None:
                levels.append(_Level(below, level.prefix + entry.name + "/", os.scandir(below)))
            if len(out) >= BLOCK:
                yield bytes(out)
                out.clear()
            else:
                yield None
        yield bytes(out)
    except OSError as error:
        where = levels[-1].prefix if levels else ""
        raise failure(error, "copy", os.path.join(path, where)) from None
    finally:
        for level in levels:
            level.close(keep=top)
        os.close(top)


class _Level(NamedTuple):
    """A directory that is being read."""

    directory: int
    prefix: str
    entries: "os._ScandirIterator[str]"

    def close(self, keep: int) -> None:
        self.entries.close()
        if self.directory != keep:
            os.close(self.directory)


def _entry(
    directory: int, name: str, path: str, out: bytearray, depth: int
) -> Generator[bytes | None, None, int | None]:
    """Append one entry to `out`; an open directory is returned, to be entered."""
    try:
        found = _look(directory, name, path)
    except FileNotFoundError:
        return None  # removed since it was listed
    if isinstance(found, bytes):
        out += found
        return None
    descriptor = found
    info = os.fstat(descriptor)
    if stat.S_ISDIR(info.st_mode):
        if depth >= MAX_DEPTH:
            os.close(descriptor)
            raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep")
        out += _header(path, "directory", info)
        return descriptor
    try:
        if stat.S_ISREG(info.st_mode):
            out += _header(path, "file", info)
            yield from _content(descriptor, out)
        else:
            out += _line({"path": path, "kind": "skipped"})
    finally:
        os.close(descriptor)
    return None


def _look(directory: int, name: str, path: str) -> bytes | int:
    """The entry of a symlink or special file, or the open file or directory. A name that changes is looked at again."""
    for _ in range(_MAX_LOOKS):
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        try:
            if stat.S_ISLNK(mode):
                return _line({"path": path, "kind": "symlink", "target": os.readlink(name, dir_fd=directory)})
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                return _line({"path": path, "kind": "skipped"})
            return os.open(name, _SOURCE, dir_fd=directory)
        except OSError as error:
            # It was a symlink and is none any more (EINVAL), or is one now (ELOOP).
            if error.errno not in (errno.EINVAL, errno.ELOOP):
                raise
    raise OSError(errno.EBUSY, "changes all the time")


def _content(descriptor: int, out: bytearray) -> Iterator[bytes]:
    """Append the pieces of a file to `out`, sending it whenever it is full. Holes are not read."""
    position = 0
    while True:
        begin = _next_data(descriptor, position)
        if begin is None:
            # Nothing but a hole is left, up to wherever the file ends now.
            begin = max(os.fstat(descriptor).st_size, position)
        if begin > position:
            out += PIECE.pack(HOLE, begin - position)
            position = begin
        block = os.pread(descriptor, BLOCK, position)
        if not block:
            break
        out += PIECE.pack(DATA, len(block))
        out += block
        position += len(block)
        if len(out) >= BLOCK:
            yield bytes(out)
            out.clear()
    out += PIECE.pack(END, 0)


def _next_data(descriptor: int, position: int) -> int | None:
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        return position  # a filesystem without holes


def _header(path: str, kind: str, info: os.stat_result) -> bytes:
    return _line({"path": path, "kind": kind, "mode": info.st_mode & MODE, "mtime": info.st_mtime_ns})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
