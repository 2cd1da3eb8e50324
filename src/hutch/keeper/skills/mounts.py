"""Skills in boxes: the view each box mounts, through the box's life, and copies where nothing can be mounted.

An owner without any skill pays nothing for them when a box is made: the first skill is mounted into the boxes that are
there, where the engine can do that. Else it is copied, and the copy is brought anew whenever the skill is prepared.

The directory `.skills` that a mount needs is made in the box's own store. In a workspace that is a directory of the
host it has to be made there: an empty one, which is removed again when the last box of that workspace has gone.
"""

import asyncio
import errno
import os
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import FileThere, HutchError, Unsupported
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import POOL_OWNER, BoxRecord
from hutch.keeper.boxes.states import States
from hutch.keeper.capacity import Inventory, InventoryEntry
from hutch.keeper.engines import Engines
from hutch.keeper.locks import KeyedLocks
from hutch.keeper.skills.skills import Skills, in_thread
from hutch.keeper.store.store import Store
from hutch.logs import log
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.skills import INSTALLED_AT, NO_SKILL, STATE_AT, SkillPlace
from hutch.model.spec import CheckedMount, CheckedMounts, EffectiveSpec, MountMode, Order
from hutch.model.state import State
from hutch.skills.view_paths import has_own_view, keeps_skills, stale_marker, view_path

if TYPE_CHECKING:
    from hutch import api
    from hutch.keeper.skills.builds import End, Make, Workshop

MOUNT_POINT = os.path.basename(INSTALLED_AT)
KIND = "skill mount point"
"""Of notes: directories that we have made in workspaces of the host."""
COPY_SECONDS = 120.0


class MountPoint(Record, frozen=True, kw_only=True):
    """For which workspace, as boxes name it, a directory was made."""

    source: str
    owner: str


class SkillBoxes:
    """One for a keeper, over the boxes in its hands."""

    def __init__(
        self, skills: Skills, store: Store, states: States, engines: Engines, boxes: dict[BoxId, Live],
        inventory: Inventory, make: "Make", end: "End",
    ) -> None:  # fmt: skip
        self._skills = skills
        self._store = store
        self._states = states
        self._engines = engines
        self._boxes = boxes
        self._inventory = inventory
        self._make = make
        self._end = end
        self._copied: dict[BoxId, dict[str, str]] = {}
        """Where they are not mounted: which version of which skill each box has."""
        self._copying = KeyedLocks()
        """By box, while its copies are brought up to date: two at once would remove what the other brings."""
        self._mount_points = KeyedLocks()
        """By workspace, while its mount point and the note of it are made or removed: they are there together."""
        skills.followers.append(self._follow)

    @cached_property
    def workshop(self) -> "Workshop":
        from hutch.keeper.skills.builds import Workshop  # rarely needed, and slow to load

        return Workshop(self._skills, self._make, self._end)

    # --- a box's life ---------------------------------------------------------------------------------------

    async def place(self, box_id: BoxId, spec: EffectiveSpec, owner: str, places: CheckedMounts) -> CheckedMounts:
        """The box's places with its skills among them, where the engine can mount and its owner has any."""
        if (
            spec.skills == NO_SKILL
            or not self._any(owner)
            or not (await self._engines.capabilities(spec.provider)).mounts
        ):
            return places
        if places.workspace is not None and not await self._mount_point(places.workspace, spec, box_id, owner):
            return places
        # A box of the pool has no owner yet: it gets a view of its own, which becomes one of its owner's.
        if owner == POOL_OWNER:
            view = await in_thread(self._skills.store.box_view, box_id)
        else:
            view = view_path(self._skills.root, owner, spec.skills)
            if not view.is_dir() or stale_marker(self._skills.root, owner).exists():
                view = await in_thread(self._skills.store.view, owner, spec.skills)
        return places.but(mounts=(*places.mounts, _mount_of(view)))

    async def settle(self, live: Live) -> None:
        """A box has come up, or skills have: where they are not mounted yet, they are now, or copied in if that cannot
        be done (P11). Never in a workspace that others have too: they would find there what they did not put."""
        if not self._copies(live.record) or not self._any(live.record.owner):
            return
        async with self._copying.lock(live.record.id):
            if live.record.id in self._copied or not await self._mounted_late(live):
                await self._copy(live)

    async def _mounted_late(self, live: Live) -> bool:
        """The view of a box that was made before its owner's first skill. False: its engine mounts only when it makes a
        box, or there is something in the way."""
        record = live.record
        if not (await self._engines.capabilities(record.instance.provider)).mounts:
            return False
        try:
            view = await in_thread(self._skills.store.view, record.owner, record.spec.skills)
            await live.running.show(_mount_of(view))
        except Unsupported:
            return False
        except (HutchError, OSError) as error:
            log("keeper").info("skills not mounted in a live box", box=record.id, error=str(error))
            return False
        async with live.state_lock:
            await self._states.update(live.record, into=live, skills_mounted=True)
        return True

    def _copies(self, record: BoxRecord) -> bool:
        """Whether what the box shows of skills are copies."""
        return not record.skills_mounted and record.spec.skills != NO_SKILL and record.spec.workspace.source == "own"

    async def arrived(self, live: Live) -> None:
        """A box came into this keeper's hands: its skills may have changed while nobody had it."""
        record = live.record
        if not record.skills_mounted and record.id not in self._copied and record.state is State.RUNNING:
            await self.settle(live)

    async def claimed(self, live: Live) -> None:
        """A box of the pool has an owner now."""
        record = live.record
        if record.skills_mounted:
            await in_thread(self._skills.store.assign_box_view, record.id, record.owner, record.spec.skills)
        else:
            await self.settle(live)

    def _any(self, owner: str) -> bool:
        return keeps_skills(self._skills.root, None if owner == POOL_OWNER else owner)

    async def gone(self, record: BoxRecord) -> None:
        """A box was destroyed: its own view goes, and the mount point that we made for it in the host's directory."""
        self._copied.pop(record.id, None)
        if has_own_view(self._skills.root, record.owner, record.id):
            await in_thread(self._skills.store.drop_box_view, record.id, record.owner)
        if record.spec.workspace.source == "own":
            return
        for real, body in (await self._store.notes(KIND)).items():
            if _works_in(record, real, body):
                await self._drop_mount_point(record.id, real, body)

    # --- a workspace of the host ----------------------------------------------------------------------------

    async def _drop_mount_point(self, box_id: BoxId, real: str, body: bytes) -> None:
        """Unless another box has it, or has been told that it is there: removed under a live mount, the directory
        would take the mount with it."""
        async with self._mount_points.lock(real):
            boxes = await self._inventory.all()
            if any(_works_in(box, real, body) for other, box in boxes.items() if other != box_id):
                return
            # Without an `await` since the look: whoever comes next makes it anew.
            with suppress(OSError):  # not empty any more, or gone: then it is not ours to remove
                os.rmdir(os.path.join(real, MOUNT_POINT))
            await self._store.drop_note(KIND, real)

    async def _mount_point(self, workspace: CheckedMount, spec: EffectiveSpec, box_id: BoxId, owner: str) -> bool:
        """Whether there is an empty directory to mount on, made now if need be. What people keep under that name is
        never covered."""
        async with self._mount_points.lock(workspace.real):
            try:
                made = _make_mount_point(workspace)
            except (OSError, HutchError) as error:
                reason = getattr(error, "message", None) or f"{MOUNT_POINT} cannot be made there: {error}"
                await self._warn(box_id, owner, f"{workspace.real} shows no skills: {reason}")
                return False
            if made:
                note = MountPoint(source=spec.workspace.source, owner=owner)
                await self._store.put_note(KIND, workspace.real, note.to_json())
            return True

    # --- copies, where nothing can be mounted ---------------------------------------------------------------

    async def _follow(self, owner: str) -> None:
        """Skills of this owner have changed; boxes with mounts see it by themselves."""
        for live in list(self._boxes.values()):
            record = live.record
            if record.owner == owner and record.state is State.RUNNING and live.instance is not None:
                await self.settle(live)

    async def _copy(self, live: Live) -> None:
        """In the box's turn. Best effort: a box without its skills is still a box; an event says what is missing."""
        record = live.record
        try:
            async with asyncio.timeout(COPY_SECONDS):
                await self._bring(live)
        except (HutchError, OSError, TimeoutError) as error:
            reason = str(error) or f"it took more than {COPY_SECONDS:g} s"
            log("keeper").warning("skills not copied", box=record.id, error=reason)
            await self._warn(record.id, record.owner, f"its skills could not be copied into it: {reason}")

    async def _bring(self, live: Live) -> None:
        record, files = live.record, live.running.files
        view = await in_thread(self._skills.store.view, record.owner, record.spec.skills)
        wanted = await in_thread(self._skills.store.views.content, record.owner, record.spec.skills)
        there = self._copied.setdefault(record.id, {})
        for name in sorted(there.keys() - wanted.keys()):
            await files.remove(f"{INSTALLED_AT}/{name}", recursive=True, missing_ok=True)
            del there[name]
        for name, version in wanted.items():
            if there.get(name) != version:
                await files.remove(f"{INSTALLED_AT}/{name}", recursive=True, missing_ok=True)
                await files.copy_in(view / name, f"{INSTALLED_AT}/{name}")
                there[name] = version

    async def _renew(self, box_id: str, name: str) -> None:
        """Before a copy is used it is brought anew: the box's user owns it, and may have changed what it does."""
        live = self._boxes.get(BoxId(box_id))
        if live is None or not self._copies(live.record) or name not in self._copied.get(live.record.id, {}):
            return
        async with self._copying.lock(live.record.id):
            del self._copied[live.record.id][name]
            await self._bring(live)

    async def _warn(self, box_id: BoxId, owner: str, reason: str) -> None:
        await self._states.announce(
            Event(seq=0, at=time.time(), box_id=box_id, owner=owner, kind="warning", reason=reason)
        )

    # --- one skill in one box -------------------------------------------------------------------------------

    async def prepare(self, owner: str, name: str, box: "api.Box") -> SkillPlace:
        """Its dependencies, once for all boxes; its state directory in this box. What fails is a warning."""
        from hutch.skills import dependencies

        skill = await in_thread(self._skills.store.get, owner, name)
        warning = await self.workshop.prepare(owner, skill.name, skill.digest)
        warnings = [warning] if warning else []
        state = f"{STATE_AT}/{name}"
        if box.spec.workspace.mode is not MountMode.RW:
            state = f"/tmp/.skills-state/{name}"
        await box.files.mkdir(state)
        await self._renew(box.id, name)
        path = f"{INSTALLED_AT}/{name}"
        if not await box.files.exists(path):
            warnings.append(f"box {box.id} does not show it: its skills are {box.spec.skills!r}")
        env = {"SKILL_DIR": path, "SKILL_STATE": state}
        if not warning:
            env |= dependencies.environment(name, skill.dependencies)
        return SkillPlace(
            name=name, digest=skill.digest, path=path, state=state, env=env, warnings=tuple(warnings)
        )  # fmt: skip


def _mount_of(view: Path) -> CheckedMount:
    found = os.stat(view)
    return CheckedMount(
        real=os.path.realpath(view), target=INSTALLED_AT, mode=MountMode.RO, dev=found.st_dev, ino=found.st_ino,
        public=True,
    )  # fmt: skip


def shows_skills(order: Order) -> bool:
    return any(mount.target == INSTALLED_AT for mount in order.places.mounts)


def _works_in(box: BoxRecord | InventoryEntry, real: str, body: bytes) -> bool:
    source = box.spec.workspace.source
    if source.startswith("volume:"):
        return MountPoint.from_json(body) == MountPoint(source=source, owner=box.owner)
    return source != "own" and os.path.realpath(source) == real


def _make_mount_point(workspace: CheckedMount) -> bool:
    """True: it was made now."""
    top = os.open(workspace.real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(top)
        if (facts.st_dev, facts.st_ino) != (workspace.dev, workspace.ino):
            raise OSError(errno.ESTALE, "the workspace was replaced after it had been allowed")
        try:
            os.mkdir(MOUNT_POINT, 0o755, dir_fd=top)
        except FileExistsError:
            inner = os.open(MOUNT_POINT, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                if os.listdir(inner):
                    raise FileThere(f"it has a directory {MOUNT_POINT} of its own, which is not covered") from None
            finally:
                os.close(inner)
            return False
        if os.geteuid() == 0:
            os.chown(MOUNT_POINT, facts.st_uid, facts.st_gid, dir_fd=top, follow_symlinks=False)
        return True
    finally:
        os.close(top)
