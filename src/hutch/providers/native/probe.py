"""Finds out what the native engine can do on this machine: facts, then a canary box and a connection as proof.

A successful canary is remembered by kernel, user and version, so that `hutch run` does not pay for one each time.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hutch import __version__
from hutch.errors import HutchError, Unavailable
from hutch.linux import cgroups, identity, landlock
from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.ids import digest
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import NetworkMode
from hutch.providers.native import obstacles
from hutch.providers.native.network.availability import Availability, available, find_program
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn.client import SpawnerClient
from hutch.providers.native.watch import processes

_ROOT_ONLY = "an ordinary user has a single id to give"
_RUN_AS_ROOT = "run Hutch as root"
_UNCOUNTED = "control groups do not count the buffers of sockets here"
_COUNT_SOCKETS = "use cgroup v2, and no cgroup.memory=nosocket or nokmem on the kernel's command line"
NETWORK_REMEDY = "upgrade the package passt; `hutch doctor` tries again"
_FAILURE_SECONDS = 60.0
_DELEGATE = "run as root, or under systemd-run --user --scope -p Delegate=yes"


class Machine(NamedTuple):
    """Facts about this machine that can be found without a box."""

    has_id_ranges: bool
    cgroups: cgroups.CgroupSupport
    network: Availability
    blind: str
    """Why watchdogs cannot see a box's processes; "" if they can."""
    landlock: int
    """The Landlock ABI version; 0 without Landlock."""
    mapped_layers: bool = True
    """Whether a box with an id range can own the files of its layers."""

    @property
    def networks(self) -> tuple[NetworkMode, ...]:
        return (NetworkMode.OFF, NetworkMode.ON) if self.network.usable else (NetworkMode.OFF,)

    @property
    def network_reason(self) -> str:
        return self.network.reason or "only off and on are offered"


def look() -> Machine:
    has_id_ranges = identity.can_map_ranges()
    return Machine(
        has_id_ranges,
        cgroups.detect(),
        available(),
        processes.obstacle(),
        landlock.abi(),
        root.LAYERS_TAKE_IDS or not has_id_ranges,
    )


def _watched(machine: Machine) -> EnforcedBy:
    return EnforcedBy.NONE if machine.blind else EnforcedBy.WATCHDOG


def grades(machine: Machine) -> Grades:
    groups = machine.cgroups
    return Grades(
        cpus=EnforcedBy.CGROUP if groups.cpu else _watched(machine),
        memory_mb=EnforcedBy.CGROUP if groups.memory and groups.sockets else _watched(machine),
        pids=EnforcedBy.CGROUP if groups.pids else EnforcedBy.RLIMIT,
        disk_mb=EnforcedBy.QUOTA,
        open_files=EnforcedBy.RLIMIT,
    )


def machine_memory_mb() -> int:
    """The memory that the kernel can give to processes (MemTotal, proc(5))."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def pause(machine: Machine) -> Pause:
    return Pause.FREEZE if machine.cgroups.freezer else Pause.NONE if machine.blind else Pause.SIGNALS


def missing(machine: Machine) -> tuple[Missing, ...]:
    """The features that this machine lacks, each with its remedy."""
    found: list[Missing] = []
    if not machine.has_id_ranges:
        found += [Missing(what=what, reason=_ROOT_ONLY, remedy=_RUN_AS_ROOT) for what in ("users.root", "uid_range")]
        reason = f"files of the machine cannot be copied into a box's layer: {_ROOT_ONLY}"
        remedy = f"{_RUN_AS_ROOT}, or use an image (dir:, tar:) that belongs to you"
        found.append(Missing(what="writable_root", reason=reason, remedy=remedy))
    elif not machine.mapped_layers:
        reason, remedy = "overlay takes no idmapped layers before Linux 5.19", "upgrade, or run as an ordinary user"
        found += [Missing(what=what, reason=reason, remedy=remedy) for what in ("writable_root", "persistent")]
    found += _missing_groups(machine)
    if not machine.network.usable:
        found.append(Missing(what="networks.on", reason=machine.network.reason, remedy=machine.network.remedy))
    if not landlock.usable(machine.landlock):
        reason = f"Landlock ABI {machine.landlock} is too old" if machine.landlock else "this kernel has no Landlock"
        found.append(Missing(what="landlock", reason=reason, remedy=landlock.REMEDY))
    return tuple(found)


def _missing_groups(machine: Machine) -> Iterator[Missing]:
    """Report `cgroups` as missing where watchdogs replace it, and each limit that nothing enforces by its own name."""
    groups = machine.cgroups
    absent = [name for name in ("memory", "pids", "cpu", "freezer") if not getattr(groups, name)]
    uncounted = groups.memory and not groups.sockets
    if not absent and not uncounted:
        return
    reason = (groups.reason or f"no control group for {', '.join(absent)}") if absent else _UNCOUNTED
    remedy = _DELEGATE if absent else _COUNT_SOCKETS
    yield Missing(what="cgroups", reason=reason, remedy=remedy)
    held = grades(machine)
    unheld = [f"grades.{name}" for name in Grades.__struct_fields__ if getattr(held, name) is EnforcedBy.NONE]
    if pause(machine) is Pause.NONE:
        unheld.append("pause")
    for what in unheld:
        yield Missing(what=what, reason=f"{reason}; and no watchdog, because {machine.blind}", remedy=remedy)


def capabilities(machine: Machine) -> Capabilities:
    groups = machine.cgroups
    return Capabilities(
        provider="native",
        guest=True,
        ports=True,
        durable_jobs=True,
        pty=True,
        watch=True,
        pause=pause(machine),
        users=("user", "root") if machine.has_id_ranges else ("user",),
        uid_range=machine.has_id_ranges,
        writable_root=machine.has_id_ranges and machine.mapped_layers,
        persistent=machine.mapped_layers,
        networks=machine.networks,
        images=("host", "dir", "tar", "oci"),
        layers=not machine.has_id_ranges or machine.mapped_layers,
        mounts=True,
        memory_mb=machine_memory_mb(),
        grades=grades(machine),
        disk_if_persistent=_watched(machine),  # its files are in a directory of the machine
        missing=missing(machine),
        facts={
            "kernel": os.uname().release,
            "cgroups": groups.mode,
            "landlock": str(machine.landlock),
            "identity": "a range of ids for each box" if machine.has_id_ranges else "one id",
            "network": machine.network.how if machine.network.usable else "none",
        },
    )


async def proven(
    found: Capabilities, canary: Callable[[], Awaitable[None]], cache: str, *, anew: bool = False
) -> Capabilities:
    """The capabilities if a canary box runs, else why not. With `anew`, an earlier canary does not count."""
    mark = Path(cache) / f"canary-{_key(found)}"
    if anew:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
    elif mark.exists():
        return found
    try:
        await canary()
    except HutchError as error:
        obstacle = obstacles.first()
        reason = f"{obstacle.reason} ({error.message})" if obstacle else error.message
        remedy = obstacle.remedy if obstacle else error.remedy or "run `hutch doctor`"
        return found.but(usable=False, reason=reason, remedy=remedy)
    except OSError as error:
        return found.but(usable=False, reason=f"no box can be made: {error}", remedy="run `hutch doctor`")
    with contextlib.suppress(OSError):  # without the mark, the next probe makes another canary
        _make_cache(mark.parent)
        mark.touch()
    return found


def _make_cache(path: Path) -> None:
    """Make the cache, and the state directory above it if needed, closed to others from the first moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


async def with_proven_network(found: Capabilities, cache: str) -> Capabilities:
    """The capabilities, without network `on` if a test connection fails.

    The result is remembered like that of a canary, but a failure only for a minute.
    """
    if NetworkMode.ON not in found.networks:
        return found
    programs = [repr(os.stat(path).st_mtime_ns) for name in ("pasta", "nft") if (path := find_program(name))]
    mark = Path(cache) / f"network-{_key(found, *programs)}"
    reason = _remembered(mark)
    if reason is None:
        try:
            await prove_network()
            reason = ""
        except HutchError as error:
            reason = error.message
        with contextlib.suppress(OSError):  # as above
            _make_cache(mark.parent)
            mark.write_text(reason)
    if not reason:
        return found
    missing = Missing(what="networks.on", reason=reason, remedy=NETWORK_REMEDY)
    return found.but(networks=(NetworkMode.OFF,), missing=(*found.missing, missing))


async def prove_network() -> None:
    """Test connections over a new uplink. Unavailable or EngineError says which failed."""
    options = {"keeper": "", "groups": "", "run": "", "without": [], "network": True, "testing": True}
    spawner = SpawnerClient(options, frozenset())
    try:
        await spawner.start()
    except TimeoutError as error:
        raise Unavailable("no network for boxes: it could not be tried in time", op="probe") from error
    finally:
        spawner.close()
        await asyncio.to_thread(spawner.wait)


def _remembered(mark: Path) -> str | None:
    """Why the last test failed, "" if it succeeded; None if that is not known or too old."""
    try:
        reason = mark.read_text()
        fresh = time.time() - mark.stat().st_mtime < _FAILURE_SECONDS
    except OSError:
        return None
    return reason if not reason or fresh else None


def _key(found: Capabilities, *more: str) -> str:
    """A key of everything that may change a canary's result: kernel, user, our version, and the facts."""
    kernel = os.uname()
    words = (kernel.release, kernel.version, str(os.geteuid()), __version__, repr(sorted(found.facts.items())), *more)
    return digest("\0".join(words).encode())[:24]
