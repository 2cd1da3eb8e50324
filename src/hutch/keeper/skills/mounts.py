"""Skills in boxes: each box mounts a view of its owner's skills, or gets copies where nothing can be mounted.

An owner without skills pays nothing for them at creation: the first skill is mounted into existing boxes where the
engine can do that. Elsewhere it is copied, and the copy is renewed whenever the skill is prepared.

The directory `.skills` that a mount needs is created in the box's own store. In a workspace that is a directory of the
host it is created there, empty, and removed again when the last box of that workspace was destroyed.
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
from hutch.model.boxes import Event, State
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.skills import INSTALLED_AT, NO_SKILL, STATE_AT, SkillPlace
from hutch.model.spec import CheckedMount, CheckedMounts, EffectiveSpec, MountMode, Order
from hutch.skills.view_paths import has_own_view, keeps_skills, stale_marker, view_path

if TYPE_CHECKING:
    from hutch import api
    from hutch.keeper.skills.builds import BuildBoxes, CreateBox, DestroyBox

MOUNT_POINT = os.path.basename(INSTALLED_AT)
KIND = "skill mount point"
"""The kind of notes about directories that were created in workspaces of the host."""
COPY_SECONDS = 120.0


class MountPoint(Record, frozen=True, kw_only=True):
    """The workspace for which a directory was created, as boxes name it."""

    source: str
    owner: str


class SkillMounts:
    """Shows skills in the boxes of one keeper."""

    def __init__(
        self, skills: Skills, store: Store, states: States, engines: Engines, boxes: dict[BoxId, Live],
        inventory: Inventory, create: "CreateBox", destroy: "DestroyBox",
    ) -> None:  # fmt: skip
        self._skills = skills
        self._store = store
        self._states = states
        self._engines = engines
        self._boxes = boxes
        self._inventory = inventory
        self._create = create
        self._destroy = destroy
        self._copied: dict[BoxId, dict[str, str]] = {}
        """The skills and versions that each box has as copies."""
        self._copying = KeyedLocks()
        """A lock for each box while its copies are updated: two updates at once would undo each other."""
        self._mount_points = KeyedLocks()
        """A lock for each workspace while its mount point and the note of it are created or removed together."""
        skills.followers.append(self._on_skills_changed)

    @cached_property
    def builds(self) -> "BuildBoxes":
        from hutch.keeper.skills.builds import BuildBoxes  # rarely needed, and slow to load

        return BuildBoxes(self._skills, self._create, self._destroy)

    # --- a box's life ---------------------------------------------------------------------------------------

    async def add_mount(self, box_id: BoxId, spec: EffectiveSpec, owner: str, mounts: CheckedMounts) -> CheckedMounts:
        """Add the view of the owner's skills to a new box's mounts, if there are skills and the engine can mount."""
        if (
            spec.skills == NO_SKILL
            or not self._has_skills(owner)
            or not (await self._engines.capabilities(spec.provider)).mounts
        ):
            return mounts
        if mounts.workspace is not None and not await self._create_mount_point(mounts.workspace, spec, box_id, owner):
            return mounts
        # A box of the pool has no owner yet: it gets a view of its own, which is filled when it is claimed.
        if owner == POOL_OWNER:
            view = await in_thread(self._skills.store.box_view, box_id)
        else:
            view = view_path(self._skills.root, owner, spec.skills)
            if not view.is_dir() or stale_marker(self._skills.root, owner).exists():
                view = await in_thread(self._skills.store.view, owner, spec.skills)
        return mounts.but(mounts=(*mounts.mounts, _mount_of(view)))

    async def ensure_shown(self, live: Live) -> None:
        """Mount the owner's skills in a running box that does not show them yet, or copy them if mounting fails.

        Skills are never copied into a workspace of the host, where others would find files that they did not put there.
        """
        if not self._uses_copies(live.record) or not self._has_skills(live.record.owner):
            return
        async with self._copying.lock(live.record.id):
            if live.record.id in self._copied or not await self._mount_late(live):
                await self._copy(live)

    async def _mount_late(self, live: Live) -> bool:
        """Mount the view in a box that was created before its owner's first skill.

        False if the engine mounts only at creation, or another file is in the way.
        """
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

    def _uses_copies(self, record: BoxRecord) -> bool:
        """Whether the box shows copies of skills."""
        return not record.skills_mounted and record.spec.skills != NO_SKILL and record.spec.workspace.source == "own"

    async def on_adopted(self, live: Live) -> None:
        """Update a box that this keeper took over: its skills may have changed while no keeper had it."""
        record = live.record
        if not record.skills_mounted and record.id not in self._copied and record.state is State.RUNNING:
            await self.ensure_shown(live)

    async def on_claimed(self, live: Live) -> None:
        """Show its new owner's skills in a box of the pool."""
        record = live.record
        if record.skills_mounted:
            await in_thread(self._skills.store.assign_box_view, record.id, record.owner, record.spec.skills)
        else:
            await self.ensure_shown(live)

    def _has_skills(self, owner: str) -> bool:
        return keeps_skills(self._skills.root, None if owner == POOL_OWNER else owner)

    async def on_destroyed(self, record: BoxRecord) -> None:
        """Remove a destroyed box's own view, and the mount point that was created for it in the host's directory."""
        self._copied.pop(record.id, None)
        if has_own_view(self._skills.root, record.owner, record.id):
            await in_thread(self._skills.store.drop_box_view, record.id, record.owner)
        if record.spec.workspace.source == "own":
            return
        for real, body in (await self._store.notes(KIND)).items():
            if _uses_workspace(record, real, body):
                await self._remove_mount_point(record.id, real, body)

    # --- a workspace of the host ----------------------------------------------------------------------------

    async def _remove_mount_point(self, box_id: BoxId, real: str, body: bytes) -> None:
        """Remove the mount point unless another box uses it: removing the directory would remove a live mount too."""
        async with self._mount_points.lock(real):
            boxes = await self._inventory.all()
            if any(_uses_workspace(box, real, body) for other, box in boxes.items() if other != box_id):
                return
            # There is no `await` since the check, so a box that comes next creates the directory again.
            with suppress(OSError):  # it is not empty any more, or gone: then it is not ours to remove
                os.rmdir(os.path.join(real, MOUNT_POINT))
            await self._store.drop_note(KIND, real)

    async def _create_mount_point(
        self, workspace: CheckedMount, spec: EffectiveSpec, box_id: BoxId, owner: str
    ) -> bool:
        """Create the directory to mount on; False if that is impossible. Files under that name are never covered."""
        async with self._mount_points.lock(workspace.real):
            try:
                created = _make_mount_point(workspace)
            except (OSError, HutchError) as error:
                reason = getattr(error, "message", None) or f"{MOUNT_POINT} cannot be made there: {error}"
                await self._warn(box_id, owner, f"{workspace.real} shows no skills: {reason}")
                return False
            if created:
                note = MountPoint(source=spec.workspace.source, owner=owner)
                await self._store.put_note(KIND, workspace.real, note.to_json())
            return True

    # --- copies, where nothing can be mounted ---------------------------------------------------------------

    async def _on_skills_changed(self, owner: str) -> None:
        """Update the owner's running boxes; those with mounts show the change by themselves."""
        for live in list(self._boxes.values()):
            record = live.record
            if record.owner == owner and record.state is State.RUNNING and live.instance is not None:
                await self.ensure_shown(live)

    async def _copy(self, live: Live) -> None:
        """Copy the skills, holding the box's lock. A failure is only an event: the box is usable without them."""
        record = live.record
        try:
            async with asyncio.timeout(COPY_SECONDS):
                await self._update_copies(live)
        except (HutchError, OSError, TimeoutError) as error:
            reason = str(error) or f"it took more than {COPY_SECONDS:g} s"
            log("keeper").warning("skills not copied", box=record.id, error=reason)
            await self._warn(record.id, record.owner, f"its skills could not be copied into it: {reason}")

    async def _update_copies(self, live: Live) -> None:
        record, files = live.record, live.running.files
        view = await in_thread(self._skills.store.view, record.owner, record.spec.skills)
        wanted = await in_thread(self._skills.store.views.content, record.owner, record.spec.skills)
        present = self._copied.setdefault(record.id, {})
        for name in sorted(present.keys() - wanted.keys()):
            await files.remove(f"{INSTALLED_AT}/{name}", recursive=True, missing_ok=True)
            del present[name]
        for name, version in wanted.items():
            if present.get(name) != version:
                await files.remove(f"{INSTALLED_AT}/{name}", recursive=True, missing_ok=True)
                await files.copy_in(view / name, f"{INSTALLED_AT}/{name}")
                present[name] = version

    async def _refresh_copy(self, box_id: str, name: str) -> None:
        """Copy a skill again before its use: the box's user owns the copy and may have changed it."""
        live = self._boxes.get(BoxId(box_id))
        if live is None or not self._uses_copies(live.record) or name not in self._copied.get(live.record.id, {}):
            return
        async with self._copying.lock(live.record.id):
            del self._copied[live.record.id][name]
            await self._update_copies(live)

    async def _warn(self, box_id: BoxId, owner: str, reason: str) -> None:
        await self._states.announce(
            Event(seq=0, at=time.time(), box_id=box_id, owner=owner, kind="warning", reason=reason)
        )

    # --- one skill in one box -------------------------------------------------------------------------------

    async def prepare(self, owner: str, name: str, box: "api.Box") -> SkillPlace:
        """Install its dependencies, once for all boxes, and create its state directory here. A failure is a warning."""
        from hutch.skills import dependencies

        skill = await in_thread(self._skills.store.get, owner, name)
        warning = await self.builds.prepare(owner, skill.name, skill.digest)
        warnings = [warning] if warning else []
        state = f"{STATE_AT}/{name}"
        if box.spec.workspace.mode is not MountMode.RW:
            state = f"/tmp/.skills-state/{name}"
        await box.files.mkdir(state)
        await self._refresh_copy(box.id, name)
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


def _uses_workspace(box: BoxRecord | InventoryEntry, real: str, body: bytes) -> bool:
    source = box.spec.workspace.source
    if source.startswith("volume:"):
        return MountPoint.from_json(body) == MountPoint(source=source, owner=box.owner)
    return source != "own" and os.path.realpath(source) == real


def _make_mount_point(workspace: CheckedMount) -> bool:
    """Create the directory; False if an empty one was there already."""
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
