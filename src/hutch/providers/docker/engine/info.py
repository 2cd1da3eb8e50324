"""Facts about an engine and its host, read once from the engine's own answers and from what we can see."""

import os
from typing import Any, NamedTuple

from hutch.errors import ConfigError, Unsupported
from hutch.model.spec import Isolation
from hutch.providers.docker.engine.endpoint import Endpoint
from hutch.providers.docker.settings import LaneChoice, Settings

DIRECT = ("runc", "crun")
"""The runtimes whose containers are processes of the engine's kernel. The fast lane enters no others."""
_CONTROLLERS = {"cpus": "CpuCfsQuota", "memory": "MemoryLimit", "pids": "PidsLimit"}
_WALLS = {"runsc": Isolation.GVISOR, "gvisor": Isolation.GVISOR, "kata": Isolation.VM}


class EngineInfo(NamedTuple):
    """One engine as it is now."""

    product: str
    version: str
    engine_id: str
    architecture: str
    kernel: str
    runtime: str
    """The runtime's name in the engine."""
    program: str
    """The runtime's program: the last part of its path."""
    cgroups: int
    cgroup_driver: str
    rootless: bool
    storage: str
    backing: str
    holds: frozenset[str]
    """Those of cpus, memory and pids that its control groups limit. A rootless engine often has none of them."""
    seems_here: bool
    """Whether the socket is local and the kernel's release is ours, which is no proof. The fast lane first looks for
    the container's processes here, and everything else asks the engine for a probe file (`EngineContext.is_near`)."""
    security: tuple[str, ...] = ()
    """The engine's security options. An engine that was restarted without its filter must be probed again."""
    memory_mb: int = 0
    """The engine's memory, or 0 if the engine does not say."""

    @property
    def isolation(self) -> Isolation:
        for mark, wall in _WALLS.items():
            if mark in self.program or mark in self.runtime:
                return wall
        return Isolation.NAMESPACES

    @property
    def is_walled(self) -> bool:
        """Return whether containers run under another kernel than the host's."""
        return self.isolation is not Isolation.NAMESPACES

    @property
    def is_watched(self) -> bool:
        """Return whether the guest's watchdog has to enforce memory and process limits."""
        return self.is_walled or not {"memory", "pids"} <= self.holds

    @property
    def is_direct(self) -> bool:
        return self.program in DIRECT and not self.is_walled


def read(info: dict[str, Any], version: dict[str, Any], endpoint: Endpoint, settings: Settings) -> EngineInfo:
    runtimes = info.get("Runtimes") or {}
    runtime = settings.runtime or str(info.get("DefaultRuntime") or "runc")
    if settings.runtime and settings.runtime not in runtimes and not settings.runtime.startswith(("/", "io.")):
        raise ConfigError(
            f"the engine at {endpoint} has no runtime {settings.runtime!r}",
            remedy=f"it has: {', '.join(sorted(runtimes))}; add it to the engine's configuration, or name one of these",
        )
    known = runtimes.get(runtime) or {}
    program = os.path.basename(str(known.get("path") or runtime))
    kernel = str(info.get("KernelVersion") or "")
    storage = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2)
    product = "podman" if _is_podman(version) else "docker"
    return EngineInfo(
        product=product,
        version=str(version.get("Version") or ""),
        # Podman makes up another id for each answer.
        engine_id=str(info.get("ID" if product == "docker" else "Name") or ""),
        architecture=str(info.get("Architecture") or ""),
        kernel=kernel,
        runtime=runtime,
        program=program,
        cgroups=2 if str(info.get("CgroupVersion")) in ("2", "v2") else 1,
        cgroup_driver=str(info.get("CgroupDriver") or ""),
        rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or ()),
        storage=str(info.get("Driver") or ""),
        backing=str(storage.get("Backing Filesystem") or ""),
        holds=frozenset(name for name, field in _CONTROLLERS.items() if info.get(field, True)),
        seems_here=endpoint.is_local and kernel == os.uname().release,
        security=tuple(sorted(map(str, info.get("SecurityOptions") or ()))),
        memory_mb=int(info.get("MemTotal") or 0) >> 20,
    )


def obstacle(machine: EngineInfo, endpoint: Endpoint) -> str:
    """Return why the fast lane is impossible; "" if it is possible."""
    if not machine.is_direct:
        return f"runtime {machine.program} has a kernel of its own for containers, which the fast lane cannot enter"
    if not machine.seems_here:
        return "the engine is on another machine"
    if os.geteuid() != 0:
        return "Hutch is not root"
    return ""


def fast(machine: EngineInfo, endpoint: Endpoint, choice: LaneChoice) -> bool:
    """Return whether to use the fast lane. Raises Unsupported if it was asked for and is impossible."""
    if choice is LaneChoice.API:
        return False
    reason = obstacle(machine, endpoint)
    if reason and choice is LaneChoice.FAST:
        raise Unsupported(f"lane fast cannot be had: {reason}", op="create", remedy='set lane = "auto"')
    return not reason


def _is_podman(version: dict[str, Any]) -> bool:
    return any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ())
