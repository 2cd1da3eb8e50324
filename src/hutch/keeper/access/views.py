"""What the keeper shows of its boxes and of itself, to every surface alike."""

import time
from collections import Counter
from typing import TYPE_CHECKING

import hutch
from hutch.keeper.boxes.clocks import UP
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.engines import Choice
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import BoxInfo
from hutch.model.state import State

if TYPE_CHECKING:
    from hutch.model.status import Status


def shown(record: BoxRecord, live: Live | None = None, *, elsewhere: bool = False) -> BoxInfo:
    """A box as others may see it: no secret, no lease that has run out. `elsewhere`: another live keeper has it."""
    now = time.time()
    used_at = record.used_at if live is None else now - time.monotonic() + live.last_used
    lease = record.lease
    ends = _ends(record, live, now, used_at, elsewhere=elsewhere)
    trouble = "" if live is None or live.instance is None else live.instance.trouble()
    return BoxInfo(
        id=record.id,
        name=record.spec.name,
        owner=record.owner,
        state=record.state,
        reason=trouble or record.reason,
        provider=record.instance.provider,
        spec=record.spec.shown(),
        created_at=record.created_at,
        used_at=used_at,
        grace_sec=record.grace_sec,
        remaining_sec=max(0.0, min(ends) - now) if ends else None,
        epoch=record.epoch,
        lease=lease if lease is not None and lease.live(now) else None,
        elsewhere=elsewhere,
    )


def _ends(record: BoxRecord, live: Live | None, now: float, used_at: float, *, elsewhere: bool) -> list[float]:
    """When each of its clocks would end the box, if nobody used it from now on."""
    ends = [record.created_at + record.spec.ttl_sec] if record.spec.ttl_sec else []
    # The dead-man's clock stands still while a keeper is here, and begins anew when it leaves. A box that is left and
    # has outlived its clock is kept by a job.
    if (
        record.left_at
        and not elsewhere
        and record.state is State.RUNNING
        and (live is not None or record.is_waiting(now))
    ):
        ends.append((record.left_at if live is None else now) + record.grace_sec)
    if live is not None and record.spec.idle_timeout_sec and record.state in UP:
        ends.append((now if live.in_use(now) else used_at) + record.spec.idle_timeout_sec)
    return ends


async def shown_anywhere(keeper: Keeper, record: BoxRecord) -> BoxInfo:
    """A box of the store, whoever keeps it."""
    ours = keeper.held(record.id)
    if ours is not None:
        return shown(ours.record, ours)
    return shown(record, elsewhere=await keeper.liveness.alive(record.keeper))


async def all_shown(keeper: Keeper, owner: str | None) -> tuple[BoxInfo, ...]:
    """Every box of the store that is this owner's, oldest first; None: of all owners. Looking extends nothing."""
    found = [record for record in await keeper.store.all() if owner in (None, record.owner)]
    return tuple([await shown_anywhere(keeper, record) for record in sorted(found, key=lambda each: each.created_at)])


async def condition(keeper: Keeper, boxes: tuple[BoxRecord, ...], since: float) -> "Status":
    """Whether the keeper can make boxes: status, readiness, tools and MCP hosting all rest on it (lesson 41). `boxes`
    are those the caller may count."""
    from hutch.model.status import Condition, Status

    config = keeper.config
    states = Counter(str(record.state) for record in boxes)
    choice = await keeper.engines.available() if config.enabled else Choice("", {})
    state, reason, remedy = Condition.READY, "", ""
    if not config.enabled:
        state, reason, remedy = Condition.DISABLED, "enabled = false in the configuration", "set enabled = true"
    elif not choice.provider:
        state, reason, remedy = Condition.UNAVAILABLE, choice.reason, choice.remedy
    elif keeper.liveness.lapsed():
        state, reason = Condition.DEGRADED, "the store does not answer"
        remedy = "boxes that others could take over answer again when the store is back"
    elif keeper.receipts.queue is not None and keeper.receipts.queue.failing:
        state, reason = Condition.DEGRADED, "receipts cannot be written"
        remedy = "look at the disk or database that holds them: when too many wait, nothing more is done"
    elif choice.passed:
        passed = "; ".join(f"{name}: {why}" for name, why in choice.passed.items())
        state, reason = Condition.DEGRADED, f"provider {choice.provider} stands in ({passed})"
        remedy = "hutch doctor"
    elif states[State.UNKNOWN]:
        state, reason = Condition.DEGRADED, f"{states[State.UNKNOWN]} boxes cannot be reached"
        remedy = "look at their reasons: hutch box list"
    return Status(
        state=state, enabled=config.enabled, available=state in (Condition.READY, Condition.DEGRADED), reason=reason,
        remedy=remedy, provider=choice.provider or config.provider, version=hutch.__version__, keeper=keeper.id,
        uptime_sec=time.time() - since, boxes=dict(states),
    )  # fmt: skip
