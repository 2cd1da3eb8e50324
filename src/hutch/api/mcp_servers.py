"""The protocol of MCP servers that run in boxes."""

from collections.abc import Mapping
from typing import Any, Protocol

from hutch.model.mcp import McpServer, McpServerInfo, McpTool


class McpServers(Protocol):
    """Other people's MCP servers, each in a box of its own (docs/guides/mcp.md). It needs `hutch[mcp]`.

    An embedded Hutch hosts them as long as it is open; those of a server outlive its clients.

    Raises: NotFound for a name that is not registered; ServerFailed with its phase for a server that fails.
    """

    async def all(self) -> tuple[McpServerInfo, ...]:
        """List the servers. Looking starts none."""

    async def info(self, name: str) -> McpServerInfo: ...

    async def add(self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False) -> McpServerInfo:
        """Register a server. `trusted` opens the host paths that it names to it, if this caller may do that.

        Raises: Conflict if there is one of this name, unless it is replaced.
        """

    async def remove(self, name: str) -> None:
        """Stop a server and forget it."""

    async def start(self, name: str) -> McpServerInfo:
        """Start a server; return when it is ready. Raises: ServerFailed when it has failed for the last time."""

    async def stop(self, name: str) -> McpServerInfo:
        """End the process and the box of a server; its next use starts it again."""

    async def restart(self, name: str) -> McpServerInfo: ...

    async def logs(self, name: str) -> tuple[str, ...]:
        """Return the last lines that it wrote outside the protocol, and what its installation said."""

    async def tools(self, name: str) -> tuple[McpTool, ...]:
        """List the tools of a server, which is started for that."""

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool and return the MCP type `CallToolResult`. It is never repeated."""
