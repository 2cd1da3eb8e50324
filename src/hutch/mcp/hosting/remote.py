"""Connections to MCP servers that run elsewhere, over streamable HTTP or the older SSE transport."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import httpx2
from mcp.client import sse, streamable_http
from mcp.client._transport import TransportStreams
from mcp.shared._httpx_utils import create_mcp_http_client

from hutch.model.mcp import McpServer, Transport

TRANSPORT_ERRORS = (httpx2.HTTPError, OSError, ExceptionGroup)
"""Errors of the transports when the server is unreachable. Their task groups raise them in groups."""


def error_reason(error: BaseException) -> str:
    """Return the message of the first error inside the groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}" or type(error).__name__


def public_address(url: str) -> str:
    """Return the URL without credentials and query, in which people put keys."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@asynccontextmanager
async def connect(server: McpServer) -> AsyncIterator[TransportStreams]:
    """Open the SDK's streams to a server. Its headers go with every request."""
    if server.transport is Transport.SSE:
        async with sse.sse_client(server.url, headers=dict(server.headers)) as streams:
            yield streams
        return
    async with create_mcp_http_client(headers=dict(server.headers)) as client:
        async with streamable_http.streamable_http_client(server.url, http_client=client) as streams:
            yield streams
