"""Opening host files for a caller: by descriptor, one name at a time, without following links.

Code that reads, copies or uploads files of this machine for a caller first asks `policy.mounts.check_source`, which
returns the inode that is allowed, and opens that inode here. Everything below is opened relative to its descriptor, so
a link in the tree is not followed, and a directory that is swapped for a link meanwhile is refused. Neither a link nor
a race leads out of the tree that was checked.

openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS would do the same, but older kernels do not have it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hutch.errors import FileMissing, FileTooLarge, Refused
from hutch.model.spec import CheckedMount

MOST_DEPTH = 128
"""Most levels of directories; each needs an open descriptor while it is walked."""
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a file may have been replaced by a pipe since it was checked, and opening a pipe waits for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_ENTRY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Found(NamedTuple):
    """An entry of a tree that is no directory: a file, or a link or special file, which is never opened."""

    name: str
    """Path from the top of the tree, with slashes."""
    facts: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.facts.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.facts.st_mode)


class Tree:
    """An open file or directory of the host, and what lies below it. Its calls block, so use it in threads."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        """The path for messages; nothing is opened by it."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(os.fstat(self.descriptor).st_mode)

    def open(self, name: str = "") -> int:
        """Open a regular file below, or this file itself.

        Raises FileMissing, and Refused for anything but a regular file and for a link in the path.
        """
        descriptor = self._descend(name, _READ) if name else os.dup(self.descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise Refused(f"{self._full_path(name)} is not a regular file", details={"path": self._full_path(name)})

    def read(self, name: str = "", *, most: int) -> bytes:
        """Read a file, even if it grows meanwhile. Raises FileTooLarge past `most` bytes."""
        with open(self.open(name), "rb") as file:
            file.seek(0)
            data = file.read(most + 1)
        if len(data) > most:
            raise FileTooLarge(f"{self._full_path(name)} has more than {most} bytes", details={"limit": most})
        return data

    @contextmanager
    def below(self, name: str) -> Iterator["Tree"]:
        """Open a directory in this tree; without a name, its top."""
        inner = Tree(self._descend(name or ".", _READ | os.O_DIRECTORY), self._full_path(name))
        try:
            yield inner
        finally:
            os.close(inner.descriptor)

    def has_file(self, name: str) -> bool:
        """Return whether there is a regular file of that name, not reached through a link."""
        try:
            os.close(self.open(name))
        except (FileMissing, Refused):
            return False
        return True

    def names(self, name: str = "") -> list[str]:
        """List a directory, sorted; empty if there is none."""
        try:
            with self.below(name) as inner:
                return sorted(os.listdir(inner.descriptor))
        except (FileMissing, Refused):
            return []

    def directories(self, name: str = "") -> list[str]:
        """List the directories in a directory, sorted; links are left out."""
        try:
            with self.below(name) as inner:
                return [each for each in inner.names() if inner._is_directory(each)]
        except (FileMissing, Refused):
            return []

    def _is_directory(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def walk(self, *, left_out: frozenset[str] = frozenset(), depth: int = MOST_DEPTH) -> Iterator[Found]:
        """Yield all entries that are no directories, sorted by name. Files and directories named in `left_out` are
        skipped."""
        yield from self._walk(self.descriptor, "", left_out, depth)

    def _walk(self, directory: int, prefix: str, left_out: frozenset[str], depth: int) -> Iterator[Found]:
        if depth < 0:
            raise Refused(
                f"{self._full_path(prefix)} lies deeper than we go", remedy="copy what is needed to a flatter tree"
            )
        for name in sorted(os.listdir(directory)):
            if name in left_out:
                continue
            try:
                facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed since it was listed
            if not stat.S_ISDIR(facts.st_mode):
                yield Found(prefix + name, facts)
                continue
            inner = self._step(directory, name, _READ | os.O_DIRECTORY, prefix + name)
            try:
                yield from self._walk(inner, f"{prefix}{name}/", left_out, depth - 1)
            finally:
                os.close(inner)

    def _descend(self, name: str, flags: int) -> int:
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) and name != ".":
            raise Refused(f"{name[:200]!r} leads out of {self.path}, or is no plain name")
        here = os.dup(self.descriptor)
        try:
            for part in parts[:-1]:
                following = self._step(here, part, _STEP | os.O_DIRECTORY, name)
                os.close(here)
                here = following
            return self._step(here, parts[-1], flags, name)
        finally:
            os.close(here)

    def _step(self, directory: int, name: str, flags: int, shown: str) -> int:
        try:
            return os.open(name, flags, dir_fd=directory)
        except FileNotFoundError as error:
            raise FileMissing(
                f"{self._full_path(shown)} does not exist", details={"path": self._full_path(shown)}
            ) from error
        except OSError as error:
            why = "a link, or was replaced" if error.errno in _NO_ENTRY else f"not to be read ({error.strerror})"
            raise Refused(f"{self._full_path(shown)} is {why}", details={"path": self._full_path(shown)}) from error

    def _full_path(self, name: str) -> str:
        return os.path.join(self.path, name).rstrip("/")


@contextmanager
def open_checked(place: CheckedMount) -> Iterator[Tree]:
    """Open what policy has allowed; Refused if it was replaced since."""
    tree = Tree(_open_real(place.real), place.real)
    try:
        facts = os.fstat(tree.descriptor)
        if (facts.st_dev, facts.st_ino) != (place.dev, place.ino):
            raise Refused(f"{place.real} was replaced after it had been allowed", details={"path": place.real})
        yield tree
    finally:
        os.close(tree.descriptor)


@contextmanager
def open_as_user(path: str) -> Iterator[Tree]:
    """Open a path with the rights of the person who runs this process: links in the path itself are followed, links
    below it are not. Never use it for a path that came over the network."""
    try:
        tree = Tree(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), path)
    except FileNotFoundError as error:
        raise FileMissing(f"{path} does not exist", details={"path": path}) from error
    except OSError as error:
        raise Refused(f"{path} cannot be opened ({error.strerror})", details={"path": path}) from error
    try:
        yield tree
    finally:
        os.close(tree.descriptor)


def _open_real(path: str) -> int:
    """Open a path that policy has resolved, and refuse a link that was put there since."""
    root = Tree(os.open("/", _STEP | os.O_DIRECTORY), "/")
    try:
        return root._descend(path.strip("/"), _READ)
    finally:
        os.close(root.descriptor)
