"""Servers that run somewhere else, over both HTTP transports: listed, headed, and healed like the others."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from hutch.errors import ServerFailed
from hutch.model.mcp import McpServer, Phase, Transport
from tests.mcp.hosting.hosted_servers import QUICK, hosting, text_of


def remote() -> MCPServer:
    server = MCPServer("remote")

    @server.tool()
    def key(ctx: Context[Any, Any]) -> str:
        """The header that came with the request."""
        request: Any = ctx.request_context.request
        return str(request.headers.get("x-key"))

    return server


@asynccontextmanager
async def served(transport: Transport, listening: socket.socket) -> AsyncIterator[str]:
    """Its address, while it is there."""
    app = remote().sse_app() if transport is Transport.SSE else remote().streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve([listening]))
    try:
        path = "sse" if transport is Transport.SSE else "mcp"
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/{path}"
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.SSE])
async def test_passed_through(tmp_path: Path, transport: Transport) -> None:
    """HTTP and SSE servers are listed too, and pass through, each with its own headers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with served(transport, listening) as url, hosting(tmp_path) as hosted:
            await hosted.add("far", McpServer(url=url, type=transport, headers={"X-Key": "a-secret-header"}))
            async with hosted.gateway() as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["far__key"]
                assert text_of(await client.call_tool("far__key", {})) == "a-secret-header"
            info = await hosted.info("far")
            assert (info.transport, info.boxed, info.box, info.state) == (transport, False, "", "ready")
            assert "a-secret-header" not in repr(info)


@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.SSE])
async def test_nobody_there(tmp_path: Path, transport: Transport) -> None:
    """An address without a server is a failure with a phase, after the usual number of attempts (B36)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with hosting(tmp_path, QUICK.but(retry_pauses_sec=(0.1,))) as hosted:
        await hosted.add("far", McpServer(url=f"http://me:pw@127.0.0.1:{port}/mcp?key=k3y", type=transport))
        with pytest.raises(ServerFailed, match="cannot be reached") as failed:
            await hosted.start("far")
        assert failed.value.details["phase"] in (Phase.RELAY_CONNECT, Phase.MCP_INIT)
        info = await hosted.info("far")
        assert (info.starts, info.url) == (2, f"http://127.0.0.1:{port}/mcp")
        assert "k3y" not in str(failed.value) + repr(info)
