"""The skill store of all owners: install, change, pin, roll back, remove, export. It blocks, so call it in threads.

Long work (copying, unpacking, git) is done in a staging directory without a lock. One lock is then taken for the short
rest: package, index, views. A crash at any point leaves the old state or the new one.
"""

import io
import os
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from hutch.errors import Conflict, FileMissing, Invalid, NotFound
from hutch.logs import log
from hutch.model.skills import (
    EVERY_SKILL,
    ChangeKind,
    SkillBinding,
    SkillChange,
    SkillFile,
    SkillInfo,
    SkillPreview,
    SkillVersion,
)
from hutch.skills import sources, staging
from hutch.skills.content import Package, check_package, check_path
from hutch.skills.dependencies import dependencies_key, set_modes
from hutch.skills.packages import Packages
from hutch.skills.skill_index import Entry, Origin, SkillIndex, Version, digests_in_use
from hutch.skills.sources import Allow, Source
from hutch.skills.view_paths import box_view
from hutch.skills.views import Views

POOL_OWNER = ""
"""Owner of the views of pool boxes, which have no owner yet; nobody has skills under this name."""


class SkillStore:
    """All skills below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._staging = root / "staging"
        self._lock = root / "lock"
        self._owners = root / "owners"
        self._indexes: dict[str, SkillIndex] = {}
        self.packages = Packages(root / "packages")
        self.views = Views(root, self.packages, self.index)

    def index(self, owner: str) -> SkillIndex:
        index = self._indexes.get(owner)
        if index is None:
            index = self._indexes[owner] = SkillIndex(self._owners, owner)
        return index

    # --- reading --------------------------------------------------------------------------------------------

    def all(self, owner: str) -> tuple[SkillInfo, ...]:
        """List skills by name. An entry whose package is gone from the disk is removed, with a warning."""
        index = self.index(owner)
        found = []
        for name in index.names():
            entry = index.find(name)
            if entry is not None and not self.packages.has(entry.active):
                entry = self._repair(owner, name)
            if entry is not None:
                found.append(self._describe(entry))
        return tuple(found)

    def entry(self, owner: str, name: str) -> Entry:
        entry = self.index(owner).get(name)
        if self.packages.has(entry.active):
            return entry
        repaired = self._repair(owner, name)
        if repaired is None:
            raise NotFound(f"skill {name} was removed: its files are gone from the store", remedy="install it again")
        return repaired

    def get(self, owner: str, name: str) -> SkillInfo:
        return self._describe(self.entry(owner, name))

    def body(self, owner: str, name: str) -> str:
        return self.packages.body(self.entry(owner, name).active)

    def files(self, owner: str, name: str, version: str = "") -> tuple[SkillFile, ...]:
        return self.packages.get(self._digest(owner, name, version)).files

    def read_file(self, owner: str, name: str, path: str, version: str = "") -> bytes:
        return self.packages.read(self._digest(owner, name, version), path)

    def versions(self, owner: str, name: str) -> tuple[SkillVersion, ...]:
        """Return the versions, newest first."""
        entry = self.entry(owner, name)
        return tuple(
            SkillVersion(
                digest=version.digest, installed_at=version.installed_at, origin=str(version.origin),
                active=version.digest == entry.active, pinned=entry.pinned and version.digest == entry.active,
            )
            for version in reversed(entry.versions)
        )  # fmt: skip

    def export(self, owner: str, name: str, version: str = "") -> bytes:
        """Return a zip with one directory of the skill's name; the same version gives the same bytes."""
        package = self.packages.get(self._digest(owner, name, version))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for file in package.files:
                info = zipfile.ZipInfo(f"{package.manifest.name}/{file.path}", (1980, 1, 1, 0, 0, 0))
                info.external_attr = (0o100755 if file.executable else 0o100644) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                info.create_system = 3
                archive.writestr(info, self.packages.read(package.digest, file.path))
        return out.getvalue()

    def _digest(self, owner: str, name: str, version: str) -> str:
        entry = self.entry(owner, name)
        return entry.version(version).digest if version else entry.active

    def _describe(self, entry: Entry) -> SkillInfo:
        version = entry.current
        package = self.packages.get(version.digest)
        manifest = package.manifest
        return SkillInfo(
            name=entry.name, description=manifest.description, digest=version.digest,
            installed_at=version.installed_at, origin=str(version.origin), pinned=entry.pinned,
            files=len(package.files), size=package.size, versions=len(entry.versions), license=manifest.license,
            compatibility=manifest.compatibility, metadata=manifest.metadata, allowed_tools=manifest.allowed_tools,
            tools=manifest.tools, dependencies=manifest.dependencies, permissions=manifest.permissions,
            warning=entry.warning,
        )  # fmt: skip

    def _repair(self, owner: str, name: str) -> Entry | None:
        """Replace an active package that is gone by the newest version that exists, or remove the entry."""
        index = self.index(owner)
        with staging.lock(self._lock):
            entry = index.find(name)
            if entry is None or self.packages.has(entry.active):
                return entry
            present = tuple(version for version in entry.versions if self.packages.has(version.digest))
            self.views.expect_change(owner)
            log("skills").warning("package gone from the store", skill=name, digest=entry.active, left=len(present))
            if present:
                entry = entry.but(versions=present, active=present[-1].digest, pinned=False)
                index.put(entry)
            else:
                index.drop(name)
                entry = None
            self.views.refresh(owner)
            return entry

    # --- installing -----------------------------------------------------------------------------------------

    def preview(self, owner: str, source: Source) -> SkillPreview:
        """Return what `install` would do, and keep nothing."""
        with staging.staging_directory(self._staging) as scratch:
            package, origin = self._fetch(source, scratch)
        manifest = package.manifest
        entry = self.index(owner).find(manifest.name)
        active = None if entry is None or not self.packages.has(entry.active) else self.packages.get(entry.active)
        warnings = list(manifest.warnings)
        if active is not None and active.digest == package.digest:
            warnings.append("it is installed and active already")
        if entry is not None and entry.pinned:
            warnings.append(f"the skill is pinned to {entry.active[:12]}: unpin it first")
        return SkillPreview(
            name=manifest.name, description=manifest.description, digest=package.digest, origin=str(origin),
            size=package.size, files=package.files, license=manifest.license, compatibility=manifest.compatibility,
            tools=manifest.tools, dependencies=manifest.dependencies, permissions=manifest.permissions,
            warnings=tuple(warnings), replaces="" if active is None else active.digest,
            changes=() if active is None else differences(active.files, package.files),
        )  # fmt: skip

    def install(
        self, owner: str, source: Source, *, name: str = "", new: bool = False, digest: str = "", over: str = ""
    ) -> tuple[SkillInfo, str]:
        """Install a skill and make it active; return it and the digest that was active before.

        `name` and `digest` are what it must have, `new` requires that the name is unused, and `over` is the digest that
        must still be active.
        """
        with staging.staging_directory(self._staging) as scratch:
            package, origin = self._fetch(source, scratch)
            found = package.manifest.name
            if name and found != name:
                raise Invalid(f"the package is skill {found}, not {name}", details={"field": "name"})
            if not package.digest.startswith(digest):
                raise Conflict(
                    f"the source has changed since the preview: {package.digest[:12]}, not {digest[:12]}",
                    remedy="preview it again",
                )
            with staging.lock(self._lock):
                return self._add_version(owner, package, origin, scratch, new=new, over=over)

    def _fetch(self, source: Source, scratch: Path) -> tuple[Package, Origin]:
        staged = scratch / "package"
        staged.mkdir()
        origin = source.fetch(staged, scratch)
        return check_package(staged), origin

    def _add_version(
        self, owner: str, package: Package, origin: Origin, scratch: Path, *, new: bool, over: str
    ) -> tuple[SkillInfo, str]:
        index = self.index(owner)
        name = package.manifest.name
        entry = index.find(name)
        if entry is not None and new:
            raise Conflict(f"skill {name} exists", remedy="choose another name, or change that one")
        if over and (entry is None or entry.active != over):
            raise _changed_meanwhile(name, entry)
        if entry is not None and entry.pinned and entry.active != package.digest:
            raise Conflict(f"skill {name} is pinned to version {entry.active[:12]}", remedy=f"hutch skill unpin {name}")
        self.packages.add(package, scratch / "package", scratch)
        version = Version(digest=package.digest, installed_at=time.time(), origin=origin)
        before = "" if entry is None else entry.active
        if entry is None:
            entry = Entry(name=name, versions=(version,), active=version.digest)
        else:
            entry = entry.with_version(version)
        self.views.expect_change(owner)
        index.put(entry)
        self._refresh(owner, scratch)
        return self._describe(entry), before

    def upgrade(self, owner: str, name: str, allow: Allow | None = None) -> tuple[SkillInfo, str]:
        """Install the newest version from the active version's origin; `allow` is that of `sources.source_of`."""
        origin = self.entry(owner, name).current.origin
        return self.install(owner, sources.source_of(origin, allow), name=name)

    def change_files(
        self, owner: str, name: str, changes: Mapping[str, bytes | None], *, expect: str = "", executable: bool = False
    ) -> tuple[SkillInfo, str]:
        """Write (bytes) or remove (None) files as a new version; every other file stays byte for byte. `expect` is
        the version the change was made from; raises Conflict if another is active by now."""
        entry = self.entry(owner, name)
        if expect and entry.version(expect).digest != entry.active:
            raise _changed_meanwhile(name, entry)
        files = {
            file.path: (self.packages.read(entry.active, file.path), file.executable)
            for file in self.packages.get(entry.active).files
        }
        for path, data in changes.items():
            check_path(path)
            if data is None and path not in files:
                raise FileMissing(f"skill {name} has no file {path}", details={"path": path})
            if data is None:
                del files[path]
            else:
                files[path] = (data, executable or (path in files and files[path][1]))
        return self.install(owner, sources.Written(files, Origin(kind="edit")), name=name, over=entry.active)

    # --- versions -------------------------------------------------------------------------------------------

    def rollback(self, owner: str, name: str, version: str = "") -> tuple[SkillInfo, str]:
        """Make another version active: the given one, or else the previous one."""

        def change(entry: Entry) -> Entry:
            if entry.pinned:
                raise Conflict(f"skill {name} is pinned to {entry.active[:12]}", remedy=f"hutch skill unpin {name}")
            if version:
                return entry.but(active=entry.version(version).digest, warning="")
            digests = [each.digest for each in entry.versions]
            at = digests.index(entry.active)
            if at == 0:
                raise Conflict(f"skill {name} has no version before {entry.active[:12]}")
            return entry.but(active=digests[at - 1], warning="")

        before = self.entry(owner, name).active
        return self._change(owner, name, change), before

    def pin(self, owner: str, name: str, version: str = "") -> SkillInfo:
        """Keep the active version from changing; a `version` is made active first."""
        return self._change(
            owner,
            name,
            lambda entry: entry.but(active=entry.version(version).digest if version else entry.active, pinned=True),
        )

    def unpin(self, owner: str, name: str) -> SkillInfo:
        return self._change(owner, name, lambda entry: entry.but(pinned=False))

    def warn(self, owner: str, name: str, digest: str, warning: str) -> None:
        """Record a problem with a version while it is the active one."""

        def change(entry: Entry) -> Entry:
            return entry.but(warning=warning) if entry.active == digest else entry

        self._change(owner, name, change)

    def _change(self, owner: str, name: str, change: Callable[[Entry], Entry]) -> SkillInfo:
        self.entry(owner, name)  # repairs the entry, which takes the lock
        with staging.lock(self._lock):
            index = self.index(owner)
            entry = change(index.get(name))
            if not self.packages.has(entry.active):
                raise NotFound(f"version {entry.active[:12]} of skill {name} is gone from the store")
            self.views.expect_change(owner)
            index.put(entry)
            self.views.refresh(owner)
            return self._describe(entry)

    def remove(self, owner: str, name: str) -> str:
        """Remove a skill with all its versions, and return the digest that was active."""
        index = self.index(owner)
        with staging.staging_directory(self._staging) as scratch, staging.lock(self._lock):
            entry = index.get(name)
            self.views.expect_change(owner)
            index.drop(name)
            self._refresh(owner, scratch)
        return entry.active

    def _refresh(self, owner: str, scratch: Path) -> None:
        """Refresh the views after a change of the index, then remove what nothing refers to any more."""
        self.views.refresh(owner)
        self.packages.remove_unused(digests_in_use(self._owners), scratch)
        index = self.index(owner)
        entries = [entry for name in index.names() if (entry := index.find(name)) is not None]
        digests = {
            version.digest for entry in entries for version in entry.versions if self.packages.has(version.digest)
        }
        self.views.collect_dependencies(
            owner, {dependencies_key(self.packages.get(digest)) for digest in digests}, scratch
        )

    # --- groups ---------------------------------------------------------------------------------------------

    def bindings(self, owner: str) -> tuple[SkillBinding, ...]:
        return tuple(SkillBinding(group=group, skills=names) for group, names in self.index(owner).groups().items())

    def bind(self, owner: str, group: str, names: tuple[str, ...]) -> SkillBinding:
        """Bind exactly these names to the group; an empty list removes it. A name need not be installed yet."""
        with staging.lock(self._lock):
            self.views.expect_change(owner)
            self.index(owner).bind(group, names)
            self.views.refresh(owner)
        return SkillBinding(group=group, skills=self.index(owner).groups().get(group, ()))

    def view(self, owner: str, group: str) -> Path:
        """Return the directory that boxes of this owner and group mount, and create it if it is new."""
        directory = self.views.path(owner, group)
        if not directory.is_dir() or self.views.stale(owner):
            with staging.lock(self._lock):
                if not directory.is_dir():
                    self.views.make(owner, group)
                self.views.refresh(owner)
        return directory

    def box_view(self, box: str) -> Path:
        """Create a view for one pool box, which has no owner and so no skills yet."""
        with staging.lock(self._lock):
            return self.views.make(POOL_OWNER, EVERY_SKILL, box_view(box))

    def assign_box_view(self, box: str, owner: str, group: str) -> None:
        with staging.lock(self._lock):
            self.views.assign(box, POOL_OWNER, owner, group)

    def drop_box_view(self, box: str, owner: str) -> None:
        with staging.lock(self._lock):
            self.views.drop(owner, box_view(box))

    # --- dependencies ---------------------------------------------------------------------------------------

    def prepared(self, owner: str, digest: str) -> bool:
        """Return whether all dependencies of this version are installed."""
        key = dependencies_key(self.packages.get(digest))
        return not key or (self.views.dependencies(owner) / key).is_dir()

    def keep_dependencies(self, owner: str, name: str, digest: str, built: Path) -> None:
        """Take over dependencies that a box has installed, from the same file system, and show them in every view."""
        target = self.views.dependencies(owner) / dependencies_key(self.packages.get(digest))
        set_modes(built)
        with staging.lock(self._lock):
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not target.is_dir():
                os.rename(built, target)
            self.views.refresh(owner)
        self.warn(owner, name, digest, "")

    def scratch(self) -> AbstractContextManager[Path]:
        return staging.staging_directory(self._staging)


def _changed_meanwhile(name: str, entry: Entry | None) -> Conflict:
    now = "gone" if entry is None else f"at {entry.active[:12]}"
    return Conflict(f"skill {name} is now {now}", remedy="read it again", retryable=False)


def differences(old: tuple[SkillFile, ...], new: tuple[SkillFile, ...]) -> tuple[SkillChange, ...]:
    before = {file.path: file for file in old}
    after = {file.path: file for file in new}
    changes = [SkillChange(path=path, kind=ChangeKind.REMOVED) for path in before.keys() - after.keys()]
    changes += [SkillChange(path=path, kind=ChangeKind.ADDED) for path in after.keys() - before.keys()]
    changes += [
        SkillChange(path=path, kind=ChangeKind.CHANGED)
        for path in before.keys() & after.keys()
        if before[path] != after[path]
    ]
    return tuple(sorted(changes, key=lambda change: change.path))
