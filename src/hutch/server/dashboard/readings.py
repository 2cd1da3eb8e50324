"""Readings that all watching browsers share: the latest events, and the usage of the boxes used last."""

import asyncio
import time
from collections import deque

from hutch.errors import HutchError
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import BoxInfo, Event
from hutch.model.ids import BoxId
from hutch.model.results import Usage
from hutch.model.state import State

EVENTS_KEPT = 500
MAX_USAGES = 60
"""Boxes whose usage is read, those used last."""
FRESH_SECONDS = 1.0
"""A usage that was read within this time is not read again."""


class RecentEvents:
    """The latest events of this server's boxes, so that a page that opens shows what just happened."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.count = 0
        """Number of all events so far; a watcher remembers it to get only newer ones."""

    def add(self, event: Event) -> None:
        self._events.append(event)
        self.count += 1

    def since(self, count: int) -> list[Event]:
        newer = min(self.count - count, len(self._events))
        return list(self._events)[len(self._events) - newer :]


class Usages:
    """Reads the usage of boxes, once for all watchers."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._read: dict[BoxId, tuple[float, Usage]] = {}

    async def of(self, boxes: list[BoxInfo]) -> dict[BoxId, Usage]:
        running = sorted((box for box in boxes if box.state is State.RUNNING), key=lambda box: -box.used_at)
        chosen = [box.id for box in running[:MAX_USAGES]]
        self._read = {box: self._read[box] for box in chosen if box in self._read}
        await asyncio.gather(*(self._refresh(box) for box in chosen))
        return {box: self._read[box][1] for box in chosen if box in self._read}

    async def _refresh(self, box: BoxId) -> None:
        if box in self._read and time.monotonic() - self._read[box][0] < FRESH_SECONDS:
            return
        live = self._keeper.held(box)
        if live is None or live.instance is None:
            return
        try:
            self._read[box] = (time.monotonic(), await live.instance.usage())
        except HutchError:  # A box that does not answer has no usage; its state says what is wrong with it.
            self._read.pop(box, None)
