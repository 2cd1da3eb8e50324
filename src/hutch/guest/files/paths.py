"""Where a path leads: relative to the workdir, through the box's own symlinks, never through a magic link of /proc."""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hutch.guest.operations import Failure, Request, failure, text

# Looked up once, before the box's root is entered: afterwards there may be no libc to find on disk.
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
"""Names of files that are being written begin so; a watch leaves them out."""


resolving = _RESOLVE_NO_MAGICLINKS
"""How every path is resolved. The spawner alone changes it, for the control runs of the attack suite."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Place(NamedTuple):
    """A name in a directory that is held open, so that nobody can swap the directories above it any more."""

    directory: int
    name: str
    path: str
    """As the caller wrote it, for messages and answers."""

    def lstat(self) -> os.stat_result | None:
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None


def spelled(request: Request, key: str = "path") -> str:
    """The path of a request, checked."""
    path = text(request, key)
    if "\0" in path:
        raise Failure("invalid", f"{key} {path!r} has a NUL byte, which no file name can have")
    if not path:
        raise Failure("invalid", f"{key} is empty; '.' names the workdir")
    return path


def prefix_of(path: str) -> str:
    """What comes before the names found in a directory, so that they are paths from where its own was."""
    return "" if path == "." else path.rstrip("/") + "/"


def open_at(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """openat2 without magic links; where the kernel or a filter does not know the call, name by name."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolving)
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
    """To read its content. A FIFO or device is refused: opening one could wait for ever."""
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
def located(path: str, workdir: str, what: str, *, parents: bool = False) -> Iterator[Place]:
    """The directory that holds the path's last name, and that name. OSErrors inside become failures of `what`."""
    try:
        place = _locate(AT_FDCWD, os.path.join(workdir, path), path, parents)
        try:
            yield place
        finally:
            os.close(place.directory)
    except OSError as error:
        raise failure(error, what, path) from None


@contextlib.contextmanager
def followed(path: str, workdir: str, what: str, *, parents: bool = False) -> Iterator[Place]:
    """As `located`, and while the last name is a symlink, the place it points to."""
    try:
        place = _locate(AT_FDCWD, os.path.join(workdir, path), path, parents)
        try:
            for _ in range(MAX_LINKS):
                info = place.lstat()
                if info is None or not stat.S_ISLNK(info.st_mode):
                    break
                target = os.readlink(place.name, dir_fd=place.directory)
                onward = _locate(place.directory, target, path, parents=False)
                os.close(place.directory)
                place = onward
            else:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            yield place
        finally:
            os.close(place.directory)
    except OSError as error:
        raise failure(error, what, path) from None


def _locate(base: int, full: str, path: str, parents: bool) -> Place:
    head, name = os.path.split(full.rstrip("/") or "/")
    if name in ("", ".", ".."):
        return Place(open_at(base, full, DIRECTORY), ".", path)
    head = head or "."
    if parents:
        make_directories(base, head)
    return Place(open_at(base, head, DIRECTORY), name, path)


def make_directories(base: int, path: str) -> None:
    """The directory and those above it, as far as they are missing."""
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
            # FileExistsError: somebody was faster, or a symlink dangles there; opening it tells.
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=current)
            below = open_at(current, name, DIRECTORY)
            os.close(current)
            current = below
    finally:
        os.close(current)


def rename_new(source: Place, target: Place) -> None:
    """Rename, but never over something: FileExistsError if the target is there."""
    if _RENAMEAT2 is not None:
        names = (ctypes.c_char_p(os.fsencode(source.name)), ctypes.c_char_p(os.fsencode(target.name)))
        flags = ctypes.c_uint(_RENAME_NOREPLACE)
        if _syscall(_RENAMEAT2, source.directory, names[0], target.directory, names[1], flags) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(number, os.strerror(number), target.path)
    # A filesystem without the flag: the look and the rename are two steps there.
    if target.lstat() is not None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target.path)
    os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)


def temporary_name() -> str:
    return TEMPORARY + os.urandom(8).hex()


MAX_LINKS = 40  # as the kernel's own limit, path_resolution(7)
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_by_name(directory: int | None, path: str, flags: int, mode: int) -> int:
    """As openat(2); `directory` None: the working directory."""
    current = _start(directory, path)
    names = _reversed_names(path)
    keeps_last = flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
    links = 0
    try:
        while True:
            name = names.pop()
            target = None if keeps_last and not names else _link(current, name)
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                names += _reversed_names(target)
                onward = _start(current, target)
            elif names:
                onward = os.open(name, _HERE, dir_fd=current)
            else:
                return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=current)
            os.close(current)
            current = onward
    finally:
        os.close(current)


def _start(directory: int | None, path: str) -> int:
    if not path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return os.open("/" if path.startswith("/") else ".", _HERE | os.O_DIRECTORY, dir_fd=directory)


def _reversed_names(path: str) -> list[str]:
    """The next one last. A slash at the end asks for the directory itself."""
    names = [name for name in path.split("/") if name]
    return [*(["."] if path.endswith("/") else []), *reversed(names)]


def _link(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None  # the open tells, or makes it
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # not a link
        raise
