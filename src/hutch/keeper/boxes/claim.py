"""A box of the pool becomes somebody's: its owner, lease, name and clocks, in one compare-and-set."""

import time
from typing import TYPE_CHECKING

from hutch.errors import Conflict, HutchError
from hutch.keeper.boxes import deadlines
from hutch.keeper.boxes.live import Live
from hutch.model.boxes import Lease
from hutch.model.spec import Spec
from hutch.model.state import State
from hutch.policy import rights

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper


async def claim(keeper: "Keeper", spec: Spec, lease: Lease, owner: str, key: str) -> Live | None:
    """A ready box for exactly this spec, now the owner's; None if there is none, or it broke while it waited."""
    if (first := keeper.pool.next(spec, keeper.config.profile)) is not None:
        given = first.record.spec
        if rights.within(given, keeper.config.resolve_profile(given.profile), rights.current()) is not given:
            return None  # it has more than this caller may have
        await keeper.room.await_share(owner, first.record.spec.limits)
    live = keeper.pool.claim(spec, keeper.config.profile)
    if live is None:
        return None
    try:
        with keeper.room.giving(live.record.id, owner, live.record.spec):
            return live if await give(keeper, live, spec, lease, owner, key) else None
    except Conflict:  # its name or key was given to another meanwhile, and a box of the pool is never given back
        await keeper.endings.destroy(live, "its claim failed")
        raise


async def give(keeper: "Keeper", live: Live, spec: Spec, lease: Lease, owner: str, key: str) -> bool:
    """False: the box has ended, or is broken and ends now."""
    now = time.time()
    grace = deadlines.orphan_grace(keeper.config, live.record.spec, key)
    # The ttl is counted from now, and the box itself counts from its birth.
    if live.record.spec.ttl_sec or grace != live.record.grace_sec:
        try:
            await deadlines.push(live.running, live.record.but(created_at=now, grace_sec=grace))
        except HutchError as error:
            await keeper.endings.destroy(live, f"broken in the pool: {error.message}")
            return False
    async with live.changing:
        if live.record.state is not State.RUNNING:
            return False
        given = live.record.spec.but(labels=live.record.spec.labels | spec.labels, name=spec.name or "")
        await keeper.states.update(
            live.record, into=live, kind="claimed", reason="from the pool", owner=owner, lease=lease,
            idempotency_key=key, spec=given, labels=given.labels, created_at=now, used_at=now, epoch=2,
            grace_sec=grace,
        )  # fmt: skip
    live.used = time.monotonic()
    await keeper.skill_boxes.claimed(live)
    return True
