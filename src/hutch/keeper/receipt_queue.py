"""From an operation's end to the ledger: receipts wait in a queue and are committed in groups, off the reply path.

Nothing is dropped: a ledger that fails is tried again, and when the queue is full whoever wants to begin an operation
waits, and is then refused. So what cannot be recorded is not done.
"""

import asyncio
from collections import deque

from hutch.errors import HutchError, Unavailable
from hutch.keeper.callers import unasked
from hutch.keeper.ledger import Ledger
from hutch.logs import log
from hutch.model.receipts import Receipt

WINDOW_SECONDS = 0.01
"""How long the first of a group waits for others."""
BATCH = 512
MOST = 8192
"""Receipts that may wait."""
PATIENCE_SECONDS = 10.0
LONGEST_PAUSE = 5.0


class ReceiptQueue:
    """One writer at a time; what comes while it writes is the next group."""

    def __init__(self, ledger: Ledger, *, window: float = WINDOW_SECONDS) -> None:
        self._ledger = ledger
        self._window = window
        self._waiting: deque[Receipt] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._taken = 0
        """Receipts that were ever put here; so each has a number."""
        self._committed = 0
        self._asking: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until how many are committed."""
        self._closing = False
        self.failures = 0
        """Commits that failed, and were tried again."""
        self.failing = False
        """The last one did."""

    def __len__(self) -> int:
        return self._taken - self._committed

    @property
    def written(self) -> int:
        """How many are on record."""
        return self._committed

    @property
    def full(self) -> bool:
        return self._taken - self._committed >= MOST

    def put(self, draft: Receipt) -> int:
        """Its number, to wait for."""
        self._waiting.append(draft)
        self._taken += 1
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(self._window, self._begin)
        return self._taken

    async def room(self) -> None:
        """Until there is room for one more."""
        try:
            await self._reached(self._taken - MOST + 1)
        except TimeoutError:
            raise Unavailable(
                f"{len(self)} receipts wait to be written: nothing is done that cannot be recorded",
                retry_after=LONGEST_PAUSE,
                remedy="look at the disk or database that holds the receipts, or set receipts = off",
            ) from None

    async def committed(self, number: int) -> None:
        """Until this receipt is on record."""
        if self._timer is not None and self._writing is None:
            self._begin()  # somebody waits for it: the group is closed now
        try:
            await self._reached(number)
        except TimeoutError:
            raise Unavailable(
                "the operation was done, and its receipt could not be written",
                retryable=False,
                details={"done": True},
                remedy="look at the disk or database that holds the receipts",
            ) from None

    async def settled(self) -> None:
        """Until everything that is here now is on record."""
        if not len(self):
            return
        if self._writing is None:
            self._begin()
        try:
            await self._reached(self._taken)
        except TimeoutError:
            raise Unavailable(
                f"{len(self)} receipts cannot be written now",
                remedy="look at the disk or database that holds the receipts",
            ) from None

    async def close(self) -> None:
        """Everything that waits is written; what cannot be is counted in the log."""
        self._closing = True
        if self._waiting and self._writing is None:
            self._begin()
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=PATIENCE_SECONDS)
        if left := len(self):
            log("receipts").error("receipts lost at the end: their chains will tell of a gap", count=left)

    async def _reached(self, number: int) -> None:
        if self._committed >= number:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.append((number, future))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await future

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writing = asyncio.create_task(self._write(), name="hutch-receipts", context=unasked())

    async def _write(self) -> None:
        pause = 0.05
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                try:
                    await self._ledger.append(batch)
                except HutchError as error:
                    self._waiting.extendleft(reversed(batch))
                    self.failures += 1
                    self.failing = True
                    log("receipts").error("not written yet", waiting=len(self), error=error)
                    if self._closing:
                        return
                    await asyncio.sleep(pause)
                    pause = min(LONGEST_PAUSE, pause * 2)
                except (TypeError, ValueError, OverflowError) as error:
                    # A defect of ours: what cannot be written down must not hold up, or take with it, the others.
                    self.failures += 1
                    log("receipts").error("details could not be written down", receipts=len(batch), error=error)
                    self._waiting.extendleft(draft.but(details={"unwritable": True}) for draft in reversed(batch))
                    await asyncio.sleep(pause)
                else:
                    pause = 0.05
                    self.failing = False
                    self._count(len(batch))
        finally:
            self._writing = None

    def _count(self, written: int) -> None:
        self._committed += written
        asking, self._asking = self._asking, []
        for number, future in asking:
            if number > self._committed:
                self._asking.append((number, future))
            elif not future.done():  # else it gave up
                future.set_result(None)
