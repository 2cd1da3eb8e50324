"""How a box comes to be: room, intent, engine, running; and nothing left of one that failed on the way."""

import asyncio
import time

from hutch import telemetry
from hutch.config import Config
from hutch.errors import Conflict, EngineError, HutchError, Unavailable
from hutch.keeper.boxes.clocks import orphan_grace, own_ttl
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.boxes.states import States
from hutch.keeper.capacity import Capacity
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.skills.mounts import SkillMounts, shows_skills
from hutch.keeper.takeover.liveness import Liveness
from hutch.keeper.volumes import Volumes
from hutch.logs import conceal, log
from hutch.model.boxes import Lease
from hutch.model.ids import BoxId, new_box_id
from hutch.model.spec import EffectiveSpec, MountMode, Order, Spec
from hutch.model.state import State
from hutch.providers.base import Provider


class Creator:
    """Makes boxes into the keeper's own dictionary `boxes`."""

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

    async def make(self, spec: Spec, lease: Lease | None, owner: str, key: str) -> Live:
        """A running box. An engine that fails is stood in for by the next that may; if none is left, or the caller is
        cancelled, nothing of the box remains."""
        failed: dict[str, str] = {}
        while True:
            with telemetry.step("hutch.create.policy"):
                provider, effective = await self._engines.decide(spec, failed)
            try:
                with telemetry.step("hutch.create", profile=effective.profile, provider=effective.provider):
                    live = await self._make(provider, effective, lease, owner, key)
            except (Unavailable, EngineError) as error:
                self._engines.failed(effective.provider, error.message)
                failed[effective.provider] = error.message
                if not self._engines.others(spec, failed):
                    raise
                log("keeper").warning("provider failed, another stands in", provider=effective.provider, error=error)
            else:
                self._engines.worked(effective.provider)
                return live

    async def _make(
        self, provider: Provider, effective: EffectiveSpec, lease: Lease | None, owner: str, key: str
    ) -> Live:
        box_id = new_box_id()
        with telemetry.step("hutch.create.record"):
            # Capacity first: the order names places, which must not go before the box is counted among their users.
            async with self._capacity.reserve(box_id, owner, effective):
                live, order = await self._open(box_id, provider, effective, lease, owner, key)
        try:
            await self._boot(live, provider, order)
        except BaseException as error:
            if box_id in self._boxes:
                await run_uncancelled(self._abandon(live, provider, error))
            elif live.instance is not None:
                # Taken from us as a dead keeper's half-made box, and destroyed, before it was there.
                await run_uncancelled(provider.destroy(live.instance.record))
            raise
        return live

    async def _open(
        self, box_id: BoxId, provider: Provider, effective: EffectiveSpec, lease: Lease | None, owner: str, key: str
    ) -> tuple[Live, Order]:
        """The box on record, and what the engine is to make."""
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
            """From then on the box is ours to make or to clean up."""
            self._boxes[box_id] = live

        try:
            await self._states.open(record, opened)
        except BaseException as error:
            if box_id in self._boxes:
                await run_uncancelled(self._abandon(live, provider, error))
            else:
                await run_uncancelled(self._skills.on_destroyed(record))  # no record exists, but its mounts do
            raise
        return live, order

    async def order(self, box_id: BoxId, spec: EffectiveSpec, owner: str, created_at: float, grace: float) -> Order:
        """With the host places the box may show, checked now: they may have changed since it was stopped."""
        places = self._engines.places(spec)
        kind, _, volume = spec.workspace.source.partition(":")
        if kind == "volume" and spec.workspace.mode is not MountMode.NONE:
            places = places.but(workspace=await self._volumes.place(volume, spec.workspace.mode, owner))
        places = await self._skills.add_mount(box_id, spec, owner, places)
        grace = grace or self._config.orphan_grace_sec
        if spec.ttl_sec:
            spec = spec.but(ttl_sec=own_ttl(spec, created_at))
        return Order(box_id=box_id, keeper=self._keeper, spec=spec, places=places, orphan_grace_sec=grace)

    async def _boot(self, live: Live, provider: Provider, order: Order) -> None:
        with telemetry.step("hutch.create.engine", provider=provider.name):
            live.instance = await provider.create(order, live.record.instance)
        async with live.state_lock:
            with telemetry.step("hutch.create.running"):
                await self._states.change(
                    live.record, State.RUNNING, into=live, reason="created", instance=live.instance.record
                )
        live.last_checked = time.monotonic()

    async def _abandon(self, live: Live, provider: Provider, error: BaseException) -> None:
        """Creation failed: resources first, then the record; the quota is free again."""
        cancelled = isinstance(error, asyncio.CancelledError)
        reason = "creation was cancelled" if cancelled else f"creation failed: {error}"
        async with live.state_lock:
            if live.record.id not in self._boxes:
                return  # somebody destroyed it while it was being made, which is why it failed
            try:
                ours = await self._doom(live, reason, error)
                if live.instance is not None:
                    await live.instance.close()
                    live.instance = None
                await provider.destroy(live.record.instance)
                if ours:
                    await self._states.forget(live.record, reason)
                del self._boxes[live.record.id]
                self._capacity.notify_freed()
                await self._skills.on_destroyed(live.record)
            except HutchError as problem:
                log("keeper").error("half-made box not removed", box=live.record.id, error=str(problem))

    async def _doom(self, live: Live, reason: str, error: BaseException) -> bool:
        """False: another keeper has the record. It took us for dead and destroys what is half made, perhaps before
        that was there; so we destroy it too."""
        if live.record.state is State.STOPPING:
            return True
        try:
            await self._states.change(live.record, State.STOPPING, into=live, reason=reason, doomed=True)
        except Conflict:
            if isinstance(error, Unavailable):
                raise  # the record may be further than we know, and tell of a whole box
            return False
        return True
