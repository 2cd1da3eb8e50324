"""Counts of what happened to boxes, per kind and in total. `hutch run` does not load this file."""

import msgspec

from hutch.model.record import Record


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
