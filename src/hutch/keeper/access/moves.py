"""Moving a box from one conversation to another: the other conversation's `box_for` finds it from then on."""

from hutch.errors import Conflict
from hutch.keeper.access.scopes import Scope
from hutch.keeper.boxes.clocks import orphan_grace, push_clocks
from hutch.keeper.boxes.live import Live
from hutch.keeper.counters import KIND_LABEL
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import State


def scope_labels(scope: Scope, kind: str) -> dict[str, str]:
    """Return the labels by which people recognise the box of a conversation."""
    return {"scope": scope.shown, **({KIND_LABEL: kind} if kind else {})}


async def move_to_scope(keeper: Keeper, live: Live, scope: Scope, kind: str) -> None:
    """Give the box the key of another conversation of its owner. Conflict if that conversation has a box."""
    record = live.record
    there = await keeper.store.by_key(record.owner, scope.key)
    if there is not None and there.id != record.id:
        raise Conflict(
            f"{scope.shown} has a box already ({there.id})", op="move_to", details={"box": there.id},
            remedy="destroy that box first, or choose another conversation",
        )  # fmt: skip
    async with live.state_lock:
        record = live.record
        kept = {name: text for name, text in record.labels.items() if name not in ("scope", KIND_LABEL)}
        labels = kept | scope_labels(scope, kind)
        await keeper.states.update(
            record, into=live, kind="changed", reason=f"moved to {scope.shown}", idempotency_key=scope.key,
            labels=labels, spec=record.spec.but(labels=labels),
            grace_sec=orphan_grace(keeper.config, record.spec, scope.key),
        )  # fmt: skip
    if live.record.state is State.RUNNING:
        await push_clocks(live.running, live.record)  # A conversation's box may wait longer for its next program.
