"""Skills of owners: the store's operations in threads, an event for each change, and boxes that follow it."""

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hutch.errors import FileFailed, FileMissing, HutchError, NotDirectory, NotFound, Refused
from hutch.keeper.boxes.states import States
from hutch.model.boxes import Event
from hutch.model.files import FileKind
from hutch.model.ids import BoxId
from hutch.model.skills import (
    INSTALLED_AT,
    STATE_AT,
    FoundSkill,
    SkillBinding,
    SkillFile,
    SkillInfo,
    SkillPlace,
    SkillPreview,
    SkillVersion,
)
from hutch.policy.quotas import Quota, check_kept, quota_of

if TYPE_CHECKING:
    from hutch import api
    from hutch.keeper.skills.mounts import SkillMounts
    from hutch.skills.content import Budget
    from hutch.skills.skill_index import Origin
    from hutch.skills.sources import Allow, Source, Written
    from hutch.skills.store import SkillStore

P = ParamSpec("P")
T = TypeVar("T")
Follow = Callable[[str], Awaitable[None]]

KIND = "skill"
"""The kind of these events: `old` and `new` are digests, `reason` says what was done to which skill."""


class Skills:
    """A keeper's skill store, the events of its changes, and those who follow them."""

    def __init__(self, root: Path, states: States, quotas: Mapping[str, Quota] | None = None) -> None:
        self.root = root
        self.quotas = quotas or {}
        self.followers: list[Follow] = []
        """Called with the owner whose skills have changed, after the views on disk were renewed."""
        self._states = states

    @cached_property
    def store(self) -> "SkillStore":
        """Loaded at first use: most boxes are created by processes that change no skill."""
        from hutch.skills.store import SkillStore

        return SkillStore(self.root)

    async def report(self, owner: str, old: str, new: str, reason: str) -> None:
        """Announce one change of an owner's skills as an event."""
        await self._states.announce(
            Event(seq=0, at=time.time(), box_id=BoxId(""), owner=owner, kind=KIND, old=old, new=new, reason=reason)
        )

    async def notify_followers(self, owner: str) -> None:
        for follow in self.followers:
            await follow(owner)


class OwnerSkills:
    """The skills of one owner, for any caller: a source is never a path that the caller names."""

    def __init__(self, skills: Skills, mounts: "SkillMounts", owner: str) -> None:
        self._skills = skills
        self._mounts = mounts
        self._owner = owner

    # --- reading --------------------------------------------------------------------------------------------

    async def all(self) -> tuple[SkillInfo, ...]:
        return await in_thread(self._skills.store.all, self._owner)

    async def get(self, name: str) -> SkillInfo:
        return await in_thread(self._skills.store.get, self._owner, name)

    async def body(self, name: str) -> str:
        return await in_thread(self._skills.store.body, self._owner, name)

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]:
        return await in_thread(self._skills.store.files, self._owner, name, version)

    async def read_file(self, name: str, path: str, version: str = "") -> bytes:
        return await in_thread(self._skills.store.read_file, self._owner, name, path, version)

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        return await in_thread(self._skills.store.versions, self._owner, name)

    async def origin(self, name: str) -> "Origin":
        """Return where the active version came from."""
        return (await in_thread(self._skills.store.entry, self._owner, name)).current.origin

    async def export(self, name: str, version: str = "") -> bytes:
        return await in_thread(self._skills.store.export, self._owner, name, version)

    async def bindings(self) -> tuple[SkillBinding, ...]:
        return await in_thread(self._skills.store.bindings, self._owner)

    async def preview(self, source: "Source") -> SkillPreview:
        return await in_thread(self._skills.store.preview, self._owner, source)

    # --- changing -------------------------------------------------------------------------------------------

    async def install(self, source: "Source", *, digest: str = "", name: str = "", new: bool = False) -> SkillInfo:
        """Install a skill or its next version.

        `digest` accepts only the version that a preview has shown. With `new`, an existing skill of that name is a
        Conflict.
        """
        store = self._skills.store
        if limit := quota_of(self._skills.quotas, self._owner).skills:
            names = {skill.name for skill in await self.all()}
            if (name or (await self.preview(source)).name) not in names:
                check_kept("skills", limit, len(names), self._owner)
        skill, before = await in_thread(store.install, self._owner, source, digest=digest, name=name, new=new)
        await self._changed(skill, before, "installed" if not before else "upgraded")
        return skill

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        from hutch.skills.sources import new_skill

        return await self.install(new_skill(name, description, body), new=True)

    async def change_files(
        self, name: str, changes: Mapping[str, bytes | None], *, expect: str = "", executable: bool = False
    ) -> SkillInfo:
        skill, before = await in_thread(
            self._skills.store.change_files, self._owner, name, changes, expect=expect, executable=executable
        )
        await self._changed(skill, before, "edited")
        return skill

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        content = data.encode() if isinstance(data, str) else data
        return await self.change_files(name, {path: content}, expect=expect, executable=executable)

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo:
        return await self.change_files(name, {path: None}, expect=expect)

    async def save(self, name: str, box: "api.Box", path: str = "") -> SkillInfo:
        """Install the copy that was edited in a box as a new version."""
        return await self.install(await read_edited_copy(box, name, path), name=name)

    async def upgrade(self, name: str, allow: "Allow | None" = None) -> SkillInfo:
        """`allow` checks paths of this machine, where the caller is not its user."""
        skill, before = await in_thread(self._skills.store.upgrade, self._owner, name, allow)
        await self._changed(skill, before, "upgraded")
        return skill

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        skill, before = await in_thread(self._skills.store.rollback, self._owner, name, version)
        await self._changed(skill, before, "rolled back")
        return skill

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        before = await self.get(name)
        skill = await in_thread(self._skills.store.pin, self._owner, name, version)
        await self._report(before.digest, skill.digest, f"pinned {name}")
        return skill

    async def unpin(self, name: str) -> SkillInfo:
        skill = await in_thread(self._skills.store.unpin, self._owner, name)
        await self._report(skill.digest, skill.digest, f"unpinned {name}")
        return skill

    async def remove(self, name: str) -> None:
        before = await in_thread(self._skills.store.remove, self._owner, name)
        await self._report(before, "", f"removed {name}")

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        binding = await in_thread(self._skills.store.bind, self._owner, group, tuple(names))
        reason = f"bound {', '.join(binding.skills) or 'nothing'} to {group}"
        await self._skills.report(self._owner, "", "", reason)
        await self._skills.notify_followers(self._owner)
        return binding

    # --- in boxes -------------------------------------------------------------------------------------------

    async def prepare(self, name: str, box: "api.Box") -> SkillPlace:
        return await self._mounts.prepare(self._owner, name, box)

    async def fetch(self, url: str, ref: str = "", path: str = "") -> "Source":
        """Fetch one commit of a git repository in a box of its own."""
        return await self._mounts.builds.fetch(self._owner, url, ref, path)

    async def _changed(self, skill: SkillInfo, before: str, verb: str) -> None:
        if before != skill.digest:
            await self._report(before, skill.digest, f"{verb} {skill.name} from {skill.origin}")

    async def _report(self, old: str, new: str, reason: str) -> None:
        await self._skills.report(self._owner, old, new, reason)
        if old != new:
            await self._skills.notify_followers(self._owner)


class LocalSkills(OwnerSkills):
    """The `Skills` protocol of `hutch.api` for this machine's user, who may install from paths of this machine."""

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        return await scan(directory)

    async def preview(
        self, source: "str | Path | bytes | Source", *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        return await super().preview(_source(source, path, ref, local_git))

    async def install(
        self, source: "str | Path | bytes | Source", *, path: str = "", ref: str = "", local_git: bool = False,
        digest: str = "", name: str = "", new: bool = False,
    ) -> SkillInfo:  # fmt: skip
        return await super().install(_source(source, path, ref, local_git), digest=digest, name=name, new=new)


def _source(source: "str | Path | bytes | Source", path: str, ref: str, local_git: bool) -> "Source":
    from hutch.skills import sources

    if isinstance(source, bytes):
        return sources.Zip("sent.zip", source, path)
    if isinstance(source, str | Path):
        return sources.parse_source(str(source), path=path, ref=ref, local_git=local_git)
    return source


async def read_edited_copy(box: "api.Box", name: str, path: str = "") -> "Written":
    """Read a skill's edited copy from a box, by default from the directory `edit` of its state.

    Files are read one by one within the limits of a package: the box controls the content and must not fill the host.
    """
    from hutch.skills.content import Budget
    from hutch.skills.manifest import MANIFEST, check_name
    from hutch.skills.skill_index import Origin
    from hutch.skills.sources import Written

    where = path or f"{STATE_AT}/{check_name(name)}/edit"
    files: dict[str, tuple[bytes, bool]] = {}
    await _read_tree(box.files, where, "", Budget(), files)
    if MANIFEST not in files:
        raise NotFound(
            f"there is no {MANIFEST} in {where} of box {box.id}",
            remedy=f"copy the skill there first: cp -r {INSTALLED_AT}/{name} {where}",
        )
    return Written(files, Origin(kind="box", place=box.id, path=where))


async def _read_tree(
    files: "api.Files", top: str, below: str, budget: "Budget", found: dict[str, tuple[bytes, bool]]
) -> None:
    from hutch.skills.content import EXCLUDED_NAMES, MAX_FILE_BYTES, check_path

    try:
        listed = await files.list(f"{top}/{below}" if below else top)
    except (FileMissing, NotDirectory):
        return
    for each in listed:
        last = posixpath.basename(each.path)
        name = f"{below}/{last}" if below else last
        if last in EXCLUDED_NAMES:
            continue
        check_path(name)
        if each.kind is FileKind.DIRECTORY:
            await _read_tree(files, top, name, budget, found)
        elif each.kind is not FileKind.FILE:
            raise Refused(f"{name} is a {each.kind}, and a skill holds only files", remedy="put a copy in its place")
        else:
            data = await files.read(f"{top}/{name}", limit=MAX_FILE_BYTES + 1)
            budget.add_file(name, len(data))
            found[name] = (data, bool(each.mode & 0o111))


async def scan(directory: str | Path) -> tuple[FoundSkill, ...]:
    """Find the skills in a directory tree of this machine."""
    from hutch.skills import content

    return await in_thread(content.scan_skills, Path(directory).absolute())


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run disk work in a thread, and finish it even when cancelled, so that no installation stays half done.

    An OSError becomes FileFailed.
    """
    step = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step])
        raise
    except OSError as error:
        if isinstance(error, HutchError):
            raise
        raise _disk_error(error) from error


def _disk_error(error: OSError) -> HutchError:
    where = f" at {error.filename}" if error.filename else ""
    return FileFailed(
        f"the skill store cannot be used{where}: {error.strerror or error}", details={"errno": error.errno}
    )
