"""Loads the MCP SDK; apart from all that imports it, because it is an extra and takes a second to import."""

import asyncio
import threading

from hutch.errors import Unavailable

_importing = threading.Lock()
"""Lets one thread at a time import the SDK: its packages import each other, and two threads that begin at different
ends would find half-initialised modules."""


async def load_sdk() -> None:
    """Import the MCP SDK in a thread; Unavailable if it is not installed."""
    try:
        await asyncio.to_thread(_import_sdk)
    except ImportError as error:
        raise Unavailable(
            f"the parts for MCP are not installed: {error}", retryable=False, remedy="pip install 'hutch[mcp]'"
        ) from error


def _import_sdk() -> None:
    with _importing:
        import hutch.mcp.hosting.hosted
        import hutch.mcp.serving.http_sessions  # noqa: F401
