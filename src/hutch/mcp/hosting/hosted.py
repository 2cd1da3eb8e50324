"""`Hosted`: one owner's MCP servers, from Python. `hutch serve` gives each owner one, and any program can have its own.

async with Hutch() as hutch, Hosted(hutch, settings=hutch.config.mcp, directory=...) as hosted:
    await hosted.add("time", McpServer(command="uvx", args=("mcp-server-time",)))
    async with hosted.session("time") as client:
        await client.call_tool("get_current_time", {"timezone": "UTC"})
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mcp.types import CallToolRequestParams, ServerNotification

from hutch.api import Box
from hutch.config.mcp import McpTable
from hutch.errors import HutchError, Invalid
from hutch.logs import log
from hutch.mcp.hosting import projects
from hutch.mcp.hosting.boxes import Boxes, Host
from hutch.mcp.hosting.client_files import Imported
from hutch.mcp.hosting.gateway import Front, tools_of
from hutch.mcp.hosting.registry import FILE, Entry, Registry
from hutch.mcp.hosting.supervisor import Supervisor
from hutch.model.mcp import McpServer, McpServerInfo, McpTool, Share, Start, Transport
from hutch.policy import mcp_servers
from hutch.policy.rights import UNBOUND, Rights, current
from mcp import Client

GATEWAY = "gateway"


def configured(settings: McpTable, origin: str) -> dict[str, Entry]:
    """The servers of hutch.toml. Whoever writes that file may open any path, so theirs are open."""
    return {
        name: Entry(server=server, roots=sources_of(server), origin=origin, rights=UNBOUND)
        for name, server in settings.servers.items()
    }  # fmt: skip


def sources_of(server: McpServer) -> tuple[str, ...]:
    """The host paths that a server's box is to show; none where they cannot be told yet."""
    if server.transport is not Transport.STDIO:
        return ()
    try:
        return projects.infer(server).sources()
    except HutchError:  # said again, with its phase, when it is started
        return ()


def _eager(server: McpServer) -> bool:
    """A conversation's server waits for its conversation."""
    return server.start is Start.EAGER and not server.disabled and server.share is not Share.SCOPE


class Hosted:
    """Made inside the running event loop; `async with` starts the eager servers, and ends all at the end."""

    def __init__(
        self, hutch: Host, *, directory: Path, settings: McpTable | None = None, origin: str = "hutch.toml",
        include_configured: bool = True, rights: Rights = UNBOUND,
    ) -> None:  # fmt: skip
        """`rights`: what the owner's keys may have, for the boxes of servers that one of them registered."""
        self._settings = settings or McpTable()
        entries = configured(self._settings, origin) if include_configured else {}
        self.registry = Registry(directory / FILE, entries)
        self._boxes = Boxes(hutch, self._settings, rights)
        self._running: dict[tuple[str, str], Supervisor] = {}
        """By name and, for servers that share a conversation's box, that box's id."""
        self._fronts: dict[tuple[str, str], Front] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """End what an earlier run has left, and start what is to be there from the beginning (B32)."""
        names = self.registry.all()
        if names:
            try:
                await self._boxes.sweep(frozenset(names))
            except HutchError as error:  # boxes are out of reach now: each server will say so itself
                log("mcp").warning("boxes of servers not looked for", error=error)
        for name, entry in names.items():
            if _eager(entry.server):
                self._supervisor(name).start()

    async def close(self) -> None:
        """Every process and every box of ours ends (B37)."""
        await asyncio.gather(*(each.stop() for each in self._running.values()))
        self._running.clear()
        self._fronts.clear()

    # --- the registry ---------------------------------------------------------------------------------------------

    async def add(self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False) -> McpServerInfo:
        """Register a server within the rights of the caller. `trusted`: they may open paths of this machine to it,
        which is written down."""
        server = mcp_servers.read(server)
        roots = await asyncio.to_thread(sources_of, server) if trusted else ()
        for root in roots:
            log("mcp").warning("mount root added for an MCP server", server=name, root=root)
        self.registry.add(name, server, roots, replace=replace, rights=current())
        await self._forget(name)
        if _eager(server):
            self._supervisor(name).start()
        await self._changed(name)
        return await self.info(name)

    async def add_all(self, found: Imported, *, trusted: bool = True, replace: bool = False) -> list[McpServerInfo]:
        """Those of another client's table."""
        return [
            await self.add(name, server, trusted=trusted, replace=replace) for name, server in found.servers.items()
        ]

    async def remove(self, name: str) -> None:
        self.registry.remove(name)
        await self._forget(name)
        await self._boxes.forget(name)
        await self._changed(name)

    async def all(self) -> tuple[McpServerInfo, ...]:
        """Those that have a place of their own, and then those that run in conversations' boxes."""
        own = [self._supervisor(name).info() for name in self.registry.all()]
        return (*own, *(each.info() for (_, box), each in self._running.items() if box))

    async def info(self, name: str) -> McpServerInfo:
        return self._supervisor(name).info()

    async def logs(self, name: str) -> tuple[str, ...]:
        """What it wrote beside the protocol, lately."""
        return self._supervisor(name).preview.lines()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self, name: str, box: Box | None = None) -> McpServerInfo:
        """Returns when it is ready; ServerFailed when it has failed for the last time."""
        supervisor = self._supervisor(name, box)
        await supervisor.ready()
        return supervisor.info()

    async def stop(self, name: str) -> McpServerInfo:
        for supervisor in self._all_of(name):
            await supervisor.stop()
        return await self.info(name)

    async def restart(self, name: str) -> McpServerInfo:
        await self.stop(name)
        return await self.start(name)

    # --- using ------------------------------------------------------------------------------------------------------

    async def tools(self, name: str, box: Box | None = None) -> tuple[McpTool, ...]:
        listed = await tools_of(self._supervisor(name, box))
        return tuple(
            McpTool(server=name, name=tool.name, description=tool.description or "", schema=dict(tool.input_schema))
            for tool in listed
        )

    async def call(
        self, name: str, tool: str, arguments: Mapping[str, Any] | None = None, box: Box | None = None
    ) -> dict[str, Any]:
        """The result as the protocol writes it; `session` gives the SDK's own."""
        params = CallToolRequestParams(name=tool, arguments=dict(arguments or {}))
        result = await self._supervisor(name, box).call_tool(params)
        plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return plain

    @asynccontextmanager
    async def session(self, name: str, box: Box | None = None, **options: Any) -> AsyncIterator[Client]:
        """The SDK's client of one server; `options` are that client's."""
        await self._supervisor(name, box).ready()
        async with Client(self.front(name, box).server, **{"mode": "legacy", **options}) as client:
            yield client

    @asynccontextmanager
    async def gateway(self, box: Box | None = None, **options: Any) -> AsyncIterator[Client]:
        """The SDK's client of all servers at once."""
        async with Client(self.gateway_front(box).server, **{"mode": "legacy", **options}) as client:
            yield client

    async def ready(self, name: str, box: Box | None = None) -> None:
        await self._supervisor(name, box).ready()

    def front(self, name: str, box: Box | None = None) -> Front:
        """What clients of one server talk to."""
        supervisor = self._supervisor(name, box)
        key = (name, box.id if box else "")
        # It outlives a new definition of its server: clients that are connected go on with that.
        if key not in self._fronts:
            self._fronts[key] = Front(name, lambda: {name: self._supervisor(name, box)}, prefixed=False, wait_sec=0.0)
        front = self._fronts[key]
        if supervisor.greeting is not None:
            front.server.instructions = supervisor.greeting.instructions
        return front

    def gateway_front(self, box: Box | None = None) -> Front:
        key = ("", box.id if box else "")
        if key not in self._fronts:
            self._fronts[key] = Front(
                GATEWAY, lambda: self._behind_gateway(box), prefixed=True, wait_sec=self._settings.gateway_wait_sec
            )  # fmt: skip
        return self._fronts[key]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _behind_gateway(self, box: Box | None) -> dict[str, Supervisor]:
        """All that are not switched off; those of a conversation's box only for that conversation."""
        chosen = {name: entry.server for name, entry in self.registry.all().items() if not entry.server.disabled}
        return {
            name: self._supervisor(name, box if server.share is Share.SCOPE else None)
            for name, server in chosen.items()
            if box is not None or server.share is not Share.SCOPE
        }

    def _supervisor(self, name: str, box: Box | None = None) -> Supervisor:
        entry = self.registry.get(name)
        if box is not None and entry.server.share is not Share.SCOPE:
            raise Invalid(
                f"MCP server {name} does not share the box of a conversation", remedy='set share = "scope" for it'
            )
        key = (name, box.id if box is not None else "")
        found = self._running.get(key)
        if found is None:
            found = self._running[key] = Supervisor(
                name, entry, self._boxes, self._settings, self._changed, self._heard, box
            )
        return found

    def _all_of(self, name: str) -> list[Supervisor]:
        self.registry.get(name)
        return [each for (other, _), each in self._running.items() if other == name]

    async def _forget(self, name: str) -> None:
        for key in [key for key in self._running if key[0] == name]:
            await self._running.pop(key).stop()

    async def _changed(self, name: str) -> None:
        for (other, _), front in list(self._fronts.items()):
            if other in ("", name):
                await front.changed(name)

    async def _heard(self, name: str, message: ServerNotification) -> None:
        for (other, _), front in list(self._fronts.items()):
            if other in ("", name):
                await front.heard(name, message)
