"""MCP servers in boxes: registered once, started on demand, watched, and merged behind one gateway.

`registry` and `client_files` hold and import definitions; `projects` and `project_files` find a server's files on this
machine; `boxes` and `dependencies` prepare its box; `start` and `supervisor` run it; `gateway` lets many clients use
it; `hosted` combines these for one owner.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hutch.mcp.hosting.hosted import Hosted

__all__ = ["Hosted"]


def __getattr__(name: str) -> Any:
    if name == "Hosted":
        # The SDK is an extra and slow to load, and reading the registry does not need it.
        from hutch.mcp.hosting.hosted import Hosted

        return Hosted
    raise AttributeError(name)
