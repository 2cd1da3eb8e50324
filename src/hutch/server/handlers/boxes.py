"""Boxes over HTTP: create, find, list, look, change, pause, resume, stop, destroy; their leases."""

import time
from typing import Any

import msgspec

from hutch.errors import Gone, Invalid, Refused
from hutch.keeper.access import lookup
from hutch.keeper.access.leases import PROCESS_SESSION_PREFIX
from hutch.keeper.access.views import box_info
from hutch.keeper.boxes.live import Live, lease_lost
from hutch.keeper.keys import Role
from hutch.logs import log
from hutch.model.boxes import BoxInfo, Lease
from hutch.model.record import Record
from hutch.model.spec import Retention
from hutch.model.state import State
from hutch.policy.mounts import granted
from hutch.policy.rights import Action, require
from hutch.server.access import find, hold, looking, note_client, refuse_if_busy, renew, using
from hutch.server.handlers.commands import Seconds
from hutch.server.handlers.sessions import asked
from hutch.server.request import Call, Reply


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
    lease_expires_at: float | None = None
    """Unix time; None: it does not expire, or nobody holds the box."""
    lease_expires_in_seconds: float | None = None
    auto_renew_interval_seconds: float | None = None
    """How often it is renewed while its holder uses the box or its client lives (P6)."""


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
    with granted(*_opened_roots(call)):
        record = await begin(spec, session=caller.session, owner=caller.owner, key=key)
    status = 202 if record.state is State.CREATING else 200 if known else 201
    return Reply(box_info(record), status, headers={"location": f"/v1/boxes/{record.id}"})


def _opened_roots(call: Call) -> tuple[str, ...]:
    """What an admin opens for this one box: the files of an MCP server that he hosts from a process of his own. It is
    what he could open by registering that server here."""
    text = call.header("hutch-mount-roots")
    if not text:
        return ()
    if call.caller.role is not Role.ADMIN:
        raise Refused("only an admin opens paths of this machine to a box", op="create", details={"field": "mounts"})
    try:
        roots = msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise Invalid(f"Hutch-Mount-Roots is not a list of paths: {error}", op="create") from error
    for root in roots:
        log("server").warning("mount root added for a box", root=root, key=call.caller.key_id)
    return roots


async def list_boxes(call: Call) -> Reply:
    """The owner's boxes, oldest first; those too that nobody keeps, or another process."""
    return Reply(BoxList(boxes=await call.keeper.views.boxes(call.own.readable)))


async def find_box(call: Call, query: FindQuery) -> Reply:
    """The one box that a text means."""
    record = await lookup.find(call.keeper.store, query.text, call.caller.owner)
    return Reply(await call.keeper.views.box(record))


async def get(call: Call) -> Reply:
    """State, spec with what policy changed, lease, clocks."""
    live = await find(call)
    return Reply(box_info(live.record, live))


async def destroy(call: Call, query: DestroyQuery) -> Reply:
    """End the box and all that is in it; what is gone already is fine. Whoever names a lease (Hutch-Lease) does not
    end a box that another session has by now."""
    require(call.caller.rights, Action.DESTROY)
    try:
        live = await find(call)
    except Gone:
        return Reply(status=204)

    def held(live: Live) -> bool:
        if call.header("hutch-lease") and not call.caller.over_all and live.held_by_another(call.caller.session):
            raise lease_lost(live.record)
        if not query.force:
            refuse_if_busy(call, live)
        elif live.held_by_another(call.caller.session):
            require(call.caller.rights, Action.TAKEOVER)
        return False

    await call.keeper.destroy(live.record.id, f"destroyed by a call with key {call.caller.key_id}", unless=held)
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
    return Reply(ChangedBox(refused=refused, box=box_info(live.record, live)))


async def get_lease(call: Call) -> Reply:
    """Which session may change the box now."""
    return _lease(box_info((await find(call)).record))


async def take_lease(call: Call, body: LeaseBody) -> Reply:
    """For the caller's session; `busy` while another holds it, unless it is taken over."""
    live = await find(call)
    if body.renew:
        await renew(call, live)
    elif body.takeover:
        await call.keeper.acquire(live.record.id, call.caller.session, takeover=True)
    else:
        await hold(call.keeper, live, call.caller.session)
    note_client(call, live)
    return _lease(box_info(live.record))


async def drop_lease(call: Call) -> Reply:
    """Release the caller's own lease; an admin over all releases whosever it is."""
    live = await find(call)
    lease = live.record.lease
    holder = lease.holder if lease is not None and call.caller.over_all else call.caller.session
    presence, client = call.service.presence, call.header("hutch-client")
    if client and holder.startswith(PROCESS_SESSION_PREFIX):
        # Processes that share a session of nobody's name each give up their own share; the last releases the box.
        presence.end(holder, live.record.id, client)
        await call.keeper.release(live, holder, unless=lambda live: holder in live.handles)
    else:
        if call.caller.over_all or not live.held_by_another(holder):
            presence.end_session(holder, live.record.id)
        await call.keeper.release(live, holder)
    return _lease(box_info(live.record))


def _lease(box: BoxInfo) -> Reply:
    lease = box.lease
    if lease is None:
        return Reply(LeaseView(box=box.id, epoch=box.epoch, lease=None))
    return Reply(
        LeaseView(
            box=box.id, epoch=box.epoch, lease=lease, lease_expires_at=lease.expires_at or None,
            lease_expires_in_seconds=lease.expires_in_sec(time.time()),
            auto_renew_interval_seconds=lease.auto_renew_sec,
        )
    )  # fmt: skip
