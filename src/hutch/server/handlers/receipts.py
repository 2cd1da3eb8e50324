"""Receipts over HTTP: what was done to boxes and by whom, whether it is what was written, and a caller's own notes."""

from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec

from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt, Who
from hutch.model.record import Record
from hutch.server.access import check_owner
from hutch.server.auth import Caller
from hutch.server.request import NDJSON, Call, Reply

ChainText = Annotated[str, msgspec.Meta(pattern="^([a-z0-9]{20}|daybook-[0-9]{8}-[0-9a-f]{24})?$")]
NoteOp = Annotated[str, msgspec.Meta(pattern=r"^(tool|mcp|note)\.[a-z0-9_.-]{1,60}$")]


class ReceiptsQuery(Record, frozen=True, kw_only=True):
    box: ChainText = ""
    """Also one that is gone, or a daybook. Without it the chains are listed, or all are exported."""
    after: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000


class ReceiptPage(Record, frozen=True, kw_only=True):
    receipts: tuple[Receipt, ...] = ()
    chains: tuple[Chain, ...] = ()
    """Without a box: one for each that has, or had, receipts."""
    last: int = 0
    """Pass it as `after` to go on."""


class VerifyBody(Record, frozen=True, kw_only=True):
    box: ChainText = ""


class Verified(Record, frozen=True, kw_only=True):
    ok: bool
    chains: tuple[ChainCheck, ...]


class NoteBody(Record, frozen=True, kw_only=True):
    op: NoteOp
    details: dict[str, Detail] = msgspec.field(default_factory=dict)
    """At most 32; secrets of live boxes are hidden."""
    error: Annotated[str, msgspec.Meta(pattern="^[a-z0-9_]{0,40}$")] = ""
    """The code it ended with; empty: it was done."""
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


async def read(call: Call, query: ReceiptsQuery) -> Reply:
    """A page of one box's receipts, or the chains there are. Accept: application/x-ndjson exports whole chains, in the
    form that `hutch receipts verify --file` checks."""
    receipts = call.own.receipts
    if call.accepts(NDJSON):
        return Reply(_exported(call, query.box), type=NDJSON)
    if not query.box:
        return Reply(ReceiptPage(chains=await receipts.chains()))
    page = await receipts.list(query.box, query.after, query.limit)
    return Reply(ReceiptPage(receipts=page, last=page[-1].seq if page else query.after))


async def verify(call: Call, body: VerifyBody) -> Reply:
    """Whether every receipt of a box, or of all the owner's, is what was written."""
    found = await call.own.receipts.verify(body.box)
    return Reply(Verified(ok=all(check.ok for check in found), chains=found))


async def note(call: Call, body: NoteBody) -> Reply:
    """Put a word of the caller's own into the box's chain: a tool that was allowed, a person who approved. It needs no
    lease and extends nothing; the box may be gone."""
    await check_owner(call)
    return await _noted(call, call.params["box"], body)


async def note_without_box(call: Call, body: NoteBody) -> Reply:
    """Put a word of the caller's own into its owner's daybook: what was decided before there was a box."""
    return await _noted(call, "", body)


async def _noted(call: Call, box: str, body: NoteBody) -> Reply:
    await call.own.receipts.note(box, body.op, body.details, error=body.error, duration_ms=body.duration_ms)
    return Reply(status=204)


def who_of(caller: Caller, request: str) -> Who:
    """As receipts name whoever was let in."""
    return Who(
        session=caller.session, role=str(caller.role), key=caller.key_id, request=request, admin=caller.over_all
    )  # fmt: skip


async def _exported(call: Call, box: str) -> AsyncGenerator[bytes, None]:
    async for piece in call.own.receipts.export(box):
        yield piece
