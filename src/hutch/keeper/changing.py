"""What changes on a live box: its limits, its idle time, whether its files stay (B14, P15)."""

from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import Invalid
from hutch.keeper.live import Live
from hutch.model.limits import Limits
from hutch.model.spec_kinds import Retention

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper

LONGEST_IDLE = 365 * 86400.0


async def change(
    keeper: "Keeper", live: Live, retention: Retention | None, idle_timeout_sec: float | None, limits: dict[str, float]
) -> tuple[str, ...]:
    """Apply what was given; the names of what would need a new box are returned, unapplied."""
    if idle_timeout_sec is not None and not 0 <= idle_timeout_sec <= LONGEST_IDLE:
        raise Invalid(f"idle_timeout_sec {idle_timeout_sec} is not from 0 (never) to {LONGEST_IDLE:.0f}")
    async with live.changing:  # from the first look at what is: two changes at once must not undo each other
        spec = live.record.spec
        wanted = _limits(spec.limits, limits) if limits else None
        refused: list[str] = []
        fields: dict[str, Any] = {}
        if idle_timeout_sec is not None:
            fields["idle_timeout_sec"] = float(idle_timeout_sec)
        if retention is not None:
            # A temporary box has its files in memory: they cannot become files on disk under running processes.
            if Retention(retention) is Retention.PERSISTENT and spec.retention is Retention.TEMPORARY:
                refused.append("retention")
            else:
                fields["retention"] = Retention(retention)
        if wanted is not None:
            refused += await _change_limits(keeper, live, wanted)
        if fields:
            told = ", ".join(f"{name} {value}" for name, value in fields.items())
            changed = live.record.spec.but(**fields)
            await keeper.states.update(live.record, into=live, kind="changed", reason=told, spec=changed)
    return tuple(refused)


async def change_limits(keeper: "Keeper", live: Live, limits: Limits) -> tuple[str, ...]:
    """Apply limits; the names of those that would need a new box are returned."""
    async with live.changing:
        return await _change_limits(keeper, live, limits)


async def _change_limits(keeper: "Keeper", live: Live, limits: Limits) -> tuple[str, ...]:
    keeper.check_ours(live)
    refused = await live.running.change_limits(limits)
    kept = {name: getattr(live.record.spec.limits, name) for name in refused}
    spec = live.record.spec.but(limits=limits.but(**kept))
    await keeper.states.update(live.record, into=live, kind="changed", reason="limits", spec=spec)
    return refused


def _limits(now: Limits, changes: dict[str, float]) -> Limits:
    if unknown := changes.keys() - set(Limits.__struct_fields__):
        raise Invalid(f"no limit {min(unknown)}", remedy=f"there are {', '.join(Limits.__struct_fields__)}")
    try:
        return msgspec.convert(now.to_plain() | changes, type=Limits)
    except msgspec.ValidationError as error:
        raise Invalid(f"limits: {error}") from error
