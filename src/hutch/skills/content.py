"""The content of a skill package: its limits, its digest, and how it is found in a tree and copied.

A package consists of regular files with plain names and nothing else. Two packages are the same version if names,
executable bits and bytes are the same; owners, times and empty directories do not count.
"""

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hutch.errors import FileTooLarge, HutchError, Invalid, NotFound, Refused
from hutch.host_files import Tree, open_as_user
from hutch.model.record import Record
from hutch.model.skills import FoundSkill, SkillFile
from hutch.model.units import format_bytes
from hutch.skills.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, parse

MAX_PACKAGE_BYTES = 64 << 20
MAX_FILE_BYTES = 16 << 20
MAX_FILES = 2000
MAX_DEPTH = 12
MAX_NAME_BYTES = 200
"""Longest name in bytes; most file systems take 255."""
RESERVED = ".deps"
"""In a box, the prepared dependencies appear under this name beside the skill's files."""
EXCLUDED_NAMES = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "__MACOSX", ".DS_Store", "node_modules", ".venv", RESERVED}
)
"""Names that are never content: histories, caches, and what an installation makes again."""
SCAN_DEPTH = 6
MAX_FOUND = 500


class Budget:
    """Counts the files of a package, and refuses what exceeds the limits before it is written."""

    def __init__(self) -> None:
        self.files = 0
        self.size = 0
        self._names: dict[str, tuple[str, str]] = {}

    def add_file(self, name: str, size: int) -> None:
        """Count one more file with its declared size."""
        check_path(name)
        self.files += 1
        if self.files > MAX_FILES:
            raise FileTooLarge(f"the package has more than {MAX_FILES} files", details={"limit": MAX_FILES})
        if size > MAX_FILE_BYTES:
            raise FileTooLarge(
                f"{name} has {format_bytes(size)}, and a file of a skill may have {format_bytes(MAX_FILE_BYTES)}",
                details={"limit": MAX_FILE_BYTES},
            )
        self._check_collision(name)
        self.add_bytes(size)

    def add_bytes(self, size: int) -> None:
        self.size += size
        if self.size > MAX_PACKAGE_BYTES:
            raise FileTooLarge(
                f"the package has more than {MAX_PACKAGE_BYTES >> 20} MB", details={"limit": MAX_PACKAGE_BYTES}
            )

    def _check_collision(self, name: str) -> None:
        """Refuse names that differ only in case or Unicode composition. Some file systems treat them as one file:
        the later one wins, and what was reviewed is not what is installed."""
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


def check_path(name: str) -> None:
    """Check that a path is relative and means the same everywhere."""
    parts = name.split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise Refused(f"{name[:200]!r} leads out of the package, or is not a plain name")
    if "\\" in name or not name.isprintable() or (len(name) > 1 and name[1] == ":"):
        raise Refused(f"{name[:200]!a} holds characters that no name in a package may have")
    if len(parts) > MAX_DEPTH:
        raise Refused(f"{name[:200]!r} is {len(parts)} levels deep, and {MAX_DEPTH} are allowed")
    if any(len(part.encode(errors="surrogateescape")) > MAX_NAME_BYTES for part in parts):
        raise Refused(f"{name[:200]!r} is longer than {MAX_NAME_BYTES} bytes")
    if parts[0] == RESERVED:
        raise Refused(f"{RESERVED} belongs to Hutch: dependencies appear there")


class FoundFile(NamedTuple):
    """A regular file found in a tree."""

    name: str
    size: int
    executable: bool


def walk(tree: Tree, *, left_out: frozenset[str] = EXCLUDED_NAMES) -> Iterator[FoundFile]:
    """Yield every file of a tree, sorted. Links, pipes, devices and files with a second name are refused and not
    skipped: a package that needs them would be broken without them."""
    for found in tree.walk(left_out=left_out, depth=MAX_DEPTH):
        name, info = found
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"{name[:200]!a} is not UTF-8") from error
        if not found.is_file:
            kind = "symbolic link" if found.is_link else "special file"
            raise Refused(f"{name} is a {kind}, and a skill holds only files", remedy="put a copy in its place")
        if info.st_nlink > 1:
            raise Refused(f"{name} has a second name (a hard link) somewhere", remedy="put a copy in its place")
        yield FoundFile(name, info.st_size, bool(info.st_mode & 0o111))


def hash_files(top: Path) -> tuple[SkillFile, ...]:
    """Hash the files of a staged package, and check the limits."""
    budget = Budget()
    found = []
    with open_as_user(os.fspath(top)) as tree:
        for source in walk(tree, left_out=frozenset()):
            budget.add_file(source.name, source.size)
            digest = hashlib.sha256(tree.read(source.name, most=MAX_FILE_BYTES)).hexdigest()
            found.append(SkillFile(path=source.name, size=source.size, digest=digest, executable=source.executable))
    return tuple(sorted(found, key=lambda file: file.path.encode()))


def digest_of(files: Iterable[SkillFile]) -> str:
    """Return the version: one hash over every name, executable bit and content hash, in the order of names."""
    total = hashlib.sha256(b"hutch skill 1\n")
    for file in sorted(files, key=lambda file: file.path.encode()):
        total.update(f"{'x' if file.executable else '-'} {file.size} {file.digest} {file.path}\n".encode())
    return total.hexdigest()


def write_file(target: str, data: bytes, *, executable: bool) -> None:
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as writing:
        writing.write(data)
        os.fchmod(fd, 0o755 if executable else 0o644)


class Package(Record, frozen=True, kw_only=True):
    """A checked package: its declarations and its files."""

    digest: str
    manifest: Manifest
    files: tuple[SkillFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_skills(tree: Tree, place: str = "", depth: int = 0) -> Iterator[str]:
    """Yield directories with a SKILL.md, sorted, from the tree's top on. What lies inside a skill belongs to it. A
    manifest that is a link does not count: it could lead to any file, and errors quote what they read."""
    if tree.has_file(_join(place, MANIFEST)):
        yield place
        return
    if depth == SCAN_DEPTH:
        return
    for name in tree.directories(place):
        if name not in EXCLUDED_NAMES:
            yield from find_skills(tree, _join(place, name), depth + 1)


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def choose_skill(tree: Tree, path: str = "") -> str:
    """Return the one skill in a tree; if there are several, `path` must select one."""
    place = os.path.normpath(path) if path else ""
    if not path.isprintable() and path:
        raise Invalid(f"{path[:200]!a} is not a path in the source")
    # The tree may be untrusted and contain links that lead anywhere; the opener follows none.
    if place.startswith(("/", "..")):
        raise Invalid(f"{path!r} is not inside the source", remedy="name a directory in it")
    place = "" if place == "." else place
    found = [each for _, each in zip(range(MAX_FOUND), find_skills(tree, place), strict=False)]
    if not found:
        raise NotFound(f"there is no {MANIFEST} in {path or 'the source'}", remedy="a skill is a directory with one")
    if len(found) > 1:
        raise Invalid(
            f"the source holds {len(found)} skills: {', '.join(found[:10])}",
            remedy="say which one (--path)",
            details={"paths": found[:100]},
        )
    return found[0]


def _copy(tree: Tree, into: Path) -> None:
    """Copy the files of one skill within the limits."""
    budget = Budget()
    for file in walk(tree):
        budget.add_file(file.name, file.size)
        data = tree.read(file.name, most=MAX_FILE_BYTES)
        write_file(os.path.join(into, file.name), data, executable=file.executable)


def copy_skill(tree: Tree, path: str, into: Path) -> None:
    """Copy the skill of a tree into an empty directory."""
    with tree.below(choose_skill(tree, path)) as skill:
        _copy(skill, into)


def check_package(staged: Path) -> Package:
    """Check the package in a staged directory."""
    files = hash_files(staged)
    if not any(file.path == MANIFEST for file in files):
        raise Invalid(f"the package has no {MANIFEST}", remedy="a skill is a directory with one")
    manifest = parse((staged / MANIFEST).read_bytes())
    _check_programs(manifest, {file.path: file for file in files})
    return Package(digest=digest_of(files), manifest=manifest, files=files)


def _check_programs(manifest: Manifest, files: dict[str, SkillFile]) -> None:
    for tool in manifest.tools:
        program = tool.command[0]
        if "/" not in program or program.startswith("/"):
            continue
        found = files.get(os.path.normpath(program))
        if found is None or not found.executable:
            reason = "is not in the package" if found is None else "is not executable"
            raise Invalid(f"the program {program} of tool {tool.name} {reason}", remedy="add it, or chmod +x it")


def scan_skills(top: Path) -> tuple[FoundSkill, ...]:
    """Return every skill in a tree of directories, with the reason why one cannot be installed. It runs for the
    person who runs this process, with that person's rights."""
    if not top.is_dir():
        raise NotFound(f"there is no directory {top}", remedy="name one that exists")
    with open_as_user(os.fspath(top)) as tree:
        found = [each for _, each in zip(range(MAX_FOUND), find_skills(tree), strict=False)]
        return tuple(_describe(tree, each) for each in found)


def _describe(tree: Tree, place: str) -> FoundSkill:
    path = os.path.join(tree.path, place).rstrip("/")
    try:
        with tree.below(place) as skill:
            manifest = parse(skill.read(MANIFEST, most=MAX_MANIFEST_BYTES))
            budget = Budget()
            for each in walk(skill):
                budget.add_file(each.name, each.size)
    except HutchError as error:
        return FoundSkill(path=path, problem=error.message)
    except OSError as error:
        return FoundSkill(path=path, problem=f"it cannot be read: {error.strerror}")
    return FoundSkill(path=path, name=manifest.name, description=manifest.description)
