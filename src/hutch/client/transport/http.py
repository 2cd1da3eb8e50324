"""One connection to a server: one request at a time, with back-pressure in both directions. `hutch.http1` parses."""

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import cast

from hutch import http1
from hutch.errors import HutchError, Unavailable

HELD_BYTES = 4 << 20
"""Most bytes of an answer that wait here for their reader. Then the kernel, and so the server, has to wait."""
SENT_BYTES = 1 << 20
PIECE = 1 << 20

Body = bytes | bytearray | memoryview | AsyncIterator[bytes]


class NotConnected(Unavailable):
    """There was no connection, so the server has not seen the request."""


class ConnectionBroken(Unavailable):
    """The connection broke after the request had begun, so the server may or may not have handled it."""


class Response:
    """Status and headers of an answer. The body is read once, and then the connection is free again."""

    def __init__(self, connection: "Connection", head: http1.Head) -> None:
        self.status = head.status
        self.headers = head.headers
        self._head = head
        self._connection = connection

    async def read_all(self) -> bytes:
        parts = [piece async for piece in self.pieces()]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Leaving early aborts the connection, which the server notices."""
        connection = self._connection
        try:
            if self._head.ends_by_close or self.headers.get("connection", "").lower() == "close":
                connection.reusable = False
            async for piece in http1.read_body(connection, self._head):
                yield piece
            connection.finished()
        except (http1.ProtocolError, http1.Truncated) as error:
            raise connection.failure(error) from error
        finally:
            self.close()

    def close(self) -> None:
        """Abort what has not been read."""
        self._connection.cancel()


class Connection(asyncio.Protocol):
    """A connection. Received data is kept in the pieces in which it arrived, so that large bodies are never copied."""

    def __init__(self, done: Callable[["Connection"], None]) -> None:
        self._on_done = done
        """Called once for each request, when its answer was read or the connection became useless."""
        self._transport: asyncio.Transport | None = None
        self._received: deque[bytes] = deque()
        self._received_bytes = 0
        self._paused = False
        self._ended = False
        self._close_reason = "the server closed it"
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._busy = False
        self.reusable = True
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is gone for any reason."""

    # --- callbacks of asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=SENT_BYTES)

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._received_bytes += len(data)
        if self._received_bytes > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self.reusable = False
        if error is not None:
            self._close_reason = str(error) or type(error).__name__
        for waiting in (self._reader, self._writer, self.closed):
            _wake(waiting)

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._writer)
        self._writer = None

    # --- one request -------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: the connection is open, and no unexpected data has arrived."""
        return self.reusable and not self._ended and not self._received

    def has_unread_data(self) -> bool:
        """Return whether the socket has data that the event loop has not read yet.

        On an idle connection that means that it was closed. It uses poll(2), since select(2) ends at descriptor 1024.
        """
        transport = self._transport
        fd = -1 if transport is None else transport.get_extra_info("socket").fileno()
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    async def ask(self, head: bytes, body: Body | None) -> Response:
        """Send a request and return its answer, which may come before everything was sent."""
        if not self.usable or self._transport is None:
            raise NotConnected("the connection is closed")
        self._busy = True
        try:
            if body is None:
                self._transport.write(head)
            elif isinstance(body, bytes | bytearray | memoryview):
                await self._send(head, memoryview(body))
            else:
                await self._send_chunks(head, body)
            return Response(self, await http1.read_head(self))
        except (http1.ProtocolError, http1.Truncated) as error:
            self.cancel()
            raise self.failure(error) from error
        except BaseException:
            self.cancel()
            raise

    async def _send(self, head: bytes, body: memoryview) -> None:
        assert self._transport is not None
        if len(body) < PIECE:
            self._transport.write(head + bytes(body))
            return
        self._transport.write(head)
        for start in range(0, len(body), PIECE):
            if not await self._wait_to_send():
                return
            self._transport.write(body[start : start + PIECE])

    async def _send_chunks(self, head: bytes, pieces: AsyncIterator[bytes]) -> None:
        assert self._transport is not None
        self._transport.write(head)
        async for piece in pieces:
            if piece:
                if not await self._wait_to_send():
                    return
                self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
        if await self._wait_to_send():
            self._transport.write(b"0\r\n\r\n")

    async def _wait_to_send(self) -> bool:
        """Wait until more can be sent. Return False if the answer is already here, so that the rest is unwanted."""
        while self._writer is not None and not self._ended and not self._received:
            self._reader = self._writer
            await asyncio.shield(self._writer)
        if self._received or self._ended:
            self.reusable = False
            return False
        return True

    # --- the answer --------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Return the next received bytes, or none if the connection has ended."""
        while not self._received:
            if self._ended:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        piece = self._received.popleft()
        self._received_bytes -= len(piece)
        if self._paused and self._received_bytes < HELD_BYTES // 4 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def unread(self, data: bytes) -> None:
        """Put bytes back that belong to what follows."""
        if data:
            self._received.appendleft(data)
            self._received_bytes += len(data)

    def failure(self, error: http1.ProtocolError | http1.Truncated) -> HutchError:
        """Return the error for an answer that ended early or is no HTTP."""
        if isinstance(error, http1.Truncated):
            return ConnectionBroken(f"the connection broke: {self._close_reason}", remedy="is the server still there?")
        return Unavailable(f"this is no Hutch server: {error}", retryable=False, remedy="check the address")

    # --- the end of a request ----------------------------------------------------------------------------

    def finished(self) -> None:
        """Free the connection after the answer was read to its end."""
        if self._busy:
            self._busy = False
            if not self.usable:
                self.abort()
            self._on_done(self)

    def cancel(self) -> None:
        """Abort the connection, because nobody waits for the answer any more."""
        if self._busy:
            self._busy = False
            self.abort()
            self._on_done(self)

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
