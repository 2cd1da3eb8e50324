"""Loading the MCP SDK, which is an extra and slow to import: in a thread, and in one at a time."""

import asyncio
import threading

from hutch.errors import Unavailable

_loading = threading.Lock()
"""The SDK's packages import each other: two threads that begin at different ends find each other's halves."""


async def load() -> None:
    """Unavailable where it is not installed."""
    try:
        await asyncio.to_thread(_load)
    except ImportError as error:
        raise Unavailable(
            f"the parts for MCP are not installed: {error}", retryable=False, remedy="pip install 'hutch[mcp]'"
        ) from error


def _load() -> None:
    with _loading:
        import hutch.mcp.hosting.hosted
        import hutch.mcp.serving.http_sessions  # noqa: F401
