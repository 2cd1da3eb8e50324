"""Counts or names what this process and its boxes hold on the machine, to find what they leave behind."""

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
    """Two of these are equal if nothing was left behind between them."""

    processes: int
    descriptors: int
    mounts: int
    cgroups: int
    directories: int
    memory_kb: int

    def without_memory(self) -> tuple[int, int, int, int, int]:
        return (self.processes, self.descriptors, self.mounts, self.cgroups, self.directories)


def holdings(keeper: str, *directories: Path) -> Holdings:
    """Only groups with the name of `keeper` count, because others may work on this machine too.

    Groups that wait for another box may be more after a busy time, up to a bound, and do not count.
    """
    gc.collect()
    groups = [os.path.basename(path) for path in cgroups_of(keeper)]
    spares = {name for name in groups if name.startswith("spare-")}
    assert len(spares) <= MAX_SPARES, spares
    return Holdings(
        processes=len(descendants(os.getpid())),
        descriptors=len(os.listdir("/proc/self/fd")),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=sum(name not in spares for name in groups),
        directories=sum(len(list(directory.rglob("*"))) for directory in directories if directory.exists()),
        memory_kb=_resident_kb(),
    )


TIMEOUT = 60.0
MAX_SPARES = 3 * 8
"""Most groups that wait for another box: eight in the keeper and in each of its spawners."""


@contextlib.contextmanager
def leaving_no_trace(*directories: Path, groups: Callable[[], Iterable[str]] = list) -> Iterator[None]:
    """Fail if the work in this block leaves a process, mount, group or box's directory behind.

    `directories` are the run and state directories that it uses, `groups` the control groups that it might leave. A
    process that it starts and leaves becomes a child of this process, so that none is overlooked.
    """
    before = traces(directories, groups)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
        deadline = time.monotonic() + TIMEOUT
        while left := traces(directories, groups) - before:
            assert time.monotonic() < deadline, f"left behind: {sorted(left)}"
            time.sleep(0.05)
    finally:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)


def traces(directories: tuple[Path, ...], groups: Callable[[], Iterable[str]]) -> set[str]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        *(f"process {pid}" for pid in descendants(os.getpid()) if not _reaped(pid)),
        *(f"mount {line}" for line in mounts for base in directories if f" {base}/" in line),
        *(f"group {name}" for name in groups()),
        *(f"directory {path}" for base in directories for path in _box_directories(base)),
    }


def _box_directories(base: Path) -> list[Path]:
    """The directories of boxes, and of children that were started before any order."""
    found = [*base.glob("*"), *base.glob("boxes/*")]
    return [path for path in found if is_box_id(path.name) or path.name.startswith(".stem-")]


def _reaped(pid: int) -> bool:
    """Reap the process if it has ended; False while it lives."""
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
