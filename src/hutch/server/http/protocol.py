"""The HTTP and WebSocket protocol classes for uvicorn, with the bounds that uvicorn's own classes lack.

The head of a request (its line and headers) is limited in time and size, so that nobody holds a connection or memory by
never finishing it. A body is passed on without copies. An answer that the client does not read is not kept forever. On
a Unix socket the kernel says which user has connected.
"""

import asyncio
import socket
import struct
from typing import Any, TypeVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.server.auth import UNIX
from hutch.server.http.connections import CONNECTION, Connection, Connections

MAX_HEAD_BYTES = 64 << 10
MAX_UNREAD_BODY_BYTES = 64 << 10
"""Body bytes that may wait for the application before the protocol stops reading from the socket."""
CORK_BYTES = 64 << 10
"""Writes smaller than this are joined with the head; larger ones are sent without a copy."""
TRY_AGAIN_LATER = 1013
"""The close code of a WebSocket whose message the server has no memory for."""
_UNIQUE_HEADERS = (b"host", b"authorization", b"hutch-key", b"origin")
"""Headers that decide about access: with two of them, the decision would depend on which one is read."""
_REFUSALS = {
    408: b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
}
_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid and gid of the peer at the time it connected."""


class CorkedTransport:
    """A transport that holds back an answer's head until the body follows, mostly at once.

    Both then take one system call and wake the reader once.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self.written = 0
        self.connection: Connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self._held:
            held, self._held = self._held, b""
            if len(data) < CORK_BYTES:
                data = held + data
            else:
                self._transport.write(held)
            self._transport.write(data)
        elif len(data) < CORK_BYTES:
            self._held = data
            self._loop.call_soon(self.flush)
        else:
            self._transport.write(data)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def writelines(self, parts: Any) -> None:
        self.flush()
        self.written += sum(map(len, parts))
        self._transport.writelines(parts)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits on the head of a request and on unread answers."""

    head_timeout = 60.0
    read_timeout = 60.0
    all_connections: Connections
    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        corked = CorkedTransport(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, corked))
        self.connection = corked.connection = Connection(corked, self.loop, self.read_timeout)
        self.connection.busy = self._is_busy
        self._start_head_timer()
        self._register(transport.get_extra_info("socket").fileno())

    def _register(self, descriptor: int) -> None:
        self.connection.address = self.client[0] if self.client is not None else ""
        self.all_connections.opened(self.connection, descriptor)

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self.all_connections.closed(self.connection)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self.connection.wait_for_reader()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.connection.was_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431)
        elif self._head_timer is None:
            self._start_head_timer()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope[CONNECTION] = self.connection  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_head_timer()
        names = [name for name, _ in self.headers]
        if any(names.count(name) > 1 for name in _UNIQUE_HEADERS):
            # A proxy and this server could each believe a different one. The parser turns the error into a 400.
            raise ValueError("a header is repeated that may occur only once")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece on as the object it is if no other piece waits; uvicorn would copy a file of 100 MB twice."""
        cycle = self.cycle
        if cycle.body or cycle.response_complete or self.parser.should_upgrade():
            super().on_body(body)
            return
        cycle.body = body  # type: ignore[assignment]
        if len(body) > MAX_UNREAD_BODY_BYTES:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _start_head_timer(self) -> None:
        if self.head_timeout:
            self._head_timer = self.loop.call_later(self.head_timeout, self._refuse, 408)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int) -> None:
        self._stop_head_timer()
        self.transport.write(_REFUSALS[status])
        self.transport.close()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol on a connection that began as `BoundedHttp`."""

    connection: Connection
    all_connections: Connections
    received = 0
    """Bytes that have arrived since the last whole message."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connection = cast(CorkedTransport, transport).connection
        self.connection.busy = lambda: True

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)
        if not self.close_sent and not self.all_connections.hold_message(self.connection, self.received):
            self.conn.fail(TRY_AGAIN_LATER, "too many unfinished messages")
            self.handle_parser_exception()

    def handle_cont(self, event: Frame) -> None:
        # One buffer that grows: a list takes far more memory than the many tiny fragments that it may hold.
        whole = self.frames[0] if isinstance(self.frames[0], bytearray) else bytearray(self.frames[0])
        whole += event.data
        self.frames = [bytes(whole) if event.fin else whole]  # type: ignore[list-item]
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        self._between_messages()
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        self._between_messages()
        super().handle_pong(event)

    def _between_messages(self) -> None:
        if not self.frames:
            self.received = 0

    def send_receive_event_to_app(self) -> None:
        self.received = 0
        super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        self.all_connections.closed(self.connection)
        super().connection_lost(exc)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope[CONNECTION] = self.connection  # type: ignore[literal-required]

    def pause_writing(self) -> None:
        self.connection.wait_for_reader()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.connection.was_read()
        super().resume_writing()


class UnixHttp(BoundedHttp):
    """HTTP on a Unix socket, where `scope["client"]` is the peer's user id."""

    def _register(self, descriptor: int) -> None:
        self.client = _peer(self.transport)
        super()._register(descriptor)
        self.all_connections.identify(self.connection, LOCAL_OWNER)


class UnixWebSocket(BoundedWebSocket):
    """A WebSocket on a Unix socket, where `scope["client"]` is the peer's user id."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = _peer(transport)


def _peer(transport: asyncio.BaseTransport) -> tuple[str, int]:
    peer = cast(socket.socket, transport.get_extra_info("socket"))
    _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return (UNIX, uid)


Protocol = TypeVar("Protocol", bound=type[BoundedHttp] | type[BoundedWebSocket])


def bounded(kind: Protocol, connections: Connections, *, head_timeout: float, read_timeout: float) -> Protocol:
    """A subclass of the protocol with these settings; uvicorn instantiates protocol classes itself."""
    values = {"all_connections": connections, "head_timeout": head_timeout, "read_timeout": read_timeout}
    return cast(Protocol, type(kind.__name__, (kind,), values))
