"""Watching changes below a directory by inotify. A reader that is too slow learns that it missed some."""

import ctypes
import errno
import json
import os
import stat
import struct
import time
from collections.abc import Generator, Iterator

from hutch.guest.files.paths import AT_FDCWD, DIRECTORY, TEMPORARY, open_at, prefix_of, request_path
from hutch.guest.operations import STEP_SECONDS, Operation, Readable, Request, Steps, failure

MAX_WATCHES = 8192
"""Most directories of one watch; the kernel counts them per user (fs.inotify.max_user_watches)."""

# This is looked up before the box's root is entered, where there may be no libc.
_libc = ctypes.CDLL(None, use_errno=True)

_CREATE, _DELETE, _MODIFY, _ATTRIB = 0x100, 0x200, 0x2, 0x4
_MOVED_FROM, _MOVED_TO, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x400, 0x800
_OVERFLOW, _IGNORED, _ISDIR, _ONLYDIR, _EXCL_UNLINK = 0x4000, 0x8000, 0x40000000, 0x01000000, 0x04000000
_MASK = _CREATE | _DELETE | _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _EXCL_UNLINK
_KINDS = (
    (_CREATE, "created"), (_DELETE, "deleted"), (_MOVED_FROM, "moved_from"), (_MOVED_TO, "moved_to"),
    (_MODIFY, "modified"), (_ATTRIB, "modified"),
)  # fmt: skip
_EVENT = struct.Struct("iIII")
_FLUSH_BYTES = 64 << 10


def watch(request: Request, workdir: str) -> Steps:
    """Send lines of JSON: {"kind": "ready"} once every directory is watched, then the changes until it is cancelled."""
    path = request_path(request)
    watcher = _Watcher(os.path.join(workdir, path), path, bool(request.get("recursive")))
    if request.get("attributes"):
        watcher.kinds = (*_KINDS[:-1], (_ATTRIB, "attributes"))
    try:
        watcher.add_top()
        yield from _explore_in_slices(watcher)
        yield _line("ready", "", False) + watcher.take_lines()
        while not watcher.ended:
            yield Readable(watcher.descriptor)
            watcher.read()
            yield from _explore_in_slices(watcher)
            yield watcher.take_lines() or None
        return {}
    except OSError as error:
        raise failure(error, "watch", path) from None
    finally:
        watcher.close()


def _explore_in_slices(watcher: "_Watcher") -> Generator[bytes | None, None, None]:
    """Explore new directories of any size without blocking the loop or filling the memory."""
    pause = time.monotonic() + STEP_SECONDS
    for _ in watcher.explore():
        if watcher.is_full():
            yield watcher.take_lines()
        if time.monotonic() >= pause:
            yield None
            pause = time.monotonic() + STEP_SECONDS


def _line(kind: str, path: str, directory: bool) -> bytes:
    return json.dumps({"kind": kind, "path": path, "directory": directory}).encode() + b"\n"


class _Watcher:
    """One inotify instance; its directories by watch number, as paths below the top.

    Each directory is opened without magic links and watched by that descriptor: inotify_add_watch(2) takes a path and
    would follow any link placed there meanwhile, also magic ones that lead out of the box. Directories are closed
    again, because the kernel does not report the end of one that is held open.
    """

    def __init__(self, top: str, path: str, recursive: bool) -> None:
        """`path` is the top as the caller wrote it."""
        self.descriptor: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            raise failure(_error(), "watch", path)
        self.ended = False
        self.kinds = _KINDS
        """What each event is called: changed attributes are distinguished only if that was asked for."""
        self._top = top
        self._prefix = prefix_of(path)
        self._path = path
        self._recursive = recursive
        self._below: dict[int, str] = {}
        self._unexplored: list[tuple[str, bool]] = []
        """Directories to watch; True if they appeared later, so that their content is reported as created."""
        self._overflow_reported = False
        self._out = bytearray()

    def close(self) -> None:
        os.close(self.descriptor)

    def take_lines(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out

    def is_full(self) -> bool:
        return len(self._out) >= _FLUSH_BYTES

    def add_top(self) -> None:
        """Watch a file, or queue a directory to be explored."""
        top = open_at(AT_FDCWD, self._top, os.O_PATH)
        try:
            if stat.S_ISDIR(os.fstat(top).st_mode):
                self._unexplored.append(("", False))
                return
            self._prefix = self._path
            self._below[self._add(top, _MASK)] = ""
        finally:
            os.close(top)

    def explore(self) -> Iterator[None]:
        """Watch new directories and, if recursive, those below them."""
        while self._unexplored:
            yield
            below, report = self._unexplored.pop()
            directory = self._open(below)
            if directory is None:
                continue
            try:
                if not self._add_directory(directory, below) or not self._recursive:
                    continue
                # It is listed after it is watched: what is created in between is seen twice rather than never.
                for name, is_directory in _entries(directory):
                    inside = os.path.join(below, name)
                    if report:
                        self._report("created", inside, is_directory)
                    if is_directory:
                        self._unexplored.append((inside, report))
                    yield
            finally:
                os.close(directory)

    def _open(self, below: str) -> int | None:
        """Open the top, or a directory below it, which must not have become a link."""
        if not below:
            return open_at(AT_FDCWD, self._top, DIRECTORY)
        try:
            return open_at(AT_FDCWD, os.path.join(self._top, below), DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return None  # it is gone again

    def _add_directory(self, directory: int, below: str) -> bool:
        if len(self._below) >= MAX_WATCHES:
            self._overflow(below)
            return False
        try:
            self._below[self._add(directory, _MASK | _ONLYDIR)] = below
        except OSError as error:
            if not below:
                raise
            # The user's watches are used up. Other errors: it is gone again, or is not readable.
            if error.errno == errno.ENOSPC:
                self._overflow(below)
            return False
        return True

    def _overflow(self, below: str) -> None:
        """Report once that some changes are no longer seen."""
        if not self._overflow_reported:
            self._overflow_reported = True
            self._report("overflow", below, True)

    def _add(self, target: int, mask: int) -> int:
        path = b"/proc/self/fd/%d" % target  # our own /proc; there is no other way from a descriptor to a watch
        number: int = _libc.inotify_add_watch(self.descriptor, path, ctypes.c_uint32(mask))
        if number < 0:
            raise _error()
        return number

    def _report(self, kind: str, below: str, directory: bool) -> None:
        if os.path.basename(below).startswith(TEMPORARY):
            return
        self._out += _line(kind, self._prefix + below if below else self._prefix.rstrip("/") or ".", directory)

    def read(self) -> None:
        """Read and handle the changes since the last read."""
        try:
            events = os.read(self.descriptor, 64 << 10)
        except BlockingIOError:
            return
        position = 0
        while position < len(events):
            number, mask, _, length = _EVENT.unpack_from(events, position)
            position += _EVENT.size
            name = os.fsdecode(events[position : position + length].rstrip(b"\0"))
            position += length
            self._take(number, mask, name)

    def _take(self, number: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._report("overflow", "", True)
            return
        above = self._below.get(number)
        if above is None:
            return
        if mask & _IGNORED:
            del self._below[number]
            self.ended = self.ended or not self._below
            return
        if mask & (_DELETE_SELF | _MOVE_SELF):
            if not above:
                self._report("deleted" if mask & _DELETE_SELF else "moved_from", "", bool(mask & _ISDIR))
                self.ended = True
            return
        inside = os.path.join(above, name) if name else above
        directory = bool(mask & _ISDIR)
        for bit, kind in self.kinds:
            if mask & bit:
                self._report(kind, inside, directory)
        if directory and self._recursive:
            if mask & _MOVED_FROM:
                self._forget(inside)
            if mask & (_CREATE | _MOVED_TO):
                self._unexplored.append((inside, True))

    def _forget(self, below: str) -> None:
        """Stop watching a directory that was moved away; it would go on reporting under its old name."""
        gone = [number for number, path in self._below.items() if path == below or path.startswith(below + "/")]
        for number in gone:
            del self._below[number]
            _libc.inotify_rm_watch(self.descriptor, number)


def _entries(directory: int) -> Iterator[tuple[str, bool]]:
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return  # gone again, or not readable: then nothing in it can be reported
    try:
        with os.scandir(readable) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir(follow_symlinks=False)
    finally:
        os.close(readable)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


OPERATIONS: dict[str, Operation] = {"files.watch": watch}
