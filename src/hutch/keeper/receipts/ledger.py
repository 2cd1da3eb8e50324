"""Where receipts are kept: the protocol every ledger keeps, and the ledger in memory."""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from hutch.keeper.receipts.chain import Row, link
from hutch.model.receipts import Chain, Pruned, Receipt

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


class Ledger(Protocol):
    """Only ever appended to, and pruned by whole chains."""

    async def append(self, drafts: Sequence[Receipt]) -> None:
        """Seal them into the chains of their boxes, all in one transaction."""

    async def chain(self, box: str) -> Chain | None: ...

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        """By box id, from past `after` on; of one owner, or of all."""

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        """In the order of their numbers."""

    async def held(self, owner: str, since: float) -> int:
        """How many receipts an owner's chains have that were there at a time, pruned later or not."""

    async def prune(self, before: float, most: int) -> int:
        """Remove the chains of gone boxes that ended before a time, and of each owner the oldest beyond so many
        receipts: nobody's receipts make those of another go. Their heads stay, and say why. How many chains went.

        A daybook says ahead when it will end; until then it is written to, and stays."""

    async def close(self) -> None: ...


def by_box(drafts: Sequence[Receipt]) -> list[tuple[str, list[Receipt]]]:
    """In the order they came, box by box."""
    return [(box, list(each)) for box, each in groupby(sorted(drafts, key=attrgetter("box")), key=attrgetter("box"))]


def beyond(oldest: Iterable[Ended], total: int, most: int) -> list[str]:
    """Which of an owner's ended chains should go, of whose receipts there are `total`: the oldest, until `most` are
    left."""
    going: list[str] = []
    for chain in oldest:
        if total <= most:
            break
        total -= chain.receipts
        going.append(chain.box)
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
            # An equal share for each: whoever has less than his loses nothing.
            owners = {self._chains[box].owner for box in self._rows}
            await self.prune(0.0, MEMORY_ROWS // 2 // len(owners))

    async def chain(self, box: str) -> Chain | None:
        return self._chains.get(box)

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        found = (chain for box, chain in sorted(self._chains.items()) if box > after)
        return [chain for chain in found if owner in (None, chain.owner)][:limit]

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        return [row for row in self._rows.get(box, ()) if row.seq > after][:limit]

    async def held(self, owner: str, since: float) -> int:
        mine = (chain for chain in self._chains.values() if chain.owner == owner)
        return sum(chain.count for chain in mine if not chain.pruned_at or chain.pruned_at >= since)

    async def prune(self, before: float, most: int) -> int:
        now = time.time()
        there = sorted([chain for chain in self._chains.values() if not chain.pruned_at], key=attrgetter("ended_at"))
        ended = [chain for chain in there if 0 < chain.ended_at <= now]
        aged = {chain.box for chain in ended if chain.ended_at < before}
        going = dict.fromkeys(aged, (Pruned.AGE, now - before))
        for owner in {chain.owner for chain in there}:
            left = [chain for chain in there if chain.owner == owner and chain.box not in aged]
            oldest = [Ended(chain.box, chain.count) for chain in left if 0 < chain.ended_at <= now]
            over = beyond(oldest, sum(chain.count for chain in left), most)
            going |= dict.fromkeys(over, (Pruned.ROWS, float(most)))
        for box, (why, limit) in going.items():
            self._total -= len(self._rows.pop(box, ()))
            self._chains[box] = self._chains[box].but(pruned_at=now, pruned_why=why, pruned_limit=limit)
        pruned = sorted([chain for chain in self._chains.values() if chain.pruned_at], key=attrgetter("pruned_at"))
        for head in pruned[: max(0, len(pruned) - MEMORY_HEADS)]:
            del self._chains[head.box]
        return len(going)

    async def close(self) -> None:
        return None
