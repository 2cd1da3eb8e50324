"""Changes of a live box: its limits, its idle time, whether its files stay.

A change is bound like a creation: by the locks and maxima of the box's profile, by the rights of the caller, and by
the quota of its owner. What was cut is listed in the adjustments of the box's spec.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hutch.config import Config
from hutch.errors import Conflict, Invalid
from hutch.keeper.boxes.clocks import own_ttl
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import States
from hutch.keeper.capacity import Capacity
from hutch.keeper.engines import Engines
from hutch.model.boxes import State
from hutch.model.limits import Limits
from hutch.model.spec import Adjustment, EffectiveSpec, Retention, Spec, TtlAction
from hutch.policy import rights, values
from hutch.policy.change import Change
from hutch.policy.rights import Action

LONGEST_IDLE_SECONDS = 365 * 86400.0
_CHANGEABLE_FIELDS = frozenset({"limits", "labels", "name", "idle_timeout_sec", "ttl_sec", "adjustments"})

MakePersistent = Callable[[Live, str], Awaitable[None]]


class Updater:
    """Applies changes to live boxes."""

    def __init__(
        self,
        config: Config,
        states: States,
        engines: Engines,
        capacity: Capacity,
        check_owned: Callable[[Live], None],
        make_persistent: MakePersistent,
    ) -> None:
        self._config = config
        self._states = states
        self._engines = engines
        self._capacity = capacity
        self._check_owned = check_owned
        self._make_persistent = make_persistent

    async def change(
        self,
        live: Live,
        session: str,
        retention: Retention | None,
        idle_timeout_sec: float | None,
        limits: dict[str, float],
    ) -> tuple[str, ...]:
        """Apply what was given; return the names of the limits that would need a new box, which stay as they are.

        A box that is to keep its files from now on is first recreated with them, under a lock of its own.
        """
        if idle_timeout_sec is not None and not 0 <= idle_timeout_sec <= LONGEST_IDLE_SECONDS:
            raise Invalid(f"idle_timeout_sec {idle_timeout_sec} is not from 0 (never) to {LONGEST_IDLE_SECONDS:.0f}")
        if limits:
            _merge_limits(live.record.spec.limits, limits)  # Refuses wrong values before anything has changed.
        if retention == Retention.PERSISTENT and live.record.spec.retention is Retention.TEMPORARY:
            rights.require(rights.current(), Action.SET_RETENTION)
            await self._make_persistent(live, session)
            retention = None
        async with live.state_lock:  # Held from the first read, so that two changes at once do not undo each other.
            spec, allowed = live.record.spec, rights.current()
            changes = Change(self._config.resolve_profile(spec.profile), allowed)
            wanted = changes.limits(spec.limits, _merge_limits(spec.limits, limits)) if limits else None
            refused: list[str] = []
            fields: dict[str, Any] = {}
            if idle_timeout_sec is not None:
                idle = changes.clock("idle_timeout_sec", spec.idle_timeout_sec, float(idle_timeout_sec))
                if idle and not 0 < spec.idle_timeout_sec <= idle:
                    rights.require(allowed, Action.DESTROY)  # A shorter clock ends the box.
                fields["idle_timeout_sec"] = idle
            if retention is not None and changes.choose("retention", spec.retention, Retention(retention)) != retention:
                retention = None
            if retention is not None and retention != spec.retention:
                rights.require(allowed, Action.SET_RETENTION)
                fields["retention"] = Retention(retention)
            if wanted is not None:
                refused += await self._change_limits(live, wanted)
            if changes.adjustments:
                fields["adjustments"] = _merge_adjustments(live.record.spec.adjustments, changes.adjustments)
            if fields:
                changed = live.record.spec.but(**fields)
                text = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "adjustments")
                await self._states.update(
                    live.record, into=live, kind="changed", reason=text or "bounded", spec=changed
                )
        return tuple(refused)

    async def set_ttl(self, live: Live, seconds: float, action: TtlAction | None = None) -> None:
        """Let the box end, or pause, at another age; 0 means never. Its own clock, which needs no keeper, follows.

        Raises:
            Refused: A shorter time would end the box sooner, which this caller may not.
            Invalid: The profile or the caller's rights do not allow so long a time.
        """
        async with live.state_lock:
            spec, allowed = live.record.spec, rights.current()
            if seconds and not 0 < spec.ttl_sec <= seconds:
                rights.require(allowed, Action.DESTROY)
            bounded = Change(self._config.resolve_profile(spec.profile), allowed)
            if bounded.clock("ttl_sec", spec.ttl_sec, seconds) != seconds:
                raise Invalid(f"the box may not live so long: {bounded.adjustments[0]}", details={"field": "ttl_sec"})
            changed = spec.but(ttl_sec=seconds, ttl_action=action or spec.ttl_action)
            await self._states.update(
                live.record, into=live, kind="changed", reason=f"ttl_sec {seconds:g}", spec=changed
            )
            if live.instance is not None and live.record.state is State.RUNNING:
                await live.instance.set_clocks(ttl_sec=own_ttl(changed, live.record.created_at))

    async def set_labels(self, live: Live, labels: dict[str, str]) -> None:
        """Replace the labels of a live box."""
        values.check_labels(labels)
        async with live.state_lock:
            changed = live.record.spec.but(labels=labels)
            await self._states.update(live.record, into=live, kind="changed", reason="labels", spec=changed)

    async def fit(self, live: Live, spec: Spec) -> None:
        """Fit a live box to a spec that may have changed since it was created: its limits follow.

        Raises:
            Conflict: Something else differs, which would need a new box.
        """
        _, wanted = await self._engines.decide(spec)
        differences = fixed_differences(live.record.spec, wanted)
        if differences:
            raise Conflict(
                f"box {live.record.id} lives with another {', '.join(differences)}",
                details={"fields": list(differences)},
                remedy="destroy it to have it recreated, or ask for what it has",
            )
        if wanted.limits != live.record.spec.limits:
            async with live.state_lock:
                await self._change_limits(live, wanted.limits)

    async def _change_limits(self, live: Live, limits: Limits) -> tuple[str, ...]:
        """Apply limits; return the names of those that would need a new box."""
        self._check_owned(live)
        record = live.record
        wanted = record.spec.but(limits=limits)
        async with self._capacity.reserve_growth(record.id, record.owner, record.spec.limits, wanted):
            refused = await live.running.change_limits(limits)
            kept = {name: getattr(record.spec.limits, name) for name in refused}
            spec = live.record.spec.but(limits=limits.but(**kept))
            await self._states.update(live.record, into=live, kind="changed", reason="limits", spec=spec)
        return refused


def fixed_differences(live: EffectiveSpec, wanted: EffectiveSpec) -> tuple[str, ...]:
    """Return the fields in which two specs differ and that cannot change on a live box."""
    shown = wanted.shown()
    return tuple(
        name
        for name in EffectiveSpec.__struct_fields__
        if name not in _CHANGEABLE_FIELDS and getattr(live, name) != getattr(shown, name)
    )


def _merge_adjustments(before: tuple[Adjustment, ...], now: list[Adjustment]) -> tuple[Adjustment, ...]:
    """Keep the newest adjustment of each field."""
    fields = {adjustment.field for adjustment in now}
    return (*(adjustment for adjustment in before if adjustment.field not in fields), *now)


def _merge_limits(now: Limits, changes: dict[str, float]) -> Limits:
    if unknown := changes.keys() - set(Limits.__struct_fields__):
        raise Invalid(f"no limit {min(unknown)}", remedy=f"there are {', '.join(Limits.__struct_fields__)}")
    try:
        return msgspec.convert(now.to_plain() | changes, type=Limits)
    except msgspec.ValidationError as error:
        raise Invalid(f"limits: {error}") from error
