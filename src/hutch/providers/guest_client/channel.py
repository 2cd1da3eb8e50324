"""A channel, host side: one request, its answer, and the content that flows both ways meanwhile, within credit."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

from hutch.errors import BoxBroken, HutchError, QuotaExceeded, Timeout
from hutch.guest.protocol import (
    CANCEL,
    CREDIT,
    CREDIT_SIZE,
    DATA,
    END,
    ERR,
    FRAME_COST,
    OUT,
    WINDOW,
    ProtocolError,
    frame,
)
from hutch.providers.guest_client.allowance import FREE, LARGE, Allowance

if TYPE_CHECKING:
    from hutch.providers.guest_client.link import Link

PIECE = 1 << 18
"""The most bytes of content that one frame carries."""

Fields = dict[str, Any]


class Channel:
    """One request: its answer, and the content that flows both ways meanwhile."""

    __slots__ = (
        "_allowance", "_allowed", "_answer", "_consumed", "_expected", "_held", "_inbox", "_link", "_reader",
        "_sendable", "_timer", "_widening", "_window", "_writer", "abandoned", "collected", "number",
    )  # fmt: skip

    def __init__(
        self, link: "Link", number: int, answer: asyncio.Future[Fields], collect: bool,
        allowance: Allowance | None = None, window: int = WINDOW,
    ) -> None:  # fmt: skip
        self._link = link
        self._answer = answer
        self._window = window
        """The most bytes in flight in each direction."""
        self._allowed = window
        self._consumed = 0
        self._sendable = window
        self._inbox: deque[tuple[int, Any, int]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._allowance = allowance
        self._held = 0
        """The bytes that are counted against the allowance."""
        self._expected = 0
        """The bytes beyond the window for which the allowance was not asked yet."""
        self._widening: asyncio.Task[None] | None = None
        self.number = number
        self.abandoned = False
        self.collected = (bytearray(), bytearray()) if collect else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abandon()

    async def answer(self) -> Fields:
        """Return the guest's REPLY, or raise its ERROR."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Notify the guest that nobody waits any more, and drop what still comes."""
        if self.abandoned or self.number not in self._link.channels:
            return
        self.abandoned = True
        self._drop()
        self.stop_timer()
        self._link.send(frame(CANCEL, self.number))

    def _drop(self) -> None:
        """Release content that came and was not taken."""
        self._inbox.clear()
        if self.collected is not None:
            self.collected = (bytearray(), bytearray())
        if self._allowance is not None and self._held:
            self._allowance.give(self._held)
            self._held = 0

    def expire(self, seconds: float, message: str) -> None:
        """Give up on the answer if it does not come in time."""
        self._timer = self._link.loop.call_later(seconds, self._expired, message)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self, message: str) -> None:
        self._timer = None
        if not self._answer.done():
            self.abandon()
            self.fail(Timeout(message))

    # --- content from the guest ------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        """Return the next (kind, content): bytes of DATA, OUT, ERR; the object of an EVENT. The answer ends it."""
        while not self._inbox:
            if self._answer.done():
                self._answer.result()
                raise StopAsyncIteration
            self._reader = self._link.loop.create_future()
            await self._reader
        kind, content, size = self._inbox.popleft()
        if self._held:
            self._give(size)
        self._consume(size)
        return kind, content

    def _consume(self, size: int) -> None:
        """Grant the guest new credit for what was taken, in few frames."""
        self._consumed += size + FRAME_COST
        if self._consumed >= self._window // 4 and self.number in self._link.channels and not self.abandoned:
            self.grant(self._consumed)
            self._consumed = 0

    def expect(self, keep: int) -> None:
        """Let a result of both streams come whole although it is larger than the window. Where bytes are counted, it
        waits in the box until the allowance has room for it."""
        if 2 * keep <= WINDOW // 2:
            return
        if self._allowance is None:
            self.grant(2 * keep)
        else:
            self._expected = 2 * keep

    async def _widen(self, allowance: Allowance, size: int) -> None:
        try:
            await allowance.reserve(size)
        except HutchError as error:
            self._refuse(error)
        else:
            self._allowance = None  # `reserve` has counted what still comes
            self.grant(size)

    def output(self, index: int) -> bytes:
        """Hand over what was collected from stdout (0) or stderr (1), and keep no second copy of a large result."""
        if self.collected is None:
            return b""
        whole = bytes(self.collected[index])
        self.collected[index].clear()
        if 0 < self._held <= LARGE:
            self._give(self._held)
        return whole

    def grant(self, size: int) -> None:
        self._allowed += size
        self._link.send(frame(CREDIT, self.number, CREDIT_SIZE.pack(size)))

    def take(self, kind: int, content: Any, size: int) -> None:
        """Accept content for this channel. More than was granted is a violation."""
        self._allowed -= size + FRAME_COST
        if self._allowed < 0:
            raise ProtocolError(f"channel {self.number} sent more than it was granted")
        if self.abandoned:
            return
        if self._allowance is not None and not self._count(self._allowance, size):
            return
        if self.collected is None:
            self._inbox.append((kind, content, size))
            _wake(self._reader)
        elif kind == OUT:
            self.collected[0].extend(content)
        elif kind == ERR:
            self.collected[1].extend(content)

    def _count(self, allowance: Allowance, size: int) -> bool:
        """Return whether these bytes may be held. The bytes of a small result are not counted at all."""
        if self.collected is not None:
            if self._allowed < WINDOW // 2 and self._expected and self._widening is None:
                self._widening = self._link.loop.create_task(self._widen(allowance, self._expected))
            if not self._held and WINDOW - self._allowed <= FREE:
                return True
        elif not self._inbox:
            return True  # somebody waits for this content, or will in a moment
        try:
            allowance.take(size)
        except QuotaExceeded as error:
            self._refuse(error)
            return False
        self._held += size
        return True

    def _give(self, size: int) -> None:
        size = min(size, self._held)
        self._held -= size
        if self._allowance is not None:
            self._allowance.give(size)

    def _refuse(self, error: HutchError) -> None:
        """Fail the channel because the allowance is full. The guest keeps the content if it can."""
        self.abandon()
        self.fail(error)

    # --- content to the guest --------------------------------------------------------------------------------

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as DATA, within the guest's credit. Returns early when the guest has already answered."""
        view = memoryview(data)
        while view and not self._answer.done():
            size = min(len(view), self._sendable, PIECE)
            if size == 0 or self._link.congested:
                await self._wait_for_room()
                continue
            self._sendable -= size
            self._link.send(frame(DATA, self.number, view[:size]))
            view = view[size:]

    def end(self) -> None:
        """Notify the guest that no more DATA comes."""
        if not self._answer.done():
            self._link.send(frame(END, self.number))

    async def _wait_for_room(self) -> None:
        if self._sendable > 0 and self._link.congested:
            await self._link.uncongested()
            return
        self._writer = self._link.loop.create_future()
        await self._writer

    def add_credit(self, size: int) -> None:
        """Add credit from the guest. It may give back only what it took: credit frames cost it nothing."""
        if size == 0 or self._sendable + size > self._window:
            raise ProtocolError(f"channel {self.number} was granted more than it had sent")
        self._sendable += size
        _wake(self._writer)

    # --- the end ---------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self._answer.done()

    @property
    def has_waiting(self) -> bool:
        """Whether something has come that nobody has read."""
        return bool(self._inbox)

    def succeed(self, fields: Fields) -> None:
        self.stop_timer()
        self._stop_widening()
        if not self._answer.done():
            self._answer.set_result(fields)
        _wake(self._reader)
        _wake(self._writer)

    def _stop_widening(self) -> None:
        if self._widening is not None and self._widening is not asyncio.current_task(self._link.loop):
            self._widening.cancel()

    def fail(self, error: HutchError) -> None:
        self.stop_timer()
        self._stop_widening()
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # a streaming caller may never look at the error
        _wake(self._reader)
        _wake(self._writer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


MAX_ROW = 256 << 10
"""The most bytes of a row: a path has at most 4 kB, and JSON makes six characters of an odd byte."""
MAX_ROWS_BYTES = 256 << 20


async def content_of(channel: Channel, bound: int | None) -> AsyncIterator[bytes]:
    """Yield the DATA of a channel until its answer, which is raised if it is an error."""
    received = 0
    async for kind, content in channel:
        if kind != DATA:
            raise BoxBroken(f"the guest sent a frame of kind {kind} where content was asked for")
        received += len(content)
        if bound is not None and received > bound:
            raise BoxBroken(f"the guest sent more than the {bound} bytes it was asked for")
        yield content


async def rows_of(channel: Channel, most: int | None = None) -> AsyncIterator[Any]:
    count = 0
    partial = b""
    async for content in content_of(channel, MAX_ROWS_BYTES):
        *lines, partial = (partial + content).split(b"\n")
        if len(partial) > MAX_ROW:
            raise BoxBroken("the guest sent an endless line")
        for line in lines:
            count += 1
            if most is not None and count > most:
                raise BoxBroken(f"the guest sent more than {most} rows")
            yield row(line)
        await asyncio.sleep(0)  # many rows may have come at once, and other tasks wait for their turn
    if partial:
        raise BoxBroken("the guest sent half a line")


def row(line: bytes) -> Any:
    # Names that are not UTF-8 come as lone surrogates, which msgspec refuses and the standard library decodes.
    try:
        return json.loads(line) if len(line) <= MAX_ROW else None
    except (ValueError, RecursionError) as error:
        raise BoxBroken(f"the guest sent a line that is no JSON: {error}") from error
