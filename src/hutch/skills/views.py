"""Views: directories that boxes mount read-only, one for each owner and group, with a directory for each skill.

A box mounts the view and not a skill, so that skills installed later appear without touching the box. Views hold
copies: an inode visible to the boxes of two owners would be a channel between them (locks, access times), and no box
may see the store's own files.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hutch.errors import HutchError
from hutch.logs import log
from hutch.model.record import Record
from hutch.skills import staging
from hutch.skills.content import RESERVED
from hutch.skills.dependencies import dependencies_key
from hutch.skills.packages import Packages
from hutch.skills.skill_index import SkillIndex
from hutch.skills.view_paths import box_view, owner_folder, stale_marker, view_path

_SUFFIX = ".json"


class ViewContent(Record, frozen=True, kw_only=True):
    """The content of a view: for each name the version, and the key of its dependencies."""

    group: str
    skills: dict[str, str]


class Views:
    """The views of all owners. Everything but `path` is called under the store's lock."""

    def __init__(self, root: Path, packages: Packages, index: Callable[[str], SkillIndex]) -> None:
        self._top = root
        self._staging = root / "staging"
        self._dependencies = root / "dependencies"
        self._packages = packages
        self._index = index

    def path(self, owner: str, group: str) -> Path:
        return view_path(self._top, owner, group)

    def content(self, owner: str, group: str) -> dict[str, str]:
        """Return what a view contains, by name."""
        return ViewContent.from_json(_record_path(self.path(owner, group)).read_bytes()).skills

    def make(self, owner: str, group: str, view: str = "") -> Path:
        """Create and fill the directory of this group; `view` gives it another name, for a single box."""
        directory = self.path(owner, view or group)
        directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        directory.chmod(0o755)
        self._write(directory, ViewContent(group=group, skills={}))
        self._fill(owner, directory)
        return directory

    def assign(self, box: str, old_owner: str, new_owner: str, group: str) -> None:
        """Turn a pool box's own empty view into one of its new owner. A mount follows a renamed directory."""
        view = box_view(box)
        old, new = self.path(old_owner, view), self.path(new_owner, view)
        new.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        os.rename(old, new)
        _record_path(old).unlink(missing_ok=True)
        self._write(new, ViewContent(group=group, skills={}))
        self._fill(new_owner, new)

    def drop(self, owner: str, view: str) -> None:
        directory = self.path(owner, view)
        staging.remove_tree(directory)
        _record_path(directory).unlink(missing_ok=True)

    def refresh(self, owner: str) -> None:
        """Update every view of an owner from the index. A failure is logged and does not undo the change that
        caused the refresh; the next refresh tries again."""
        complete = True
        for record in sorted(self.path(owner, "").glob(f".*{_SUFFIX}")):
            directory = record.parent / record.name[1:].removesuffix(_SUFFIX)
            try:
                self._fill(owner, directory)
            except (OSError, HutchError) as error:
                log("skills").error("view not refreshed", view=str(directory), error=str(error))
                complete = False
        if complete:
            stale_marker(self._top, owner).unlink(missing_ok=True)

    def expect_change(self, owner: str) -> None:
        """Mark the views as stale before the index changes: if we die before `refresh`, the next reader refreshes
        them."""
        mark = stale_marker(self._top, owner)
        if mark.parent.is_dir():
            mark.touch()

    def stale(self, owner: str) -> bool:
        return stale_marker(self._top, owner).exists()

    def _fill(self, owner: str, directory: Path) -> None:
        content = ViewContent.from_json(_record_path(directory).read_bytes())
        index = self._index(owner)
        wanted: dict[str, str] = {}
        for name in index.members(content.group):
            entry = index.find(name)
            if entry is not None and self._packages.has(entry.active):
                wanted[name] = f"{entry.active} {self._prepared(owner, entry.active)}"
        with staging.staging_directory(self._staging) as scratch:
            for name in sorted(set(os.listdir(directory)) - wanted.keys()):
                os.rename(directory / name, scratch / name)
            for name, version in wanted.items():
                if content.skills.get(name) != version or not (directory / name).is_dir():
                    self._put(owner, directory / name, version, scratch)
            self._write(directory, content.but(skills=wanted))

    def _put(self, owner: str, target: Path, version: str, scratch: Path) -> None:
        digest, _, dependencies = version.partition(" ")
        new = scratch / target.name
        new.mkdir()
        new.chmod(0o755)
        self._packages.copy(digest, new)
        if dependencies:
            # Hard links are enough here: dependencies are large, and only this owner has them.
            source = self.dependencies(owner) / dependencies
            shutil.copytree(source, new / RESERVED, symlinks=True, copy_function=os.link)
        staging.swap_in(new, target)

    def dependencies(self, owner: str) -> Path:
        """Return the directory of this owner's installed dependencies, each under its key."""
        return self._dependencies / owner_folder(owner)

    def collect_dependencies(self, owner: str, used: set[str], scratch: Path) -> None:
        """Remove unused dependencies. Views have links of their own, so nothing disappears from a box."""
        directory = self.dependencies(owner)
        for key in set(os.listdir(directory)) - used if directory.is_dir() else ():
            os.rename(directory / key, scratch / f"unused-{key}")

    def _prepared(self, owner: str, digest: str) -> str:
        key = dependencies_key(self._packages.get(digest))
        return key if key and (self.dependencies(owner) / key).is_dir() else ""

    def _write(self, directory: Path, content: ViewContent) -> None:
        staging.write_atomically(_record_path(directory), content.to_json())


def _record_path(directory: Path) -> Path:
    """Return the path of the record beside the view; no group's name begins with a dot."""
    return directory.parent / f".{directory.name}{_SUFFIX}"
