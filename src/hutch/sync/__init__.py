"""The same API without `await`: `from hutch.sync import Hutch`.

One background thread runs the event loop; every call passes its coroutine to it and waits. The signatures are taken
from the protocols in `hutch.api`, so that the two forms cannot differ.
"""

from typing import TYPE_CHECKING, Any

from hutch.sync.boxes import Box, Files, Job, Stream, Watch
from hutch.sync.hutch import Hutch
from hutch.sync.resources import App, Apps, McpServers, Questions, Receipts, Skills, Volumes

if TYPE_CHECKING:
    from hutch.sync.tools import Tools

__all__ = [
    "App", "Apps", "Box", "Files", "Hutch", "Job", "McpServers", "Questions", "Receipts", "Skills", "Stream", "Tools",
    "Volumes", "Watch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "Tools":  # Loaded at first use: most programs give no tools to a model.
        from hutch.sync.tools import Tools

        return Tools
    raise AttributeError(name)
