"""Where skills come from: a directory, a zip, a git URL, a local repository, files somebody wrote."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hutch.errors import Invalid, NotFound
from hutch.skills import archives, collecting, git
from hutch.skills.content import Budget, write_file
from hutch.skills.manifest import MANIFEST, check_name
from hutch.skills.shelf import Origin


class Source(Protocol):
    """Puts the files of one skill into an empty directory, and says where they are from."""

    def fetch(self, into: Path, scratch: Path) -> Origin: ...


@dataclass(frozen=True)
class Directory:
    """A directory of this machine, for whoever may read it."""

    place: str
    path: str = ""

    def fetch(self, into: Path, scratch: Path) -> Origin:
        top = Path(self.place)
        if not top.is_dir():
            raise NotFound(f"there is no directory {self.place}", remedy="name a directory, a zip file or a git URL")
        collecting.copy(collecting.choose(top, self.path), into)
        return Origin(kind="directory", place=self.place, path=self.path)


@dataclass(frozen=True)
class Zip:
    """An archive: a file of this machine, or the bytes somebody sent."""

    name: str
    content: bytes | None = field(default=None, repr=False)
    path: str = ""

    def fetch(self, into: Path, scratch: Path) -> Origin:
        archive = Path(self.name)
        if self.content is not None:
            archive = scratch / "sent.zip"
            archive.write_bytes(self.content)
        elif not archive.is_file():
            raise NotFound(f"there is no file {self.name}", remedy="name a zip file")
        unpacked = scratch / "unpacked"
        unpacked.mkdir()
        archives.unpack(archive, unpacked)
        collecting.copy(collecting.choose(unpacked, self.path), into)
        # Bytes that were sent cannot be asked for again: their name is only for people.
        return Origin(kind="zip" if self.content is None else "upload", place=self.name, path=self.path)


@dataclass(frozen=True)
class Git:
    """A repository: by URL, or, where `local` asks for it, in a directory of this machine."""

    url: str
    ref: str = ""
    path: str = ""
    local: bool = False

    def fetch(self, into: Path, scratch: Path) -> Origin:
        tree = scratch / "tree"
        tree.mkdir()
        commit = git.take(self.url, self.ref, scratch / "repository", tree, local=self.local)
        collecting.copy(collecting.choose(tree, self.path), into)
        kind = "repository" if self.local else "git"
        return Origin(kind=kind, place=self.url, path=self.path, ref=self.ref, commit=commit)


@dataclass(frozen=True)
class Written:
    """Files as they were given, under their names; True: executable."""

    files: Mapping[str, tuple[bytes, bool]] = field(repr=False)
    origin: Origin

    def fetch(self, into: Path, scratch: Path) -> Origin:
        budget = Budget()
        for name, (data, executable) in sorted(self.files.items()):
            budget.file(name, len(data))
            write_file(os.path.join(into, name), data, executable=executable)
        return self.origin


def new_skill(name: str, description: str, body: str = "") -> Written:
    """A skill of one file."""
    from hutch.skills.yaml_fields import quoted

    check_name(name)
    text = f"---\nname: {name}\ndescription: {quoted(description)}\n---\n\n{body.strip() or f'# {name}'}\n"
    return Written({MANIFEST: (text.encode(), False)}, Origin(kind="edit"))


def of(text: str, *, path: str = "", ref: str = "", local_git: bool = False) -> Source:
    """From what a person writes: `./dir`, `file.zip`, `https://host/repo.git`, `git@host:repo`."""
    if local_git:
        return Git(os.path.abspath(text), ref, path, local=True)
    if git.is_url(text):
        return Git(text.removeprefix("git+"), ref, path)
    if "://" in text:
        raise Invalid(
            f"{text[:200]} is no source of skills", remedy="git over https or ssh, a directory, or a zip file"
        )
    if ref:
        raise Invalid("only a repository has a ref", remedy="leave it out, or say that the directory is a repository")
    place = os.path.abspath(text)
    if os.path.isfile(place):
        return Zip(place, path=path)
    return Directory(place, path)


def again(origin: Origin) -> Source:
    """The source of a version, to look whether it has something newer."""
    if origin.kind == "directory":
        return Directory(origin.place, origin.path)
    if origin.kind == "zip":
        return Zip(origin.place, path=origin.path)
    if origin.kind in ("git", "repository"):
        return Git(origin.place, origin.ref, origin.path, local=origin.kind == "repository")
    raise Invalid(f"a skill that came by {origin.kind} has no place to ask for a newer one", remedy="install it again")
