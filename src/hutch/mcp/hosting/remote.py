"""Servers that run somewhere else: streamable HTTP and the older SSE transport, passed through."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import httpx2
from mcp.client import sse, streamable_http
from mcp.client._transport import TransportStreams
from mcp.shared._httpx_utils import create_mcp_http_client

from hutch.model.mcp import McpServer, Transport

LOST = (httpx2.HTTPError, OSError, ExceptionGroup)
"""What the transports raise when the other side is away; from their task groups it comes in groups."""


def reason(error: BaseException) -> str:
    """What happened, from inside the groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}" or type(error).__name__


def address(url: str) -> str:
    """An address as it may be shown: people put keys into the rest."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@asynccontextmanager
async def connected(server: McpServer) -> AsyncIterator[TransportStreams]:
    """The SDK's streams to it; headers go with every request."""
    if server.transport is Transport.SSE:
        async with sse.sse_client(server.url, headers=dict(server.headers)) as streams:
            yield streams
        return
    async with create_mcp_http_client(headers=dict(server.headers)) as client:
        async with streamable_http.streamable_http_client(server.url, http_client=client) as streams:
            yield streams
