"""Capabilities: what a provider can do here, as data; "cannot" always carries a reason and a remedy."""

from enum import StrEnum

import msgspec

from hutch.model.limits import Grades
from hutch.model.record import Record
from hutch.model.spec import Isolation, NetworkMode


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
    grades: Grades = msgspec.field(default_factory=Grades)
    missing: tuple[Missing, ...] = ()
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """For people: kernel, cgroup mode, Landlock ABI, ..."""
