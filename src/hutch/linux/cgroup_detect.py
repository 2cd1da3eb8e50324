"""Detects which control groups this process may use: the hierarchy of each controller, and the right to make groups.

A mounted controller proves nothing (it is read-only in containers and owned by root on desktops), so each directory
that looks usable is tried with a group that is made and removed. Groups are always made below our own group, never at
the top, so that a box cannot escape the limits that were set on Hutch itself.

Standard library only: the spawner imports this.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from hutch.linux.cgroup_files import SOCKETS_FILE

CONTROLLERS = ("memory", "pids", "cpu")
SELF_LEAF = "hutch-self"  # cgroup v2: Hutch's own processes move here, since an inner node may not hold any

_SCOPE = "systemd-run --scope" if os.geteuid() == 0 else "systemd-run --user --scope"
_RUN_DELEGATED = f"start under {_SCOPE} -p Delegate=yes, or in a systemd unit with Delegate=yes"
_REFUSALS = {
    errno.EROFS: "it is mounted read-only: give the container a writable /sys/fs/cgroup",
    errno.EACCES: "it belongs to another user: run as root, or have the subtree delegated to this user",
    errno.EPERM: "the kernel does not permit it: run as root, or have the subtree delegated to this user",
    errno.ENOENT: "our own group is not visible at the mount: mount cgroups in this namespace",
}


class Hierarchy(NamedTuple):
    """The hierarchy in which a controller is used: its cgroup version, and a group's directory in it."""

    version: int
    directory: str


class CgroupSupport(NamedTuple):
    """The controllers that this process may use; `reason` says why others are missing ("" if none is)."""

    mode: str  # "v1" | "v2" | "hybrid" | "none"
    memory: bool
    pids: bool
    cpu: bool
    freezer: bool
    reason: str
    hierarchies: tuple[tuple[str, Hierarchy], ...] = ()
    own_processes: frozenset[int] = frozenset()
    """These processes and their children may be moved out of our own group (`foreign_processes`)."""
    sockets: bool = True
    """Whether the memory controller also counts socket buffers."""

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.hierarchies)

    def hierarchy(self, controller: str) -> Hierarchy | None:
        return dict(self.hierarchies).get(controller)


class _Mount(NamedTuple):
    version: int
    point: str
    root: str
    controllers: frozenset[str]


def detect(
    root: str = "/sys/fs/cgroup",
    own: str = "/proc/self/cgroup",
    mountinfo: str = "/proc/self/mountinfo",
    *,
    keeper: int = 0,
    command_line: str = "/proc/cmdline",
) -> CgroupSupport:
    """Find each controller and try it. Only mounts at or below `root` count.

    A spawner passes the pid of its keeper, so that both come to the same result.
    """
    own_processes = frozenset({os.getpid(), keeper or os.getpid()})
    mounts = list(_mounts(root, mountinfo))
    if not mounts:
        return CgroupSupport("none", False, False, False, False, f"no cgroup hierarchy is mounted at {root}")
    positions = _positions(own)
    hierarchies: dict[str, Hierarchy] = {}
    reasons: list[str] = []
    refused: dict[str, list[str]] = {}  # from the advice to the v1 controllers it applies to
    unified = next((mount for mount in mounts if mount.version == 2), None)
    offered, complaint = _try_v2(unified, positions, own_processes) if unified else ({}, "")
    for controller in (*CONTROLLERS, "freezer"):
        if controller == "freezer" and controller in offered:
            # The v2 freezer is preferred, because SIGKILL reaches a process that it froze.
            hierarchies[controller] = offered[controller]
            continue
        legacy = next((mount for mount in mounts if controller in mount.controllers), None)
        if legacy is None:
            if controller in offered:
                hierarchies[controller] = offered[controller]
            else:
                reasons.append(complaint or f"no {controller} controller is mounted")
            continue
        directory = _own_directory(legacy, positions.get(controller, ""))
        refusal = _probe(directory)
        if refusal:
            refused.setdefault(refusal, []).append(controller)
        else:
            hierarchies[controller] = Hierarchy(1, directory)
    reasons += [f"cgroup v1 {', '.join(names)}: {refusal}" for refusal, names in refused.items()]
    mode = "hybrid" if unified and len(mounts) > 1 else "v2" if unified else "v1"
    return CgroupSupport(
        mode=mode if hierarchies else "none",
        memory="memory" in hierarchies,
        pids="pids" in hierarchies,
        cpu="cpu" in hierarchies,
        freezer="freezer" in hierarchies,
        reason="; ".join(dict.fromkeys(reasons)),
        hierarchies=tuple(hierarchies.items()),
        own_processes=own_processes,
        sockets="memory" in hierarchies and _counts_sockets(hierarchies["memory"], command_line),
    )


def foreign_processes(directory: str, own_processes: frozenset[int]) -> list[int]:
    """Processes in the v2 group `directory` that we may not move: neither our own processes nor children of those.

    systemd marks a group that it delegated as a whole; then no process in it is foreign.
    """
    if _delegated(directory):
        return []
    with open(f"{directory}/cgroup.procs") as members:
        pids = [int(line) for line in members]
    return [pid for pid in pids if pid not in own_processes and _parent(pid) not in own_processes]


def _mounts(root: str, mountinfo: str) -> Iterator[_Mount]:
    with open(mountinfo) as lines:
        for line in lines:
            fields, _, tail = line.rstrip("\n").partition(" - ")
            kind, _, options = tail.split(" ", 2)
            mount_root, point = (_unescape(text) for text in fields.split(" ")[3:5])
            if kind not in ("cgroup", "cgroup2") or not f"{point}/".startswith(f"{root}/"):
                continue
            names = frozenset(options.split(",")) if kind == "cgroup" else frozenset()
            yield _Mount(2 if kind == "cgroup2" else 1, point, mount_root, names)


def _unescape(text: str) -> str:
    """Undo the octal escapes that mountinfo uses for blanks and backslashes (proc_pid_mountinfo(5))."""
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _positions(own: str) -> dict[str, str]:
    """Map each controller to our group's path in its hierarchy; the unified hierarchy has the empty name."""
    found: dict[str, str] = {}
    with open(own) as lines:
        for line in lines:
            _, names, path = line.rstrip("\n").split(":", 2)
            for name in names.split(","):
                found[name] = path
    return found


def _own_directory(mount: _Mount, position: str) -> str:
    """Our group's directory at `mount`. In a container without a cgroup namespace, paths start at the host's root."""
    if mount.root != "/" and f"{position}/".startswith(f"{mount.root}/"):
        position = position[len(mount.root) :]
    return (mount.point + position).rstrip("/")


def _probe(directory: str) -> str:
    """Say why no group can be made in `directory`, and what to do; "" if one can be made."""
    trial = f"{directory}/hutch-probe-{os.getpid()}-{time.monotonic_ns()}"  # two threads may try at once
    try:
        os.mkdir(trial, 0o755)
        with contextlib.suppress(FileNotFoundError):  # a sweep may have removed it as a leftover
            os.rmdir(trial)
    except OSError as error:
        advice = _REFUSALS.get(error.errno or 0, error.strerror or "refused")
        return f"no group can be made, {advice}"
    return ""


def _try_v2(
    mount: _Mount, positions: dict[str, str], own_processes: frozenset[int]
) -> tuple[dict[str, Hierarchy], str]:
    directory = _own_directory(mount, positions.get("", "")).removesuffix(f"/{SELF_LEAF}")
    refusal = _probe(directory)
    if refusal:
        return {}, f"cgroup v2 has no delegated subtree ({directory}: {refusal}): {_RUN_DELEGATED}"
    hierarchy = Hierarchy(2, directory)
    offered: dict[str, Hierarchy] = {}
    # The top group has no cgroup.freeze, but each group below it does (since Linux 5.2).
    if os.path.exists(f"{directory}/cgroup.freeze") or not os.path.exists(f"{directory}/cgroup.type"):
        offered["freezer"] = hierarchy
    available = _words(f"{directory}/cgroup.controllers").intersection(CONTROLLERS)
    enabled = available & _words(f"{directory}/cgroup.subtree_control")
    complaint = _cannot_enable(directory, own_processes) if available - enabled else ""
    for controller in enabled if complaint else available:
        offered[controller] = hierarchy
    missing = [name for name in CONTROLLERS if name not in available]
    if not complaint and missing:
        complaint = f"cgroup v2 gives {directory} no {', '.join(missing)} controller: {_RUN_DELEGATED}"
    return offered, complaint


def _cannot_enable(directory: str, own_processes: frozenset[int]) -> str:
    if not os.access(f"{directory}/cgroup.subtree_control", os.W_OK):
        return f"cgroup v2 controllers of {directory} are not delegated to us: {_RUN_DELEGATED}"
    if not os.path.exists(f"{directory}/cgroup.type"):
        return ""  # only the top group may hold both processes and groups with controllers
    others = foreign_processes(directory, own_processes)
    if others:
        shown = ", ".join(map(str, others[:5]))
        return f"cgroup v2 group {directory} also holds processes of others ({shown}): {_RUN_DELEGATED}, alone in it"
    return ""


def _counts_sockets(hierarchy: Hierarchy, command_line: str) -> bool:
    """cgroup v2 counts them unless booted with cgroup.memory=nosocket; v1 counts them where it has a limit file."""
    option = next((word for word in _words(command_line) if word.startswith("cgroup.memory=")), "")
    if {"nosocket", "nokmem"} & set(option.partition("=")[2].split(",")):
        return False
    return hierarchy.version == 2 or os.path.exists(f"{hierarchy.directory}/{SOCKETS_FILE}")


def _words(path: str) -> set[str]:
    with open(path) as file:
        return set(file.read().split())


def _delegated(directory: str) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError:
            continue  # the attribute is unset, or trusted and closed to us
    return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return os.getpid()  # it ended meanwhile, so there is nothing to move
