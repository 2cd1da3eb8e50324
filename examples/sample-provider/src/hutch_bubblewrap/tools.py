"""What this provider adds for models: a tool that exists only while a bubblewrap box is the current one."""

from hutch.tools import ProviderKit
from hutch.tools.call import Call
from hutch.tools.definition import Arguments, tool
from hutch.tools.result import ToolResult


class Nothing(Arguments, frozen=True, kw_only=True):
    """It takes no arguments."""


@tool("wall", Nothing, example={}, read_only=True)
async def wall(call: Call, arguments: Nothing) -> ToolResult:
    """Show which namespaces and which system call filter this box lives in."""
    box = await call.box()
    result = await box.exec("ls -l /proc/self/ns; grep -E 'NoNewPrivs|Seccomp' /proc/self/status")
    return ToolResult(text=result.stdout)


KIT = ProviderKit(tools=(wall,))
