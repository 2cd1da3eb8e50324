"""Hooks of a program that is a server's client: they run here, and the server remembers that they have succeeded."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from hutch.errors import HutchError
from hutch.logs import log
from hutch.model.boxes import Event

if TYPE_CHECKING:
    from hutch.api import CreatedHook, DestroyedHook
    from hutch.client.boxes import RemoteBox

WAIT_SECONDS = 25.0
"""How long one request waits for the next event."""
RETRY_SECONDS = 1.0

ReadEvents = Callable[[int, float], Awaitable[tuple[tuple[Event, ...], int]]]
"""Reads the events after a number, waiting up to some seconds for one; returns them and the number reached."""


class ClientHooks:
    """The `created` and `destroyed` hooks of one client, shared by its views for other sessions."""

    def __init__(self, read_events: ReadEvents) -> None:
        self._read_events = read_events
        self._created: list[CreatedHook] = []
        self._destroyed: list[DestroyedHook] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held per box while its `created` hooks run, so that two tasks do not run them at once."""
        self._follower: asyncio.Task[None] | None = None

    def add_created(self, hook: "CreatedHook") -> None:
        self._created.append(hook)

    async def add_destroyed(self, hook: "DestroyedHook") -> None:
        """Add a hook; it hears of every box that is gone after this returns."""
        self._destroyed.append(hook)
        if self._follower is None:
            cursor = 0
            while True:
                _, reached = await self._read_events(cursor, 0.0)
                if reached == cursor:
                    break
                cursor = reached
            self._follower = asyncio.create_task(self._follow(cursor), name="hutch-destroyed-hooks")

    async def run_created(self, box: "RemoteBox") -> None:
        """Run the `created` hooks unless they have succeeded before."""
        if not self._created or box.created_hooks_done:
            return
        async with self._locks.setdefault(box.id, asyncio.Lock()):
            if not (await box.info()).created_hooks_done:
                for hook in self._created:
                    await hook(box)
                await box.mark_created()

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None

    async def _follow(self, cursor: int) -> None:
        """Read events without end. A server that is away is asked again: its events wait in its store."""
        while True:
            try:
                events, cursor = await self._read_events(cursor, WAIT_SECONDS)
            except HutchError as error:
                log("client").warning("events cannot be read now", error=error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for event in events:
                if event.kind == "gone":
                    await self._run_destroyed(event)

    async def _run_destroyed(self, event: Event) -> None:
        for hook in self._destroyed:
            try:
                await hook(event)
            except Exception as error:  # A failing hook of an application is reported, and the next event comes.
                log("client").error("destroyed hook failed", box=event.box_id, error=repr(error))
