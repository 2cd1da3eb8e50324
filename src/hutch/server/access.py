"""Finds the box of a caller's request: other owners' boxes are not found, and changing a box needs its lease."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hutch.errors import BoxBusy, Invalid, LeaseLost, NotFound
from hutch.keeper.access.beside_lease import ObserverGuard, refuse
from hutch.keeper.access.files import Guard
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.jobs import JobHandle
from hutch.keeper.access.leases import holds, renewal_is_due, resumable_lease
from hutch.keeper.boxes.live import Live
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Role
from hutch.logs import log
from hutch.model.boxes import State
from hutch.model.ids import BoxId
from hutch.server.request import Call


async def find(call: Call) -> Live:
    """The box of the path; NotFound for another owner's box.

    The caller learns nothing about another owner's box, and nothing happens to it: it is not even adopted from a keeper
    that has died.
    """
    await check_owner(call)
    box_id = BoxId(call.params["box"])
    return call.keeper.held(box_id) or await call.keeper.live(box_id)


async def check_owner(call: Call) -> None:
    """Check that the box of the path is or was the caller's, without touching it; NotFound for another owner's box."""
    box_id = call.params["box"]
    held = call.keeper.held(BoxId(box_id))
    _check_owner(call, held.record.owner if held is not None else await _owner_in_store(call.keeper, box_id))


@asynccontextmanager
async def using(call: Call) -> AsyncIterator[BoxHandle]:
    """A handle that may change the box: the session takes the lease unless it has it already.

    An admin who acts over all owners needs no lease. A client that names the lease of its handle gets LeaseLost if that
    lease has ended.
    """
    live = await find(call)
    if _observes(call):
        refuse(call.op)
    if not call.caller.over_all:
        if lease := call.header("hutch-lease"):
            await _check_lease(call, live, lease)
        else:
            await _hold_or_explain(call, live)
    handle = BoxHandle(call.keeper, live, call.caller.session)
    try:
        yield handle
    finally:
        handle.close()


@asynccontextmanager
async def observing(call: Call) -> AsyncIterator[Guard]:
    """Access that changes nothing.

    An observer, and a caller whose box is held by another session, extends no clock and wakes nothing. For all others
    reading counts as using the box.
    """
    live = await find(call)
    observes = call.caller.role is Role.OBSERVER or _observes(call)
    if observes or (live.held_by_another(call.caller.session) and not call.header("hutch-lease")):
        yield ObserverGuard(call.keeper, live)
        return
    async with using(call) as handle:
        yield handle


async def _hold_or_explain(call: Call, live: Live) -> None:
    """Take the lease; a caller that names no session is told how to use a box that its owner holds elsewhere."""
    try:
        await hold(call.keeper, live, call.caller.session)
    except BoxBusy as busy:
        if call.header("hutch-session"):
            raise
        own = "this request names no session: if the box is yours, send the Hutch-Session of its holder"
        raise BoxBusy(
            busy.message, op=busy.op, details=busy.details, retry_after=busy.retry_after,
            remedy=f"{own}; else {busy.remedy}",
        ) from busy  # fmt: skip


async def hold(keeper: Keeper, live: Live, session: str) -> None:
    """Take the lease for this session; the store is written only if that extends the lease noticeably."""
    record = live.record
    lease, now = record.lease, time.time()
    held = lease is not None and holds(lease, session) and lease.live(now)
    if (
        lease is None
        or not held
        or renewal_is_due(lease, now, keeper.config.lease_sec)
        or record.state is State.STOPPED
    ):
        await keeper.acquire(record.id, session)


def grant_to_client(call: Call, live: Live) -> int:
    """Count the client's handle from now on, not from its first heartbeat, and return the number of the grant.

    Another process of the same session, or an earlier handle of this client, may release the box before that heartbeat.
    """
    client = call.header("hutch-client")
    return call.service.presence.grant(call.caller.session, live, client) if client else 0


async def _check_lease(call: Call, live: Live, header: str) -> None:
    """Check that the handle's lease is the current one, and extend it.

    The time at which a lease was acquired identifies it. That survives a change of keepers, while the epoch changes
    whenever another keeper adopts the box.
    """
    try:
        acquired_at = float(header)
    except ValueError:
        raise Invalid(f"Hutch-Lease {header[:40]!r} is no lease") from None
    if live.record.lease is None and live.record.left_lease is not None:
        await _regain(call, live, acquired_at)
    lease = live.record.lease
    same = lease is not None and lease.acquired_at == acquired_at
    if lease is not None and not same:
        raise LeaseLost(
            f"box {live.record.id} was taken over", remedy="attach to it again, or create a box of your own"
        )
    await renew(call, live, sparingly=True)


async def _regain(call: Call, live: Live, acquired_at: float) -> None:
    """Give the session back its lease from the time when another process kept the box, if the box is free."""
    async with live.state_lock:
        lease = resumable_lease(live.record, call.caller.session, acquired_at, time.time())
        if lease is not None:
            await call.keeper.states.update(live.record, into=live, lease=lease, left_lease=None)


async def renew(call: Call, live: Live, *, sparingly: bool = False) -> None:
    """Extend the session's lease; LeaseLost if it has none. `sparingly` writes only a noticeable extension."""
    lease, now = live.record.lease, time.time()
    if lease is None or not holds(lease, call.caller.session) or not lease.live(now):
        raise LeaseLost(f"the lease of box {live.record.id} has run out", remedy="attach to it again")
    if not sparingly or renewal_is_due(lease, now, call.keeper.config.lease_sec):
        await call.keeper.renew(live)


def _observes(call: Call) -> bool:
    """Whether the caller asked for read-only access, which takes no lease whatever its role."""
    return call.header("hutch-observe").lower() in ("true", "yes", "1")


def refuse_if_busy(call: Call, live: Live) -> None:
    """BoxBusy while another session holds the box."""
    if not call.caller.over_all and live.held_by_another(call.caller.session):
        raise BoxBusy(
            f"box {live.record.id} is held by another session",
            remedy="take it over first, or wait until its lease ends",
        )


async def job_of(call: Call, guard: Guard) -> JobHandle:
    """The job of the path."""
    instance = await guard.begin()
    try:
        return JobHandle(guard, await instance.job(call.params["job"]))
    finally:
        guard.end()


def _check_owner(call: Call, owner: str | None) -> None:
    caller = call.caller
    if owner is None or (owner != caller.owner and not caller.over_all):
        raise NotFound(f"no box {call.params['box']}", remedy="`hutch box list` shows those there are")
    if not caller.over_all:
        return
    log("server").warning(
        "admin acts past owner and lease", operation=call.op, box=call.params["box"], owner=owner, by=caller.key_id
    )


async def _owner_in_store(keeper: Keeper, box_id: str) -> str | None:
    record = await keeper.store.get(BoxId(box_id))
    if record is not None:
        return record.owner
    tombstone = await keeper.store.tombstone(BoxId(box_id))
    return tombstone.owner if tombstone is not None else None
