"""Quotas: what all boxes of one owner may use together."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from hutch.model.limits import Limits
from hutch.model.record import Record

Count = Annotated[int, msgspec.Meta(ge=0)]


class Quota(Record, frozen=True, kw_only=True):
    """Limits over all live boxes of one owner; 0 for no limit."""

    boxes: Count = 0
    cpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    memory_mb: Count = 0
    disk_mb: Count = 0


class Shortage(Record, frozen=True, kw_only=True):
    """The first limit that a new box would break."""

    what: str
    limit: float
    used: float
    asked: float


def shortage(quota: Quota, live: Iterable[Limits], asked: Limits) -> Shortage | None:
    """Return the first limit that one more box would break. Only live boxes count, never failed creations."""
    boxes = list(live)
    checks = (
        ("boxes", quota.boxes, len(boxes), 1),
        ("cpus", quota.cpus, sum(limits.cpus for limits in boxes), asked.cpus),
        ("memory_mb", quota.memory_mb, sum(limits.memory_mb for limits in boxes), asked.memory_mb),
        ("disk_mb", quota.disk_mb, sum(limits.disk_mb for limits in boxes), asked.disk_mb),
    )
    for what, limit, used, more in checks:
        if limit and used + more > limit:
            return Shortage(what=what, limit=limit, used=used, asked=more)
    return None
