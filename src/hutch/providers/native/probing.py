"""What this machine lets the native engine do: one function for each fact, and a canary box that proves them."""

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import NetworkMode
from hutch.providers.native import cgroups, identity, landlock

if TYPE_CHECKING:
    from hutch.providers.native.provider import NativeProvider


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that do not need a box."""

    ranged: bool
    cgroups: cgroups.Machine


def look() -> Machine:
    return Machine(ranged=identity.can_map_ranges(), cgroups=cgroups.detect())


def obstacle(machine: Machine) -> Missing | None:
    return None


async def capabilities(provider: "NativeProvider", machine: Machine) -> Capabilities:
    groups = machine.cgroups
    grades = Grades(
        cpus=EnforcedBy.CGROUP if groups.cpu else EnforcedBy.NONE,
        memory_mb=EnforcedBy.CGROUP if groups.memory else EnforcedBy.WATCHDOG,
        pids=EnforcedBy.CGROUP if groups.pids else EnforcedBy.RLIMIT,
        disk_mb=EnforcedBy.QUOTA,
        open_files=EnforcedBy.RLIMIT,
    )
    return Capabilities(
        provider="native",
        guest=True,
        durable_jobs=True,
        pty=True,
        watch=True,
        pause=Pause.FREEZE if groups.freezer else Pause.NONE,
        users=("user",),
        uid_range=machine.ranged,
        writable_root=machine.ranged,
        persistent=True,
        networks=(NetworkMode.OFF,),
        images=("host", "dir", "tar"),
        mounts=True,
        grades=grades,
        facts={
            "kernel": platform.release(),
            "cgroups": groups.mode,
            "landlock": str(landlock.abi()),
            "user": str(os.geteuid()),
        },
    )
