"""`RemoteMcpServers`: a server's hosted MCP servers over HTTP. MCP clients themselves use /mcp/gateway."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hutch.client.boxes import named
from hutch.client.requests import Repeat
from hutch.model.mcp import McpServer, McpServerInfo, McpTool


class RemoteMcpServers:
    """Of the key's owner."""

    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        self._ask = ask

    async def all(self) -> tuple[McpServerInfo, ...]:
        found: tuple[McpServerInfo, ...] = await self._ask(
            tuple[McpServerInfo, ...], "GET", "/v1/mcp-servers", part="servers"
        )
        return found

    async def info(self, name: str) -> McpServerInfo:
        return await self._of(name, "GET", "")

    async def add(self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False) -> McpServerInfo:
        """`trusted`: what it names of the server's machine is opened to it, if this key may do that."""
        body = {"name": name, "definition": server.to_plain(), "replace": replace}
        if not trusted:
            body["open_paths"] = False
        info: McpServerInfo = await self._ask(
            McpServerInfo, "POST", "/v1/mcp-servers", body=body, repeat=Repeat.UNSENT
        )  # fmt: skip
        return info

    async def remove(self, name: str) -> None:
        await self._ask(type(None), "DELETE", _path(name), repeat=Repeat.UNSENT)

    async def start(self, name: str) -> McpServerInfo:
        return await self._of(name, "POST", "/start")

    async def stop(self, name: str) -> McpServerInfo:
        return await self._of(name, "POST", "/stop")

    async def restart(self, name: str) -> McpServerInfo:
        return await self._of(name, "POST", "/restart")

    async def logs(self, name: str) -> tuple[str, ...]:
        told: tuple[str, ...] = await self._ask(tuple[str, ...], "GET", _path(name, "/logs"), part="lines")
        return told

    async def tools(self, name: str) -> tuple[McpTool, ...]:
        told: tuple[McpTool, ...] = await self._ask(tuple[McpTool, ...], "GET", _path(name, "/tools"), part="tools")
        return told

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Not asked twice: nobody knows what a tool does."""
        body = {"tool": tool, "arguments": dict(arguments or {})}
        result: dict[str, Any] = await self._ask(
            dict[str, Any], "POST", _path(name, "/call"), body=body, repeat=Repeat.UNSENT
        )
        return result

    async def _of(self, name: str, method: str, path: str) -> McpServerInfo:
        info: McpServerInfo = await self._ask(McpServerInfo, method, _path(name, path))
        return info


def _path(name: str, rest: str = "") -> str:
    return f"/v1/mcp-servers/{named(name, 'MCP server')}{rest}"
