"""Checks for what keeps this machine from making native boxes. Each returns a reason with its remedy, or None.

Creation errors quote the first that applies, because the kernel itself answers only "Operation not permitted".
"""

import os
from collections.abc import Callable

from hutch.errors import EngineError, HutchError, Refused, Unavailable
from hutch.linux import kernel
from hutch.model.capabilities import Missing
from hutch.model.spec import Order
from hutch.providers.native.spawn import wire

_EMPTY = frozenset({"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd"})
"""Directories of /proc on which most machines mount something."""

OLDEST = (5, 12)
"""The first Linux with mount_setattr(2). Overlay in user namespaces came one release before."""


def architecture() -> Missing | None:
    if kernel.MACHINE in ("x86_64", "aarch64"):
        return None
    reason = f"there is no system call filter for {kernel.MACHINE}"
    return Missing(what="architecture", reason=reason, remedy="use x86_64 or aarch64")


def kernel_age() -> Missing | None:
    release = os.uname().release
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdecimal())
    if numbers >= OLDEST:
        return None
    return Missing(what="kernel", reason=f"Linux {release} is too old", remedy="Linux 5.12 or newer is needed")


def namespaces_forbidden() -> Missing | None:
    if _sysctl("user/max_user_namespaces") == "0":
        reason, remedy = "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"
        return Missing(what="user namespaces", reason=reason, remedy=remedy)
    return None


def namespaces_for_root_only() -> Missing | None:
    if os.geteuid() != 0 and _sysctl("kernel/unprivileged_userns_clone") == "0":
        reason = "kernel.unprivileged_userns_clone is 0"
        remedy = "sysctl -w kernel.unprivileged_userns_clone=1, or run Hutch as root"
        return Missing(what="user namespaces", reason=reason, remedy=remedy)
    return None


def apparmor() -> Missing | None:
    """Check for Ubuntu 23.10 and newer, where a user namespace can be made, but nothing can be mounted in it."""
    if os.geteuid() != 0 and _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        reason = "kernel.apparmor_restrict_unprivileged_userns is 1"
        remedy = f"sysctl -w {reason.removesuffix(' is 1')}=0, or an AppArmor profile with `userns,` for this Python"
        return Missing(what="apparmor", reason=reason, remedy=remedy)
    return None


def overlay() -> Missing | None:
    try:
        with open("/proc/filesystems") as file:
            if "\toverlay\n" in file.read():
                return None
    except OSError as error:
        return Missing(what="proc", reason=f"/proc cannot be read: {error.strerror}", remedy="mount /proc")
    return Missing(what="overlay", reason="the kernel has no overlay file system loaded", remedy="modprobe overlay")


def masked_proc(mountinfo: str = "/proc/self/mountinfo") -> Missing | None:
    """Check for covered parts of /proc: the kernel then refuses a new /proc in a user namespace.

    A mount on a directory that is always empty does not count (fs/namespace.c, mnt_already_visible).
    """
    with open(mountinfo) as file:
        points = [line.split(" ")[4] for line in file]
    covered = [point for point in points if point.startswith("/proc/") and point not in _EMPTY]
    if not covered:
        return None
    reason = f"parts of /proc are covered ({covered[0]} and {len(covered) - 1} more), as in a container"
    remedy = "start the container with --security-opt systempaths=unconfined (podman: unmask=ALL), or run outside it"
    return Missing(what="proc", reason=reason, remedy=remedy)


ALL: tuple[Callable[[], Missing | None], ...] = (
    architecture, kernel_age, namespaces_forbidden, namespaces_for_root_only, apparmor, overlay, masked_proc,
)  # fmt: skip


def first() -> Missing | None:
    return next((found for check in ALL if (found := check()) is not None), None)


def _sysctl(name: str) -> str:
    try:
        with open(f"/proc/sys/{name}") as file:
            return file.read().strip()
    except OSError:
        return ""  # this kernel does not have the sysctl


def creation_error(order: Order, answer: wire.Message) -> HutchError:
    """Return the error of a box that the spawner could not make."""
    step, error, number = answer.get("step", ""), answer.get("error", "no reason given"), answer.get("errno", "")
    message = f"box {order.box_id} could not be made: {step}: {error}"
    details = {"step": step, "errno": number}
    if "replaced after it had been allowed" in error or (number == "ELOOP" and "mount" in step):
        return Refused(message, op="create", details=details)
    if step == "cancelled":
        return Unavailable(message, op="create", details=details)
    if step == "spawner":
        return EngineError(message, op="create", details=details, remedy="try again: a new one is started")
    obstacle = first()
    remedy = f"{obstacle.reason}: {obstacle.remedy}" if obstacle else "run `hutch doctor`"
    return EngineError(message, op="create", details=details, remedy=remedy)
