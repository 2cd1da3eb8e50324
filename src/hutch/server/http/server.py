"""The uvicorn server of one listening socket: its settings, and what Hutch needs from it beyond uvicorn's own API."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Any

import uvicorn

from hutch.config.server import ServerTable
from hutch.server.http.connections import ACCEPTED_AT_ONCE, Connections
from hutch.server.http.protocol import BoundedHttp, BoundedWebSocket, Protocol, UnixHttp, UnixWebSocket, bounded
from hutch.server.http.tls import TlsProtocolFactory

MAX_FRAME_BYTES = 16 << 20
LISTEN_BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
KEEP_ALIVE_SECONDS = 75


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals alone, because two of them run in one process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            # uvicorn's backlog is also the number of connections accepted in one turn; the kernel may queue more.
            listening.listen(LISTEN_BACKLOG)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    @property
    def open_connections(self) -> int:
        return len(self.server_state.connections)

    @property
    def unfinished_requests(self) -> set[asyncio.Task[None]]:
        """Requests that uvicorn cancelled at the end of its grace period without waiting for them."""
        return self.server_state.tasks


def unix_server(app: Any, table: ServerTable, connections: Connections) -> HttpServer:
    """A server for a Unix socket, which learns the peer's user id from the kernel."""
    http, websocket = (_bounded(kind, table, connections) for kind in (UnixHttp, UnixWebSocket))
    return HttpServer(_config(app, table, http=http, ws=websocket))


def tcp_server(app: Any, table: ServerTable, connections: Connections, context: ssl.SSLContext | None) -> HttpServer:
    """A server for a TCP socket; it speaks TLS if it gets a context."""
    http, websocket = _bounded(BoundedHttp, table, connections), _bounded(BoundedWebSocket, table, connections)
    protocol = http if context is None else TlsProtocolFactory(http, context)
    return HttpServer(_config(app, table, http=protocol, ws=websocket))


def _bounded(kind: Protocol, table: ServerTable, connections: Connections) -> Protocol:
    return bounded(kind, connections, head_timeout=table.body_timeout_sec, read_timeout=table.read_timeout_sec)


def _config(app: Any, table: ServerTable, **options: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_config=None,
        access_log=False,
        server_header=False,
        # X-Forwarded-For would let a caller choose the address that the kernel reports for it.
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(table.drain_sec)),
        ws_max_size=MAX_FRAME_BYTES,
        backlog=ACCEPTED_AT_ONCE,
        loop="asyncio",
        **options,  # type: ignore[arg-type]
    )
