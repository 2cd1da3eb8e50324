"""Staging: temporary directories for new packages, atomic writes and swaps, and the lock of the store."""

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

_LOCK_GRACE_SECONDS = 60.0
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def staging_directory(root: Path) -> Iterator[Path]:
    """A new empty directory, removed at the end unless it was moved away. Also removes what killed processes left."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep(root)
    name = secrets.token_hex(8)
    lock = os.open(root / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = root / name
        directory.mkdir(mode=0o700)
        try:
            yield directory
        finally:
            remove_tree(directory)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(root / f"{name}.lock")
        os.close(lock)


def sweep(root: Path) -> None:
    """Remove what no process works on: the kernel drops a process's locks when it ends."""
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
            # Its creator may not have locked it yet; then it is recent and has no directory.
            directory = root / lock_file.stem
            if directory.exists() or time.time() - os.fstat(fd).st_mtime > _LOCK_GRACE_SECONDS:
                remove_tree(directory)
                lock_file.unlink(missing_ok=True)
        finally:
            os.close(fd)


def remove_tree(directory: Path) -> None:
    """Remove a tree, whatever modes its files have."""
    if not directory.exists():
        return

    def retry_writable(remove: object, path: str, _: object) -> None:
        parent = os.path.dirname(path)
        os.chmod(parent, 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path)
        else:
            os.unlink(path)

    shutil.rmtree(directory, onerror=retry_writable)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Allow one writer at a time, across threads and processes; the kernel drops the lock if we die."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: a reader, or the next start after a crash, sees the old file or the new."""
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


def swap_in(new: Path, directory: Path) -> None:
    """Put `new` at `directory` in one step, so that a reader sees the old or the new; the old is then at `new`."""
    if not directory.exists():
        os.rename(new, directory)
        return
    if not _exchange(new, directory):
        # A kernel or file system without exchange: for a moment the name does not exist.
        aside = new.parent / f"{new.name}-{secrets.token_hex(4)}"
        os.rename(directory, aside)
        os.rename(new, directory)
        os.rename(aside, new)


def _exchange(first: Path, second: Path) -> bool:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(first))
