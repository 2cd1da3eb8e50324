"""A client's desk: its session, its tools, what it was told about them, and the calls it has under way."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mcp.types import CallToolRequestParams, CallToolResult, InputRequiredResult, Tool

from hutch.api import Hutch
from hutch.errors import HutchError
from hutch.logs import log
from hutch.mcp.serving import calls
from hutch.mcp.serving.calls import Parked, ToolCall
from hutch.mcp.serving.client_info import Client, Context, client_of
from hutch.mcp.serving.render import World, result_of, tool_of
from hutch.mcp.serving.scopes import Place, Places
from hutch.mcp.serving.sent_files import SEND, SentFiles
from hutch.tools import AgentPermissions, AskRequest, ToolResult, Tools
from hutch.tools.gate import Ask

LOOK_SECONDS = 5.0
"""How often it is looked whether the tools are still those that the client knows."""
CHANGES_TOOLS = frozenset({"activate_skill", "box_lifecycle"})
"""After these it is looked at once."""

_log = log("mcp")


class Desk:
    """One client at work."""

    def __init__(
        self, hutch: Hutch, client: Client, places: Places, scope: str, *,
        spec: Mapping[str, Any], permissions: Mapping[str, AgentPermissions], world: World,
        closed: Callable[[], Awaitable[None]] | None = None, otherwise: Ask | None = None, boxes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`closed`: what else ends with it. `otherwise`: asks somebody else where the client cannot ask its user.
        `boxes`: those that the client's configuration lets it use besides its own."""
        self._otherwise = otherwise
        self._closed = closed
        self._places = places
        self._place: Place = places.take(scope)
        self._world = world
        self._untold = self._crowded(scope)
        self.tools = Tools(
            hutch.for_session(self._place.session), agent=client.name, spec=spec, permissions=permissions, boxes=boxes,
        )  # fmt: skip
        self.sent = SentFiles(self.tools)
        self._parked = Parked()
        self.busy = 0
        """Calls under way."""
        self._known: tuple[str, ...] | None = None
        """Names of the tools that the client was shown last."""
        self._watching: asyncio.Task[None] | None = None
        self.changed: Callable[[], Awaitable[None]] | None = None
        """Tells the client that its tools are others now."""
        _log.info("client came", client=client.name, session=self._place.session)

    def _crowded(self, scope: str) -> str:
        if self._place.number == 1:
            return ""
        return (
            f"{self._place.number - 1} other live client(s) of the scope {scope} were here first: this one has a box "
            "of its own, with files of its own"
        )

    @property
    def session(self) -> str:
        return self._place.session

    # --- what there is --------------------------------------------------------------------------------------------

    async def list(self) -> list[Tool]:
        found = await self.tools.schemas("mcp")
        self._known = tuple(each["name"] for each in found)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return [tool_of(each, self._world) for each in found]

    async def instructions(self) -> str:
        """For the client's system prompt."""
        parts = [f"Note: {self._untold}."] if self._untold else []
        text = await self.tools.guidance()
        if not text:
            status = await self.tools.status()
            text = f"Hutch can make no boxes now, so it has no tools: {status.reason or status.state}."
            text += f" To fix it: {status.remedy}" if status.remedy else ""
        return "\n\n".join([*parts, text])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        """Tell the client if its tools have changed since it was shown them: a skill came, the engine went."""
        try:
            names = tuple(each["name"] for each in await self.tools.schemas("mcp"))
        except HutchError as error:  # a server that is away for a moment takes no tools away
            _log.debug("tools not looked at", error=error)
            return
        if self._known is None or names == self._known:
            return
        self._known = names
        if self.changed is not None:
            await self.changed()

    # --- calling --------------------------------------------------------------------------------------------------

    async def call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        # Where nobody can be asked the refusal says so. Without a session each request says anew whether somebody can.
        self.tools.ask = calls.ask if client_of(ctx).can_ask else self._otherwise
        goes_on = params.request_state is not None
        call = self._parked.take(ctx, params) if goes_on else ToolCall(self.tools, ctx, params)
        self.busy += 1
        try:
            outcome = await call.outcome()
        finally:
            self.busy -= 1
        if isinstance(outcome, AskRequest):
            return self._parked.put(call, outcome)
        if params.name in CHANGES_TOOLS:
            await self._look()
        result = result_of(self._with_note(outcome))
        if params.name == SEND and not outcome.is_error:
            result.content.append(self.sent.sent(outcome.structured))
        return result

    def _with_note(self, result: ToolResult) -> ToolResult:
        """What stands in the instructions is told once more: not every client shows them to its model."""
        if not self._untold:
            return result
        note, self._untold = self._untold, ""
        return result.but(
            text=f"{result.text}\n[note: {note}]",
            structured={**result.structured, "notes": [*result.structured.get("notes", ()), note]},
            notes=(*result.notes, note),
        )

    async def close(self) -> None:
        """The client is gone. Its box stays, by its own clocks, for when it comes back."""
        if self._watching is not None:
            self._watching.cancel()
        await self._parked.end()
        await self.tools.close()
        if self._closed is not None:
            await self._closed()
        self._places.leave(self._place)
        _log.info("client left", session=self._place.session)
