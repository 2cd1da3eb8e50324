"""From an operation's end to the ledger: receipts wait in a queue and are committed in groups, off the reply path.

Nothing is dropped while the keeper lives: a ledger that fails is tried again, and when the queue is full whoever wants
to begin an operation waits, and is then refused. So what cannot be recorded is not done. Only the end is bounded: what
cannot be written after a few tries more is handed back as lost.
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
"""How long the first of a group waits for others."""
BATCH = 512
MOST = 8192
"""Receipts that may wait."""
PATIENCE_SECONDS = 10.0
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
CLOSING_TRIES = 3
CLOSING_PAUSE = 0.5


class ReceiptQueue:
    """One writer at a time; what comes while it writes is the next group."""

    def __init__(self, ledger: Ledger, *, window: float = WINDOW_SECONDS) -> None:
        self._ledger = ledger
        self._window = window
        self._waiting: deque[Receipt] = deque()
        """In order; one leaves when it is on record."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._taken = 0
        """Receipts that were ever put here; so each has a number."""
        self._committed = 0
        self._asking: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until how many are committed."""
        self._closing = asyncio.Event()
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

    async def close(self) -> tuple[Receipt, ...]:
        """Everything that waits is written, in bounded tries and time; what could not be is lost, and returned."""
        self._closing.set()
        if self._waiting and self._writing is None:
            self._begin()
        if self._writing is not None:
            _, late = await asyncio.wait({self._writing}, timeout=PATIENCE_SECONDS)
            for writer in late:
                writer.cancel()
        lost = tuple(self._waiting)
        if lost:
            log("receipts").error(
                "receipts lost at the end: their chains will tell of a gap",
                count=len(lost), boxes=sorted({draft.box for draft in lost})[:20],
            )  # fmt: skip
        return lost

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
        self._writing = asyncio.create_task(self._write(), name="hutch-receipts", context=keeper_context())

    async def _write(self) -> None:
        pause, last_tries = SHORTEST_PAUSE, 0
        try:
            while self._waiting:
                batch = list(islice(self._waiting, BATCH))
                try:
                    await self._ledger.append(batch)
                except (HutchError, TypeError, ValueError, OverflowError) as error:
                    self.failures += 1
                    self.failing = True
                    log("receipts").error("not written yet", waiting=len(self), error=error)
                    last_tries += self._closing.is_set()
                    if last_tries == CLOSING_TRIES:
                        return
                    self._mend(len(batch))
                    await self._rest(pause)
                    pause = min(LONGEST_PAUSE, pause * 2)
                else:
                    pause, last_tries = SHORTEST_PAUSE, 0
                    self.failing = False
                    self._count(len(batch))
                    if self._may_wait():
                        self._timer = asyncio.get_running_loop().call_later(self._window, self._begin)
                        return
        finally:
            self._writing = None

    def _may_wait(self) -> bool:
        """Whether what came meanwhile is a group that has just begun: each commit has its price."""
        return 0 < len(self._waiting) < BATCH and not self._asking and not self._closing.is_set()

    async def _rest(self, seconds: float) -> None:
        """Between two tries; whoever closes does not wait for a long one to end."""
        if self._closing.is_set():
            await asyncio.sleep(min(seconds, CLOSING_PAUSE))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _mend(self, count: int) -> None:
        """Of the first so many: a receipt that cannot be put into words at all, a defect of ours, must neither hold up
        the others nor vanish."""
        for place in range(count):
            draft = self._waiting[place]
            if not _tellable(draft):
                log("receipts").error("a receipt cannot be put into words", box=draft.box, op=draft.op)
                plain = draft.but(details={"unwritable": True})
                self._waiting[place] = plain if _tellable(plain) else _gap_for(draft)

    def _count(self, written: int) -> None:
        for _ in range(written):
            self._waiting.popleft()
        self._committed += written
        asking, self._asking = self._asking, []
        for number, future in asking:
            if number > self._committed:
                self._asking.append((number, future))
            elif not future.done():  # else it gave up
                future.set_result(None)


def _tellable(draft: Receipt) -> bool:
    try:
        draft.to_json()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _gap_for(draft: Receipt) -> Receipt:
    return Receipt(box=draft.box, owner=draft.owner, at=draft.at, op=GAP, details={"unwritable": str(draft.op)})
