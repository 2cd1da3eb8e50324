"""The session of one MCP client: its tools, the tool list that it knows, and its running calls."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mcp.types import CallToolRequestParams, CallToolResult, InputRequiredResult, Tool

from hutch.api import Hutch
from hutch.errors import HutchError
from hutch.logs import log
from hutch.mcp.serving import calls
from hutch.mcp.serving.calls import ParkedCalls, ToolCall
from hutch.mcp.serving.client_info import Client, Context, client_of
from hutch.mcp.serving.render import Exposure, result_of, tool_of
from hutch.mcp.serving.scopes import Slot, Slots
from hutch.mcp.serving.sent_files import SEND_FILE, SentFiles
from hutch.tools import AgentPermissions, AskRequest, ToolResult, Tools
from hutch.tools.gate import Ask

TOOL_REFRESH_SECONDS = 5.0
"""Interval between checks for changed tools."""
CHANGES_TOOLS = frozenset({"activate_skill", "box_lifecycle"})
"""Tools that may change the tool list. After a call of one, the list is checked at once."""

_log = log("mcp")


class ClientSession:
    """One MCP client with its tools and its box."""

    def __init__(
        self, hutch: Hutch, client: Client, slots: Slots, scope: str, *,
        spec: Mapping[str, Any], permissions: Mapping[str, AgentPermissions], exposure: Exposure,
        on_close: Callable[[], Awaitable[None]] | None = None, fallback_ask: Ask | None = None,
        boxes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Open a session for a client.

        Args:
            on_close: Awaited when the session closes.
            fallback_ask: Asks somebody else if the client cannot ask its user.
            boxes: Boxes that the client's configuration lets it use besides its own.
        """
        self._fallback_ask = fallback_ask
        self._on_close = on_close
        self._slots = slots
        self._slot: Slot = slots.acquire(scope)
        self._exposure = exposure
        self._pending_note = self._slot_note(scope)
        self.tools = Tools(
            hutch.for_session(self._slot.session), agent=client.name, spec=spec, permissions=permissions, boxes=boxes,
        )  # fmt: skip
        self.sent_files = SentFiles(self.tools)
        self._parked = ParkedCalls()
        self.busy = 0
        """Number of running calls."""
        self._announced_tools: tuple[str, ...] | None = None
        """Names of the tools that the client was shown last."""
        self._watch_task: asyncio.Task[None] | None = None
        self.on_tools_changed: Callable[[], Awaitable[None]] | None = None
        """Notifies the client that its tools have changed."""
        _log.info("client came", client=client.name, session=self._slot.session)

    def _slot_note(self, scope: str) -> str:
        if self._slot.number == 1:
            return ""
        return (
            f"{self._slot.number - 1} other live client(s) of the scope {scope} were here first: this one has a box "
            "of its own, with files of its own"
        )

    @property
    def session(self) -> str:
        return self._slot.session

    # --- tools and instructions ---------------------------------------------------------------------------------------

    async def list(self) -> list[Tool]:
        found = await self.tools.schemas("mcp")
        self._announced_tools = tuple(each["name"] for each in found)
        if self._watch_task is None:
            self._watch_task = asyncio.create_task(self._watch_tools())
        return [tool_of(each, self._exposure) for each in found]

    async def instructions(self) -> str:
        """Return the text for the client's system prompt."""
        parts = [f"Note: {self._pending_note}."] if self._pending_note else []
        text = await self.tools.guidance()
        if not text:
            status = await self.tools.status()
            text = f"Hutch can make no boxes now, so it has no tools: {status.reason or status.state}."
            text += f" To fix it: {status.remedy}" if status.remedy else ""
        return "\n\n".join([*parts, text])

    async def _watch_tools(self) -> None:
        while True:
            await asyncio.sleep(TOOL_REFRESH_SECONDS)
            await self._check_tools()

    async def _check_tools(self) -> None:
        """Notify the client if its tools have changed, for example because a skill came or the engine failed."""
        try:
            names = tuple(each["name"] for each in await self.tools.schemas("mcp"))
        except HutchError as error:  # A short outage of the server removes no tools.
            _log.debug("tools not looked at", error=error)
            return
        if self._announced_tools is None or names == self._announced_tools:
            return
        self._announced_tools = names
        if self.on_tools_changed is not None:
            await self.on_tools_changed()

    # --- calling --------------------------------------------------------------------------------------------------

    async def call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        # Each request may say whether its user can be asked. If nobody can, the refusal says so.
        self.tools.ask = calls.ask if client_of(ctx).can_ask else self._fallback_ask
        resumes = params.request_state is not None
        call = self._parked.take(ctx, params) if resumes else ToolCall(self.tools, ctx, params)
        self.busy += 1
        try:
            outcome = await call.outcome()
        finally:
            self.busy -= 1
        if isinstance(outcome, AskRequest):
            return self._parked.put(call, outcome)
        if params.name in CHANGES_TOOLS:
            await self._check_tools()
        result = result_of(self._with_note(outcome))
        if params.name == SEND_FILE and not outcome.is_error:
            result.content.append(self.sent_files.add(outcome.structured))
        return result

    def _with_note(self, result: ToolResult) -> ToolResult:
        """Repeat the note of the instructions once, because not every client shows instructions to its model."""
        if not self._pending_note:
            return result
        note, self._pending_note = self._pending_note, ""
        return result.but(
            text=f"{result.text}\n[note: {note}]",
            structured={**result.structured, "notes": [*result.structured.get("notes", ()), note]},
            notes=(*result.notes, note),
        )

    async def close(self) -> None:
        """Close the session. The box stays until its own timeouts, in case the client comes back."""
        if self._watch_task is not None:
            self._watch_task.cancel()
        await self._parked.end()
        await self.tools.close()
        if self._on_close is not None:
            await self._on_close()
        self._slots.release(self._slot)
        _log.info("client left", session=self._slot.session)
