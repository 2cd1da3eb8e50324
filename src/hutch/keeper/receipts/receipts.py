"""The receipts of a keeper: written for each change and operation, read, verified, exported and pruned."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from hutch.errors import HutchError, Invalid, NotFound, Unavailable
from hutch.keeper.access.callers import current_caller, keeper_context
from hutch.keeper.boxes.records import POOL_OWNER, BoxRecord
from hutch.keeper.receipts import losses
from hutch.keeper.receipts.operations import Operations
from hutch.keeper.store.store import Store
from hutch.logs import log
from hutch.model.boxes import Event, State
from hutch.model.compatibility import decode_record
from hutch.model.receipts import ARRIVED, LEFT, OWNER_LOG, Chain, ChainCheck, Details, Receipt
from hutch.model.record import encode_json

# What writes and checks chains is loaded at first use: `hutch run` keeps no receipts.
if TYPE_CHECKING:
    from hutch.keeper.receipts.chain import Row
    from hutch.keeper.receipts.ledger import Ledger
    from hutch.keeper.receipts.queue import ReceiptQueue
    from hutch.keeper.store.state_key import StateKey

OWN_OPS = r"(tool|mcp|note)\.[a-z0-9_.-]{1,60}"
"""Operations that a caller may record: none of them can be mistaken for one of the keeper's."""
MAX_DETAILS = 32
MAX_NOTE_BYTES = 16384
MAX_ERROR_CODE = 40
PAGE = 1000
PRUNE_SECONDS = 3600.0
PRUNE_EVERY_BOXES = 64
"""About one in this many new boxes starts pruning too: a short-lived program never reaches the hourly run."""

_STATE_OPS = {
    (State.PAUSED, State.RUNNING): "box.resumed",
    (State.CREATING, State.RUNNING): "box.running",
    (State.RESTORING, State.RUNNING): "box.running",
}


class Receipts:
    """The receipts of one keeper. With mode `off` nothing is written; earlier receipts can still be read."""

    def __init__(
        self, ledger: "Ledger | None", *, mode: str = "on", days: float = 30.0, most: int = 1_000_000,
        key: "StateKey | None" = None,
    ) -> None:  # fmt: skip
        """Without a ledger, receipts are kept in memory; without a key, digests can be proven only by this process.

        `most` is the number of receipts kept for each owner.
        """
        self._given = ledger
        self._key = key
        self._days = days
        self._most = most
        self.queue = self._new_queue() if mode != "off" else None
        self.operations = Operations(self.queue, self.key if self.queue is not None else None, strict=mode == "strict")
        self._retention: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None

    @cached_property
    def key(self) -> "StateKey":
        """The key that proves texts which receipts do not show whole."""
        from hutch.keeper.store.state_key import StateKey

        return self._key or StateKey()

    @cached_property
    def _ledger(self) -> "Ledger":
        if self._given is not None:
            return self._given
        from hutch.keeper.receipts.ledger import MemoryLedger

        return MemoryLedger()

    def _new_queue(self) -> "ReceiptQueue":
        from hutch.keeper.receipts.queue import ReceiptQueue

        return ReceiptQueue(self._ledger)

    def start(self, store: Store) -> None:
        """Start the background task that ends chains of lost boxes, and then prunes every hour."""
        if self.queue is not None and self._retention is None:
            self._retention = asyncio.create_task(
                self._maintain(store), name="hutch-retention", context=keeper_context()
            )

    async def close(self) -> tuple[Receipt, ...]:
        """Write what waits and close; return the receipts that were lost."""
        if self._retention is not None:
            self._retention.cancel()
            with suppress(asyncio.CancelledError):
                await self._retention
            self._retention = None
        if self._pruning is not None:
            await asyncio.wait({self._pruning})
        lost = await self.queue.close() if self.queue is not None else ()
        if self._given is not None:
            await self._given.close()
        return lost

    # --- writing --------------------------------------------------------------------------------------------------

    def witness(self, old: BoxRecord | None, new: BoxRecord, event: Event | None) -> Awaitable[None] | None:
        """Record a change of a box; `States` calls this for every change, in the task that makes it."""
        if old is None:
            self._maybe_prune(new.id)
        number = 0
        if new.owner == POOL_OWNER:
            return None  # a chain begins with the box's first owner
        if old is not None and old.keeper != new.keeper:
            number = self._write(new, ARRIVED, {"keeper": new.keeper, "before": old.keeper})
        if old is not None and new.left_at > old.left_at:
            number = self.record_left(new)
        if event is not None and event.kind != "adopted":
            number = self._write(
                new, _event_op(event), {"reason": event.reason} if event.reason else {}, _creating_session(new, event)
            )
        return self._try_committed(number) if number and self.operations.strict else None

    def record_left(self, record: BoxRecord) -> int:
        """Record that this keeper ends and has written everything, so that the next one finds no gap."""
        return self._write(record, LEFT, {"keeper": record.keeper}) if record.owner != POOL_OWNER else 0

    async def note(
        self, box_id: str, op: str, details: Details | None = None, *, owner: str | None, session: str = "",
        error: str = "", duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Record a note of the caller's: a tool that was allowed, a person who approved.

        Without a box it goes into the owner's log. With `owner` None, the box may be anybody's.
        """
        if not re.fullmatch(OWN_OPS, op):
            raise Invalid(
                f"{op[:80]!r} is no name for a note",
                op="receipts.note",
                remedy="tool.NAME, mcp.NAME or note.NAME, in lower case",
            )
        if not 0 <= duration_ms < math.inf:
            raise Invalid(f"a note cannot have taken {duration_ms} ms", op="receipts.note")
        shown, digests = self.operations.shown_details(details or {})
        if len(shown) > MAX_DETAILS or len(encode_json(shown)) > MAX_NOTE_BYTES:
            raise Invalid(
                f"a note has at most {MAX_DETAILS} details, and {MAX_NOTE_BYTES} bytes of JSON", op="receipts.note"
            )
        if self.queue is None:
            return
        at = time.time()  # not the caller's choice: nobody can date a note before earlier receipts
        box, chain_owner = await self._note_target(box_id, owner, at)
        draft = Receipt(
            box=box, owner=chain_owner, at=at, op=op, who=current_caller(session), details=shown, digests=digests,
            error=error[:MAX_ERROR_CODE], duration_ms=round(duration_ms, 3),
        )  # fmt: skip
        await self._committed(self.operations.finish(draft))

    async def _note_target(self, box_id: str, owner: str | None, at: float) -> tuple[str, str]:
        if not box_id:
            if owner is None:
                raise Invalid("a note of nobody's needs a box", op="receipts.note")
            from hutch.keeper.receipts.chain import owner_log

            return owner_log(owner, at), owner
        chain = await self._chain(box_id, owner)
        if chain.pruned_at or chain.box.startswith(OWNER_LOG):
            raise NotFound(f"nothing is added to {box_id} any more", op="receipts.note")
        return chain.box, chain.owner

    def _write(self, record: BoxRecord, op: str, details: Details, session: str = "") -> int:
        if not self.operations.observed:
            return 0
        shown, digests = self.operations.shown_details(details)
        draft = Receipt(
            box=record.id, owner=record.owner, at=time.time(), op=op, who=current_caller(session), details=shown,
            digests=digests, policy=self.operations.policy(record),
        )  # fmt: skip
        return self.operations.finish(draft)

    async def _committed(self, number: int) -> None:
        if self.operations.strict and self.queue is not None and number:
            await self.queue.committed(number)

    async def _try_committed(self, number: int) -> None:
        """Wait for the commit, but let the change of the box go on if receipts cannot be written: they stay queued."""
        with suppress(Unavailable):  # the queue has logged it
            await self._committed(number)

    async def flush(self) -> None:
        """Wait until all receipts so far are committed."""
        if self.queue is not None:
            await self.queue.flush()

    # --- reading --------------------------------------------------------------------------------------------------

    async def list(
        self, box_id: str, after: int = 0, limit: int = PAGE, *, owner: str | None = None
    ) -> tuple[Receipt, ...]:
        """Return receipts in order, after number `after`.

        Raises:
            NotFound: the box has no receipts, or not this owner's.
        """
        await self.flush()
        chain = await self._chain(box_id, owner)
        return tuple([_shown(row) for row in await self._ledger.rows(chain.box, after, limit)])

    async def matches(self, box_id: str, number: int, detail: str, text: str) -> bool:
        """Whether a detail was exactly this text, also where the receipt shows it cut or with hidden parts.

        Only users of the state directory may ask: over HTTP, hidden parts could be guessed one by one.
        """
        found = await self.list(box_id, number - 1, 1) if number > 0 else ()
        if not found or found[0].seq != number or detail not in found[0].details:
            raise NotFound(f"receipt {number} of box {box_id} has no {detail!r}", remedy="`hutch receipts list BOX`")
        kept = found[0].digests.get(detail)
        if kept is None:
            return found[0].details[detail] == text
        if kept.partition(":")[0] != self.key.id:
            raise Invalid(
                f"receipt {number} was written with another key ({kept.partition(':')[0]})", op="receipts.matches",
                remedy="use the state directory that it was written with",
            )  # fmt: skip
        return kept == self.key.digest(detail, text)

    async def chains(self, owner: str | None = None) -> tuple[Chain, ...]:
        """Return all chains ordered by box, including pruned ones."""
        await self.flush()
        return tuple([chain async for chain in self._each_chain(owner)])

    async def verify(self, box_id: str = "", *, owner: str | None = None) -> tuple[ChainCheck, ...]:
        """Verify one box's chain, or all."""
        await self.flush()
        if box_id:
            return (await self._check(await self._chain(box_id, owner)),)
        return tuple([await self._check(chain) async for chain in self._each_chain(owner)])

    async def export(self, box_id: str = "", *, owner: str | None = None) -> AsyncIterator[bytes]:
        """Yield lines of JSON that `check_export` can verify anywhere: receipts, the head after each chain, and a last
        line with counts and digest of the whole."""
        import hashlib  # it loads OpenSSL, and few programs export

        await self.flush()
        digest, chains, receipts = hashlib.sha256(), 0, 0
        wanted = [await self._chain(box_id, owner)] if box_id else [chain async for chain in self._each_chain(owner)]
        for chain in wanted:
            chains += 1
            after = 0
            while after < chain.count and not chain.pruned_at:
                page = await self._ledger.rows(chain.box, after, min(PAGE, chain.count - after))
                if not page:
                    break
                after = page[-1].seq
                receipts += len(page)
                piece = b"".join(row.line + b"\n" for row in page)
                digest.update(piece)
                yield piece
            line = msgspec.json.encode({"chain": chain}) + b"\n"
            digest.update(line)
            yield line
        yield trailer(chains, receipts, digest.hexdigest()) + b"\n"

    async def _check(self, chain: Chain) -> ChainCheck:
        from hutch.keeper.receipts.chain import ChainVerifier

        if chain.pruned_at:
            problem = await self._pruning_problem(chain)
            return ChainCheck(
                box=chain.box, owner=chain.owner, ok=not problem, broken=0 if problem else None, problem=problem,
                pruned_at=chain.pruned_at, pruned_why=chain.pruned_why,
            )  # fmt: skip
        verifier = ChainVerifier(chain.box, chain.owner)
        while page := await self._ledger.rows(chain.box, verifier.count, PAGE):
            if not verifier.check(page):
                break
        # Receipts may have been added meanwhile, so the head is read again.
        return verifier.result(await self._ledger.chain(chain.box) or chain)

    async def _pruning_problem(self, chain: Chain) -> str:
        from hutch.keeper.receipts.chain import pruning_problem

        if await self._ledger.rows(chain.box, 0, 1):
            return "the head record tells that they were pruned, and some are there"
        if chain.pruned_why is None:
            return "the receipts are gone, and no rule of retention says why"
        return pruning_problem(chain, await self._ledger.count_held(chain.owner, chain.pruned_at))

    async def _chain(self, box_id: str, owner: str | None) -> Chain:
        found = await self._ledger.chain(box_id)
        if found is None and self.queue is not None and len(self.queue):
            await self.queue.flush()  # a new box: its first receipt is still queued
            found = await self._ledger.chain(box_id)
        if found is None or owner not in (None, found.owner):
            raise NotFound(f"there are no receipts of box {box_id}", remedy="`hutch receipts list` shows the chains")
        return found

    async def _each_chain(self, owner: str | None) -> AsyncIterator[Chain]:
        after = ""
        while page := await self._ledger.chains(owner, after, PAGE):
            for chain in page:
                yield chain
            after = page[-1].box

    # --- retention ------------------------------------------------------------------------------------------------

    async def prune(self) -> int:
        """Remove chains that retention does not keep; return how many."""
        gone = await self._ledger.prune(time.time() - self._days * 86400, self._most)
        if gone:
            log("receipts").info("chains of destroyed boxes pruned", chains=gone, days=self._days, most=self._most)
        return gone

    async def _maintain(self, store: Store) -> None:
        try:
            await losses.end_chains(self._ledger, store)
        except HutchError as error:
            log("receipts").warning("chains without an end could not be searched", error=error)
        while True:
            await asyncio.sleep(PRUNE_SECONDS)
            await self._prune_once()

    def _maybe_prune(self, box_id: str) -> None:
        busy = self._pruning is not None and not self._pruning.done()
        if self.queue is not None and not busy and crc32(box_id.encode()) % PRUNE_EVERY_BOXES == 0:
            self._pruning = asyncio.create_task(self._prune_once(), name="hutch-retention", context=keeper_context())

    async def _prune_once(self) -> None:
        try:
            await self.prune()
        except HutchError as error:
            log("receipts").warning("receipts could not be pruned", error=error)


def trailer(chains: int, receipts: int, digest: str) -> bytes:
    """Return the last line of an export."""
    return msgspec.json.encode({"export": {"chains": chains, "receipts": receipts, "digest": digest}})


def _creating_session(record: BoxRecord, event: Event) -> str:
    """Return the session that a box was created for."""
    return record.lease.holder if record.lease is not None and event.kind in ("created", "claimed") else ""


def _event_op(event: Event) -> str:
    if event.kind == "state":
        return _STATE_OPS.get((State(event.old), State(event.new)), f"box.{event.new}")
    return f"box.{event.kind}"


def _shown(row: "Row") -> Receipt:
    """Decode a stored receipt.

    Raises:
        Invalid: its bytes are not a receipt any more.
    """
    try:
        return decode_record(row.line, Receipt)
    except Invalid as error:
        raise Invalid(
            f"receipt {row.seq} cannot be read: {error.message}", op="receipts.list", remedy="hutch receipts verify"
        ) from error
