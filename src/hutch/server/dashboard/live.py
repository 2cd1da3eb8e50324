"""What the dashboard shows live, as one stream (SSE): boxes as they change, events, questions, status and numbers.

The stream sends differences only. Watching extends no clock of a box and takes no lease, whatever the caller's role.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec

from hutch.errors import Unauthenticated
from hutch.keeper.access.views import box_info
from hutch.keeper.keys import Role
from hutch.model.boxes import BoxInfo, Event
from hutch.model.ids import BoxId
from hutch.model.questions import QuestionInfo
from hutch.model.record import Record, encode_json
from hutch.model.results import Usage
from hutch.model.status import Status
from hutch.server.dashboard.readings import Sample, read
from hutch.server.dashboard.sign_ins import cookie_of
from hutch.server.handlers.events import SSE
from hutch.server.request import Call, Reply
from hutch.server.service import Service

TICK_SECONDS = 2.0
"""Seconds between two messages when nothing happens; numbers are sent with each."""
GAP_SECONDS = 0.25
"""The shortest time between two messages, however much happens."""
STORE_SECONDS = 10.0
"""Seconds between reads of the store for boxes that other processes keep."""
DRIFT_SECONDS = 1.5
"""A box is sent again when its clock differs by more than this from what the browser counts down to itself."""


class Numbers(Record, frozen=True, kw_only=True):
    """Counters since the server's start, and samples of the last minutes from which a page draws its charts."""

    requests: int
    failures: int
    created: int
    active: int
    pool: dict[str, int]
    """Boxes that wait to be claimed, by profile."""
    pool_claims: int
    pool_misses: int
    samples: tuple[Sample, ...]
    """Samples that are newer than those of the last message; in the first message all that are kept."""


class LiveMessage(Record, frozen=True, kw_only=True):
    """One message of the stream; only what has changed is present."""

    now: float
    status: Status | msgspec.UnsetType = msgspec.UNSET
    boxes: tuple[BoxInfo, ...] = ()
    """Boxes that are new or have changed; in the first message all of them."""
    gone: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    """Events that are new, in the first message those of the last minutes. Their `seq` is 0: the stream does not wait
    until the store has numbered them."""
    questions: tuple[QuestionInfo, ...] | msgspec.UnsetType = msgspec.UNSET
    usages: dict[BoxId, Usage] = msgspec.field(default_factory=dict)
    """Use of resources by box, for the boxes used last."""
    numbers: Numbers | msgspec.UnsetType = msgspec.UNSET
    """Numbers of all owners, for admins and observers."""


@dataclass
class Watcher:
    """One browser's view: what it was sent, so that only differences follow."""

    call: Call
    sent: dict[BoxId, BoxInfo] = field(default_factory=dict)
    sent_at: dict[BoxId, float] = field(default_factory=dict)
    status: Status | None = None
    questions: tuple[QuestionInfo, ...] | None = None
    events_seen: int = 0
    samples_seen: int = 0
    foreign: dict[BoxId, BoxInfo] = field(default_factory=dict)
    """Boxes of the store that this process does not hold."""
    store_read_at: float = float("-inf")
    ticked_at: float = float("-inf")

    async def look(self) -> LiveMessage | None:
        """Return what has changed since the last look; None if nothing has."""
        service = self.call.service
        now = time.time()
        tick = time.monotonic() - self.ticked_at >= TICK_SECONDS
        events = self._events(service)
        found = await self._boxes()
        changed = tuple(box for box in found.values() if self._differs(box, now))
        gone = tuple(self.sent.keys() - found.keys())
        for box in changed:
            self.sent[box.id], self.sent_at[box.id] = box, now
        for box_id in gone:
            del self.sent[box_id], self.sent_at[box_id]
        message = LiveMessage(
            now=now, boxes=changed, gone=gone, events=tuple(events), questions=self._changed_questions(),
            status=await self._changed_status(),
        )  # fmt: skip
        if tick:
            self.ticked_at = time.monotonic()
            numbers = self._numbers(service) if self._monitors() else msgspec.UNSET
            message = message.but(usages=await service.usages.of(list(found.values())), numbers=numbers)
        empty = message.status is msgspec.UNSET and message.questions is msgspec.UNSET
        return None if empty and not (tick or changed or gone or events) else message

    async def _boxes(self) -> dict[BoxId, BoxInfo]:
        keeper, readable = self.call.keeper, self.call.own.readable
        if time.monotonic() - self.store_read_at > STORE_SECONDS:
            self.store_read_at = time.monotonic()
            self.foreign = {box.id: box for box in await keeper.views.boxes(readable)}
        held = {
            record.id: box_info(record, keeper.held(record.id))
            for record in keeper.boxes() if readable in (None, record.owner)
        }  # fmt: skip
        for box_id in held:
            self.foreign.pop(box_id, None)
        return {**self.foreign, **held}

    def _differs(self, box: BoxInfo, now: float) -> bool:
        """Whether the browser would show the box otherwise than it is; it counts clocks down by itself."""
        sent = self.sent.get(box.id)
        if sent is None or sent.but(used_at=0.0, remaining_sec=None) != box.but(used_at=0.0, remaining_sec=None):
            return True
        if box.remaining_sec is None or sent.remaining_sec is None:
            return box.remaining_sec is not sent.remaining_sec
        expected = sent.remaining_sec - (now - self.sent_at[box.id])
        return abs(max(0.0, expected) - box.remaining_sec) > DRIFT_SECONDS

    def _events(self, service: Service) -> list[Event]:
        caller, recent = self.call.caller, service.recent_events
        found = recent.since(self.events_seen)
        self.events_seen = recent.count
        for event in found:
            if event.kind == "gone":
                self.foreign.pop(event.box_id, None)
        return [event for event in found if caller.over_all or event.owner == caller.owner]

    def _changed_questions(self) -> tuple[QuestionInfo, ...] | msgspec.UnsetType:
        waiting = self.call.service.questions.waiting(owner=self.call.own.readable)
        questions = tuple(question.shown() for question in waiting)
        if questions == self.questions:
            return msgspec.UNSET
        self.questions = questions
        return questions

    async def _changed_status(self) -> Status | msgspec.UnsetType:
        service = self.call.service
        status = await service.keeper.views.status((), service.started_at)
        if self.status is not None and status.but(uptime_sec=0.0) == self.status.but(uptime_sec=0.0):
            return msgspec.UNSET
        self.status = status
        return status

    def _numbers(self, service: Service) -> Numbers:
        metrics, samples = service.metrics, service.history.samples
        pool, counted = metrics.keeper.pool, read(metrics)
        newer = samples.since(self.samples_seen)
        self.samples_seen = samples.count
        return Numbers(
            requests=counted.requests, failures=counted.failures, created=counted.created,
            active=sum(metrics.active.values()), pool=dict(pool.waiting()), pool_claims=sum(pool.claims.values()),
            pool_misses=sum(pool.misses.values()), samples=tuple(newer),
        )  # fmt: skip

    def _monitors(self) -> bool:
        return self.call.caller.role in (Role.ADMIN, Role.OBSERVER)

    async def check_session(self) -> None:
        """Unauthenticated if the browser was signed out meanwhile, or its key was revoked."""
        cookie = cookie_of(self.call.headers)
        if cookie and await self.call.service.sign_ins.find(cookie) is None:
            raise Unauthenticated("you are signed out", remedy="sign in again")


async def live(call: Call) -> Reply:
    """Stream the caller's boxes, events, questions and the server's status as they change; an admin with Hutch-Admin
    sees those of all owners. Each message is a LiveMessage; the first holds everything."""
    return Reply(_stream(call), type=SSE)


async def _stream(call: Call) -> AsyncGenerator[bytes, None]:
    yield b": hutch\n\n"
    service, watcher = call.service, Watcher(call)
    while not service.draining.is_set():
        signal = service.event_signal.next()
        await watcher.check_session()
        message = await watcher.look()
        yield b"data: " + encode_json(message) + b"\n\n" if message is not None else b": still here\n\n"
        await asyncio.sleep(GAP_SECONDS)
        await _wait(signal, service.draining)


async def _wait(signal: asyncio.Event, draining: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (signal, draining)]
    try:
        await asyncio.wait(waits, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
