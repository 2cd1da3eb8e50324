"""One owner's skills: for each name its versions, which one is active, and whether it is pinned.

Each name has its own file, so that removing one can never touch another with a similar name.
"""

import os
from pathlib import Path

from hutch.errors import Conflict, HutchError, Invalid, NotFound
from hutch.logs import log
from hutch.model.ids import is_name
from hutch.model.record import Record
from hutch.model.skills import EVERY_SKILL, NO_SKILL
from hutch.skills import staging
from hutch.skills.manifest import check_name, is_skill_name
from hutch.skills.view_paths import owner_folder

MAX_VERSIONS = 20
MAX_SKILLS = 500
_SUFFIX = ".json"


class Origin(Record, frozen=True, kw_only=True):
    """Where a version came from, precise enough to fetch it from there again."""

    kind: str
    """directory | zip | git | repository | edit | box"""
    place: str = ""
    """A path, a URL, or for a zip its name."""
    path: str = ""
    """Path below that place."""
    ref: str = ""
    commit: str = ""

    def __str__(self) -> str:
        text = f"{self.kind}:{self.place}" if self.place else self.kind
        if self.ref:
            text += f"@{self.ref}"
        if self.path:
            text += f"#{self.path}"
        return f"{text} ({self.commit[:12]})" if self.commit else text


class Version(Record, frozen=True, kw_only=True):
    digest: str
    installed_at: float
    origin: Origin


class Entry(Record, frozen=True, kw_only=True):
    """One skill, with its versions oldest first."""

    name: str
    versions: tuple[Version, ...]
    active: str
    pinned: bool = False
    warning: str = ""
    """Why its dependencies could not be installed."""

    @property
    def current(self) -> Version:
        return self.version(self.active)

    def version(self, digest: str) -> Version:
        """Return the version with this digest, or with at least its first six characters."""
        found = [version for version in self.versions if version.digest.startswith(digest)]
        if len(found) != 1 or len(digest) < 6:
            problem = "has no version" if not found else "has several versions that begin with"
            raise NotFound(f"skill {self.name} {problem} {digest[:64]!r}", remedy=f"hutch skill versions {self.name}")
        return found[0]

    def with_version(self, version: Version) -> "Entry":
        """Add a version and make it active. Known content is not a second version: it becomes active again and
        keeps its time, but gets the new origin."""
        existing = next((each for each in self.versions if each.digest == version.digest), None)
        kept = version if existing is None else version.but(installed_at=existing.installed_at)
        others = tuple(each for each in self.versions if each.digest != version.digest)
        return self.but(versions=(*others, kept)[-MAX_VERSIONS:], active=version.digest, warning="")


class SkillIndex:
    """The index files of one owner. Changes are made under the store's lock; reading needs none."""

    def __init__(self, root: Path, owner: str) -> None:
        self.owner = owner
        self._root = root / owner_folder(owner)
        self._cache: dict[str, tuple[tuple[int, int], Entry]] = {}

    def names(self) -> tuple[str, ...]:
        try:
            found = os.listdir(self._root / "skills")
        except FileNotFoundError:
            return ()
        names = (name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))
        return tuple(sorted(name for name in names if is_skill_name(name)))

    def find(self, name: str) -> Entry | None:
        """Return the current entry; the file is read again only if it has changed."""
        path = self._file(name)
        try:
            info = os.stat(path)
            stamp = (info.st_ino, info.st_mtime_ns)
            cached = self._cache.get(name)
            if cached is None or cached[0] != stamp:
                cached = self._cache[name] = (stamp, Entry.from_json(path.read_bytes()))
        except FileNotFoundError:
            self._cache.pop(name, None)
            return None
        return cached[1]

    def get(self, name: str) -> Entry:
        entry = self.find(check_name(name))
        if entry is None:
            raise NotFound(f"no skill {name}", remedy="`hutch skill list` shows those there are")
        return entry

    def put(self, entry: Entry) -> None:
        if self.find(entry.name) is None and len(self.names()) >= MAX_SKILLS:
            raise Conflict(f"there are {MAX_SKILLS} skills already", remedy="remove some first")
        path = self._file(entry.name)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, mode=0o700)
            staging.write_atomically(self._root / "owner", self.owner.encode())
        staging.write_atomically(path, entry.to_json())

    def drop(self, name: str) -> None:
        os.unlink(self._file(name))
        self._cache.pop(name, None)

    def _file(self, name: str) -> Path:
        return self._root / "skills" / f"{check_name(name)}{_SUFFIX}"

    # --- groups ---------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the names bound to each group, whether such a skill exists now or not."""
        try:
            bound = Groups.from_json((self._root / "groups.json").read_bytes()).bound
        except FileNotFoundError:
            return {}
        return {group: tuple(names) for group, names in sorted(bound.items())}

    def bind(self, group: str, names: tuple[str, ...]) -> None:
        """Bind exactly these names; an empty list removes the group."""
        check_group(group)
        bound = {**self.groups(), group: tuple(sorted({check_name(name) for name in names}))}
        if not names:
            del bound[group]
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        staging.write_atomically(self._root / "groups.json", Groups(bound=bound).to_json())

    def members(self, group: str) -> tuple[str, ...]:
        """Return the skills that boxes of this group show."""
        names = self.names()
        if group == EVERY_SKILL:
            return names
        return tuple(name for name in self.groups().get(group, ()) if name in names)


class Groups(Record, frozen=True, kw_only=True):
    bound: dict[str, tuple[str, ...]]


def check_group(group: str) -> str:
    if not is_name(group) or group in (EVERY_SKILL, NO_SKILL) or group.startswith("box-"):
        raise Invalid(
            f"{group[:80]!r} is not a valid name for a group of skills",
            remedy=f"letters, digits, dot, dash, underscore; not {EVERY_SKILL}, {NO_SKILL} or box-…",
            details={"field": "skills"},
        )
    return group


def digests_in_use(root: Path) -> set[str]:
    """Return the digests of all versions of all owners. An unreadable file is an error, so that nothing is lost."""
    used: set[str] = set()
    for path in root.glob(f"*/skills/*{_SUFFIX}"):
        if path.name.startswith("."):
            continue
        try:
            used.update(version.digest for version in Entry.from_json(path.read_bytes()).versions)
        except FileNotFoundError:
            continue
        except HutchError as error:
            log("skills").error("index cannot be read", path=str(path), error=str(error))
            raise
    return used
