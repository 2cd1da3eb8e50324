"""Locks of the keeper: one lock for each key, and work that a cancelled caller cannot interrupt."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class KeyedLocks:
    """One lock for each key. A lock exists only while somebody holds it or waits for it.

    Callers that work on the same thing take turns, and nobody else waits for them.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    def lock(self, *key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())


async def run_uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end even if the caller is cancelled, then re-raise the cancellation.

    If `work` itself fails, its error is raised instead, so that no failure is hidden by a cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        # Awaiting the task itself would pass a cancellation on to it.
        done = task.get_loop().create_future()
        task.add_done_callback(partial(_set_done, done))
        try:
            await done
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    return task.result()


def _set_done(done: "asyncio.Future[None]", _: object) -> None:
    if not done.done():
        done.set_result(None)
