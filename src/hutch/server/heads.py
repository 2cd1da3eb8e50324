"""How a connection reads: the head of a request (its line and its headers) has a time and a size, so that nobody holds
a connection, or our memory, by never finishing it; a body passes without being copied."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_HEAD = 64 << 10
WAITING_BODY = 64 << 10
"""Of a body, in pieces as the kernel gives them, before no more of it is read."""
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
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
        self._transport.writelines(parts)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol, which has neither bound of its own."""

    head_seconds = 60.0
    _in_head = True
    _head_bytes = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Corked(transport, self.loop)))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

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

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
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


def patient(kind: type[BoundedHttp], seconds: float) -> type[BoundedHttp]:
    """The protocol with the configured time; uvicorn makes the objects itself."""
    return type(kind.__name__, (kind,), {"head_seconds": seconds})
