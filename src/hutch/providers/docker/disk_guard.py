"""Counts what a box has written to the engine's own disk, and ends its processes when that is more than its limit.

A temporary box with a read-only root has its files in sized tmpfs and needs no guard. The layer of a writable root and
the volumes of a persistent box are directories of the engine, which sets them no limit: the engine is asked how large
they are, and whoever still writes past the limit is ended. The files stay; the next command may remove them.
"""

import asyncio
from collections.abc import Awaitable, Callable

from hutch.logs import log
from hutch.providers.docker.engine import Engine

SHORTEST_REST = 2.0
"""Seconds between two looks; more if the engine needs long to count."""
_SHARE = 10


class DiskGuard:
    """Of one box."""

    def __init__(
        self, engine: Engine, container: str, volumes: list[str], limit_bytes: int, end: Callable[[], Awaitable[None]]
    ) -> None:
        self._engine = engine
        self._container = container
        self._volumes = volumes
        self._limit = limit_bytes
        self._end = end
        self._task = asyncio.create_task(self._watch(), name=f"disk guard of {container}")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                used = await self.used_bytes()
                if used > self._limit:
                    log("docker").warning("disk limit", container=self._container, used=used, limit=self._limit)
                    await self._end()
            except Exception as error:  # whatever it is: a guard that has died would be a limit that nobody holds
                # The engine or the box cannot be reached: whoever uses the box is told, and it may come back.
                log("docker").warning("disk not counted", container=self._container, error=repr(error))
            await asyncio.sleep(max(SHORTEST_REST, _SHARE * (loop.time() - begun)))

    async def used_bytes(self) -> int:
        layer = await self._engine.layer_bytes(self._container)
        return layer + (await self._engine.volume_bytes(self._volumes) if self._volumes else 0)

    def close(self) -> None:
        self._task.cancel()
