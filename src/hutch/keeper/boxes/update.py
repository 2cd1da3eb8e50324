"""What changes on a live box: its limits, its idle time, whether its files stay (B14, P15).

A change is bound like a creation: by the locks and maxima of the box's profile, by the rights of the caller, and by
the quota of its owner. What was cut is among the adjustments of the box's spec.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import Conflict, Invalid
from hutch.keeper.boxes.live import Live
from hutch.model.limits import Limits
from hutch.model.spec import Adjustment, EffectiveSpec, Retention, Spec
from hutch.policy import rights
from hutch.policy.change import Change
from hutch.policy.rights import Action

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper

LONGEST_IDLE = 365 * 86400.0


async def change(
    keeper: "Keeper",
    live: Live,
    session: str,
    retention: Retention | None,
    idle_timeout_sec: float | None,
    limits: dict[str, float],
) -> tuple[str, ...]:
    """Apply what was given; the names of what would need a new box are returned, unapplied. A box that is to keep its
    files from now on is made anew with them first (`retention`), under a lock of its own."""
    if idle_timeout_sec is not None and not 0 <= idle_timeout_sec <= LONGEST_IDLE:
        raise Invalid(f"idle_timeout_sec {idle_timeout_sec} is not from 0 (never) to {LONGEST_IDLE:.0f}")
    if limits:
        _limits(live.record.spec.limits, limits)  # what is wrong is refused before anything has changed
    if retention == Retention.PERSISTENT and live.record.spec.retention is Retention.TEMPORARY:
        rights.require(rights.current(), Action.SET_RETENTION)
        from hutch.keeper.boxes.retention import make_persistent  # with archives, which few need

        await make_persistent(keeper, live, session)
        retention = None
    async with live.state_lock:  # from the first look at what is: two changes at once must not undo each other
        spec, allowed = live.record.spec, rights.current()
        changes = Change(keeper.config.resolve_profile(spec.profile), allowed)
        wanted = changes.limits(spec.limits, _limits(spec.limits, limits)) if limits else None
        refused: list[str] = []
        fields: dict[str, Any] = {}
        if idle_timeout_sec is not None:
            idle = changes.clock("idle_timeout_sec", spec.idle_timeout_sec, float(idle_timeout_sec))
            if idle and not 0 < spec.idle_timeout_sec <= idle:
                rights.require(allowed, Action.DESTROY)  # a shorter clock ends the box
            fields["idle_timeout_sec"] = idle
        if retention is not None and changes.choose("retention", spec.retention, Retention(retention)) != retention:
            retention = None
        if retention is not None and retention != spec.retention:
            rights.require(allowed, Action.SET_RETENTION)
            fields["retention"] = Retention(retention)
        if wanted is not None:
            refused += await _change_limits(keeper, live, wanted)
        if changes.adjustments:
            fields["adjustments"] = _adjustments(live.record.spec.adjustments, changes.adjustments)
        if fields:
            told = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "adjustments")
            changed = live.record.spec.but(**fields)
            await keeper.states.update(live.record, into=live, kind="changed", reason=told or "bounded", spec=changed)
    return tuple(refused)


async def fit(keeper: "Keeper", live: Live, spec: Spec) -> None:
    """A live box for a spec that may have changed since: limits follow, the rest is a Conflict (B14)."""
    _, asked = await keeper.engines.decide(spec)
    differences = fixed_differences(live.record.spec, asked)
    if differences:
        raise Conflict(
            f"box {live.record.id} lives with another {', '.join(differences)}",
            details={"fields": list(differences)},
            remedy="destroy it to have it recreated, or ask for what it has",
        )
    limits = changed_limits(live.record.spec, asked)
    if limits is not None:
        await change_limits(keeper, live, limits)


async def change_limits(keeper: "Keeper", live: Live, limits: Limits) -> tuple[str, ...]:
    """Apply limits; the names of those that would need a new box are returned."""
    async with live.state_lock:
        return await _change_limits(keeper, live, limits)


async def _change_limits(keeper: "Keeper", live: Live, limits: Limits) -> tuple[str, ...]:
    keeper.check_owned(live)
    record = live.record
    async with keeper.capacity.reserve_growth(
        record.id, record.owner, record.spec.limits, record.spec.but(limits=limits)
    ):
        refused = await live.running.change_limits(limits)
        kept = {name: getattr(record.spec.limits, name) for name in refused}
        spec = live.record.spec.but(limits=limits.but(**kept))
        await keeper.states.update(live.record, into=live, kind="changed", reason="limits", spec=spec)
    return refused


def _adjustments(before: tuple[Adjustment, ...], now: list[Adjustment]) -> tuple[Adjustment, ...]:
    """The last word on each field."""
    fields = {adjustment.field for adjustment in now}
    return (*(adjustment for adjustment in before if adjustment.field not in fields), *now)


def _limits(now: Limits, changes: dict[str, float]) -> Limits:
    if unknown := changes.keys() - set(Limits.__struct_fields__):
        raise Invalid(f"no limit {min(unknown)}", remedy=f"there are {', '.join(Limits.__struct_fields__)}")
    try:
        return msgspec.convert(now.to_plain() | changes, type=Limits)
    except msgspec.ValidationError as error:
        raise Invalid(f"limits: {error}") from error


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
