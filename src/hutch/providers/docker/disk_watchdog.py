"""Counts what a box has written to the engine's own disk, and ends its processes when that is more than its limit.

A temporary box with a read-only root has its files in sized tmpfs and needs no guard. The layer of a writable root and
the volumes of a persistent box are directories of the engine, which sets them no limit: the engine is asked how large
they are, and whoever still writes past the limit is ended. The files stay; the next command may remove them.
"""

import asyncio
from collections.abc import Awaitable, Callable

from hutch.logs import log
from hutch.providers.docker.engine_api import Engine
from hutch.providers.guest_client.disk_overrun import UNKNOWN, Overrun, Use
from hutch.providers.guest_client.verdicts import Excess

SHORTEST_REST = 2.0
"""Seconds between two looks; more if the engine needs long to count."""
_SHARE = 10


class DiskWatchdog:
    """Of one box."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        volumes: list[str],
        limit_bytes: int,
        end: Callable[[Overrun], Awaitable[None]],
        *,
        lived: bool,
    ) -> None:
        """`lived`: the box may have files already."""
        self._engine = engine
        self._container = container
        self._volumes = volumes
        # The engine tells sizes, not how many files there are.
        self.overrun = Overrun(Use(limit_bytes, UNKNOWN.entries), lived=lived)
        self._end = end
        self._looking = asyncio.Lock()  # a count and what follows from it: who asks in between gets the next one
        self._task = asyncio.create_task(self._watch(), name=f"disk guard of {container}")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                await self._look()
            except Exception as error:  # whatever it is: a guard that has died would be a limit that nobody holds
                # The engine or the box cannot be reached: whoever uses the box is told, and it may come back.
                log("docker").warning("disk not counted", container=self._container, error=repr(error))
            await asyncio.sleep(max(SHORTEST_REST, _SHARE * (loop.time() - begun)))

    async def _look(self) -> None:
        async with self._looking:
            used = Use(await self.used_bytes())
            if used.exceeds(self.overrun.bound):
                excess = self.overrun.hit(used)
                log("docker").warning("disk limit", container=self._container, used=excess.used, limit=excess.limit)
                await self._end(self.overrun)
                used = Use(await self.used_bytes())
            self.overrun.counted(used)

    async def jam(self) -> Excess | None:
        """Why no command may start in the box; None: one may."""
        if self.overrun.settling or self.overrun.jammed:
            await self._look()
        return self.overrun.excess if self.overrun.jammed else None

    async def used_bytes(self) -> int:
        layer = await self._engine.layer_bytes(self._container)
        return layer + (await self._engine.volume_bytes(self._volumes) if self._volumes else 0)

    def close(self) -> None:
        self._task.cancel()
