"""How a connection reads: the head of a request (its line and its headers) has a time and a size, so that nobody holds
a connection, or our memory, by never finishing it; a body passes without being copied. And how it is written to: what
the client does not read is not kept for ever."""

import asyncio
from typing import Any, TypeVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from hutch.server.http.connections import CONNECTION, Connection, Connections

LONGEST_HEAD = 64 << 10
WAITING_BODY = 64 << 10
"""Of a body, in pieces as the kernel gives them, before no more of it is read."""
_ONCE = (b"host", b"authorization", b"hutch-key", b"origin")
"""What is decided by these must not depend on which of two is read."""
_REFUSALS = {
    408: b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
}


SMALL = 64 << 10
"""What is worth joining to a head; more is better sent as it is."""


class Corked:
    """A transport that holds an answer's head until its body comes, which is mostly at once: one call of the kernel for
    both, and one wakening of whoever reads."""

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
            if len(data) < SMALL:
                data = held + data
            else:
                self._transport.write(held)
            self._transport.write(data)
        elif len(data) < SMALL:
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
    """uvicorn's protocol, which has neither bound of its own."""

    head_seconds = 60.0
    read_seconds = 60.0
    all_connections: Connections
    _in_head = True
    _head_bytes = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        corked = Corked(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, corked))
        self.connection = corked.connection = Connection(corked, self.loop, self.read_seconds)
        self.connection.busy = self._is_busy
        self._wait()
        self._enter(transport.get_extra_info("socket").fileno())

    def _enter(self, descriptor: int) -> None:
        self.connection.address = self.client[0] if self.client is not None else ""
        self.all_connections.opened(self.connection, descriptor)

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
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
        if self._head_bytes > LONGEST_HEAD:
            self._refuse(431)
        elif self._late is None:
            self._wait()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope[CONNECTION] = self.connection  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        names = [name for name, _ in self.headers]
        if any(names.count(name) > 1 for name in _ONCE):
            # Two readers of such a request could each believe another one; the parser makes a 400 of it.
            raise ValueError("a header stands twice that may stand once")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """As uvicorn does it, but a piece that finds nobody before it stays the object it is: uvicorn would copy a file
        of 100 MB twice."""
        cycle = self.cycle
        if cycle.body or cycle.response_complete or self.parser.should_upgrade():
            super().on_body(body)
            return
        cycle.body = body  # type: ignore[assignment]
        if len(body) > WAITING_BODY:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _wait(self) -> None:
        if self.head_seconds:
            self._late = self.loop.call_later(self.head_seconds, self._refuse, 408)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: int) -> None:
        self._stop_waiting()
        self.transport.write(_REFUSALS[status])
        self.transport.close()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol on a connection that was an HTTP one before."""

    connection: Connection
    all_connections: Connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connection = cast(Corked, transport).connection
        self.connection.busy = lambda: True

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


Protocol = TypeVar("Protocol", bound=type[BoundedHttp] | type[BoundedWebSocket])


def bounded(kind: Protocol, connections: Connections, *, head_seconds: float, read_seconds: float) -> Protocol:
    """The protocol with what was configured; uvicorn makes the objects itself."""
    values = {"all_connections": connections, "head_seconds": head_seconds, "read_seconds": read_seconds}
    return cast(Protocol, type(kind.__name__, (kind,), values))
