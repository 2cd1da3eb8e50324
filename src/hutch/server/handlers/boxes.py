"""Boxes over HTTP: create, find, list, inspect, change, pause, resume, stop and destroy them; their leases."""

import time
from typing import Annotated, Any

import msgspec

from hutch.errors import Gone, Invalid, Refused
from hutch.keeper.access import lookup
from hutch.keeper.access.leases import PROCESS_SESSION_PREFIX
from hutch.keeper.access.views import box_info, box_info_with_jobs
from hutch.keeper.boxes.live import Live, lease_lost
from hutch.keeper.keys import Role
from hutch.logs import log
from hutch.model.boxes import BoxInfo, Lease, State
from hutch.model.record import Record
from hutch.model.spec import Retention
from hutch.policy.mounts import granted
from hutch.policy.rights import Action, require
from hutch.server.access import find, grant_to_client, hold, observing, refuse_if_busy, renew, using
from hutch.server.handlers.box.commands import Seconds
from hutch.server.handlers.sessions import parse_spec
from hutch.server.request import Call, Reply


class CreateQuery(Record, frozen=True, kw_only=True):
    wait: bool = True
    """If false, the call answers as soon as the box is in the store, in state `creating`."""


class BoxList(Record, frozen=True, kw_only=True):
    boxes: tuple[BoxInfo, ...]


class DestroyQuery(Record, frozen=True, kw_only=True):
    force: bool = False
    """Destroy the box even while another session holds it."""


class LeaseView(Record, frozen=True, kw_only=True):
    box: str
    epoch: int
    lease: Lease | None
    lease_expires_at: float | None = None
    """Unix time; null if the lease does not expire or nobody holds the box."""
    lease_expires_in_seconds: float | None = None
    auto_renew_interval_seconds: float | None = None
    """Seconds between renewals while the holder uses the box or its client is alive."""
    grant: int = 0
    """Names this answer when the client releases the box; 0 without Hutch-Client."""


class LeaseBody(Record, frozen=True, kw_only=True):
    takeover: bool = False
    """Take the lease from its holder, whose handles then belong to an older epoch."""
    renew: bool = False
    """Only extend the session's own lease; `lease_lost` if it has none."""


class ChangeBody(Record, frozen=True, kw_only=True):
    """The changes; a field that is left out stays as it is."""

    name: str | None = None
    """Empty removes the name."""
    retention: Retention | None = None
    idle_timeout_sec: Seconds | None = None
    limits: dict[str, int | float] = msgspec.field(default_factory=dict)


class MoveScopeBody(Record, frozen=True, kw_only=True):
    template: str
    """A template such as `{chat}_{user}`, or the name of a built-in scope."""
    kind: str = ""
    values: dict[str, str | None] = msgspec.field(default_factory=dict)
    """One value for each variable of the template."""


class ChangedBox(Record, frozen=True, kw_only=True):
    refused: tuple[str, ...]
    """Changes that would need a new box and were not applied."""
    box: BoxInfo


class BoxListQuery(Record, frozen=True, kw_only=True):
    after: str = ""
    """The id of a box: only those that come after it are listed."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """The most boxes to list; all if it is left out."""


class FindQuery(Record, frozen=True, kw_only=True):
    text: str
    """A box's id, the beginning of its id, or its name."""


async def create(call: Call, query: CreateQuery, body: dict[str, Any]) -> Reply:
    """Create a box. The body is a spec, as `Hutch.create` takes it; with an Idempotency-Key a retry returns the same
    box."""
    spec = parse_spec(body)
    key = call.header("idempotency-key")
    if len(key) > 200:
        raise Invalid("Idempotency-Key has at most 200 characters", op="create")
    caller = call.caller
    exists = bool(key) and await call.keeper.store.by_key(caller.owner, key) is not None
    begin = call.keeper.creations.create if query.wait else call.keeper.creations.begin
    with granted(*_granted_mount_roots(call)):
        record = await begin(spec, session=caller.session, owner=caller.owner, key=key)
    status = 202 if record.state is State.CREATING else 200 if exists else 201
    return Reply(box_info(record), status, headers={"location": f"/v1/boxes/{record.id}"})


async def plan(call: Call, body: dict[str, Any]) -> Reply:
    """Return the spec that a box would have, with the changes that policy would make. Nothing is created."""
    return Reply(await call.keeper.engines.plan(parse_spec(body)))


def _granted_mount_roots(call: Call) -> tuple[str, ...]:
    """The host paths that an admin lets this one box mount.

    An admin who hosts an MCP server from a process of his own shows its files this way. Registering that server here
    would allow the same.
    """
    header = call.header("hutch-mount-roots")
    if not header:
        return ()
    if call.caller.role is not Role.ADMIN:
        raise Refused("only an admin opens paths of this machine to a box", op="create", details={"field": "mounts"})
    try:
        roots = msgspec.json.decode(header, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise Invalid(f"Hutch-Mount-Roots is not a list of paths: {error}", op="create") from error
    for root in roots:
        log("server").warning("mount root added for a box", root=root, key=call.caller.key_id)
    return roots


async def list_boxes(call: Call, query: BoxListQuery) -> Reply:
    """List the owner's boxes, oldest first, also those that another process or none keeps."""
    found = await call.keeper.views.boxes(call.own.readable, after=query.after, limit=query.limit)
    return Reply(BoxList(boxes=found))


async def find_box(call: Call, query: FindQuery) -> Reply:
    """Find the one box that a text names."""
    record = await lookup.find(call.keeper.store, query.text, call.caller.owner)
    return Reply(await call.keeper.views.box(record))


async def get(call: Call) -> Reply:
    """Return a box: state, lease, clocks, jobs, and its spec with the changes that policy made."""
    return Reply(await box_info_with_jobs(await find(call)))


async def mark_created(call: Call) -> Reply:
    """Note that the `created` hooks of the caller's program have succeeded for this box."""
    async with using(call):
        live = await find(call)
        await call.keeper.hooks.mark_created(live)
    return Reply(box_info(live.record, live))


async def move(call: Call, body: MoveScopeBody) -> Reply:
    """Make this the box of another conversation, with its files and jobs; a conflict if that one has a box."""
    async with using(call) as box:
        await box.move_to(body.template, kind=body.kind, **body.values)
    live = await find(call)
    return Reply(box_info(live.record, live))


async def destroy(call: Call, query: DestroyQuery) -> Reply:
    """Destroy the box and everything in it; a box that is already gone is no error. A caller that names its lease
    (Hutch-Lease) does not destroy a box that another session has by now."""
    require(call.caller.rights, Action.DESTROY)
    try:
        live = await find(call)
    except Gone:
        return Reply(status=204)

    def check_holder(live: Live) -> bool:
        if call.header("hutch-lease") and not call.caller.over_all and live.held_by_another(call.caller.session):
            raise lease_lost(live.record)
        if not query.force:
            refuse_if_busy(call, live)
        elif live.held_by_another(call.caller.session):
            require(call.caller.rights, Action.TAKEOVER)
        return False

    await call.keeper.destroy(live.record.id, f"destroyed by a call with key {call.caller.key_id}", unless=check_holder)
    return Reply(status=204)


async def usage(call: Call) -> Reply:
    """Return the resources that the box has used so far."""
    async with observing(call) as guard:
        instance = await guard.begin()
        try:
            return Reply(await instance.usage())
        finally:
            guard.end()


async def pause(call: Call) -> Reply:
    """Freeze the box's processes, which then use no CPU; the box resumes when it is used."""
    async with using(call) as box:
        await box.pause()
    return await get(call)


async def resume(call: Call) -> Reply:
    """Resume a paused box, or start a stopped persistent box."""
    async with using(call) as box:
        await box.resume()
    return await get(call)


async def stop(call: Call) -> Reply:
    """End a persistent box's processes and keep its files; its next use starts it again."""
    async with using(call) as box:
        await box.stop()
    return await get(call)


async def change(call: Call, body: ChangeBody) -> Reply:
    """Change the name, retention, idle timeout or limits of a running box."""
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
    """Return the session that may change the box now."""
    return _lease(box_info((await find(call)).record))


async def take_lease(call: Call, body: LeaseBody) -> Reply:
    """Take the lease for the caller's session; `busy` while another session holds it, unless it is taken over."""
    live = await find(call)
    if body.renew:
        await renew(call, live)
    elif body.takeover:
        await call.keeper.acquire(live.record.id, call.caller.session, takeover=True)
    else:
        await hold(call.keeper, live, call.caller.session)
    return _lease(box_info(live.record), grant_to_client(call, live))


class ReleaseQuery(Record, frozen=True, kw_only=True):
    grant: int = 0
    """The latest grant that this client has received. A box that it was given again meanwhile stays leased."""


async def drop_lease(call: Call, query: ReleaseQuery) -> Reply:
    """Release the caller's lease; an admin with Hutch-Admin releases the lease of any holder."""
    live = await find(call)
    lease = live.record.lease
    holder = lease.holder if lease is not None and call.caller.over_all else call.caller.session
    presence, client = call.service.presence, call.header("hutch-client")
    if presence.was_granted_since(holder, live.record.id, client, query.grant):
        return _lease(box_info(live.record))
    if client and holder.startswith(PROCESS_SESSION_PREFIX):
        # Processes that share an unnamed session each give up their own handle; the last one releases the box.
        presence.end(holder, live.record.id, client)
        await call.keeper.release(live, holder, unless=lambda live: holder in live.handles)
    else:
        if call.caller.over_all or not live.held_by_another(holder):
            presence.end_session(holder, live.record.id)
        await call.keeper.release(live, holder)
    return _lease(box_info(live.record))


def _lease(box: BoxInfo, grant: int = 0) -> Reply:
    lease = box.lease
    if lease is None:
        return Reply(LeaseView(box=box.id, epoch=box.epoch, lease=None))
    return Reply(
        LeaseView(
            box=box.id, epoch=box.epoch, lease=lease, lease_expires_at=lease.expires_at or None,
            lease_expires_in_seconds=lease.expires_in_sec(time.time()),
            auto_renew_interval_seconds=lease.auto_renew_sec, grant=grant,
        )
    )  # fmt: skip
