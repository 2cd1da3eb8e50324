"""One plain box for many checks, where boxes are expensive: emptied after each, destroyed after a failure."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from hutch.model.results import Result
from hutch.providers.base import Command, Instance

# This ends every process but the first and itself (`kill -1` spares its caller), then removes every file.
_EMPTY = 'kill -9 -1 2>/dev/null; find /workspace /tmp "$HOME" -mindepth 1 -maxdepth 1 -exec rm -rf {} +'


class CommonBox:
    """A box that is created at first use, and again after a failure had it destroyed."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Instance]], patience: float) -> None:
        self._make = make
        self._patience = patience
        self._made = AsyncExitStack()
        self._box: Instance | None = None

    @asynccontextmanager
    async def box(self) -> AsyncIterator[Instance]:
        """Lend the box to one check at a time."""
        if self._box is None:
            self._box = await self._made.enter_async_context(self._make())
        try:
            yield self._box
            is_empty = await self._emptied(self._box)
        except BaseException:
            await self.close()
            raise
        if not is_empty:
            await self.close()

    async def _emptied(self, box: Instance) -> bool:
        """Empty the box and return whether nothing of the check is left: no process, no job, no file."""
        cleaned: Result = await box.run(Command(command=("sh", "-c", _EMPTY), timeout_sec=self._patience))
        for info in await box.jobs():
            await (await box.job(info.id)).wait(self._patience)
            await box.forget(info.id)
        return cleaned.ok

    async def close(self) -> None:
        self._box = None
        await self._made.aclose()
