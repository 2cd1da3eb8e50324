"""What a package may hold, and the digest of what it holds.

A package is regular files under plain names, nothing else. Two packages are the same version if names, executable bits
and bytes are the same: owners, times and empty directories do not count.
"""

import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hutch.errors import FileTooLarge, Refused
from hutch.model.skills import SkillFile

MOST_BYTES = 64 << 20
MOST_BYTES_IN_FILE = 16 << 20
MOST_FILES = 2000
MOST_DEPTH = 12
LONGEST_NAME = 200
"""Bytes of one name, of the 255 that most file systems take."""
RESERVED = ".deps"
"""In a box, the prepared dependencies appear under this name beside the skill's files."""
LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", "__MACOSX", ".DS_Store", "node_modules", ".venv", RESERVED})
"""Never content: histories, caches, and what is installed anew."""


class Budget:
    """Counts what has been taken, and refuses the rest before it is written."""

    def __init__(self) -> None:
        self.files = 0
        self.size = 0
        self._names: dict[str, tuple[str, str]] = {}

    def file(self, name: str, size: int) -> None:
        """One more file, of a size that was declared."""
        check_plain(name)
        self.files += 1
        if self.files > MOST_FILES:
            raise FileTooLarge(f"the package has more than {MOST_FILES} files", details={"limit": MOST_FILES})
        if size > MOST_BYTES_IN_FILE:
            raise FileTooLarge(
                f"{name} has {size} bytes, and a file of a skill may have {MOST_BYTES_IN_FILE}",
                details={"limit": MOST_BYTES_IN_FILE},
            )
        self._check_twin(name)
        self.take(size)

    def take(self, size: int) -> None:
        self.size += size
        if self.size > MOST_BYTES:
            raise FileTooLarge(f"the package has more than {MOST_BYTES >> 20} MB", details={"limit": MOST_BYTES})

    def _check_twin(self, name: str) -> None:
        """On some file systems two names that differ in case or in composition are one file: the later wins, and what
        was looked at is not what is installed."""
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", path).casefold())
            kind = "file" if depth == len(parts) else "directory"
            before = self._names.setdefault(folded, (path, kind))
            if before[0] != path:
                raise Refused(f"{path} and {before[0]} differ only in how they are written")
            if before[1] != kind:
                raise Refused(f"{path} is both a file and a directory")


def check_plain(name: str) -> None:
    """A relative name that means the same everywhere."""
    parts = name.split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise Refused(f"{name[:200]!r} leads out of the package, or is no plain name")
    if "\\" in name or not name.isprintable() or (len(name) > 1 and name[1] == ":"):
        raise Refused(f"{name[:200]!a} holds characters that no name in a package may have")
    if len(parts) > MOST_DEPTH:
        raise Refused(f"{name[:200]!r} lies {len(parts)} levels deep, and {MOST_DEPTH} are allowed")
    if any(len(part.encode(errors="surrogateescape")) > LONGEST_NAME for part in parts):
        raise Refused(f"{name[:200]!r} is longer than {LONGEST_NAME} bytes")
    if parts[0] == RESERVED:
        raise Refused(f"{RESERVED} belongs to Hutch: dependencies appear there")


class Source(NamedTuple):
    """A regular file found in a tree, open for reading once."""

    name: str
    path: str
    size: int
    executable: bool


def walk(top: Path, *, left_out: frozenset[str] = LEFT_OUT) -> Iterator[Source]:
    """Every file of a tree, sorted. Links, pipes, devices and files with a second name are refused, not skipped: a
    package that needs them would be broken without."""
    yield from _walk(os.fspath(top), "", 0, left_out)


def _walk(top: str, below: str, depth: int, left_out: frozenset[str]) -> Iterator[Source]:
    if depth > MOST_DEPTH:
        raise Refused(f"{below[:200]!r} lies deeper than {MOST_DEPTH} levels")
    with os.scandir(f"{top}/{below}") as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.name in left_out:
            continue
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"{name[:200]!a} is not UTF-8") from error
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            yield from _walk(top, name, depth + 1, left_out)
        elif not stat.S_ISREG(facts.st_mode):
            kind = "symbolic link" if stat.S_ISLNK(facts.st_mode) else "special file"
            raise Refused(f"{name} is a {kind}, and a skill holds only files", remedy="put a copy in its place")
        elif facts.st_nlink > 1:
            raise Refused(f"{name} has a second name (a hard link) somewhere", remedy="put a copy in its place")
        else:
            yield Source(name, entry.path, facts.st_size, bool(facts.st_mode & 0o111))


def measure(top: Path) -> tuple[SkillFile, ...]:
    """The files of a staged package, each hashed, within the limits."""
    budget = Budget()
    found = []
    for source in walk(top, left_out=frozenset()):
        budget.file(source.name, source.size)
        with open(source.path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found.append(SkillFile(path=source.name, size=source.size, digest=digest, executable=source.executable))
    return tuple(sorted(found, key=lambda file: file.path.encode()))


def digest_of(files: Iterable[SkillFile]) -> str:
    """The version: one hash over every name, bit and content hash, in the order of names."""
    whole = hashlib.sha256(b"hutch skill 1\n")
    for file in sorted(files, key=lambda file: file.path.encode()):
        whole.update(f"{'x' if file.executable else '-'} {file.size} {file.digest} {file.path}\n".encode())
    return whole.hexdigest()


def copy_file(source: str, target: str, *, executable: bool, limit: int = MOST_BYTES_IN_FILE) -> int:
    """A regular file's bytes, however the source grows meanwhile; returns how many."""
    # O_NONBLOCK: what was a file when it was looked at may be a pipe now, and opening one waits for its writer.
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as reading:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Refused(f"{source} was replaced while it was read")
        data = reading.read(limit + 1)
    if len(data) > limit:
        raise FileTooLarge(f"{source} grew beyond {limit} bytes while it was read")
    write_file(target, data, executable=executable)
    return len(data)


def write_file(target: str, data: bytes, *, executable: bool) -> None:
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as writing:
        writing.write(data)
        os.fchmod(fd, 0o755 if executable else 0o644)
