"""The protocol of every receipt ledger, and the ledger in memory."""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from hutch.keeper.receipts.chain import Row, link
from hutch.model.receipts import Chain, Pruned, Receipt

HEADS_KEPT_SECONDS = 365 * 86400.0
"""Time for which the head of a pruned chain stays, as proof that retention removed it."""
MEMORY_ROWS = 50_000
MEMORY_HEADS = 5_000
"""Heads of pruned chains that stay in memory, so that a process which creates boxes for months does not grow."""
PRUNE_BATCH = 500
"""Chains removed in one transaction, which bounds both the wait of writers and the memory."""


class EndedChain(NamedTuple):
    """The chain of a destroyed box, and how many receipts retention gains by removing it."""

    box: str
    receipts: int


class Ledger(Protocol):
    """Stores receipts. It is only appended to, and retention removes whole chains."""

    async def append(self, drafts: Sequence[Receipt]) -> None:
        """Append drafts to the chains of their boxes, all in one transaction."""

    async def chain(self, box: str) -> Chain | None: ...

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        """Return chains ordered by box id, after `after`; of one owner, or of all."""

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        """Return rows ordered by number, after number `after`."""

    async def count_held(self, owner: str, since: float) -> int:
        """Count the receipts of the owner's chains that existed at that time, pruned later or not."""

    async def prune(self, before: float, most: int) -> int:
        """Remove chains of destroyed boxes that ended before that time, and each owner's oldest beyond `most` receipts.

        One owner's receipts never displace another's. The heads stay and say why. Returns the number of chains removed.
        An owner log names its end in advance; until then it is written to, and stays.
        """

    async def close(self) -> None: ...


def by_box(drafts: Sequence[Receipt]) -> list[tuple[str, list[Receipt]]]:
    """Group drafts by box, each group in the order of arrival."""
    return [(box, list(each)) for box, each in groupby(sorted(drafts, key=attrgetter("box")), key=attrgetter("box"))]


def oldest_beyond(oldest: Iterable[EndedChain], total: int, most: int) -> list[str]:
    """Choose which of an owner's ended chains to remove, oldest first, until `most` of `total` receipts are left."""
    removed: list[str] = []
    for chain in oldest:
        if total <= most:
            break
        total -= chain.receipts
        removed.append(chain.box)
    return removed


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
            # Each owner has an equal share; an owner who uses less loses nothing.
            owners = {self._chains[box].owner for box in self._rows}
            await self.prune(0.0, MEMORY_ROWS // 2 // len(owners))

    async def chain(self, box: str) -> Chain | None:
        return self._chains.get(box)

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        found = (chain for box, chain in sorted(self._chains.items()) if box > after)
        return [chain for chain in found if owner in (None, chain.owner)][:limit]

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        return [row for row in self._rows.get(box, ()) if row.seq > after][:limit]

    async def count_held(self, owner: str, since: float) -> int:
        mine = (chain for chain in self._chains.values() if chain.owner == owner)
        return sum(chain.count for chain in mine if not chain.pruned_at or chain.pruned_at >= since)

    async def prune(self, before: float, most: int) -> int:
        now = time.time()
        there = sorted([chain for chain in self._chains.values() if not chain.pruned_at], key=attrgetter("ended_at"))
        ended = [chain for chain in there if 0 < chain.ended_at <= now]
        aged = {chain.box for chain in ended if chain.ended_at < before}
        removed = dict.fromkeys(aged, (Pruned.AGE, now - before))
        for owner in {chain.owner for chain in there}:
            left = [chain for chain in there if chain.owner == owner and chain.box not in aged]
            oldest = [EndedChain(chain.box, chain.count) for chain in left if 0 < chain.ended_at <= now]
            over = oldest_beyond(oldest, sum(chain.count for chain in left), most)
            removed |= dict.fromkeys(over, (Pruned.ROWS, float(most)))
        for box, (why, limit) in removed.items():
            self._total -= len(self._rows.pop(box, ()))
            self._chains[box] = self._chains[box].but(pruned_at=now, pruned_why=why, pruned_limit=limit)
        pruned = sorted([chain for chain in self._chains.values() if chain.pruned_at], key=attrgetter("pruned_at"))
        for head in pruned[: max(0, len(pruned) - MEMORY_HEADS)]:
            del self._chains[head.box]
        return len(removed)

    async def close(self) -> None:
        return None
