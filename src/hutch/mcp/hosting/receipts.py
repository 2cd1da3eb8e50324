"""A receipt for each call of a hosted server's tool: which server and tool, how it ended, how long it took.

It stands in the chain of the box that the server runs in; of a server without a box, or one that never came up, in the
owner's daybook. Arguments and answers are not on record: they are the caller's own, and may hold anything.
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
    """The tool said so, or the server could not be asked."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """Whoever asked has left."""
    REFUSED = "refused"
    """The definition does not offer this tool."""


class Notes(Protocol):
    """Of `hutch.api.Receipts`, what is needed here."""

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None: ...  # fmt: skip


@dataclass
class Calling:
    """One call under way; `box` and `verdict` are filled in as they become known."""

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
async def receipted(notes: Notes, server: str, tool: str) -> AsyncIterator[Calling]:
    """The receipt is written whatever happens inside, also to a caller who has left."""
    calling, begun = Calling(server, tool), time.perf_counter()
    try:
        yield calling
    except BaseException as error:
        calling.failed(error)
        with anyio.CancelScope(shield=True):
            try:
                await _write(notes, calling, begun)
            except HutchError as unwritten:  # the caller is told of the first fault, the log of the second
                log("mcp").warning("a call is not on record", server=server, tool=tool, error=unwritten)
        raise
    await _write(notes, calling, begun)


async def _write(notes: Notes, calling: Calling, begun: float) -> None:
    details = {"server": calling.server, "tool": calling.tool, "verdict": str(calling.verdict)}
    await notes.note(
        calling.box, OP, details, error=calling.code, duration_ms=(time.perf_counter() - begun) * 1000
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
