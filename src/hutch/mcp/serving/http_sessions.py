"""Client sessions of HTTP callers. Each uses the server's own API with the rights of the caller's key."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.lowlevel.server import Server

from hutch.api import Box, Hutch
from hutch.errors import Invalid, NotFound, QuotaExceeded
from hutch.mcp.serving.client_info import Client, Context, client_of
from hutch.mcp.serving.client_session import ClientSession
from hutch.mcp.serving.http import IDLE_SECONDS, MAX_PER_OWNER, MCP_CALLER, McpCaller, OpenedServer
from hutch.mcp.serving.permissions import restrict_to, restrict_to_read_only
from hutch.mcp.serving.render import exposure_of
from hutch.mcp.serving.scopes import ProcessSlots, scope_name
from hutch.mcp.serving.server import ConnectionSession, server_for
from hutch.policy.permissions import AgentPermissions
from hutch.policy.profiles import Profile
from hutch.tools.gate import Ask


class ObservingHutch:
    """A `Hutch` for callers with read access: its working box is an existing one, observed without a lease.

    Everything else goes to the wrapped Hutch, which refuses what the caller may not do.
    """

    def __init__(self, hutch: Hutch, box: str = "") -> None:
        self._hutch = hutch
        self._box = box
        """The box to observe. If empty, it is the default box or the only one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hutch, name)

    def for_session(self, name: str) -> "ObservingHutch":
        return ObservingHutch(self._hutch.for_session(name), self._box)

    async def working(self, /, **spec: Any) -> Box:
        if self._box:
            return await self._hutch.observe((await self._hutch.find(self._box)).id)
        if chosen := await self._hutch.default():
            return await self._hutch.observe(chosen)
        there = await self._hutch.boxes()
        if len(there) == 1:
            return await self._hutch.observe(there[0].id)
        raise NotFound(
            f"there are {len(there)} boxes, and none was chosen to look at", op="mcp",
            remedy="name one in the address of this MCP server: /mcp?box=NAME",
        )  # fmt: skip


OBSERVER_ROLE = "observer"
SPEC_PARAMETERS = ("profile", "image", "network", "provider")
"""Query parameters for the spec of boxes, as in `/mcp?profile=code`. They come from the user, never from a model."""
PARAMETERS = (*SPEC_PARAMETERS, "scope", "tools", "box")

OpenHutch = Callable[[McpCaller], Hutch]


class HttpClientSessions:
    """Opens client sessions, and finds those of clients that use no protocol session."""

    def __init__(
        self, open_hutch: OpenHutch, permissions: Mapping[str, AgentPermissions],
        profile: Callable[[Mapping[str, str]], Profile], ask: Callable[[McpCaller], Ask | None],
    ) -> None:  # fmt: skip
        """`profile` resolves the profile of a spec. `ask` returns whom to ask if a client cannot ask its user."""
        self._ask = ask
        self._open_hutch = open_hutch
        self._permissions = permissions
        self._profile = profile
        self._slots: dict[str, ProcessSlots] = {}
        self._sessionless: dict[tuple[str, ...], tuple[ClientSession, float]] = {}
        self._lookup_lock = asyncio.Lock()
        """Guards the lookup, so that two concurrent first requests of a client do not open two sessions."""

    async def open(self, caller: McpCaller) -> OpenedServer:
        session = ConnectionSession(lambda client: self._open_session(caller, client))
        return OpenedServer(server_for(session), session.close)

    def sessionless(self) -> Server[Any]:
        return server_for(self._find_session)

    async def _open_session(self, caller: McpCaller, client: Client) -> ClientSession:
        query = dict(caller.query)
        if unknown := [name for name in query if name not in PARAMETERS]:
            raise Invalid(f"/mcp takes no {unknown[0][:40]!r}", op="mcp", remedy=f"it takes {', '.join(PARAMETERS)}")
        opened = hutch = self._open_hutch(caller)
        permissions = dict(self._permissions)
        if caller.role == OBSERVER_ROLE:
            hutch = ObservingHutch(hutch, query.get("box", ""))
            permissions = restrict_to_read_only(permissions)
        if "tools" in query:
            permissions = restrict_to(query["tools"].split(","), permissions)
        spec = {name: query[name] for name in SPEC_PARAMETERS if name in query}
        scope = scope_name(query["scope"]) if query.get("scope") else f"{client.name}@{caller.key_id}"
        slots = self._slots.setdefault(caller.owner, ProcessSlots())
        return ClientSession(
            hutch, client, slots, scope, spec=spec, permissions=permissions,
            exposure=exposure_of(spec, self._profile(spec)), on_close=opened.close, fallback_ask=self._ask(caller),
            boxes=[query["box"]] if query.get("box") else [],
        )  # fmt: skip

    async def _find_session(self, ctx: Context) -> ClientSession:
        """Find the session by caller, client and query parameters, or open it."""
        assert ctx.request is not None
        caller: McpCaller = ctx.request.scope[MCP_CALLER]
        client = client_of(ctx)
        key = (caller.owner, caller.key_id, client.name, str(sorted(caller.query.items())))
        async with self._lookup_lock:
            await self._close_idle()
            known = self._sessionless.get(key)
            if known is None:
                if sum(each[0] == caller.owner for each in self._sessionless) >= MAX_PER_OWNER:
                    raise QuotaExceeded(f"{MAX_PER_OWNER} MCP clients of one owner are there", op="mcp", retry_after=60)
                known = (await self._open_session(caller, client), 0.0)
            self._sessionless[key] = (known[0], time.monotonic())
            return known[0]

    async def _close_idle(self) -> None:
        past = time.monotonic() - IDLE_SECONDS
        for key, (session, used) in list(self._sessionless.items()):
            if used < past and not session.busy:
                del self._sessionless[key]
                await session.close()

    async def close(self) -> None:
        sessions = [session for session, _ in self._sessionless.values()]
        self._sessionless.clear()
        for session in sessions:
            await session.close()
