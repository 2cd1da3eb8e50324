"""From a directory of files to a staged package: find the skill in it, copy what counts, and check it."""

import os
from collections.abc import Iterator
from pathlib import Path

from hutch.errors import HutchError, Invalid, NotFound
from hutch.model.record import Record
from hutch.model.skills import FoundSkill, SkillFile
from hutch.skills.content import LEFT_OUT, Budget, copy_file, digest_of, measure, walk
from hutch.skills.manifest import MANIFEST, MOST_BYTES, Manifest, parse

SCAN_DEPTH = 6
MOST_FOUND = 500


class Package(Record, frozen=True, kw_only=True):
    """A checked package: what it declares and what it holds."""

    digest: str
    manifest: Manifest
    files: tuple[SkillFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find(top: Path) -> Iterator[Path]:
    """Directories that hold a SKILL.md, sorted. What lies in a skill is a part of it, not another one."""
    yield from _find(top, 0)


def _find(place: Path, depth: int) -> Iterator[Path]:
    if _is_file(place / MANIFEST):
        yield place
        return
    if depth == SCAN_DEPTH:
        return
    try:
        with os.scandir(place) as entries:
            inner = sorted(
                entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name not in LEFT_OUT
            )
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return
    for name in inner:
        yield from _find(place / name, depth + 1)


def _is_file(path: Path) -> bool:
    """Itself, not through a link: that could lead to any file of the host, and errors quote what they read."""
    return path.is_file() and not path.is_symlink()


def choose(top: Path, path: str = "") -> Path:
    """The one skill in a tree. Several need a `path` that says which."""
    place = top
    if path:
        if not path.isprintable():
            raise Invalid(f"{path[:200]!a} is no path in the source")
        place = top / path
        # The tree may be a stranger's, with links in it that lead anywhere.
        if os.path.isabs(path) or not place.resolve().is_relative_to(top.resolve()):
            raise Invalid(f"{path!r} does not lie in the source", remedy="name a directory in it")
    found = [each for _, each in zip(range(MOST_FOUND), find(place), strict=False)]
    if not found:
        raise NotFound(f"there is no {MANIFEST} in {path or 'the source'}", remedy="a skill is a directory with one")
    if len(found) > 1:
        names = [os.path.relpath(each, top) for each in found]
        raise Invalid(
            f"the source holds {len(found)} skills: {', '.join(names[:10])}",
            remedy="say which one (--path)",
            details={"paths": names[:100]},
        )
    return found[0]


def copy(source: Path, into: Path) -> None:
    """The files of a skill's directory, within the limits."""
    budget = Budget()
    for file in walk(source):
        budget.file(file.name, file.size)
        copy_file(file.path, os.path.join(into, file.name), executable=file.executable)


def check(staged: Path) -> Package:
    """The package in a staged directory."""
    files = measure(staged)
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


def scan(top: Path) -> tuple[FoundSkill, ...]:
    """Every skill in a tree of directories, with what stands in the way of those that cannot be installed (B38)."""
    if not top.is_dir():
        raise NotFound(f"there is no directory {top}", remedy="name one that is there")
    return tuple(_looked_at(each) for _, each in zip(range(MOST_FOUND), find(top), strict=False))


def _looked_at(place: Path) -> FoundSkill:
    path = str(place)
    try:
        with open(place / MANIFEST, "rb") as file:
            manifest = parse(file.read(MOST_BYTES + 1))
        budget = Budget()
        for each in walk(place):
            budget.file(each.name, each.size)
    except HutchError as error:
        return FoundSkill(path=path, problem=error.message)
    except OSError as error:
        return FoundSkill(path=path, problem=f"it cannot be read: {error.strerror}")
    return FoundSkill(path=path, name=manifest.name, description=manifest.description)
