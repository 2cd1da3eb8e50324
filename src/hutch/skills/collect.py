"""From a directory of files to a staged package: find the skill in it, copy what counts, and check it."""

import os
from collections.abc import Iterator
from pathlib import Path

from hutch.errors import HutchError, Invalid, NotFound
from hutch.host_files import Tree, opened_by_user
from hutch.model.record import Record
from hutch.model.skills import FoundSkill, SkillFile
from hutch.skills.content import LEFT_OUT, MOST_BYTES_IN_FILE, Budget, digest_of, measure, walk, write_file
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


def find(tree: Tree, place: str = "", depth: int = 0) -> Iterator[str]:
    """Directories that hold a SKILL.md, sorted, from the tree's top on. What lies in a skill is a part of it, not
    another one. A manifest that is a link is none: it could lead to any file, and errors quote what they read."""
    if tree.has_file(_join(place, MANIFEST)):
        yield place
        return
    if depth == SCAN_DEPTH:
        return
    for name in tree.directories(place):
        if name not in LEFT_OUT:
            yield from find(tree, _join(place, name), depth + 1)


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def choose(tree: Tree, path: str = "") -> str:
    """The one skill in a tree. Several need a `path` that says which."""
    place = os.path.normpath(path) if path else ""
    if not path.isprintable() and path:
        raise Invalid(f"{path[:200]!a} is no path in the source")
    # The tree may be a stranger's, with links in it that lead anywhere: the opener follows none.
    if place.startswith(("/", "..")):
        raise Invalid(f"{path!r} does not lie in the source", remedy="name a directory in it")
    place = "" if place == "." else place
    found = [each for _, each in zip(range(MOST_FOUND), find(tree, place), strict=False)]
    if not found:
        raise NotFound(f"there is no {MANIFEST} in {path or 'the source'}", remedy="a skill is a directory with one")
    if len(found) > 1:
        raise Invalid(
            f"the source holds {len(found)} skills: {', '.join(found[:10])}",
            remedy="say which one (--path)",
            details={"paths": found[:100]},
        )
    return found[0]


def copy(tree: Tree, into: Path) -> None:
    """The one skill's files, within the limits."""
    budget = Budget()
    for file in walk(tree):
        budget.file(file.name, file.size)
        data = tree.read(file.name, most=MOST_BYTES_IN_FILE)
        write_file(os.path.join(into, file.name), data, executable=file.executable)


def take(tree: Tree, path: str, into: Path) -> None:
    """The skill of a tree, into an empty directory."""
    with tree.below(choose(tree, path)) as skill:
        copy(skill, into)


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
    """Every skill in a tree of directories, with what stands in the way of those that cannot be installed (B38). For
    the person who runs this process, with that person's rights."""
    if not top.is_dir():
        raise NotFound(f"there is no directory {top}", remedy="name one that is there")
    with opened_by_user(os.fspath(top)) as tree:
        found = [each for _, each in zip(range(MOST_FOUND), find(tree), strict=False)]
        return tuple(_looked_at(tree, each) for each in found)


def _looked_at(tree: Tree, place: str) -> FoundSkill:
    path = os.path.join(tree.path, place).rstrip("/")
    try:
        with tree.below(place) as skill:
            manifest = parse(skill.read(MANIFEST, most=MOST_BYTES))
            budget = Budget()
            for each in walk(skill):
                budget.file(each.name, each.size)
    except HutchError as error:
        return FoundSkill(path=path, problem=error.message)
    except OSError as error:
        return FoundSkill(path=path, problem=f"it cannot be read: {error.strerror}")
    return FoundSkill(path=path, name=manifest.name, description=manifest.description)
