"""Takeover of boxes whose keeper is dead: they are re-attached, or destroyed and then forgotten.

Nothing of a living keeper is touched, and no record is removed before its engine has destroyed the box.
"""

import asyncio
import time
from collections.abc import Callable

from hutch.config import Config
from hutch.errors import BoxBroken, Conflict, HeldElsewhere, HutchError, NotFound, Unavailable
from hutch.keeper.access.callers import current_caller
from hutch.keeper.access.leases import surviving_lease
from hutch.keeper.boxes.clocks import attach_with_clocks, orphan_grace
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.boxes.states import States
from hutch.keeper.engines import Engines
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.liveness import Liveness
from hutch.logs import log
from hutch.model.boxes import EventCause, State
from hutch.model.ids import BoxId
from hutch.model.results import JobState
from hutch.model.spec import Retention
from hutch.model.units import format_seconds

_UNFINISHED = (State.CREATING, State.STOPPING, State.ERROR)


class Reconciler:
    """Takes over boxes of dead keepers for one keeper, and removes from the engines what nobody keeps."""

    def __init__(
        self,
        keeper: str,
        store: Store,
        states: States,
        engines: Engines,
        liveness: Liveness,
        config: Config,
        live: dict[BoxId, Live],
    ) -> None:
        """`live` holds the keeper's boxes; those that are taken over are added to it."""
        self._keeper = keeper
        self._store = store
        self._states = states
        self._engines = engines
        self._liveness = liveness
        self._config = config
        self._live = live
        self._lock = asyncio.Lock()
        """Held during takeovers, so that two calls that find the same abandoned box do not race."""

    async def run(self, visiting: bool) -> list[Live]:
        """Take over the boxes of dead keepers, sweep the engines, and return what was taken over.

        A visiting keeper leaves the boxes whose keeper died to those who ask for them. A box that was left on purpose
        is left alone until its grace period is over.
        """
        adopted: list[Live] = []
        async with self._lock:
            for record in await self._store.all():
                if record.is_waiting(time.time()) or (visiting and not record.left_at):
                    continue
                if not await self._is_abandoned(record) or await has_running_job(self._engines, record):
                    continue
                try:
                    live = await self._take(record)
                except Conflict:
                    continue  # another keeper was faster
                except HutchError as error:
                    log("reconcile").warning("box left for later", box=record.id, error=str(error))
                    continue
                if live is not None:
                    adopted.append(live)
            await self._sweep_engines()
            self._live.update((live.record.id, live) for live in adopted)
        return adopted

    async def take_over(self, box_id: BoxId) -> Live | None:
        """Return a box that somebody asks for: this keeper's own, or one taken over; None if there is none.

        Raises:
            HeldElsewhere: Another live keeper has it.
        """
        async with self._lock:
            record = await self._store.get(box_id)
            if record is None or box_id in self._live:
                return self._live.get(box_id)
            if not await self._is_abandoned(record):
                raise await self._held_elsewhere(record)
            try:
                live = await self._take(record)
            except Conflict as faster:
                raise await self._held_elsewhere(record) from faster
            if live is not None:
                self._live[box_id] = live
            return live

    async def check_place(self, box_id: BoxId) -> None:
        """Raise HeldElsewhere if another live keeper has the box. Nothing is taken over: nobody knows yet who asks."""
        record = None if box_id in self._live else await self._store.get(box_id)
        if record is not None and record.keeper != self._keeper and not await self._is_abandoned(record):
            raise await self._held_elsewhere(record)

    async def _held_elsewhere(self, record: BoxRecord) -> HeldElsewhere:
        return HeldElsewhere(
            f"box {record.id} belongs to another live keeper ({record.keeper})",
            details={"keeper": record.keeper, "box": record.id, "url": await self._liveness.address(record.keeper)},
            remedy="use it from the process that made it, or let that process end first",
        )

    async def drop_lost(self, dropped: Callable[[Live], None]) -> None:
        """Drop the boxes that other keepers took over because they took this one for dead; call `dropped` for each."""
        async with self._lock:  # A box that is being taken over must be checked too.
            for live in list(self._live.values()):
                async with live.state_lock:
                    if live.record.id not in self._live or await self._states.reassert(live, self._keeper):
                        continue
                    log("keeper").warning("box was taken over by another keeper", box=live.record.id)
                    del self._live[live.record.id]
                    dropped(live)
                    if live.instance is not None:
                        await live.instance.close()

    async def _is_abandoned(self, record: BoxRecord) -> bool:
        """Whether its keeper is dead and we can reach it: a box on another machine is left to keepers there."""
        if record.keeper == self._keeper or record.place not in ("", self._liveness.place):
            return False
        return not await self._liveness.alive(record.keeper)

    async def _take(self, record: BoxRecord) -> Live | None:
        """Make the box this keeper's; None if there was nothing left to keep.

        Raises:
            Conflict: another keeper was faster.
        """
        # The epoch increases too: if its keeper was only slow, the handles it gave out become stale.
        # A box that was left on purpose changes its keeper with every command, which is no event.
        lease = surviving_lease(record.lease, asking=current_caller().session)
        record = await self._states.update(
            record,
            keeper=self._keeper,
            epoch=record.epoch + 1,
            lease=lease,
            left_lease=None if lease is not None else record.lease or record.left_lease,
            grace_sec=self._grace_of(record),
            kind="" if record.left_at else "adopted",
            reason="its keeper died",
        )
        kept = record.spec.retention is Retention.PERSISTENT and not record.doomed
        if kept and record.state in (State.STOPPING, State.ERROR):
            return await self._finish_stop(record, "its keeper died")
        if record.state in _UNFINISHED:
            await self._finish_end(record, "left half made by a keeper that died", EventCause.LOST)
            return None
        if record.state is State.STOPPED:
            return Live(record)
        return await self._reattach(record)

    def _grace_of(self, record: BoxRecord) -> float:
        """A box that was left on purpose keeps the grace period that `--keep` gave it."""
        return record.grace_sec if record.left_at else orphan_grace(self._config, record.spec, record.idempotency_key)

    async def _reattach(self, record: BoxRecord) -> Live | None:
        provider = self._engines.provider(record.instance.provider)
        was_paused = record.state is State.PAUSED
        live = Live(record)
        try:
            live.instance = await attach_with_clocks(provider, record)
        except NotFound as gone:
            if record.spec.retention is Retention.PERSISTENT:
                return await self._finish_stop(record, _loss_reason(record, gone)[0])
            await self._finish_end(record, *_loss_reason(record, gone))
            return None
        except (Unavailable, Conflict) as error:
            if record.state is not State.UNKNOWN:
                live.record = await self._states.change(record, State.UNKNOWN, reason=error.message)
            return live
        except BoxBroken as broken:
            if record.state is State.UNKNOWN:
                record = await self._states.change(record, State.RESTORING, reason="adopted after a restart")
            live.record = await self._states.change(record, State.ERROR, reason=broken.message)
            return live
        if was_paused or record.state is State.UNKNOWN:
            middle = State.RUNNING if was_paused else State.RESTORING
            if was_paused:
                await live.instance.resume()
            record = await self._states.change(record, middle, reason="adopted after a restart")
        if record.state is not State.RUNNING:
            record = await self._states.change(record, State.RUNNING, reason="adopted after a restart")
        if live.instance.record != record.instance:
            # A restore got further than its record says: without this a destroy would look for the previous instance.
            record = await self._states.update(record, instance=live.instance.record)
        live.record = record
        live.last_used = time.monotonic()
        return live

    async def _finish_stop(self, record: BoxRecord, reason: str) -> Live:
        if record.state is not State.STOPPING:
            record = await self._states.change(record, State.STOPPING, reason=reason)
        await self._engines.provider(record.instance.provider).stop(record.instance)
        return Live(await self._states.change(record, State.STOPPED, reason=reason))

    async def _finish_end(self, record: BoxRecord, reason: str, cause: EventCause) -> None:
        if record.state is not State.STOPPING:
            record = await self._states.change(record, State.STOPPING, reason=reason, cause=cause, doomed=True)
        await self._engines.provider(record.instance.provider).destroy(record.instance)
        await self._states.forget(record, reason, cause)

    async def _sweep_engines(self) -> None:
        """Remove boxes that an engine lists and no record knows, if their keeper is dead, and other remains."""
        known = {record.id for record in await self._store.all()}
        for provider in self._engines.in_use():
            if provider.portable:
                # Keepers of other stores, whose liveness we cannot check, may have boxes there: only remains go.
                try:
                    await provider.sweep()
                except HutchError as error:
                    log("reconcile").warning("remains left for later", provider=provider.name, error=error.message)
                continue
            for instance in await provider.list():
                # A box without a keeper's name may be starting; `hutch prune` finds it later. Files of a stopped
                # persistent box stay, even if its record is lost.
                if instance.box_id in known or not instance.keeper or instance.data.get("store"):
                    continue
                if not await self._liveness.alive(instance.keeper):
                    await provider.destroy(instance)
            await provider.sweep()


async def has_running_job(engines: Engines, record: BoxRecord) -> bool:
    """Whether a box that was left on purpose has a running job; then no keeper takes it over unasked."""
    if not record.left_at or record.state is not State.RUNNING:
        return False
    try:
        instance = await engines.provider(record.instance.provider).attach(record.instance, record.spec)
    except HutchError:
        return False  # the keeper that takes it over finds out what happened
    try:
        return any(job.state is JobState.RUNNING for job in await instance.jobs())
    except HutchError:
        return False
    finally:
        await instance.close()


def _loss_reason(record: BoxRecord, gone: NotFound) -> tuple[str, EventCause]:
    """Say why a box that should run is gone: its own clock ended it, or the cause is unknown."""
    if record.left_at and not record.is_waiting(time.time()):
        return f"nobody used it for {format_seconds(record.grace_sec)}", EventCause.IDLE
    return f"lost: {gone.message}", EventCause.LOST
