"""Boxes over HTTP: create, find, list, look, change, pause, resume, stop, destroy; their leases."""

from typing import Any

import msgspec

from hutch.errors import Gone, Invalid
from hutch.keeper import naming
from hutch.keeper.live import Live, taken_over
from hutch.keeper.showing import all_shown, shown, shown_anywhere
from hutch.model.boxes import BoxInfo, Lease
from hutch.model.record import Record
from hutch.model.spec_kinds import Retention
from hutch.model.state import State
from hutch.server.access import find, hold, looking, refuse_if_busy, renew, using
from hutch.server.call import Call, Reply
from hutch.server.commands import Seconds
from hutch.server.sessions import asked


class CreateQuery(Record, frozen=True, kw_only=True):
    wait: bool = True
    """False: answered as soon as the box is known, in state `creating`."""


class BoxList(Record, frozen=True, kw_only=True):
    boxes: tuple[BoxInfo, ...]


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
    renew: bool = False
    """Only extend a lease that the session has; `lease_lost` if it has none."""


class ChangeBody(Record, frozen=True, kw_only=True):
    """What is left out stays as it is."""

    name: str | None = None
    """Empty: none."""
    retention: Retention | None = None
    idle_timeout_sec: Seconds | None = None
    limits: dict[str, int | float] = msgspec.field(default_factory=dict)


class ChangedBox(Record, frozen=True, kw_only=True):
    refused: tuple[str, ...]
    """What would need a new box, and was not applied (B14)."""
    box: BoxInfo


class FindQuery(Record, frozen=True, kw_only=True):
    text: str
    """A box's id, the beginning of it, or its name."""


async def create(call: Call, query: CreateQuery, body: dict[str, Any]) -> Reply:
    """A new box. The body is a spec, in the form `Hutch.create` takes; with an Idempotency-Key a retry gives the same
    box."""
    spec = asked(body)
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
    """The owner's boxes, oldest first; those too that nobody keeps, or another process."""
    return Reply(BoxList(boxes=await all_shown(call.keeper, None if call.caller.over_all else call.caller.owner)))


async def find_box(call: Call, query: FindQuery) -> Reply:
    """The one box that a text means."""
    record = await naming.find(call.keeper.store, query.text, call.caller.owner)
    return Reply(await shown_anywhere(call.keeper, record))


async def get(call: Call) -> Reply:
    """State, spec with what policy changed, lease, clocks."""
    live = await find(call)
    return Reply(shown(live.record, live))


async def destroy(call: Call, query: DestroyQuery) -> Reply:
    """End the box and all that is in it; what is gone already is fine. Whoever names a lease (Hutch-Lease) does not
    end a box that another session has by now."""
    try:
        live = await find(call)
    except Gone:
        return Reply(status=204)

    def held(live: Live) -> bool:
        if call.header("hutch-lease") and not call.caller.over_all and live.held_by_another(call.caller.session):
            raise taken_over(live.record)
        if not query.force:
            refuse_if_busy(call, live)
        return False

    await call.keeper.destroy(live.record.id, f"destroyed by a call with key {call.caller.key_id}", held)
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
    """Let it go on; also starts a stopped persistent box."""
    async with using(call) as box:
        await box.resume()
    return await get(call)


async def stop(call: Call) -> Reply:
    """End a persistent box's processes and keep its files; its next use brings it back."""
    async with using(call) as box:
        await box.stop()
    return await get(call)


async def change(call: Call, body: ChangeBody) -> Reply:
    """Of the live box: its name, whether its files stay, its idle time, its limits."""
    if clash := body.limits.keys() & {"retention", "idle_timeout_sec"}:
        raise Invalid(f"{min(clash)} is no limit", op="change")
    refused: tuple[str, ...] = ()
    async with using(call) as box:
        if body.name is not None:
            await box.rename(body.name)
        if body.retention is not None or body.idle_timeout_sec is not None or body.limits:
            refused = await box.change(
                retention=body.retention, idle_timeout_sec=body.idle_timeout_sec, **body.limits
            )  # fmt: skip
    live = await find(call)
    return Reply(ChangedBox(refused=refused, box=shown(live.record, live)))


async def get_lease(call: Call) -> Reply:
    """Which session may change the box now."""
    return _lease(shown((await find(call)).record))


async def take_lease(call: Call, body: LeaseBody) -> Reply:
    """For the caller's session; `busy` while another holds it, unless it is taken over."""
    live = await find(call)
    if body.renew:
        await renew(call, live)
    elif body.takeover:
        await call.keeper.acquire(live.record.id, call.caller.session, takeover=True)
    else:
        await hold(call.keeper, live, call.caller.session)
    return _lease(shown(live.record))


async def drop_lease(call: Call) -> Reply:
    """Release the caller's own lease; an admin over all releases whosever it is."""
    live = await find(call)
    lease = live.record.lease
    holder = lease.holder if lease is not None and call.caller.over_all else call.caller.session
    call.service.presence.end(holder, live.record.id)
    await call.keeper.release(live, holder)
    return _lease(shown(live.record))


def _lease(box: BoxInfo) -> Reply:
    return Reply(LeaseView(box=box.id, epoch=box.epoch, lease=box.lease))
