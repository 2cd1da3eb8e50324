"""Whether a box still answers: asked when there is a reason to ask, not on every call (lesson 14)."""

import asyncio
import time

from hutch.errors import BoxBroken, HutchError, NotFound, Unavailable
from hutch.keeper.boxes.clocks import attach_with_clocks
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import States
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.model.state import State

HEALTHY_FOR_SECONDS = 30.0
CHECK_SECONDS = 5.0


class Health:
    """Looks at boxes, and writes down what it finds."""

    def __init__(self, states: States, engines: Engines) -> None:
        self._states = states
        self._engines = engines

    async def is_usable(self, live: Live) -> bool:
        """One real answer from the box, unless it gave one under 30 seconds ago (S3)."""
        fresh = time.monotonic() - max(live.last_checked, live.last_used) < HEALTHY_FOR_SECONDS
        if live.record.state is State.RUNNING and not fresh:
            await self.check(live)
        # A stopped box is a good one that starts when it is used: taking it for lost would remove its files.
        return live.record.state in (State.RUNNING, State.PAUSED, State.STOPPED)

    async def check(self, live: Live) -> None:
        """Look at a box once; a broken one becomes `error` with its reason, an unreachable one `unknown`."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await live.running.check()
            live.last_checked = time.monotonic()
        except BoxBroken as broken:
            await self.mark_broken(live, f"health check failed: {broken.message}")
        except (HutchError, TimeoutError) as error:
            self._engines.doubt(live.record.instance.provider)
            await self._mark(live, State.UNKNOWN, f"health check failed: {error or 'no answer'}")

    async def mark_broken(self, live: Live, reason: str) -> None:
        """The box is broken, and only destroying it is left."""
        await self._mark(live, State.ERROR, reason)

    async def _mark(self, live: Live, state: State, reason: str) -> None:
        async with live.state_lock:
            if live.record.state in (State.RUNNING, State.PAUSED):
                await self._states.change(live.record, state, into=live, reason=reason)


async def recover(live: Live, states: States, engines: Engines) -> None:
    """From `unknown` to `running`, with its jobs. Unavailable while the engine is away, BoxBroken if it is lost."""
    await run_uncancelled(_recover(live, states, engines))


async def _recover(live: Live, states: States, engines: Engines) -> None:
    async with live.state_lock:
        if live.record.state is not State.UNKNOWN:
            return
        await states.change(live.record, State.RESTORING, into=live, reason="used again")
        provider = engines.provider(live.record.instance.provider)
        try:
            instance = await attach_with_clocks(provider, live.record)
        except NotFound as gone:
            await states.change(live.record, State.ERROR, into=live, reason=f"lost: {gone.message}")
            raise BoxBroken(f"box {live.record.id} is lost: {gone.message}", remedy="destroy it") from gone
        except HutchError as error:
            engines.doubt(provider.name)
            await states.change(live.record, State.UNKNOWN, into=live, reason=error.message)
            raise Unavailable(f"box {live.record.id} cannot be reached: {error.message}") from error
        if live.instance is not None:
            await live.instance.close()
        live.instance = instance
        await states.change(live.record, State.RUNNING, into=live, reason="reached again", instance=instance.record)
