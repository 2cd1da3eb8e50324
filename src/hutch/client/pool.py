"""Connections to one server: kept for the next request, opened when there is none, thrown away when they are stale."""

import asyncio

from hutch.client.address import Address
from hutch.client.http import Body, Broken, Connection, Response, Unreached

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
