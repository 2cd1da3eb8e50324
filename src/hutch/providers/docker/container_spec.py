"""The specification of a box's container, in pure functions, so that the hardening can be read and tested.

The disk of a temporary box is memory: one tmpfs each for the workspace, the home and /tmp, whose sizes add up to
`disk_mb`, because no engine can show one file system in several places. Their pages are charged to the container, so
its memory limit is raised by as much.
"""

from typing import Any, NamedTuple

from hutch.errors import Invalid, Refused
from hutch.model.images import ImageDefaults
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec, MountMode, NetworkMode, Order, Retention
from hutch.providers.docker import labels
from hutch.providers.docker.engine.dialect import Dialect
from hutch.providers.guest_bundle.listener import GUEST_DIR, ROOT_GUEST_DIR
from hutch.providers.guest_bundle.pack import HOME as BUNDLE_HOME
from hutch.providers.guest_bundle.pack import GuestBundle

WORKSPACE = "/workspace"
HOME = "/home/user"
PARTS = ("home", "workspace")
"""The parts that a persistent box keeps, each in a volume of its own."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PIDS_HEADROOM = 8
"""The number of our own processes in the container: the guest, the root guest and relays."""
GUEST_MB = 16
"""The memory that the guest itself needs."""
SANDBOX_MB = 192
SANDBOX_THREADS = 8192
_MB = 1 << 20
_OURS = (GUEST_DIR, ROOT_GUEST_DIR, BUNDLE_HOME, "/proc", "/dev", "/sys")
_INODES_PER_MB = 256
_LOADING = ("LD_PRELOAD", "LD_AUDIT")


class ImageFacts(NamedTuple):
    """The parts of an image's configuration that matter to a box."""

    id: str
    defaults: ImageDefaults
    volumes: tuple[str, ...]
    user: str
    """The uid:gid if the image names an ordinary user by number, else ""."""


class Bind(NamedTuple):
    """A path of the engine's host, as the engine names it."""

    source: str
    target: str
    writable: bool


class BoxParameters(NamedTuple):
    """The parameters of a container that come from the engine, not from the order."""

    bundle: GuestBundle
    instance: str
    runtime: str
    user: str
    cgroup_parent: str
    network: str
    """The name of the box's own network; "" if it has none."""
    binds: tuple[Bind, ...]
    private_cgroups: bool
    walled: bool
    """Whether the runtime runs the box under a kernel of its own."""
    dialect: Dialect
    generation: str = ""
    """Which of the box's volumes are mounted (`labels.volume`)."""


def is_persistent(spec: EffectiveSpec) -> bool:
    return spec.retention is Retention.PERSISTENT


def container(order: Order, image: ImageFacts, parameters: BoxParameters) -> dict[str, Any]:
    """Return the body of `POST /containers/create`."""
    spec, limits = order.spec, order.spec.limits
    return {
        "Image": image.id,
        "Hostname": order.box_id[:12],
        "User": user_of(image, parameters),
        # An image may name libraries to be loaded into every program. Ours must load none, since some run as root.
        "Env": [f"{name}=" for name in _LOADING],
        "Entrypoint": parameters.bundle.argv("hutch.providers.guest_bundle.boot", GUEST_DIR, "guest"),
        "Cmd": [],
        "WorkingDir": "/",
        "Labels": labels.labels(order, parameters.instance),
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        "HostConfig": {
            **limited(limits, walled=parameters.walled),
            "Ulimits": _ulimits({"nofile": limits.open_files, "core": 0, **parameters.dialect.ulimits}),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Privileged": False,
            "ReadonlyRootfs": spec.read_only_root,
            "IpcMode": "private",
            **({"CgroupnsMode": "private"} if parameters.private_cgroups else {}),
            **({"CgroupParent": parameters.cgroup_parent} if parameters.cgroup_parent else {}),
            **({"Runtime": parameters.runtime} if parameters.runtime else {}),
            "NetworkMode": parameters.network if spec.network is not NetworkMode.OFF else "none",
            "ShmSize": shm_mb(limits) * _MB,
            "Tmpfs": tmpfs(spec, image, parameters),
            "Mounts": _mounts(order, parameters),
            "Init": False,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            **parameters.dialect.host_config,
        },
    }


def user_of(image: ImageFacts, parameters: BoxParameters) -> str:
    return image.user or parameters.user


def limited(limits: Limits, *, walled: bool) -> dict[str, int]:
    """Return the limits that an engine enforces by control groups, and can change on a live container."""
    memory = limits.memory_mb + limits.disk_mb + spill_mb(limits) + GUEST_MB
    pids = limits.pids + PIDS_HEADROOM
    if walled:
        # The box's own kernel lives in the same control group, and meeting a limit there would end the whole box.
        # The guest's watchdog enforces the box's limits; these stop what gets past it between two checks.
        memory, pids = memory + limits.memory_mb + SANDBOX_MB, SANDBOX_THREADS
    return {
        "Memory": memory * _MB,
        "MemorySwap": memory * _MB,  # this is memory and swap together, so there is no swap
        "NanoCpus": max(10**7, round(limits.cpus * 10**9)),
        "PidsLimit": pids,
    }


def watched(limits: Limits) -> dict[str, int]:
    """Return the limits that the guest's watchdog enforces in a box with its own kernel."""
    return {"memory_bytes": limits.memory_mb * _MB, "pids": limits.pids}


def spill_mb(limits: Limits) -> int:
    """Return the memory for output that fits nowhere else; the guest drops the middle of what is larger."""
    return min(64, max(8, limits.memory_mb // 8))


def shm_mb(limits: Limits) -> int:
    return min(256, max(8, limits.memory_mb // 8))


def tmpfs(spec: EffectiveSpec, image: ImageFacts, parameters: BoxParameters) -> dict[str, str]:
    """Return the options of each tmpfs by its mount point."""
    uid, gid = user_of(image, parameters).split(":")
    owner = parameters.dialect.owner.format(uid=uid, gid=gid)
    taken = {bind.target for bind in parameters.binds}
    for path in filter(_is_ours, image.volumes):
        # An engine fills a declared volume from the image, which would put the image's code in place of our guest.
        raise Refused(f"the image declares a volume at {path}, which belongs to the box itself", op="create")
    places = {"/tmp": 1, **{path: 1 for path in image.volumes if path not in (*taken, WORKSPACE, HOME, "/tmp")}}
    if not is_persistent(spec):
        places[HOME] = 1
        if spec.workspace.source == "own" and spec.workspace.mode is not MountMode.NONE:
            places[WORKSPACE] = 2
    places = {path: weight for path, weight in places.items() if path not in taken}
    total = sum(places.values())
    mounted = {}
    for path, weight in places.items():
        size = max(1, spec.limits.disk_mb * weight * 1024 // total)
        access = "ro" if path == WORKSPACE and spec.workspace.mode is MountMode.RO else "rw"
        mode = "1777" if path == "/tmp" else "0755"
        files = f"nr_inodes={max(1024, size * _INODES_PER_MB // 1024)}," if parameters.dialect.inodes else ""
        mounted[path] = f"{access},nosuid,nodev,exec,size={size}k,{files}mode={mode},{owner}"
    quiet = "rw,nosuid,nodev,noexec"
    mounted[GUEST_DIR] = f"{quiet},size={spill_mb(spec.limits)}m,mode=0711,{owner}"
    mounted[ROOT_GUEST_DIR] = f"{quiet},size=8m,mode=0711"
    return mounted


def environment(spec: EffectiveSpec, image: ImageFacts, box_id: str, *, user: str = "user") -> dict[str, str]:
    """Return the whole environment of every command: the image's, ours, the spec's."""
    home = HOME if user == "user" else "/root"
    standard = {
        "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "HOSTNAME": box_id[:12], "TMPDIR": "/tmp",
    }  # fmt: skip
    return {"PATH": PATH, "LANG": "C.UTF-8"} | image.defaults.env | standard | spec.env | spec.secrets


def target(wanted: str) -> str:
    """Return a mount's target as a plain path. Raises Invalid or Refused if nothing may be mounted there."""
    if not wanted.startswith("/") or "/../" in f"{wanted}/" or wanted.strip("/") == "":
        raise Invalid(f"a mount needs an absolute target below /, not {wanted!r}", op="create")
    path = "/" + "/".join(part for part in wanted.split("/") if part not in ("", "."))
    if _is_ours(path):
        raise Refused(f"nothing can be mounted at {path}: it belongs to the box itself", op="create")
    return path


def _is_ours(path: str) -> bool:
    return any(path == ours or path.startswith(f"{ours}/") for ours in _OURS)


def _mounts(order: Order, parameters: BoxParameters) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "Type": "volume",
            "Source": labels.guest_volume(parameters.bundle.digest),
            "Target": BUNDLE_HOME,
            "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True, "Labels": {labels.GUEST: parameters.bundle.digest}},
        }
    ]
    for part, place in kept(order.spec).items():
        read_only = place == WORKSPACE and order.spec.workspace.mode is MountMode.RO
        name = labels.volume(order.box_id, part, parameters.generation)
        found.append(
            {
                "Type": "volume",
                "Source": name,
                "Target": place,
                "ReadOnly": read_only,
                "VolumeOptions": {"NoCopy": True},
            }
        )
    # A parent has to be mounted before what lies inside it.
    for bind in sorted(parameters.binds, key=lambda each: each.target):
        found.append(
            {
                "Type": "bind",
                "Source": bind.source,
                "Target": bind.target,
                "ReadOnly": not bind.writable,
                "BindOptions": {"Propagation": "rprivate"},
            }
        )
    return found


def kept(spec: EffectiveSpec) -> dict[str, str]:
    """Return the volumes of a persistent box: the mount point of each part."""
    if not is_persistent(spec):
        return {}
    own = spec.workspace.source == "own" and spec.workspace.mode is not MountMode.NONE
    return {"home": HOME, **({"workspace": WORKSPACE} if own else {})}


def layered(spec: EffectiveSpec, image: ImageFacts) -> list[str]:
    """Return the directories besides the root that belong to the states of a box's files. /tmp does not."""
    taken = {WORKSPACE, HOME, "/tmp", *(mount.target for mount in spec.mounts)}
    own = spec.workspace.source == "own" and spec.workspace.mode is MountMode.RW
    return [HOME, *([WORKSPACE] if own else []), *(path for path in image.volumes if path not in taken)]


def _ulimits(limits: dict[str, int]) -> list[dict[str, Any]]:
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in limits.items()]
