"""`Hosted`: the MCP servers of one owner. `hutch serve` has one for each owner, and any program can use its own.

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
from hutch.mcp.hosting.boxes import Host, ServerBoxes
from hutch.mcp.hosting.client_files import Imported
from hutch.mcp.hosting.gateway import Endpoint, tools_of
from hutch.mcp.hosting.registry import FILE, Entry, Registry
from hutch.mcp.hosting.supervisor import Supervisor
from hutch.model.mcp import McpServer, McpServerInfo, McpTool, Share, Start, Transport
from hutch.policy import mcp_servers
from hutch.policy.rights import UNBOUND, Rights, current
from mcp import Client

GATEWAY = "gateway"


def configured_entries(settings: McpTable, origin: str) -> dict[str, Entry]:
    """Return the servers of hutch.toml. Their paths are open, because the author of that file may open any path."""
    return {
        name: Entry(server=server, roots=sources_of(server), origin=origin, rights=UNBOUND)
        for name, server in settings.servers.items()
    }  # fmt: skip


def sources_of(server: McpServer) -> tuple[str, ...]:
    """Return the host paths that a server's box shows, or none if they cannot be determined yet."""
    if server.transport is not Transport.STDIO:
        return ()
    try:
        return projects.infer(server).sources()
    except HutchError:  # The same error is reported with its phase when the server starts.
        return ()


def _starts_eagerly(server: McpServer) -> bool:
    """Return whether the server starts with Hutch. One that shares a conversation's box waits for that."""
    return server.start is Start.EAGER and not server.disabled and server.share is not Share.SCOPE


class Hosted:
    """The MCP servers of one owner. `async with` starts the eager ones and ends all of them at exit."""

    def __init__(
        self, hutch: Host, *, directory: Path, settings: McpTable | None = None, origin: str = "hutch.toml",
        include_configured: bool = True, rights: Rights = UNBOUND,
    ) -> None:  # fmt: skip
        """`rights` bounds the boxes of servers that one of the owner's keys registered."""
        self._settings = settings or McpTable()
        entries = configured_entries(self._settings, origin) if include_configured else {}
        self.registry = Registry(directory / FILE, entries)
        self._boxes = ServerBoxes(hutch, self._settings, rights)
        self._supervisors: dict[tuple[str, str], Supervisor] = {}
        """Supervisors by server name and, for servers in a conversation's box, the id of that box."""
        self._endpoints: dict[tuple[str, str], Endpoint] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Destroy boxes of an earlier process and start the eager servers."""
        names = self.registry.all()
        if names:
            try:
                await self._boxes.sweep(frozenset(names))
            except HutchError as error:  # Boxes cannot be reached now. Each server will report that itself.
                log("mcp").warning("boxes of servers not looked for", error=error)
        for name, entry in names.items():
            if _starts_eagerly(entry.server):
                self._supervisor(name).start()

    async def close(self) -> None:
        """End every server and destroy its box."""
        await asyncio.gather(*(each.stop() for each in self._supervisors.values()))
        self._supervisors.clear()
        self._endpoints.clear()

    # --- the registry ---------------------------------------------------------------------------------------------

    async def add(self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False) -> McpServerInfo:
        """Register a server within the rights of the caller. `trusted` opens the host paths that it names, which is
        logged."""
        server = mcp_servers.read(server)
        roots = await asyncio.to_thread(sources_of, server) if trusted else ()
        for root in roots:
            log("mcp").warning("mount root added for an MCP server", server=name, root=root)
        self.registry.add(name, server, roots, replace=replace, rights=current())
        await self._forget(name)
        if _starts_eagerly(server):
            self._supervisor(name).start()
        await self._announce_change(name)
        return await self.info(name)

    async def add_all(self, found: Imported, *, trusted: bool = True, replace: bool = False) -> list[McpServerInfo]:
        """Register the servers of another client's table."""
        return [
            await self.add(name, server, trusted=trusted, replace=replace) for name, server in found.servers.items()
        ]

    async def remove(self, name: str) -> None:
        self.registry.remove(name)
        await self._forget(name)
        await self._boxes.forget(name)
        await self._announce_change(name)

    async def all(self) -> tuple[McpServerInfo, ...]:
        """Return the registered servers, and then those that run in conversations' boxes."""
        own = [self._supervisor(name).info() for name in self.registry.all()]
        return (*own, *(each.info() for (_, box), each in self._supervisors.items() if box))

    async def info(self, name: str) -> McpServerInfo:
        return self._supervisor(name).info()

    async def logs(self, name: str) -> tuple[str, ...]:
        """Return the last lines that the server wrote outside of the protocol."""
        return self._supervisor(name).preview.lines()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self, name: str, box: Box | None = None) -> McpServerInfo:
        """Start a server and return when it is ready.

        Raises:
            ServerFailed: The last attempt to start it failed.
        """
        supervisor = self._supervisor(name, box)
        await supervisor.ready()
        return supervisor.info()

    async def stop(self, name: str) -> McpServerInfo:
        for supervisor in self._supervisors_of(name):
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
        """Call a tool and return the result as JSON. `session` gives access to the SDK's types."""
        params = CallToolRequestParams(name=tool, arguments=dict(arguments or {}))
        result = await self._supervisor(name, box).call_tool(params)
        plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return plain

    @asynccontextmanager
    async def session(self, name: str, box: Box | None = None, **options: Any) -> AsyncIterator[Client]:
        """Open an SDK client of one server with the given `options`."""
        await self._supervisor(name, box).ready()
        async with Client(self.endpoint(name, box).server, **{"mode": "legacy", **options}) as client:
            yield client

    @asynccontextmanager
    async def gateway(self, box: Box | None = None, **options: Any) -> AsyncIterator[Client]:
        """Open an SDK client of all servers at once."""
        async with Client(self.gateway_endpoint(box).server, **{"mode": "legacy", **options}) as client:
            yield client

    async def ready(self, name: str, box: Box | None = None) -> None:
        await self._supervisor(name, box).ready()

    def endpoint(self, name: str, box: Box | None = None) -> Endpoint:
        """Return the endpoint for clients of one server."""
        supervisor = self._supervisor(name, box)
        key = (name, box.id if box else "")
        # The endpoint outlives a new definition of its server, so that connected clients can continue.
        if key not in self._endpoints:
            self._endpoints[key] = Endpoint(
                name, lambda: {name: self._supervisor(name, box)}, prefixed=False, wait_sec=0.0
            )
        endpoint = self._endpoints[key]
        if supervisor.initialize_result is not None:
            endpoint.server.instructions = supervisor.initialize_result.instructions
        return endpoint

    def gateway_endpoint(self, box: Box | None = None) -> Endpoint:
        key = ("", box.id if box else "")
        if key not in self._endpoints:
            self._endpoints[key] = Endpoint(
                GATEWAY, lambda: self._behind_gateway(box), prefixed=True, wait_sec=self._settings.gateway_wait_sec
            )  # fmt: skip
        return self._endpoints[key]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _behind_gateway(self, box: Box | None) -> dict[str, Supervisor]:
        """Return all enabled servers; those of a conversation's box only for that conversation."""
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
        found = self._supervisors.get(key)
        if found is None:
            found = self._supervisors[key] = Supervisor(
                name, entry, self._boxes, self._settings, self._announce_change, self._forward_notification, box
            )
        return found

    def _supervisors_of(self, name: str) -> list[Supervisor]:
        self.registry.get(name)
        return [each for (other, _), each in self._supervisors.items() if other == name]

    async def _forget(self, name: str) -> None:
        for key in [key for key in self._supervisors if key[0] == name]:
            await self._supervisors.pop(key).stop()

    async def _announce_change(self, name: str) -> None:
        for (other, _), endpoint in list(self._endpoints.items()):
            if other in ("", name):
                await endpoint.changed(name)

    async def _forward_notification(self, name: str, message: ServerNotification) -> None:
        for (other, _), endpoint in list(self._endpoints.items()):
            if other in ("", name):
                await endpoint.forward_notification(name, message)
