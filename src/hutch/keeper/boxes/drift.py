"""What differs between the spec of a live box and the one now asked for, and what of it can change live (B14)."""

from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec

_CHANGEABLE = frozenset({"limits", "labels", "name", "idle_timeout_sec", "ttl_sec", "adjustments"})


def fixed_differences(live: EffectiveSpec, asked: EffectiveSpec) -> tuple[str, ...]:
    """Fields that would need a new box."""
    shown = asked.shown()
    return tuple(
        name
        for name in EffectiveSpec.__struct_fields__
        if name not in _CHANGEABLE and getattr(live, name) != getattr(shown, name)
    )


def changed_limits(live: EffectiveSpec, asked: EffectiveSpec) -> Limits | None:
    """The limits to apply to the live box, or None if they are as they should be."""
    return asked.limits if asked.limits != live.limits else None
