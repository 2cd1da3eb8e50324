"""Boxes over HTTP: create, list, look, pause, resume, destroy; their leases; a session's current box."""

from contextlib import suppress
from typing import Any

import msgspec

from hutch.errors import Gone, HeldElsewhere, Invalid, NotFound
from hutch.keeper.showing import shown
from hutch.model.asking import ask
from hutch.model.boxes import BoxInfo, Lease
from hutch.model.record import Record
from hutch.model.state import State
from hutch.server.access import find, hold, looking, refuse_if_busy, using
from hutch.server.call import Call, Reply


class CreateQuery(Record, frozen=True, kw_only=True):
    wait: bool = True
    """False: answered as soon as the box is known, in state `creating`."""


class BoxList(Record, frozen=True, kw_only=True):
    boxes: list[BoxInfo]


class DestroyQuery(Record, frozen=True, kw_only=True):
    force: bool = False
    """Also while another session holds it."""


class LeaseView(Record, frozen=True, kw_only=True):
    box: str
    epoch: int
    lease: Lease | None


class LeaseBody(Record, frozen=True, kw_only=True):
    takeover: bool = False
    """Whoever holds it: their handles are of an older epoch from now on."""


class CurrentBody(Record, frozen=True, kw_only=True):
    box: str
    takeover: bool = False


class Current(Record, frozen=True, kw_only=True):
    session: str
    box: str | None
    """It may have gone meanwhile."""


async def create(call: Call, query: CreateQuery, body: dict[str, Any]) -> Reply:
    """The body is a spec, in the form `Hutch.create` takes. With an Idempotency-Key a retry gives the same box."""
    try:
        spec = ask(**body)
    except (TypeError, msgspec.ValidationError) as error:
        raise Invalid(f"body: {error}", op="create") from error
    key = call.header("idempotency-key")
    if len(key) > 200:
        raise Invalid("Idempotency-Key has at most 200 characters", op="create")
    caller = call.caller
    known = bool(key) and await call.keeper.store.by_key(caller.owner, key) is not None
    begin = call.service.creations.make if query.wait else call.service.creations.begin
    record = await begin(spec, session=caller.session, owner=caller.owner, key=key)
    status = 202 if record.state is State.CREATING else 200 if known else 201
    return Reply(shown(record), status, headers={"location": f"/v1/boxes/{record.id}"})


async def list_boxes(call: Call) -> Reply:
    """The owner's boxes."""
    caller = call.caller
    boxes: list[BoxInfo] = []
    for record in call.keeper.boxes():
        if record.owner == caller.owner or caller.over_all:
            with suppress(NotFound, HeldElsewhere):  # it went while we looked at the others
                boxes.append(shown(record, await call.keeper.live(record.id)))
    return Reply(BoxList(boxes=boxes))


async def get(call: Call) -> Reply:
    """State, spec with what policy changed, lease, clocks."""
    live = await find(call)
    return Reply(shown(live.record, live))


async def destroy(call: Call, query: DestroyQuery) -> Reply:
    """Destroying what is gone already is fine."""
    try:
        live = await find(call)
    except Gone:
        return Reply(status=204)
    if not query.force:
        refuse_if_busy(call, live)
    await call.keeper.destroy(live.record.id, f"destroyed by {call.caller.key_id}")
    return Reply(status=204)


async def usage(call: Call) -> Reply:
    """What the box has used so far."""
    async with looking(call) as guard:
        instance = await guard.begin()
        try:
            return Reply(await instance.usage())
        finally:
            guard.end()


async def pause(call: Call) -> Reply:
    """Its processes stand still and take no CPU; it wakes when it is used."""
    async with using(call) as box:
        await box.pause()
    return await get(call)


async def resume(call: Call) -> Reply:
    """Also starts a stopped persistent box."""
    async with using(call) as box:
        await box.resume()
    return await get(call)


async def get_lease(call: Call) -> Reply:
    """Which session may change the box now."""
    return _lease(shown((await find(call)).record))


async def take_lease(call: Call, body: LeaseBody) -> Reply:
    """For the caller's session; `busy` while another holds it, unless it is taken over."""
    live = await find(call)
    if body.takeover:
        await call.keeper.acquire(live.record.id, call.caller.session, takeover=True)
    else:
        await hold(call.keeper, live, call.caller.session)
    return _lease(shown(live.record))


async def drop_lease(call: Call) -> Reply:
    """The caller's own; an admin over all releases whosever it is."""
    live = await find(call)
    lease = live.record.lease
    holder = lease.holder if lease is not None and call.caller.over_all else call.caller.session
    await call.keeper.release(live, holder)
    return _lease(shown(live.record))


async def get_current(call: Call) -> Reply:
    """The session's current box."""
    caller = call.caller
    return Reply(Current(session=caller.session, box=await call.keeper.sessions.current(caller.session, caller.owner)))


async def set_current(call: Call, body: CurrentBody) -> Reply:
    """Make a box current; the session holds its lease from now on."""
    caller = call.caller
    call.params = {"box": body.box}
    live = await find(call)
    await call.keeper.sessions.switch(caller.session, live.record.id, caller.owner, takeover=body.takeover)
    return Reply(Current(session=caller.session, box=live.record.id))


async def leave_current(call: Call) -> Reply:
    """Release the current box."""
    await call.keeper.sessions.leave(call.caller.session, call.caller.owner)
    return Reply(status=204)


def _lease(box: BoxInfo) -> Reply:
    return Reply(LeaseView(box=box.id, epoch=box.epoch, lease=box.lease))
