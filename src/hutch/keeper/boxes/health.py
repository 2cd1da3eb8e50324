"""Health of boxes: a box is checked when there is a reason to, and reached again when its engine is back."""

import asyncio
import time

from hutch.errors import BoxBroken, HutchError, NotFound, Unavailable
from hutch.keeper.boxes.clocks import attach_with_clocks
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import States
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.model.boxes import EventCause, State

HEALTHY_FOR_SECONDS = 30.0
CHECK_SECONDS = 5.0


class Health:
    """Checks boxes and records what it finds."""

    def __init__(self, states: States, engines: Engines) -> None:
        self._states = states
        self._engines = engines

    async def is_usable(self, live: Live) -> bool:
        """Whether the box can be used. It is asked for a real answer, unless it gave one under 30 seconds ago."""
        fresh = time.monotonic() - max(live.last_checked, live.last_used) < HEALTHY_FOR_SECONDS
        if live.record.state is State.RUNNING and not fresh:
            await self.check(live)
        # A stopped box starts when it is used. Replacing it as lost would remove its files.
        return live.record.state in (State.RUNNING, State.PAUSED, State.STOPPED)

    async def is_lost(self, live: Live) -> bool:
        """Whether the box is beyond use, so that another may take its place.

        An unreachable box is tried again first: it is never given up because its engine is away.

        Raises:
            Unavailable: The box still cannot be reached.
        """
        if await self.is_usable(live):
            return False
        if live.record.state is not State.UNKNOWN:
            return True
        try:
            await self.recover(live)
        except BoxBroken:
            return True
        return False

    async def check(self, live: Live) -> None:
        """Check a box once. A broken box becomes `error` with its reason, an unreachable one `unknown`."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await live.running.check()
            live.last_checked = time.monotonic()
        except BoxBroken as broken:
            await self._mark(live, State.ERROR, f"health check failed: {broken.message}", EventCause.HEALTH_CHECK)
        except (HutchError, TimeoutError) as error:
            self._engines.forget_probe(live.record.instance.provider)
            reason = f"health check failed: {error or 'no answer'}"
            await self._mark(live, State.UNKNOWN, reason, EventCause.HEALTH_CHECK)

    async def mark_broken(self, live: Live, reason: str) -> None:
        """Record that the box is broken, so that it can only be destroyed."""
        await self._mark(live, State.ERROR, reason)

    async def recover(self, live: Live) -> None:
        """Try again to reach a box in state `unknown`, with its jobs, because somebody uses it.

        Raises:
            Unavailable: The engine is still away.
            BoxBroken: The box is lost.
        """
        await run_uncancelled(self._recover(live))

    async def _recover(self, live: Live) -> None:
        async with live.state_lock:
            if live.record.state is not State.UNKNOWN:
                return
            await self._states.change(live.record, State.RESTORING, into=live, reason="used again")
            provider = self._engines.provider(live.record.instance.provider)
            try:
                instance = await attach_with_clocks(provider, live.record)
            except NotFound as gone:
                await self._states.change(live.record, State.ERROR, into=live, reason=f"lost: {gone.message}")
                raise BoxBroken(f"box {live.record.id} is lost: {gone.message}", remedy="destroy it") from gone
            except HutchError as error:
                self._engines.forget_probe(provider.name)
                await self._states.change(live.record, State.UNKNOWN, into=live, reason=error.message)
                raise Unavailable(f"box {live.record.id} cannot be reached: {error.message}") from error
            if live.instance is not None:
                await live.instance.close()
            live.instance = instance
            await self._states.change(
                live.record, State.RUNNING, into=live, reason="reached again", instance=instance.record
            )

    async def _mark(self, live: Live, state: State, reason: str, cause: EventCause | None = None) -> None:
        async with live.state_lock:
            if live.record.state in (State.RUNNING, State.PAUSED):
                await self._states.change(live.record, state, into=live, reason=reason, cause=cause)
