"""Lost receipts: the keeper that could not write them reports events, and the next keeper records a gap.

A living box needs nothing for that: its chain does not end in `box.left`, so the keeper that takes it over records a
gap. The chain of a destroyed box would stay without an end, because nobody takes that box over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from hutch.errors import HutchError
from hutch.keeper.access.callers import NOBODY
from hutch.keeper.boxes.states import States
from hutch.keeper.store.store import Store
from hutch.logs import log
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.receipts import GAP, GONE, Chain, Receipt

if TYPE_CHECKING:
    from hutch.keeper.receipts.ledger import Ledger

PAGE = 1000
RECHECK_SECONDS = 10.0
"""Wait before a chain counts as ended: the last receipt of a box just destroyed may still be on its way."""


async def report_lost(states: States, lost: Iterable[Receipt]) -> None:
    """Announce one warning for each box; the disk that holds events may be the one that is full."""
    counts = Counter((draft.box, draft.owner) for draft in lost)
    for (box, owner), count in counts.items():
        reason = f"{count} receipts could not be written before the end: the chain has a gap"
        event = Event(seq=0, at=time.time(), box_id=BoxId(box), owner=owner, kind="warning", reason=reason)
        try:
            await states.announce(event)
        except HutchError as error:
            log("receipts").error("lost receipts could not be reported as events", boxes=len(counts), error=error)
            return


async def end_chains(ledger: "Ledger", store: Store) -> int:
    """Append a gap and the end to chains of destroyed boxes whose end was never written; return how many."""
    before = {chain.box: chain.count async for chain in _without_box(ledger, store)}
    if not before:
        return 0
    await asyncio.sleep(RECHECK_SECONDS)
    ended = 0
    async for chain in _without_box(ledger, store):
        if before.get(chain.box) == chain.count:
            await ledger.append(await _end_of(chain, store))
            ended += 1
    if ended:
        log("receipts").warning("chains of destroyed boxes had no end: a gap was recorded", chains=ended)
    return ended


async def _end_of(chain: Chain, store: Store) -> tuple[Receipt, Receipt]:
    now = time.time()
    tombstone = await store.tombstone(BoxId(chain.box))
    gap = Receipt(
        box=chain.box, owner=chain.owner, at=now, op=GAP, who=NOBODY, details={"from": chain.last_at, "to": now}
    )
    gone = gap.but(op=GONE, details={"reason": tombstone.reason} if tombstone is not None else {})
    return gap, gone


async def _without_box(ledger: "Ledger", store: Store) -> AsyncIterator[Chain]:
    after = ""
    while page := await ledger.chains(None, after, PAGE):
        after = page[-1].box
        for chain in page:
            if not chain.ended_at and not chain.pruned_at and await store.get(BoxId(chain.box)) is None:
                yield chain
