"""Where receipts are kept: the protocol every ledger keeps, and the ledger in memory."""

import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from hutch.keeper.receipt_chain import Row, link
from hutch.model.receipts import Chain, Receipt

HEADS_KEPT_SECONDS = 365 * 86400.0
"""How long the head of a pruned chain stays, to tell that it was pruned and not stolen."""
MEMORY_ROWS = 50_000
MEMORY_HEADS = 5_000
"""Of pruned chains: a process that makes boxes for months does not remember each."""


PRUNED_AT_ONCE = 500
"""Chains, in one transaction: whoever appends waits for no more, and no ledger is read into memory."""


class Ended(NamedTuple):
    """What retention asks of the chain of a gone box."""

    box: str
    receipts: int
    ended_at: float


class Ledger(Protocol):
    """Only ever appended to, and pruned by whole chains."""

    async def append(self, drafts: Sequence[Receipt]) -> None:
        """Seal them into the chains of their boxes, all in one transaction."""

    async def chain(self, box: str) -> Chain | None: ...

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        """By box id, from past `after` on; of one owner, or of all."""

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        """In the order of their numbers."""

    async def prune(self, before: float, most: int) -> int:
        """Remove the chains of gone boxes that ended before a time, and the oldest beyond so many receipts in all.
        Their heads stay, and say so. How many chains went."""

    async def close(self) -> None: ...


def by_box(drafts: Sequence[Receipt]) -> list[tuple[str, list[Receipt]]]:
    """In the order they came, box by box."""
    return [(box, list(each)) for box, each in groupby(sorted(drafts, key=attrgetter("box")), key=attrgetter("box"))]


def expired(oldest: Sequence[Ended], total: int, before: float, most: int) -> list[Ended]:
    """Which of the ended chains should go, `total` receipts being there: those that ended before a time, and the first
    past `most`. A daybook says ahead when it will end; until then it is written to."""
    going: list[Ended] = []
    now = time.time()
    for chain in oldest:
        if chain.ended_at > now or (chain.ended_at >= before and total <= most):
            break
        total -= chain.receipts
        going.append(chain)
    return going


class MemoryLedger:
    """The ledger of a process whose records are in memory too."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}
        self._rows: dict[str, list[Row]] = {}
        self._total = 0

    async def append(self, drafts: Sequence[Receipt]) -> None:
        linked = [(box, *link(self._chains.get(box), each)) for box, each in by_box(drafts)]
        for box, chain, rows in linked:
            self._chains[box] = chain
            self._rows.setdefault(box, []).extend(rows)
            self._total += len(rows)
        if self._total > MEMORY_ROWS:
            await self.prune(0.0, MEMORY_ROWS // 2)

    async def chain(self, box: str) -> Chain | None:
        return self._chains.get(box)

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        found = (chain for box, chain in sorted(self._chains.items()) if box > after)
        return [chain for chain in found if owner in (None, chain.owner)][:limit]

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        return [row for row in self._rows.get(box, ()) if row.seq > after][:limit]

    async def prune(self, before: float, most: int) -> int:
        now = time.time()
        ended = [
            Ended(chain.box, chain.count, chain.ended_at)
            for chain in self._chains.values()
            if chain.ended_at and not chain.pruned_at
        ]
        going = expired(sorted(ended, key=attrgetter("ended_at")), self._total, before, most)
        for chain in going:
            self._total -= len(self._rows.pop(chain.box, ()))
            self._chains[chain.box] = self._chains[chain.box].but(pruned_at=now)
        pruned = sorted([chain for chain in self._chains.values() if chain.pruned_at], key=attrgetter("pruned_at"))
        for head in pruned[: max(0, len(pruned) - MEMORY_HEADS)]:
            del self._chains[head.box]
        return len(going)

    async def close(self) -> None:
        return None
