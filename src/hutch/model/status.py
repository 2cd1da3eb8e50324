"""Whether boxes can be made, and if not, why; and what a keeper has counted. `hutch run` does not load this file."""

from enum import StrEnum

import msgspec

from hutch.model.record import Record


class Condition(StrEnum):
    READY = "ready"
    DEGRADED = "degraded"
    """Boxes can be made, but something else is wrong; `reason` says what."""
    DISABLED = "disabled"
    UNAVAILABLE = "unavailable"
    """No engine is usable here."""
    UNREACHABLE = "unreachable"
    """The server does not answer this client."""
    DRAINING = "draining"


class Status(Record, frozen=True, kw_only=True):
    """The status of a keeper or a server; `available` only if boxes can be made through it now."""

    state: Condition
    enabled: bool
    available: bool
    reason: str = ""
    remedy: str = ""
    provider: str = ""
    profile: str = ""
    """The profile of boxes for which none is named."""
    idle_timeout_sec: float = 0.0
    """Seconds after which an unused box of that profile ends; 0 never."""
    ttl_sec: float = 0.0
    """Seconds after which a box of that profile ends in any case; 0 never."""
    version: str = ""
    keeper: str = ""
    uptime_sec: float = 0.0
    boxes: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of the caller's own boxes, by state."""


class BoxCounts(Record, frozen=True, kw_only=True):
    """The counts of one kind of boxes, or of all."""

    active: int = 0
    """Boxes that exist now."""
    created: int = 0
    reused: int = 0
    """How often a conversation found its box again."""
    cleaned: int = 0
    """Boxes that are gone, however they ended."""
    health_check_failures: int = 0


class Metrics(Record, frozen=True, kw_only=True):
    """What a keeper has counted for one owner since it started."""

    since: float
    """Unix time at which the counting began."""
    total: BoxCounts
    kinds: dict[str, BoxCounts] = msgspec.field(default_factory=dict)
    """By kind: what `box_for(kind=…)` was given, else the profile of the box."""
