"""Events over HTTP: a page as JSON, or a stream (SSE) that goes on from the last one seen."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec

from hutch.errors import Invalid
from hutch.model.boxes import Event
from hutch.model.record import Record
from hutch.server.request import Call, Reply

SSE = "text/event-stream"
PAGE = 1000
LOOK_SECONDS = 10.0
"""Other keepers may write to the same store without ringing our bell; and a silent stream may be a dead one."""


class EventsQuery(Record, frozen=True, kw_only=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    """The `seq` of the last one seen; 0: from the oldest that is kept."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = 100
    box: str | None = None


class EventPage(Record, frozen=True, kw_only=True):
    events: list[Event]
    cursor: int
    """Pass it as `after`."""


async def events(call: Call, query: EventsQuery) -> Reply:
    """What happened to boxes. Accept: text/event-stream for a stream; Last-Event-ID, as browsers send it, goes before
    `after`."""
    if not call.accepts(SSE):
        found, cursor = await _page(call, query, query.after)
        return Reply(EventPage(events=found, cursor=cursor))
    last = call.header("last-event-id")
    if last and not (last.isascii() and last.isdigit() and len(last) < 19):
        raise Invalid(f"Last-Event-ID {last[:40]!r} is no number", op="events")
    return Reply(_stream(call, query, int(last) if last else query.after), type=SSE)


async def _stream(call: Call, query: EventsQuery, cursor: int) -> AsyncGenerator[bytes, None]:
    yield b": hutch\n\n"
    service = call.service
    while not service.draining.is_set():
        bell = service.bell.next()
        found, reached = await _page(call, query, cursor)
        for event in found:
            data = event.to_json().decode()
            yield f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n".encode()
        if reached > cursor:
            cursor = reached
            continue
        if not await _rung(bell, service.draining):
            yield b": still here\n\n"


async def _rung(bell: asyncio.Event, draining: asyncio.Event) -> bool:
    waits = [asyncio.ensure_future(event.wait()) for event in (bell, draining)]
    try:
        done, _ = await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for each in waits:
            each.cancel()


async def _page(call: Call, query: EventsQuery, after: int) -> tuple[list[Event], int]:
    """The caller's own events after `after`, and how far was looked."""
    caller = call.caller
    mine: list[Event] = []
    while True:
        found = await call.keeper.events(after, PAGE)
        for event in found:
            if (event.owner == caller.owner or caller.over_all) and query.box in (None, event.box_id):
                mine.append(event)
            after = event.seq
            if len(mine) == query.limit:
                return mine, after
        if len(found) < PAGE:
            return mine, after
