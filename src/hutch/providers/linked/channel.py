"""A channel, host side: one request, its answer, and the content that flows both ways meanwhile, within credit."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from hutch.errors import HutchError, Timeout
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

if TYPE_CHECKING:
    from hutch.providers.linked.link import Link

PIECE = 1 << 18
"""Content is sent in pieces of at most so many bytes."""

Fields = dict[str, Any]


class Channel:
    """One request: its answer, and the content that flows both ways meanwhile."""

    __slots__ = (
        "_allowed", "_answer", "_consumed", "_inbox", "_link", "_reader", "_sendable", "_timer", "_writer", "abandoned",
        "collected", "number",
    )  # fmt: skip

    def __init__(self, link: "Link", number: int, answer: asyncio.Future[Fields], collect: bool) -> None:
        self._link = link
        self._answer = answer
        self._allowed = WINDOW
        self._consumed = 0
        self._sendable = WINDOW
        self._inbox: deque[tuple[int, Any, int]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.number = number
        self.abandoned = False
        self.collected = (bytearray(), bytearray()) if collect else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abandon()

    async def answer(self) -> Fields:
        """The guest's REPLY, or its ERROR raised."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nobody waits any more: tell the guest, and drop what still comes."""
        if self.abandoned or self.number not in self._link.channels:
            return
        self.abandoned = True
        self._inbox.clear()
        self.stop_timer()
        self._link.send(frame(CANCEL, self.number))

    def expire(self, seconds: float, message: str) -> None:
        """Give up on an answer that does not come."""
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
        """(kind, content) as it comes: bytes of DATA, OUT, ERR; the object of an EVENT. Ends with the answer."""
        while not self._inbox:
            if self._answer.done():
                self._answer.result()
                raise StopAsyncIteration
            self._reader = self._link.loop.create_future()
            await self._reader
        kind, content, size = self._inbox.popleft()
        self._consume(size)
        return kind, content

    def _consume(self, size: int) -> None:
        """Grant again what was taken, in few frames."""
        self._consumed += size + FRAME_COST
        if self._consumed >= WINDOW // 4 and self.number in self._link.channels and not self.abandoned:
            self.grant(self._consumed)
            self._consumed = 0

    def expect(self, keep: int) -> None:
        """Let a result of both streams come whole that is larger than the window."""
        if 2 * keep > WINDOW // 2:
            self.grant(2 * keep)

    def output(self, index: int) -> bytes:
        """What was collected: 0 stdout, 1 stderr."""
        return bytes(self.collected[index]) if self.collected is not None else b""

    def grant(self, size: int) -> None:
        self._allowed += size
        self._link.send(frame(CREDIT, self.number, CREDIT_SIZE.pack(size)))

    def take(self, kind: int, content: Any, size: int) -> None:
        """Something came for this channel; more than was granted is a violation."""
        self._allowed -= size + FRAME_COST
        if self._allowed < 0:
            raise ProtocolError(f"channel {self.number} sent more than it was granted")
        if self.abandoned:
            return
        if self.collected is None:
            self._inbox.append((kind, content, size))
            _wake(self._reader)
        elif kind == OUT:
            self.collected[0].extend(content)
        elif kind == ERR:
            self.collected[1].extend(content)

    # --- content to the guest --------------------------------------------------------------------------------

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """As DATA, within the guest's credit. Returns early when the guest has already answered."""
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
        """No more DATA."""
        if not self._answer.done():
            self._link.send(frame(END, self.number))

    async def _wait_for_room(self) -> None:
        if self._sendable > 0 and self._link.congested:
            await self._link.uncongested()
            return
        self._writer = self._link.loop.create_future()
        await self._writer

    def add_credit(self, size: int) -> None:
        """A guest gives back what it took, never more: credit frames cost it nothing, and must not be endless."""
        if size == 0 or self._sendable + size > WINDOW:
            raise ProtocolError(f"channel {self.number} was granted more than it had sent")
        self._sendable += size
        _wake(self._writer)

    # --- the end ---------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self._answer.done()

    def succeed(self, fields: Fields) -> None:
        self.stop_timer()
        if not self._answer.done():
            self._answer.set_result(fields)
        _wake(self._reader)
        _wake(self._writer)

    def fail(self, error: HutchError) -> None:
        self.stop_timer()
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # a streaming caller may never look at it
        _wake(self._reader)
        _wake(self._writer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
