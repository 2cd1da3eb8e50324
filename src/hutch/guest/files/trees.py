"""File trees as a stream, for `copy_in` and `copy_out`; both ends pack and unpack with this code.

A stream is a sequence of entries, each one line of JSON and, for a file, its content:

    {"path": "src/a.py", "kind": "file", "mode": 420, "mtime": 1700000000000000000}\n   piece piece ... end
    {"path": "src", "kind": "directory", "mode": 493, "mtime": ...}\n
    {"path": "src/b", "kind": "symlink", "target": "a.py"}\n
    {"path": "pipe", "kind": "skipped"}\n                                              a device, FIFO or socket

The first entry has the path "" and is the file or directory itself; a directory comes before what is in it. A piece is
`type (1) | length (8)`, little endian: DATA is followed by that many bytes, HOLE stands for that many zeros, END closes
the content. Sizes are not announced, because a file may grow or shrink while it is read.

The stream comes from the other side of the isolation. Unpacking never leaves the target: names are single components,
directories are opened one by one without following symlinks, symlinks are created but never followed, and setuid bits
are dropped.
"""

import errno
import json
import os
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from hutch.guest.files.paths import temporary_name
from hutch.guest.operations import BLOCK, Failure, Reply, failure

PIECE = struct.Struct("<BQ")
DATA, HOLE, END = 1, 2, 0
MODE_BITS = 0o777
"""Mode bits that are transferred."""
MAX_HEADER = 64 << 10
MAX_DEPTH = 256
"""Deepest directory; each level costs an open descriptor while it is read or filled."""
_MAX_RETRIES = 1000

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_REPORTED = 1000
"""Number of skipped entries whose names are reported."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def pack(top: int, path: str) -> Generator[bytes | None, None, None]:
    """Yield the stream of an open file or directory and close it; None means nothing to send yet."""
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
    """Append one entry to `out`; return an open directory if there is one to enter."""
    try:
        found = _open_entry(directory, name, path)
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


def _open_entry(directory: int, name: str, path: str) -> bytes | int:
    """Return the entry of a symlink or special file, or an open file or directory. Retries if the name changes."""
    for _ in range(_MAX_RETRIES):
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
    raise OSError(errno.EBUSY, "keeps changing")


def _content(descriptor: int, out: bytearray) -> Iterator[bytes]:
    """Append the pieces of a file to `out`, and yield it whenever it is full. Holes are not read."""
    position = 0
    while True:
        begin = _next_data(descriptor, position)
        if begin is None:
            # Only a hole is left, up to the file's current end.
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
        return position  # the filesystem does not report holes


def _header(path: str, kind: str, info: os.stat_result) -> bytes:
    return _line({"path": path, "kind": kind, "mode": info.st_mode & MODE_BITS, "mtime": info.st_mtime_ns})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


class _OpenDirectory(NamedTuple):
    name: str
    descriptor: int
    made: tuple[int, int] | None
    """Mode and mtime to set when it is full; None if it existed before and keeps its own."""


class _File(NamedTuple):
    directory: int
    draft: str
    name: str
    descriptor: int
    mode: int
    mtime: int


class Unpacker:
    """Creates in `directory` under `name` what a stream describes, merging into a directory that exists.

    An existing file is replaced; `into` is the name it gets if `name` is a directory. The caller keeps `directory`. A
    stream that breaks the rules raises a Failure with the code `refused`.
    """

    def __init__(
        self, directory: int, name: str, into: str = "", *, max_bytes: int | None = None, max_entries: int | None = None
    ) -> None:
        """`max_bytes` bounds the bytes written (holes do not count), `max_entries` the entries created."""
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._directory = directory
        self._name = name
        self._into = into
        self._levels: list[_OpenDirectory] = []
        self._file: _File | None = None
        self._buffer = bytearray()
        self._expected = 0
        self._started = False
        self._files = self._bytes = self._written = self._entry_count = 0
        self._skipped: list[str] = []

    def data(self, content: bytes) -> None:
        try:
            self._feed(content)
        except OSError as error:
            raise failure(error, "copy to", self._current_path()) from None

    def end(self) -> Reply:
        try:
            if self._file or self._buffer or not self._started:
                raise Failure("refused", "the stream of a copy ended too early")
            while self._levels:
                self._leave_directory()
        except OSError as error:
            raise failure(error, "copy to", self._current_path()) from None
        finally:
            self.abort()
        return {"files": self._files, "bytes": self._bytes, "skipped": self._skipped}

    def abort(self) -> None:
        if self._file is not None:
            os.close(self._file.descriptor)
            with suppress(OSError):
                os.unlink(self._file.draft, dir_fd=self._file.directory)
            self._file = None
        for level in self._levels:
            os.close(level.descriptor)
        self._levels.clear()

    def _current_path(self) -> str:
        names = [level.name for level in self._levels] or [self._name]
        return "/".join([*names, self._file.name] if self._file else names)

    def _feed(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            if self._expected:
                view = self._handle_data(view)
                continue
            # Headers are short and are collected in the buffer; only content takes the fast path above.
            wanted = PIECE.size - len(self._buffer) if self._file else MAX_HEADER + 1 - len(self._buffer)
            if self._file is None:
                end = bytes(view[:wanted]).find(b"\n")
                wanted = end + 1 if end >= 0 else wanted
            self._buffer += view[:wanted]
            view = view[wanted:]
            self._handle_buffer()

    def _handle_buffer(self) -> None:
        if self._file is None:
            if self._buffer.endswith(b"\n"):
                line, self._buffer = bytes(self._buffer), bytearray()
                self._handle_header(line)
            elif len(self._buffer) > MAX_HEADER:
                raise Failure("refused", "the stream of a copy has an entry with an endless header")
        elif len(self._buffer) == PIECE.size:
            kind, size = PIECE.unpack(self._buffer)
            self._buffer.clear()
            self._handle_piece(self._file, kind, size)

    def _handle_piece(self, file: _File, kind: int, size: int) -> None:
        if kind == DATA:
            self._expected = size
        elif kind == HOLE:
            end = os.lseek(file.descriptor, 0, os.SEEK_CUR) + size
            if end >= 1 << 63:
                raise Failure("refused", "the stream of a copy has a hole that no file can have")
            os.ftruncate(file.descriptor, end)
            os.lseek(file.descriptor, end, os.SEEK_SET)
            self._bytes += size
        elif kind == END:
            self._finish_file(file)
        else:
            raise Failure("refused", f"the stream of a copy has a piece of unknown type {kind}")

    def _handle_data(self, view: memoryview) -> memoryview:
        assert self._file is not None
        part = view[: self._expected]
        self._expected -= len(part)
        self._bytes += len(part)
        self._written += len(part)
        if self._max_bytes is not None and self._written > self._max_bytes:
            raise Failure(
                "too_large", f"the copy has more than {self._max_bytes} bytes, its limit",
                remedy="copy less at once, or raise the limit; a file with several names counts once for each",
            )  # fmt: skip
        while part:
            written = os.write(self._file.descriptor, part)
            part, view = part[written:], view[written:]
        return view

    def _handle_header(self, line: bytes) -> None:
        path, kind, fields = _parse(line)
        self._entry_count += 1
        if self._max_entries is not None and self._entry_count > self._max_entries:
            raise Failure("too_large", f"the copy has more than {self._max_entries} files and directories")
        if not self._started:
            self._started = True
            self._handle_top(path, kind, fields)
            return
        if not self._levels:
            raise Failure("refused", "the stream of a copy has an entry outside its directory")
        names = _components(path)
        if kind == "skipped":
            if len(self._skipped) < MAX_REPORTED:
                self._skipped.append(path)
            return
        directory = self._enter(names[:-1])
        if kind == "directory":
            self._levels.append(_make_directory(directory, names[-1], fields))
        elif kind == "symlink":
            _make_symlink(directory, names[-1], fields)
        else:
            self._file = _create_draft(directory, names[-1], fields)

    def _handle_top(self, path: str, kind: str, fields: dict[str, Any]) -> None:
        if path or kind not in ("file", "directory"):
            raise Failure("refused", "the stream of a copy does not begin with its file or directory")
        name = self._name
        if kind == "directory":
            made = None
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._directory)
                made = (fields["mode"], fields["mtime"])
            # The caller chose the target itself, so a symlink there is followed.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._levels.append(_OpenDirectory(name, os.open(name, flags, dir_fd=self._directory), made))
            return
        if self._into and _is_directory(self._directory, name):
            top = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)
            self._levels.append(_OpenDirectory(name, top, None))
            self._file = _create_draft(top, _components(self._into)[-1], fields)
            return
        self._file = _create_draft(self._directory, name, fields)

    def _enter(self, names: list[str]) -> int:
        """Return the open directory of an entry: leave directories it is not in, open those on its way."""
        common = 0
        for level, name in zip(self._levels[1:], names, strict=False):
            if level.name != name:
                break
            common += 1
        while len(self._levels) - 1 > common:
            self._leave_directory()
        for name in names[common:]:
            descriptor = os.open(name, _DIRECTORY, dir_fd=self._levels[-1].descriptor)
            self._levels.append(_OpenDirectory(name, descriptor, None))
        return self._levels[-1].descriptor

    def _leave_directory(self) -> None:
        level = self._levels.pop()
        try:
            if level.made is not None:
                os.utime(level.descriptor, ns=(level.made[1], level.made[1]))
                os.fchmod(level.descriptor, level.made[0])
        finally:
            os.close(level.descriptor)

    def _finish_file(self, file: _File) -> None:
        os.fchmod(file.descriptor, file.mode)
        os.utime(file.descriptor, ns=(file.mtime, file.mtime))
        # rename replaces an existing symlink instead of following it.
        os.rename(file.draft, file.name, src_dir_fd=file.directory, dst_dir_fd=file.directory)
        os.close(file.descriptor)
        self._file = None
        self._files += 1


def _parse(line: bytes) -> tuple[str, str, dict[str, Any]]:
    try:
        fields = json.loads(line)
        path, kind = fields["path"], fields["kind"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Failure("refused", "the stream of a copy has an entry that is not a JSON object") from None
    if not _is_name(path) or kind not in ("file", "directory", "symlink", "skipped"):
        raise Failure("refused", f"the stream of a copy has an entry of unknown kind or name: {kind!r:.80}")
    if kind in ("file", "directory"):
        mode, mtime = fields.get("mode"), fields.get("mtime")
        if not isinstance(mode, int) or not isinstance(mtime, int) or abs(mtime) >= 1 << 63:
            raise Failure("refused", "the stream of a copy has an entry without mode or time")
        fields["mode"] = mode & MODE_BITS
    return path, kind, fields


def _is_name(value: object) -> bool:
    """Return whether the kernel can take it as a name."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _components(path: str) -> list[str]:
    names = path.split("/")
    if len(names) > MAX_DEPTH or any(name in ("", ".", "..") for name in names):
        raise Failure("refused", f"the name {path[:200]!r} would leave the target of the copy", path=path[:1000])
    return names


def _make_directory(directory: int, name: str, fields: dict[str, Any]) -> _OpenDirectory:
    made = None
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=directory)
        made = (fields["mode"], fields["mtime"])
    return _OpenDirectory(name, os.open(name, _DIRECTORY, dir_fd=directory), made)


def _make_symlink(directory: int, name: str, fields: dict[str, Any]) -> None:
    target = fields.get("target")
    if not target or not _is_name(target):
        raise Failure("refused", f"the symlink {name!r} of a copy points nowhere")
    draft = temporary_name()
    os.symlink(target, draft, dir_fd=directory)
    try:
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(draft, dir_fd=directory)
        raise


def _create_draft(directory: int, name: str, fields: dict[str, Any]) -> _File:
    draft = temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600, dir_fd=directory)
    return _File(directory, draft, name, descriptor, fields["mode"], fields["mtime"])


def _is_directory(directory: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory).st_mode)
    except FileNotFoundError:
        return False
