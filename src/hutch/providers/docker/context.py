"""The context of an engine: what it is, what we have copied to it, and what all its boxes have in common."""

import asyncio
import os
import sys
import tempfile

from hutch.errors import Unavailable, Unsupported
from hutch.providers.docker import labels
from hutch.providers.docker.engine import endpoint
from hutch.providers.docker.engine import info as engine_info
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.info import EngineInfo
from hutch.providers.docker.objects.guest_volume import GuestVolume
from hutch.providers.docker.objects.helper_containers import BASE, ensure_base_image, why_not_shared
from hutch.providers.docker.objects.images import ARCHITECTURES, Images
from hutch.providers.docker.objects.networks import NetworkWalls
from hutch.providers.docker.objects.path_rules import engine_path, translated
from hutch.providers.docker.settings import Settings
from hutch.providers.guest_bundle.pack import GuestBundle, guest_bundle


class EngineContext:
    """One engine that we are connected to, as `connect` returns it."""

    def __init__(self, engine: Engine, found: EngineInfo, settings: Settings, bundle: GuestBundle) -> None:
        self.engine = engine
        self.machine = found
        self.settings = settings
        self.bundle = bundle
        self.images = Images(engine, settings.pull)
        self.instance = labels.instance(settings.state_dir)
        self.fast = engine_info.fast(found, engine.http.endpoint, settings.lane)
        self.pty = True
        """Whether programs get a controlling terminal, as a canary box found."""
        self.no_network = ""
        """The reason why a box cannot have a network, as a canary box found, or "" if it can."""
        self._planting = GuestVolume(engine)
        self._is_near: bool | None = None
        # Concurrent first boxes prove once that the engine sees our files.
        self._proving = asyncio.Lock()

    async def is_near(self) -> bool:
        """Return whether the engine sees our files, proven by a probe file.

        A forwarded socket looks like a local one, and another host may run the same kernel release.
        """
        async with self._proving:
            if self._is_near is None:
                self._is_near = self.machine.seems_here and await self._sees_probe_file()
        return self._is_near

    async def _sees_probe_file(self) -> bool:
        await ensure_base_image(self.engine)
        # The probe file is not in /tmp, which an engine often has of its own.
        home = self.settings.state_dir if os.path.isdir(self.settings.state_dir) else None
        with tempfile.TemporaryDirectory(prefix=".near-", dir=home) as ours:
            theirs = engine_path(translated(os.path.realpath(ours), self.settings.paths), sys.platform)
            return not await why_not_shared(self.engine, ours, theirs)

    async def walls(self) -> NetworkWalls | None:
        """Return the filters, or None if nobody here can keep a box from reaching private ranges."""
        is_able = os.geteuid() == 0 and not self.machine.rootless
        return NetworkWalls(self.engine) if is_able and await self.is_near() else None

    async def prepare(self) -> None:
        """Copy the guest and the empty image to the engine, unless they are there."""
        if not self._planting.is_done(self.bundle):
            await ensure_base_image(self.engine)
            await self._planting.ensure(self.bundle, BASE)

    def forget_guest_volume(self) -> None:
        self._planting.forget()


async def connect(engine: Engine, settings: Settings) -> EngineContext:
    """Connect to an engine. Raises Unavailable if nobody answers, Unsupported if it could not run our guest."""
    if sys.platform != "linux":
        raise Unsupported(
            "our guest is packed from Hutch's own interpreter, and this one is not for Linux",
            op="probe",
            remedy="run Hutch itself in a Linux container that has the engine's socket",
        )
    version, info = await asyncio.gather(engine.version(), engine.info())
    found = engine_info.read(info, version, engine.http.endpoint, settings)
    ours = os.uname().machine
    if found.architecture not in (ours, ARCHITECTURES.get(ours, ours)):
        raise Unsupported(
            f"the engine's machine is {found.architecture}, and our guest is made for {ours}",
            op="probe",
            remedy=f"run Hutch on a machine of the engine's kind, or use an engine on {ours}",
        )
    return EngineContext(engine, found, settings, await asyncio.to_thread(guest_bundle))


def locate(provider: str, settings: Settings) -> endpoint.Endpoint:
    """Return where the engine listens. Raises Unavailable if none was named and none is found."""
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
