"""The public protocols: `Hutch`, `Box`, `Job`, `Files`. The embedded and the remote form both implement them.

`Raises:` names the errors that a caller should branch on. Besides them, every call on a box raises `Gone` once the box
was destroyed, `LeaseLost` once another session took it, `BoxBroken` if its guest died, and `Unavailable` while its
engine or server cannot be reached.
"""

from hutch.api.apps import App, Apps
from hutch.api.boxes import Argv, Box, Job, PortConnection, Shell, Stream
from hutch.api.code import Kernels
from hutch.api.files import Files, Watch
from hutch.api.hutch import CreatedHook, DestroyedHook, Hutch
from hutch.api.mcp_servers import McpServers
from hutch.api.resources import Questions, Receipts, Volumes
from hutch.api.skills import Skills

__all__ = [
    "App",
    "Apps",
    "Argv",
    "Box",
    "CreatedHook",
    "DestroyedHook",
    "Files",
    "Hutch",
    "Job",
    "Kernels",
    "McpServers",
    "PortConnection",
    "Questions",
    "Receipts",
    "Shell",
    "Skills",
    "Stream",
    "Volumes",
    "Watch",
]
