"""Turns: one lock for each thing that has a name, kept no longer than somebody holds it or waits for it."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary


class Turns:
    """Whoever works on the same thing takes turns; nobody else waits (lesson 9)."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    def of(self, *name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A cancellation waits until it is done, however often it comes; its error goes first."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        # Not the task itself, which a cancellation would reach through it.
        end = task.get_loop().create_future()
        task.add_done_callback(partial(_tell, end))
        try:
            await end
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    return task.result()


def _tell(end: "asyncio.Future[None]", _: object) -> None:
    if not end.done():
        end.set_result(None)
