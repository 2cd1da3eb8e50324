"""What callers see of boxes, results and output."""

import base64
import time
from typing import Any

from hutch.keeper.live import Live
from hutch.keeper.records import BoxRecord, Lease
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.results import Chunk, Result
from hutch.model.spec import EffectiveSpec
from hutch.model.state import State


class BoxView(Record, frozen=True, kw_only=True):
    """One box (B13)."""

    id: BoxId
    name: str
    owner: str
    state: State
    reason: str
    spec: EffectiveSpec
    """Secrets keep their names only; `adjustments` tells what policy changed."""
    created_at: float
    used_at: float
    remaining_sec: float | None
    """Of its time to live; None: without end."""
    epoch: int
    lease: Lease | None


def box_view(record: BoxRecord, live: Live | None = None) -> BoxView:
    now = time.time()
    used_at = record.used_at if live is None else time.time() - time.monotonic() + live.used
    ttl = record.spec.ttl_sec
    lease = record.lease
    return BoxView(
        id=record.id,
        name=record.spec.name,
        owner=record.owner,
        state=record.state,
        reason=record.reason,
        spec=record.spec.shown(),
        created_at=record.created_at,
        used_at=used_at,
        remaining_sec=max(0.0, record.created_at + ttl - now) if ttl else None,
        epoch=record.epoch,
        lease=lease if lease is not None and lease.live(now) else None,
    )


def result_view(result: Result) -> dict[str, Any]:
    """The fields of `Result`; the output as text, and as base64 beside it where the text would lose bytes."""
    plain = result.to_plain()
    for stream in ("stdout", "stderr"):
        del plain[f"{stream}_bytes"]
        plain |= text_and_base64(stream, getattr(result, f"{stream}_bytes"))
    return plain


def chunk_view(chunk: Chunk) -> dict[str, Any]:
    return {
        **text_and_base64("text", chunk.data), "cursor": chunk.cursor, "eof": chunk.eof, "dropped": chunk.dropped
    }  # fmt: skip


def text_and_base64(name: str, data: bytes) -> dict[str, str]:
    """`{name: text}`, and `{name}_base64` if the text does not hold every byte."""
    text = data.decode("utf-8", "replace")
    if text.encode() == data:
        return {name: text}
    return {name: text, f"{name}_base64": base64.b64encode(data).decode()}
