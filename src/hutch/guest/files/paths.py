"""Path resolution: relative to the workdir, through the box's own symlinks, never through a magic link of /proc."""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hutch.guest.operations import Failure, Request, failure, text_field

# This is looked up before the box's root is entered: afterwards there may be no libc on disk.
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_OPENAT2 = 437  # the same number on every architecture, since Linux 5.6
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine)
AT_FDCWD = -100
_RESOLVE_NO_MAGICLINKS = 0x02
_RENAME_NOREPLACE = 1

DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
TEMPORARY = ".hutch-"
"""Prefix of files that are being written; a watch leaves them out."""


resolve_flags = _RESOLVE_NO_MAGICLINKS
"""The openat2 flags for every path. Only the spawner changes them, for the control runs of the attack suite."""
MAX_LINKS = 40  # the kernel's own limit, path_resolution(7)
_COMPONENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Location(NamedTuple):
    """A name in a directory that is held open, so that nobody can swap the directories above it."""

    directory: int
    name: str
    path: str
    """The path as the caller wrote it, for messages and answers."""

    def lstat(self) -> os.stat_result | None:
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None


def request_path(request: Request, key: str = "path") -> str:
    """Return the checked path of a request."""
    path = text_field(request, key)
    if "\0" in path:
        raise Failure("invalid", f"{key} {path!r} has a NUL byte, which no file name can have")
    if not path:
        raise Failure("invalid", f"{key} is empty; '.' names the workdir")
    return path


def prefix_of(path: str) -> str:
    """The prefix that turns names in a directory into paths relative to where the directory's own path starts."""
    return "" if path == "." else path.rstrip("/") + "/"


def open_at(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open without following magic links: by openat2, or component by component where that call is missing."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve_flags)
    encoded = os.fsencode(path)
    if b"\0" in encoded:  # C would see another, shorter path
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    name = ctypes.c_char_p(encoded)
    while True:
        descriptor: int = _syscall(_OPENAT2, directory, name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)))
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return open_by_name(None if directory == AT_FDCWD else directory, path, flags, mode)
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def open_file(path: str, flags: int, workdir: str) -> int:
    return open_at(AT_FDCWD, os.path.join(workdir, path), flags)


def open_regular(path: str, workdir: str) -> int:
    """Open a file to read its content. A FIFO or device is refused, because reading it could block for ever."""
    # O_NONBLOCK keeps the open itself from waiting for a FIFO's other end.
    try:
        descriptor = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, workdir)
    except OSError as error:
        raise failure(error, "read", path) from None
    try:
        require_regular(os.fstat(descriptor), "read", path)
    except Failure:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(info: os.stat_result, what: str, path: str) -> None:
    if stat.S_ISREG(info.st_mode):
        return
    if stat.S_ISDIR(info.st_mode):
        raise failure(OSError(errno.EISDIR, ""), what, path)
    raise Failure(
        "file_failed", f"cannot {what} {path!r}: it is {kind_name(info.st_mode)}, not a regular file",
        remedy="use a command for special files", errno=errno.EOPNOTSUPP, name="EOPNOTSUPP", path=path,
    )  # fmt: skip


def kind_name(mode: int) -> str:
    for test, name in (
        (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
        (stat.S_ISLNK, "a symlink"), (stat.S_ISDIR, "a directory"),
    ):  # fmt: skip
        if test(mode):
            return name
    return "a special file"


@contextlib.contextmanager
def locate(path: str, workdir: str, what: str, *, parents: bool = False) -> Iterator[Location]:
    """Hold the parent directory of a path open. OSErrors inside become failures of `what`."""
    try:
        location = _open_parent(AT_FDCWD, os.path.join(workdir, path), path, parents)
        try:
            yield location
        finally:
            os.close(location.directory)
    except OSError as error:
        raise failure(error, what, path) from None


@contextlib.contextmanager
def locate_target(path: str, workdir: str, what: str, *, parents: bool = False) -> Iterator[Location]:
    """Like `locate`, but follows the last name while it is a symlink."""
    try:
        location = _open_parent(AT_FDCWD, os.path.join(workdir, path), path, parents)
        try:
            for _ in range(MAX_LINKS):
                info = location.lstat()
                if info is None or not stat.S_ISLNK(info.st_mode):
                    break
                target = os.readlink(location.name, dir_fd=location.directory)
                next_location = _open_parent(location.directory, target, path, parents=False)
                os.close(location.directory)
                location = next_location
            else:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            yield location
        finally:
            os.close(location.directory)
    except OSError as error:
        raise failure(error, what, path) from None


def _open_parent(base: int, full: str, path: str, parents: bool) -> Location:
    head, name = os.path.split(full.rstrip("/") or "/")
    if name in ("", ".", ".."):
        return Location(open_at(base, full, DIRECTORY), ".", path)
    head = head or "."
    if parents:
        make_directories(base, head)
    return Location(open_at(base, head, DIRECTORY), name, path)


def make_directories(base: int, path: str) -> None:
    """Create the directory and those above it where they are missing."""
    missing: list[str] = []
    while True:
        try:
            current = open_at(base, path or ".", DIRECTORY)
            break
        except FileNotFoundError:
            path, name = os.path.split(path.rstrip("/"))
            missing.append(name)
            if not name:
                raise
    try:
        for name in reversed(missing):
            # FileExistsError: somebody else created it, or it is a dangling symlink; opening it shows which.
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=current)
            below = open_at(current, name, DIRECTORY)
            os.close(current)
            current = below
    finally:
        os.close(current)


def rename_noreplace(source: Location, target: Location) -> None:
    """Rename without replacing anything; raises FileExistsError if the target exists."""
    if _RENAMEAT2 is not None:
        names = (ctypes.c_char_p(os.fsencode(source.name)), ctypes.c_char_p(os.fsencode(target.name)))
        flags = ctypes.c_uint(_RENAME_NOREPLACE)
        if _syscall(_RENAMEAT2, source.directory, names[0], target.directory, names[1], flags) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(number, os.strerror(number), target.path)
    # On a filesystem without the flag, the check and the rename are two steps.
    if target.lstat() is not None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target.path)
    os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)


def temporary_name() -> str:
    return TEMPORARY + os.urandom(8).hex()


def open_by_name(directory: int | None, path: str, flags: int, mode: int) -> int:
    """Open component by component, like openat(2), where the kernel has no openat2 (before Linux 5.6, some of gVisor).

    Every link is read and followed as text from the box's own root, so a magic link of /proc leads nowhere: its text is
    a name like any other. A link that appears between the check and the open is not followed at all. A `directory` of
    None is the working directory.
    """
    current = _start(directory, path)
    names = _reversed_names(path)
    keeps_last = flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
    links = 0
    try:
        while True:
            name = names.pop()
            target = None if keeps_last and not names else _read_link(current, name)
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                names += _reversed_names(target)
                next_location = _start(current, target)
            elif names:
                next_location = os.open(name, _COMPONENT, dir_fd=current)
            else:
                return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=current)
            os.close(current)
            current = next_location
    finally:
        os.close(current)


def _start(directory: int | None, path: str) -> int:
    if not path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return os.open("/" if path.startswith("/") else ".", _COMPONENT | os.O_DIRECTORY, dir_fd=directory)


def _reversed_names(path: str) -> list[str]:
    """Return the components with the next one last. A trailing slash asks for the directory itself."""
    names = [name for name in path.split("/") if name]
    return [*(["."] if path.endswith("/") else []), *reversed(names)]


def _read_link(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None  # the open fails, or creates it
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # not a link
        raise
