"""Boxes that are made while nobody waits: the caller gets the id as soon as the intent is written (P5)."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from hutch import logs
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.spec import Spec

# The keeper tells its listeners in the context of the task that makes the box; so this finds whose box it is.
_announced: ContextVar["asyncio.Future[BoxId] | None"] = ContextVar("hutch_announced", default=None)


class Creations:
    """Makes boxes for callers, who may or may not wait for them."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._background: set[asyncio.Task[Live]] = set()

    async def make(self, spec: Spec, *, session: str, owner: str, key: str) -> BoxRecord:
        """A running box."""
        return (await self._keeper.create(spec, session=session, owner=owner, key=key)).record

    async def begin(self, spec: Spec, *, session: str, owner: str, key: str) -> BoxRecord:
        """A box that may still be `creating`; what is wrong with the request itself is raised here."""
        announced: asyncio.Future[BoxId] = asyncio.get_running_loop().create_future()
        token = _announced.set(announced)
        try:
            making = self._start(self._keeper.create(spec, session=session, owner=owner, key=key))
        finally:
            _announced.reset(token)
        waiting: set[asyncio.Future[Any]] = {making, announced}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return making.result().record
        return (await self._keeper.live(announced.result())).record

    def heard(self, event: Event) -> None:
        """A listener of the keeper's states."""
        announced = _announced.get()
        if event.kind == "created" and announced is not None and not announced.done():
            announced.set_result(event.box_id)

    async def finish(self, seconds: float) -> None:
        """Let what is being made be made; what takes longer is cancelled, and nothing of it remains."""
        if not self._background:
            return
        _, late = await asyncio.wait(self._background, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Live]) -> asyncio.Task[Live]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Live]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.log("server").warning("box not created", error=error)
