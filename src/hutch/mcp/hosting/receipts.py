"""Writes a receipt for each call of a hosted server's tool: server, tool, verdict and duration.

The receipt goes to the chain of the server's box, or to the owner log if the server has no box or never started.
Arguments and answers are not recorded, because they are private to the caller and may hold anything.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import anyio
from mcp.types import CallToolResult

from hutch.errors import HutchError, NotFound, Timeout
from hutch.logs import log
from hutch.model.receipts import Detail
from hutch.model.results import Cause
from mcp import MCPError

OP = "mcp.call"


class Verdict(StrEnum):
    OK = "ok"
    ERROR = "error"
    """The tool reported an error, or the server could not be asked."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The caller has left."""
    REFUSED = "refused"
    """The server's definition does not offer this tool."""


class ReceiptWriter(Protocol):
    """The part of `hutch.api.Receipts` that is needed here."""

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None: ...  # fmt: skip


@dataclass
class CallRecord:
    """One call in progress. `box` and `verdict` are set when they become known."""

    server: str
    tool: str
    box: str = ""
    verdict: Verdict = Verdict.OK
    code: str = ""

    def answered(self, result: CallToolResult) -> None:
        if result.is_error:
            self.verdict, self.code = Verdict.ERROR, "tool_error"

    def failed(self, error: BaseException) -> None:
        self.verdict, self.code = _verdict(error)


@asynccontextmanager
async def record_call(receipts: ReceiptWriter, server: str, tool: str) -> AsyncIterator[CallRecord]:
    """Write the receipt whatever happens inside, even if the caller has left."""
    record, begun = CallRecord(server, tool), time.perf_counter()
    try:
        yield record
    except BaseException as error:
        record.failed(error)
        with anyio.CancelScope(shield=True):
            try:
                await _write(receipts, record, begun)
            except HutchError as unwritten:  # The caller gets the first error, and the log the second.
                log("mcp").warning("a call is not on record", server=server, tool=tool, error=unwritten)
        raise
    await _write(receipts, record, begun)


async def _write(receipts: ReceiptWriter, record: CallRecord, begun: float) -> None:
    details = {"server": record.server, "tool": record.tool, "verdict": str(record.verdict)}
    await receipts.note(
        record.box, OP, details, error=record.code, duration_ms=(time.perf_counter() - begun) * 1000
    )  # fmt: skip


def _verdict(error: BaseException) -> tuple[Verdict, str]:
    if isinstance(error, asyncio.CancelledError):
        return Verdict.CANCELLED, "cancelled"
    if isinstance(error, NotFound):
        return Verdict.REFUSED, error.code
    if isinstance(error, Timeout) or (isinstance(error, HutchError) and error.details.get("cause") == Cause.TIMEOUT):
        return Verdict.TIMEOUT, "timeout"
    if isinstance(error, HutchError):
        return Verdict.ERROR, error.code
    return Verdict.ERROR, "mcp_error" if isinstance(error, MCPError) else "internal"
