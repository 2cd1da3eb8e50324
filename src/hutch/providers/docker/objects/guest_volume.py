"""The guest bundle on an engine: a volume named by the bundle's digest, filled once through a helper container.

The volume is created together with that container, and the container is removed only when the volume is full. So a
volume without its helper is whole; a keeper that finds a helper, whose maker may have died, fills the volume again.
"""

import asyncio
import time

from hutch.errors import EngineError
from hutch.providers.docker import labels
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.http import EngineRefused
from hutch.providers.guest_bundle.pack import HOME, GuestBundle

_TRIES = 5


class GuestVolume:
    """The guest volume of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: set[str] = set()
        # One helper of this process at a time; other processes may fill the same volume on the engine.
        self._busy = asyncio.Lock()

    async def ensure(self, bundle: GuestBundle, image: str) -> None:
        """Make sure that the volume is there. `image` is any image of the engine, since nothing of it runs."""
        if bundle.digest in self._done:
            return
        async with self._busy:
            if bundle.digest in self._done:
                return
            for _ in range(_TRIES):
                if await self._is_whole(bundle) or await self._fill(bundle, image):
                    self._done.add(bundle.digest)
                    return
            raise EngineError(
                "the guest could not be copied to the engine: other processes are filling its volume and do not finish"
            )

    def is_done(self, bundle: GuestBundle) -> bool:
        return bundle.digest in self._done

    def forget(self) -> None:
        """Look again at next use, because somebody may have removed the volume."""
        self._done.clear()

    async def _is_whole(self, bundle: GuestBundle) -> bool:
        if await self._engine.volume(labels.guest_volume(bundle.digest)) is None:
            return False
        return await self._engine.inspect(_filler_name(bundle)) is None

    async def _fill(self, bundle: GuestBundle, image: str) -> bool:
        """Fill the volume. Return False if another process removed the helper, because it was done or gave up."""
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
