"""Connections to one server: its address, a pool for requests, and one connection for heartbeats."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hutch.client.transport.http import Body, Connection, ConnectionBroken, NotConnected, Response
from hutch.errors import Invalid

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """Address of one server: `http://host:port`, `https://host:port` or `unix:/path`."""

    url: str
    """The address as the user wrote it."""
    path: str = ""
    """Path of the Unix socket, or empty for TCP."""
    host: str = ""
    port: int = 0
    tls: bool = False
    ca: str = ""
    """File of trusted certificates (PEM), or empty for those of this machine."""

    @property
    def host_header(self) -> str:
        """Value of the Host header."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @cached_property
    def tls_context(self) -> "ssl.SSLContext | None":
        if not self.tls:
            return None
        import ssl  # It is slow to load, and most servers are on this machine.

        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:  # ssl.SSLError is an OSError too.
            raise Invalid(f"the certificates in {self.ca} cannot be used: {error}", remedy="check `ca`") from error

    async def connect(self, done: Callable[[Connection], None]) -> Connection:
        """Open a connection, or raise NotConnected."""
        loop = asyncio.get_running_loop()
        tls = self.tls_context
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.path:
                    _, made = await loop.create_unix_connection(lambda: Connection(done), self.path)
                else:
                    _, made = await loop.create_connection(lambda: Connection(done), self.host, self.port, ssl=tls)
        except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors too.
            raise NotConnected(
                f"no server answers at {self.url}: {error or 'it took too long'}",
                remedy="start one (`hutch serve`), or check the address",
            ) from error
        return made


def address_of(url: str, ca: str = "") -> Address:
    """Parse a server's address, or raise Invalid."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if path:
            return Address(url=url, path=path)
    else:
        try:
            parts = urlsplit(url)
            plain = not (parts.path.strip("/") or parts.query or parts.username)
            if parts.scheme in ("http", "https") and parts.hostname and plain:
                tls = parts.scheme == "https"
                port = parts.port or (443 if tls else 80)
                return Address(url=url, host=parts.hostname, port=port, tls=tls, ca=ca)
        except ValueError:  # The port is not a number.
            pass
    raise Invalid(
        f"{url!r} is no address of a server", remedy="write http://HOST:PORT, https://HOST:PORT or unix:/PATH"
    )


STALE_SECONDS = 30.0
"""Idle connections are dropped after this time. The server closes them after 75 s, which no request must meet."""
MAX_IDLE = 64


class ConnectionPool:
    """Connections for any number of concurrent requests. Each request has its own until its answer was read."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def ask(self, head: bytes, body: Body | None) -> Response:
        """Send a request.

        Raises:
            NotConnected: The server has not seen the request.
            ConnectionBroken: The server may have seen it.
        """
        while self._idle:
            connection = self._idle.pop()
            fresh = asyncio.get_running_loop().time() - connection.idle_since < STALE_SECONDS
            if fresh and connection.usable and not connection.has_unread_data():
                return await connection.ask(head, body)
            self._drop(connection)
        connection = await self.address.connect(self._done)
        self._all.add(connection)
        return await connection.ask(head, body)

    def _done(self, connection: Connection) -> None:
        if connection.usable and len(self._idle) < MAX_IDLE and connection in self._all:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.abort()

    def dispose(self) -> None:
        """Abort every connection, so that requests on a dead one fail now."""
        connections, self._idle, self._all = self._all, [], set()
        for connection in connections:
            connection.abort()


class HeartbeatConnection:
    """A connection for heartbeats alone. Its end is noticed at once and shows that the server is gone."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def ask(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer."""
        if self._connection is None or not self._connection.usable:
            self.close()
            self._connection = await self._address.connect(_kept)
        try:
            response = await self._connection.ask(head, body)
            return response.status, await response.read_all()
        except (NotConnected, ConnectionBroken):
            self.close()
            raise

    @property
    def gone(self) -> "asyncio.Future[None] | None":
        """Future that is done when the server has closed the connection, cleanly or not."""
        return self._connection.closed if self._connection is not None else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


def _kept(_: Connection) -> None:
    """Do nothing: the connection stays with the heartbeat."""
