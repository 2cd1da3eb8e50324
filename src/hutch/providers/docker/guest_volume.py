"""Puts the packed guest onto an engine, once: a volume named after its digest, filled through a throwaway container.

The volume comes into being together with that container, and the container goes only when the volume is full. So a
volume without its planter is whole, and whoever finds a planter (its maker may have died) fills the volume again.
"""

import asyncio
import time

from hutch.errors import EngineError
from hutch.providers.docker import labels
from hutch.providers.docker.engine_api import Engine
from hutch.providers.docker.engine_http import EngineRefused
from hutch.providers.guest_bundle.pack import HOME, Plant

_TRIES = 5


class Planting:
    """Of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: set[str] = set()
        # One planter of ours at a time; those of other processes are met on the engine.
        self._busy = asyncio.Lock()

    async def ensure(self, plant: Plant, image: str) -> None:
        """The guest is there when this returns. `image` is any that the engine has: nothing of it is run."""
        if plant.digest in self._done:
            return
        async with self._busy:
            if plant.digest in self._done:
                return
            for _ in range(_TRIES):
                if await self._is_whole(plant) or await self._fill(plant, image):
                    self._done.add(plant.digest)
                    return
            raise EngineError("the guest could not be put onto the engine: others are at it, and do not finish")

    def is_done(self, plant: Plant) -> bool:
        return plant.digest in self._done

    def forget(self) -> None:
        """Somebody may have taken it away."""
        self._done.clear()

    async def _is_whole(self, plant: Plant) -> bool:
        if await self._engine.volume(labels.guest_volume(plant.digest)) is None:
            return False
        return await self._engine.inspect(_planter(plant)) is None

    async def _fill(self, plant: Plant, image: str) -> bool:
        """False: somebody else's planter went away under us, which means that it was done, or gave up."""
        name = _planter(plant)
        mount = {
            "Type": "volume",
            "Source": labels.guest_volume(plant.digest),
            "Target": HOME,
            "VolumeOptions": {"NoCopy": True, "Labels": {labels.GUEST: plant.digest}},
        }
        body = {
            "Image": image,
            "Entrypoint": ["/nothing"],
            "Labels": {labels.THROWAWAY: str(int(time.time()))},
            "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
        }
        try:
            await self._engine.create(name, body)
        except EngineRefused as refused:
            if refused.status != 409:
                raise
        try:
            await self._engine.put_archive(name, HOME, await asyncio.to_thread(plant.archive))
        except EngineRefused as refused:
            if refused.status == 404:
                return False
            raise
        await self._engine.remove(name)
        return True


def _planter(plant: Plant) -> str:
    return f"hutch-planter-{plant.digest}"
