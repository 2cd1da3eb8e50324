"""Directories that are prepared once and never changed: filled under another name, then renamed in one step.

The process that fills one holds a lock on it, which the kernel releases with the process. So a directory that can be
locked was left by a dead process.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hutch.providers.native.cleanup import remove_tree

_DRAFT = ".making-"


@contextmanager
def prepared(final: str) -> Iterator[str]:
    """Yield an empty directory to fill, and rename it to `final` afterwards, unless another keeper did so first.

    A failure leaves nothing behind. What a killed keeper left is removed first.
    """
    parent = os.path.dirname(final)
    sweep(parent)
    draft, lock = _new_draft(parent)
    try:
        yield draft
        os.chmod(draft, 0o755)
        try:
            os.rename(draft, final)
        except OSError:
            if not os.path.isdir(final):
                raise
    finally:
        if os.path.lexists(draft):
            remove_tree(draft)
        os.close(lock)


def sweep(parent: str, *, dry_run: bool = False) -> tuple[str, ...]:
    """Remove the drafts below `parent` that no process fills any more, and return their paths."""
    gone: list[str] = []
    for name in _names(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(FileNotFoundError):  # it has just been renamed
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its keeper lives
            else:
                # If it was renamed between the listing and the lock, it is finished and stays.
                if not _is_at(path, lock):
                    continue
                if not dry_run:
                    remove_tree(path)
                gone.append(path)
            finally:
                os.close(lock)
    return tuple(gone)


def _names(parent: str) -> list[str]:
    try:
        return [name for name in os.listdir(parent) if name.startswith(_DRAFT)]
    except FileNotFoundError:
        return []


def _new_draft(parent: str) -> tuple[str, int]:
    """Make a draft and lock it. A sweep in between may remove it as a leftover: then it is made again."""
    while True:
        draft = os.path.join(parent, f"{_DRAFT}{os.urandom(8).hex()}")
        os.mkdir(draft, 0o700)
        try:
            lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_at(draft, lock):
            return draft, lock
        os.close(lock)


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
