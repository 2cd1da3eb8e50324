"""The control groups of a keeper's boxes: made, limited, entered, read, frozen and removed.

A keeper has one `Tree`, a directory `hutch-<keeper>` below our own group in each hierarchy in use; each box has a
`Group` below it, `hutch-<number>`. The number means nothing: a group is made before anyone knows which box will use it,
and the box's record keeps its `paths`, from which any later keeper opens it again, wherever that one was started.

A group serves one box and is then removed. Handing it on would save a mkdir and an rmdir (0.13 ms, off the path of a
creation when groups are made ahead), but the previous box's page cache stays charged, and emptying it costs 0.8 ms.

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
from hutch.linux.cgroup_detect import CONTROLLERS, SELF_LEAF, Machine, Seat, detect, strangers

__all__ = ["Ceiling", "Facts", "Group", "Machine", "Tree", "detect"]

_NUMBERED = re.compile(r"hutch-(\d+)\Z")
_KEEPER = re.compile(r"[a-z0-9][a-z0-9-]{0,60}\Z")


class Ceiling(NamedTuple):
    """The limits of one box. `memory_bytes` includes the box's tmpfs sizes: their pages are charged like any other."""

    memory_bytes: int
    pids: int
    cpus: float


class Facts(NamedTuple):
    """What the kernel counted since the group was made; None where it cannot say."""

    oom_kills: int | None = None
    pids_hits: int | None = None
    throttled: int | None = None
    memory_peak_bytes: int | None = None
    memory_current: int | None = None
    pids_current: int | None = None


class Group:
    """One box's group in each hierarchy in use. Descriptors are opened when first needed and kept until `close`.

    `paths` is what a record keeps: the `residents`, which exist from the beginning, and, where the freezer is a
    hierarchy of its own, its directory, which exists only once the box was frozen.
    """

    __slots__ = ("_counters", "_directory", "_freezer", "_seats", "paths", "residents")

    def __init__(self, seats: dict[str, Seat], freezer: Seat | None) -> None:
        self._seats = seats
        self._freezer = freezer
        homes = dict.fromkeys(seat.directory for seat in seats.values())
        frozen_in = (freezer.directory,) if freezer else ()
        self.residents: tuple[str, ...] = tuple(homes) or frozen_in
        self.paths: tuple[str, ...] = tuple(dict.fromkeys((*self.residents, *frozen_in)))
        self._counters: dict[str, tuple[int, bytes]] = {}
        """By fact: its open file, and the key of its number there."""
        self._directory: int | None = None

    def limit(self, ceiling: Ceiling) -> None:
        """Set or change every limit that this machine can hold."""
        if seat := self._seats.get("memory"):
            control.limit_memory(seat.version, seat.directory, ceiling.memory_bytes)
        if seat := self._seats.get("pids"):
            control.limit_pids(seat.directory, ceiling.pids)
        if seat := self._seats.get("cpu"):
            control.limit_cpu(seat.version, seat.directory, ceiling.cpus)

    def enter(self) -> None:
        """Move the calling process here in the v1 hierarchies; it must have a single thread.

        The kernel takes its global lock, and so waits about 10 ms for an RCU grace period, unless a thread moves just
        itself. So a new child calls this instead of its parent calling `place` (0.16 ms against 8). It must still see
        the host's mounts; what it forks later is born here. The v2 group is joined at birth, see `directory_fd`.
        """
        for path in self.entrances():
            control.write(path, "0")

    def entrances(self) -> tuple[str, ...]:
        """The files that `enter` writes to, for a process that has only their names."""
        unified = self._unified()
        return tuple(f"{path}/tasks" for path in self.residents if path != unified)

    def place(self, pid: int) -> None:
        """Move another process here, with all its threads. Slow when rare: see `enter`."""
        for path in self.residents:
            control.write(f"{path}/cgroup.procs", str(pid))

    def directory_fd(self) -> int | None:
        """The v2 directory for clone3(CLONE_INTO_CGROUP), which costs nothing; None without v2. Kept by the group."""
        unified = self._unified()
        if unified is None:
            return None
        if self._directory is None:
            self._directory = os.open(unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._directory

    def prepare(self, wanted: Iterable[str]) -> None:
        """Open what `facts` will read: the first look at a group's files is the slow one."""
        for fact in wanted:
            self._open(fact)

    def facts(self, wanted: Iterable[str] = Facts._fields) -> Facts:
        """Those that are wanted; the others are None."""
        return Facts(**{fact: self._number(fact) for fact in wanted})

    def freeze(self, timeout: float = 5.0) -> None:
        """Stop every process of the box and return when all stand still. Blocks: call it in a thread.

        Where the freezer is a hierarchy of its own, its group is made here, so that creating a box does not pay
        for it. On v1 SIGKILL waits for the thaw: kill, then thaw.
        """
        if self._freezer is None:
            raise OSError(errno.ENOTSUP, "this machine gives us no freezer", self.paths[0])
        version, directory = self._freezer.version, self._freezer.directory
        deadline = time.monotonic() + timeout
        os.makedirs(directory, 0o755, exist_ok=True)
        control.order_freeze(version, directory)
        if directory not in self.residents:
            self._gather(directory)
        pause = 0.0002
        while not control.is_frozen(version, directory):
            if time.monotonic() > deadline:
                control.thaw(version, directory)
                raise TimeoutError(errno.ETIMEDOUT, f"not frozen within {timeout:g} s, thawed again", directory)
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    def thaw(self) -> None:
        """Let everyone run again; nothing happens to a box that was never frozen."""
        if self._freezer is None:
            return
        with contextlib.suppress(FileNotFoundError):
            control.thaw(self._freezer.version, self._freezer.directory)

    def remove(self, timeout: float = 2.0) -> None:
        """Remove the directories once the last process is gone; once removed, doing it again is no error."""
        self.close()
        deadline = time.monotonic() + timeout
        for path in reversed(self.paths):  # what tells `Tree.list` of this group goes last
            control.remove(path, deadline)

    def existing(self) -> tuple[str, ...]:
        """`paths` without what a crash between two mkdir calls left unmade."""
        return tuple(path for path in self.paths if path not in self.residents or os.path.isdir(path))

    def close(self) -> None:
        """Give back the descriptors; the group stays, and reading it opens them again."""
        while self._counters:
            os.close(self._counters.popitem()[1][0])
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    def _unified(self) -> str | None:
        seats = [*self._seats.values(), *([self._freezer] if self._freezer else [])]
        return next((seat.directory for seat in seats if seat.version == 2 and seat.directory in self.residents), None)

    def _open(self, fact: str) -> tuple[int, bytes] | None:
        """The fact's file, kept, and its key; None if this machine or this kernel has no such file."""
        if fact in self._counters:
            return self._counters[fact]
        seat = self._seats.get(control.FACT_FILES[1][fact][0].partition(".")[0])
        if seat is None:
            return None
        file, key = control.FACT_FILES[seat.version][fact]
        path = f"{seat.directory}/{file}"
        # memory.peak is reset for the descriptor that was written to, so that one must be writable.
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
            return None  # the group was removed under us
        return control.number(content, counter[1])

    def _gather(self, directory: str) -> None:
        """Move the box's processes into the frozen group until none is left outside.

        Each one freezes as it arrives and forks no more, so that this ends however fast they fork.
        """
        while waiting := control.members(self.residents[0]) - control.members(directory):
            moved = False
            for pid in waiting:
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    control.write(f"{directory}/cgroup.procs", str(pid))
                    moved = True
            if not moved:
                return


class Tree:
    """Where one keeper's groups live. The spawner makes groups; whoever holds a record's paths opens them."""

    def __init__(self, machine: Machine, keeper: str) -> None:
        if not _KEEPER.match(keeper):
            raise ValueError(f"a keeper's name in a cgroup path must match {_KEEPER.pattern}, not {keeper!r}")
        if not machine.seats:
            raise OSError(errno.ENOTSUP, f"no control groups to use: {machine.reason}")
        self._freezer = machine.seat("freezer")
        self._seats = {name: seat for name, seat in machine.seats if name in CONTROLLERS}
        self._name = f"hutch-{keeper}"
        residents = set(self._seats.values()) or ({self._freezer} if self._freezer else set())
        for seat in residents:
            if seat.version == 2:
                names = {name for name, other in self._seats.items() if other == seat}
                _delegate(seat.directory, names, machine.family)
        self._homes = sorted(f"{seat.directory}/{self._name}" for seat in residents)
        self._unified = next((seat for seat in residents if seat.version == 2), None)
        self._held: list[int] = []
        self._settle()
        # No name is ever used again, also by the keeper's other spawner: whoever removes a box twice, from an old
        # record, must not meet the group of another. Nobody makes a group in every microsecond.
        self._numbers = itertools.count(time.monotonic_ns() // 1000)

    def _settle(self) -> None:
        """Make the keeper's directories, and hold them."""
        while self._held:
            os.close(self._held.pop())
        for home in self._homes:
            self._held.append(_hold(home))
        if self._unified is not None:
            names = {name for name, other in self._seats.items() if other == self._unified}
            _enable(f"{self._unified.directory}/{self._name}", names)

    def make(self) -> Group:
        """A new group, empty and without limits."""
        for number in self._numbers:
            group = self._group(f"hutch-{number}")
            made: list[str] = []
            try:
                for path in group.residents:
                    os.mkdir(path, 0o755)
                    made.append(path)
            except FileExistsError:
                _rmdir(made)  # another process of this keeper was faster
                continue
            except FileNotFoundError:
                _rmdir(made)
                self._settle()  # another process of this keeper has closed while no group was there
                continue
            except OSError:
                _rmdir(made)
                raise
            return group
        raise AssertionError("numbers do not end")

    def open(self, paths: Iterable[str]) -> Group:
        """The group that a record names. FileNotFoundError if it is gone, as after the machine's restart."""
        seats: dict[str, Seat] = {}
        freezer: Seat | None = None
        missing: list[str] = []
        paths = tuple(paths)
        if not paths:
            raise ValueError("a box without a group has nothing to open")
        for path in paths:
            home, name = os.path.split(path)
            # A forged or damaged record must not lead us to groups of others.
            if not _NUMBERED.match(name) or not os.path.basename(home).startswith("hutch-"):
                raise ValueError(f"{path!r} is not the group of a box")
            if not os.path.isdir(path):
                missing.append(path)
                continue
            version = 2 if os.path.exists(f"{path}/cgroup.controllers") else 1
            for controller, mark in control.MARKS[version].items():
                if os.path.exists(f"{path}/{mark}"):
                    seats[controller] = Seat(version, path)
            if version == 2 or os.path.exists(f"{path}/freezer.state"):
                freezer = Seat(version, path)
        if missing == [paths[-1]] and seats and freezer is None and self._freezer:
            freezer = Seat(self._freezer.version, paths[-1])  # never frozen so far
        elif missing:
            raise FileNotFoundError(errno.ENOENT, "the group is gone", missing[0])
        return Group(seats, freezer)

    def made(self, paths: Iterable[str]) -> Group:
        """The same for a group that `make` has just made: it is there, with all that this machine can count."""
        return self._group(os.path.basename(next(iter(paths))))

    def list(self) -> tuple[tuple[str, ...], ...]:
        """The paths of every group here, each fit for `open`: what no record names is left over from a crash."""
        names = sorted(self._numbered(), key=lambda name: int(name.partition("-")[2]))
        return tuple(self._group(name).existing() for name in names)

    def close(self) -> bool:
        """Remove the keeper's own directories unless boxes still live there; whether they are gone.

        Another `Tree` of the keeper that needs them makes them anew: whoever closes last may have been killed.
        """
        homes = list(self._homes)
        if self._freezer:
            homes.append(f"{self._freezer.directory}/{self._name}")
        _rmdir(homes)
        while self._held:
            os.close(self._held.pop())
        return not any(map(os.path.exists, homes))

    def _group(self, name: str) -> Group:
        below = f"{self._name}/{name}"
        seats = {
            controller: Seat(seat.version, f"{seat.directory}/{below}") for controller, seat in self._seats.items()
        }
        freezer = self._freezer and Seat(self._freezer.version, f"{self._freezer.directory}/{below}")
        return Group(seats, freezer)

    def _numbered(self) -> set[str]:
        return {name for home in self._homes for name in os.listdir(home) if _NUMBERED.match(name)}


def _hold(home: str) -> int:
    """Make the directory and hold a shared lock on it as long as we live: `group_sweep` spares what somebody holds."""
    while True:
        os.makedirs(home, 0o755, exist_ok=True)
        try:
            fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.path.exists(home):
            return fd
        os.close(fd)  # swept away between the two calls


def _delegate(directory: str, controllers: set[str], family: frozenset[int]) -> None:
    """Hand the v2 controllers of our own group down, moving ourselves into a leaf if the kernel insists.

    Only the top group may hold processes beside groups with controllers (cgroups(7), "no internal processes").
    """
    try:
        _enable(directory, controllers)
        return
    except OSError as error:
        if error.errno != errno.EBUSY or strangers(directory, family):
            raise
    leaf = f"{directory}/{SELF_LEAF}"
    os.makedirs(leaf, 0o755, exist_ok=True)
    while pids := control.members(directory):  # again, for what was forked meanwhile by one that was not moved yet
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
