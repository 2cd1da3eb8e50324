"""The keeper: makes boxes, finds them, wakes them, ends them. Every surface goes through here."""

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial

from hutch.config import Config, directories
from hutch.errors import BoxBroken, Conflict, Disabled, Gone, HeldElsewhere, HutchError, NotFound, QuotaExceeded
from hutch.keeper import leases, ownership
from hutch.keeper.clocks import Clocks
from hutch.keeper.endings import Endings, Hook
from hutch.keeper.engines import Engines
from hutch.keeper.live import Live
from hutch.keeper.reconcile import Reconciler
from hutch.keeper.records import LOCAL_OWNER, BoxRecord, Event
from hutch.keeper.states import States
from hutch.keeper.store import Store
from hutch.keeper.volumes import Volumes
from hutch.keeper.whole import whole
from hutch.logs import log
from hutch.model.ids import BoxId, new_box_id
from hutch.model.spec import EffectiveSpec, Order, Spec
from hutch.model.state import State

HEALTHY_FOR_SECONDS = 30.0
CHECK_SECONDS = 5.0

Decide = Callable[[BoxRecord, str, float], dict[str, object]]


class Keeper:
    """One per process that owns boxes. `start` before use, `close` at the end."""

    def __init__(self, config: Config, store: Store, engines: Engines | None = None) -> None:
        self.id = "k" + secrets.token_hex(6)
        self.config = config
        self.store = store
        self.states = States(store)
        self.engines = engines or Engines(config)
        self.created: list[Hook] = []
        """Run until they have succeeded once for a box, after it is leased (P10)."""
        self._live: dict[BoxId, Live] = {}
        self._making: dict[str, asyncio.Task[Live]] = {}
        """Creations by key: concurrent calls of one key give one box, and nobody else waits (lesson 9)."""
        self._reserved = 0
        self._claim: ownership.Claim | None = None
        self.volumes = Volumes(store, config.state_dir / "volumes")
        self.endings = Endings(self.states, self.engines, self._live)
        self._clocks = Clocks(self._live.values, self.endings.destroy, self._warn, self._renew)

    async def start(self) -> None:
        """Claim this keeper's name and take over what dead keepers left."""
        if self._claim is not None or not self.config.enabled:
            return
        directories.make(self.config.state_dir)
        directories.make(self.config.run_dir)
        self._claim = ownership.Claim(self.config.state_dir, self.id)
        alive = partial(ownership.alive, self.config.state_dir)
        for live in await Reconciler(self.id, self.store, self.states, self.engines, alive).run():
            self._live[live.record.id] = live
        ownership.sweep(self.config.state_dir)
        if self._live:
            self._clocks.start()

    async def close(self) -> None:
        """End the clocks and the temporary boxes; persistent ones are stopped and come back with the next keeper."""
        await self._clocks.stop()
        await asyncio.gather(*(self.endings.close(live) for live in list(self._live.values())))
        await self.engines.close()
        await self.store.close()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    # --- making ---------------------------------------------------------------------------------------------

    async def create(self, spec: Spec, *, session: str, owner: str = LOCAL_OWNER, key: str = "") -> Live:
        """A running box, leased to `session`. With a key, retries and concurrent calls give the same box."""
        if not key:
            return await self._create(spec, session, owner, "")
        name = f"{owner}\0{key}"
        making = self._making.get(name)
        if making is None:
            making = self._making[name] = asyncio.create_task(self._find_or_create(spec, session, owner, key))
            making.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(making)

    async def working(
        self, spec: Spec, key: str, session: str, owner: str = LOCAL_OWNER
    ) -> tuple[Live, tuple[str, ...]]:
        """The box of `key`, leased to `session` and healthy; a broken one is replaced, and the notes say so (S3)."""
        notes: tuple[str, ...] = ()
        live = await self.create(spec, session=session, owner=owner, key=key)
        if not await self.healthy(live):
            reason = live.record.reason
            await self.endings.destroy(live, f"replaced: {reason}")
            live = await self.create(spec, session=session, owner=owner, key=key)
            notes = (f"the earlier box was lost ({reason}): its files and jobs are gone",)
        return await self.acquire(live.record.id, session), notes

    async def _find_or_create(self, spec: Spec, session: str, owner: str, key: str) -> Live:
        existing = await self.store.by_key(owner, key)
        if existing is None:
            return await self._create(spec, session, owner, key)
        if existing.id not in self._live:
            raise self._elsewhere(existing)
        return self._live[existing.id]

    async def _create(self, spec: Spec, session: str, owner: str, key: str) -> Live:
        if not self.config.enabled:
            raise Disabled("Hutch is switched off", op="create", remedy="set enabled = true in hutch.toml")
        self._reserve()
        live: Live | None = None
        try:
            provider, effective = await self.engines.decide(spec)
            order = await self._order(new_box_id(), effective, owner)
            now = time.time()
            record = BoxRecord(
                id=order.box_id, owner=owner, keeper=self.id, state=State.CREATING, spec=effective.shown(),
                instance=provider.plan(order), created_at=now, used_at=now, idempotency_key=key,
                lease=leases.granted(session, now), labels=effective.labels,
            )  # fmt: skip
            live = Live(record)
            await whole(self._open(live))
        except asyncio.CancelledError:
            if live is not None and live.record.id in self._live:
                await self._abandon(live, "creation was cancelled")
            raise
        finally:
            self._reserved -= 1
        try:
            live.instance = await provider.create(order, record.instance)
            async with live.changing:
                await self.states.change(
                    live.record, State.RUNNING, into=live, reason="created", instance=live.instance.record
                )
            for hook in self.created:
                await hook(live.record)
        except BaseException as error:
            reason = f"creation failed: {error}" if isinstance(error, HutchError) else "creation was cancelled"
            await self._abandon(live, reason)
            raise
        live.checked = time.monotonic()
        self._clocks.start()
        return live

    async def _order(self, box_id: BoxId, spec: EffectiveSpec, owner: str) -> Order:
        """With the host places the box may show, checked now: they may have changed since the box was stopped."""
        places = self.engines.places(spec)
        kind, _, volume = spec.workspace.source.partition(":")
        if kind == "volume":
            places = places.but(workspace=await self.volumes.place(volume, spec.workspace.mode, owner))
        grace = self.config.orphan_grace_sec
        return Order(box_id=box_id, keeper=self.id, spec=spec, places=places, orphan_grace_sec=grace)

    def _reserve(self) -> None:
        """Quota counts live things: boxes that exist and creations that are under way (lesson 8)."""
        limit = self.config.max_boxes
        if limit and len(self._live) + self._reserved >= limit:
            raise QuotaExceeded(
                f"{limit} boxes live already, and that is the limit",
                op="create",
                details={"limit": limit, "live": len(self._live)},
                remedy="destroy a box, or raise max_boxes",
            )
        self._reserved += 1

    async def _open(self, live: Live) -> None:
        """Write the intent; from then on the box is ours to make or to clean up."""
        await self.states.open(live.record)
        self._live[live.record.id] = live

    async def _abandon(self, live: Live, reason: str) -> None:
        """A creation failed: nothing of it remains, and the quota is free again."""
        try:
            await self.endings.destroy(live, reason)
        except HutchError as problem:
            log("keeper").error("half-made box not removed", box=live.record.id, error=str(problem))

    # --- finding --------------------------------------------------------------------------------------------

    async def live(self, box_id: str) -> Live:
        """The box in this keeper's hands; Gone says when and why it went, HeldElsewhere who has it."""
        live = self._live.get(BoxId(box_id))
        if live is not None:
            return live
        record = await self.store.get(BoxId(box_id))
        if record is not None:
            raise self._elsewhere(record)
        tombstone = await self.store.tombstone(BoxId(box_id))
        if tombstone is not None:
            raise Gone(
                f"box {box_id} has been destroyed: {tombstone.reason}",
                details={"at": tombstone.at, "reason": tombstone.reason},
                remedy="create a new one",
            )
        raise NotFound(f"no box {box_id}", remedy="`hutch box list` shows those there are")

    def _elsewhere(self, record: BoxRecord) -> HeldElsewhere:
        return HeldElsewhere(
            f"box {record.id} belongs to another live keeper ({record.keeper})",
            details={"keeper": record.keeper},
            remedy="use it from the process that made it, or let that process end first",
        )

    async def acquire(self, box_id: str, session: str, *, takeover: bool = False) -> Live:
        """Give `session` the lease: BoxBusy if another live one holds it, unless it is taken over."""
        live = await self.live(box_id)
        decide: Decide = leases.taken_over if takeover else leases.acquired
        async with live.changing:
            fields = decide(live.record, session, time.time())
            await self.states.update(live.record, into=live, kind="lease", reason=f"held by {session}", **fields)
        if live.record.state is State.STOPPED:
            await self.restore(live)
        return live

    async def release(self, live: Live, session: str) -> None:
        async with live.changing:
            lease = live.record.lease
            if lease is not None and lease.holder == session and live.record.id in self._live:
                await self.states.update(live.record, into=live, kind="lease", reason="released", lease=None)

    def boxes(self) -> tuple[BoxRecord, ...]:
        """Those in this keeper's hands."""
        return tuple(live.record for live in self._live.values())

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        return await self.store.events(after, limit)

    # --- using ----------------------------------------------------------------------------------------------

    async def wake(self, live: Live) -> None:
        """A paused box runs again because somebody uses it."""
        async with live.changing:
            if live.record.state is State.PAUSED:
                await live.running.resume()
                await self.states.change(live.record, State.RUNNING, into=live, reason="used")

    async def pause(self, live: Live, reason: str = "paused by a call") -> None:
        async with live.changing:
            if live.record.state is State.PAUSED:
                return
            if live.pins:
                raise Conflict(f"box {live.record.id} is working: {live.pins} operations run", retryable=True)
            await live.running.pause()
            await self.states.change(live.record, State.PAUSED, into=live, reason=reason)

    async def restore(self, live: Live) -> None:
        """A stopped persistent box runs again, with its files (P16)."""
        async with live.changing:
            if live.record.state is not State.STOPPED:
                return
            await self.states.change(live.record, State.RESTORING, into=live, reason="used")
            provider = self.engines.provider(live.record.instance.provider)
            try:
                order = await self._order(live.record.id, live.record.spec, live.record.owner)
                live.instance = await provider.restore(order, live.record.instance)
            except HutchError as error:
                await self.states.change(live.record, State.STOPPED, into=live, reason=error.message)
                raise
            await self.states.change(
                live.record, State.RUNNING, into=live, reason="restored", instance=live.instance.record
            )
        self._clocks.start()

    async def healthy(self, live: Live) -> bool:
        """One real answer from the box, unless it gave one under 30 seconds ago (lesson 14, S3)."""
        if time.monotonic() - max(live.checked, live.used) < HEALTHY_FOR_SECONDS:
            return live.record.state in (State.RUNNING, State.PAUSED)
        if live.record.state is State.RUNNING:
            await self.suspect(live)
        return live.record.state in (State.RUNNING, State.PAUSED, State.STOPPED)

    async def suspect(self, live: Live) -> None:
        """Look at a box once; a broken one becomes `error` with its reason, an unreachable one `unknown`."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await live.running.check()
            live.checked = time.monotonic()
        except BoxBroken as broken:
            await self._mark(live, State.ERROR, f"health check failed: {broken.message}")
        except (HutchError, TimeoutError) as error:
            await self._mark(live, State.UNKNOWN, f"health check failed: {error or 'no answer'}")

    async def _mark(self, live: Live, state: State, reason: str) -> None:
        async with live.changing:
            if live.record.state in (State.RUNNING, State.PAUSED):
                await self.states.change(live.record, state, into=live, reason=reason)

    # --- ending ---------------------------------------------------------------------------------------------

    async def destroy(self, box_id: str, reason: str = "destroyed by a call") -> None:
        """Destroying what is being destroyed waits for it; what is gone already is fine."""
        try:
            live = await self.live(box_id)
        except Gone:
            return
        await self.endings.destroy(live, reason)

    # --- what the clocks ask for ----------------------------------------------------------------------------

    async def _warn(self, live: Live, reason: str) -> None:
        async with live.changing:
            await self.states.update(live.record, into=live, kind="warning", reason=reason)

    async def _renew(self, live: Live) -> None:
        async with live.changing:
            if live.record.lease is not None:
                lease = leases.renewed(live.record.lease, time.time())
                await self.states.update(live.record, into=live, lease=lease)
