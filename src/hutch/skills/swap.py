"""Swapping two directories in one step, so that a reader sees the old or the new, never none."""

import ctypes
import errno
import os
import secrets
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def put(new: Path, place: Path) -> None:
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
