"""Open streams of sandboxes, so that a pause or an end can cut them."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import suppress

CLOSE_SECONDS = 5.0
"""How long to wait until a stream that was cut has released the box."""


class Cut(Exception):
    """The stream was ended because its sandbox ends or is paused."""


class Streams:
    """The streams that are open now, by sandbox."""

    def __init__(self) -> None:
        self._open: defaultdict[str, dict[asyncio.Timeout, asyncio.Event]] = defaultdict(dict)
        self._being_cut: set[asyncio.Timeout] = set()
        """Streams that are ending. They are not cut again, because a timeout that has expired cannot be rescheduled."""

    async def run(self, sandbox: str, work: Awaitable[None]) -> None:
        """Run `work`, which sends a stream, to its end. Raises Cut if `cut` ended it."""
        ended = asyncio.Event()
        try:
            async with asyncio.timeout(None) as scope:
                self._open[sandbox][scope] = ended
                try:
                    await work
                finally:
                    self._being_cut.discard(scope)
                    del self._open[sandbox][scope]
                    if not self._open[sandbox]:
                        del self._open[sandbox]
                    ended.set()
        except TimeoutError:
            if not scope.expired():
                raise
            raise Cut from None

    async def cut(self, sandbox: str) -> None:
        """Cut every stream of a sandbox, and wait until none of them uses it any more."""
        cut = dict(self._open.get(sandbox, {}))
        for scope in cut.keys() - self._being_cut:
            self._being_cut.add(scope)
            scope.reschedule(0.0)
        with suppress(TimeoutError):  # Whoever needs the sandbox unused checks that itself.
            async with asyncio.timeout(CLOSE_SECONDS):
                for ended in cut.values():
                    await ended.wait()

    async def cut_all(self) -> None:
        await asyncio.gather(*(self.cut(sandbox) for sandbox in tuple(self._open)))
