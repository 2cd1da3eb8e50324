"""The queue of receipts: they are committed to the ledger in groups, off the reply path.

Nothing is dropped while the keeper lives: a failed commit is tried again, and when the queue is full, new operations
wait and are then refused. So nothing is done that cannot be recorded. Only closing is bounded: receipts that cannot be
written after a few more attempts are returned as lost.
"""

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice

from hutch.errors import HutchError, Unavailable
from hutch.keeper.access.callers import keeper_context
from hutch.keeper.receipts.ledger import Ledger
from hutch.logs import log
from hutch.model.receipts import GAP, Receipt

WINDOW_SECONDS = 0.01
"""Time that the first receipt of a group waits for others."""
BATCH = 512
MAX_WAITING = 8192
TIMEOUT_SECONDS = 10.0
"""Limit for waiting on a commit, and for the last writes at the end."""
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
CLOSING_ATTEMPTS = 3
CLOSING_PAUSE = 0.5


class ReceiptQueue:
    """One group is written at a time; receipts that arrive meanwhile form the next."""

    def __init__(self, ledger: Ledger, *, window: float = WINDOW_SECONDS) -> None:
        self._ledger = ledger
        self._window = window
        self._waiting: deque[Receipt] = deque()
        """Receipts in order; each leaves when it is committed."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._added = 0
        """Receipts that were ever added; this count numbers them."""
        self._committed = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Callers, each waiting until that many are committed."""
        self._closing = asyncio.Event()
        self.failures = 0
        """Commits that failed and were tried again."""
        self.failing = False
        """True if the last commit failed."""

    def __len__(self) -> int:
        return self._added - self._committed

    @property
    def written(self) -> int:
        """The number of committed receipts."""
        return self._committed

    @property
    def full(self) -> bool:
        return self._added - self._committed >= MAX_WAITING

    def put(self, draft: Receipt) -> int:
        """Add a receipt; return its number for `committed`."""
        self._waiting.append(draft)
        self._added += 1
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(self._window, self._begin)
        return self._added

    async def wait_for_space(self) -> None:
        """Wait until the queue can take one more receipt.

        Raises:
            Unavailable: the ledger did not commit any in time.
        """
        try:
            await self._wait_for(self._added - MAX_WAITING + 1)
        except TimeoutError:
            raise Unavailable(
                f"{len(self)} receipts wait to be written: nothing is done that cannot be recorded",
                retry_after=LONGEST_PAUSE,
                remedy="look at the disk or database that holds the receipts, or set receipts = off",
            ) from None

    async def committed(self, number: int) -> None:
        """Wait until this receipt is committed.

        Raises:
            Unavailable: it was not committed in time; the operation itself was done.
        """
        if self._timer is not None and self._writing is None:
            self._begin()  # somebody waits for this group, so it is written now
        try:
            await self._wait_for(number)
        except TimeoutError:
            raise Unavailable(
                "the operation was done, and its receipt could not be written",
                retryable=False,
                details={"done": True},
                remedy="look at the disk or database that holds the receipts",
            ) from None

    async def flush(self) -> None:
        """Wait until every receipt added so far is committed."""
        if not len(self):
            return
        if self._writing is None:
            self._begin()
        try:
            await self._wait_for(self._added)
        except TimeoutError:
            raise Unavailable(
                f"{len(self)} receipts cannot be written now",
                remedy="look at the disk or database that holds the receipts",
            ) from None

    async def close(self) -> tuple[Receipt, ...]:
        """Write what waits, within bounded attempts and time; return the receipts that were lost."""
        self._closing.set()
        if self._waiting and self._writing is None:
            self._begin()
        if self._writing is not None:
            _, late = await asyncio.wait({self._writing}, timeout=TIMEOUT_SECONDS)
            for writer in late:
                writer.cancel()
        lost = tuple(self._waiting)
        if lost:
            log("receipts").error(
                "receipts lost at the end: their chains will show a gap",
                count=len(lost), boxes=sorted({draft.box for draft in lost})[:20],
            )  # fmt: skip
        return lost

    async def _wait_for(self, number: int) -> None:
        """Wait until that many receipts are committed; TimeoutError if that takes too long."""
        if self._committed >= number:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((number, future))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await future

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writing = asyncio.create_task(self._write(), name="hutch-receipts", context=keeper_context())

    async def _write(self) -> None:
        pause, closing_attempts = SHORTEST_PAUSE, 0
        try:
            while self._waiting:
                batch = list(islice(self._waiting, BATCH))
                try:
                    await self._ledger.append(batch)
                except (HutchError, TypeError, ValueError, OverflowError) as error:
                    self.failures += 1
                    self.failing = True
                    log("receipts").error("not written yet", waiting=len(self), error=error)
                    closing_attempts += self._closing.is_set()
                    if closing_attempts == CLOSING_ATTEMPTS:
                        return
                    self._replace_unencodable(len(batch))
                    await self._pause(pause)
                    pause = min(LONGEST_PAUSE, pause * 2)
                else:
                    pause, closing_attempts = SHORTEST_PAUSE, 0
                    self.failing = False
                    self._count(len(batch))
                    if self._may_wait_for_more():
                        self._timer = asyncio.get_running_loop().call_later(self._window, self._begin)
                        return
        finally:
            self._writing = None

    def _may_wait_for_more(self) -> bool:
        """Whether the next group should wait for more receipts, because each commit costs."""
        return 0 < len(self._waiting) < BATCH and not self._waiters and not self._closing.is_set()

    async def _pause(self, seconds: float) -> None:
        """Pause between two attempts; closing ends a long pause."""
        if self._closing.is_set():
            await asyncio.sleep(min(seconds, CLOSING_PAUSE))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _replace_unencodable(self, count: int) -> None:
        """Replace receipts among the first `count` that cannot be encoded.

        That is a defect of ours, and such a receipt must neither hold up the others nor vanish.
        """
        for place in range(count):
            draft = self._waiting[place]
            if not _encodable(draft):
                log("receipts").error("a receipt cannot be encoded", box=draft.box, op=draft.op)
                plain = draft.but(details={"unwritable": True})
                self._waiting[place] = plain if _encodable(plain) else _gap_for(draft)

    def _count(self, written: int) -> None:
        for _ in range(written):
            self._waiting.popleft()
        self._committed += written
        waiters, self._waiters = self._waiters, []
        for number, future in waiters:
            if number > self._committed:
                self._waiters.append((number, future))
            elif not future.done():  # otherwise its caller has given up
                future.set_result(None)


def _encodable(draft: Receipt) -> bool:
    try:
        draft.to_json()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _gap_for(draft: Receipt) -> Receipt:
    return Receipt(box=draft.box, owner=draft.owner, at=draft.at, op=GAP, details={"unwritable": str(draft.op)})
