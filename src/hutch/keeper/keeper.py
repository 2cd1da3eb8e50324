"""The keeper: makes boxes, finds them, wakes them, ends them. Every surface goes through here."""

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial

from hutch.config import Config, directories
from hutch.errors import BoxBroken, Conflict, Disabled, Gone, HeldElsewhere, HutchError, NotFound, Unsupported
from hutch.keeper import leases, ownership
from hutch.keeper.clocks import Clocks
from hutch.keeper.drift import changed_limits, fixed_differences
from hutch.keeper.endings import Endings, Hook
from hutch.keeper.engines import Engines
from hutch.keeper.live import Live
from hutch.keeper.making import Maker
from hutch.keeper.pool import POOL_OWNER, Pool
from hutch.keeper.reconcile import Reconciler
from hutch.keeper.records import LOCAL_OWNER, BoxRecord, Event, Lease
from hutch.keeper.room import Room
from hutch.keeper.sessions import Sessions
from hutch.keeper.states import States
from hutch.keeper.store import Store
from hutch.keeper.volumes import Volumes
from hutch.model.ids import BoxId
from hutch.model.limits import Limits
from hutch.model.spec import Spec
from hutch.model.state import State

HEALTHY_FOR_SECONDS = 30.0
CHECK_SECONDS = 5.0

Decide = Callable[[BoxRecord, str, float, float], dict[str, object]]


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
        self._claims: list[ownership.Claim] = []
        self._homes = ownership.homes(config.state_dir, config.run_dir)
        self.volumes = Volumes(store, config.state_dir / "volumes")
        self.sessions = Sessions(self, store)
        self.room = Room(config, store, self.boxes)
        self._maker = Maker(self.id, config, self.states, self.engines, self.volumes, self.room, self._live)
        self.pool = Pool(config.pool, self._make_for_pool)
        self.endings = Endings(self.states, self.engines, self._live)
        self.endings.gone.append(self.pool.forget)
        self.endings.gone.append(lambda _: self.room.freed())
        self._clocks = Clocks(self._live.values, self._end_by_clock, self._warn, self._renew, config.lease_sec)

    async def start(self) -> None:
        """Claim this keeper's name and take over what dead keepers left."""
        if self._claims or not self.config.enabled:
            return
        directories.make(self.config.state_dir)
        directories.make(self.config.run_dir)
        self._claims = [ownership.Claim(home, self.id) for home in self._homes]
        for live in await self.reconcile():
            self._live[live.record.id] = live
        self.pool.start()
        for home in self._homes:
            ownership.sweep(home)
        if self._live:
            self._clocks.start()

    async def reconcile(self) -> list[Live]:
        """Take over what dead keepers left; the boxes that are ours now and were not before."""
        alive = partial(ownership.alive_in_any, self._homes)
        return await Reconciler(self.id, self.store, self.states, self.engines, alive).run()

    async def close(self) -> None:
        """End the clocks and the temporary boxes; persistent ones are stopped and come back with the next keeper."""
        await self._clocks.stop()
        await self.pool.stop()
        await asyncio.gather(*(self.endings.close(live) for live in list(self._live.values())))
        await self._let_go()

    async def detach(self) -> None:
        """Go, and leave every box running: the next keeper on this state directory takes them over, jobs and all.
        Until one comes they live by their dead-man's clock (`orphan_grace_sec`)."""
        await self._clocks.stop()
        await self.pool.stop()
        for live in self._live.values():
            if live.instance is not None:
                await live.instance.close()
        self._live.clear()
        await self._let_go()

    async def _let_go(self) -> None:
        await self.engines.close()
        await self.store.close()
        for claim in self._claims:
            claim.release()
        self._claims = []

    # --- making ---------------------------------------------------------------------------------------------

    async def create(self, spec: Spec, *, session: str, owner: str = LOCAL_OWNER, key: str = "") -> Live:
        """A running box, leased to `session`. With a key, retries and concurrent calls give the same box."""
        if not self.config.enabled:
            raise Disabled("Hutch is switched off", op="create", remedy="set enabled = true in hutch.toml")
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
        else:
            await self._fit(live, spec)
        return await self.acquire(live.record.id, session), notes

    async def _fit(self, live: Live, spec: Spec) -> None:
        """A live box for a spec that may have changed since: limits follow, the rest is a Conflict (B14)."""
        _, asked = await self.engines.decide(spec)
        differences = fixed_differences(live.record.spec, asked)
        if differences:
            raise Conflict(
                f"box {live.record.id} lives with another {', '.join(differences)}",
                details={"fields": list(differences)},
                remedy="destroy it to have it recreated, or ask for what it has",
            )
        limits = changed_limits(live.record.spec, asked)
        if limits is not None:
            await self.change(live, limits)

    async def _find_or_create(self, spec: Spec, session: str, owner: str, key: str) -> Live:
        existing = await self.store.by_key(owner, key)
        if existing is None:
            return await self._create(spec, session, owner, key)
        if existing.id not in self._live:
            raise self._elsewhere(existing)
        return self._live[existing.id]

    async def _create(self, spec: Spec, session: str, owner: str, key: str) -> Live:
        live = self.pool.claim(spec, self.config.profile)
        if live is None or not await self._claimed(live, spec, session, owner, key):
            live = await self._maker.make(spec, self._lease(session), owner, key)
        try:
            for hook in self.created:
                await hook(live.record)
        except BaseException:
            await self.endings.destroy(live, "its created hook failed")
            raise
        self._clocks.start()
        return live

    async def _claimed(self, live: Live, spec: Spec, session: str, owner: str, key: str) -> bool:
        """Give a box of the pool to its first owner, in one compare-and-set."""
        async with live.changing:
            if live.record.state is not State.RUNNING:
                return False
            now = time.time()
            given = live.record.spec.but(labels=live.record.spec.labels | spec.labels, name=spec.name or "")
            await self.states.update(
                live.record, into=live, kind="claimed", reason="from the pool", owner=owner, lease=self._lease(session),
                idempotency_key=key, spec=given, labels=given.labels, created_at=now, used_at=now, epoch=2,
            )  # fmt: skip
        live.used = time.monotonic()
        return True

    async def _make_for_pool(self, spec: Spec) -> Live:
        return await self._maker.make(spec, None, POOL_OWNER, "")

    def _lease(self, session: str) -> Lease:
        return leases.granted(session, time.time(), self.config.lease_sec)

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
            fields = decide(live.record, session, time.time(), self.config.lease_sec)
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
                order = await self._maker.order(live.record.id, live.record.spec, live.record.owner)
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

    async def change(self, live: Live, limits: Limits) -> tuple[str, ...]:
        """Apply limits to the live box; the names of those that would need a new one are returned (B14)."""
        async with live.changing:
            refused = await live.running.change_limits(limits)
            kept = {name: getattr(live.record.spec.limits, name) for name in refused}
            spec = live.record.spec.but(limits=limits.but(**kept))
            await self.states.update(live.record, into=live, kind="changed", reason="limits", spec=spec)
        return refused

    # --- what the clocks ask for ----------------------------------------------------------------------------

    async def _end_by_clock(self, live: Live, reason: str) -> None:
        """Idle boxes may sleep first, and end only if nobody wakes them for as long again."""
        pausable = (
            self.config.idle_action == "pause" and reason.startswith("idle") and live.record.state is State.RUNNING
        )
        if not pausable:
            await self.endings.destroy(live, reason)
            return
        try:
            await self.pause(live, reason)
        except Unsupported:
            await self.endings.destroy(live, reason)
        else:
            live.used = time.monotonic()

    async def _warn(self, live: Live, reason: str) -> None:
        async with live.changing:
            await self.states.update(live.record, into=live, kind="warning", reason=reason)

    async def _renew(self, live: Live) -> None:
        async with live.changing:
            if live.record.lease is not None:
                lease = leases.renewed(live.record.lease, time.time(), self.config.lease_sec)
                await self.states.update(live.record, into=live, lease=lease)
