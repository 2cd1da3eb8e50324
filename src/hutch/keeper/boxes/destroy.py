"""How boxes end: one path for a call, a clock, a failure and a shutdown."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from hutch.errors import Conflict, HutchError
from hutch.keeper.access.leases import surviving_lease
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.boxes.states import States, describe_state
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.logs import log
from hutch.model.ids import BoxId
from hutch.model.spec import Retention
from hutch.model.state import State

Hook = Callable[[BoxRecord], Awaitable[None]]
Unless = Callable[[Live], bool]
"""True: the box stays. It may raise instead, to say why."""

TRIES = 3


class Teardown:
    """Destroys and stops; `boxes` is the keeper's own dictionary, from which a box that is gone is taken."""

    def __init__(self, states: States, engines: Engines, boxes: dict[BoxId, Live]) -> None:
        self._states = states
        self._engines = engines
        self._boxes = boxes
        self.destroyed_hooks: list[Hook] = []
        """Run after every destruction, on every path (P10)."""
        self.on_destroyed: list[Callable[[Live], None]] = []
        """The keeper's own parts that must know at once."""

    async def destroy(self, live: Live, reason: str, unless: Unless | None = None) -> bool:
        """Whoever comes second waits for the first, and finds the box gone. `unless` is asked when no other change is
        under way: what was true before may be so no more. False: it was, and the box lives."""
        return await run_uncancelled(self._destroy(live, reason, unless))

    async def _destroy(self, live: Live, reason: str, unless: Unless | None) -> bool:
        async with live.state_lock:
            if live.record.id not in self._boxes:
                return True
            if unless is not None and unless(live):
                return False
            if live.record.state is not State.STOPPING:
                await self._states.change(live.record, State.STOPPING, into=live, reason=reason, doomed=True)
            elif not live.record.doomed:  # a stop that failed half-way
                await self._states.update(live.record, into=live, doomed=True)
            await self._let_go(live)
            await self._at_engine(live)
            live.tombstone = await self._states.forget(live.record, reason)
            del self._boxes[live.record.id]
        for told in self.on_destroyed:
            told(live)
        for hook in self.destroyed_hooks:
            await self._call(hook, live.record)
        return True

    async def stop(self, live: Live, reason: str) -> None:
        """End a persistent box's processes and keep its files."""
        await run_uncancelled(self._stop(live, reason))

    async def _stop(self, live: Live, reason: str) -> None:
        async with live.state_lock:
            if live.record.spec.retention is not Retention.PERSISTENT:
                raise Conflict(
                    f"box {live.record.id} is temporary: stopping it would lose its files",
                    remedy="destroy it, or create boxes with retention=persistent",
                )
            if live.record.state not in (State.RUNNING, State.PAUSED):
                raise Conflict(describe_state(live.record))
            await self._states.change(live.record, State.STOPPING, into=live, reason=reason)
            await self._let_go(live)
            await self._engines.provider(live.record.instance.provider).stop(live.record.instance)
            lease = surviving_lease(live.record.lease)
            await self._states.change(live.record, State.STOPPED, into=live, reason=reason, lease=lease)

    async def close(self, live: Live, *, visiting: bool) -> None:
        """The keeper goes: temporary boxes with it, persistent ones stay for the next keeper, stopped.

        A conversation's box is left to itself, and so is whatever a visiting keeper used, or an earlier one left.
        """
        record, reason = live.record, "its keeper closed"
        runs = record.state in (State.RUNNING, State.PAUSED)
        persistent = record.spec.retention is Retention.PERSISTENT
        try:
            if visiting or record.left_at:
                await self.leave(live)
            elif record.is_scoped and runs and not persistent:
                await self._wake(live)  # the clock of a frozen box stands still, so it would never end
                await self.leave(live)
            elif not persistent:
                await self.destroy(live, reason)
            elif runs:
                await self.stop(live, reason)
        except HutchError as error:
            log("keeper").error("box not ended at close", box=record.id, error=str(error))

    async def _wake(self, live: Live) -> None:
        async with live.state_lock:
            if live.record.state is State.PAUSED:
                await live.running.resume()
                await self._states.change(live.record, State.RUNNING, into=live, reason="its keeper closed")

    async def leave(self, live: Live) -> None:
        """Leave one box to itself: it lives by its dead-man's clock, and by its jobs, until somebody asks for it. No
        keeper takes it over unasked before that clock has run out, and none ends it by closing."""
        async with live.state_lock:
            if self._boxes.pop(live.record.id, None) is None:
                return
            now = time.time()
            used = now - (time.monotonic() - live.last_used)
            try:
                await self._states.update(live.record, into=live, left_at=now, used_at=used)
                if live.instance is not None and live.record.state is State.RUNNING:
                    await live.instance.work_alone()
            except HutchError as error:
                log("keeper").warning("box left without a note", box=live.record.id, error=str(error))
            await self._let_go(live)

    async def _let_go(self, live: Live) -> None:
        if live.instance is not None:
            await live.instance.close()
            live.instance = None

    async def _at_engine(self, live: Live) -> None:
        """Bounded tries; then the box is `error`, inspectable, and still counted while its resource lives (P9)."""
        provider = self._engines.provider(live.record.instance.provider)
        for attempt in range(1, TRIES + 1):
            try:
                await provider.destroy(live.record.instance)
            except HutchError as error:
                if attempt == TRIES:
                    reason = f"could not be destroyed: {error.message}"
                    await self._states.change(live.record, State.ERROR, into=live, reason=reason)
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def _call(self, hook: Hook, record: BoxRecord) -> None:
        try:
            await hook(record)
        except Exception as error:  # an application's hook: its failure is reported, the box is gone all the same
            log("keeper").error("destroyed hook failed", box=record.id, error=repr(error))
