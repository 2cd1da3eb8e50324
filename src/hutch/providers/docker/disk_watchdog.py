"""Counts what a box has written to the engine's own disk, and ends its processes when that is more than its limit.

A temporary box with a read-only root has its files in sized tmpfs and needs no guard. The layer of a writable root and
the volumes of a persistent box are directories of the engine, which sets them no limit: the engine is asked how large
they are, and processes that still write past the limit are ended. The files stay; the next command may remove them.
"""

import asyncio
from collections.abc import Awaitable, Callable

from hutch.logs import log
from hutch.providers.docker.engine.api import Engine
from hutch.providers.guest_client.disk_overrun import UNKNOWN, Overrun, Use
from hutch.providers.guest_client.verdicts import Excess

MIN_INTERVAL = 2.0
"""The seconds between two checks, which are more if the engine needs long to count."""
_INTERVAL_FACTOR = 10


class DiskWatchdog:
    """Watches the disk use of one box."""

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
        """`lived` says that the box may have files already."""
        self._engine = engine
        self._container = container
        self._volumes = volumes
        # The engine reports sizes, not numbers of files.
        self.overrun = Overrun(Use(limit_bytes, UNKNOWN.entries), lived=lived)
        self._end = end
        self._looking = asyncio.Lock()  # guards a count and what follows from it
        self._task = asyncio.create_task(self._watch(), name=f"disk watchdog of {container}")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                await self._look()
            except Exception as error:  # a dead watchdog would be a limit that nobody enforces
                # The engine or the box cannot be reached. Its users get an error, and it may come back.
                log("docker").warning("disk not counted", container=self._container, error=repr(error))
            await asyncio.sleep(max(MIN_INTERVAL, _INTERVAL_FACTOR * (loop.time() - begun)))

    async def _look(self) -> None:
        async with self._looking:
            used = Use(await self.used_bytes())
            if used.exceeds(self.overrun.bound):
                excess = self.overrun.hit(used)
                log("docker").warning("disk limit", container=self._container, used=excess.used, limit=excess.limit)
                await self._end(self.overrun)
                used = Use(await self.used_bytes())
            self.overrun.counted(used)

    async def over_limit(self) -> Excess | None:
        """Return by how much the box is over its limit if no command may start in it, else None."""
        if self.overrun.settling or self.overrun.is_blocked:
            await self._look()
        return self.overrun.excess if self.overrun.is_blocked else None

    async def used_bytes(self) -> int:
        layer = await self._engine.layer_bytes(self._container)
        return layer + (await self._engine.volume_bytes(self._volumes) if self._volumes else 0)

    def follow(self, volumes: list[str]) -> None:
        """Watch these volumes from now on."""
        self._volumes = volumes

    def close(self) -> None:
        self._task.cancel()
