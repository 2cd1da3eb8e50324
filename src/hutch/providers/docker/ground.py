"""An engine that has been met: what it is, what we have put onto it, and what every box on it has in common."""

import asyncio
import io
import os
import secrets
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.errors import Unavailable, Unsupported
from hutch.providers.docker import endpoint, machine, naming
from hutch.providers.docker.engine import Engine
from hutch.providers.docker.images import ARCHITECTURES, Images
from hutch.providers.docker.machine import Machine
from hutch.providers.docker.networks import Walls
from hutch.providers.docker.planting import Planting
from hutch.providers.docker.settings import Settings
from hutch.providers.planted.packing import Plant, plant

BASE = "hutch-base-1:latest"
"""An image with nothing in it, for containers of which nothing is run but our own guest."""


class Ground:
    """Made by `meet`."""

    def __init__(self, engine: Engine, found: Machine, settings: Settings, planted: Plant) -> None:
        self.engine = engine
        self.machine = found
        self.settings = settings
        self.plant = planted
        self.images = Images(engine, settings.pull)
        self.instance = naming.instance(settings.state_dir)
        self.fast = machine.fast(found, engine.http.endpoint, settings.lane)
        self.walls = Walls(engine) if self.is_beside else None
        """None: nobody here can keep a box from reaching private ranges."""
        self.pty = True
        """Whether programs get a controlling terminal, as a canary found."""
        self.no_network = ""
        """Why a box cannot have one, as a canary found; "" if it can."""
        self._planting = Planting(engine)

    @property
    def is_beside(self) -> bool:
        """Whether we are root on the engine's own machine."""
        return self.machine.same_host and os.geteuid() == 0 and not self.machine.rootless

    async def prepare(self) -> None:
        """The guest and the empty image are on the engine when this returns."""
        if not self._planting.is_done(self.plant):
            if await self.engine.image(BASE) is None:
                await self.engine.load_image(BASE, _nothing())
            await self._planting.ensure(self.plant, BASE)

    def forget_plant(self) -> None:
        self._planting.forget()


async def meet(engine: Engine, settings: Settings) -> Ground:
    """Unavailable: nobody answers; Unsupported: its containers could not run our guest."""
    if sys.platform != "linux":
        raise Unsupported(
            "our guest is packed from Hutch's own interpreter, and this one is not for Linux",
            op="probe",
            remedy="run Hutch itself in a Linux container that has the engine's socket",
        )
    version, info = await asyncio.gather(engine.version(), engine.info())
    found = machine.read(info, version, engine.http.endpoint, settings)
    ours = os.uname().machine
    if found.architecture not in (ours, ARCHITECTURES.get(ours, ours)):
        raise Unsupported(
            f"the engine's machine is {found.architecture}, and our guest is made for {ours}",
            op="probe",
            remedy=f"run Hutch on a machine of the engine's kind, or use an engine on {ours}",
        )
    return Ground(engine, found, settings, await asyncio.to_thread(plant))


def locate(provider: str, settings: Settings) -> endpoint.Endpoint:
    """Where the engine is; Unavailable if none was named and none is found."""
    if settings.host:
        return endpoint.parse(settings.host, settings.certificates)
    found = endpoint.podman() if provider == "podman" else endpoint.docker()
    if found is None:
        start = "systemctl start podman.socket" if provider == "podman" else "start Docker"
        raise Unavailable(
            f"no {provider} engine was found on this machine",
            op="connect",
            remedy=f"{start}, or name its socket: [providers.{provider}] host",
        )
    return found


def _nothing() -> bytes:
    """A root with one empty directory: engines do not take an archive without an entry."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("etc")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    return packed.getvalue()


@asynccontextmanager
async def thrown_away(engine: Engine, mounts: list[dict[str, Any]]) -> AsyncIterator[str]:
    """The name of a container of nothing, for one request of ours. It is not started: nothing of it runs."""
    name = f"hutch-throwaway-{secrets.token_hex(8)}"
    body = {
        "Image": BASE,
        "Entrypoint": ["/nothing"],
        "Labels": {naming.THROWAWAY: str(int(time.time()))},
        "HostConfig": {"NetworkMode": "none", "Mounts": mounts},
    }
    try:
        await engine.create(name, body)
        yield name
    finally:
        await engine.remove(name)
