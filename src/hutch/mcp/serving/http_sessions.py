"""Desks for those who come over HTTP: each works at the server's own API with its own key, and so can do no more."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.lowlevel.server import Server

from hutch.api import Box, Hutch
from hutch.errors import Invalid, NotFound, QuotaExceeded
from hutch.mcp.serving.client_info import Client, Context, client_of
from hutch.mcp.serving.client_session import Desk
from hutch.mcp.serving.http import IDLE_SECONDS, MOST_EACH, VISITOR, Opened, Visitor
from hutch.mcp.serving.permissions import only, read_only
from hutch.mcp.serving.render import world_of
from hutch.mcp.serving.scopes import PlacesOfProcess, named
from hutch.mcp.serving.server import OneDesk, server_on
from hutch.policy.permissions import AgentPermissions
from hutch.policy.profiles import Profile
from hutch.tools.gate import Ask


class ObservingHutch:
    """Everything else is the other Hutch's, which refuses what this caller may not do."""

    def __init__(self, hutch: Hutch, box: str = "") -> None:
        self._hutch = hutch
        self._box = box
        """The one to look at; empty: the default one, or the only one."""

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


OBSERVER = "observer"
SPEC = ("profile", "image", "network", "provider")
"""What the address may say of the boxes: `/mcp?profile=code`. It is the client's configuration, no model writes it."""
KNOWN = (*SPEC, "scope", "tools", "box")

OpenHutch = Callable[[Visitor], Hutch]


class VisitorDesks:
    """Makes them, and finds those of clients that come without a session again."""

    def __init__(
        self, open_hutch: OpenHutch, permissions: Mapping[str, AgentPermissions],
        profile: Callable[[Mapping[str, str]], Profile], ask: Callable[[Visitor], Ask | None],
    ) -> None:  # fmt: skip
        """`profile`: of a spec that an address asks for. `ask`: whom to ask where a client cannot ask its user."""
        self._ask = ask
        self._open_hutch = open_hutch
        self._permissions = permissions
        self._profile = profile
        self._places: dict[str, PlacesOfProcess] = {}
        self._sessionless: dict[tuple[str, ...], tuple[Desk, float]] = {}
        self._finding = asyncio.Lock()
        """Held while a desk is looked for: two first requests of one client must not make two."""

    async def open(self, visitor: Visitor) -> Opened:
        desk = OneDesk(lambda client: self._desk(visitor, client))
        return Opened(server_on(desk), desk.close)

    def sessionless(self) -> Server[Any]:
        return server_on(self._found)

    async def _desk(self, visitor: Visitor, client: Client) -> Desk:
        query = dict(visitor.query)
        if unknown := [name for name in query if name not in KNOWN]:
            raise Invalid(f"/mcp takes no {unknown[0][:40]!r}", op="mcp", remedy=f"it takes {', '.join(KNOWN)}")
        opened = hutch = self._open_hutch(visitor)
        permissions = dict(self._permissions)
        if visitor.role == OBSERVER:
            hutch = ObservingHutch(hutch, query.get("box", ""))
            permissions = read_only(permissions)
        if "tools" in query:
            permissions = only(query["tools"].split(","), permissions)
        spec = {name: query[name] for name in SPEC if name in query}
        scope = named(query["scope"]) if query.get("scope") else f"{client.name}@{visitor.key_id}"
        places = self._places.setdefault(visitor.owner, PlacesOfProcess())
        return Desk(
            hutch, client, places, scope, spec=spec, permissions=permissions, world=world_of(spec, self._profile(spec)),
            closed=opened.close, otherwise=self._ask(visitor), boxes=[query["box"]] if query.get("box") else [],
        )  # fmt: skip

    async def _found(self, ctx: Context) -> Desk:
        """By who is calling, with which client, from which address."""
        assert ctx.request is not None
        visitor: Visitor = ctx.request.scope[VISITOR]
        client = client_of(ctx)
        key = (visitor.owner, visitor.key_id, client.name, str(sorted(visitor.query.items())))
        async with self._finding:
            await self._forget_idle()
            known = self._sessionless.get(key)
            if known is None:
                if sum(each[0] == visitor.owner for each in self._sessionless) >= MOST_EACH:
                    raise QuotaExceeded(f"{MOST_EACH} MCP clients of one owner are there", op="mcp", retry_after=60)
                known = (await self._desk(visitor, client), 0.0)
            self._sessionless[key] = (known[0], time.monotonic())
            return known[0]

    async def _forget_idle(self) -> None:
        past = time.monotonic() - IDLE_SECONDS
        for key, (desk, used) in list(self._sessionless.items()):
            if used < past and not desk.busy:
                del self._sessionless[key]
                await desk.close()

    async def close(self) -> None:
        desks = [desk for desk, _ in self._sessionless.values()]
        self._sessionless.clear()
        for desk in desks:
            await desk.close()
