"""From an order to what a jail shows: the same list for every program that can build one. Pure."""

from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hutch.errors import Invalid, Refused, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.limits import Limits
from hutch.model.spec import CheckedMount, EffectiveSpec, MountMode, Order, Retention
from hutch.providers.command.shared_files import BORROWED
from hutch.providers.guest_bundle.listener import GUEST_PLACE
from hutch.providers.guest_bundle.pack import HOME as PLANTED

HOME = "/home/user"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GUEST_MB = 16
"""What the guest itself holds."""
GUEST_TASKS = 4
"""RLIMIT_NPROC counts the guest's threads too; and a box counts as full when the one who met the limit has ended."""
UNHELD = 1 << 30
"""Processes that the guest's watchdog lets live: the kernel counts them."""
_OURS = (GUEST_PLACE, PLANTED, "/proc", "/dev", "/sys")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt")
_EMPTY = ("var", "srv", "mnt", "media", "root", "run", "home")


class Kind(StrEnum):
    READ = "read"
    WRITE = "write"
    MEMORY = "memory"
    LINK = "link"


class Shown(NamedTuple):
    """One thing at one place inside."""

    kind: Kind
    target: str
    source: str = ""
    """A path of the machine; of a link what it says."""
    kilobytes: int = 0
    mode: int = 0o755
    read_only: bool = False
    """Of memory: nothing can be written to it."""


class Site(NamedTuple):
    """What the machine adds to an order."""

    directory: str
    """The box's own."""
    base: str
    """What all boxes share: `plant`, `etc`, `empty`."""
    uid: int
    """The user on the machine as whom the box's user counts."""
    guest: tuple[str, ...]
    """The command line of the guest, inside."""
    filter_fd: int = -1
    """A descriptor from which the system call filter can be read, as struct sock_filter[]; -1: none was asked for."""

    @property
    def door(self) -> str:
        return f"{self.directory}/door"


def shown(order: Order, site: Site) -> tuple[Shown, ...]:
    """Everything a jail shows besides /proc and /dev, parents before what lies inside them."""
    spec = order.spec
    found = [*_system(order), Shown(Kind.READ, "/etc", f"{site.base}/etc")]
    found += [Shown(Kind.READ, f"/{name}", f"{site.base}/empty") for name in _EMPTY if name != "home"]
    found += [Shown(Kind.READ, f"/etc/{name}", f"/etc/{name}") for name in BORROWED if Path("/etc", name).is_dir()]
    found += [Shown(Kind.READ, PLANTED, f"{site.base}/plant"), Shown(Kind.WRITE, GUEST_PLACE, site.door)]
    found += memory(spec)
    mounts = sorted((*order.places.mounts, *_workspace(order)), key=lambda each: each.target)
    found += [_mounted(mount) for mount in mounts]
    return tuple(found)


def memory(spec: EffectiveSpec) -> list[Shown]:
    """The disk of a box is memory: its parts add up to `disk_mb`, since no jail shows one tmpfs in several places."""
    parts = {"/tmp": (1, 0o1777), HOME: (1, 0o755)}
    if spec.workspace.source == "own" and spec.workspace.mode is not MountMode.NONE:
        parts["/workspace"] = (2, 0o755)
    total = sum(weight for weight, _ in parts.values())
    found = []
    for target, (weight, mode) in parts.items():
        size = max(64, spec.limits.disk_mb * 1024 * weight // total)
        read_only = target == "/workspace" and spec.workspace.mode is MountMode.RO
        found.append(Shown(Kind.MEMORY, target, kilobytes=size, mode=mode, read_only=read_only))
    found.append(Shown(Kind.MEMORY, "/dev/shm", kilobytes=shm_mb(spec.limits) * 1024, mode=0o1777))
    return found


def shm_mb(limits: Limits) -> int:
    return min(256, max(8, limits.memory_mb // 8))


def held_mb(limits: Limits) -> int:
    """What a control group has to allow: pages of a tmpfs count as memory of the box."""
    return limits.memory_mb + limits.disk_mb + GUEST_MB


def environment(spec: EffectiveSpec, box_id: str) -> dict[str, str]:
    """The whole environment of every command."""
    standard = {
        "PATH": PATH, "LANG": "C.UTF-8", "HOME": HOME, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/sh",
        "HOSTNAME": box_id[:12], "TMPDIR": "/tmp",
    }  # fmt: skip
    return standard | spec.env | spec.secrets


def told(order: Order, *, watched: bool) -> dict[str, Any]:
    """The guest's first orders. They go over its connection, because a command line is everybody's to read."""
    spec = order.spec
    held = {
        "watched": {"memory_bytes": spec.limits.memory_mb << 20, "pids": UNHELD},
        "tasks": spec.limits.pids + GUEST_TASKS,
    }
    return {
        "box_id": order.box_id,
        "workdir": spec.workdir,
        "env": environment(spec, order.box_id),
        "orphan_grace": order.orphan_grace_sec,
        "ttl": spec.ttl_sec,
        "open_files": spec.limits.open_files,
        **(held if watched else {}),
    }


def check(order: Order, claimed: Capabilities) -> None:
    """Unsupported before anything is made. Policy has asked before; a wall has no front door only."""
    spec = order.spec
    kind = spec.image.partition(":")[0]
    wrong = (
        f"images of kind {kind}" if kind not in claimed.images
        else f"network {spec.network}" if spec.network not in claimed.networks
        else "persistent boxes" if spec.retention is Retention.PERSISTENT and not claimed.persistent
        else "a writable root" if not spec.read_only_root and not claimed.writable_root
        else "mounts" if (order.places.mounts or spec.mounts or order.places.workspace) and not claimed.mounts
        else ""
    )  # fmt: skip
    if wrong:
        raise Unsupported(f"provider {claimed.provider} has not {wrong}", op="create")


def _system(order: Order) -> list[Shown]:
    """The system of the machine, or of the image directory that policy has allowed."""
    root = Path(order.places.image.real if order.places.image is not None else "/")
    found = []
    for name in _SYSTEM:
        path = root / name
        if path.is_symlink():
            found.append(Shown(Kind.LINK, f"/{name}", str(path.readlink())))
        elif path.is_dir():
            found.append(Shown(Kind.READ, f"/{name}", str(path)))
    return found


def _workspace(order: Order) -> tuple[CheckedMount, ...]:
    return () if order.places.workspace is None else (order.places.workspace,)


def _mounted(mount: CheckedMount) -> Shown:
    target = mount.target
    if not target.startswith("/") or "/../" in f"{target}/" or not target.strip("/"):
        raise Invalid(f"a mount needs an absolute target below /, not {target!r}", op="create")
    if any(target == ours or target.startswith(f"{ours}/") for ours in _OURS):
        raise Refused(f"nothing can be mounted at {target}: it belongs to the box itself", op="create")
    return Shown(Kind.WRITE if mount.mode is MountMode.RW else Kind.READ, target, mount.real)
