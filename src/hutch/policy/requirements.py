"""What an effective spec requires of its provider, checked against the capabilities.

A provider explains what it cannot do in `Capabilities.missing`. `Missing.what` names the field of the capabilities,
with the value where there are several: `persistent`, `networks.on`, `images.oci`, `users.root`, `grades.memory_mb`.
Other names (`cgroups`, `landlock`) name stronger means that the machine does not have.
"""

from hutch.errors import Refused, Unsupported
from hutch.model.capabilities import Capabilities, Missing
from hutch.model.spec import AutoCheckpoint, EffectiveSpec, MountMode, NetworkMode, Retention
from hutch.policy import values


def check(spec: EffectiveSpec, capabilities: Capabilities) -> None:
    """Raise Refused if the isolation is too weak, Unsupported if the provider cannot do something."""
    _check_isolation(spec, capabilities)
    _check_network(spec, capabilities)
    if not spec.image:
        name = capabilities.provider
        raise Unsupported(
            f"provider {name} makes boxes from images, and none is named",
            remedy=f'name one: image="oci:debian:12" (--image), or image = "debian:12" in [providers.{name}]',
            details={"field": "image", "provider": name},
        )
    kind = values.check_image(spec.image, capabilities.images)
    if kind not in capabilities.images:
        raise _unsupported(capabilities, "image", f"images of kind {kind}", "images", kind)
    if spec.retention is Retention.PERSISTENT and not capabilities.persistent:
        raise _unsupported(capabilities, "retention", "persistent boxes", "persistent")
    if not spec.read_only_root and not capabilities.writable_root and kind == "host":
        raise _unsupported(capabilities, "read_only_root", "a writable root", "writable_root")
    mounted = any(mount.mode is not MountMode.NONE for mount in spec.mounts)
    if (mounted or spec.workspace.source != "own") and not capabilities.mounts:
        raise _unsupported(capabilities, "mounts", "mounts of the host's files", "mounts")
    if spec.ports and not capabilities.ports:
        raise _unsupported(capabilities, "ports", "ports", "ports")
    if spec.auto_checkpoint is not AutoCheckpoint.OFF and not capabilities.layers:
        raise _unsupported(capabilities, "auto_checkpoint", "checkpoints", "layers")
    _check_user(spec.user, capabilities)


def missing(capabilities: Capabilities, field: str, value: str = "") -> Missing | None:
    """Return the provider's own explanation of a missing value, else of the missing field."""
    names = (f"{field}.{value}", value, field) if value else (field,)
    return next((each for name in names for each in capabilities.missing if each.what == name), None)


def _check_isolation(spec: EffectiveSpec, capabilities: Capabilities) -> None:
    if values.STRENGTH.index(capabilities.isolation) >= values.STRENGTH.index(spec.min_isolation):
        return
    raise Refused(
        f"profile {spec.profile} asks for isolation {spec.min_isolation} or stronger, and provider "
        f"{capabilities.provider} has {capabilities.isolation}",
        remedy=f'choose another provider, or a profile with min_isolation = "{capabilities.isolation}"',
        details={"field": "min_isolation", "provider": capabilities.provider},
    )


def _check_network(spec: EffectiveSpec, capabilities: Capabilities) -> None:
    if spec.network is NetworkMode.ALLOWLIST:
        # A spec cannot name hosts yet, so a provider that had the mode would let everything or nothing through.
        raise Unsupported(
            "network allowlist is not built yet",
            remedy="use network off or on",
            details={"field": "network", "provider": capabilities.provider},
        )
    if spec.network not in capabilities.networks:
        raise _unsupported(capabilities, "network", f"network {spec.network}", "networks", spec.network)


def _check_user(user: str, capabilities: Capabilities) -> None:
    name = {"0": "root", "1000": "user"}.get(user, user)
    if name in capabilities.users:
        return
    if not name.isdigit():
        raise _unsupported(capabilities, "user", f"user {user}", "users", name)
    if not capabilities.uid_range:
        raise _unsupported(capabilities, "user", f"user {user}: its boxes have only one id", "uid_range")


_REMEDIES = {"ports": "leave `ports` out, or use an engine that has a way to the ports of its boxes"}
"""Remedies for what no other provider has either."""


def _unsupported(capabilities: Capabilities, asked: str, what: str, field: str, value: str = "") -> Unsupported:
    gap = missing(capabilities, field, value)
    reason = f": {gap.reason}" if gap else ""
    has = getattr(capabilities, field)
    offered = f"; it has {', '.join(has) or 'none'}" if isinstance(has, tuple) else ""
    return Unsupported(
        f"provider {capabilities.provider} does not support {what}{reason}{offered}",
        remedy=(gap.remedy if gap else "") or _REMEDIES.get(field, "choose another provider, profile or value"),
        details={"field": asked, "provider": capabilities.provider},
    )
