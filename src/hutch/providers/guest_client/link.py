"""A link: channels over one connection to a guest that nobody trusts.

Everything the guest sends is checked before it is kept: frame kinds, lengths, channel numbers, credit, the shape and
size of JSON. A violation ends the connection and fails every waiter with BoxBroken; it never costs more memory than the
windows of the open channels. A guest that is silent is the caller's timeout.
"""

import asyncio
import errno
import json
import os
import socket
from typing import Any, Self, cast

from hutch.errors import BoxBroken, Detail, HutchError, Unavailable
from hutch.guest.protocol import (
    CREDIT,
    CREDIT_SIZE,
    DATA,
    ERR,
    ERROR,
    EVENT,
    HEADER,
    HEADER_SIZE,
    HELLO,
    MAX_CONTROL,
    MAX_PAYLOAD,
    OUT,
    REPLY,
    REQUEST,
    SPEAKS,
    TO_HOST,
    WINDOW,
    ProtocolError,
    check_header,
    frame,
)
from hutch.providers.guest_client.allowance import current
from hutch.providers.guest_client.channel import PIECE, Fields
from hutch.providers.guest_client.channel import Channel as Channel

RECEIVE = 1 << 18
IDLE = 1 << 12
"""The size of an idle link's receive buffer: most links are idle, and there may be thousands."""
MAX_ITEMS = 1 << 20
"""The most values in one JSON payload, which bounds the memory that 16 MB of `[[],[],` would become."""
MAX_MESSAGE = 4096
NOT_THE_GUESTS = frozenset(
    {"gone", "unavailable", "box_broken", "engine", "lease_lost", "busy", "held_elsewhere", "timeout"}
)
REQUEST_TIMEOUT = 30.0

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Link(asyncio.BufferedProtocol):
    """One connection. `request` asks a question and returns its answer; `open` is for content that flows."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.channels: dict[int, Channel] = {}
        self.hello: Fields = {}
        self.congested = False
        self.lost: HutchError | None = None
        self._number = 0
        self._transport: asyncio.Transport | None = None
        self._hello_received: asyncio.Future[None] = self.loop.create_future()
        self._room: asyncio.Future[None] | None = None
        self._buffer = bytearray(IDLE)
        self._view = memoryview(self._buffer)
        self._filled = 0

    @classmethod
    async def connect(cls, path: str | os.PathLike[str], timeout: float = 10.0) -> Self:
        """Connect to a guest. Raises Unavailable if nobody listens, BoxBroken if its version is not one we speak."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            connect_unix(sock, os.fspath(path))
        except OSError as error:
            sock.close()
            details: dict[str, Detail] = {"errno": error.errno}
            raise Unavailable(f"no guest answers at {path}: {error.strerror}", op="connect", details=details) from error
        return await cls.over(sock, timeout)

    @classmethod
    async def over(cls, sock: socket.socket, timeout: float = 10.0) -> Self:
        """Make a link over a connected socket, which it owns from now on."""
        link = await cls.begin(sock)
        await link.wait_for_hello(timeout)
        return link

    @classmethod
    async def begin(cls, sock: socket.socket) -> Self:
        """Make a link to a guest that may not be there yet; the caller still has to `wait_for_hello`."""
        # The kernel doubles this size, up to its limit, so that a whole piece of content goes in one call.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        _, link = await asyncio.get_running_loop().create_connection(cls, sock=sock)
        return link

    async def wait_for_hello(self, timeout: float = 10.0) -> None:
        """Wait for the guest's HELLO. The link is closed if none comes in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._hello_received
        except TimeoutError as error:
            self.close()
            raise Unavailable(f"the guest sent no hello within {timeout:g} s", op="connect") from error
        except BaseException:
            self.close()
            raise

    @property
    def usable(self) -> bool:
        return self.lost is None

    # --- asking ----------------------------------------------------------------------------------------------

    async def request(self, op: str, *, timeout: float | None = REQUEST_TIMEOUT, **fields: Any) -> Fields:
        """Ask one question and return its answer. Cancelling the call cancels the operation."""
        return await self.open(op, timeout=timeout, **fields).answer()

    def open(
        self, op: str, *, timeout: float | None = None, collect: bool = False, window: int = WINDOW, **fields: Any
    ) -> Channel:
        """Open a channel. `collect` keeps OUT and ERR for `Channel.collected` instead of the iteration.

        A smaller `window` bounds the bytes in flight of an operation that knows this field.
        """
        if self.lost is not None:
            raise self.lost
        fields["op"] = op
        if window != WINDOW:
            fields["window"] = window
        payload = _encode(fields).encode()
        if len(payload) > MAX_CONTROL:
            raise HutchError(f"a request of {len(payload)} bytes is over the limit", code="too_large", op=op)
        self._number = self._number % 0xFFFFFFFF + 1
        channel = Channel(self, self._number, self.loop.create_future(), collect, current(), window)
        self.channels[self._number] = channel
        if timeout is not None:
            channel.expire(timeout, f"the guest did not answer {op} within {timeout:g} s")
        self.send(frame(REQUEST, self._number, payload))
        return channel

    def send(self, data: bytes) -> None:
        if self.lost is None and self._transport is not None:
            self._transport.write(data)

    async def uncongested(self) -> None:
        if self._room is None:
            self._room = self.loop.create_future()
        await asyncio.shield(self._room)

    def close(self) -> None:
        self._lose(Unavailable("the connection to the guest was closed"))

    # --- asyncio's side --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops, such as uvloop, have transports that are not a subclass.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, _hint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, size: int) -> None:
        self._filled += size
        try:
            self._take_frames()
        except (ProtocolError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            self._lose(BoxBroken(f"the guest broke its protocol: {error}", remedy="destroy the box and make a new one"))

    def eof_received(self) -> None:
        self._lose(Unavailable("the guest closed the connection", details={"errno": errno.ECONNRESET}))

    def connection_lost(self, _error: Exception | None) -> None:
        self._lose(Unavailable("the connection to the guest was lost", details={"errno": errno.ECONNRESET}))

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _lose(self, error: HutchError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._transport is not None:
            self._transport.abort()
        if not self._hello_received.done():
            self._hello_received.set_exception(error)
            self._hello_received.exception()
        channels = tuple(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.fail(error)
        self.resume_writing()

    # --- what the guest sent ---------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        start, end = 0, self._filled
        view = self._view
        full = end == len(view)
        while end - start >= HEADER_SIZE:
            length, kind, number = HEADER.unpack_from(view, start)
            check_header(length, kind, TO_HOST)
            stop = start + HEADER_SIZE + length
            if stop > end:
                self._make_room(HEADER_SIZE + length)
                break
            self._take(kind, number, bytes(view[start + HEADER_SIZE : stop]))
            if self.lost is not None:
                return
            start = stop
        if start == end:
            self._filled = 0
            self._shrink()
        elif start:
            rest = bytes(self._view[start:end])
            self._view[: len(rest)] = rest
            self._filled = len(rest)
        if full and self.channels:
            self._make_room(RECEIVE)  # more may be waiting

    def _make_room(self, size: int) -> None:
        """Make the buffer hold the whole next frame, whose length was checked before. What was received stays."""
        if size <= len(self._buffer):
            return
        buffer = bytearray(size)
        buffer[: self._filled] = self._view[: self._filled]
        self._buffer, self._view = buffer, memoryview(buffer)

    def _shrink(self) -> None:
        limit, wanted = (MAX_PAYLOAD * 2, RECEIVE) if self.channels else (IDLE, IDLE)
        if len(self._buffer) > limit:
            self._buffer = bytearray(wanted)
            self._view = memoryview(self._buffer)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == HELLO:
            self._take_hello(payload)
            return
        channel = self.channels.get(number)
        if channel is None or not self.hello:
            raise ProtocolError(f"a frame of kind {kind} on channel {number}, which is not open")
        if kind in (OUT, ERR, DATA):
            channel.take(kind, payload, len(payload))
        elif kind == EVENT:
            channel.take(kind, None if channel.abandoned else _decode(payload), len(payload))
        elif kind == CREDIT:
            if len(payload) != CREDIT_SIZE.size:
                raise ProtocolError("credit of a wrong size")
            channel.add_credit(CREDIT_SIZE.unpack(payload)[0])
        elif kind == REPLY:
            answer = {} if channel.abandoned else _decode(payload)
            del self.channels[number]
            channel.succeed(answer)
        elif kind == ERROR:
            error = _error(_decode(payload))
            del self.channels[number]
            channel.fail(error)
        else:
            raise ProtocolError(f"frame kind {kind} means nothing from a guest")

    def _take_hello(self, payload: bytes) -> None:
        if self._hello_received.done():
            raise ProtocolError("a second hello")
        hello = _decode(payload)
        if hello.get("version") not in SPEAKS:
            self._lose(BoxBroken(f"the guest speaks version {hello.get('version')!r} of the protocol, not {SPEAKS}"))
            return
        self.hello = hello
        self._hello_received.set_result(None)


def _decode(payload: bytes) -> Fields:
    if payload.count(b",") + payload.count(b"[") + payload.count(b"{") > MAX_ITEMS:
        raise ProtocolError("an answer of too many values")
    fields = json.loads(payload)
    if not isinstance(fields, dict):
        raise ProtocolError("an answer that is no JSON object")
    return fields


def _error(wire: Fields) -> HutchError:
    """Return the guest's ERROR, which may speak of files and jobs but never of what happens to the box."""
    wire["message"] = str(wire.get("message"))[:MAX_MESSAGE]
    if wire.get("code") in NOT_THE_GUESTS:
        wire["code"] = "internal"
    return HutchError.of(wire)


def connect_unix(sock: socket.socket, path: str) -> None:
    """Connect to `path`. One over the 107 bytes of sun_path, unix(7), is reached by its directory's descriptor."""
    if len(os.fsencode(path)) < 108:
        sock.connect(path)
        return
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)
