"""What a jail shows for an order: one list of entries for every program that can build a jail. Pure functions."""

from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hutch.errors import Invalid, Refused, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.limits import Limits
from hutch.model.spec import CheckedMount, EffectiveSpec, MountMode, Order, Retention
from hutch.providers.command.shared_files import ETC_DIRECTORIES
from hutch.providers.guest_bundle.listener import GUEST_DIR
from hutch.providers.guest_bundle.pack import HOME as BUNDLE_HOME

HOME = "/home/user"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GUEST_MB = 16
"""Memory of the guest itself."""
GUEST_TASKS = 4
"""RLIMIT_NPROC counts the guest's threads too, and the process that met the limit has ended when a box counts as
full."""
UNHELD = 1 << 30
"""The watchdog's limit of processes where the kernel itself enforces one."""
_OURS = (GUEST_DIR, BUNDLE_HOME, "/proc", "/dev", "/sys")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt")
_EMPTY = ("var", "srv", "mnt", "media", "root", "run", "home")


class Kind(StrEnum):
    READ = "read"
    WRITE = "write"
    MEMORY = "memory"
    LINK = "link"


class JailEntry(NamedTuple):
    """One path inside the jail."""

    kind: Kind
    target: str
    source: str = ""
    """A path of the host, or the target of a link."""
    kilobytes: int = 0
    mode: int = 0o755
    read_only: bool = False
    """Whether a tmpfs is mounted read-only."""


class BoxParameters(NamedTuple):
    """What this machine adds to an order."""

    directory: str
    """The box's own directory."""
    base: str
    """The directory that all boxes share, with `bundle`, `etc` and `empty` in it."""
    uid: int
    """The host user id of the box's user."""
    guest: tuple[str, ...]
    """The guest's command line as it is inside."""
    filter_fd: int = -1
    """A descriptor that holds the system call filter as struct sock_filter[]; -1 if none was asked for."""

    @property
    def socket_dir(self) -> str:
        return f"{self.directory}/door"


def jail_entries(order: Order, parameters: BoxParameters) -> tuple[JailEntry, ...]:
    """Return all that a jail shows besides /proc and /dev, parents before their contents."""
    spec = order.spec
    found = [*_system(order), JailEntry(Kind.READ, "/etc", f"{parameters.base}/etc")]
    found += [JailEntry(Kind.READ, f"/{name}", f"{parameters.base}/empty") for name in _EMPTY if name != "home"]
    borrowed = [f"/etc/{name}" for name in ETC_DIRECTORIES if Path("/etc", name).is_dir()]
    found += [JailEntry(Kind.READ, path, path) for path in borrowed]
    found.append(JailEntry(Kind.READ, BUNDLE_HOME, f"{parameters.base}/bundle"))
    found.append(JailEntry(Kind.WRITE, GUEST_DIR, parameters.socket_dir))
    found += memory_entries(spec)
    mounts = sorted((*order.places.mounts, *_workspace(order)), key=lambda each: each.target)
    found += [_mounted(mount) for mount in mounts]
    return tuple(found)


def memory_entries(spec: EffectiveSpec) -> list[JailEntry]:
    """Return the tmpfs mounts, whose sizes add up to `disk_mb`: no jail shows one tmpfs in several places."""
    parts = {"/tmp": (1, 0o1777), HOME: (1, 0o755)}
    if spec.workspace.source == "own" and spec.workspace.mode is not MountMode.NONE:
        parts["/workspace"] = (2, 0o755)
    total = sum(weight for weight, _ in parts.values())
    found = []
    for target, (weight, mode) in parts.items():
        size = max(64, spec.limits.disk_mb * 1024 * weight // total)
        read_only = target == "/workspace" and spec.workspace.mode is MountMode.RO
        found.append(JailEntry(Kind.MEMORY, target, kilobytes=size, mode=mode, read_only=read_only))
    found.append(JailEntry(Kind.MEMORY, "/dev/shm", kilobytes=shm_mb(spec.limits) * 1024, mode=0o1777))
    return found


def shm_mb(limits: Limits) -> int:
    return min(256, max(8, limits.memory_mb // 8))


def held_mb(limits: Limits) -> int:
    """Return the memory limit of the control group, in which pages of a tmpfs count too."""
    return limits.memory_mb + limits.disk_mb + GUEST_MB


def environment(spec: EffectiveSpec, box_id: str) -> dict[str, str]:
    """Return the whole environment of every command."""
    standard = {
        "PATH": PATH, "LANG": "C.UTF-8", "HOME": HOME, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/sh",
        "HOSTNAME": box_id[:12], "TMPDIR": "/tmp",
    }  # fmt: skip
    return standard | spec.env | spec.secrets


def guest_options(order: Order, *, watched: bool) -> dict[str, Any]:
    """Return the guest's options. They travel over its connection, because everybody can read a command line."""
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
    """Raise Unsupported before anything is made. Policy has asked already; this is the second check."""
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


def _system(order: Order) -> list[JailEntry]:
    """Return the system directories of the machine, or of the image directory that policy has allowed."""
    root = Path(order.places.image.real if order.places.image is not None else "/")
    found = []
    for name in _SYSTEM:
        path = root / name
        if path.is_symlink():
            found.append(JailEntry(Kind.LINK, f"/{name}", str(path.readlink())))
        elif path.is_dir():
            found.append(JailEntry(Kind.READ, f"/{name}", str(path)))
    return found


def _workspace(order: Order) -> tuple[CheckedMount, ...]:
    return () if order.places.workspace is None else (order.places.workspace,)


def _mounted(mount: CheckedMount) -> JailEntry:
    target = mount.target
    if not target.startswith("/") or "/../" in f"{target}/" or not target.strip("/"):
        raise Invalid(f"a mount needs an absolute target below /, not {target!r}", op="create")
    if any(target == ours or target.startswith(f"{ours}/") for ours in _OURS):
        raise Refused(f"nothing can be mounted at {target}: it belongs to the box itself", op="create")
    return JailEntry(Kind.WRITE if mount.mode is MountMode.RW else Kind.READ, target, mount.real)
