"""Creation of boxes in the background: the caller gets the id as soon as the intent is in the store."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hutch import logs
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.spec import Spec

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper

# The keeper calls its listeners in the context of the task that creates the box, so this finds the waiting caller.
_announced: ContextVar["asyncio.Future[BoxId] | None"] = ContextVar("hutch_announced", default=None)


class Creations:
    """Creates boxes for callers, who may wait for them or not."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        self._background: set[asyncio.Task[Live]] = set()
        self._by_box: dict[BoxId, asyncio.Task[Live]] = {}
        """The creations in progress whose box is known already."""

    async def create(self, spec: Spec, *, session: str, owner: str, key: str) -> BoxRecord:
        """Create a box and wait until it runs."""
        return (await self._keeper.create(spec, session=session, owner=owner, key=key)).record

    async def begin(self, spec: Spec, *, session: str, owner: str, key: str) -> BoxRecord:
        """Start to create a box, which may still be `creating` on return; errors of the request are raised here."""
        announced: asyncio.Future[BoxId] = asyncio.get_running_loop().create_future()
        token = _announced.set(announced)
        try:
            creation = self._start(self._keeper.create(spec, session=session, owner=owner, key=key))
        finally:
            _announced.reset(token)
        waiting: set[asyncio.Future[Any]] = {creation, announced}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if creation.done():
            return creation.result().record
        box_id = announced.result()
        self._by_box[box_id] = creation
        creation.add_done_callback(lambda _: self._by_box.pop(box_id, None))
        return (await self._keeper.live(box_id)).record

    async def wait_for(self, box_id: BoxId) -> None:
        """Wait for a creation in progress. Its error is raised if it fails."""
        if (creation := self._by_box.get(box_id)) is not None:
            await asyncio.shield(creation)

    def on_event(self, event: Event) -> None:
        """Listen to the keeper's events for the id of a box that is being created."""
        announced = _announced.get()
        if event.kind == "created" and announced is not None and not announced.done():
            announced.set_result(event.box_id)

    async def finish(self, seconds: float) -> None:
        """Wait for creations in progress; those that take longer are cancelled and leave nothing behind."""
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
            logs.log("keeper").warning("box not created", error=error)
