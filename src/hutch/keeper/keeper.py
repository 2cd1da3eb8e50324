"""The keeper: makes boxes, finds them, wakes them, ends them. Every surface goes through here."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hutch import telemetry
from hutch.config import Config, directories
from hutch.errors import Conflict, Disabled, Gone, HeldElsewhere, HutchError, NotFound, Unavailable, Unsupported
from hutch.keeper.access import leases, lookup
from hutch.keeper.access.callers import NOBODY, called_by, current_caller
from hutch.keeper.access.sessions import Sessions
from hutch.keeper.boxes import pause, pool, update
from hutch.keeper.boxes.clocks import Clocks
from hutch.keeper.boxes.create import Creator
from hutch.keeper.boxes.destroy import Hook, Teardown, Unless
from hutch.keeper.boxes.health import Health
from hutch.keeper.boxes.live import FoundBox, Live, gone
from hutch.keeper.boxes.pool import Pool
from hutch.keeper.boxes.records import LOCAL_OWNER, POOL_OWNER, BoxRecord
from hutch.keeper.boxes.states import States
from hutch.keeper.capacity import Capacity, Inventory
from hutch.keeper.engines import Engines
from hutch.keeper.receipts import losses
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.skills.mounts import SkillMounts, shows_skills
from hutch.keeper.skills.skills import Skills
from hutch.keeper.store.open_store import open_key
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.liveness import Liveness, LockLiveness, lock_directories
from hutch.keeper.takeover.reconcile import Reconciler
from hutch.keeper.volumes import Volumes
from hutch.logs import log, reveal
from hutch.model.boxes import Event, Lease
from hutch.model.ids import BoxId
from hutch.model.spec import Order, Spec
from hutch.model.state import State
from hutch.policy import rights
from hutch.policy.rights import Action

if TYPE_CHECKING:
    from hutch.keeper.receipts.ledger import Ledger

Decide = Callable[[BoxRecord, str, float, float], dict[str, object]]


TOLD_SECONDS = 60.0
"""Until then, an error about a box that is gone has been logged and answered."""


def _reveal_later(live: Live) -> None:
    """What went wrong with a box is often told when it is gone: its secrets stay hidden until that has been said."""
    if live.secrets:
        asyncio.get_running_loop().call_later(TOLD_SECONDS, reveal, live.secrets)


class Keeper:
    """One per process that owns boxes. `start` before use, `close` at the end."""

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
        self.states.witnesses.append(self.receipts.witness)
        self.engines = engines or Engines(config)
        self.health = Health(self.states, self.engines)
        self.created: list[Hook] = []
        """Run until they have succeeded once for a box, after it is leased (P10)."""
        self._live: dict[BoxId, Live] = {}
        self._making: dict[str, asyncio.Task[FoundBox]] = {}
        """Creations by key: concurrent calls of one key give one box, and nobody else waits (lesson 9)."""
        self.reuses: Counter[str] = Counter()
        """How often a scope found its box again, by profile (S9)."""
        self.liveness = liveness or LockLiveness(lock_directories(config.state_dir, config.run_dir))
        """The one that belongs to the store: whoever shares the store must be seen."""
        self.visiting = visiting
        """It comes for a moment: takes over only the boxes that are asked for, and leaves them all to themselves."""
        self._taking = asyncio.Lock()
        """Whoever takes boxes over takes turns: two calls that find the same abandoned box must not race."""
        self.taken_over = 0
        """How many boxes of dead keepers have become this one's."""
        self._started = False
        self._starting = asyncio.Lock()
        """Held while the keeper starts, so that whoever comes meanwhile waits for it: a box that is made by a keeper
        which is not claimed yet looks abandoned."""
        inventory = Inventory(store, self._live)
        self.volumes = Volumes(store, config.state_dir / "volumes", inventory)
        self.skills = Skills(config.state_dir / "skills", self.states)
        self.skill_mounts = SkillMounts(
            self.skills, store, self.states, self.engines, self._live, inventory, self.create,
            lambda live, reason: self.teardown.destroy(live, reason),
        )  # fmt: skip
        self.sessions = Sessions(self, store)
        self.capacity = Capacity(config, inventory, visiting=visiting)
        self._creator = Creator(
            self.id, config, self.states, self.engines, self.volumes, self.skill_mounts, self.capacity, self._live,
            self.liveness,
        )  # fmt: skip
        self.pool = Pool(config.pool, self._make_for_pool)
        self.teardown = Teardown(self.states, self.engines, self._live)
        self.teardown.destroyed_hooks.append(self.skill_mounts.on_destroyed)
        self.teardown.on_destroyed.append(self.pool.forget)
        self.teardown.on_destroyed.append(lambda _: self.capacity.notify_freed())
        self.teardown.on_destroyed.append(_reveal_later)
        self.teardown.on_destroyed.append(lambda live: self.operations.forget(live.record.id))
        self._clocks = Clocks(self._live.values, self._end_by_clock, self._warn, self.renew, config.lease_sec)

    async def start(self) -> None:
        """Claim this keeper's name and take over what dead keepers left."""
        if self._started or not self.config.enabled:
            return
        async with self._starting:
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
        except BaseException:  # a store that is away now may be there at the next try
            await self.liveness.release()
            raise
        telemetry.join()
        if not self.visiting:
            self.pool.start()
            self.receipts.start(self.store)

    async def adopt(self) -> None:
        """Take over what dead keepers left, and keep it."""
        async with self._taking:
            with called_by(NOBODY, rights.UNBOUND):
                adopted = await self.reconcile()
            for live in adopted:
                self._live[live.record.id] = live
            self.taken_over += len(adopted)
        if self._live:
            self._clocks.start()

    async def reconcile(self) -> list[Live]:
        """Take over what dead keepers left; the boxes that are ours now and were not before."""
        now = time.time()
        return await self._reconciler().run(
            lambda record: not record.is_waiting(now) and (bool(record.left_at) or not self.visiting)
        )

    def _reconciler(self) -> Reconciler:
        return Reconciler(self.id, self.store, self.states, self.engines, self.liveness, self.config)

    async def confirm(self) -> None:
        """Others may have taken this keeper for dead: boxes that they were faster with are let go."""
        async with self._taking:  # a box that is being taken over must be among those looked at
            for live in list(self._live.values()):
                async with live.state_lock:
                    if live.record.id in self._live and not await self.states.reassert(live, self.id):
                        await self._lose(live)

    async def _lose(self, live: Live) -> None:
        log("keeper").warning("box was taken over by another keeper", box=live.record.id)
        del self._live[live.record.id]
        for told in self.teardown.on_destroyed:
            told(live)
        if live.instance is not None:
            await live.instance.close()

    def check_owned(self, live: Live) -> None:
        """Before a box is touched that keepers elsewhere could have taken over while we were out of touch."""
        if not live.record.place and self.liveness.lapsed():
            raise Unavailable(
                f"box {live.record.id} may belong to another keeper by now: the store does not answer this one",
                remedy="try again when the store is back",
            )

    async def close(self) -> None:
        """End the clocks and the temporary boxes; persistent ones are stopped and come back with the next keeper.

        A conversation's box is left to itself: it waits for the next program that asks for it, as long as it may idle.
        """
        await self._clocks.stop()
        await self.pool.stop()
        await asyncio.gather(*(self.teardown.close(live, visiting=self.visiting) for live in list(self._live.values())))
        for live in self._live.values():
            self.receipts.record_left(live.record)
        await self._let_go()

    async def detach(self) -> None:
        """Go, and leave every box running: the next keeper on this state directory takes them over, jobs and all.
        Until one comes they live by their dead-man's clock (`orphan_grace_sec`)."""
        await self._clocks.stop()
        await self.pool.stop()
        for live in list(self._live.values()):
            async with live.state_lock:  # what is under way with a box comes to its end first
                if self._live.pop(live.record.id, None) is None:
                    continue
                if live.instance is not None:
                    await live.instance.close()
                self.receipts.record_left(live.record)
        await self._let_go()

    async def _let_go(self) -> None:
        await self.engines.close()
        await losses.report_lost(self.states, await self.receipts.close())
        await self.liveness.release()
        await self.store.close()
        self._started = False

    # --- making ---------------------------------------------------------------------------------------------

    async def create(self, spec: Spec, *, session: str, owner: str = LOCAL_OWNER, key: str = "") -> Live:
        """A running box, leased to `session`. With a key, retries and concurrent calls give the same box."""
        self._check_enabled()
        spec = self._admitted(spec)
        if not key:
            return await self._create(spec, session, owner, "")
        return (await self._find_or_create(spec, session, owner, key)).live

    async def _find_or_create(self, spec: Spec, session: str, owner: str, key: str) -> FoundBox:
        """Callers of one key wait for one box, and nobody else waits (lesson 9)."""
        name = f"{owner}\0{key}"
        making = self._making.get(name)
        if making is None:
            making = self._making[name] = asyncio.create_task(self._by_key(spec, session, owner, key))
            making.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(making)

    async def box_for_key(
        self, spec: Spec, key: str, session: str, owner: str = LOCAL_OWNER
    ) -> tuple[Live, tuple[str, ...]]:
        """The box of `key`, leased to `session` and healthy; a broken one is replaced, and the notes say so (S3)."""
        self._check_enabled()
        spec = self._admitted(spec)
        notes: tuple[str, ...] = ()
        live, was_there = await self._find_or_create(spec, session, owner, key)
        if not await self.health.is_usable(live):
            reason = live.record.reason
            await self.teardown.destroy(live, f"replaced: {reason}")
            live = await self.create(spec, session=session, owner=owner, key=key)
            notes = (f"the earlier box was lost ({reason}): its files and jobs are gone",)
            was_there = False
        else:
            await update.fit(self, live, spec)
        live = await self.acquire(live.record.id, session)
        if was_there:
            self.reuses[live.record.spec.profile] += 1
        return live, notes

    def _admitted(self, spec: Spec) -> Spec:
        """The spec as this caller may ask it; Refused where it goes past the operator's word."""
        return rights.admitted(spec, rights.current(), self.config.profile, self.config.profiles)

    async def _by_key(self, spec: Spec, session: str, owner: str, key: str) -> FoundBox:
        existing = await self.store.by_key(owner, key)
        if existing is not None:
            with suppress(Gone):  # lost with its dead keeper: the key is free again
                live = await self.live(existing.id)
                if not live.record.doomed:
                    return FoundBox(live, True)
                await self.teardown.destroy(live, live.record.reason)  # waits for the end that is under way
        try:
            return FoundBox(await self._create(spec, session, owner, key), False)
        except Conflict:
            faster = await self.store.by_key(owner, key)
            if faster is None or faster.keeper == self.id:
                raise
            return FoundBox(await self.live(faster.id), True)  # another process made it meanwhile

    def _check_enabled(self) -> None:
        if not self.config.enabled:
            raise Disabled("Hutch is switched off", op="create", remedy="set enabled = true in hutch.toml")

    async def _create(self, spec: Spec, session: str, owner: str, key: str) -> Live:
        rights.require(rights.current(), Action.CREATE)
        if spec.name:
            await lookup.check_name_free(self.store, spec.name, owner)
        live = await pool.claim(self, spec, self._lease(session), owner, key)
        if live is None:
            live = await self._creator.make(spec, self._lease(session), owner, key)
        try:
            await self.skill_mounts.ensure_shown(live)
            await self._run_created_hooks(live)
        except BaseException:
            await self.teardown.destroy(live, "its created hook failed")
            raise
        self._clocks.start()
        return live

    async def _run_created_hooks(self, live: Live) -> None:
        """Run the `created` hooks until they have succeeded once. A crash in between repeats them: the box's id is
        the key by which a hook can tell."""
        if not self.created or live.record.created_hooks_done:
            return
        async with live.created_hooks_lock:
            if live.record.created_hooks_done:
                return
            for hook in self.created:
                await hook(live.record)
            async with live.state_lock:
                await self.states.update(live.record, into=live, created_hooks_done=True)

    async def _make_for_pool(self, spec: Spec) -> Live:
        return await self._creator.make(spec, None, POOL_OWNER, "")

    def _lease(self, session: str) -> Lease:
        return leases.new_lease(session, time.time(), self.config.lease_sec, key=current_caller().key)

    # --- finding --------------------------------------------------------------------------------------------

    async def live(self, box_id: str) -> Live:
        """The box in this keeper's hands; Gone says when and why it went, HeldElsewhere who has it."""
        live = self._live.get(BoxId(box_id))
        if live is None:
            live = await self._taken_over(BoxId(box_id))
        if live is not None:
            return live
        tombstone = await self.store.tombstone(BoxId(box_id))
        if tombstone is not None:
            raise gone(tombstone)
        raise NotFound(f"no box {box_id}", remedy="`hutch box list` shows those there are")

    def held(self, box_id: BoxId) -> Live | None:
        """The box, if it is in this keeper's hands already."""
        return self._live.get(box_id)

    async def _taken_over(self, box_id: BoxId) -> Live | None:
        """A box that nobody keeps is there for whoever asks for it (P16)."""
        async with self._taking:
            record = await self.store.get(box_id)
            if record is None or box_id in self._live:
                return self._live.get(box_id)
            reconciler = self._reconciler()
            if not await reconciler.abandoned(record):
                raise self._elsewhere(record)
            try:
                live = await reconciler.take(record)
            except Conflict as faster:
                raise self._elsewhere(record) from faster
            if live is not None:
                self._live[box_id] = live
                self._clocks.start()
            return live

    def _elsewhere(self, record: BoxRecord) -> HeldElsewhere:
        return HeldElsewhere(
            f"box {record.id} belongs to another live keeper ({record.keeper})",
            details={"keeper": record.keeper, "box": record.id},
            remedy="use it from the process that made it, or let that process end first",
        )

    async def acquire(self, box_id: str, session: str, *, takeover: bool = False) -> Live:
        """Give `session` the lease: BoxBusy if another live one holds it, unless it is taken over."""
        live = await self.live(box_id)
        if takeover:
            rights.require(rights.current(), Action.TAKEOVER)
        decide: Decide = leases.fields_to_take_over if takeover else leases.fields_to_acquire
        with live.pending_handle(session):
            async with live.state_lock:
                fields = decide(live.record, session, time.time(), self.config.lease_sec)
                kind = "lease" if "epoch" in fields else ""  # a renewal is no event
                reason = f"taken over by {session}" if takeover else f"held by {session}"
                await self.states.update(live.record, into=live, kind=kind, reason=reason, **fields)
            if live.record.state is State.STOPPED:
                await self.restore(live)
            await self.skill_mounts.on_adopted(live)
            await self._run_created_hooks(live)
        return live

    async def release(self, live: Live, session: str, unless: Unless | None = None) -> None:
        """Give up the session's lease. `unless` is asked as at an ending."""
        async with live.state_lock:
            if unless is not None and unless(live):
                return
            lease = live.record.lease
            if lease is not None and leases.holds(lease, session) and live.record.id in self._live:
                await self.states.update(live.record, into=live, kind="lease", reason="released", lease=None)

    async def rename(self, live: Live, name: str) -> None:
        """An empty name is none. Conflict if another live box of its owner has it."""
        if name:
            await lookup.check_name_free(self.store, name, live.record.owner, but=live.record.id)
        async with live.state_lock:
            spec = live.record.spec.but(name=name)
            await self.states.update(
                live.record, into=live, kind="changed", reason=f"named {name or 'nothing'}", spec=spec
            )

    def boxes(self) -> tuple[BoxRecord, ...]:
        """Those in this keeper's hands."""
        return tuple(live.record for live in self._live.values())

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        return await self.store.events(after, limit)

    # --- using ----------------------------------------------------------------------------------------------

    async def order_again(self, record: BoxRecord) -> Order:
        """What the engine is to make of a box that was there before.

        The values of its secrets were never written, so it comes back without them: a program would take the mask that
        the record has in their place for a password.
        """
        if names := sorted(record.spec.secrets):
            log("keeper").warning("a restored box has no secrets: they are not kept", box=record.id, names=names)
        spec = record.spec.but(secrets={})
        return await self._creator.order(record.id, spec, record.owner, record.created_at, record.grace_sec)

    async def restore(self, live: Live) -> None:
        """A stopped persistent box runs again, with its files (P16)."""
        async with live.state_lock:
            if live.record.state is not State.STOPPED:
                return
            if live.record.sealed_env:
                raise Unavailable(
                    f"box {live.record.id} cannot start: its environment is sealed with a key that is not here",
                    retryable=False, remedy="put the state directory's state.key back from the backup",
                )  # fmt: skip
            await self.states.change(live.record, State.RESTORING, into=live, reason="used")
            provider = self.engines.provider(live.record.instance.provider)
            try:
                order = await self.order_again(live.record)
                live.instance = await provider.restore(order, live.record.instance)
            except HutchError as error:
                await self.states.change(live.record, State.STOPPED, into=live, reason=error.message)
                raise
            await self.states.change(
                live.record, State.RUNNING, into=live, reason="restored", instance=live.instance.record,
                skills_mounted=shows_skills(order),
            )  # fmt: skip
        await self.skill_mounts.ensure_shown(live)
        self._clocks.start()

    # --- ending ---------------------------------------------------------------------------------------------

    async def destroy(self, box_id: str, reason: str = "destroyed by a call", unless: Unless | None = None) -> bool:
        """Destroying what is being destroyed waits for it; what is gone already is fine. False: `unless` spared it."""
        try:
            live = await self.live(box_id)
        except Gone:
            return True
        return await self.teardown.destroy(live, reason, unless)

    # --- what the clocks ask for ----------------------------------------------------------------------------

    async def _end_by_clock(self, live: Live, reason: str, unless: Unless) -> None:
        """Idle boxes may sleep first, and end only if nobody wakes them for as long again."""
        pausable = (
            self.config.idle_action == "pause" and reason.startswith("idle") and live.record.state is State.RUNNING
        )
        if not pausable:
            await self.teardown.destroy(live, reason, unless)
            return
        try:
            await pause.pause(self, live, reason)
        except Unsupported:
            await self.teardown.destroy(live, reason, unless)
        else:
            live.last_used = time.monotonic()

    async def _warn(self, live: Live, reason: str) -> None:
        async with live.state_lock:
            if live.record.state in (State.RUNNING, State.PAUSED):  # else it has come to its end meanwhile
                await self.states.update(live.record, into=live, kind="warning", reason=reason)

    async def renew(self, live: Live) -> None:
        """Extend the lease of whoever holds it."""
        async with live.state_lock:
            if live.record.lease is not None:
                lease = leases.renewed_lease(live.record.lease, time.time(), self.config.lease_sec)
                await self.states.update(live.record, into=live, lease=lease)
