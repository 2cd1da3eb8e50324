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
from hutch.providers.guest_bundle.pack import HOME, GuestBundle

_TRIES = 5


class GuestVolume:
    """Of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: set[str] = set()
        # One planter of ours at a time; those of other processes are met on the engine.
        self._busy = asyncio.Lock()

    async def ensure(self, bundle: GuestBundle, image: str) -> None:
        """The guest is there when this returns. `image` is any that the engine has: nothing of it is run."""
        if bundle.digest in self._done:
            return
        async with self._busy:
            if bundle.digest in self._done:
                return
            for _ in range(_TRIES):
                if await self._is_whole(bundle) or await self._fill(bundle, image):
                    self._done.add(bundle.digest)
                    return
            raise EngineError("the guest could not be put onto the engine: others are at it, and do not finish")

    def is_done(self, bundle: GuestBundle) -> bool:
        return bundle.digest in self._done

    def forget(self) -> None:
        """Somebody may have taken it away."""
        self._done.clear()

    async def _is_whole(self, bundle: GuestBundle) -> bool:
        if await self._engine.volume(labels.guest_volume(bundle.digest)) is None:
            return False
        return await self._engine.inspect(_filler_name(bundle)) is None

    async def _fill(self, bundle: GuestBundle, image: str) -> bool:
        """False: somebody else's planter went away under us, which means that it was done, or gave up."""
        name = _filler_name(bundle)
        mount = {
            "Type": "volume",
            "Source": labels.guest_volume(bundle.digest),
            "Target": HOME,
            "VolumeOptions": {"NoCopy": True, "Labels": {labels.GUEST: bundle.digest}},
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
            await self._engine.put_archive(name, HOME, await asyncio.to_thread(bundle.archive))
        except EngineRefused as refused:
            if refused.status == 404:
                return False
            raise
        await self._engine.remove(name)
        return True


def _filler_name(bundle: GuestBundle) -> str:
    return f"hutch-planter-{bundle.digest}"
