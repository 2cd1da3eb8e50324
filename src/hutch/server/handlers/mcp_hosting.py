"""MCP servers in boxes, for each owner: reached through the gateway, one by one, or by WebSocket."""

import asyncio
from typing import TYPE_CHECKING, Any

from hutch.config import Config
from hutch.errors import Gone, HutchError, Invalid, NotFound
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.owner_view import OwnerView
from hutch.logs import log
from hutch.mcp.hosting import registry
from hutch.mcp.sdk import load_sdk
from hutch.model.arguments import spec_from_arguments
from hutch.model.boxes import BoxInfo, EventCause
from hutch.model.status import Status
from hutch.policy.rights import UNBOUND, bound_by
from hutch.server.request import Receive, Scope, Send
from hutch.server.service import Service

if TYPE_CHECKING:
    from hutch.mcp.hosting.gateway import Endpoint
    from hutch.mcp.hosting.hosted import Hosted
    from hutch.mcp.serving.http import HttpSessions, McpCaller, OpenedServer

SESSION = "mcp-hosting"
"""The session that holds the leases of all hosted servers' boxes; it is the same after a restart."""


class OwnerHost(OwnerView):
    """One owner's boxes, volumes and receipts, in the form that `hutch.mcp.hosting` needs.

    Its receipts name no session: each is written for the caller of the hosted tool.
    """

    def __init__(self, service: Service, owner: str) -> None:
        super().__init__(service.keeper, owner)
        self._service = service

    @property
    def config(self) -> Config:
        return self._service.config

    async def create(self, /, *, key: str = "", **spec: Any) -> BoxHandle:
        live = await self._keeper.create(spec_from_arguments(**spec), session=SESSION, owner=self.owner, key=key)
        return BoxHandle(self._keeper, live, SESSION)

    async def boxes(self) -> tuple[BoxInfo, ...]:
        return await self._keeper.views.boxes(self.owner)

    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        with bound_by(UNBOUND):  # The box belongs to the MCP server, so the caller's rights do not apply.
            try:
                await self._keeper.acquire(box_id, SESSION)
            except Gone:
                return
            await self._keeper.destroy(box_id, "its MCP server starts anew", EventCause.OTHER)

    async def status(self) -> Status:
        return await self._keeper.views.status(self._keeper.boxes(), self._service.started_at)


class Hostings:
    """The `Hosted` of each owner, created at its first use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._opening: dict[str, asyncio.Task[Hosted]] = {}

    async def start(self) -> None:
        """Start the servers of all owners that are configured to start with Hutch; this runs in the background."""
        for owner in await asyncio.to_thread(self._owners):
            try:
                await self.of(owner)
            except HutchError as error:
                log("mcp").warning("MCP servers of an owner not started", owner=owner, error=error)

    async def of(self, owner: str) -> "Hosted":
        opening = self._opening.get(owner)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening[owner] = asyncio.create_task(self._open(owner))
        return await asyncio.shield(opening)

    async def close(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        self._opening.clear()

    async def _open(self, owner: str) -> "Hosted":
        config = self._service.config
        await load_sdk()
        from hutch.mcp.hosting.hosted import Hosted

        hosted = Hosted(
            OwnerHost(self._service, owner), settings=config.mcp, origin=config.origin("mcp"),
            directory=registry.directory(config.state_dir, owner), include_configured=owner == LOCAL_OWNER,
            rights=self._service.rights_of(owner),
        )  # fmt: skip
        await hosted.open()
        return hosted

    def _owners(self) -> list[str]:
        configured = {LOCAL_OWNER} if self._service.config.mcp.servers else set()
        return sorted(configured | registry.owners(self._service.config.state_dir))


class HostedMount:
    """A streamable-HTTP endpoint: `/mcp/gateway` or `/mcp/servers/{name}`."""

    def __init__(self, hostings: Hostings, service: Service) -> None:
        self._hostings = hostings
        self._service = service
        self._sessions: dict[tuple[str, str, str], HttpSessions] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from hutch.mcp.serving.http import MCP_CALLER

        mcp_caller: McpCaller = scope[MCP_CALLER]
        name, box_id = mcp_caller.params.get("name", ""), mcp_caller.query.get("box", "")
        if unknown := sorted(mcp_caller.query.keys() - {"box"}):
            raise Invalid(f"the query parameter {unknown[0]!r} is unknown", remedy="`box` names a conversation's box")
        key = (mcp_caller.owner, name, box_id)
        if key not in self._sessions:
            endpoint = await self._endpoint(mcp_caller.owner, name, box_id)
            self._sessions.setdefault(key, self._http_sessions(endpoint, mcp_caller.owner, name))
        hosted = await self._hostings.of(mcp_caller.owner)
        if name and not box_id:
            await hosted.ready(name)  # The MCP handshake contains the server's own instructions and version.
            hosted.endpoint(name)
        await self._sessions[key](scope, receive, send)

    async def drain(self, seconds: float) -> None:
        await asyncio.gather(*(each.drain(seconds) for each in self._sessions.values()))

    def _http_sessions(self, endpoint: "Endpoint", owner: str, name: str) -> "HttpSessions":
        from hutch.mcp.serving.http import HttpSessions, OpenedServer

        async def opened(_: "McpCaller") -> "OpenedServer":
            async def closed() -> None:
                return None

            return OpenedServer(endpoint.server, closed)

        return HttpSessions(opened, endpoint.server)

    async def _endpoint(self, owner: str, name: str, box_id: str) -> "Endpoint":
        hosted = await self._hostings.of(owner)
        box = await conversation_box(self._service, owner, box_id) if box_id else None
        return hosted.endpoint(name, box) if name else hosted.gateway_endpoint(box)


async def conversation_box(service: Service, owner: str, box_id: str) -> BoxHandle:
    """The box of a conversation, which its MCP servers share."""
    live = await service.keeper.live(box_id)
    if live.record.owner != owner:
        raise NotFound(f"no box {box_id}", remedy="`hutch box list` shows those there are")
    return BoxHandle(service.keeper, live, SESSION)  # It is used beside its holder, whose lease is not extended.
