"""MCP servers in boxes: registered once, started when they are needed, watched, and merged behind one gateway.

`registry` and `importing` know the servers; `projects` finds their files on this machine; `boxes` and `installing` make
the place they run in; `running` starts, watches and restarts one; `forwarding` lets many clients talk to it; `hosted`
is the whole of it for one owner.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hutch.mcp.hosting.hosted import Hosted

__all__ = ["Hosted"]


def __getattr__(name: str) -> Any:
    if name == "Hosted":
        # The SDK is an extra, and slow to load: whoever only reads the registry does without.
        from hutch.mcp.hosting.hosted import Hosted

        return Hosted
    raise AttributeError(name)
