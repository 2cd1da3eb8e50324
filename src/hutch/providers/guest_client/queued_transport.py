"""A link's transport where there is no socket: what is written waits in a queue until a call of the engine takes it."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from hutch.providers.guest_client.link import Link

HIGH, LOW = 4 << 20, 1 << 20
"""Bytes in the queue at which the link is asked to pause, and at which it may go on."""
_KEPT_STDERR = 2000


class QueuedTransport(asyncio.Transport):
    """Queues what the link writes, and feeds the link with what arrives. A subclass says how bytes travel.

    It ends once: by `close` if the link wants no more, by `ended` if the other end has gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.link = Link()
        self.stderr = ""
        """The last words of the process at the other end."""
        self._waiting = bytearray()
        self._more = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._closing = False
        self._paused = False
        self.link.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._waiting += data
        self._more.set()
        if len(self._waiting) > HIGH and not self._paused:
            self._paused = True
            self.link.pause_writing()

    def close(self) -> None:
        if not self._closing:
            self._stop()
            self._end_process()

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def feed_stderr(self, text: str) -> None:
        self.stderr = (self.stderr + text)[-_KEPT_STDERR:]

    def ended(self, error: Exception | None = None) -> None:
        """Notify the link that the other end has gone."""
        if not self._closing:
            self._stop()
            self.link.connection_lost(error)

    @abstractmethod
    def _end_process(self) -> None:
        """End the process at the other end, for which nobody waits."""

    def _start_sending(self, send: Callable[[bytes], Awaitable[None]], piece: int) -> None:
        """Send what is written from now on, and before, at most `piece` bytes in one call."""
        self._sending = asyncio.create_task(self._send_queue(send, piece))

    def _stop(self) -> None:
        self._closing = True
        if self._sending is not None and self._sending is not asyncio.current_task():
            self._sending.cancel()

    async def _send_queue(self, send: Callable[[bytes], Awaitable[None]], piece: int) -> None:
        try:
            while True:
                await self._send_next(send, piece)
        except Exception as error:  # The task's boundary: however sending broke, the link's users get the error.
            self.ended(error)

    async def _send_next(self, send: Callable[[bytes], Awaitable[None]], piece: int) -> None:
        await self._more.wait()
        data = bytes(self._waiting[:piece])
        del self._waiting[:piece]
        if not self._waiting:
            self._more.clear()
        await send(data)
        if self._paused and len(self._waiting) < LOW:
            self._paused = False
            self.link.resume_writing()

    def _feed(self, piece: memoryview) -> None:
        """Give the link what has arrived, as far as it still takes anything."""
        while piece and self.link.usable:
            room = self.link.get_buffer(len(piece))
            size = min(len(room), len(piece))
            room[:size] = piece[:size]
            self.link.buffer_updated(size)
            piece = piece[size:]
