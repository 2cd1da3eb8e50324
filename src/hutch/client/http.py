"""HTTP/1.1 from the caller's side: one connection, one request at a time, bodies that flow with back-pressure."""

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

from hutch.errors import HutchError, Unavailable

HELD_BYTES = 4 << 20
"""How much of an answer waits here for its reader before the kernel, and so the server, is made to wait."""
SENT_BYTES = 1 << 20
PIECE = 1 << 20
LONGEST_HEAD = 256 << 10
LONGEST_LINE = 1 << 10
"""Of a chunk's size."""

Body = bytes | bytearray | memoryview | AsyncIterator[bytes]


class NotConnected(Unavailable):
    """There was no connection: the server knows nothing of the request."""


class ConnectionBroken(Unavailable):
    """The connection broke after the request had begun: the server may have done it, or not."""


class Response:
    """Status and headers; the body is read once, whole or in pieces, and then the connection is free again."""

    def __init__(self, connection: "Connection", status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection

    async def read_all(self) -> bytes:
        parts = [piece async for piece in self.pieces()]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they come. Whoever leaves early breaks the connection off, which the server notices."""
        connection = self._connection
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                async for piece in connection.read_chunked():
                    yield piece
            elif "content-length" in self.headers:
                async for piece in connection.read_sized(_length(self.headers["content-length"])):
                    yield piece
            elif self.status not in (204, 304):
                connection.reusable = False
                async for piece in connection.read_until_close():
                    yield piece
            if self.headers.get("connection", "").lower() == "close":
                connection.reusable = False
            connection.finished()
        finally:
            self.close()

    def close(self) -> None:
        """Break off what has not been read."""
        self._connection.cancel()


class Connection(asyncio.Protocol):
    """What arrives is kept in pieces as it came, so that large bodies are never copied on the way."""

    def __init__(self, done: Callable[["Connection"], None]) -> None:
        self._on_done = done
        """Told once for each request: its answer was read, or the connection is of no more use."""
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
        """Done when the connection is gone, for whatever reason."""

    # --- what asyncio tells ---------------------------------------------------------------------------------

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

    # --- one request ----------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """For another request: open, and nothing came that nobody asked for."""
        return self.reusable and not self._ended and not self._received

    def has_unread_data(self) -> bool:
        """Whether something came that the event loop has not told yet: on an idle connection only that it is closed.
        By poll: select ends at descriptor 1024."""
        transport = self._transport
        fd = -1 if transport is None else transport.get_extra_info("socket").fileno()
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    async def ask(self, head: bytes, body: Body | None) -> Response:
        """Send a request, and the status and headers of its answer. An answer may come before all was sent."""
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
            return await self._response()
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
        """Wait until there is room to send more; False: the answer is here already, so the rest is unwanted."""
        while self._writer is not None and not self._ended and not self._received:
            self._reader = self._writer
            await asyncio.shield(self._writer)
        if self._received or self._ended:
            self.reusable = False
            return False
        return True

    async def _response(self) -> Response:
        while True:
            head = await self._head()
            lines = head.decode("latin-1").split("\r\n")
            try:
                version, code, *_ = lines[0].split(" ")
                status = int(code)
            except ValueError:
                raise self._protocol_error("its answer has no status") from None
            if not version.startswith("HTTP/1."):
                raise self._protocol_error("it does not speak HTTP/1.1")
            if status >= 200:
                break
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers.setdefault(name.strip().lower(), value.strip())
        return Response(self, status, headers)

    async def _head(self) -> bytes:
        found = await self._next()
        while b"\r\n\r\n" not in found:
            if len(found) > LONGEST_HEAD:
                raise self._protocol_error("its headers do not end")
            found += await self._next()
        head, _, rest = found.partition(b"\r\n\r\n")
        self._put_back(rest)
        return head

    # --- its body -------------------------------------------------------------------------------------------

    async def read_sized(self, left: int) -> AsyncIterator[bytes]:
        while left:
            piece = await self._next()
            if len(piece) > left:
                self._put_back(piece[left:])
                piece = piece[:left]
            left -= len(piece)
            yield piece

    async def read_chunked(self) -> AsyncIterator[bytes]:
        while size := await self._size():
            async for piece in self.read_sized(size):
                yield piece
            if await self._line():
                raise self._protocol_error("a chunk is longer than it said")
        while await self._line():
            pass  # trailers

    async def read_until_close(self) -> AsyncIterator[bytes]:
        while self._received or not self._ended:
            try:
                yield await self._next()
            except ConnectionBroken:
                return

    async def _size(self) -> int:
        line = await self._line()
        try:
            return int(line.partition(b";")[0], 16)
        except ValueError:
            raise self._protocol_error("a chunk has no size") from None

    async def _line(self) -> bytes:
        found = await self._next()
        while b"\r\n" not in found:
            if len(found) > LONGEST_LINE:
                raise self._protocol_error("a line does not end")
            found += await self._next()
        line, _, rest = found.partition(b"\r\n")
        self._put_back(rest)
        return line

    async def _next(self) -> bytes:
        while not self._received:
            if self._ended:
                raise ConnectionBroken(
                    f"the connection broke: {self._close_reason}", remedy="is the server still there?"
                )
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        piece = self._received.popleft()
        self._received_bytes -= len(piece)
        if self._paused and self._received_bytes < HELD_BYTES // 4 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def _put_back(self, piece: bytes) -> None:
        if piece:
            self._received.appendleft(piece)
            self._received_bytes += len(piece)

    def _protocol_error(self, why: str) -> HutchError:
        return Unavailable(f"this is no Hutch server: {why}", retryable=False, remedy="check the address")

    # --- its end --------------------------------------------------------------------------------------------

    def finished(self) -> None:
        """The answer was read to its end."""
        if self._busy:
            self._busy = False
            if not self.usable:
                self.abort()
            self._on_done(self)

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        if self._busy:
            self._busy = False
            self.abort()
            self._on_done(self)

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Unavailable(f"this is no Hutch server: a body of {text[:40]!r} bytes", retryable=False)
    return int(text)


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
