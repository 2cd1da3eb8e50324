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


class Missing(Record, frozen=True, kw_only=True):
    """One thing this provider cannot do here, why, and how to get it."""

    what: str
    reason: str
    remedy: str = ""


class Capabilities(Record, frozen=True, kw_only=True):
    """What `Provider.probe` found; verified by a canary box, not assumed."""

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
    images: tuple[str, ...] = ()
    """Kinds of image references accepted: host, dir, tar, oci."""
    default_image: str = "host"
    """What a box is made from if nobody names an image; empty: one must be named."""
    mounts: bool = False
    ports: bool = False
    memory_mb: int = 0
    """What the machine has: no box can have more; 0: unknown."""
    grades: Grades = msgspec.field(default_factory=Grades)
    """By what each limit is held in a temporary box with a read-only root."""
    disk_if_persistent: EnforcedBy | None = None
    """By what `disk_mb` is held in a persistent box; None: as in any other."""
    disk_if_writable_root: EnforcedBy | None = None
    missing: tuple[Missing, ...] = ()
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """For people: kernel, cgroup mode, Landlock ABI, ..."""

    def grades_of(self, spec: EffectiveSpec) -> Grades:
        """By what each limit is held in this very box: files that outlive it, or lie in its root, may lie where no size
        bounds them."""
        held = [self.grades.disk_mb]
        if spec.retention is Retention.PERSISTENT and self.disk_if_persistent is not None:
            held.append(self.disk_if_persistent)
        if not spec.read_only_root and self.disk_if_writable_root is not None:
            held.append(self.disk_if_writable_root)
        return self.grades.but(disk_mb=max(held, key=list(EnforcedBy).index))
