"""A channel, host side: one request, its answer, and the content that flows both ways meanwhile, within credit."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from hutch.errors import HutchError, QuotaExceeded, Timeout
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
"""Content is sent in pieces of at most so many bytes."""

Fields = dict[str, Any]


class Channel:
    """One request: its answer, and the content that flows both ways meanwhile."""

    __slots__ = (
        "_allowance", "_allowed", "_answer", "_consumed", "_expected", "_held", "_inbox", "_link", "_reader",
        "_sendable", "_timer", "_widening", "_writer", "abandoned", "collected", "number",
    )  # fmt: skip

    def __init__(
        self, link: "Link", number: int, answer: asyncio.Future[Fields], collect: bool,
        allowance: Allowance | None = None,
    ) -> None:  # fmt: skip
        self._link = link
        self._answer = answer
        self._allowed = WINDOW
        self._consumed = 0
        self._sendable = WINDOW
        self._inbox: deque[tuple[int, Any, int]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._allowance = allowance
        self._held = 0
        """Bytes that are counted against the allowance."""
        self._expected = 0
        """Bytes beyond the window for which room is still to be asked."""
        self._widening: asyncio.Task[None] | None = None
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
        self._drop()
        self.stop_timer()
        self._link.send(frame(CANCEL, self.number))

    def _drop(self) -> None:
        """Let go of what came and was not taken."""
        self._inbox.clear()
        if self.collected is not None:
            self.collected = (bytearray(), bytearray())
        if self._allowance is not None and self._held:
            self._allowance.give(self._held)
            self._held = 0

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
        if self._held:
            self._give(size)
        self._consume(size)
        return kind, content

    def _consume(self, size: int) -> None:
        """Grant again what was taken, in few frames."""
        self._consumed += size + FRAME_COST
        if self._consumed >= WINDOW // 4 and self.number in self._link.channels and not self.abandoned:
            self.grant(self._consumed)
            self._consumed = 0

    def expect(self, keep: int) -> None:
        """Let a result of both streams come whole that is larger than the window. Where bytes are counted, it waits in
        the box until there is room for it."""
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
            self._allowance = None  # what still comes was counted now
            self.grant(size)

    def output(self, index: int) -> bytes:
        """What was collected: 0 stdout, 1 stderr. It is handed over: two copies of a large result are one too many."""
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
        """Something came for this channel; more than was granted is a violation."""
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
        """Whether these bytes may be held. Those of a small result are not counted at all."""
        if self.collected is not None:
            if self._allowed < WINDOW // 2 and self._expected and self._widening is None:
                self._widening = self._link.loop.create_task(self._widen(allowance, self._expected))
            if not self._held and WINDOW - self._allowed <= FREE:
                return True
        elif not self._inbox:
            return True  # somebody waits for it, or will in a moment
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
        """Fail the channel for want of room. The guest keeps the content if it can, and the caller gets the error."""
        self.abandon()
        self.fail(error)

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
            self._answer.exception()  # a streaming caller may never look at it
        _wake(self._reader)
        _wake(self._writer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
