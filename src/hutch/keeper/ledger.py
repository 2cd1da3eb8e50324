"""Where receipts are kept: the protocol every ledger keeps, and the ledger in memory."""

import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from hutch.keeper.receipt_chain import Row, link
from hutch.model.receipts import Chain, Receipt

HEADS_KEPT_SECONDS = 365 * 86400.0
"""How long the head of a pruned chain stays, to tell that it was pruned and not stolen."""
MEMORY_ROWS = 50_000


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


def expired(chains: Sequence[Chain], before: float, most: int) -> list[Chain]:
    """Which of the chains there are should go: those of gone boxes that are too old, and the oldest past `most`."""
    there = [chain for chain in chains if not chain.pruned_at]
    total = sum(chain.count for chain in there)
    now = time.time()
    going: list[Chain] = []
    for chain in sorted(there, key=attrgetter("ended_at")):
        if 0 < chain.ended_at <= now and (chain.ended_at < before or total > most):
            total -= chain.count
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
        going = expired(list(self._chains.values()), before, most)
        for chain in going:
            self._total -= len(self._rows.pop(chain.box, ()))
            self._chains[chain.box] = chain.but(pruned_at=now)
        for chain in [chain for chain in self._chains.values() if 0 < chain.pruned_at < now - HEADS_KEPT_SECONDS]:
            del self._chains[chain.box]
        return len(going)

    async def close(self) -> None:
        return None
