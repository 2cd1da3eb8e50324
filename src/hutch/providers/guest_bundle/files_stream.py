"""The files of a container box as one stream of bytes: packed in one container, unpacked in another.

An engine has no layers that could be switched under a live container, so a state of a box's files is a copy of them.
The stream is a sequence of entries, `length of the header (4 bytes) | header (JSON) | content`, parents before what is
in them; a length of 0 ends it. Holes of files are left out, and further names of a file refer to the first.

This runs inside the box, in a process that the engine starts beside the guest: once as the box's user, and as the box's
root where there are files of root. Neither has any capability, so that each copies what it could have written itself,
and leaves the rest to the other. No link of the box leads it astray: every path is opened name by name.

Standard library only.
"""

import ctypes
import errno
import json
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, NoReturn

LENGTH = struct.Struct("<I")
MAX_HEADER = 1 << 20
BLOCK = 1 << 18
_MAX_SHOWN = 20
_PR_SET_DUMPABLE = 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"
}  # fmt: skip

Header = dict[str, Any]
Write = Callable[[bytes], object]


def main() -> NoReturn:
    """Read a request from the standard input, and answer on the standard output. A failure is the last header."""
    given, taken = sys.stdin.buffer, sys.stdout.buffer
    try:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # so that a command of the box cannot trace it
        os.umask(0)
        header = read_header(given)
        assert header is not None
        _OPERATIONS[header["op"]](header, given, taken.write)
    except Exception as error:  # the task boundary: whatever went wrong is the answer
        write_header(taken.write, {"failed": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", 0)})
    taken.flush()
    sys.exit(0)


def read_header(source: IO[bytes]) -> Header | None:
    """Return the next header, or None at the end of the stream."""
    (length,) = LENGTH.unpack(_exactly(source, LENGTH.size))
    if not length:
        return None
    if length > MAX_HEADER:
        raise OSError(errno.EPROTO, "a header is too long")
    found: Header = json.loads(_exactly(source, length))
    return found


def write_header(write: Write, header: Header | None) -> None:
    data = b"" if header is None else json.dumps(header).encode()
    write(LENGTH.pack(len(data)) + data)


def _exactly(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise EOFError("the stream of files is cut off")
    return data


# --- the box's processes --------------------------------------------------------------------------------------------


def _running() -> list[int]:
    """The processes of the box's commands: neither the guest, nor what the engine has started beside it."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read(4096).rpartition(b")")[2].split()[:2]
            if state != b"Z" and parent != b"0":
                found.append(int(name))
    return found


class _Still:
    """While it is entered, no command of the box runs. What was stopped before stays stopped."""

    def __init__(self) -> None:
        self.busy: list[int] = []
        self._stopped: list[int] = []

    def __enter__(self) -> "_Still":
        while new := [pid for pid in _running() if pid not in self.busy]:
            for pid in new:
                self.busy.append(pid)
                with suppress(OSError):
                    if not _is_stopped(pid):
                        os.kill(pid, signal.SIGSTOP)
                        self._stopped.append(pid)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._stopped:
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read(4096).rpartition(b")")[2].split()[0] in (b"T", b"t")


def look(_request: Header, _given: IO[bytes], write: Write) -> None:
    """Say which processes of the box run."""
    busy = _running()
    write_header(write, {"busy": busy[:_MAX_SHOWN], "count": len(busy)})


# --- packing --------------------------------------------------------------------------------------------------------


def pack(request: Header, _given: IO[bytes], write: Write) -> None:
    """Write whole `trees`, and of the root the `paths` that were changed in it, of which some are gone.

    What this user may not read is named as `denied`.
    """
    with _Still() as still:
        write_header(write, {"busy": still.busy[:_MAX_SHOWN], "count": len(still.busy)})
        packer = _Packer(write)
        trees = [path.strip("/") for path in request["trees"]]
        root = os.stat("/").st_dev
        apart = [path.strip("/") for path in request["apart"]]
        for path, over in sorted((path.strip("/"), over) for path, over in request["paths"]):
            if not any(path == tree or path.startswith(f"{tree}/") for tree in apart):
                packer.changed(path, root, over)
        for tree in trees:
            packer.tree(tree)
        write_header(write, None)


class _Packer:
    def __init__(self, write: Write) -> None:
        self._write = write
        self._links: dict[tuple[int, int], str] = {}

    def changed(self, path: str, root: int, over: bool) -> None:
        """One name of the root; if the image has it too, it is `over` that. What is mounted is not the root's."""
        above, _, name = path.rpartition("/")
        try:
            parent = open_directory(above)
        except PermissionError:
            return self._deny(path)
        except (FileNotFoundError, NotADirectoryError):
            return write_header(self._write, {"path": path, "type": "gone"})
        except OSError as error:
            if error.errno == errno.ELOOP:  # the directory became a link, which is one of the changes
                return write_header(self._write, {"path": path, "type": "gone"})
            raise
        try:
            if os.fstat(parent).st_dev != root:
                return None
            try:
                facts = os.lstat(name, dir_fd=parent)
            except FileNotFoundError:
                return write_header(self._write, {"path": path, "type": "gone"})
            if facts.st_dev == root:
                self._entry(path, name, parent, facts, over=over)
        finally:
            os.close(parent)
        return None

    def tree(self, path: str) -> None:
        """A directory with all that is in it, but not what is mounted there."""
        above, _, name = path.rpartition("/")
        parent = open_directory(above)
        try:
            facts = os.lstat(name, dir_fd=parent)
            self._entry(path, name, parent, facts)
        finally:
            os.close(parent)
        pending = [path]
        while pending:
            above = pending.pop()
            try:
                directory = open_directory(above)  # each by its path: the depth of a box's directories has no bound
            except PermissionError:
                self._deny(above)
                continue
            try:
                for name in sorted(os.listdir(directory)):
                    found = os.lstat(name, dir_fd=directory)
                    if found.st_dev == facts.st_dev:
                        self._entry(f"{above}/{name}", name, directory, found)
                        if stat.S_ISDIR(found.st_mode):
                            pending.append(f"{above}/{name}")
            finally:
                os.close(directory)

    def _deny(self, path: str) -> None:
        write_header(self._write, {"path": path, "type": "denied"})

    def _entry(self, path: str, name: str, parent: int, facts: os.stat_result, *, over: bool = False) -> None:
        kind = _TYPES.get(stat.S_IFMT(facts.st_mode))
        if kind is None:
            return None  # a device; nobody in a box can make one
        header: Header = {
            "path": path, "type": kind, "mode": stat.S_IMODE(facts.st_mode), "uid": facts.st_uid, "gid": facts.st_gid,
            "mtime": facts.st_mtime_ns, **({"over": True} if over else {}),
        }  # fmt: skip
        if kind != "directory" and facts.st_nlink > 1:
            key = (facts.st_dev, facts.st_ino)
            if first := self._links.get(key):
                return write_header(self._write, {**header, "same": first})
            self._links[key] = path
        if kind == "link":
            header["target"] = os.readlink(name, dir_fd=parent)
        elif kind in ("file", "directory"):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            except PermissionError:
                return self._deny(path)
            try:
                header["attributes"] = _attributes(fd)
                if kind == "file":
                    return self._content(fd, header)
            finally:
                os.close(fd)
        return write_header(self._write, header)

    def _content(self, fd: int, header: Header) -> None:
        size = os.fstat(fd).st_size
        segments = list(_segments(fd, size))
        write_header(self._write, {**header, "size": size, "segments": segments})
        for offset, length in segments:
            while length:
                piece = os.pread(fd, min(BLOCK, length), offset)
                # A file that shrinks while it is read is filled up: its length is on the way already.
                piece = piece or bytes(min(BLOCK, length))
                self._write(piece)
                offset, length = offset + len(piece), length - len(piece)


def _segments(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of the data in a file; what lies between is a hole."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            end = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:
                raise
            begin, end = at, size  # a kernel that does not report holes
        yield begin, end - begin
        at = end


def _attributes(fd: int) -> dict[str, str]:
    try:
        names = [name for name in os.listxattr(fd) if name.startswith("user.") and not name.startswith("user.overlay.")]
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    return {name: os.getxattr(fd, name).hex() for name in names}


# --- unpacking ------------------------------------------------------------------------------------------------------


def unpack(_request: Header, given: IO[bytes], write: Write) -> None:
    """Put the files of this user in their places, in a container in which nobody has run anything yet.

    The answer says how many others there are.
    """
    unpacker = _Unpacker(os.getuid())
    while (header := read_header(given)) is not None:
        unpacker.entry(header, given)
    unpacker.finish()
    write_header(write, {"others": unpacker.others})


class _Unpacker:
    def __init__(self, user: int) -> None:
        self._user = user
        self._directories: list[Header] = []
        self.others = 0

    def entry(self, header: Header, given: IO[bytes]) -> None:
        path, kind = str(header["path"]), header["type"]
        above, _, name = path.rpartition("/")
        if kind != "gone" and header["uid"] != self._user:
            self.others += 1
            for _offset, length in header.get("segments", ()):
                while length:
                    length -= len(_exactly(given, min(BLOCK, length)))
            return
        parent = open_directory(above)
        try:
            if kind == "gone":
                self._remove(name, parent)
            elif kind == "directory":
                self._directory(name, parent, header)
            else:
                with suppress(FileNotFoundError):
                    remove(name, parent)
                self._other(name, parent, header, given)
        finally:
            os.close(parent)

    def _remove(self, name: str, parent: int) -> None:
        try:
            remove(name, parent)
        except FileNotFoundError:
            return  # the other user has removed it
        except PermissionError:
            self.others += 1

    def _directory(self, name: str, parent: int, header: Header) -> None:
        try:
            is_directory = stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
        except FileNotFoundError:
            is_directory = False
        if not is_directory:
            with suppress(FileNotFoundError):
                remove(name, parent)
            os.mkdir(name, 0o700, dir_fd=parent)
        self._directories.append(header)  # its mode may forbid to write in it, and its time changes with each name

    def _other(self, name: str, parent: int, header: Header, given: IO[bytes]) -> None:
        kind = header["type"]
        if first := header.get("same"):
            above, _, other = str(first).rpartition("/")
            source = open_directory(above)
            try:
                os.link(other, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
            return
        if kind == "file":
            fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
            try:
                for offset, length in header["segments"]:
                    _receive(fd, offset, length, given)
                os.ftruncate(fd, header["size"])
            finally:
                os.close(fd)
        elif kind == "link":
            os.symlink(header["target"], name, dir_fd=parent)
        elif kind in ("fifo", "socket"):
            os.mknod(name, (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK) | 0o600, dir_fd=parent)
        else:
            raise OSError(errno.EPROTO, f"a stream of files has no {kind!r}")
        _give(name, parent, header)

    def finish(self) -> None:
        for header in reversed(self._directories):
            above, _, name = str(header["path"]).rpartition("/")
            try:
                parent = open_directory(above)
            except FileNotFoundError:
                continue
            try:
                _give(name, parent, header)
            finally:
                os.close(parent)


def _receive(fd: int, offset: int, length: int, given: IO[bytes]) -> None:
    while length:
        piece = _exactly(given, min(BLOCK, length))
        os.pwrite(fd, piece, offset)
        offset, length = offset + len(piece), length - len(piece)


def _give(name: str, parent: int, header: Header) -> None:
    """Set group, attributes, mode and time, in this order: a change of the group clears bits of the mode."""
    if os.lstat(name, dir_fd=parent).st_gid != header["gid"]:
        os.chown(name, -1, header["gid"], dir_fd=parent, follow_symlinks=False)
    if attributes := header.get("attributes"):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            for key, value in attributes.items():
                os.setxattr(fd, key, bytes.fromhex(value))
        finally:
            os.close(fd)
    if header["type"] != "link":
        os.chmod(name, header["mode"], dir_fd=parent)
    os.utime(name, ns=(header["mtime"], header["mtime"]), dir_fd=parent, follow_symlinks=False)


def open_directory(path: str) -> int:
    """Open a directory of the root, name by name: a link on the way is an error (ELOOP or ENOTDIR)."""
    directory = os.open("/", _DIRECTORY)
    for name in filter(None, path.split("/")):
        try:
            below = os.open(name, _DIRECTORY, dir_fd=directory)
        finally:
            os.close(directory)
        directory = below
    return directory


def remove(name: str, parent: int) -> None:
    """Remove a file, or a directory with all that is in it."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        return os.unlink(name, dir_fd=parent)
    directory = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        for each in os.listdir(directory):
            remove(each, directory)
    finally:
        os.close(directory)
    return os.rmdir(name, dir_fd=parent)


_OPERATIONS: dict[str, Callable[[Header, IO[bytes], Write], None]] = {"look": look, "pack": pack, "unpack": unpack}
