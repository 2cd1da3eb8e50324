"""Capabilities: what a provider can do here, as data; "cannot" always carries a reason and a remedy."""

from enum import StrEnum

import msgspec

from hutch.model.limits import EnforcedBy, Grades
from hutch.model.record import Record
from hutch.model.spec import EffectiveSpec, Isolation, NetworkMode, Retention


class Pause(StrEnum):
    FREEZE = "freeze"
    SIGNALS = "signals"
    SNAPSHOT = "snapshot"
    NONE = "none"


class NetworkWall(StrEnum):
    """What keeps a box with network off from the network."""

    NAMESPACE = "namespace"
    """It has no interface but its loopback."""
    POLICY = "policy"
    """It has an interface, and the engine's network refuses what it sends."""


class Missing(Record, frozen=True, kw_only=True):
    """One thing this provider cannot do here, why, and how to get it."""

    what: str
    reason: str
    remedy: str = ""


class Capabilities(Record, frozen=True, kw_only=True):
    """What `Provider.probe` found, verified by a canary box."""

    provider: str
    contract: int = 1
    usable: bool = True
    reason: str = ""
    """Why it is not usable."""
    remedy: str = ""
    isolation: Isolation = Isolation.NAMESPACES
    guest: bool = False
    durable_jobs: bool = False
    pty: bool = False
    watch: bool = False
    pause: Pause = Pause.NONE
    users: tuple[str, ...] = ("user",)
    uid_range: bool = False
    writable_root: bool = False
    persistent: bool = False
    networks: tuple[NetworkMode, ...] = (NetworkMode.OFF,)
    network_wall: NetworkWall = NetworkWall.NAMESPACE
    images: tuple[str, ...] = ()
    """Kinds of image references accepted: host, dir, tar, oci."""
    default_image: str = "host"
    """The image of a box for which none is named; empty if one must be named."""
    layers: bool = False
    """Whether the files of its boxes can be frozen, rolled back, compared, forked and merged."""
    mounts: bool = False
    ports: bool = False
    memory_mb: int = 0
    """Memory of the machine, which no box can exceed; 0 if unknown."""
    grades: Grades = msgspec.field(default_factory=Grades)
    """What enforces each limit in a temporary box with a read-only root."""
    disk_if_persistent: EnforcedBy | None = None
    """What enforces `disk_mb` in a persistent box; None if the same as in others."""
    disk_if_writable_root: EnforcedBy | None = None
    missing: tuple[Missing, ...] = ()
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """For people: kernel, cgroup mode, Landlock ABI, ..."""

    def grades_of(self, spec: EffectiveSpec) -> Grades:
        """Return what enforces each limit in this box. Files that outlive it, or that are in its root, may be where
        nothing limits their size."""
        held = [self.grades.disk_mb]
        if spec.retention is Retention.PERSISTENT and self.disk_if_persistent is not None:
            held.append(self.disk_if_persistent)
        if not spec.read_only_root and self.disk_if_writable_root is not None:
            held.append(self.disk_if_writable_root)
        return self.grades.but(disk_mb=max(held, key=list(EnforcedBy).index))
