"""The bytes that a server holds for its callers: limits per key and in total, and how freed memory is returned.

The server holds answers that are not read yet, bodies that are being received, and what boxes have sent for either.
There are two pools of the same size. Small amounts are counted as they arrive, and refused when the pool is full. A
large result stays in its box until the other pool has space for all of it, so two of them never wait for each other.
"""

import asyncio
import ctypes
import sys
from collections import deque
from collections.abc import Callable

from hutch.config.server import ServerTable
from hutch.errors import QuotaExceeded

MB = 1 << 20
NO_LIMIT = 1 << 62
WAIT_SECONDS = 60.0
"""Seconds that a large result waits for space."""
TRIM_BYTES = 4 * MB
"""The heap is trimmed after the server has held this much at once."""
TRIM_SECONDS = 0.5
"""The time without a held byte after which the heap is trimmed."""


class Pool:
    """Counts held bytes against a limit per key and a limit for all keys."""

    def __init__(self, per_key: int, total: int) -> None:
        self.per_key = per_key
        self.total = total
        self.held = 0
        self.peak = 0
        self._untrimmed = 0
        """The most that was held at once since the heap was last trimmed."""
        self._by_key: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    def has_space(self, key: str, size: int) -> bool:
        return self._by_key.get(key, 0) + size <= self.per_key and self.held + size <= self.total

    def add(self, key: str, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)
        self._untrimmed = max(self._untrimmed, self.held)
        self._by_key[key] = self._by_key.get(key, 0) + size

    def remove(self, key: str, size: int) -> None:
        self.held -= size
        left = self._by_key.pop(key) - size
        if left:
            self._by_key[key] = left
        if self._waiting:
            self._admit()
        if not self.held and self._untrimmed >= TRIM_BYTES:
            asyncio.get_running_loop().call_later(TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        if not self.held and self._untrimmed >= TRIM_BYTES:
            self._untrimmed = 0
            _trim_heap()

    async def wait(self, key: str, size: int) -> None:
        """Wait until there is space, and take it. TimeoutError after `WAIT_SECONDS`."""
        if not self._waiting and self.has_space(key, size):
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
        """Admit the waiters for whom there is space, in their order; a key without space holds up no other key."""
        still: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        for key, size, turn in self._waiting:
            if turn.done():
                continue
            if self.has_space(key, size):
                self.add(key, size)
                turn.set_result(None)
            else:
                still.append((key, size, turn))
        self._waiting = still


class Budget:
    """The two pools of one server."""

    def __init__(self, table: ServerTable) -> None:
        per_key = table.held_mb_per_key * MB // 2 or NO_LIMIT
        total = table.held_mb * MB // 2 or NO_LIMIT
        self.small = Pool(min(per_key, total), total)
        self.large = Pool(min(per_key, total), total)

    @property
    def largest(self) -> int:
        """Bytes that one result may have at most."""
        return self.large.per_key

    def usage(self) -> dict[str, int]:
        """Bytes held now, and the most that were held at once."""
        return {"now": self.small.held + self.large.held, "most": self.small.peak + self.large.peak}

    def account(self, key: str) -> "Account":
        return Account(self, key)


class Account:
    """The bytes held for one request; the `Allowance` of the guest channels that it opens."""

    __slots__ = ("_budget", "_key", "_large", "_small", "closed")

    def __init__(self, budget: Budget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._small = self._large = 0
        self.closed = False

    def take(self, size: int) -> None:
        if self.closed or not size:
            return
        pool = self._budget.small
        if not pool.has_space(self._key, size):
            raise _full(pool)
        pool.add(self._key, size)
        self._small += size

    def give(self, size: int) -> None:
        if size and not self.closed:
            self._budget.small.remove(self._key, size)
            self._small -= size

    async def reserve(self, size: int) -> None:
        pool = self._budget.large
        if size > pool.per_key:
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
        """Release everything held for this request; what still arrives for it is not counted."""
        if self.closed:
            return
        self.closed = True
        if self._small:
            self._budget.small.remove(self._key, self._small)
        if self._large:
            self._budget.large.remove(self._key, self._large)


def _full(pool: Pool) -> QuotaExceeded:
    return QuotaExceeded(
        f"unread answers hold the {2 * pool.per_key // MB} MB that a key may have, or all of the "
        f"server's {2 * pool.total // MB} MB",
        retry_after=1.0,
        details={"held_mb_per_key": 2 * pool.per_key // MB, "held_mb": 2 * pool.total // MB},
        remedy="read the answers, ask for less output, or raise server.held_mb_per_key and server.held_mb; the output "
        "of a command that has run is kept: its job is in the list of the box's jobs",
    )


# --- the allocator --------------------------------------------------------------------------------------------------

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_BYTES = 288 << 10
"""More than the 256 KB that every read of a socket allocates and mostly frees at once: mappings would slow it down."""


def configure_allocator() -> None:
    """Make glibc return large blocks to the kernel; a server calls this once, when it starts.

    By default glibc raises the size from which a block gets its own mapping whenever it frees one, up to 32 MB.
    Bodies of files then lie between small blocks and keep the heap at its peak. It also gives each thread a heap. With
    these settings large blocks stay mappings and there is one heap (mallopt(3)): under the load of
    tests/server/test_soak.py the heap held 1.4 MB of free memory after 92,000 operations, and 4.5 MB without them.
    """
    mallopt = _from_c_library("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)


def _trim_heap() -> None:
    """Return the heap's free pages to the kernel (malloc_trim(3)); this takes about a millisecond for 20 MB.

    Smaller blocks still pile up: sixteen unread answers are thousands of frames, whose pages the heap would keep.
    """
    malloc_trim = _from_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _from_c_library(name: str) -> Callable[..., object] | None:
    """A function of glibc, or None where the C library has none of that name (musl, macOS)."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
