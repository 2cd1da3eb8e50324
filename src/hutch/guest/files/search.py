"""Search: files by name with a glob pattern, and lines by content with a regular expression.

A regular expression cannot be interrupted but a process can be killed, so grep runs in a child. Its answer is lines of
JSON: hits as they are found, `searched` from time to time, and at the end a line with `done`.
"""

import errno
import json
import os
import re
import signal
import stat
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from hutch.guest.files.paths import open_at, open_file, prefix_of, request_path
from hutch.guest.files.patterns import Pattern, State
from hutch.guest.operations import (
    BLOCK,
    STEP_SECONDS,
    Failure,
    Operation,
    Readable,
    Request,
    Steps,
    failure,
    number_field,
    text_field,
)

MAX_ENTRIES = 200_000
"""Largest number of entries that a glob reads from one directory."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_MAX_DEPTH = 200  # each level of a walk holds a descriptor
MAX_SECONDS = 3600
MAX_LINE = 1000
"""Characters of a line that a hit shows."""
MAX_LINE_BYTES = 1 << 20
"""A longer line is searched in pieces of this size."""
BINARY_PROBE = 8 << 10
"""A NUL among this many first bytes makes a file binary, and it is not searched."""
SKIPPED_DIRECTORIES = frozenset({".git", ".hg", ".svn"})
"""Version control directories: they hold history. Naming one as root searches it."""


class _Level(NamedTuple):
    descriptor: int
    prefix: str
    states: frozenset[State]
    names: Iterator[str]


def glob(request: Request, workdir: str) -> Steps:
    """Send matching paths, ordered component by component; a directory is read only where a wildcard requires it."""
    pattern = Pattern(text_field(request, "pattern"))
    root = "/" if pattern.absolute else request_path(request, "root")
    limit = number_field(request, "limit", 10_000, least=1)
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
                yield _encode_lines(lines)
                lines.clear()
                pause = time.monotonic() + STEP_SECONDS
        yield _encode_lines(lines)
        return {"notes": walk.notes}
    finally:
        walk.close()


class _Walk:
    """Visits the directories in which the pattern may still match."""

    def __init__(self, pattern: Pattern, top: int, prefix: str) -> None:
        self._pattern = pattern
        self._levels: list[_Level] = []
        self._unreadable = 0
        self.notes: list[str] = []
        self._enter(top, prefix, pattern.start())

    def paths(self) -> Iterator[str | None]:
        """Yield matching paths, and None when time has passed without a match."""
        while self._levels:
            level = self._levels[-1]
            name = next(level.names, None)
            if name is None:
                os.close(self._levels.pop().descriptor)
                continue
            yield self._visit(level, name)
        if self._unreadable:
            self.notes.append(f"{self._unreadable} directories could not be read")

    def _visit(self, level: _Level, name: str) -> str | None:
        try:
            info = os.stat(name, dir_fd=level.descriptor, follow_symlinks=False)
        except OSError:
            return None  # removed since it was listed, or a literal name that does not exist
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
            self._unreadable += not isinstance(error, FileNotFoundError | NotADirectoryError)
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
        """Add the entries of a directory. They are sorted, so all are in the guest's memory, which is the box's."""
        try:
            with os.scandir(directory) as entries:
                for entry in islice(entries, MAX_ENTRIES):
                    names.add(entry.name)
                if next(entries, None) is not None:
                    self.notes.append(f"only {MAX_ENTRIES} entries of {prefix or '.'!r} were looked at")
        except OSError:
            self._unreadable += 1

    def close(self) -> None:
        for level in self._levels:
            os.close(level.descriptor)
        self._levels.clear()


def _encode_lines(lines: list[str]) -> bytes | None:
    return ("\n".join(lines) + "\n").encode() if lines else None


def grep(request: Request, workdir: str) -> Steps:
    """Pass on the child's lines until it ends or the time is over."""
    seconds = request.get("timeout_sec", 10.0)
    if not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
        raise Failure("invalid", f"timeout_sec must be more than 0 and at most {MAX_SECONDS}, not {seconds!r}")
    deadline = time.monotonic() + seconds
    search = _Grep(request, workdir)
    reader, child = _fork_child(search)
    complete = False
    try:
        partial = b""
        while True:
            block = _read_available(reader)
            if block is None:
                if time.monotonic() >= deadline:
                    break
                yield Readable(reader, deadline)
                continue
            if not block:
                complete = True
                break
            # Only whole lines are sent: the child may be killed in the middle of one.
            whole, newline, partial = (partial + block).rpartition(b"\n")
            if newline:
                yield whole + newline
            if time.monotonic() >= deadline:
                break
        return {"timed_out": not complete}
    finally:
        os.close(reader)
        child.kill()


def _read_available(reader: int) -> bytes | None:
    try:
        return os.read(reader, BLOCK)
    except BlockingIOError:
        return None


class _Child(NamedTuple):
    """A child process by descriptor: another process may get its number once the guest's loop has reaped it.

    On a kernel without such descriptors (older gVisor) it is -1, and the child ends when it next writes.
    """

    descriptor: int

    def kill(self) -> None:
        if self.descriptor < 0:
            return
        try:
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return  # it had ended by itself
        finally:
            os.close(self.descriptor)


def _fork_child(search: "_Grep") -> tuple[int, _Child]:
    try:
        reader, writer = os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise failure(error, "search", search.root) from None
    pid = -1
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(search, writer)
        child = _Child(_descriptor(pid))
    except OSError as error:
        os.close(reader)
        if pid > 0:
            os.kill(pid, signal.SIGKILL)  # the loop has not reaped it yet
        raise failure(error, "search", search.root) from None
    finally:
        os.close(writer)
    os.set_blocking(reader, False)
    return reader, child


def _descriptor(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return -1


def _run_child(search: "_Grep", writer: int) -> NoReturn:
    """Run the search. No descriptor of the guest may stay open: a keeper would wait for a connection that this
    holds."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(writer, 3, inheritable=False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        search.run(3)
        status = 0
    finally:
        os._exit(status)


class _Grep:
    """One search: its pattern, its root and its output."""

    def __init__(self, request: Request, workdir: str) -> None:
        self.root = request_path(request, "root")
        self._workdir = workdir
        self._expression = os.fsencode(text_field(request, "pattern"))
        self._flags = re.IGNORECASE if request.get("ignore_case") else 0
        self._limit = number_field(request, "limit", 1000, least=1)
        self._glob = Pattern(text_field(request, "glob")) if request.get("glob") else None
        self._by_name = "/" not in str(request.get("glob") or "")
        self._output = -1
        self._found = self._searched = self._unreadable = 0

    def run(self, output: int) -> None:
        self._output = output
        note = ""
        try:
            with warnings.catch_warnings():
                # Warnings about the expression would go to the guest's stderr, and import modules that are not there.
                warnings.simplefilter("ignore")
                expression = re.compile(self._expression, self._flags)
            for path, descriptor in self._files():
                if self._search(path, descriptor, expression):
                    note = f"stopped at the limit of {self._limit} lines"
                    break
        except (re.error, RecursionError, OverflowError) as error:
            self._emit({"failed": Failure("invalid", f"the pattern is not a regular expression: {error}").to_wire()})
        except Failure as error:
            self._emit({"failed": error.to_wire()})
        notes = [note] if note else []
        if self._unreadable:
            notes.append(f"{self._unreadable} files or directories could not be read")
        self._emit({"searched": self._searched, "notes": notes, "done": True})

    def _emit(self, fields: dict[str, Any]) -> None:
        view = memoryview(json.dumps(fields).encode() + b"\n")
        while view:
            view = view[os.write(self._output, view) :]

    def _files(self) -> Iterator[tuple[str, int]]:
        """Yield open regular files below the root, sorted by name; symlinks are not followed."""
        try:
            top = open_file(self.root, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, self._workdir)
        except OSError as error:
            raise failure(error, "search", self.root) from None
        if not stat.S_ISDIR(os.fstat(top).st_mode):
            yield self.root, top
            return
        prefix = prefix_of(self.root)
        levels = [(top, "", iter(self._names(top)))]
        while levels:
            directory, above, names = levels[-1]
            name = next(names, None)
            if name is None:
                os.close(levels.pop()[0])
                continue
            path = above + name
            descriptor = self._open(directory, name, path)
            if descriptor is None:
                continue
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                yield prefix + path, descriptor
            elif name in SKIPPED_DIRECTORIES or len(levels) >= _MAX_DEPTH:
                self._unreadable += name not in SKIPPED_DIRECTORIES
                os.close(descriptor)
            else:
                levels.append((descriptor, path + "/", iter(self._names(descriptor))))

    def _names(self, directory: int) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except OSError:
            self._unreadable += 1
            return []

    def _open(self, directory: int, name: str, path: str) -> int | None:
        try:
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            wanted = stat.S_ISREG(info.st_mode) and self._matches_glob(name, path)
            if not wanted and not stat.S_ISDIR(info.st_mode):
                return None
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(name, flags, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError:
            self._unreadable += 1
            return None

    def _matches_glob(self, name: str, path: str) -> bool:
        return self._glob is None or self._glob.matches(name if self._by_name else path)

    def _search(self, path: str, descriptor: int, expression: re.Pattern[bytes]) -> bool:
        """Search one file; return whether the limit is reached."""
        with open(descriptor, "rb") as file:
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode) or b"\0" in file.peek(BINARY_PROBE)[:BINARY_PROBE]:
                    return False
                line_number, fresh = 0, True
                while line := file.readline(MAX_LINE_BYTES):
                    line_number += fresh
                    fresh = line.endswith(b"\n")
                    match = expression.search(line.rstrip(b"\r\n"))
                    if match is None:
                        continue
                    if self._found == self._limit:
                        return True
                    self._found += 1
                    self._emit({"path": path, "line": line_number, "text": _excerpt(line, match)})
            except OSError:
                self._unreadable += 1
                return False
        self._searched += 1
        if self._searched % 256 == 0:
            self._emit({"searched": self._searched})
        return False


def _excerpt(line: bytes, match: re.Match[bytes]) -> str:
    """Return the line, or of a long line the part around the match."""
    if len(line) <= MAX_LINE:
        return line.rstrip(b"\r\n").decode(errors="replace")
    begin = max(0, match.start() - 200)
    part = line[begin : begin + 4 * MAX_LINE].rstrip(b"\r\n").decode(errors="replace")
    return ("…" if begin else "") + (part if len(part) < MAX_LINE else part[: MAX_LINE - 2] + "…")


OPERATIONS: dict[str, Operation] = {"files.glob": glob, "files.grep": grep}
