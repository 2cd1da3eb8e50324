"""How boxes end: one path for a call, a clock, a failure and a shutdown."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from hutch.errors import Conflict, HutchError
from hutch.keeper.access.leases import surviving_lease
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.pause import Pauser
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.boxes.states import States, describe_state
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.logs import log
from hutch.model.boxes import EventCause, State
from hutch.model.ids import BoxId
from hutch.model.spec import Retention

Hook = Callable[[BoxRecord], Awaitable[None]]
Unless = Callable[[Live], bool]
"""Returns True to spare the box. It may raise instead, to say why."""

DESTROY_ATTEMPTS = 3
_KEEPER_CLOSED = "its keeper closed"


class Teardown:
    """Destroys, stops and leaves boxes. `boxes` is the keeper's own dictionary, from which ended boxes are removed."""

    def __init__(self, states: States, engines: Engines, pauser: Pauser, boxes: dict[BoxId, Live]) -> None:
        self._states = states
        self._engines = engines
        self._pauser = pauser
        self._boxes = boxes
        self.destroyed_hooks: list[Hook] = []
        """What the keeper's own parts do after a destruction; `Hooks` runs those of the application."""
        self.on_destroyed: list[Callable[[Live], None]] = []
        """Called at once for the keeper's own parts, before the hooks."""

    async def destroy(self, live: Live, reason: str, cause: EventCause, unless: Unless | None = None) -> bool:
        """Destroy a box. A second caller waits for the first, and finds the box gone.

        `unless` is asked while no other change is under way, because what was true before may have changed. False is
        returned if it spared the box.
        """
        return await run_uncancelled(self._destroy(live, reason, cause, unless))

    async def _destroy(self, live: Live, reason: str, cause: EventCause, unless: Unless | None) -> bool:
        async with live.state_lock:
            if live.record.id not in self._boxes:
                return True
            if unless is not None and unless(live):
                return False
            live.end_cause = cause
            if live.record.state is not State.STOPPING:
                await self._states.change(
                    live.record, State.STOPPING, into=live, reason=reason, cause=cause, doomed=True
                )
            elif not live.record.doomed:  # A stop has failed half-way.
                await self._states.update(live.record, into=live, doomed=True)
            await self._close_instance(live)
            await self._destroy_at_engine(live)
            live.tombstone = await self._states.forget(live.record, reason, cause)
            del self._boxes[live.record.id]
        for notify in self.on_destroyed:
            notify(live)
        for hook in self.destroyed_hooks:
            await self._run_hook(hook, live.record)
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
            await self._close_instance(live)
            await self._engines.provider(live.record.instance.provider).stop(live.record.instance)
            lease = surviving_lease(live.record.lease)
            await self._states.change(live.record, State.STOPPED, into=live, reason=reason, lease=lease)

    async def close(self, live: Live, *, visiting: bool) -> None:
        """End a box with its keeper: temporary boxes are destroyed, persistent ones stopped for the next keeper.

        A conversation's box is left to itself, and so is whatever a visiting keeper used or an earlier keeper left.
        """
        record = live.record
        runs = record.state in (State.RUNNING, State.PAUSED)
        persistent = record.spec.retention is Retention.PERSISTENT
        try:
            if visiting or record.left_at:
                await self.leave(live)
            elif record.is_scoped and runs and not persistent:
                # The clock of a frozen box stands still, so it would never end.
                await self._pauser.resume(live, _KEEPER_CLOSED)
                await self.leave(live)
            elif not persistent:
                await self.destroy(live, _KEEPER_CLOSED, EventCause.SHUTDOWN)
            elif runs:
                await self.stop(live, _KEEPER_CLOSED)
        except HutchError as error:
            log("keeper").error("box not ended at close", box=record.id, error=str(error))

    async def leave(self, live: Live) -> None:
        """Leave one box to itself: it lives by its dead-man's clock, and by its jobs, until somebody asks for it.

        No keeper takes it over unasked before that clock has run out, and none ends it by closing.
        """
        async with live.state_lock:
            if self._boxes.pop(live.record.id, None) is None:
                return
            now = time.time()
            used_at = now - (time.monotonic() - live.last_used)
            try:
                await self._states.update(live.record, into=live, left_at=now, used_at=used_at)
                if live.instance is not None and live.record.state is State.RUNNING:
                    await live.instance.let_jobs_keep_box()
            except HutchError as error:
                log("keeper").warning("box left without a note", box=live.record.id, error=str(error))
            await self._close_instance(live)

    async def _close_instance(self, live: Live) -> None:
        if live.instance is not None:
            await live.instance.close()
            live.instance = None

    async def _destroy_at_engine(self, live: Live) -> None:
        """Try a few times; then the box is in state `error`, and still counts while its resource exists."""
        provider = self._engines.provider(live.record.instance.provider)
        for attempt in range(1, DESTROY_ATTEMPTS + 1):
            try:
                await provider.destroy(live.record.instance)
            except HutchError as error:
                if attempt == DESTROY_ATTEMPTS:
                    reason = f"could not be destroyed: {error.message}"
                    await self._states.change(live.record, State.ERROR, into=live, reason=reason)
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def _run_hook(self, hook: Hook, record: BoxRecord) -> None:
        try:
            await hook(record)
        except Exception as error:  # A failing hook of an application is reported; the box is gone all the same.
            log("keeper").error("destroyed hook failed", box=record.id, error=repr(error))
