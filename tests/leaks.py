"""What this process and its boxes hold on the machine, counted."""

import gc
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holdings:
    """Two of these are equal when nothing was left behind between them."""

    processes: int
    descriptors: int
    mounts: int
    cgroups: int
    directories: int
    memory_kb: int

    def without_memory(self) -> tuple[int, int, int, int, int]:
        return (self.processes, self.descriptors, self.mounts, self.cgroups, self.directories)


def holdings(keeper: str, *directories: Path) -> Holdings:
    """`keeper` is part of the names of the groups it makes: others may work on this machine too."""
    gc.collect()
    return Holdings(
        processes=len(descendants(os.getpid())),
        descriptors=len(os.listdir("/proc/self/fd")),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=len(cgroups_of(keeper)),
        directories=sum(len(list(directory.rglob("*"))) for directory in directories if directory.exists()),
        memory_kb=_resident_kb(),
    )


def descendants(pid: int) -> list[int]:
    """Every process below `pid`; boxes are below their spawner, which is below us."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def cgroups_of(keeper: str) -> list[str]:
    """Groups that carry the keeper's name, in every hierarchy, with all below them."""
    found = (os.path.join(path, name) for path, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return [path for path in found if f"hutch-{keeper}" in path]


def _resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS in /proc/self/status")
