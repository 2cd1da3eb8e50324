"""`LocalMcpServers`: the MCP servers that an embedding process hosts, opened at their first use."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch.config import Config
from hutch.mcp.hosting.registry import directory
from hutch.mcp.sdk import load_sdk
from hutch.model.mcp import McpServer, McpServerInfo, McpTool

if TYPE_CHECKING:
    from hutch.mcp.hosting.boxes import Host
    from hutch.mcp.hosting.hosted import Hosted


class LocalMcpServers:
    """The `McpServers` protocol of `hutch.api` for one process. The first use starts the eager servers."""

    def __init__(self, host: "Host", config: Config) -> None:
        self._host = host
        self._config = config
        self._hosted: Hosted | None = None
        self._opening = asyncio.Lock()
        """Held while the servers are opened, so that two callers do not open them twice."""

    async def open(self) -> "Hosted":
        async with self._opening:
            if self._hosted is None:
                await load_sdk()
                from hutch.mcp.hosting.hosted import Hosted

                config = self._config
                hosted = Hosted(
                    self._host, directory=directory(config.state_dir), settings=config.mcp, origin=config.origin("mcp")
                )
                await hosted.open()
                self._hosted = hosted
        return self._hosted

    async def close(self) -> None:
        """End the servers and their boxes."""
        if self._hosted is not None:
            await self._hosted.close()
            self._hosted = None

    async def all(self) -> tuple[McpServerInfo, ...]:
        return await (await self.open()).all()

    async def info(self, name: str) -> McpServerInfo:
        return await (await self.open()).info(name)

    async def add(self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False) -> McpServerInfo:
        return await (await self.open()).add(name, server, trusted=trusted, replace=replace)

    async def remove(self, name: str) -> None:
        await (await self.open()).remove(name)

    async def start(self, name: str) -> McpServerInfo:
        return await (await self.open()).start(name)

    async def stop(self, name: str) -> McpServerInfo:
        return await (await self.open()).stop(name)

    async def restart(self, name: str) -> McpServerInfo:
        return await (await self.open()).restart(name)

    async def logs(self, name: str) -> tuple[str, ...]:
        return await (await self.open()).logs(name)

    async def tools(self, name: str) -> tuple[McpTool, ...]:
        return await (await self.open()).tools(name)

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await (await self.open()).call(name, tool, arguments)
