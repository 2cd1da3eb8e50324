"""Sessions over HTTP: heartbeats, the current and the default box, and the box of a conversation."""

import time
from typing import Annotated, Any

import msgspec

from hutch.errors import Invalid
from hutch.keeper.access.leases import renewal_is_due
from hutch.keeper.access.scopes import scope, scope_labels
from hutch.keeper.access.views import box_info
from hutch.model.arguments import spec_from_arguments
from hutch.model.boxes import BoxInfo
from hutch.model.ids import BoxId, is_name
from hutch.model.record import Record
from hutch.model.spec import Spec
from hutch.server.access import find, grant_to_client
from hutch.server.request import Call, Reply

MAX_BOXES = 1000
"""Boxes that one heartbeat may name; a client with more sends several."""

SessionName = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]

OpenBoxes = Annotated[dict[str, float], msgspec.Meta(max_length=MAX_BOXES)]


class CurrentBody(Record, frozen=True, kw_only=True):
    box: str
    takeover: bool = False


class Current(Record, frozen=True, kw_only=True):
    session: str
    box: str | None
    """The box may be gone by now."""


class DefaultQuery(Record, frozen=True, kw_only=True):
    provider: str = ""


class DefaultBody(Record, frozen=True, kw_only=True):
    box: str
    provider: str = ""
    """Empty for every provider that has no default of its own."""


class Default(Record, frozen=True, kw_only=True):
    box: str | None
    """The box may be gone by now."""


class ScopeBody(Record, frozen=True, kw_only=True):
    template: str
    """A template such as `{chat}_{user}`, or the name of a built-in scope."""
    kind: str = ""
    values: dict[str, str | None] = msgspec.field(default_factory=dict)
    """One value for each variable of the template."""
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    """The spec of a box that has to be created, as for creation."""


class FoundBox(Record, frozen=True, kw_only=True):
    """A box whose lease the session now holds."""

    box: BoxInfo
    notes: tuple[str, ...]
    """Notes, for example that the box is new or that an earlier one was lost."""
    grant: int = 0
    """Names this answer when the client releases the box; 0 without Hutch-Client."""


class PresenceBody(Record, frozen=True, kw_only=True):
    sessions: Annotated[dict[SessionName, OpenBoxes], msgspec.Meta(max_length=MAX_BOXES)] = msgspec.field(
        default_factory=dict
    )
    """By session, its open boxes, each with the time at which its lease was acquired; at most 1000 in total."""
    closing: bool = False
    """The client closes these boxes: their idle clocks run from now on, while the leases stay until they expire."""


class PresenceView(Record, frozen=True, kw_only=True):
    kept: int
    """The number of leases that were kept alive."""
    lost: dict[str, list[str]]
    """By session, the boxes that are gone or whose lease has ended."""


async def presence(call: Call, body: PresenceBody) -> Reply:
    """Send a client's heartbeat, which keeps the leases of its open boxes alive for another minute."""
    if sum(map(len, body.sessions.values())) > MAX_BOXES:
        raise Invalid(f"a heartbeat names at most {MAX_BOXES} boxes", remedy="send several")
    kept = 0
    lost: dict[str, list[str]] = {}
    for session, boxes in body.sessions.items():
        for box_id, acquired_at in boxes.items():
            if await _note_heartbeat(call, session, box_id, acquired_at, closing=body.closing):
                kept += 1
            else:
                lost.setdefault(session, []).append(box_id)
    return Reply(PresenceView(kept=kept, lost=lost))


async def _note_heartbeat(call: Call, session: str, box_id: str, acquired_at: float, *, closing: bool) -> bool:
    """Note the heartbeat; False if the lease has ended. Only boxes that this keeper holds count: nothing is adopted."""
    live, now = call.keeper.held(BoxId(box_id)), time.time()
    if live is None or live.record.owner != call.caller.owner:
        return False
    lease = live.record.lease
    if lease is None or (lease.holder, lease.acquired_at) != (session, acquired_at) or not lease.live(now):
        return False
    if closing:
        call.service.presence.end(session, live.record.id, call.header("hutch-client"))
        return True
    call.service.presence.beat(session, live, call.header("hutch-client"))
    if renewal_is_due(lease, now, call.keeper.config.lease_sec):
        await call.keeper.renew(live)
    return True


async def get_current(call: Call) -> Reply:
    """Return the session's current box."""
    caller = call.caller
    return Reply(Current(session=caller.session, box=await call.keeper.sessions.current(caller.session, caller.owner)))


async def set_current(call: Call, body: CurrentBody) -> Reply:
    """Make a box the session's current one; the session takes its lease."""
    caller = call.caller
    call.params = {"box": body.box}
    live = await find(call)
    await call.keeper.sessions.switch(caller.session, live.record.id, caller.owner, takeover=body.takeover)
    return Reply(Current(session=caller.session, box=live.record.id))


async def leave_current(call: Call) -> Reply:
    """Release the session's current box."""
    await call.keeper.sessions.leave(call.caller.session, call.caller.owner)
    return Reply(status=204)


async def working(call: Call, body: dict[str, Any]) -> Reply:
    """Return the session's working box: its current one, else the owner's default, else a new one of this spec."""
    caller = call.caller
    live, notes = await call.keeper.sessions.find_or_create(caller.session, parse_spec(body), caller.owner)
    return Reply(FoundBox(box=box_info(live.record, live), notes=notes))


async def get_default(call: Call, query: DefaultQuery) -> Reply:
    """Return the owner's default box on that provider, else the general default."""
    return Reply(Default(box=await call.keeper.sessions.default(call.caller.owner, query.provider)))


async def set_default(call: Call, body: DefaultBody) -> Reply:
    """Make a box the owner's default."""
    if body.provider and not is_name(body.provider):
        raise Invalid(f"{body.provider[:100]!r} is no name of a provider", op="default")
    call.params = {"box": body.box}
    live = await find(call)
    await call.keeper.sessions.set_default(live.record.id, call.caller.owner, body.provider)
    return Reply(Default(box=live.record.id))


async def scoped(call: Call, body: ScopeBody) -> Reply:
    """Find or create the box of a conversation by template and values; the session takes its lease."""
    caller = call.caller
    found_scope = scope(body.template, body.values, owner=caller.owner, kind=body.kind)
    spec = parse_spec(body.spec)
    spec = spec.but(labels={**spec.labels, **scope_labels(found_scope, body.kind)})
    live, notes = await call.keeper.box_for_key(spec, found_scope.key, caller.session, caller.owner)
    return Reply(FoundBox(box=box_info(live.record, live), notes=notes, grant=grant_to_client(call, live)))


def parse_spec(body: dict[str, Any]) -> Spec:
    """The spec of a request's body; Invalid if it is none."""
    try:
        return spec_from_arguments(**body)
    except (TypeError, msgspec.ValidationError) as error:
        raise Invalid(f"body: {error}", op="create") from error
