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


class Unreached(Unavailable):
    """There was no connection: the server knows nothing of the request."""


class Broken(Unavailable):
    """The connection broke after the request had begun: the server may have done it, or not."""


class Response:
    """Status and headers; the body is read once, whole or in pieces, and then the connection is free again."""

    def __init__(self, connection: "Connection", status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection

    async def whole(self) -> bytes:
        parts = [piece async for piece in self.pieces()]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they come. Whoever leaves early breaks the connection off, which the server notices."""
        connection = self._connection
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                async for piece in connection.chunks():
                    yield piece
            elif "content-length" in self.headers:
                async for piece in connection.counted(_length(self.headers["content-length"])):
                    yield piece
            elif self.status not in (204, 304):
                connection.reusable = False
                async for piece in connection.rest():
                    yield piece
            if self.headers.get("connection", "").lower() == "close":
                connection.reusable = False
            connection.finished()
        finally:
            self.close()

    def close(self) -> None:
        """Break off what has not been read."""
        self._connection.give_up()


class Connection(asyncio.Protocol):
    """What arrives is kept in pieces as it came, so that large bodies are never copied on the way."""

    def __init__(self, done: Callable[["Connection"], None]) -> None:
        self._done = done
        """Told once for each request: its answer was read, or the connection is of no more use."""
        self._transport: asyncio.Transport | None = None
        self._arrived: deque[bytes] = deque()
        self._held = 0
        self._paused = False
        self._ended = False
        self._why = "the server closed it"
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
        self._arrived.append(data)
        self._held += len(data)
        if self._held > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self.reusable = False
        if error is not None:
            self._why = str(error) or type(error).__name__
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
        return self.reusable and not self._ended and not self._arrived

    def has_news(self) -> bool:
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
            raise Unreached("the connection is closed")
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
            self.give_up()
            raise

    async def _send(self, head: bytes, body: memoryview) -> None:
        assert self._transport is not None
        if len(body) < PIECE:
            self._transport.write(head + bytes(body))
            return
        self._transport.write(head)
        for start in range(0, len(body), PIECE):
            if not await self._room():
                return
            self._transport.write(body[start : start + PIECE])

    async def _send_chunks(self, head: bytes, pieces: AsyncIterator[bytes]) -> None:
        assert self._transport is not None
        self._transport.write(head)
        async for piece in pieces:
            if piece:
                if not await self._room():
                    return
                self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
        if await self._room():
            self._transport.write(b"0\r\n\r\n")

    async def _room(self) -> bool:
        """Wait until there is room to send more; False: the answer is here already, so the rest is unwanted."""
        while self._writer is not None and not self._ended and not self._arrived:
            self._reader = self._writer
            await asyncio.shield(self._writer)
        if self._arrived or self._ended:
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
                raise self._nonsense("its answer has no status") from None
            if not version.startswith("HTTP/1."):
                raise self._nonsense("it does not speak HTTP/1.1")
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
                raise self._nonsense("its headers do not end")
            found += await self._next()
        head, _, rest = found.partition(b"\r\n\r\n")
        self._put_back(rest)
        return head

    # --- its body -------------------------------------------------------------------------------------------

    async def counted(self, left: int) -> AsyncIterator[bytes]:
        while left:
            piece = await self._next()
            if len(piece) > left:
                self._put_back(piece[left:])
                piece = piece[:left]
            left -= len(piece)
            yield piece

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := await self._size():
            async for piece in self.counted(size):
                yield piece
            if await self._line():
                raise self._nonsense("a chunk is longer than it said")
        while await self._line():
            pass  # trailers

    async def rest(self) -> AsyncIterator[bytes]:
        while self._arrived or not self._ended:
            try:
                yield await self._next()
            except Broken:
                return

    async def _size(self) -> int:
        line = await self._line()
        try:
            return int(line.partition(b";")[0], 16)
        except ValueError:
            raise self._nonsense("a chunk has no size") from None

    async def _line(self) -> bytes:
        found = await self._next()
        while b"\r\n" not in found:
            if len(found) > LONGEST_LINE:
                raise self._nonsense("a line does not end")
            found += await self._next()
        line, _, rest = found.partition(b"\r\n")
        self._put_back(rest)
        return line

    async def _next(self) -> bytes:
        while not self._arrived:
            if self._ended:
                raise Broken(f"the connection broke: {self._why}", remedy="is the server still there?")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        piece = self._arrived.popleft()
        self._held -= len(piece)
        if self._paused and self._held < HELD_BYTES // 4 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def _put_back(self, piece: bytes) -> None:
        if piece:
            self._arrived.appendleft(piece)
            self._held += len(piece)

    def _nonsense(self, why: str) -> HutchError:
        return Unavailable(f"this is no Hutch server: {why}", retryable=False, remedy="check the address")

    # --- its end --------------------------------------------------------------------------------------------

    def finished(self) -> None:
        """The answer was read to its end."""
        if self._busy:
            self._busy = False
            if not self.usable:
                self.abort()
            self._done(self)

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        if self._busy:
            self._busy = False
            self.abort()
            self._done(self)

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
