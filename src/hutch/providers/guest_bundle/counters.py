"""Counters of a container for verdicts: read from the host's control groups, or asked of the guest."""

import os

import msgspec

from hutch.errors import HutchError
from hutch.linux.cgroup_detect import Hierarchy
from hutch.linux.cgroups import Group
from hutch.providers.guest_client.answers import checked
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.verdicts import Counters


class HostCounters:
    """Counters that are read on the host before and after every command, from three small files that stay open."""

    def __init__(self, pid: int) -> None:
        self._group = group_of(pid)

    def read(self) -> Counters:
        if self._group is None:
            return Counters()
        try:
            facts = self._group.facts()
        except OSError:
            return Counters()  # the container has gone
        return Counters(
            oom_kills=facts.oom_kills or 0, pids_hits=facts.pids_hits, memory_peak_bytes=facts.memory_peak_bytes
        )

    async def refresh(self, link: Link) -> None:
        """Do nothing: `read` reads the files again."""

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    oom_kills: int | None = None
    pids_hits: int | None = None
    memory_peak_bytes: int | None = None


class GuestCounters:
    """Counters as the guest reported them last. Call `refresh` first where they must be current."""

    def __init__(self) -> None:
        self._last = Counters()

    def read(self) -> Counters:
        return self._last

    async def refresh(self, link: Link) -> None:
        try:
            reply = checked(await link.request("counters", timeout=5.0), _Reply)
        except HutchError:
            return  # the command's own reply says what is wrong with the box
        self._last = Counters(
            oom_kills=reply.oom_kills or 0, pids_hits=reply.pids_hits, memory_peak_bytes=reply.memory_peak_bytes
        )

    def close(self) -> None:
        """Release nothing."""


BoxCounters = HostCounters | GuestCounters


def group_of(pid: int, root: str = "/sys/fs/cgroup") -> Group | None:
    """Return the control group of a process in each hierarchy that is mounted here, or None if none is visible."""
    positions: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                positions.update(dict.fromkeys(controllers.split(","), path))
    except OSError:
        return None
    hierarchies: dict[str, Hierarchy] = {}
    for name in ("memory", "pids", "cpu"):
        if name in positions:
            directory, version = _legacy(root, name) + positions[name], 1
        else:
            directory, version = root + positions.get("", "/"), 2
        if os.path.isdir(directory):
            hierarchies[name] = Hierarchy(version, directory)
    return Group(hierarchies, None) if hierarchies else None


def _legacy(root: str, controller: str) -> str:
    """Return where a v1 hierarchy is mounted: under its own name, or with another as in `cpu,cpuacct`."""
    try:
        names = os.listdir(root)
    except OSError:
        names = []
    return f"{root}/" + next((name for name in names if controller in name.split(",")), controller)
