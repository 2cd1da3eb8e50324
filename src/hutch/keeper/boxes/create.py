"""Creation of boxes: capacity, intent, engine, running. Nothing remains of a box that failed on the way."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hutch import telemetry
from hutch.config import Config
from hutch.errors import Conflict, EngineError, HutchError, Unavailable
from hutch.keeper.boxes.clocks import orphan_grace, own_ttl
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord, ForkOrigin
from hutch.keeper.boxes.states import States
from hutch.keeper.capacity import Capacity
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.skills.mounts import SkillMounts, shows_skills
from hutch.keeper.takeover.liveness import Liveness
from hutch.keeper.volumes import Volumes, volumes_of
from hutch.logs import conceal, log
from hutch.model.boxes import EventCause, Lease, State
from hutch.model.ids import BoxId, new_box_id
from hutch.model.spec import CheckedMounts, EffectiveSpec, MountMode, Order, Spec, volume_of
from hutch.providers.base import Instance, InstanceRecord, Provider

Made = tuple[Instance, dict[str, Any]]
"""A box that its engine has made, and what else its record has to say."""
MakeInstance = Callable[[Order, InstanceRecord], Awaitable[Made]]


class Creator:
    """Creates and restores boxes. `boxes` is the keeper's own dictionary, to which new boxes are added."""

    def __init__(
        self,
        keeper: str,
        config: Config,
        states: States,
        engines: Engines,
        volumes: Volumes,
        skills: SkillMounts,
        capacity: Capacity,
        boxes: dict[BoxId, Live],
        liveness: Liveness,
    ) -> None:
        self._keeper = keeper
        self._config = config
        self._states = states
        self._engines = engines
        self._volumes = volumes
        self._skills = skills
        self._capacity = capacity
        self._boxes = boxes
        self._liveness = liveness

    async def create(self, spec: Spec, lease: Lease | None, owner: str, key: str) -> Live:
        """Return a running box. If its engine fails, the next one that may is tried.

        If none is left, or the caller is cancelled, nothing of the box remains.
        """
        failed: dict[str, str] = {}
        while True:
            with telemetry.step("hutch.create.policy"):
                provider, effective = await self._engines.decide(spec, failed)
            try:
                with telemetry.step("hutch.create", profile=effective.profile, provider=effective.provider):
                    live = await self._create_on(provider, effective, lease, owner, key)
            except (Unavailable, EngineError) as error:
                self._engines.record_failure(effective.provider, error.message)
                failed[effective.provider] = error.message
                if not self._engines.has_alternative(spec, failed):
                    raise
                log("keeper").warning("provider failed, another stands in", provider=effective.provider, error=error)
            else:
                self._engines.record_success(effective.provider)
                return live

    async def fork(self, source: Live, state: Awaitable[str], lease: Lease | None) -> Live:
        """Return a running box like `source` that begins with a state of its files."""
        record = source.record
        spec = record.spec.but(name="", secrets=_secrets_of(source))
        provider = self._engines.provider(record.instance.provider)

        async def make(order: Order, planned: InstanceRecord) -> Made:
            instance, start = await provider.fork(order, planned, source.running, state)
            return instance, {"origin": ForkOrigin(box_id=record.id, state=await state, start=start)}

        return await self._create_on(provider, spec, lease, record.owner, "", make)

    async def _create_on(
        self,
        provider: Provider,
        effective: EffectiveSpec,
        lease: Lease | None,
        owner: str,
        key: str,
        make: MakeInstance | None = None,
    ) -> Live:
        box_id = new_box_id()
        with telemetry.step("hutch.create.record"):
            # Capacity first: a volume named in the order must not be removed before the box counts as its user.
            async with self._capacity.reserve(box_id, owner, effective):
                live, order = await self._open(box_id, provider, effective, lease, owner, key)
        try:
            await self._boot(live, provider, order, make)
        except BaseException as error:
            if box_id in self._boxes:
                await run_uncancelled(self._abandon(live, provider, error))
            elif live.instance is not None:
                # Another keeper took this one for dead and removed the record before the engine had the box.
                await run_uncancelled(provider.destroy(live.instance.record))
            raise
        return live

    async def _open(
        self, box_id: BoxId, provider: Provider, effective: EffectiveSpec, lease: Lease | None, owner: str, key: str
    ) -> tuple[Live, Order]:
        """Write the record of a new box; return it with the order for the engine."""
        now = time.time()
        grace = orphan_grace(self._config, effective, key)
        order = await self.order(box_id, effective, owner, now, grace)
        record = BoxRecord(
            id=box_id, owner=owner, keeper=self._keeper, state=State.CREATING, spec=effective.shown(),
            instance=provider.plan(order), created_at=now, used_at=now, idempotency_key=key, lease=lease,
            labels=effective.labels, place="" if provider.portable else self._liveness.place,
            grace_sec=order.orphan_grace_sec, skills_mounted=shows_skills(order),
        )  # fmt: skip
        live = Live(record, secrets=tuple(effective.secrets.values()))
        conceal(live.secrets)

        def opened() -> None:
            """From then on this keeper must finish the box or clean it up."""
            self._boxes[box_id] = live

        try:
            await self._states.open(record, opened)
        except BaseException as error:
            if box_id in self._boxes:
                await run_uncancelled(self._abandon(live, provider, error))
            else:
                # The box has no record, but its mounts were prepared.
                await run_uncancelled(self._skills.on_destroyed(record))
            raise
        return live, order

    async def order(self, box_id: BoxId, spec: EffectiveSpec, owner: str, created_at: float, grace: float) -> Order:
        """Return the order for the engine, with the host mounts checked now: they may have changed since a stop."""
        places = self._engines.check_mounts(spec)
        if volumes_of(spec):
            places = await self._add_volumes(spec, owner, places)
        places = await self._skills.add_mount(box_id, spec, owner, places)
        grace = grace or self._config.orphan_grace_sec
        if spec.ttl_sec:
            spec = spec.but(ttl_sec=own_ttl(spec, created_at))
        return Order(box_id=box_id, keeper=self._keeper, spec=spec, places=places, orphan_grace_sec=grace, owner=owner)

    async def _add_volumes(self, spec: EffectiveSpec, owner: str, places: CheckedMounts) -> CheckedMounts:
        """Add the owner's volumes that the spec names. NotFound if there is no such volume."""
        workspace = spec.workspace
        volume = volume_of(workspace.source)
        if volume is not None and workspace.mode is not MountMode.NONE:
            places = places.but(workspace=await self._volumes.check_mount(volume, workspace.mode, owner))
        for mount in spec.mounts:
            volume = volume_of(mount.source)
            if volume is not None and mount.mode is not MountMode.NONE:
                checked = await self._volumes.check_mount(volume, mount.mode, owner, mount.target)
                places = places.but(mounts=(*places.mounts, checked))
        return places

    async def order_again(self, record: BoxRecord) -> Order:
        """Return the order for a box that existed before.

        The values of its secrets were never written, so it comes back without them: a program would take the mask
        that the record has in their place for a password.
        """
        if names := sorted(record.spec.secrets):
            log("keeper").warning("a restored box has no secrets: they are not kept", box=record.id, names=names)
        spec = record.spec.but(secrets={})
        return await self.order(record.id, spec, record.owner, record.created_at, record.grace_sec)

    async def restore(self, live: Live) -> None:
        """Start a stopped persistent box again, with its files."""
        async with live.state_lock:
            if live.record.state is not State.STOPPED:
                return
            if live.record.sealed_env:
                raise Unavailable(
                    f"box {live.record.id} cannot start: its environment is sealed with a key that is not here",
                    retryable=False, remedy="put the state directory's state.key back from the backup",
                )  # fmt: skip
            await self._states.change(live.record, State.RESTORING, into=live, reason="used")
            provider = self._engines.provider(live.record.instance.provider)
            try:
                order = await self.order_again(live.record)
                live.instance = await provider.restore(order, live.record.instance)
            except HutchError as error:
                await self._states.change(live.record, State.STOPPED, into=live, reason=error.message)
                raise
            await self._states.change(
                live.record, State.RUNNING, into=live, reason="restored", instance=live.instance.record,
                skills_mounted=shows_skills(order),
            )  # fmt: skip
        await self._skills.ensure_shown(live)

    async def _boot(self, live: Live, provider: Provider, order: Order, make: MakeInstance | None) -> None:
        fields: dict[str, Any] = {}
        with telemetry.step("hutch.create.engine", provider=provider.name):
            if make is None:
                live.instance = await provider.create(order, live.record.instance)
            else:
                live.instance, fields = await make(order, live.record.instance)
        async with live.state_lock:
            with telemetry.step("hutch.create.running"):
                await self._states.change(
                    live.record, State.RUNNING, into=live, reason="created", instance=live.instance.record, **fields
                )
        live.last_checked = time.monotonic()

    async def _abandon(self, live: Live, provider: Provider, error: BaseException) -> None:
        """Clean up after a failed creation: resources first, then the record; then the quota is free again."""
        cancelled = isinstance(error, asyncio.CancelledError)
        reason = "creation was cancelled" if cancelled else f"creation failed: {error}"
        async with live.state_lock:
            if live.record.id not in self._boxes:
                return  # It failed because somebody destroyed it meanwhile.
            try:
                ours = await self._doom(live, reason, error)
                if live.instance is not None:
                    await live.instance.close()
                    live.instance = None
                await provider.destroy(live.record.instance)
                if ours:
                    await self._states.forget(live.record, reason, EventCause.CREATION_FAILED)
                del self._boxes[live.record.id]
                self._capacity.notify_freed()
                await self._skills.on_destroyed(live.record)
            except HutchError as problem:
                log("keeper").error("half-made box not removed", box=live.record.id, error=str(problem))

    async def _doom(self, live: Live, reason: str, error: BaseException) -> bool:
        """Mark the box as being destroyed. False means that another keeper has taken the record over.

        That keeper took this one for dead and destroys the half-made box, perhaps before the engine had it, so this
        keeper destroys it too.
        """
        if live.record.state is State.STOPPING:
            return True
        try:
            await self._states.change(
                live.record, State.STOPPING, into=live, reason=reason, cause=EventCause.CREATION_FAILED, doomed=True
            )
        except Conflict:
            if isinstance(error, Unavailable):
                raise  # The record may already describe a finished box.
            return False
        return True


def _secrets_of(live: Live) -> dict[str, str]:
    """The secrets of a box that this keeper has created itself; they are never written, so others do not know them."""
    names = live.record.spec.secrets
    if len(names) == len(live.secrets):
        return dict(zip(names, live.secrets, strict=True))
    log("keeper").warning("a fork has no secrets: they are not kept", box=live.record.id, names=sorted(names))
    return {}
