"""What this process and its boxes hold on the machine, counted or named."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hutch.linux import kernel
from hutch.model.ids import is_box_id


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


PATIENCE = 60.0


@contextlib.contextmanager
def leaving_no_trace(*homes: Path, groups: Callable[[], Iterable[str]] = list) -> Iterator[None]:
    """Around work that must leave no process, mount, group or box's directory that was not there before.

    `homes`: the run and state directories it uses; `groups`: the control groups it might leave. Whoever it starts and
    leaves becomes a child of this process, so that nobody is overlooked.
    """
    before = traces(homes, groups)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
        deadline = time.monotonic() + PATIENCE
        while left := traces(homes, groups) - before:
            assert time.monotonic() < deadline, f"left behind: {sorted(left)}"
            time.sleep(0.05)
    finally:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)


def traces(homes: tuple[Path, ...], groups: Callable[[], Iterable[str]]) -> set[str]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        *(f"process {pid}" for pid in descendants(os.getpid()) if not _buried(pid)),
        *(f"mount {line}" for line in mounts for home in homes if f" {home}/" in line),
        *(f"group {name}" for name in groups()),
        *(f"directory {path}" for home in homes for path in _box_directories(home)),
    }


def _box_directories(home: Path) -> list[Path]:
    """Of boxes, and of those that were begun ahead of any order."""
    found = [*home.glob("*"), *home.glob("boxes/*")]
    return [path for path in found if is_box_id(path.name) or path.name.startswith(".stem-")]


def _buried(pid: int) -> bool:
    """Whether it was an orphan of ours that has ended; children of the tests' own are left to those."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
        return ended and os.waitpid(pid, os.WNOHANG)[0] == pid
    except (FileNotFoundError, ProcessLookupError, ChildProcessError):
        return True


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
