"""The connections of a server: whose they are, which go when there are too many, which are cut as nobody reads them.

Whoever has not shown a good key is a stranger. Strangers have few places, for each address and in all, and the oldest
that waits makes room for the next one; so half-open connections cannot keep others out. One key has at most half of all
places, so its streams cannot either. A part of the process's descriptors is never used for connections: the keeper
needs them to make boxes.
"""

import asyncio
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from hutch.errors import QuotaExceeded
from hutch.logs import log

if TYPE_CHECKING:
    from hutch.server.http.protocol import Corked

CONNECTION = "hutch.connection"
"""Where a request's scope tells on which connection it came."""
RESERVED = 256
"""Descriptors that are left to the keeper; a quarter where there are few."""
STRANGERS = 1024
ACCEPTED_AT_ONCE = 64
"""Connections that are accepted in one turn of the event loop, at each door: fewer than are reserved, because they are
counted only after it."""
SLOWEST_READER = 16 << 10
"""Bytes that a client must read in a second on the whole."""


def raise_limit() -> None:
    """Let this process have as many descriptors as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors() -> int:
    """How many this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class Connection:
    """One, from its first byte to its end, also when it becomes a WebSocket."""

    __slots__ = (
        "_buffered",
        "_loop",
        "_paused_at",
        "_seconds",
        "_timer",
        "_waited",
        "address",
        "busy",
        "key",
        "transport",
    )

    def __init__(self, transport: "Corked", loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.transport = transport
        self.address = ""
        self.key = ""
        """Empty: a stranger."""
        self.busy: Callable[[], bool] = lambda: True
        """Whether a request is being answered."""
        self._loop = loop
        self._seconds = seconds
        self._waited = 0.0
        self._paused_at = 0.0
        self._buffered: int | None = None
        """Bytes that the kernel had taken when it first took no more: it holds megabytes, which nobody has read."""
        self._timer: asyncio.TimerHandle | None = None

    def wait_for_reader(self) -> None:
        """Its buffer is full."""
        self._paused_at = self._loop.time()
        if self._buffered is None:
            self._buffered = self._taken()
        if self._seconds:
            self._timer = self._loop.call_later(max(1.0, self._seconds - self._waited), self._look)

    def was_read(self) -> None:
        """Its buffer has room again, or it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._waited += self._loop.time() - self._paused_at

    def _look(self) -> None:
        now = self._loop.time()
        self._waited += now - self._paused_at
        self._paused_at = now
        left = self._seconds + (self._taken() - (self._buffered or 0)) / SLOWEST_READER - self._waited
        if left > 0:
            self._timer = self._loop.call_later(max(1.0, left), self._look)
            return
        self._timer = None
        log("server").info("cut: the answer is not read", address=self.address, by=self.key)
        self.transport.abort()

    def _taken(self) -> int:
        waiting: int = self.transport.get_write_buffer_size()
        return max(0, self.transport.written - waiting)


class Connections:
    """All of one server, at both doors."""

    def __init__(self, most: int, descriptors: int) -> None:
        reserved = min(RESERVED, descriptors // 4)
        self._last = descriptors - reserved
        self._most = most or self._last
        self._strangers_in_all = min(STRANGERS, max(1, self._most // 4))
        self._of_key = max(1, self._most // 2)
        self._strangers_of_address = max(1, self._strangers_in_all // 2)
        self._strangers: dict[str, dict[Connection, None]] = {}
        """By address, the oldest first."""
        self._known: dict[str, dict[Connection, None]] = {}
        """By key, the oldest first."""
        self.strangers = self.known = 0

    def opened(self, connection: Connection, descriptor: int) -> None:
        """A new one, of a stranger; or it is cut at once, because everybody else is being served."""
        mine = self._strangers.setdefault(connection.address, {})
        mine[connection] = None
        self.strangers += 1
        if not self._has_place(connection, mine, descriptor):
            self._cut(connection)

    def _has_place(self, connection: Connection, mine: dict[Connection, None], descriptor: int) -> bool:
        if len(mine) > self._strangers_of_address:
            return self._cut_first(mine, but=connection)
        if self.strangers > self._strangers_in_all:
            return self._cut_stranger(but=connection)
        if descriptor >= self._last or self.strangers + self.known > self._most:
            return self._cut_stranger(but=connection) or self._cut_idle()
        return True

    def admit(self, connection: Connection, key: str) -> None:
        """It has shown a good key. QuotaExceeded if all that this key may have are in use: it stays a stranger's."""
        mine = self._known.get(key, {})
        if len(mine) >= self._of_key and not self._cut_first(mine):
            raise QuotaExceeded(
                f"this key has {len(mine)} connections in use, and no key has more", retry_after=1.0,
                details={"connections": self._of_key}, remedy="end some of its streams",
            )  # fmt: skip
        self.recognised(connection, key)

    def recognised(self, connection: Connection, key: str) -> None:
        """It is known whose it is."""
        if not self._remove(connection):
            return  # it was cut meanwhile
        connection.key = key
        self._known.setdefault(key, {})[connection] = None
        self.known += 1

    def closed(self, connection: Connection) -> None:
        connection.was_read()
        self._remove(connection)

    def _remove(self, connection: Connection) -> bool:
        among = self._known if connection.key else self._strangers
        whose = connection.key or connection.address
        group = among.get(whose, {})
        if connection not in group:
            return False
        del group[connection]
        if not group:
            del among[whose]
        if connection.key:
            self.known -= 1
        else:
            self.strangers -= 1
        return True

    def _cut_stranger(self, but: Connection) -> bool:
        """Of the address that has the most."""
        return self._cut_first(max(self._strangers.values(), key=len), but)

    def _cut_idle(self) -> bool:
        """A key's oldest connection that nothing happens on, of the key that has the most."""
        return any(self._cut_first(group) for group in sorted(self._known.values(), key=len, reverse=True))

    def _cut_first(self, group: dict[Connection, None], but: Connection | None = None) -> bool:
        for each in group:
            if each is not but and not each.busy():
                self._cut(each)
                return True
        return False

    def _cut(self, connection: Connection) -> None:
        self._remove(connection)
        connection.transport.abort()
