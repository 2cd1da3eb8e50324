"""The keeper: creates, finds, resumes and ends boxes. Every surface goes through here."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from hutch import telemetry
from hutch.config import Config, directories
from hutch.errors import Conflict, Disabled, Gone, NotFound, Unavailable, Unsupported
from hutch.keeper.access import leases, lookup
from hutch.keeper.access.callers import NOBODY, called_by, current_caller
from hutch.keeper.access.sessions import Sessions
from hutch.keeper.access.views import Views
from hutch.keeper.boxes.clocks import Clocks
from hutch.keeper.boxes.create import Creator
from hutch.keeper.boxes.destroy import Teardown, Unless
from hutch.keeper.boxes.health import Health
from hutch.keeper.boxes.live import FoundBox, Live, gone
from hutch.keeper.boxes.pause import Pauser
from hutch.keeper.boxes.pool import Pool, PoolClaims
from hutch.keeper.boxes.records import LOCAL_OWNER, POOL_OWNER, BoxRecord
from hutch.keeper.boxes.states import States
from hutch.keeper.boxes.update import Updater
from hutch.keeper.capacity import Capacity, Inventory
from hutch.keeper.counters import BoxCounters
from hutch.keeper.creations import Creations
from hutch.keeper.engines import Engines
from hutch.keeper.hooks import Hooks
from hutch.keeper.receipts import losses
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.skills.mounts import SkillMounts
from hutch.keeper.skills.skills import Skills
from hutch.keeper.store.open_store import open_key
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.liveness import Liveness, LockLiveness, lock_directories
from hutch.keeper.takeover.reconcile import Reconciler
from hutch.keeper.volumes import Volumes
from hutch.logs import reveal
from hutch.model.boxes import Event, EventCause, Lease, State
from hutch.model.ids import BoxId
from hutch.model.spec import Spec, TtlAction
from hutch.policy import rights
from hutch.policy.rights import Action

if TYPE_CHECKING:
    from hutch.keeper.access.ports import Ports, PreviewIssuer
    from hutch.keeper.boxes.layers import LayerKeeper
    from hutch.keeper.receipts.ledger import Ledger

LeaseFields = Callable[[BoxRecord, str, float, float], dict[str, object]]

REDACTION_SECONDS = 60.0
"""How long the secrets of a destroyed box stay redacted: errors about it are logged and answered by then."""


def _stop_redacting_later(live: Live) -> None:
    if live.secrets:
        asyncio.get_running_loop().call_later(REDACTION_SECONDS, reveal, live.secrets)


class Keeper:
    """One per process that owns boxes. Call `start` before use and `close` at the end."""

    def __init__(
        self,
        config: Config,
        store: Store,
        engines: Engines | None = None,
        liveness: Liveness | None = None,
        *,
        ledger: "Ledger | None" = None,
        visiting: bool = False,
    ) -> None:
        self.id = "k" + os.urandom(6).hex()
        self.config = config
        self.store = store
        self.receipts = Receipts(
            ledger, mode=config.receipts, days=config.receipts_days, most=config.receipts_rows,
            key=open_key(config) if ledger is not None else None,
        )  # fmt: skip
        self.operations = self.receipts.operations
        self.states = States(store)
        self.counters = BoxCounters()
        self.hooks = Hooks(self.states)
        self.creations = Creations(self)
        self.states.witnesses += [self.receipts.witness, self.counters.on_transition]
        self.states.listeners += [self.hooks.on_event, self.creations.on_event]
        self.engines = engines or Engines(config)
        self.health = Health(self.states, self.engines)
        self._live: dict[BoxId, Live] = {}
        self._creations: dict[str, asyncio.Task[FoundBox]] = {}
        """Creations in progress by key: concurrent calls with one key give one box, and nobody else waits."""
        self.liveness = liveness or LockLiveness(lock_directories(config.state_dir, config.run_dir))
        """It belongs to the store, because keepers that share the store must see each other."""
        self.visiting = visiting
        """A visiting keeper takes over only boxes that are asked for, and leaves them all to themselves at the end."""
        self.taken_over = 0
        """How many boxes of dead keepers this one has taken over."""
        self._started = False
        self._start_lock = asyncio.Lock()
        """Held while the keeper starts, so that callers wait for it: a box of a keeper that has not claimed its name
        yet looks abandoned."""
        self.reconciler = Reconciler(self.id, store, self.states, self.engines, self.liveness, config, self._live)
        inventory = Inventory(store, self._live)
        self.volumes = Volumes(store, config.state_dir / "volumes", inventory, config.quotas)
        self.skills = Skills(config.state_dir / "skills", self.states, config.quotas)
        self.skill_mounts = SkillMounts(
            self.skills, store, self.states, self.engines, self._live, inventory, self.create,
            lambda live, reason: self.teardown.destroy(live, reason, EventCause.OTHER),
        )  # fmt: skip
        self.sessions = Sessions(self, store)
        self.views = Views(self.id, config, store, self.engines, self.liveness, self.receipts, self._live)
        self.capacity = Capacity(config, inventory, visiting=visiting)
        self.creator = Creator(
            self.id, config, self.states, self.engines, self.volumes, self.skill_mounts, self.capacity, self._live,
            self.liveness,
        )  # fmt: skip
        self.pauser = Pauser(self.states, self.engines, self.check_owned)
        self.updater = Updater(
            config, self.states, self.engines, self.capacity, self.check_owned, self._make_persistent
        )
        self.teardown = Teardown(self.states, self.engines, self.pauser, self._live)
        self.pool = Pool(config.pool, lambda spec: self.creator.create(spec, None, POOL_OWNER, ""))
        self.pool_claims = PoolClaims(config, self.pool, self.capacity, self.states, self.teardown, self.skill_mounts)
        self.teardown.destroyed_hooks += [self.skill_mounts.on_destroyed, lambda record: self.hooks.finish(record.id)]
        self.teardown.on_destroyed += [
            self.pool.forget,
            lambda _: self.capacity.notify_freed(),
            _stop_redacting_later,
            lambda live: self.operations.forget(live.record.id),
            lambda live: self.ports.forget(live) if "ports" in self.__dict__ else None,
        ]
        self.previews: PreviewIssuer | None = None
        """Makes addresses for ports; set by the server that serves them."""
        self._clocks = Clocks(self._live.values, self._end_by_clock, self._warn, self.renew, config.lease_sec)

    @cached_property
    def layers(self) -> "LayerKeeper":
        from hutch.keeper.boxes.layers import LayerKeeper  # Few boxes have checkpoints.

        return LayerKeeper(self)

    @cached_property
    def ports(self) -> "Ports":
        from hutch.keeper.access.ports import Ports  # Most boxes only run commands.

        return Ports(self.states, self.health, self.pauser, self.check_owned, self.config.server)

    async def start(self) -> None:
        """Claim this keeper's name and take over what dead keepers left."""
        if self._started or not self.config.enabled:
            return
        async with self._start_lock:
            if not self._started:
                await self._start()
                self._started = True

    async def _start(self) -> None:
        directories.make(self.config.state_dir)
        directories.make(self.config.run_dir)
        try:
            await self.liveness.claim(self)
            await self.adopt()
            await self.liveness.sweep()
        except BaseException:  # The store may be back at the next try.
            await self.liveness.release()
            raise
        telemetry.join()
        self.volumes.watch(self._live.values)
        if not self.visiting:
            self.pool.start()
            self.receipts.start(self.store)

    async def adopt(self) -> None:
        """Take over the boxes that dead keepers left, in nobody's name."""
        with called_by(NOBODY, rights.UNBOUND):
            adopted = await self.reconciler.run(self.visiting)
        for live in adopted:
            if live.record.left_at:  # Taking over a box that was left on purpose makes no event.
                self.counters.count("adopted", live.record)
        self.taken_over += len(adopted)
        if self._live:
            self._clocks.start()

    async def confirm(self) -> None:
        """Drop the boxes that other keepers took over because they took this one for dead."""
        await self.reconciler.drop_lost(self._forget)

    def _forget(self, live: Live) -> None:
        for notify in self.teardown.on_destroyed:
            notify(live)

    def check_owned(self, live: Live) -> None:
        """Raise Unavailable if another keeper may have taken the box over while the store did not answer this one."""
        if not live.record.place and self.liveness.lapsed():
            raise Unavailable(
                f"box {live.record.id} may belong to another keeper by now: the store does not answer this one",
                remedy="try again when the store is back",
            )

    async def close(self) -> None:
        """Stop the clocks and end the temporary boxes; persistent ones are stopped for the next keeper.

        A conversation's box is left to itself: it waits for the next program that asks for it, as long as it may idle.
        """
        await self._clocks.stop()
        await self.creations.finish(0.0)
        await self.pool.stop()
        await asyncio.gather(*(self.teardown.close(live, visiting=self.visiting) for live in list(self._live.values())))
        for live in self._live.values():
            self.receipts.record_left(live.record)
        await self._close_parts()

    async def detach(self) -> None:
        """Close, but leave every box running for the next keeper on this state directory, with its jobs.

        Until one comes, the boxes live by their dead-man's clock (`orphan_grace_sec`).
        """
        await self._clocks.stop()
        await self.pool.stop()
        for live in list(self._live.values()):
            async with live.state_lock:  # Waits for a change in progress.
                if self._live.pop(live.record.id, None) is None:
                    continue
                if live.instance is not None:
                    await live.instance.close()
                self.receipts.record_left(live.record)
        await self._close_parts()

    async def _close_parts(self) -> None:
        if "ports" in self.__dict__:
            await self.ports.close()
        await self.volumes.close()
        await self.hooks.finish()
        await self.engines.close()
        await losses.report_lost(self.states, await self.receipts.close())
        await self.liveness.release()
        await self.store.close()
        self._started = False

    # --- creating -------------------------------------------------------------------------------------------

    async def create(self, spec: Spec, *, session: str, owner: str = LOCAL_OWNER, key: str = "") -> Live:
        """Create a running box, leased to `session`. With a key, retries and concurrent calls give the same box."""
        self._check_enabled()
        spec = self._admit(spec)
        if not key:
            return await self._create(spec, session, owner, "")
        return (await self._find_or_create(spec, session, owner, key)).live

    async def _find_or_create(self, spec: Spec, session: str, owner: str, key: str) -> FoundBox:
        """Callers with one key wait for one box, and nobody else waits."""
        name = f"{owner}\0{key}"
        creation = self._creations.get(name)
        if creation is None:
            creation = self._creations[name] = asyncio.create_task(self._by_key(spec, session, owner, key))
            creation.add_done_callback(lambda _: self._creations.pop(name, None))
        return await asyncio.shield(creation)

    async def box_for_key(
        self, spec: Spec, key: str, session: str, owner: str = LOCAL_OWNER
    ) -> tuple[Live, tuple[str, ...]]:
        """Return the healthy box of `key`, leased to `session`. A broken one is replaced, and the notes say so."""
        self._check_enabled()
        spec = self._admit(spec)
        notes: tuple[str, ...] = ()
        live, existed = await self._find_or_create(spec, session, owner, key)
        if await self.health.is_lost(live):
            reason = live.record.reason
            await self.teardown.destroy(live, f"replaced: {reason}", EventCause.REPLACED)
            live = await self.create(spec, session=session, owner=owner, key=key)
            notes = (f"the earlier box was lost ({reason}): its files and jobs are gone",)
            existed = False
        else:
            await self.updater.fit(live, spec)
        live = await self.acquire(live.record.id, session)
        if existed:
            self.counters.count("reused", live.record)
        return live, notes

    def _admit(self, spec: Spec) -> Spec:
        """Return the spec as this caller may ask for it; Refused where the operator does not allow it."""
        return rights.admitted(spec, rights.current(), self.config.profile, self.config.profiles)

    async def _by_key(self, spec: Spec, session: str, owner: str, key: str) -> FoundBox:
        existing = await self.store.by_key(owner, key)
        if existing is not None:
            with suppress(Gone):  # The box was lost with its keeper, so the key is free again.
                live = await self.live(existing.id)
                if not live.record.doomed:
                    return FoundBox(live, True)
                # Waits for the destruction that is in progress.
                await self.teardown.destroy(live, live.record.reason, live.end_cause)
        try:
            return FoundBox(await self._create(spec, session, owner, key), False)
        except Conflict:
            faster = await self.store.by_key(owner, key)
            if faster is None or faster.keeper == self.id:
                raise
            return FoundBox(await self.live(faster.id), True)  # Another process created it meanwhile.

    def _check_enabled(self) -> None:
        if not self.config.enabled:
            raise Disabled("Hutch is switched off", op="create", remedy="set enabled = true in hutch.toml")

    async def _create(self, spec: Spec, session: str, owner: str, key: str) -> Live:
        rights.require(rights.current(), Action.CREATE)
        if spec.name:
            await lookup.check_name_free(self.store, spec.name, owner)
        live = await self.pool_claims.claim(spec, self.new_lease(session), owner, key)
        if live is None:
            live = await self.creator.create(spec, self.new_lease(session), owner, key)
        try:
            await self.skill_mounts.ensure_shown(live)
            await self.hooks.run_created(live)
        except BaseException:
            await self.teardown.destroy(live, "its created hook failed", EventCause.CREATION_FAILED)
            raise
        self._clocks.start()
        return live

    def new_lease(self, session: str) -> Lease:
        return leases.new_lease(session, time.time(), self.config.lease_sec, key=current_caller().key)

    # --- finding --------------------------------------------------------------------------------------------

    async def live(self, box_id: str) -> Live:
        """Return the box that this keeper holds, or can take over.

        Raises:
            Gone: It was destroyed; the error says when and why.
            HeldElsewhere: Another live keeper has it.
            NotFound: There is no such box.
        """
        live = self._live.get(BoxId(box_id))
        if live is None:
            live = await self.reconciler.take_over(BoxId(box_id))
            if live is not None:
                self._clocks.start()
        if live is not None:
            return live
        tombstone = await self.store.tombstone(BoxId(box_id))
        if tombstone is not None:
            raise gone(tombstone)
        raise NotFound(f"no box {box_id}", remedy="`hutch box list` shows those there are")

    def held(self, box_id: BoxId) -> Live | None:
        """Return the box if this keeper holds it already."""
        return self._live.get(box_id)

    async def acquire(self, box_id: str, session: str, *, takeover: bool = False) -> Live:
        """Give `session` the lease: BoxBusy if another session holds it, unless it is taken over."""
        live = await self.live(box_id)
        if takeover:
            rights.require(rights.current(), Action.TAKEOVER)
        lease_fields: LeaseFields = leases.fields_to_take_over if takeover else leases.fields_to_acquire
        with live.pending_handle(session):
            async with live.state_lock:
                fields = lease_fields(live.record, session, time.time(), self.config.lease_sec)
                kind = "lease" if "epoch" in fields else ""  # A renewal makes no event.
                reason = f"taken over by {session}" if takeover else f"held by {session}"
                await self.states.update(live.record, into=live, kind=kind, reason=reason, **fields)
            if live.record.state is State.STOPPED:
                await self.restore(live)
            await self.skill_mounts.on_adopted(live)
            await self.hooks.run_created(live)
        return live

    async def release(self, live: Live, session: str, unless: Unless | None = None) -> None:
        """Give up the session's lease. `unless` is asked as in `destroy`."""
        async with live.state_lock:
            if unless is not None and unless(live):
                return
            lease = live.record.lease
            if lease is not None and leases.holds(lease, session) and live.record.id in self._live:
                await self.states.update(live.record, into=live, kind="lease", reason="released", lease=None)

    async def rename(self, live: Live, name: str) -> None:
        """Rename a box; "" removes the name. Conflict if another live box of its owner has it."""
        if name:
            await lookup.check_name_free(self.store, name, live.record.owner, but=live.record.id)
        async with live.state_lock:
            spec = live.record.spec.but(name=name)
            await self.states.update(
                live.record, into=live, kind="changed", reason=f"named {name or 'nothing'}", spec=spec
            )

    def boxes(self) -> tuple[BoxRecord, ...]:
        """Return the records of the boxes that this keeper holds."""
        return tuple(live.record for live in self._live.values())

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        return await self.store.events(after, limit)

    # --- changing -------------------------------------------------------------------------------------------

    async def restore(self, live: Live) -> None:
        """Start a stopped persistent box again, with its files."""
        await self.creator.restore(live)
        self._clocks.start()

    async def _make_persistent(self, live: Live, session: str) -> None:
        from hutch.keeper.boxes.retention import PersistenceChange  # It loads archives, which few callers need.

        await PersistenceChange(self, live, session).run()

    # --- ending ---------------------------------------------------------------------------------------------

    async def destroy(
        self,
        box_id: str,
        reason: str = "destroyed by a call",
        cause: EventCause = EventCause.CALL,
        unless: Unless | None = None,
    ) -> bool:
        """Destroy a box, or wait for a destruction in progress; a box that is gone is fine.

        False means that `unless` spared the box.
        """
        try:
            live = await self.live(box_id)
        except Gone:
            return True
        return await self.teardown.destroy(live, reason, cause, unless)

    # --- callbacks of the clocks ----------------------------------------------------------------------------

    async def _end_by_clock(self, live: Live, reason: str, cause: EventCause, unless: Unless) -> None:
        """End a box. An idle one may be paused first, and ends only if nobody resumes it for as long again."""
        idle = cause is EventCause.IDLE and live.record.state is State.RUNNING
        if idle and self.config.idle_action == "pause":
            with suppress(Unsupported):
                await self.pauser.pause(live, reason)
                live.last_used = time.monotonic()
                return
        if cause is EventCause.TTL and (action := live.record.spec.ttl_action) is not TtlAction.DESTROY:
            with suppress(Conflict):  # It is in use: the next tick tries again.
                await self.pauser.pause(live, reason, halt=action is TtlAction.HALT)
                await self.updater.set_ttl(live, 0.0)
            return
        await self.teardown.destroy(live, reason, cause, unless)

    async def _warn(self, live: Live, reason: str) -> None:
        async with live.state_lock:
            if live.record.state in (State.RUNNING, State.PAUSED):  # Otherwise it has ended meanwhile.
                await self.states.update(live.record, into=live, kind="warning", reason=reason)

    async def renew(self, live: Live) -> None:
        """Extend the present lease."""
        async with live.state_lock:
            if live.record.lease is not None:
                lease = leases.renewed_lease(live.record.lease, time.time(), self.config.lease_sec)
                await self.states.update(live.record, into=live, lease=lease)
