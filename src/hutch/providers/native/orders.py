"""Translates an effective spec into the request that a spawner understands, and into the options of the guest."""

import json
import os
import time
from collections.abc import Iterator

from hutch.errors import Invalid, Refused, Unsupported
from hutch.linux.cgroups import GroupLimits
from hutch.model.limits import Limits
from hutch.model.spec import CheckedMount, EffectiveSpec, MountMode, NetworkMode, Order, Retention, Workspace
from hutch.providers.base import InstanceRecord
from hutch.providers.native.rootfs.images import Image
from hutch.providers.native.rootfs.machine_view import visible_cpus
from hutch.providers.native.rootfs.root import HOME, TOOLS, WORKSPACE
from hutch.providers.native.spawn import wire

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HEADROOM = 4
"""Added to RLIMIT_NPROC, which counts our own processes too. `cgroup_files` adds its own headroom."""
_SHM_MB = 64
_INODES_PER_MB = 256


def hostname(order: Order) -> str:
    return order.box_id[:12]


def is_persistent(spec: EffectiveSpec) -> bool:
    return spec.retention is Retention.PERSISTENT


def canary_spec() -> EffectiveSpec:
    """The spec of a canary, the plainest box there is."""
    limits = Limits(
        cpus=1.0, memory_mb=64, pids=16, disk_mb=16, open_files=256, timeout_sec=10.0, max_timeout_sec=10.0
    )  # fmt: skip
    return EffectiveSpec(
        profile="", provider="native", image="host", workspace=Workspace(), workdir=f"/{WORKSPACE}", user="user",
        mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(), limits=limits, read_only_root=True,
        retention=Retention.TEMPORARY, idle_timeout_sec=0.0, ttl_sec=60.0, labels={}, ports=(), name="",
    )  # fmt: skip


def environment(spec: EffectiveSpec, name: str) -> dict[str, str]:
    """The whole environment of every command, with nothing of the keeper's own."""
    standard = {
        "PATH": _path(f"/{HOME}"), "HOME": f"/{HOME}", "USER": "user", "LOGNAME": "user", "SHELL": "/bin/sh",
        "LANG": "C.UTF-8", "HOSTNAME": name, "TMPDIR": "/tmp",
        # `nproc` and OpenMP programs believe this more than the kernel, which shows every processor to every box.
        "OMP_NUM_THREADS": str(visible_cpus(spec.limits.cpus)),
        "NPM_CONFIG_PREFIX": f"/{HOME}/.local",
    }  # fmt: skip
    return standard | spec.env | spec.secrets


def _path(home: str) -> str:
    """The search path of an account: what it installed itself comes first, and Hutch's own links last.

    Threat: root must not run programs that the box's user put into a directory of its own.
    """
    return f"{home}/.local/bin:{SYSTEM_PATH}:/{TOOLS}"


def root_guest_options(record: InstanceRecord, spec: EffectiveSpec, uid: int) -> bytes:
    """The options of a root guest, which runs as long as the box does, whoever is connected."""
    home = "/root" if uid == 0 else "/"
    name = "root" if uid == 0 else str(uid)
    own = {"HOME": home, "USER": name, "LOGNAME": name, "NPM_CONFIG_PREFIX": f"{home}/.local"}
    if "PATH" not in spec.env:
        own["PATH"] = _path(home)
    env = environment(spec, record.box_id[:12]) | own
    return json.dumps({"box_id": record.box_id, "workdir": spec.workdir, "env": env}).encode()


def kernel_guest_options(record: InstanceRecord, spec: EffectiveSpec) -> dict[str, object]:
    """The options of a guest whose jobs are kernels. It ends with the box."""
    return {"box_id": record.box_id, "workdir": spec.workdir, "env": environment(spec, record.box_id[:12])}


def guest_options(order: Order) -> bytes:
    """The fields of `guest.main.Options`, as JSON."""
    spec = order.spec
    deadline = time.monotonic() + spec.ttl_sec if spec.ttl_sec else 0.0
    return json.dumps(
        {
            "box_id": order.box_id,
            "workdir": spec.workdir,
            "env": environment(spec, hostname(order)),
            "orphan_grace": order.orphan_grace_sec,
            "ttl_deadline": deadline,
        }
    ).encode()


def group_limits(limits: Limits, *, persistent: bool) -> GroupLimits:
    """The limits of the control group. Files of a tmpfs are charged to it, so their size is added to its memory."""
    files_mb = _SHM_MB if persistent else limits.disk_mb
    memory = (limits.memory_mb + files_mb) << 20
    return GroupLimits(memory_bytes=memory, pids=limits.pids, cpus=limits.cpus)


def inodes(limits: Limits) -> int:
    """The number of files that a box may have. Even empty files cost memory or disk."""
    return max(4096, limits.disk_mb * _INODES_PER_MB)


def stored_layers(store: str | None) -> list[str]:
    """The layers of a store, topmost first. The box itself cannot write where this is read."""
    try:
        current = _read(f"{store}/current") if store else "0"
        return [current, *json.loads(_read(f"{store}/{current}.stack"))] if current != "0" else ["0"]
    except FileNotFoundError:
        return ["0"]  # it never had a checkpoint


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def request(
    order: Order, image: Image, store: str | None, *, has_id_ranges: bool, counts_processes: bool
) -> wire.Message:
    """The message that asks a spawner for this box."""
    spec, limits = order.spec, order.spec.limits
    own = spec.workspace.source == "own" and spec.workspace.mode is MountMode.RW
    binds: tuple[tuple[str, str], ...] = image.binds
    overlays: tuple[tuple[str, str], ...] = ()
    if image.is_machine and not spec.read_only_root:
        if not has_id_ranges:
            raise Unsupported(
                "a writable root over the machine's own files needs id ranges, which only root can give",
                op="create",
                remedy="use a read-only root, an image (dir: or tar:) that belongs to you, or run Hutch as root",
            )
        binds, overlays = (), (*binds, *image.changeable)
    bounds = group_limits(limits, persistent=store is not None)
    # A prestarted child of an ordinary user can get no further mounts, so the mounts of all boxes of an owner are part
    # of the template instead.
    begun_ahead = own and store is None and not has_id_ranges
    shown = [place for place in order.places.mounts if begun_ahead and place.public]
    return {
        "id": order.box_id,
        "keeper": order.keeper,
        "hostname": hostname(order),
        "template": {
            "lowers": image.lowers,
            "binds": binds,
            "overlays": overlays,
            "read_only": spec.read_only_root,
            "own_workspace": own,
            "network": spec.network.value,
            "pin": image.pin,
            "store": store,
            "workspace_binds": [
                *((place.real, _target(place.target)[1:]) for place in shown),
                *([(image.environment, image.environment[1:])] if image.environment else []),
            ],
            "layers": stored_layers(store),
            "allowed": () if spec.network is NetworkMode.OFF else sorted(set(spec.allow_private)),
        },
        "parameters": {
            "size": limits.disk_mb << 20,
            "inodes": inodes(limits),
            "open_files": limits.open_files,
            "processes": 0 if counts_processes else limits.pids + _HEADROOM,
            "host_mounts": list(_host_mounts(order, left_out=shown)),
            "cpus": limits.cpus,
            "memory_mb": limits.memory_mb,
        },
        "group_limits": {"memory_bytes": bounds.memory_bytes, "pids": bounds.pids, "cpus": bounds.cpus},
    }


def _host_mounts(order: Order, left_out: list[CheckedMount]) -> Iterator[list[str | bool | int]]:
    """The host mounts as policy has allowed them. The spawner checks each inode again when it is open."""
    places = order.places
    for place in (places.workspace, *places.mounts):
        if place is not None and place not in left_out:
            yield host_mount(place)


BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""The one file of the box's own that is mounted over: a box whose processes were ended has booted anew."""


def host_mount(place: CheckedMount) -> list[str | bool | int]:
    """The values of a `root.HostMount`."""
    writable = place.mode is MountMode.RW
    return [place.real, _target(place.target), writable, place.dev, place.ino, place.public]


def _target(wanted: str) -> str:
    target = os.path.normpath(wanted)
    if not os.path.isabs(target) or target == "/":
        raise Invalid(f"a mount needs an absolute target below /, not {wanted!r}", op="create")
    if target.split("/")[1] in ("proc", "dev", "sys") and target != BOOT_ID:
        raise Refused(f"nothing can be mounted at {target}: it belongs to the box itself", op="create")
    return target


def check_layers(spec: EffectiveSpec, mapped: bool) -> None:
    """Refuse a box that this kernel's overlay cannot serve, before anything is made for it."""
    if not mapped and (is_persistent(spec) or not spec.read_only_root):
        raise Unsupported(
            "before Linux 5.19 a box with ids of its own can be neither persistent nor have a writable root",
            op="create",
            remedy="use a temporary box with a read-only root, run Hutch as an ordinary user, or upgrade",
        )


def check_network(spec: EffectiveSpec, offered: tuple[NetworkMode, ...], reason: str) -> None:
    if spec.network not in offered:
        raise Unsupported(f"network {spec.network.value} is not available here: {reason}", op="create")
