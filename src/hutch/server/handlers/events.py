"""Events over HTTP: a page as JSON, or a stream (SSE) that continues after the last event seen."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec

from hutch.errors import Invalid
from hutch.model.boxes import Event
from hutch.model.record import Record
from hutch.server.request import Call, Reply

SSE = "text/event-stream"
PAGE = 1000
POLL_SECONDS = 10.0
"""Seconds between reads of the store, to which other keepers write without a signal here, and between keep-alives."""

MAX_WAIT_SECONDS = 60.0


class EventsQuery(Record, frozen=True, kw_only=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    """The `seq` of the last event seen; 0 begins with the oldest event that is kept."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = 100
    box: str | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0.0
    """Seconds to wait for an event if there is none yet."""


class EventPage(Record, frozen=True, kw_only=True):
    events: list[Event]
    cursor: int
    """The value of `after` for the next page."""


async def events(call: Call, query: EventsQuery) -> Reply:
    """List what happened to boxes. Accept: text/event-stream returns a stream; Last-Event-ID takes precedence over
    `after`."""
    if not call.accepts(SSE):
        found, cursor = await _wait_for_page(call, query)
        return Reply(EventPage(events=found, cursor=cursor))
    last = call.header("last-event-id")
    if last and not (last.isascii() and last.isdigit() and len(last) < 19):
        raise Invalid(f"Last-Event-ID {last[:40]!r} is no number", op="events")
    return Reply(_stream(call, query, int(last) if last else query.after), type=SSE)


async def _wait_for_page(call: Call, query: EventsQuery) -> tuple[list[Event], int]:
    """A page, which is empty only if no event of the caller came in time or the server is stopping."""
    service, cursor, end = call.service, query.after, time.monotonic() + query.wait
    while True:
        signal = service.event_signal.next()
        found, cursor = await _page(call, query, cursor)
        left = end - time.monotonic()
        if found or left <= 0 or service.draining.is_set():
            return found, cursor
        await _wait_for_event(signal, service.draining, min(left, POLL_SECONDS))


async def _stream(call: Call, query: EventsQuery, cursor: int) -> AsyncGenerator[bytes, None]:
    yield b": hutch\n\n"
    service = call.service
    while not service.draining.is_set():
        signal = service.event_signal.next()
        found, reached = await _page(call, query, cursor)
        for event in found:
            data = event.to_json().decode()
            yield f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n".encode()
        if reached > cursor:
            cursor = reached
            continue
        if not await _wait_for_event(signal, service.draining):
            yield b": still here\n\n"


async def _wait_for_event(signal: asyncio.Event, draining: asyncio.Event, seconds: float = POLL_SECONDS) -> bool:
    waits = [asyncio.ensure_future(event.wait()) for event in (signal, draining)]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for each in waits:
            each.cancel()


async def _page(call: Call, query: EventsQuery, after: int) -> tuple[list[Event], int]:
    """The caller's own events after `after`, and the `seq` up to which the store was read."""
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
