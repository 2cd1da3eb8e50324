"""Finding files by name: one walk for a glob pattern. Paths are lines of JSON, sent as they are found."""

import json
import os
import stat
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from hutch.guest.path_steps import STEP_SECONDS, Operation, Request, Steps, failure, number, text
from hutch.guest.paths import open_at, open_file, prefix_of, spelled
from hutch.guest.patterns import Pattern, State

MAX_ENTRIES = 200_000
"""Entries of one directory that a glob looks at."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_MAX_DEPTH = 200  # each level of a walk holds a descriptor


class _Level(NamedTuple):
    descriptor: int
    prefix: str
    states: frozenset[State]
    names: Iterator[str]


def glob(request: Request, workdir: str) -> Steps:
    """Paths that match, each by its components in order; a directory is read only where a wildcard asks for it."""
    pattern = Pattern(text(request, "pattern"))
    root = "/" if pattern.absolute else spelled(request, "root")
    limit = number(request, "limit", 10_000, least=1)
    try:
        top = open_file(root, _DIRECTORY, workdir)
    except OSError as error:
        raise failure(error, "search", root) from None
    walk = _Walk(pattern, top, prefix_of(root))
    try:
        found = 0
        lines: list[str] = []
        pause = time.monotonic() + STEP_SECONDS
        for path in walk.paths():
            if path is not None:
                if found == limit:
                    walk.notes.append(f"stopped at the limit of {limit} paths")
                    break
                found += 1
                lines.append(json.dumps(path))
            if time.monotonic() >= pause:
                yield _lines(lines)
                lines.clear()
                pause = time.monotonic() + STEP_SECONDS
        yield _lines(lines)
        return {"notes": walk.notes}
    finally:
        walk.close()


class _Walk:
    """Visits the directories in which the pattern may still match."""

    def __init__(self, pattern: Pattern, top: int, prefix: str) -> None:
        self._pattern = pattern
        self._levels: list[_Level] = []
        self._unread = 0
        self.notes: list[str] = []
        self._enter(top, prefix, pattern.start())

    def paths(self) -> Iterator[str | None]:
        """None: nothing found, but time has passed."""
        while self._levels:
            level = self._levels[-1]
            name = next(level.names, None)
            if name is None:
                os.close(self._levels.pop().descriptor)
                continue
            yield self._visit(level, name)
        if self._unread:
            self.notes.append(f"{self._unread} directories could not be read")

    def _visit(self, level: _Level, name: str) -> str | None:
        try:
            info = os.stat(name, dir_fd=level.descriptor, follow_symlinks=False)
        except OSError:
            return None  # gone since it was listed, or a literal name that is not there
        real = stat.S_ISDIR(info.st_mode)
        matched, matched_directory, following = self._pattern.after(level.states, name, real)
        path = level.prefix + name
        if not following and not matched_directory:
            return path if matched else None
        if not real and not stat.S_ISLNK(info.st_mode):
            return path if matched else None
        try:
            below = open_at(level.descriptor, name, _DIRECTORY)
        except OSError as error:
            self._unread += not isinstance(error, FileNotFoundError | NotADirectoryError)
            return path if matched or (matched_directory and real) else None
        self._enter(below, path + "/", following)
        return path if matched or matched_directory else None

    def _enter(self, directory: int, prefix: str, states: frozenset[State]) -> None:
        if not states:
            os.close(directory)
            return
        if len(self._levels) >= _MAX_DEPTH:
            os.close(directory)
            self.notes.append(f"not searched below {prefix!r}: more than {_MAX_DEPTH} directories deep")
            return
        names = self._pattern.literals(states)
        if self._pattern.wild(states):
            self._read(directory, prefix, names)
        self._levels.append(_Level(directory, prefix, states, iter(sorted(names))))

    def _read(self, directory: int, prefix: str, names: set[str]) -> None:
        """They are sorted, so all of them are in the guest's memory, which is the box's."""
        try:
            with os.scandir(directory) as entries:
                for entry in islice(entries, MAX_ENTRIES):
                    names.add(entry.name)
                if next(entries, None) is not None:
                    self.notes.append(f"only {MAX_ENTRIES} entries of {prefix or '.'!r} were looked at")
        except OSError:
            self._unread += 1

    def close(self) -> None:
        for level in self._levels:
            os.close(level.descriptor)
        self._levels.clear()


def _lines(lines: list[str]) -> bytes | None:
    return ("\n".join(lines) + "\n").encode() if lines else None


OPERATIONS: dict[str, Operation] = {"files.glob": glob}
