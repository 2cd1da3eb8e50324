"""Control groups that nobody uses any more: what a keeper leaves when it and its spawner were killed.

A keeper's directory `hutch-<keeper>` is held by a shared lock of every process that uses it (`cgroups.Tree`), so one
whose lock is free is nobody's. A group with processes is the box of somebody who may come back for it: it stays.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator

from hutch.linux.cgroup_detect import SELF_LEAF, Machine

_HOME = re.compile(r"hutch-[a-z0-9][a-z0-9-]*")


def sweep(machine: Machine, *, dry_run: bool = False) -> tuple[str, ...]:
    """Remove the abandoned directories in every hierarchy; their names."""
    places = sorted({seat.directory for _, seat in machine.seats})
    names = {name for place in places for name in os.listdir(place) if _HOME.fullmatch(name) and name != SELF_LEAF}
    return tuple(name for name in sorted(names) if _sweep_one([f"{place}/{name}" for place in places], dry_run))


def _sweep_one(homes: list[str], dry_run: bool) -> bool:
    homes = [home for home in homes if os.path.isdir(home)]
    with _alone(homes) as alone:
        groups = [group for home in homes for group in (*_below(home), home)]
        if not alone or any(map(_occupied, groups)):
            return False
        for group in () if dry_run else groups:
            with contextlib.suppress(OSError):  # a process that joined it this moment keeps it
                os.rmdir(group)
        return True


@contextlib.contextmanager
def _alone(homes: list[str]) -> Iterator[bool]:
    """Whether nobody holds any of these; meanwhile we do, so that nobody begins to."""
    with contextlib.ExitStack() as held:
        try:
            for home in homes:
                fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            yield False
            return
        yield bool(homes)


def _below(home: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [entry.path for entry in os.scandir(home) if entry.is_dir()]
    return []


def _occupied(group: str) -> bool:
    try:
        with open(f"{group}/cgroup.procs", "rb") as file:
            return bool(file.read(1))
    except FileNotFoundError:
        return False
