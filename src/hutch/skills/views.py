"""Views: directories that boxes mount read-only, one for each owner and group, each skill a directory in it.

A box mounts the view, not a skill, so that skills that come later are there without anybody touching the box (B12).
Views hold copies: one inode shown to the boxes of two owners would be a channel between them (locks, access times), and
no box may have the store's own files.
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
from hutch.skills.dependencies import key_of
from hutch.skills.packages import Packages
from hutch.skills.skill_index import Shelf
from hutch.skills.view_paths import box_view, owner_folder, stale_mark, view_place

_SUFFIX = ".json"


class Shown(Record, frozen=True, kw_only=True):
    """What a view holds: for each name the version, and the prepared dependencies beside it."""

    group: str
    skills: dict[str, str]


class Views:
    """Everything here but `place` is called under the store's lock."""

    def __init__(self, root: Path, packages: Packages, shelf: Callable[[str], Shelf]) -> None:
        self._top = root
        self._staging = root / "staging"
        self._dependencies = root / "dependencies"
        self._packages = packages
        self._shelf = shelf

    def place(self, owner: str, group: str) -> Path:
        return view_place(self._top, owner, group)

    def shown(self, owner: str, group: str) -> dict[str, str]:
        """By name, what is in a view."""
        return Shown.from_json(_about(self.place(owner, group)).read_bytes()).skills

    def make(self, owner: str, group: str, view: str = "") -> Path:
        """The directory of this group, filled. `view`: another name for it, for a single box."""
        place = self.place(owner, view or group)
        place.mkdir(parents=True, exist_ok=True, mode=0o755)
        place.chmod(0o755)
        self._write(place, Shown(group=group, skills={}))
        self._fill(owner, place)
        return place

    def hand_over(self, box: str, giver: str, taker: str, group: str) -> None:
        """A box of the pool has an owner now: its own empty view becomes one of that owner's. A mount follows the
        directory, whatever its name."""
        view = box_view(box)
        old, new = self.place(giver, view), self.place(taker, view)
        new.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        os.rename(old, new)
        _about(old).unlink(missing_ok=True)
        self._write(new, Shown(group=group, skills={}))
        self._fill(taker, new)

    def drop(self, owner: str, view: str) -> None:
        place = self.place(owner, view)
        staging.discard(place)
        _about(place).unlink(missing_ok=True)

    def refresh(self, owner: str) -> None:
        """Bring every view of an owner to what the shelf says. One that fails is told of, and does not undo the
        change that called for it: the next refresh tries again."""
        done = True
        for about in sorted(self.place(owner, "").glob(f".*{_SUFFIX}")):
            place = about.parent / about.name[1:].removesuffix(_SUFFIX)
            try:
                self._fill(owner, place)
            except (OSError, HutchError) as error:
                log("skills").error("view not refreshed", view=str(place), error=str(error))
                done = False
        if done:
            stale_mark(self._top, owner).unlink(missing_ok=True)

    def expect_change(self, owner: str) -> None:
        """Before the shelf changes: if we die before `refresh` has ended, the next one who wants a view does it."""
        mark = stale_mark(self._top, owner)
        if mark.parent.is_dir():
            mark.touch()

    def stale(self, owner: str) -> bool:
        return stale_mark(self._top, owner).exists()

    def _fill(self, owner: str, place: Path) -> None:
        shown = Shown.from_json(_about(place).read_bytes())
        shelf = self._shelf(owner)
        wanted: dict[str, str] = {}
        for name in shelf.members(shown.group):
            entry = shelf.find(name)
            if entry is not None and self._packages.has(entry.active):
                wanted[name] = f"{entry.active} {self._prepared(owner, entry.active)}"
        with staging.staged(self._staging) as scratch:
            for name in sorted(set(os.listdir(place)) - wanted.keys()):
                os.rename(place / name, scratch / name)
            for name, version in wanted.items():
                if shown.skills.get(name) != version or not (place / name).is_dir():
                    self._put(owner, place / name, version, scratch)
            self._write(place, shown.but(skills=wanted))

    def _put(self, owner: str, target: Path, version: str, scratch: Path) -> None:
        digest, _, dependencies = version.partition(" ")
        new = scratch / target.name
        new.mkdir()
        new.chmod(0o755)
        self._packages.copy(digest, new)
        if dependencies:
            # Hard links: large, and of this owner alone.
            source = self.dependencies(owner) / dependencies
            shutil.copytree(source, new / RESERVED, symlinks=True, copy_function=os.link)
        staging.swap_in(new, target)

    def dependencies(self, owner: str) -> Path:
        """Where this owner's prepared dependencies are kept, each under a digest."""
        return self._dependencies / owner_folder(owner)

    def collect_dependencies(self, owner: str, used: set[str], scratch: Path) -> None:
        """Views have links of their own to what they show, so that nothing vanishes from a box here."""
        place = self.dependencies(owner)
        for key in set(os.listdir(place)) - used if place.is_dir() else ():
            os.rename(place / key, scratch / f"unused-{key}")

    def _prepared(self, owner: str, digest: str) -> str:
        key = key_of(self._packages.get(digest))
        return key if key and (self.dependencies(owner) / key).is_dir() else ""

    def _write(self, place: Path, shown: Shown) -> None:
        staging.write_whole(_about(place), shown.to_json())


def _about(place: Path) -> Path:
    """Beside the view: no group's name begins with a dot."""
    return place.parent / f".{place.name}{_SUFFIX}"
