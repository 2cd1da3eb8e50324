"""TLS on the TCP port: a connection counts as anonymous from the moment it is accepted, not after its handshake.

asyncio's own TLS listener hides a connection until its handshake is over. A client that never begins the handshake
would hold a descriptor that `Connections` does not count.
"""

import asyncio
import ssl
from typing import Any, cast

from uvicorn.server import ServerState

from hutch.logs import log
from hutch.server.http.connections import Connection
from hutch.server.http.protocol import BoundedHttp, CorkedTransport


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Load the certificate; OSError if the files cannot be read or do not fit together."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


class TlsProtocolFactory:
    """Makes the protocol of each accepted connection; uvicorn calls it where it expects a protocol class."""

    def __init__(self, http: type[BoundedHttp], context: ssl.SSLContext) -> None:
        self._http = http
        self._context = context

    def __call__(self, *, server_state: ServerState, **options: Any) -> "TlsHandshake":
        http = self._http(server_state=server_state, **options)
        return TlsHandshake(http, self._context, server_state)


class TlsHandshake(asyncio.Protocol):
    """The protocol of a connection during its handshake; afterwards `http` takes over."""

    def __init__(self, http: BoundedHttp, context: ssl.SSLContext, state: ServerState) -> None:
        self._http = http
        self._context = context
        self._state = state
        self._early: list[bytes] = []
        """Decrypted data that arrived in the same packets as the end of the handshake."""
        self._ended = False
        self._connection: Connection
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection = Connection(cast(CorkedTransport, transport), self._http.loop, 0.0)
        self._connection.busy = lambda: False
        peer = transport.get_extra_info("peername")
        self._connection.address = peer[0] if peer else ""
        self._state.connections.add(self)  # type: ignore[arg-type]  # uvicorn calls nothing but `shutdown` on it
        self._task = self._http.loop.create_task(self._handshake())
        self._http.all_connections.opened(self._connection, transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True

    def shutdown(self) -> None:
        """End the connection with the server: no request has been made on it yet."""
        self._transport.abort()

    async def _handshake(self) -> None:
        try:
            transport = await self._http.loop.start_tls(
                self._transport, self, self._context, server_side=True,
                ssl_handshake_timeout=self._http.head_timeout or None,
            )  # fmt: skip
        except OSError as error:  # a TLS error, a broken connection or a timeout
            log("server").debug("no TLS", address=self._connection.address, why=str(error))
            self._transport.abort()
            return
        finally:
            self._state.connections.discard(self)
            self._http.all_connections.closed(self._connection)
        if transport is None or self._ended or self._transport.is_closing():
            return  # The connection was closed meanwhile.
        transport.set_protocol(self._http)
        self._http.connection_made(transport)
        for data in self._early:
            self._http.data_received(data)
