"""How much disk a directory tree uses, counted a few entries at a time.

The tree belongs to a box and changes while it is read: directories are entered by descriptor and without following
links, so that no swap of a directory for a link leads the count out of the tree.
"""

import itertools
import os
from collections.abc import Generator

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # st_blocks is in these, whatever the file system's block size (inode(7))
DEEPEST = 128  # a descriptor is open for each level


class Survey:
    """One pass over a tree. `used_bytes` only grows, so that an excess shows before the pass is over."""

    def __init__(self, directory_fd: int) -> None:
        self.used_bytes = 0
        self.unread = 0  # directories that we may not list or that lie too deep: their content is not counted
        self._linked: set[int] = set()
        self._device = os.fstat(directory_fd).st_dev
        self._steps = self._walk(os.open(".", _ENTER, dir_fd=directory_fd), 0)

    def advance(self, entries: int) -> bool:
        """Count up to `entries` more; True when the tree is done."""
        counted = sum(1 for _ in itertools.islice(self._steps, entries))
        return counted < entries

    def close(self) -> None:
        self._steps.close()

    def _walk(self, directory: int, depth: int) -> Generator[None, None, None]:
        """Yields once for each entry. Owns `directory`."""
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    yield from self._count(directory, entry, depth)
        finally:
            os.close(directory)

    def _count(self, directory: int, entry: "os.DirEntry[str]", depth: int) -> Generator[None, None, None]:
        yield
        try:
            status = entry.stat(follow_symlinks=False)
            if status.st_dev != self._device:
                return  # something mounted here is not the box's
            if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                if status.st_ino in self._linked:
                    return
                self._linked.add(status.st_ino)
            self.used_bytes += status.st_blocks * _BLOCK
            if not entry.is_dir(follow_symlinks=False):
                return
            if depth >= DEEPEST:
                self.unread += 1
                return
            below = os.open(entry.name, _ENTER, dir_fd=directory)
        except PermissionError:
            self.unread += 1
            return
        except (FileNotFoundError, NotADirectoryError):
            return  # removed or replaced meanwhile
        yield from self._walk(below, depth + 1)
