"""Skills of owners: the store's operations off the event loop, each change an event, and boxes that follow it."""

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping
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
    SkillPreview,
    SkillVersion,
)

if TYPE_CHECKING:
    from hutch import api
    from hutch.skills.content import Budget
    from hutch.skills.skill_index import Origin
    from hutch.skills.sources import Allow, Source, Written
    from hutch.skills.store import SkillStore

P = ParamSpec("P")
T = TypeVar("T")
Follow = Callable[[str], Awaitable[None]]

KIND = "skill"
"""Of events: `old` and `new` are digests, `reason` tells what was done to which skill."""


class Skills:
    """One for a keeper. Every method names the owner whose skills are meant."""

    def __init__(self, root: Path, states: States) -> None:
        self.root = root
        self.followers: list[Follow] = []
        """Told of an owner whose skills have changed, once the views on disk are new."""
        self._states = states

    @cached_property
    def store(self) -> "SkillStore":
        """Loaded at first use: most boxes are made by processes that change no skill."""
        from hutch.skills.store import SkillStore

        return SkillStore(self.root)

    # --- reading --------------------------------------------------------------------------------------------

    async def all(self, owner: str) -> tuple[SkillInfo, ...]:
        return await in_thread(self.store.all, owner)

    async def get(self, owner: str, name: str) -> SkillInfo:
        return await in_thread(self.store.get, owner, name)

    async def body(self, owner: str, name: str) -> str:
        return await in_thread(self.store.body, owner, name)

    async def files(self, owner: str, name: str, version: str = "") -> tuple[SkillFile, ...]:
        return await in_thread(self.store.files, owner, name, version)

    async def read_file(self, owner: str, name: str, path: str, version: str = "") -> bytes:
        return await in_thread(self.store.read_file, owner, name, path, version)

    async def versions(self, owner: str, name: str) -> tuple[SkillVersion, ...]:
        return await in_thread(self.store.versions, owner, name)

    async def origin(self, owner: str, name: str) -> "Origin":
        """Where its active version came from."""
        return (await in_thread(self.store.entry, owner, name)).current.origin

    async def export(self, owner: str, name: str, version: str = "") -> bytes:
        return await in_thread(self.store.export, owner, name, version)

    async def bindings(self, owner: str) -> tuple[SkillBinding, ...]:
        return await in_thread(self.store.bindings, owner)

    async def preview(self, owner: str, source: "Source") -> SkillPreview:
        return await in_thread(self.store.preview, owner, source)

    # --- changing -------------------------------------------------------------------------------------------

    async def install(
        self, owner: str, source: "Source", *, digest: str = "", name: str = "", new: bool = False
    ) -> SkillInfo:
        """`digest`: only what a preview has shown; `new`: Conflict if there is one of that name."""
        skill, before = await in_thread(self.store.install, owner, source, digest=digest, name=name, new=new)
        await self._changed(owner, skill, before, "installed" if not before else "upgraded")
        return skill

    async def upgrade(self, owner: str, name: str, allow: "Allow | None" = None) -> SkillInfo:
        """`allow`: the policy for paths of this machine, where its user is not the one who asks."""
        skill, before = await in_thread(self.store.upgrade, owner, name, allow)
        await self._changed(owner, skill, before, "upgraded")
        return skill

    async def create(self, owner: str, name: str, description: str, body: str = "") -> SkillInfo:
        from hutch.skills.sources import new_skill

        return await self.install(owner, new_skill(name, description, body), new=True)

    async def change_files(
        self,
        owner: str,
        name: str,
        changes: Mapping[str, bytes | None],
        *,
        expect: str = "",
        executable: bool = False,
    ) -> SkillInfo:
        skill, before = await in_thread(
            self.store.change_files, owner, name, changes, expect=expect, executable=executable
        )
        await self._changed(owner, skill, before, "edited")
        return skill

    async def rollback(self, owner: str, name: str, version: str = "") -> SkillInfo:
        skill, before = await in_thread(self.store.rollback, owner, name, version)
        await self._changed(owner, skill, before, "rolled back")
        return skill

    async def pin(self, owner: str, name: str, version: str = "") -> SkillInfo:
        before = await self.get(owner, name)
        skill = await in_thread(self.store.pin, owner, name, version)
        await self._tell(owner, before.digest, skill.digest, f"pinned {name}")
        await self._follow(owner, before.digest, skill.digest)
        return skill

    async def unpin(self, owner: str, name: str) -> SkillInfo:
        skill = await in_thread(self.store.unpin, owner, name)
        await self._tell(owner, skill.digest, skill.digest, f"unpinned {name}")
        return skill

    async def remove(self, owner: str, name: str) -> None:
        before = await in_thread(self.store.remove, owner, name)
        await self._tell(owner, before, "", f"removed {name}")
        await self._follow(owner, before, "")

    async def save(self, owner: str, name: str, box: "api.Box", path: str = "") -> SkillInfo:
        """What was edited in a box as a new version."""
        return await self.install(owner, await fetched_from(box, name, path), name=name)

    async def bind(self, owner: str, group: str, names: tuple[str, ...]) -> SkillBinding:
        binding = await in_thread(self.store.bind, owner, group, names)
        await self._tell(owner, "", "", f"bound {', '.join(binding.skills) or 'nothing'} to {group}")
        await self._follow(owner, "", "changed")
        return binding

    async def _changed(self, owner: str, skill: SkillInfo, before: str, verb: str) -> None:
        if before == skill.digest:
            return
        await self._tell(owner, before, skill.digest, f"{verb} {skill.name} from {skill.origin}")
        await self._follow(owner, before, skill.digest)

    async def _tell(self, owner: str, old: str, new: str, reason: str) -> None:
        await self._states.announce(
            Event(seq=0, at=time.time(), box_id=BoxId(""), owner=owner, kind=KIND, old=old, new=new, reason=reason)
        )

    async def _follow(self, owner: str, old: str, new: str) -> None:
        if old != new:
            for follow in self.followers:
                await follow(owner)


async def fetched_from(box: "api.Box", name: str, path: str = "") -> "Written":
    """A skill's working copy in a box, by default the directory `edit` of its state.

    Read file by file within a package's limits: the box decides what it says, and must not fill the host with it.
    """
    from hutch.skills.content import Budget
    from hutch.skills.manifest import MANIFEST, check_name
    from hutch.skills.skill_index import Origin
    from hutch.skills.sources import Written

    where = path or f"{STATE_AT}/{check_name(name)}/edit"
    files: dict[str, tuple[bytes, bool]] = {}
    await _gather(box.files, where, "", Budget(), files)
    if MANIFEST not in files:
        raise NotFound(
            f"there is no {MANIFEST} in {where} of box {box.id}",
            remedy=f"copy the skill there first: cp -r {INSTALLED_AT}/{name} {where}",
        )
    return Written(files, Origin(kind="box", place=box.id, path=where))


async def _gather(
    files: "api.Files", top: str, below: str, budget: "Budget", found: dict[str, tuple[bytes, bool]]
) -> None:
    from hutch.skills.content import LEFT_OUT, MOST_BYTES_IN_FILE, check_plain

    try:
        listed = await files.list(f"{top}/{below}" if below else top)
    except (FileMissing, NotDirectory):
        return
    for each in listed:
        last = posixpath.basename(each.path)
        name = f"{below}/{last}" if below else last
        if last in LEFT_OUT:
            continue
        check_plain(name)
        if each.kind is FileKind.DIRECTORY:
            await _gather(files, top, name, budget, found)
        elif each.kind is not FileKind.FILE:
            raise Refused(f"{name} is a {each.kind}, and a skill holds only files", remedy="put a copy in its place")
        else:
            data = await files.read(f"{top}/{name}", limit=MOST_BYTES_IN_FILE + 1)
            budget.add_file(name, len(data))
            found[name] = (data, bool(each.mode & 0o111))


async def scan(directory: str | Path) -> tuple[FoundSkill, ...]:
    """The skills in a tree of directories of this machine (B38)."""
    from hutch.skills import content

    return await in_thread(content.scan, Path(directory).absolute())


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Disk work. When cancelled it still waits for the step: half an installation is nobody's wish. What the disk
    refuses is a clean error, not a crash (B40)."""
    step = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step])
        raise
    except OSError as error:
        if isinstance(error, HutchError):
            raise
        raise _of_disk(error) from error


def _of_disk(error: OSError) -> HutchError:
    where = f" at {error.filename}" if error.filename else ""
    return FileFailed(
        f"the skill store cannot be used{where}: {error.strerror or error}", details={"errno": error.errno}
    )
