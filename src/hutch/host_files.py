"""The one opener of host files: by descriptor, name by name, and no link is followed (lesson 43).

Whoever reads, copies or uploads files of this machine for a caller asks `policy.mounts.check_source` first, which says
which inode was allowed, and opens that inode here. What lies below it is reached from its descriptor, one name after
the other: a link in the tree is seen as a link, and a directory that somebody swaps for one while we walk is refused.
So neither a link nor a race leads out of what was checked.

This is openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, spelled out, because older kernels have no openat2.
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
"""Levels of directories: each costs an open descriptor while it is walked."""
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: what was a file when it was looked at may be a pipe now, and opening one waits for its writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_ENTRY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Found(NamedTuple):
    """Something in a tree that is no directory: a file, or a link or special file that nobody opens."""

    name: str
    """From the tree's top, with slashes."""
    facts: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.facts.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.facts.st_mode)


class Tree:
    """An open file or directory of the host, and what lies below it. Blocking: for threads."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        """For messages: nothing is opened by it."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(os.fstat(self.descriptor).st_mode)

    def open(self, name: str = "") -> int:
        """A descriptor of a regular file below, or of the file that this is. FileMissing, or Refused for anything
        else, also if a link stands on the way."""
        descriptor = self._descend(name, _READ) if name else os.dup(self.descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise Refused(f"{self._told(name)} is not a regular file", details={"path": self._told(name)})

    def read(self, name: str = "", *, most: int) -> bytes:
        """A file's content, however it grows meanwhile; FileTooLarge past `most` bytes."""
        with open(self.open(name), "rb") as file:
            file.seek(0)
            data = file.read(most + 1)
        if len(data) > most:
            raise FileTooLarge(f"{self._told(name)} has more than {most} bytes", details={"limit": most})
        return data

    @contextmanager
    def below(self, name: str) -> Iterator["Tree"]:
        """A directory in this tree; without a name, its top."""
        inner = Tree(self._descend(name or ".", _READ | os.O_DIRECTORY), self._told(name))
        try:
            yield inner
        finally:
            os.close(inner.descriptor)

    def has_file(self, name: str) -> bool:
        """Whether there is a regular file of that name, itself and not through a link."""
        try:
            os.close(self.open(name))
        except (FileMissing, Refused):
            return False
        return True

    def names(self, name: str = "") -> list[str]:
        """What a directory holds, sorted; nothing if there is none."""
        try:
            with self.below(name) as inner:
                return sorted(os.listdir(inner.descriptor))
        except (FileMissing, Refused):
            return []

    def directories(self, name: str = "") -> list[str]:
        """Names of the directories in one, sorted; links to some are none."""
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
        """All that is no directory, in the order of names; directories of the names `left_out` are not entered, and
        files of these names not told."""
        yield from self._walk(self.descriptor, "", left_out, depth)

    def _walk(self, directory: int, prefix: str, left_out: frozenset[str], depth: int) -> Iterator[Found]:
        if depth < 0:
            raise Refused(
                f"{self._told(prefix)} lies deeper than we go", remedy="copy what is needed to a flatter tree"
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

    def _step(self, directory: int, name: str, flags: int, told: str) -> int:
        try:
            return os.open(name, flags, dir_fd=directory)
        except FileNotFoundError as error:
            raise FileMissing(f"{self._told(told)} does not exist", details={"path": self._told(told)}) from error
        except OSError as error:
            why = "a link, or was replaced" if error.errno in _NO_ENTRY else f"not to be read ({error.strerror})"
            raise Refused(f"{self._told(told)} is {why}", details={"path": self._told(told)}) from error

    def _told(self, name: str) -> str:
        return os.path.join(self.path, name).rstrip("/")


@contextmanager
def opened(place: CheckedMount) -> Iterator[Tree]:
    """What policy has allowed, and nothing that has come to its place since."""
    tree = Tree(_open_real(place.real), place.real)
    try:
        facts = os.fstat(tree.descriptor)
        if (facts.st_dev, facts.st_ino) != (place.dev, place.ino):
            raise Refused(f"{place.real} was replaced after it had been allowed", details={"path": place.real})
        yield tree
    finally:
        os.close(tree.descriptor)


@contextmanager
def opened_by_user(path: str) -> Iterator[Tree]:
    """A path of the person who runs this process, with that person's rights: links in the path itself mean what they
    mean to everybody; below it none is followed. Never for a path that came over the network."""
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
    """A path that policy has resolved: there is no link in it, unless one was put there since."""
    root = Tree(os.open("/", _STEP | os.O_DIRECTORY), "/")
    try:
        return root._descend(path.strip("/"), _READ)
    finally:
        os.close(root.descriptor)
