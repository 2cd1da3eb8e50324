"""Quotas: what all boxes of one owner may use together, and how many volumes and skills an owner may keep."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from hutch.errors import QuotaExceeded
from hutch.model.limits import Limits
from hutch.model.record import Record

Count = Annotated[int, msgspec.Meta(ge=0)]


class Quota(Record, frozen=True, kw_only=True):
    """Limits over all live boxes of one owner; 0 for no limit."""

    boxes: Count = 0
    cpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    memory_mb: Count = 0
    disk_mb: Count = 0
    volumes: Count = 0
    """Volumes that the owner may have at a time."""
    volume_mb: Count = 0
    """What the owner's volumes may hold together. It is counted while boxes may write to them."""
    skills: Count = 0
    """Skills that the owner may have installed at a time, with all their versions."""


def quota_of(quotas: Mapping[str, Quota], owner: str) -> Quota:
    """Return the quota of an owner: his own, else everybody's."""
    return quotas.get(owner) or quotas.get("*") or Quota()


def check_kept(what: str, limit: int, kept: int, owner: str) -> None:
    """Raise QuotaExceeded if an owner who keeps that many things may not have one more."""
    if limit and kept >= limit:
        raise QuotaExceeded(
            f"{owner} has {kept} {what}, and may have {limit}", details={"what": what, "limit": limit, "used": kept},
            retryable=False, remedy=f"remove one, or raise {what} in the owner's quota",
        )  # fmt: skip


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
