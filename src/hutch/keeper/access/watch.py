"""A watch through the keeper: the box is pinned from the moment the watch is in place until it is closed."""

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

from hutch.errors import HutchError
from hutch.model.files import Change
from hutch.model.receipts import Details

if TYPE_CHECKING:
    from hutch.api import Watch
    from hutch.keeper.access.files import Guard


class GuardedWatch:
    """Enter it, or await its first change."""

    def __init__(self, guard: "Guard", path: str, *, recursive: bool) -> None:
        self._guard = guard
        self._path = path
        self._recursive = recursive
        self._inner: Watch | None = None
        self._held = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        try:
            return await anext(await self._begin())
        except (StopAsyncIteration, HutchError):
            await self.aclose()
            raise

    async def _begin(self) -> "Watch":
        if self._closed:
            raise StopAsyncIteration
        if self._inner is None:
            self._loop = asyncio.get_running_loop()
            async with AsyncExitStack() as stack:
                told: Details = {"path": self._path, "recursive": self._recursive}
                await stack.enter_async_context(self._guard.operation("files.watch", told))
                instance = await self._guard.begin()
                stack.callback(self._guard.end)
                watch = instance.files.watch(self._path, recursive=self._recursive)
                self._inner = await stack.enter_async_context(watch)
                self._held = stack.pop_all()
        return self._inner

    async def aclose(self) -> None:
        self._closed = True
        await self._held.aclose()

    def __del__(self) -> None:
        # Left by `break`: the box must not stay pinned. The collector may run in another thread.
        if self._inner is not None and not self._closed and self._loop is not None:
            loop, held = self._loop, self._held
            with suppress(RuntimeError):  # the loop is closed, and all with it
                loop.call_soon_threadsafe(lambda: loop.create_task(held.aclose()))
