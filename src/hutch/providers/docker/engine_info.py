"""What an engine and its machine are: read once from what the engine says of itself, and from what we can see."""

import os
from typing import Any, NamedTuple

from hutch.errors import ConfigError, Unsupported
from hutch.model.spec import Isolation
from hutch.providers.docker.endpoint import Endpoint
from hutch.providers.docker.settings import LaneChoice, Settings

DIRECT = ("runc", "crun")
"""Runtimes whose containers are ordinary processes of the engine's kernel. No other is ever entered past its wall."""
_CONTROLLERS = {"cpus": "CpuCfsQuota", "memory": "MemoryLimit", "pids": "PidsLimit"}
_WALLS = {"runsc": Isolation.GVISOR, "gvisor": Isolation.GVISOR, "kata": Isolation.VM}


class Machine(NamedTuple):
    """One engine as it is now."""

    product: str
    version: str
    engine_id: str
    architecture: str
    kernel: str
    runtime: str
    """As the engine names it."""
    program: str
    """What that runtime is: the last part of its path."""
    cgroups: int
    cgroup_driver: str
    rootless: bool
    storage: str
    backing: str
    holds: frozenset[str]
    """Which of cpus, memory and pids its control groups limit: a rootless engine often has none of them."""
    seems_here: bool
    """A local socket, a kernel of the same release: no proof. A container's processes are looked for here before the
    fast lane is taken, and our files by the engine before anything else is made of it (`EngineContext.is_near`)."""
    security: tuple[str, ...] = ()
    """As the engine tells it: one that was started again without its filter has to be looked at again."""
    memory_mb: int = 0
    """0: the engine does not say."""

    @property
    def isolation(self) -> Isolation:
        for mark, wall in _WALLS.items():
            if mark in self.program or mark in self.runtime:
                return wall
        return Isolation.NAMESPACES

    @property
    def is_walled(self) -> bool:
        """Whether there is another kernel than the machine's behind the wall."""
        return self.isolation is not Isolation.NAMESPACES

    @property
    def is_watched(self) -> bool:
        """Whether the guest itself has to hold memory and processes."""
        return self.is_walled or not {"memory", "pids"} <= self.holds

    @property
    def is_direct(self) -> bool:
        return self.program in DIRECT and not self.is_walled


def read(info: dict[str, Any], version: dict[str, Any], endpoint: Endpoint, settings: Settings) -> Machine:
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
    return Machine(
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


def obstacle(machine: Machine, endpoint: Endpoint) -> str:
    """Why the fast lane cannot be had; "" if it can."""
    if not machine.is_direct:
        return f"runtime {machine.program} keeps its containers behind a wall of its own, which nobody goes around"
    if not machine.seems_here:
        return "the engine is on another machine"
    if os.geteuid() != 0:
        return "Hutch is not root"
    return ""


def fast(machine: Machine, endpoint: Endpoint, choice: LaneChoice) -> bool:
    """Whether to take the fast lane; Unsupported if it was asked for and cannot be had."""
    if choice is LaneChoice.API:
        return False
    reason = obstacle(machine, endpoint)
    if reason and choice is LaneChoice.FAST:
        raise Unsupported(f"lane fast cannot be had: {reason}", op="create", remedy='set lane = "auto"')
    return not reason


def _is_podman(version: dict[str, Any]) -> bool:
    return any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ())
