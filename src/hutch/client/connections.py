"""Connections to one server: its address, a pool for requests, and one connection for heartbeats."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hutch.client.http import Body, Broken, Connection, Response, Unreached
from hutch.errors import Invalid

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """One door of one server."""

    url: str
    """As people write it."""
    path: str = ""
    """Of the Unix socket; empty: TCP."""
    host: str = ""
    port: int = 0
    tls: bool = False
    ca: str = ""
    """Certificates that vouch for the server (PEM); empty: those of this machine."""

    @property
    def named(self) -> str:
        """For the Host header."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @cached_property
    def _tls(self) -> "ssl.SSLContext | None":
        if not self.tls:
            return None
        import ssl  # slow to load, and most servers are on this machine

        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:  # ssl.SSLError is one too
            raise Invalid(f"the certificates in {self.ca} cannot be used: {error}", remedy="check `ca`") from error

    async def connect(self, done: Callable[[Connection], None]) -> Connection:
        """A new connection; Unreached if there is none to be had."""
        loop = asyncio.get_running_loop()
        tls = self._tls
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.path:
                    _, made = await loop.create_unix_connection(lambda: Connection(done), self.path)
                else:
                    _, made = await loop.create_connection(lambda: Connection(done), self.host, self.port, ssl=tls)
        except OSError as error:  # TimeoutError and ssl.SSLError are some too
            raise Unreached(
                f"no server answers at {self.url}: {error or 'it took too long'}",
                remedy="start one (`hutch serve`), or check the address",
            ) from error
        return made


def address_of(url: str, ca: str = "") -> Address:
    """What `url` means; Invalid if it means nothing."""
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
        except ValueError:  # a port that is none
            pass
    raise Invalid(
        f"{url!r} is no address of a server", remedy="write http://HOST:PORT, https://HOST:PORT or unix:/PATH"
    )


STALE_SECONDS = 30.0
"""The server closes what stands idle for 75 s: a request must not meet that."""
KEPT = 64


class Pool:
    """Any number of requests at once; each has a connection to itself until its answer was read."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def ask(self, head: bytes, body: Body | None) -> Response:
        """Unreached: the server has not seen the request. Broken: it may have."""
        while self._idle:
            connection = self._idle.pop()
            fresh = asyncio.get_running_loop().time() - connection.idle_since < STALE_SECONDS
            if fresh and connection.usable and not connection.has_news():
                return await connection.ask(head, body)
            self._drop(connection)
        connection = await self.address.connect(self._done)
        self._all.add(connection)
        return await connection.ask(head, body)

    def _done(self, connection: Connection) -> None:
        if connection.usable and len(self._idle) < KEPT and connection in self._all:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.abort()

    def dispose(self) -> None:
        """Break every connection off: what waits for an answer on a dead line is told now."""
        connections, self._idle, self._all = self._all, [], set()
        for connection in connections:
            connection.abort()


class Line:
    """One connection of its own, whose end is noticed at once: what tells that the server is gone (B24)."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def ask(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer, whatever it is."""
        if self._connection is None or not self._connection.usable:
            self.close()
            self._connection = await self._address.connect(_kept)
        try:
            response = await self._connection.ask(head, body)
            return response.status, await response.whole()
        except (Unreached, Broken):
            self.close()
            raise

    @property
    def gone(self) -> "asyncio.Future[None] | None":
        """Done when the server has closed it, cleanly or not."""
        return self._connection.closed if self._connection is not None else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


def _kept(_: Connection) -> None:
    """It stays with its owner."""
