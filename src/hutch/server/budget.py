"""The bytes that a server holds for its callers, bounded for each key and in all.

Held are answers that nobody has read yet, bodies that are being received, and what boxes have sent for either. There
are two pools of the same size. Small things are counted as they come, and refused when the pool is full. A large result
waits in its box until the other pool has room for all of it: so two of them never wait for each other.
"""

import asyncio
from collections import deque

from hutch.config.server import ServerTable
from hutch.errors import QuotaExceeded
from hutch.server import memory

MB = 1 << 20
NO_LIMIT = 1 << 62
WAIT_SECONDS = 60.0
"""How long a large result waits for room."""
TRIM_BYTES = 4 * MB
"""The heap is trimmed after the server has held this much at a time."""
TRIM_SECONDS = 0.5
"""The time without a held byte after which the heap is trimmed."""


class Pool:
    """So many bytes for each key, and so many in all."""

    def __init__(self, of_key: int, in_all: int) -> None:
        self.of_key = of_key
        self.in_all = in_all
        self.held = 0
        self.most = 0
        self._untrimmed = 0
        """The most that was held at a time since the heap was last trimmed."""
        self._of_keys: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    def has_room(self, key: str, size: int) -> bool:
        return self._of_keys.get(key, 0) + size <= self.of_key and self.held + size <= self.in_all

    def add(self, key: str, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)
        self._untrimmed = max(self._untrimmed, self.held)
        self._of_keys[key] = self._of_keys.get(key, 0) + size

    def remove(self, key: str, size: int) -> None:
        self.held -= size
        left = self._of_keys.pop(key) - size
        if left:
            self._of_keys[key] = left
        if self._waiting:
            self._admit()
        if not self.held and self._untrimmed >= TRIM_BYTES:
            asyncio.get_running_loop().call_later(TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        if not self.held and self._untrimmed >= TRIM_BYTES:
            self._untrimmed = 0
            memory.trim()

    async def wait(self, key: str, size: int) -> None:
        """Until there is room, which is taken then. TimeoutError after a while."""
        if not self._waiting and self.has_room(key, size):
            self.add(key, size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, size, turn))
        self._admit()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.remove(key, size)
            turn.cancel()
            raise

    def _admit(self) -> None:
        """Everybody for whom there is room, in the order in which they came; a key that has none holds up nobody."""
        still: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        for key, size, turn in self._waiting:
            if turn.done():
                continue
            if self.has_room(key, size):
                self.add(key, size)
                turn.set_result(None)
            else:
                still.append((key, size, turn))
        self._waiting = still


class Budget:
    """What one server holds."""

    def __init__(self, table: ServerTable) -> None:
        of_key = table.held_mb_per_key * MB // 2 or NO_LIMIT
        in_all = table.held_mb * MB // 2 or NO_LIMIT
        self.small = Pool(min(of_key, in_all), in_all)
        self.large = Pool(min(of_key, in_all), in_all)

    @property
    def largest(self) -> int:
        """Bytes that one result may have."""
        return self.large.of_key

    def told(self) -> dict[str, int]:
        """What is held now, and the most that was held at a time."""
        return {"now": self.small.held + self.large.held, "most": self.small.most + self.large.most}

    def account(self, key: str) -> "Account":
        return Account(self, key)


class Account:
    """What is held for one request; the `Allowance` of the channels that it opens."""

    __slots__ = ("_budget", "_key", "_large", "_small", "closed")

    def __init__(self, budget: Budget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._small = self._large = 0
        self.closed = False

    def take(self, size: int) -> None:
        if self.closed:
            return
        pool = self._budget.small
        if not pool.has_room(self._key, size):
            raise _full(pool)
        pool.add(self._key, size)
        self._small += size

    def give(self, size: int) -> None:
        if not self.closed:
            self._budget.small.remove(self._key, size)
            self._small -= size

    async def reserve(self, size: int) -> None:
        pool = self._budget.large
        if size > pool.of_key:
            raise _full(pool)
        try:
            await pool.wait(self._key, size)
        except TimeoutError:
            raise _full(pool) from None
        if self.closed:
            pool.remove(self._key, size)
        else:
            self._large += size

    def close(self) -> None:
        """Nothing is held for this request any more, and what may still come for it is not counted."""
        if self.closed:
            return
        self.closed = True
        if self._small:
            self._budget.small.remove(self._key, self._small)
        if self._large:
            self._budget.large.remove(self._key, self._large)


def _full(pool: Pool) -> QuotaExceeded:
    return QuotaExceeded(
        f"answers that nobody has read hold the {2 * pool.of_key // MB} MB that a key may have, or all of the "
        f"server's {2 * pool.in_all // MB} MB",
        retry_after=1.0,
        details={"held_mb_per_key": 2 * pool.of_key // MB, "held_mb": 2 * pool.in_all // MB},
        remedy="read the answers, ask for less output, or raise server.held_mb_per_key and server.held_mb; the output "
        "of a command that has run is kept: its job is in the list of the box's jobs",
    )
