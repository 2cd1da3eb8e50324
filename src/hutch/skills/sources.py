"""Sources of skills: a directory, a zip, a git URL, a local repository, or given files."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hutch import host_files
from hutch.errors import FileMissing, Invalid, NotFound, Refused
from hutch.host_files import Tree, open_as_user
from hutch.model.spec import CheckedMount
from hutch.skills import archives, git
from hutch.skills.content import MAX_PACKAGE_BYTES, Budget, copy_skill, write_file
from hutch.skills.manifest import MANIFEST, check_name
from hutch.skills.skill_index import Origin

Allow = Callable[[str], CheckedMount]
"""Refuses a path of this machine, or pins it to what is there now."""


class Source(Protocol):
    """Copies the files of one skill into an empty directory, and returns where they came from."""

    def fetch(self, into: Path, scratch: Path) -> Origin: ...


@dataclass(frozen=True)
class Directory:
    """A directory of this machine: chosen by the person who runs this process, or permitted to a caller by policy."""

    place: str
    path: str = ""
    checked: CheckedMount | None = None

    def fetch(self, into: Path, scratch: Path) -> Origin:
        with _open(self.place, self.checked) as tree:
            if not tree.is_directory:
                raise _not_found(self.place)
            copy_skill(tree, self.path, into)
        return Origin(kind="directory", place=self.place, path=self.path)


@dataclass(frozen=True)
class Zip:
    """A zip archive: a file of this machine, or bytes that were sent."""

    name: str
    content: bytes | None = field(default=None, repr=False)
    path: str = ""
    checked: CheckedMount | None = None

    def fetch(self, into: Path, scratch: Path) -> Origin:
        unpacked = scratch / "unpacked"
        unpacked.mkdir()
        archives.unpack(self._bytes(), self.name, unpacked)
        with open_as_user(os.fspath(unpacked)) as tree:
            copy_skill(tree, self.path, into)
        # Sent bytes cannot be fetched again; their name is only for people.
        return Origin(kind="zip" if self.content is None else "upload", place=self.name, path=self.path)

    def _bytes(self) -> bytes:
        if self.content is not None:
            return self.content
        with _open(self.name, self.checked) as file:
            return file.read(most=MAX_PACKAGE_BYTES)


@contextmanager
def _open(place: str, checked: CheckedMount | None) -> Iterator[Tree]:
    try:
        with open_as_user(place) if checked is None else host_files.open_checked(checked) as tree:
            yield tree
    except FileMissing as error:
        raise _not_found(place) from error


def _not_found(place: str) -> NotFound:
    return NotFound(f"there is no skill at {place}", remedy="name a directory, a zip file or a git URL")


@dataclass(frozen=True)
class Git:
    """A repository by URL or, with `local`, in a directory of this machine."""

    url: str
    ref: str = ""
    path: str = ""
    local: bool = False

    def fetch(self, into: Path, scratch: Path) -> Origin:
        tree = scratch / "tree"
        tree.mkdir()
        commit = git.fetch_commit(self.url, self.ref, scratch / "repository", tree, local=self.local)
        with open_as_user(os.fspath(tree)) as opened:
            copy_skill(opened, self.path, into)
        kind = "repository" if self.local else "git"
        return Origin(kind=kind, place=self.url, path=self.path, ref=self.ref, commit=commit)


@dataclass(frozen=True)
class Written:
    """Files as given, by name; True means executable."""

    files: Mapping[str, tuple[bytes, bool]] = field(repr=False)
    origin: Origin

    def fetch(self, into: Path, scratch: Path) -> Origin:
        budget = Budget()
        for name, (data, executable) in sorted(self.files.items()):
            budget.add_file(name, len(data))
            write_file(os.path.join(into, name), data, executable=executable)
        return self.origin


def new_skill(name: str, description: str, body: str = "") -> Written:
    """Return a skill of one file."""
    from hutch.skills.yaml_fields import quoted

    check_name(name)
    text = f"---\nname: {name}\ndescription: {quoted(description)}\n---\n\n{body.strip() or f'# {name}'}\n"
    return Written({MANIFEST: (text.encode(), False)}, Origin(kind="edit"))


def parse_source(text: str, *, path: str = "", ref: str = "", local_git: bool = False) -> Source:
    """Parse what a person writes: `./dir`, `file.zip`, `https://host/repo.git`, `git@host:repo`."""
    if local_git:
        return Git(os.path.abspath(text), ref, path, local=True)
    if git.is_url(text):
        return Git(text.removeprefix("git+"), ref, path)
    if "://" in text:
        raise Invalid(
            f"{text[:200]} is not a source of skills", remedy="git over https or ssh, a directory, or a zip file"
        )
    if ref:
        raise Invalid("only a repository has a ref", remedy="leave it out, or say that the directory is a repository")
    place = os.path.abspath(text)
    if os.path.isfile(place):
        return Zip(place, path=path)
    return Directory(place, path)


def source_of(origin: Origin, allow: Allow | None = None) -> Source:
    """Return the source of a version, to look for a newer one. `allow` is set if the caller did not name the path,
    so that policy must permit it; a local repository is never read for another person, because git runs in it."""
    if origin.kind == "git":
        return Git(origin.place, origin.ref, origin.path)
    if origin.kind == "repository":
        if allow is not None:
            raise Refused(
                f"{origin.place} is a repository on the server's machine, which only users of that machine may read",
                remedy="upgrade it there, or install it from a URL",
            )
        return Git(origin.place, origin.ref, origin.path, local=True)
    if origin.kind not in ("directory", "zip"):
        raise Invalid(
            f"a skill of origin {origin.kind!r} has no source to check for a newer version", remedy="install it again"
        )
    checked = allow(origin.place) if allow is not None else None
    if origin.kind == "directory":
        return Directory(origin.place, origin.path, checked)
    return Zip(origin.place, path=origin.path, checked=checked)
