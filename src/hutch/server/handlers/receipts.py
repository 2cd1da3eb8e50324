"""Receipts over HTTP: what was done to boxes and by whom, verification of the chains, and callers' own notes."""

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
    """A box, also one that is gone, or an owner log. Without it the chains are listed, or all chains exported."""
    after: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000


class ReceiptPage(Record, frozen=True, kw_only=True):
    receipts: tuple[Receipt, ...] = ()
    chains: tuple[Chain, ...] = ()
    """Without a box: one chain for each box that has or had receipts."""
    last: int = 0
    """The value of `after` for the next page."""


class VerifyBody(Record, frozen=True, kw_only=True):
    box: ChainText = ""


class Verified(Record, frozen=True, kw_only=True):
    ok: bool
    chains: tuple[ChainCheck, ...]


class NoteBody(Record, frozen=True, kw_only=True):
    op: NoteOp
    details: dict[str, Detail] = msgspec.field(default_factory=dict)
    """At most 32 details; secrets of live boxes are redacted."""
    error: Annotated[str, msgspec.Meta(pattern="^[a-z0-9_]{0,40}$")] = ""
    """The error code; empty if the operation succeeded."""
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


async def read(call: Call, query: ReceiptsQuery) -> Reply:
    """Return a page of one box's receipts, or list the chains. Accept: application/x-ndjson exports whole chains in
    the form that `hutch receipts verify --file` checks."""
    receipts = call.own.receipts
    if call.accepts(NDJSON):
        return Reply(_export(call, query.box), type=NDJSON)
    if not query.box:
        return Reply(ReceiptPage(chains=await receipts.chains()))
    page = await receipts.list(query.box, query.after, query.limit)
    return Reply(ReceiptPage(receipts=page, last=page[-1].seq if page else query.after))


async def verify(call: Call, body: VerifyBody) -> Reply:
    """Verify that the receipts of a box, or of all the owner's boxes, are unchanged."""
    found = await call.own.receipts.verify(body.box)
    return Reply(Verified(ok=all(check.ok for check in found), chains=found))


async def note(call: Call, body: NoteBody) -> Reply:
    """Add a note of the caller to the box's chain, such as a tool that was allowed or a person who approved. It needs
    no lease and extends no clock; the box may be gone."""
    await check_owner(call)
    return await _note(call, call.params["box"], body)


async def note_without_box(call: Call, body: NoteBody) -> Reply:
    """Add a note of the caller to its owner's log, such as a decision made before a box existed."""
    return await _note(call, "", body)


async def _note(call: Call, box: str, body: NoteBody) -> Reply:
    await call.own.receipts.note(box, body.op, body.details, error=body.error, duration_ms=body.duration_ms)
    return Reply(status=204)


def who_of(caller: Caller, request: str) -> Who:
    """The authenticated caller, as receipts name it."""
    return Who(
        session=caller.session, role=str(caller.role), key=caller.key_id, request=request, admin=caller.over_all
    )  # fmt: skip


async def _export(call: Call, box: str) -> AsyncGenerator[bytes, None]:
    async for piece in call.own.receipts.export(box):
        yield piece
