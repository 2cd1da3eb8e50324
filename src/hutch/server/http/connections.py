"""The connections of one server: to which owner each belongs, and which are closed when there are too many.

A connection is anonymous until it has shown a good key. Few anonymous connections are allowed, per address and in
total, and the oldest idle one is closed for the next: half-open connections cannot keep others out. One owner has at
most half of all connections, with however many keys, so his streams cannot either. Some of the process's descriptors
are never used for connections, because the keeper needs them to create boxes. A connection whose client does not read
its answer is closed.
"""

import asyncio
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from hutch.errors import QuotaExceeded
from hutch.logs import log

if TYPE_CHECKING:
    from hutch.server.http.protocol import CorkedTransport

CONNECTION = "hutch.connection"
"""The key of a request's ASGI scope under which its `Connection` is found."""
RESERVED_DESCRIPTORS = 256
"""Descriptors that are left to the keeper; a quarter of all where there are few."""
MAX_ANONYMOUS = 1024
ACCEPTED_AT_ONCE = 64
"""Connections that each listening socket accepts in one turn of the event loop. They are counted only afterwards, so
this is fewer than the reserved descriptors."""
SMALL_MESSAGE = 64 << 10
"""Messages of WebSockets of at most this size are not counted while they arrive."""
MIN_READ_RATE = 16 << 10
"""Bytes per second that a client must read on average."""


def raise_limit() -> None:
    """Raise the soft limit on descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors() -> int:
    """The number of descriptors that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class Connection:
    """One connection from its first byte to its end, also after it became a WebSocket."""

    __slots__ = (
        "_kernel_bytes",
        "_loop",
        "_paused_at",
        "_timeout",
        "_timer",
        "_waited",
        "address",
        "busy",
        "key",
        "owner",
        "transport",
        "unfinished",
    )

    def __init__(self, transport: "CorkedTransport", loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.transport = transport
        self.address = ""
        self.owner = ""
        """The owner of the key that it has shown, or the grant of a preview; empty while it is anonymous."""
        self.key = ""
        """The id of the key that it has shown last."""
        self.busy: Callable[[], bool] = lambda: True
        """Returns whether a request is being answered on it."""
        self.unfinished = 0
        """Bytes of a WebSocket message that has not ended, as they are counted."""
        self._loop = loop
        self._timeout = timeout
        self._waited = 0.0
        self._paused_at = 0.0
        self._kernel_bytes: int | None = None
        """Bytes that the kernel had accepted when its buffer was first full; the client may have read none of them."""
        self._timer: asyncio.TimerHandle | None = None

    def wait_for_reader(self) -> None:
        """Start the timer for the client to read: the write buffer is full."""
        self._paused_at = self._loop.time()
        if self._kernel_bytes is None:
            self._kernel_bytes = self._accepted()
        if self._timeout:
            self._timer = self._loop.call_later(max(1.0, self._timeout - self._waited), self._check_reader)

    def was_read(self) -> None:
        """Stop the timer: the write buffer has space again, or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._waited += self._loop.time() - self._paused_at

    def _check_reader(self) -> None:
        now = self._loop.time()
        self._waited += now - self._paused_at
        self._paused_at = now
        left = self._timeout + (self._accepted() - (self._kernel_bytes or 0)) / MIN_READ_RATE - self._waited
        if left > 0:
            self._timer = self._loop.call_later(max(1.0, left), self._check_reader)
            return
        self._timer = None
        log("server").info("cut: the answer is not read", address=self.address, by=self.owner)
        self.transport.abort()

    def _accepted(self) -> int:
        """Bytes that the kernel has accepted so far."""
        waiting: int = self.transport.get_write_buffer_size()
        return max(0, self.transport.written - waiting)


class Connections:
    """All connections of one server, on its Unix socket and on TCP."""

    def __init__(
        self, max_connections: int, descriptors: int, *, unfinished_per_owner: int = 0, unfinished: int = 0
    ) -> None:  # fmt: skip
        """The last two bound the bytes of WebSocket messages that have not ended; 0 for no bound."""
        reserved = min(RESERVED_DESCRIPTORS, descriptors // 4)
        self._descriptor_limit = descriptors - reserved
        self._max = max_connections or self._descriptor_limit
        self._max_anonymous = min(MAX_ANONYMOUS, max(1, self._max // 4))
        self._max_per_owner = max(1, self._max // 2)
        self._max_anonymous_per_address = max(1, self._max_anonymous // 2)
        self._anonymous: dict[str, dict[Connection, None]] = {}
        """Anonymous connections by address, oldest first."""
        self._known: dict[str, dict[Connection, None]] = {}
        """Authenticated connections by owner, oldest first."""
        self.anonymous = self.known = 0
        self._max_unfinished_per_owner, self._max_unfinished = unfinished_per_owner, unfinished
        self._unfinished: dict[str, int] = {}
        """Bytes of WebSocket messages that have not ended, by owner or address."""

    def opened(self, connection: Connection, descriptor: int) -> None:
        """Count a new, anonymous connection; it is closed at once if every other connection is busy."""
        mine = self._anonymous.setdefault(connection.address, {})
        mine[connection] = None
        self.anonymous += 1
        if not self._has_capacity(connection, mine, descriptor):
            self._close(connection)

    def _has_capacity(self, connection: Connection, mine: dict[Connection, None], descriptor: int) -> bool:
        if len(mine) > self._max_anonymous_per_address:
            return self._close_first(mine, but=connection)
        if self.anonymous > self._max_anonymous:
            return self._close_anonymous(but=connection)
        if descriptor >= self._descriptor_limit or self.anonymous + self.known > self._max:
            return self._close_anonymous(but=connection) or self._close_idle()
        return True

    def admit(self, connection: Connection, owner: str) -> None:
        """Count the connection as the owner's. QuotaExceeded if all of his are busy: it stays anonymous."""
        mine = self._known.get(owner, {})
        if len(mine) >= self._max_per_owner and not self._close_first(mine):
            raise QuotaExceeded(
                f"this owner has {len(mine)} connections in use, and no owner has more", retry_after=1.0,
                details={"connections": self._max_per_owner}, remedy="end some of its streams",
            )  # fmt: skip
        self.identify(connection, owner)

    def end_key(self, key: str, but: Connection | None) -> None:
        """Close every connection that has shown a key, because it was revoked, besides the one that asks for it."""
        for each in [each for group in self._known.values() for each in group if each.key == key and each is not but]:
            self._close(each)

    def identify(self, connection: Connection, owner: str) -> None:
        """Move the connection from the anonymous ones to those of the owner."""
        if not self._remove(connection):
            return  # It was closed meanwhile.
        unfinished = connection.unfinished
        self._count_unfinished(connection, 0)
        connection.owner = owner
        self._count_unfinished(connection, unfinished)
        self._known.setdefault(owner, {})[connection] = None
        self.known += 1

    def hold_message(self, connection: Connection, size: int) -> bool:
        """Count the bytes of a message that has not ended; False if too many are held. Small ones are free."""
        self._count_unfinished(connection, size if size > SMALL_MESSAGE else 0)
        whose = connection.owner or connection.address
        per_owner, total = self._max_unfinished_per_owner, self._max_unfinished
        return not connection.unfinished or (
            (not per_owner or self._unfinished[whose] <= per_owner)
            and (not total or sum(self._unfinished.values()) <= total)
        )

    def _count_unfinished(self, connection: Connection, size: int) -> None:
        whose = connection.owner or connection.address
        held = self._unfinished.pop(whose, 0) + size - connection.unfinished
        if held:
            self._unfinished[whose] = held
        connection.unfinished = size

    def closed(self, connection: Connection) -> None:
        connection.was_read()
        self._count_unfinished(connection, 0)
        self._remove(connection)

    def _remove(self, connection: Connection) -> bool:
        among = self._known if connection.owner else self._anonymous
        whose = connection.owner or connection.address
        group = among.get(whose, {})
        if connection not in group:
            return False
        del group[connection]
        if not group:
            del among[whose]
        if connection.owner:
            self.known -= 1
        else:
            self.anonymous -= 1
        return True

    def _close_anonymous(self, but: Connection) -> bool:
        """Close an idle connection of the address that has the most."""
        return self._close_first(max(self._anonymous.values(), key=len), but)

    def _close_idle(self) -> bool:
        """Close the oldest idle connection of an owner, trying the owner with the most connections first."""
        return any(self._close_first(group) for group in sorted(self._known.values(), key=len, reverse=True))

    def _close_first(self, group: dict[Connection, None], but: Connection | None = None) -> bool:
        for each in group:
            if each is not but and not each.busy():
                self._close(each)
                return True
        return False

    def _close(self, connection: Connection) -> None:
        self._remove(connection)
        connection.transport.abort()
