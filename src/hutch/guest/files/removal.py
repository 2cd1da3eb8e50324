"""Removing a tree of any depth, without following symlinks, while others may rename entries in it."""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import islice

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASS = 4096
"""Number of entries of one directory read at a time, so that a huge directory does not fill the memory."""


def enter(name: str, directory: int) -> int:
    """Open the directory `name` in `directory`."""
    return os.open(name, _OPEN, dir_fd=directory)


class _Level:
    """A directory on the way down: its name, the identity of its parent, and the directories left in it."""

    __slots__ = ("below", "inside", "name")

    def __init__(self, name: str, inside: tuple[int, int]) -> None:
        self.name = name
        self.inside = inside
        self.below: list[str] = []


def remove_tree(parent: int, name: str, entering: Callable[[str, int], int] = enter) -> Iterator[None]:
    """Remove `name` in the directory `parent`, whatever it is. Yields after each entry.

    One directory is open at a time, so depth costs no descriptors. The way back up is "..", which another process can
    redirect by moving the directory; it is used only if it leads to where we came from.
    """
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    current = entering(name, parent)
    trail = [_Level(name, _identity(parent))]
    try:
        while trail:
            level = trail[-1]
            if not level.below:
                level.below = yield from _remove_files(current)
            if level.below:
                below = _descend(current, level.below.pop(), trail, entering)
                if below is not None:
                    os.close(current)
                    current = below
                continue
            trail.pop()
            above = os.open("..", _OPEN, dir_fd=current) if trail else os.dup(parent)
            os.close(current)
            current = above
            if _identity(current) != level.inside:
                raise OSError(errno.ESTALE, "moved while it was being removed")
            # Below the top, a name that was moved away meanwhile does not matter: the next pass sees what is there.
            with suppress(*((FileNotFoundError, NotADirectoryError) if trail else ())):
                os.rmdir(level.name, dir_fd=current)
            yield
    finally:
        os.close(current)


def _descend(current: int, name: str, trail: list[_Level], entering: Callable[[str, int], int]) -> int | None:
    try:
        below = entering(name, current)
    except OSError as error:
        # It is no directory any more; the next pass over `current` sees what it is now.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    trail.append(_Level(name, _identity(current)))
    return below


def _remove_files(directory: int) -> Generator[None, None, list[str]]:
    """Unlink all that is not a directory, and return the directories seen; none means that it is empty."""
    while True:
        with os.scandir(directory) as entries:
            seen = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _PASS)]
        for name, is_directory in seen:
            if is_directory:
                continue
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=directory)
            yield
        below = [name for name, is_directory in seen if is_directory]
        if below or not seen:
            return below


def _identity(directory: int) -> tuple[int, int]:
    info = os.fstat(directory)
    return info.st_dev, info.st_ino
