"""The one WebSocket proxy into a box: both ends have a connection of their own, and messages pass between them.

Messages are bounded and written again, so neither end can send the other anything but well-formed frames.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from hutch.errors import HutchError
from hutch.server.http.server import MAX_FRAME_BYTES
from hutch.server.previews.headers import Visit
from hutch.server.previews.proxy import NotProxied, Stream
from hutch.server.request import Receive, Scope, Send

HANDSHAKE_SECONDS = 60.0
MAX_REFUSAL_BYTES = 1 << 20
"""Most bytes of an answer that refuses a WebSocket; its program should say why in fewer."""
_NORMAL, _NO_STATUS, _GONE, _ERROR = 1000, 1005, 1001, 1011


async def proxy_websocket(
    connect: Callable[[], Awaitable[Stream]], visit: Visit, scope: Scope, receive: Receive, send: Send
) -> None:
    """Connect a visitor's WebSocket with that of a program in a box, until either closes it.

    Raises:
        NotProxied: The program answered something that is no handshake.
        PortClosed: Nothing listens.
    """
    stream = await connect()
    try:
        inner = InnerSocket(stream, scope, visit)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                refusal = await inner.open()
        except TimeoutError as error:
            raise NotProxied(504, "the program in the box did not answer the handshake in time") from error
        await receive()  # websocket.connect
        if refusal is not None:
            await _refuse(refusal, visit, send)
            return
        await send({"type": "websocket.accept", "subprotocol": inner.subprotocol, "headers": inner.headers})
        await _join(inner, receive, send)
    finally:
        stream.close_now()


async def _join(inner: "InnerSocket", receive: Receive, send: Send) -> None:
    tasks = [asyncio.ensure_future(_inward(inner, receive)), asyncio.ensure_future(_outward(inner, send))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _inward(inner: "InnerSocket", receive: Receive) -> None:
    """Pass the visitor's messages on, and at the end how it closed."""
    while (message := await receive())["type"] == "websocket.receive":
        text: str | None = message.get("text")
        await inner.send(text if text is not None else message["bytes"])
    await inner.close(message.get("code") or _NO_STATUS, message.get("reason") or "")


async def _outward(inner: "InnerSocket", send: Send) -> None:
    """Pass the program's messages on, and at the end how it closed."""
    try:
        while (content := await inner.receive()) is not None:
            await send({"type": "websocket.send", "text" if isinstance(content, str) else "bytes": content})
        code, reason = inner.closed
    except (HutchError, NotProxied) as error:
        code, reason = _ERROR, str(error)
    short = reason.encode()[:120].decode(errors="ignore")  # A close frame holds 123 bytes of reason.
    await send({"type": "websocket.close", "code": code, "reason": short})


async def _refuse(refusal: Response, visit: Visit, send: Send) -> None:
    """Answer as the program did, which wants no WebSocket here."""
    received = [(name.encode(), value.encode("latin-1", "replace")) for name, value in refusal.headers.raw_items()]
    headers = [pair for pair in visit.response_headers(received) if pair[0] != b"content-length"]
    status = refusal.status_code if 200 <= refusal.status_code <= 599 else 502
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": bytes(refusal.body or b"")})


class InnerSocket:
    """The WebSocket between the proxy and the program in the box."""

    def __init__(self, stream: Stream, scope: Scope, visit: Visit) -> None:
        self._stream = stream
        self._visit = visit
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw[len(visit.prefix) :].decode("latin-1") or "/"
        uri = WebSocketURI(False, "localhost", visit.port, path, scope["query_string"].decode("latin-1"))
        subprotocols = [Subprotocol(each) for each in scope["subprotocols"]] or None
        self._protocol = ClientProtocol(uri, subprotocols=subprotocols, max_size=MAX_FRAME_BYTES)
        self._request_headers = visit.request_headers(scope["headers"], websocket=True)
        self._events: list[Any] = []
        self._partial = bytearray()
        self._is_text = False
        self._writing = asyncio.Lock()
        """Held while the bytes of one frame are sent, because pongs are sent beside messages."""
        self.headers: list[tuple[bytes, bytes]] = []

    @property
    def subprotocol(self) -> str | None:
        return self._protocol.subprotocol

    @property
    def closed(self) -> tuple[int, str]:
        """How the program closed it: a code that may be sent on, and the reason."""
        received = self._protocol.close_rcvd
        if received is None:
            return _ERROR, "the program in the box closed the connection"
        return (_NORMAL if received.code == _NO_STATUS else received.code), received.reason

    async def open(self) -> Response | None:
        """Shake hands. Returns the answer if the program refuses."""
        request = self._protocol.connect()
        del request.headers["Host"]
        for name, value in self._request_headers:
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_request(request)
        await self._flush()
        received = 0
        while not self._events:
            received += await self._feed()
            if self._protocol.handshake_exc is not None or received > MAX_REFUSAL_BYTES:
                break
        answer = self._events.pop(0) if self._events else None
        failure = self._protocol.handshake_exc
        if isinstance(answer, Response) and failure is None:
            kept = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
            dropped = (b"sec-websocket-accept", b"sec-websocket-protocol", b"sec-websocket-extensions")
            self.headers = [pair for pair in self._visit.response_headers(kept) if pair[0] not in dropped]
            return None
        if isinstance(failure, InvalidStatus):
            return failure.response
        raise NotProxied(502, f"the program in the box accepts no WebSocket: {failure or 'its answer does not end'}")

    async def send(self, content: str | bytes) -> None:
        if isinstance(content, str):
            self._protocol.send_text(content.encode())
        else:
            self._protocol.send_binary(content)
        await self._flush()

    async def receive(self) -> str | bytes | None:
        """Return the next message; None when the program has closed."""
        while True:
            while self._events:
                frame: Frame = self._events.pop(0)
                if frame.opcode is Opcode.CLOSE:
                    return None
                if frame.opcode in (Opcode.PING, Opcode.PONG):
                    continue
                if frame.opcode is not Opcode.CONT:
                    self._is_text = frame.opcode is Opcode.TEXT
                self._partial += frame.data
                if frame.fin:
                    whole, self._partial = bytes(self._partial), bytearray()
                    return _text(whole) if self._is_text else whole
            if not await self._feed():
                return None

    async def close(self, code: int, reason: str) -> None:
        """Notify the program that the visitor has closed."""
        try:
            if code in (_NO_STATUS, 1006):
                self._protocol.send_close(_GONE)
            else:
                self._protocol.send_close(code, reason)
        except WebSocketException:  # It is closed already, or the code cannot be sent.
            return
        await self._flush()

    async def _feed(self) -> int:
        data = await self._stream.receive()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._events += self._protocol.events_received()
        await self._flush()
        if self._protocol.parser_exc is not None and not self._events:
            raise NotProxied(502, f"the program in the box breaks the WebSocket protocol: {self._protocol.parser_exc}")
        return len(data)

    async def _flush(self) -> None:
        async with self._writing:
            data = b"".join(self._protocol.data_to_send())
            if data:
                await self._stream.send(data)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotProxied(502, "the program in the box sent text that is no UTF-8") from error
