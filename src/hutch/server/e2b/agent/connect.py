"""The Connect protocol with JSON: unary calls, server streams and the one client stream of E2B's agent.

A stream is made of envelopes: a byte of flags, the length in four bytes, JSON. The last one has the flag 2 and says how
the stream ended. A stream without it was cut.
"""

import asyncio
import math
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from hutch.errors import HutchError, Invalid
from hutch.model.record import encode_json
from hutch.server.e2b.errors import Answer, NotRunning, connect_answer, connect_code, text_of
from hutch.server.e2b.requests import Request, parse
from hutch.server.e2b.streams import Cut
from hutch.server.request import Send

T = TypeVar("T")
Message = dict[str, Any]
"""A message to send. Received messages are structs."""


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message without fields."""


class Unary(NamedTuple):
    """A call that takes one message and answers with one."""

    takes: type[Any]
    handler: Callable[[Request, Any], Awaitable[Message]]


class ServerStream(NamedTuple):
    """A call that takes one message and answers with many."""

    takes: type[Any]
    handler: Callable[[Request, Any], AsyncGenerator[Message, None]]
    keepalive: Message
    ends_itself: bool = False
    """Whether the handler ends the stream at the call's deadline."""


UNARY = "application/json"
STREAM = "application/connect+json"
END = 2
_STREAM_HEADERS = [(b"content-type", STREAM.encode()), (b"cache-control", b"no-store")]
_HEAD = struct.Struct(">BI")
MAX_ENVELOPE = 16 << 20
DEFAULT_PING_SECONDS = 90.0
LONGEST_PING_SECONDS = 3600.0
ENDED = "the sandbox was killed or reached its end of life, or was paused"
"""How a stream ends with its sandbox. The SDKs then ask for its health, and their tests know the first words."""
_LAST_WORDS_SECONDS = 1.0
_QUEUED = 8
"""Messages that wait for a slow reader before the box is slowed down."""


class ConnectError(HutchError):
    """An error with a code of the Connect protocol that no other error of ours stands for."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)


def envelope(message: object, flags: int = 0) -> bytes:
    data = encode_json(message)
    return _HEAD.pack(flags, len(data)) + data


class ClientStream(NamedTuple):
    """A call that takes many messages and answers with one."""

    takes: type[Any]
    handler: Callable[[Request, AsyncGenerator[Any, None]], Awaitable[Message]]


async def serve_client_stream(request: Request, method: ClientStream) -> Answer:
    """Read messages as they arrive, and answer with one and the end of the stream."""
    limit = request.call.service.config.server.max_upload_mb << 20
    try:
        async with aclosing(read_messages(request, limit, method.takes)) as messages:
            body = envelope(await method.handler(request, messages)) + envelope({}, END)
    except HutchError as error:
        body = envelope({"error": {"code": _code(error), "message": text_of(error)}}, END)
    return Answer(200, body, (("content-type", STREAM),))


async def serve_unary(request: Request, method: Unary) -> Answer:
    """Serve a unary call: one message, one answer."""
    try:
        result = await method.handler(request, await request.body(method.takes))
    except HutchError as error:
        return connect_answer(error)
    return Answer(200, encode_json(result), (("content-type", UNARY),))


async def serve_stream(request: Request, send: Send, method: ServerStream) -> None:
    """Serve a server stream: one message, many answers.

    The request is read to its end before the head of the answer is sent: clients that get an answer early may drop the
    rest of what they send.
    """
    message = await _read_only_message(request, method.takes)
    seconds = None if method.ends_itself else deadline(request)
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
    sending = _send_stream(request, send, method.handler(request, message), method.keepalive, seconds)
    try:
        await request.call.until_disconnect(request.sandboxes.streams.run(request.sandbox, sending))
    except Cut:
        # A client that reads nothing is left behind with an open stream, which its own clock ends.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await _send_end(send, {"error": {"code": "unavailable", "message": ENDED}})


async def _read_only_message(request: Request, kind: type[T]) -> T:
    message: T | None = None
    async with aclosing(read_messages(request, MAX_ENVELOPE + _HEAD.size, kind)) as messages:
        async for each in messages:
            if message is not None:
                raise Invalid("this call takes one message, not several")
            message = each
    if message is None:
        raise Invalid("this call takes one message, not none")
    return message


async def read_messages(request: Request, limit: int, kind: type[T]) -> AsyncGenerator[T, None]:
    """Yield the messages of a stream as they arrive. What is held of them counts as the caller's."""
    buffer = bytearray()
    async for piece in request.call.pieces(limit):
        buffer += piece
        request.account.take(len(piece))
        while len(buffer) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(buffer)
            if flags & 1:
                raise Invalid("compressed messages are not supported")
            if size > MAX_ENVELOPE:
                raise Invalid(f"a message of {size} bytes is over the {MAX_ENVELOPE} that one may have")
            if len(buffer) < _HEAD.size + size:
                break
            data = bytes(buffer[_HEAD.size : _HEAD.size + size])
            del buffer[: _HEAD.size + size]
            if not flags & END:
                yield parse(data, kind)
            request.account.give(_HEAD.size + size)
    if buffer:
        raise Invalid("the request ends in the middle of a message")


async def _send_stream(
    request: Request, send: Send, messages: AsyncGenerator[Message, None], keepalive: Message, seconds: float | None
) -> None:
    """Send messages as they come, and a keepalive after each silence that the client named, for so many seconds."""
    queue: asyncio.Queue[Message | BaseException | None] = asyncio.Queue(_QUEUED)
    pump = asyncio.ensure_future(_pump(messages, queue))
    silence = _ping_seconds(request)
    ends = math.inf if seconds is None else time.monotonic() + seconds
    try:
        while True:
            item: Message | BaseException | None
            try:
                async with asyncio.timeout(min(silence, ends - time.monotonic())):
                    item = await request.call.service.unless_draining(queue.get())
            except TimeoutError:
                over = ConnectError("deadline_exceeded", "the call reached its deadline")
                item = keepalive if time.monotonic() < ends else over
            if isinstance(item, HutchError):
                if isinstance(item, NotRunning):
                    raise Cut
                error = {"code": _code(item), "message": text_of(item)}
                await _send_end(send, {"error": error})
                return
            if isinstance(item, BaseException):
                raise item
            if item is None:
                await _send_end(send, {})
                return
            await send({"type": "http.response.body", "body": envelope(item), "more_body": True})
    finally:
        pump.cancel()
        await asyncio.wait({pump})  # It lets go of the box, which nobody may pause or end before.


async def _pump(
    messages: AsyncGenerator[Message, None], queue: "asyncio.Queue[Message | BaseException | None]"
) -> None:
    try:
        async with aclosing(messages):
            async for message in messages:
                await queue.put(message)
        await queue.put(None)
    except Exception as error:  # The boundary of the task: the stream reports it.
        await queue.put(error)


async def _send_end(send: Send, end: Message) -> None:
    await send({"type": "http.response.body", "body": envelope(end, END), "more_body": False})


def _code(error: HutchError) -> str:
    return error.code if isinstance(error, ConnectError) else connect_code(error)


def deadline(request: Request) -> float | None:
    """Return the call's deadline in seconds from its header; None if it has none."""
    text = request.call.header("connect-timeout-ms")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise Invalid(f"Connect-Timeout-Ms {text[:20]!r} is no number of milliseconds")
    return max(0.001, int(text) / 1000)


def _ping_seconds(request: Request) -> float:
    text = request.call.header("keepalive-ping-interval")
    return (
        min(max(1.0, float(text)), LONGEST_PING_SECONDS) if text.isascii() and text.isdigit() else DEFAULT_PING_SECONDS
    )
