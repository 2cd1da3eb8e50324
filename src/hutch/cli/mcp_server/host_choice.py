"""Who hosts the servers of a command: a running `hutch serve`, or this process for as long as the command runs."""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from hutch.cli.embedded import configuration
from hutch.cli.keeper_choice import visit
from hutch.errors import Unavailable
from hutch.model.mcp import McpServer, McpServerInfo, McpTool


class Servers(Protocol):
    """What both offer."""

    async def all(self) -> tuple[McpServerInfo, ...]: ...

    async def info(self, name: str) -> McpServerInfo: ...

    async def add(
        self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False
    ) -> McpServerInfo: ...

    async def remove(self, name: str) -> None: ...

    async def start(self, name: str) -> McpServerInfo: ...

    async def stop(self, name: str) -> McpServerInfo: ...

    async def restart(self, name: str) -> McpServerInfo: ...

    async def logs(self, name: str) -> tuple[str, ...]: ...

    async def tools(self, name: str) -> tuple[McpTool, ...]: ...

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]: ...


@asynccontextmanager
async def servers_of(arguments: argparse.Namespace) -> AsyncIterator[Servers]:
    async with visit(arguments) as hutch:
        remote = getattr(hutch, "mcp_servers", None)
        if remote is not None:
            yield remote
            return
        try:
            from hutch.mcp.hosting.hosted import Hosted
        except ImportError as error:
            raise Unavailable(
                f"the parts for MCP are not installed: {error}", retryable=False, remedy="pip install 'hutch[mcp]'"
            ) from error
        from hutch.keeper.embedded import Hutch
        from hutch.mcp.hosting.registry import directory

        assert isinstance(hutch, Hutch), "without a server this process keeps its boxes itself"
        config = configuration(arguments)
        hosted = Hosted(
            hutch, directory=directory(config.state_dir), settings=config.mcp, origin=config.origin("mcp")
        )  # fmt: skip
        try:
            yield hosted
        finally:
            await hosted.close()
