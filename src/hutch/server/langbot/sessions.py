"""LangBot's sessions: each is a box, found by the session's physical id and described by the box's labels."""

import asyncio
import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from hutch.errors import Conflict, FileMissing, Gone, Invalid, NotFound
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.locks import KeyedLocks
from hutch.model.boxes import BoxInfo, EventCause
from hutch.model.limits import LimitsAsked
from hutch.model.spec import EffectiveSpec, Mount, MountMode, NetworkMode, Spec, Workspace
from hutch.policy import rights
from hutch.policy.mounts import granted
from hutch.server.auth import Caller
from hutch.server.keyed_boxes import KeyedBoxes, bots_profile
from hutch.server.langbot.artifacts import Artifacts
from hutch.server.langbot.messages import (
    ARTIFACTS,
    DEFAULT_IMAGE,
    SESSION_FIELDS,
    BoxFailure,
    BoxSpec,
    Context,
    Limits,
)
from hutch.server.langbot.shared_roots import SharedRoots
from hutch.server.service import Service

BACKEND = "hutch"
SESSION_TTL_SECONDS = 300
"""A session that nobody uses for so long ends, unless it is persistent or a process runs in it."""
MAX_WORKSPACES = 4096
"""Workspaces of one owner whose generation is remembered."""
_LABEL = "langbot."
_MAX_LABEL = 256
_IMAGE_FORMS = ("host", "dir:", "tar:", "oci:")


class Sessions:
    """Finds, creates, lists and ends sessions."""

    def __init__(self, service: Service, roots: SharedRoots) -> None:
        self._service = service
        self._keeper = service.keeper
        self._roots = roots
        self.artifacts = Artifacts(roots)
        self.boxes = KeyedBoxes(service.keeper)
        self._opening = KeyedLocks()
        """A lock for each session, so that two commands which begin it at once get the same box."""
        self._generations: dict[str, dict[str, int]] = {}
        """The newest generation of each owner's workspaces, but for those that are at their first one."""

    async def open(self, caller: Caller, context: Context, spec: BoxSpec, limits: Limits) -> Live:
        """Return the box of the session, which is created if need be, with the skills that the spec names.

        A session whose box broke is made again. Raises Conflict if the session lives with another spec.
        """
        physical = context.physical(spec.session_id)
        async with self._opening.lock(caller.owner, physical):
            live = await self.boxes.find_usable(caller.owner, _key(physical))
            if live is None:
                live = await self._create(caller, context, physical, spec, limits)
            else:
                _check_same(live.record.spec, physical, spec)
        await self.artifacts.prepare(context.namespace, spec)
        return live

    async def find(self, caller: Caller, context: Context, session_id: str) -> Live:
        """Return the box of a session. Raises NotFound."""
        return await self.find_physical(caller, context.physical(session_id))

    async def find_physical(self, caller: Caller, physical: str) -> Live:
        live = await self.boxes.find(caller.owner, _key(physical))
        if live is None:
            raise NotFound(f"session {physical} not found")
        return live

    async def of_instance(self, caller: Caller, instance: str) -> list[BoxInfo]:
        """List the boxes of all sessions of one LangBot."""
        return [box for box in await self._all(caller) if box.spec.labels[f"{_LABEL}instance"] == instance]

    async def of_placement(self, caller: Caller, context: Context) -> list[BoxInfo]:
        """List the boxes of one workspace and generation."""
        return [
            box
            for box in await self._all(caller)
            if box.spec.labels[f"{_LABEL}namespace"] == context.namespace
            and box.spec.labels[f"{_LABEL}generation"] == str(context.placement_generation)
        ]

    async def destroy(self, box_id: str, reason: str) -> None:
        try:
            await self._keeper.destroy(box_id, reason, EventCause.CALL)
        except (Gone, NotFound):
            return  # Somebody else was faster.

    async def destroy_all(self, boxes: list[BoxInfo], reason: str) -> None:
        rights.require(rights.current(), rights.Action.DESTROY)
        await asyncio.gather(*(self.destroy(box.id, reason) for box in boxes))

    def describe(self, record: BoxInfo | BoxRecord) -> dict[str, Any]:
        """Render a session. Its values are those that were asked for: LangBot sends them with every later command."""
        labels = record.spec.labels
        live = self._keeper.held(record.id)
        used_at = datetime.now(UTC) if live is not None and live.pins else _time(getattr(record, "used_at", 0.0))
        asked = {name: msgspec.json.decode(labels[_LABEL + name]) for name in SESSION_FIELDS}
        return {
            "session_id": labels[f"{_LABEL}session"],
            "backend_name": BACKEND,
            "backend_session_id": record.id,
            **asked,
            "created_at": _time(record.created_at),
            "last_used_at": max(used_at, _time(record.created_at)),
            "status": "running" if live is not None and live.pins else "idle",
        }

    # --- generations ----------------------------------------------------------------------------------------

    async def fence(self, caller: Caller, context: Context) -> None:
        """Refuse a workspace's older generation, and end its sessions when a newer one appears."""
        known = self._generations.setdefault(caller.owner, {})
        newest = known.get(context.namespace, 1)
        if context.placement_generation < newest:
            raise BoxFailure("PermissionError", "Stale Box placement generation")
        if context.placement_generation > newest:
            known[context.namespace] = context.placement_generation
            while len(known) > MAX_WORKSPACES:
                del known[next(iter(known))]
            stale = [
                box
                for box in await self._all(caller)
                if box.spec.labels[f"{_LABEL}namespace"] == context.namespace
                and int(box.spec.labels[f"{_LABEL}generation"]) < context.placement_generation
            ]
            await self.destroy_all(stale, "its workspace has a newer generation")

    # --- creation -------------------------------------------------------------------------------------------

    async def _create(self, caller: Caller, context: Context, physical: str, spec: BoxSpec, limits: Limits) -> Live:
        if len(await self.of_instance(caller, context.instance_uuid)) >= limits.max_sessions:
            raise BoxFailure("BoxCapacityExceededError", f"Box session capacity reached ({limits.max_sessions})")
        rights.require(rights.current(), rights.Action.CREATE)  # Before directories are made for it.
        wanted = await self._wanted(caller, context, spec)
        labels = {
            f"{_LABEL}instance": context.instance_uuid,
            f"{_LABEL}namespace": context.namespace,
            f"{_LABEL}generation": str(context.placement_generation),
            f"{_LABEL}session": physical.removeprefix(context.prefix),
            f"{_LABEL}mounts": _mounts_digest(spec),
        }
        for name in SESSION_FIELDS:
            labels[_LABEL + name] = text = msgspec.json.encode(getattr(spec, name)).decode()
            if len(text) > _MAX_LABEL:
                raise Invalid(f"{name} has more than {_MAX_LABEL} characters")
        try:
            with granted(*self._roots.paths, read_only=self.artifacts.trees):
                return await self.boxes.create(caller, _key(physical), wanted.but(labels=labels))
        except (NotFound, FileMissing) as error:  # The image, which is not to look like a missing session.
            raise Invalid(error.message, remedy=error.remedy) from error

    async def _wanted(self, caller: Caller, context: Context, spec: BoxSpec) -> Spec:
        workspace = Workspace()
        mounts: tuple[Mount, ...] = ()
        if spec.host_path is not None and spec.host_path_mode != "none":
            mode = MountMode(spec.host_path_mode)
            if await self._roots.make_directory(spec.host_path):
                workspace = Workspace(source=spec.host_path, mode=mode)
                if directory := await self.artifacts.directory(context.namespace, spec.host_path):
                    mounts = (Mount(source=directory, target=ARTIFACTS, mode=MountMode.RO),)
            else:
                workspace = Workspace(source=f"volume:{await self._volume(caller, context.namespace)}", mode=mode)
        others = [mount for mount in spec.extra_mounts if not mount.is_artifact]
        for mount in others:
            self._roots.check(mount.host_path)
        mounts += tuple(
            Mount(source=each.host_path, target=each.mount_path, mode=MountMode(each.mode)) for each in others
        )
        return Spec(
            profile=bots_profile(self._service.config),
            image=_image(spec.image),
            workspace=workspace,
            mounts=mounts,
            network=NetworkMode(spec.network),
            limits=LimitsAsked(
                cpus=spec.cpus, memory_mb=spec.memory_mb, pids=spec.pids_limit, disk_mb=spec.workspace_quota_mb or None
            ),
            # A root that need not be read-only is as the profile has it. LangBot's commands run as an ordinary user,
            # who can write to the same places either way, so a machine without writable roots need not refuse.
            read_only_root=spec.read_only_rootfs or None,
            idle_timeout_sec=0 if spec.persistent else SESSION_TTL_SECONDS,
        )

    async def _volume(self, caller: Caller, namespace: str) -> str:
        """Return the volume that all sessions of the workspace share, which is created for the first of them."""
        name = f"langbot-{namespace}"
        try:
            await self._keeper.volumes.get(name, caller.owner)
        except NotFound:
            with suppress(Conflict):  # Another session of the workspace may create it meanwhile.
                await self._keeper.volumes.create(name, caller.owner)
        return name

    async def _all(self, caller: Caller) -> list[BoxInfo]:
        """List the boxes of all sessions; a fork of one has its labels too, and is none."""
        boxes = await self._keeper.views.boxes(caller.owner)
        return [box for box in boxes if (key := _key_of(box)) and await self.boxes.id_of(caller.owner, key) == box.id]


def _key(physical: str) -> str:
    return f"langbot:{physical}"


def _key_of(box: BoxInfo) -> str:
    """Return the key of the session that a box's labels name; empty if they name none."""
    labels = [box.spec.labels.get(_LABEL + name, "") for name in ("namespace", "generation", "session")]
    return _key("{}-g{}-{}".format(*labels)) if all(labels) else ""


def _check_same(live: EffectiveSpec, physical: str, spec: BoxSpec) -> None:
    """Raise Conflict if the session was created with other values."""
    for name in SESSION_FIELDS:
        kept = msgspec.json.decode(live.labels[_LABEL + name])
        if kept != msgspec.to_builtins(getattr(spec, name)):
            raise Conflict(f"Box session {physical} already exists with {name}={kept}")
    if live.labels[f"{_LABEL}mounts"] != _mounts_digest(spec):
        raise Conflict(f"Box mounts differ from those of the live session {physical}")


def _mounts_digest(spec: BoxSpec) -> str:
    """Name the mounts that are fixed for a session's life; skills are not, as they come and go."""
    fixed = [mount.to_plain() for mount in spec.extra_mounts if not mount.is_artifact]
    return hashlib.sha256(msgspec.json.encode(fixed)).hexdigest()


def _image(asked: str) -> str | None:
    """Return the image: LangBot's own default means Hutch's default, any other name is one of a registry."""
    if asked in ("", DEFAULT_IMAGE):
        return None
    return asked if asked.startswith(_IMAGE_FORMS) else f"oci:{asked}"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
