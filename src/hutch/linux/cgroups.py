"""The control groups of a keeper's boxes.

A keeper has one `Tree`, a directory `hutch-<keeper>` below our own group in each hierarchy in use. Each box has a
`Group` below it, `hutch-<number>`. The number is arbitrary, because a group is made before it is known which box will
use it. The box's record keeps the group's `paths`, from which any later keeper opens it again.

On cgroup v1 the group of an ended box is used again under another name, if the kernel's counters say that it is as
good as new (`Tree.retire`). To remove a memory group the kernel visits two lists of every mounted file system, while
nobody else can make or join a group: beside 2,000 boxes for 3.5 ms. v2 cannot rename a group, and no name may be used
twice (`Tree.make`).

Standard library only: the spawner makes groups, the provider opens them.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from hutch.linux import cgroup_files as control
from hutch.linux.cgroup_detect import CONTROLLERS, SELF_LEAF, CgroupSupport, Hierarchy, detect, foreign_processes

__all__ = ["CgroupSupport", "Facts", "Group", "GroupLimits", "Tree", "detect"]

_NUMBERED = re.compile(r"hutch-(\d+)\Z")
_SPARE = "spare-"
"""Prefix of the name of a group that waits for another box; the name that it had follows."""
_MAX_SPARES = 8
_MAX_SPARE_MEMORY = 1 << 20
"""Most memory that may still be charged to a group that is used again: its processes' last pages, for some
milliseconds. A box that has read many files leaves more, and its group is removed."""
_KEEPER = re.compile(r"[a-z0-9][a-z0-9-]{0,60}\Z")


class GroupLimits(NamedTuple):
    """The limits of one box's group. `memory_bytes` includes the box's tmpfs sizes, whose pages are charged to it."""

    memory_bytes: int
    pids: int
    cpus: float


class Facts(NamedTuple):
    """Counters of the kernel since the group was made; None where the kernel has no such counter."""

    oom_kills: int | None = None
    pids_hits: int | None = None
    throttled: int | None = None
    memory_peak_bytes: int | None = None
    memory_current: int | None = None
    pids_current: int | None = None


class Group:
    """One box's group in each hierarchy in use. Descriptors are opened when first needed and kept until `close`.

    A record keeps `paths`: the `member_paths`, which hold the box's processes from the beginning, and, where the
    freezer is a separate hierarchy, its directory, which exists only once the box was frozen.
    """

    __slots__ = ("_counters", "_directory", "_freezer", "_hierarchies", "member_paths", "paths")

    def __init__(self, hierarchies: dict[str, Hierarchy], freezer: Hierarchy | None) -> None:
        self._hierarchies = hierarchies
        self._freezer = freezer
        homes = dict.fromkeys(hierarchy.directory for hierarchy in hierarchies.values())
        frozen_in = (freezer.directory,) if freezer else ()
        self.member_paths: tuple[str, ...] = tuple(homes) or frozen_in
        self.paths: tuple[str, ...] = tuple(dict.fromkeys((*self.member_paths, *frozen_in)))
        self._counters: dict[str, tuple[int, bytes]] = {}
        """From the name of a counter to its open file and the key of its number there."""
        self._directory: int | None = None

    def limit(self, group_limits: GroupLimits) -> None:
        """Set or change every limit that this machine's controllers can enforce."""
        if hierarchy := self._hierarchies.get("memory"):
            control.limit_memory(hierarchy.version, hierarchy.directory, group_limits.memory_bytes)
        if hierarchy := self._hierarchies.get("pids"):
            control.limit_pids(hierarchy.directory, group_limits.pids)
        if hierarchy := self._hierarchies.get("cpu"):
            control.limit_cpu(hierarchy.version, hierarchy.directory, group_limits.cpus)

    def enter(self) -> None:
        """Move the calling process, which must have a single thread, into the group's v1 directories.

        The kernel takes a global lock, and so waits about 10 ms for an RCU grace period, unless a thread moves only
        itself. So a new child calls this instead of its parent calling `place` (0.16 ms against 8). It must still see
        the host's mounts. The v2 group is joined by the clone itself (`directory_fd`).
        """
        for path in self.tasks_files():
            control.write(path, "0")

    def tasks_files(self) -> tuple[str, ...]:
        """The files that `enter` writes to, for a parent that opens them on its child's behalf."""
        unified = self._unified()
        return tuple(f"{path}/tasks" for path in self.member_paths if path != unified)

    def place(self, pid: int) -> None:
        """Move another process into the group, with all its threads. `enter` says why this is slow."""
        for path in self.member_paths:
            control.write(f"{path}/cgroup.procs", str(pid))

    def directory_fd(self) -> int | None:
        """The v2 directory for clone3(CLONE_INTO_CGROUP), or None without v2. The group keeps the descriptor."""
        unified = self._unified()
        if unified is None:
            return None
        if self._directory is None:
            self._directory = os.open(unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._directory

    def prepare(self, wanted: Iterable[str]) -> None:
        """Open the files that `facts` will read, because opening them is the slow part."""
        for fact in wanted:
            self._open(fact)

    def facts(self, wanted: Iterable[str] = Facts._fields) -> Facts:
        """Read the counters in `wanted`; the others are None."""
        return Facts(**{fact: self._number(fact) for fact in wanted})

    def freeze(self, timeout: float = 5.0) -> None:
        """Freeze every process of the box and return when all are frozen. This blocks: call it in a thread.

        Where the freezer is a separate hierarchy, its group is made here, so that creating a box does not pay for it.
        On v1 a SIGKILL takes effect only after the thaw: kill, then thaw.
        """
        if self._freezer is None:
            raise OSError(errno.ENOTSUP, "this machine gives us no freezer", self.paths[0])
        version, directory = self._freezer.version, self._freezer.directory
        deadline = time.monotonic() + timeout
        os.makedirs(directory, 0o755, exist_ok=True)
        control.order_freeze(version, directory)
        if directory not in self.member_paths:
            self._gather(directory)
        pause = 0.0002
        while not control.is_frozen(version, directory):
            if time.monotonic() > deadline:
                control.thaw(version, directory)
                raise TimeoutError(errno.ETIMEDOUT, f"not frozen within {timeout:g} s, thawed again", directory)
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    def thaw(self) -> None:
        """Let every process run again. A box that was never frozen is left as it is."""
        if self._freezer is None:
            return
        with contextlib.suppress(FileNotFoundError):
            control.thaw(self._freezer.version, self._freezer.directory)

    def remove(self, timeout: float = 2.0) -> None:
        """Remove the directories once the last process is gone. Removing them twice is no error."""
        self.close()
        deadline = time.monotonic() + timeout
        for path in reversed(self.paths):  # the directory by which `Tree.list` finds this group comes last
            control.remove(path, deadline)

    def is_like_new(self) -> bool:
        """Whether no process and next to no memory is left in it, and no limit was ever met."""
        left = self.facts(("oom_kills", "pids_hits", "memory_current"))
        self.close()
        met = left.oom_kills or left.pids_hits
        return not met and (left.memory_current or 0) <= _MAX_SPARE_MEMORY and not control.members(self.member_paths[0])

    def existing(self) -> tuple[str, ...]:
        """`paths` without those that were never made because of a crash between two mkdir calls."""
        return tuple(path for path in self.paths if path not in self.member_paths or os.path.isdir(path))

    def close(self) -> None:
        """Close the descriptors. The group stays, and reading it opens them again."""
        while self._counters:
            os.close(self._counters.popitem()[1][0])
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    def _unified(self) -> str | None:
        hierarchies = [*self._hierarchies.values(), *([self._freezer] if self._freezer else [])]
        return next(
            (
                hierarchy.directory
                for hierarchy in hierarchies
                if hierarchy.version == 2 and hierarchy.directory in self.member_paths
            ),
            None,
        )

    def _open(self, fact: str) -> tuple[int, bytes] | None:
        """The counter's open file and its key; None if this machine or this kernel has no such file."""
        if fact in self._counters:
            return self._counters[fact]
        hierarchy = self._hierarchies.get(control.FACT_FILES[1][fact][0].partition(".")[0])
        if hierarchy is None:
            return None
        file, key = control.FACT_FILES[hierarchy.version][fact]
        path = f"{hierarchy.directory}/{file}"
        # memory.peak is reset through the descriptor that is written to, so it must be opened writable.
        modes = (os.O_RDWR, os.O_RDONLY) if fact == "memory_peak_bytes" else (os.O_RDONLY,)
        for mode in modes:
            try:
                self._counters[fact] = os.open(path, mode | os.O_CLOEXEC), key
            except FileNotFoundError:
                return None
            except PermissionError:
                if mode == os.O_RDONLY:
                    raise
            else:
                break
        return self._counters[fact]

    def _number(self, fact: str) -> int | None:
        counter = self._open(fact)
        if counter is None:
            return None
        try:
            content = os.pread(counter[0], 4096, 0)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return None  # the group was removed meanwhile
        return control.number(content, counter[1])

    def _gather(self, directory: str) -> None:
        """Move the box's processes into the frozen group until none is left outside.

        Each process freezes as it arrives and forks no more, so this ends however fast they fork.
        """
        while waiting := control.members(self.member_paths[0]) - control.members(directory):
            moved = False
            for pid in waiting:
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    control.write(f"{directory}/cgroup.procs", str(pid))
                    moved = True
            if not moved:
                return


class Tree:
    """The groups of one keeper. The spawner makes them, and the provider opens them by the paths of a record."""

    def __init__(self, machine: CgroupSupport, keeper: str) -> None:
        if not _KEEPER.match(keeper):
            raise ValueError(f"a keeper's name in a cgroup path must match {_KEEPER.pattern}, not {keeper!r}")
        if not machine.hierarchies:
            raise OSError(errno.ENOTSUP, f"no control groups to use: {machine.reason}")
        self._freezer = machine.hierarchy("freezer")
        self._hierarchies = {name: hierarchy for name, hierarchy in machine.hierarchies if name in CONTROLLERS}
        self._name = f"hutch-{keeper}"
        member_paths = set(self._hierarchies.values()) or ({self._freezer} if self._freezer else set())
        for hierarchy in member_paths:
            if hierarchy.version == 2:
                names = {name for name, other in self._hierarchies.items() if other == hierarchy}
                _delegate(hierarchy.directory, names, machine.own_processes)
        self._homes = sorted(f"{hierarchy.directory}/{self._name}" for hierarchy in member_paths)
        self._unified = next((hierarchy for hierarchy in member_paths if hierarchy.version == 2), None)
        self._held: list[int] = []
        self._spares: list[str] = []
        """Names of groups that `make` may use again."""
        self._make_directories()
        # No name is ever used again, not even by the keeper's other spawner: somebody who removes a box twice, from an
        # old record, must not remove the group of another box. Numbers count microseconds, which no rate of creation
        # overtakes.
        self._numbers = itertools.count(time.monotonic_ns() // 1000)

    def _make_directories(self) -> None:
        """Make the keeper's directories and lock them against `cleanup.sweep_groups`."""
        while self._held:
            os.close(self._held.pop())
        for home in self._homes:
            self._held.append(_hold(home))
        if self._unified is not None:
            names = {name for name, other in self._hierarchies.items() if other == self._unified}
            _enable(f"{self._unified.directory}/{self._name}", names)

    def make(self) -> Group:
        """A new group, empty. The caller sets all its limits, because it may be one that served another box."""
        for number in self._numbers:
            group = self._group(f"hutch-{number}")
            if self._spares and self._rename(self._spares.pop(0), group):
                return group
            made: list[str] = []
            try:
                for path in group.member_paths:
                    os.mkdir(path, 0o755)
                    made.append(path)
            except FileExistsError:
                _rmdir(made)  # another process of this keeper took the number first
                continue
            except FileNotFoundError:
                _rmdir(made)
                self._make_directories()  # another process of this keeper closed its tree while no group existed
                continue
            except OSError:
                _rmdir(made)
                raise
            return group
        raise AssertionError("numbers do not end")

    def _rename(self, spare: str, group: Group) -> bool:
        """Make a spare group the new `group`; False if somebody has removed it."""
        old, renamed = self._group(spare).member_paths, []
        try:
            for path, new in zip(old, group.member_paths, strict=True):
                os.rename(path, new)
                renamed.append(new)
            if "memory" in self._hierarchies:
                control.reset_memory_peak(group._hierarchies["memory"].directory)
        except (FileNotFoundError, FileExistsError):
            _rmdir((*old, *renamed))
            return False
        return True

    def retire(self, paths: Iterable[str]) -> bool:
        """Keep the group of a box that has ended, for another one; False if the caller is to remove it.

        It gets a name that no record has.
        """
        if self._unified is not None or len(self._spares) >= _MAX_SPARES:
            return False
        group = self.made(paths)
        name = f"{_SPARE}{os.path.basename(group.member_paths[0])}"
        kept = self._group(name).member_paths
        try:
            if not group.is_like_new():
                return False
            _rmdir(set(group.paths) - set(group.member_paths))  # the freezer's directory, if the box was ever frozen
            for path, new in zip(group.member_paths, kept, strict=True):
                os.rename(path, new)
        except FileNotFoundError:  # somebody else removes the box too
            _rmdir(kept)
            return False
        self._spares.append(name)
        return True

    def take_spare(self) -> str:
        """Take the name of a spare group, for the `add_spare` of another tree of this keeper; "" if there is none."""
        return self._spares.pop(0) if self._spares else ""

    def add_spare(self, name: str) -> None:
        if len(self._spares) < _MAX_SPARES:
            self._spares.append(name)
        else:
            _rmdir(self._group(name).member_paths)

    def open(self, paths: Iterable[str]) -> Group:
        """Open the group that a record names.

        Raises:
            FileNotFoundError: the group is gone, as after a restart of the machine.
            ValueError: a path does not belong to a box.
        """
        hierarchies: dict[str, Hierarchy] = {}
        freezer: Hierarchy | None = None
        missing: list[str] = []
        paths = tuple(paths)
        if not paths:
            raise ValueError("a box without a group has nothing to open")
        for path in paths:
            home, name = os.path.split(path)
            # A forged or damaged record must not lead us to a group that is not a box's.
            if not _NUMBERED.match(name) or not os.path.basename(home).startswith("hutch-"):
                raise ValueError(f"{path!r} is not the group of a box")
            if not os.path.isdir(path):
                missing.append(path)
                continue
            version = 2 if os.path.exists(f"{path}/cgroup.controllers") else 1
            for controller, mark in control.MARKS[version].items():
                if os.path.exists(f"{path}/{mark}"):
                    hierarchies[controller] = Hierarchy(version, path)
            if version == 2 or os.path.exists(f"{path}/freezer.state"):
                freezer = Hierarchy(version, path)
        if missing == [paths[-1]] and hierarchies and freezer is None and self._freezer:
            freezer = Hierarchy(self._freezer.version, paths[-1])  # the box was never frozen
        elif missing:
            raise FileNotFoundError(errno.ENOENT, "the group is gone", missing[0])
        return Group(hierarchies, freezer)

    def made(self, paths: Iterable[str]) -> Group:
        """Open a group that `make` has just made, without looking at which files it has."""
        return self._group(os.path.basename(next(iter(paths))))

    def list(self) -> tuple[tuple[str, ...], ...]:
        """The paths of every group of this keeper, each fit for `open`. One that no record names is left by a crash."""
        names = sorted(self._numbered(), key=lambda name: int(name.partition("-")[2]))
        return tuple(self._group(name).existing() for name in names)

    def close(self) -> bool:
        """Remove the keeper's own directories unless boxes still live there, and return whether they are gone.

        Another `Tree` of the same keeper makes them again when it needs them.
        """
        for spare in self._spares:
            _rmdir(self._group(spare).member_paths)
        homes = list(self._homes)
        if self._freezer:
            homes.append(f"{self._freezer.directory}/{self._name}")
        _rmdir(homes)
        while self._held:
            os.close(self._held.pop())
        return not any(map(os.path.exists, homes))

    def _group(self, name: str) -> Group:
        below = f"{self._name}/{name}"
        hierarchies = {
            controller: Hierarchy(hierarchy.version, f"{hierarchy.directory}/{below}")
            for controller, hierarchy in self._hierarchies.items()
        }
        freezer = self._freezer and Hierarchy(self._freezer.version, f"{self._freezer.directory}/{below}")
        return Group(hierarchies, freezer)

    def _numbered(self) -> set[str]:
        return {name for home in self._homes for name in os.listdir(home) if _NUMBERED.match(name)}


def _hold(home: str) -> int:
    """Make the directory and hold a shared lock on it, so that `cleanup.sweep_groups` spares it while we live."""
    while True:
        os.makedirs(home, 0o755, exist_ok=True)
        try:
            fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.path.exists(home):
            return fd
        os.close(fd)  # it was swept away between the two calls


def _delegate(directory: str, controllers: set[str], own_processes: frozenset[int]) -> None:
    """Enable the v2 controllers below our own group, moving our processes into a leaf if the kernel insists.

    Only the top group may hold processes beside groups with controllers (cgroups(7), "no internal processes").
    """
    try:
        _enable(directory, controllers)
        return
    except OSError as error:
        if error.errno != errno.EBUSY or foreign_processes(directory, own_processes):
            raise
    leaf = f"{directory}/{SELF_LEAF}"
    os.makedirs(leaf, 0o755, exist_ok=True)
    while pids := control.members(directory):  # repeated for what was forked by a process that was not moved yet
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                control.write(f"{leaf}/cgroup.procs", str(pid))
    _enable(directory, controllers)


def _enable(directory: str, controllers: set[str]) -> None:
    path = f"{directory}/cgroup.subtree_control"
    missing = controllers - set(control.read(path).decode().split())
    if missing:
        control.write(path, " ".join(f"+{name}" for name in sorted(missing)))


def _rmdir(paths: Iterable[str]) -> None:
    for path in paths:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
                raise
