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
from typing import Any

from hutch.guest.steps import BLOCK, failure

PIECE = struct.Struct("<BQ")
DATA, HOLE, END = 1, 2, 0
MODE = 0o777
"""Bits of a mode that travel."""
MAX_HEADER = 64 << 10
MAX_DEPTH = 256
"""Levels of directories: each costs an open descriptor while it is read or filled."""

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def pack(top: int, path: str) -> Generator[bytes | None, None, None]:
    """The stream of an open file or directory, which is closed at the end. None: nothing to send yet."""
    out = bytearray()
    levels: list[tuple[int, str, Iterator[str]]] = []
    try:
        info = os.fstat(top)
        if stat.S_ISDIR(info.st_mode):
            out += _header("", "directory", info)
            levels.append((top, "", iter(_names(top))))
        else:
            out += _header("", "file", info)
            yield from _content(top, out)
        while levels:
            directory, prefix, names = levels[-1]
            name = next(names, None)
            if name is None:
                levels.pop()
                if directory != top:
                    os.close(directory)
                continue
            below = yield from _entry(directory, name, prefix + name, out, len(levels))
            if below is not None:
                levels.append((below, prefix + name + "/", iter(_names(below))))
            if len(out) >= BLOCK:
                yield bytes(out)
                out.clear()
            else:
                yield None
        yield bytes(out)
    except OSError as error:
        where = levels[-1][1] if levels else ""
        raise failure(error, "copy", os.path.join(path, where)) from None
    finally:
        for directory, _, _ in levels[1:]:
            os.close(directory)
        os.close(top)


def _entry(
    directory: int, name: str, path: str, out: bytearray, depth: int
) -> Generator[bytes | None, None, int | None]:
    """Append one entry to `out`; an open directory is returned, to be entered."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            out += _line({"path": path, "kind": "symlink", "target": os.readlink(name, dir_fd=directory)})
            return None
        if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
            out += _line({"path": path, "kind": "skipped"})
            return None
        # The name may have become something else since; what was opened is what counts.
        descriptor = os.open(name, _SOURCE, dir_fd=directory)
    except FileNotFoundError:
        return None  # removed since it was listed
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


def _names(directory: int) -> list[str]:
    return sorted(os.listdir(directory))


def _header(path: str, kind: str, info: os.stat_result) -> bytes:
    return _line({"path": path, "kind": kind, "mode": info.st_mode & MODE, "mtime": info.st_mtime_ns})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
