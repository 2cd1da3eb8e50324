"""Directories in which packages are put together; what a killed process left in them is removed by the next."""

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_YOUNG_SECONDS = 60.0


@contextmanager
def staged(root: Path) -> Iterator[Path]:
    """A new empty directory, gone at the end unless it was moved away."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep(root)
    name = secrets.token_hex(8)
    lock = os.open(root / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = root / name
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            discard(place)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(root / f"{name}.lock")
        os.close(lock)


def sweep(root: Path) -> None:
    """The kernel drops a process's locks with it: what nobody has locked, nobody works on."""
    for lock_file in root.glob("*.lock"):
        try:
            fd = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            # Its maker may not have locked it yet: then it is young, and has no directory.
            place = root / lock_file.stem
            if place.exists() or time.time() - os.fstat(fd).st_mtime > _YOUNG_SECONDS:
                discard(place)
                lock_file.unlink(missing_ok=True)
        finally:
            os.close(fd)


def discard(place: Path) -> None:
    """Remove a tree whatever modes are in it."""
    if not place.exists():
        return

    def opened(remove: object, path: str, _: object) -> None:
        parent = os.path.dirname(path)
        os.chmod(parent, 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path)
        else:
            os.unlink(path)

    shutil.rmtree(place, onerror=opened)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One writer at a time, over threads and processes; dropped by the kernel if we die."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """All or nothing, and on the disk: a reader, or the next start after a crash, sees the old file or the new."""
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def swap_in(new: Path, place: Path) -> None:
    """`new` is at `place` afterwards; what was there before is at `new`, or nothing if there was nothing."""
    if not place.exists():
        os.rename(new, place)
        return
    if not _exchange(new, place):
        # A kernel or file system that cannot: for a moment the name is not there.
        aside = new.parent / f"{new.name}-{secrets.token_hex(4)}"
        os.rename(place, aside)
        os.rename(new, place)
        os.rename(aside, new)


def _exchange(one: Path, other: Path) -> bool:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(one))
