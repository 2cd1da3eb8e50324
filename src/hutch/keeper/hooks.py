"""Hooks of an application: they run for each new box until they have succeeded once, and for each that is gone."""

import asyncio
from collections.abc import Awaitable, Callable

from hutch.keeper.access.callers import keeper_context
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import POOL_OWNER, BoxRecord
from hutch.keeper.boxes.states import States
from hutch.logs import log
from hutch.model.boxes import Event
from hutch.model.ids import BoxId

CreatedHook = Callable[[BoxRecord], Awaitable[None]]
DestroyedHook = Callable[[Event], Awaitable[None]]


class Hooks:
    """The `created` and `destroyed` hooks of one keeper."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.created: list[CreatedHook] = []
        """They run for each box after it is leased, until they have succeeded once. A failure fails the creation."""
        self.destroyed: list[DestroyedHook] = []
        """They run once for each box that is gone, for whatever reason it ended. A failure is logged."""
        self._running: dict[BoxId, asyncio.Task[None]] = {}

    async def run_created(self, live: Live) -> None:
        """Run the `created` hooks unless they have succeeded before.

        A crash in between repeats them; a hook can recognise a repetition by the box's id.
        """
        if not self.created or live.record.created_hooks_done:
            return
        async with live.created_hooks_lock:
            if live.record.created_hooks_done:
                return
            for hook in self.created:
                await hook(live.record)
            await self.mark_created(live)

    async def mark_created(self, live: Live) -> None:
        """Note that the `created` hooks have succeeded, here or in a client of this server."""
        async with live.state_lock:
            if not live.record.created_hooks_done:
                await self._states.update(live.record, into=live, created_hooks_done=True)

    def on_event(self, event: Event) -> None:
        """Start the `destroyed` hooks. A state change is being written, so they run in a task of their own."""
        if event.kind == "gone" and self.destroyed and event.owner != POOL_OWNER:
            self._running[event.box_id] = asyncio.create_task(
                self._run_destroyed(event), name="hutch-destroyed-hooks", context=keeper_context()
            )

    async def finish(self, box_id: BoxId | None = None) -> None:
        """Wait for the running `destroyed` hooks of one box, or of all."""
        running = [task for box, task in self._running.items() if box_id in (None, box)]
        current = asyncio.current_task()
        if waiting := [task for task in running if task is not current]:
            await asyncio.wait(waiting)

    async def _run_destroyed(self, event: Event) -> None:
        for hook in self.destroyed:
            try:
                await hook(event)
            except Exception as error:  # A failing hook of an application is reported; the box is gone all the same.
                log("keeper").error("destroyed hook failed", box=event.box_id, error=repr(error))
        self._running.pop(event.box_id, None)
