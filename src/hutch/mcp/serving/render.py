"""Converts schemas and results of our tools to types of the protocol: text, structured content, pictures and hints."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent, Tool, ToolAnnotations

from hutch.model.arguments import spec_from_arguments
from hutch.model.spec import Mount, MountMode, NetworkMode, Workspace
from hutch.policy.profiles import Profile
from hutch.tools import ToolResult

FACTS = "hutch/facts"
"""The key of a result's `_meta` under which programs find exit codes, verdicts, handles and the codes of errors."""
IN_TEXT = frozenset({"stdout", "stderr", "text", "base64", "paths", "hits", "entries", "body"})
"""Facts that the text of a result contains in full."""
_ENDS_BOXES = frozenset({"box_lifecycle"})


class Exposure(NamedTuple):
    """What the tools can reach beyond a disposable box. Clients use it to decide when to ask their user."""

    host_files: bool = False
    """The box may write to a directory of this machine."""
    open: bool = False
    """The box has a network."""


def exposure_of(spec: Mapping[str, Any], profile: Profile) -> Exposure:
    """Return the exposure of boxes with this spec, including what their profile adds."""
    asked = spec_from_arguments(**spec)
    places: tuple[Workspace | Mount, ...] = (asked.workspace or profile.workspace, *asked.mounts, *profile.mounts)
    host_files = any(each.mode is MountMode.RW and each.source != "own" for each in places)
    return Exposure(host_files=host_files, open=(asked.network or profile.network) is not NetworkMode.OFF)


def tool_of(schema: Mapping[str, Any], exposure: Exposure) -> Tool:
    """Convert a schema of `Tools.schemas("mcp")`."""
    read_only = bool(schema["annotations"]["readOnlyHint"])
    return Tool(
        name=schema["name"],
        description=schema["description"],
        input_schema=schema["inputSchema"],
        annotations=ToolAnnotations(
            read_only_hint=read_only,
            destructive_hint=not read_only and (exposure.host_files or schema["name"] in _ENDS_BOXES),
            open_world_hint=not read_only and exposure.open,
        ),
    )


def result_of(result: ToolResult) -> CallToolResult:
    """Convert a result. What the text says is sent once.

    Of content and structured content some clients show the model one, some the other, some both, so there is no
    structured content: the text has everything, and programs find the other facts in `_meta`.
    """
    content: list[ContentBlock] = [TextContent(text=result.text)]
    content += [
        ImageContent(data=base64.b64encode(image.data).decode(), mime_type=image.mime) for image in result.images
    ]
    facts = {name: value for name, value in result.structured.items() if name not in IN_TEXT}
    return CallToolResult(content=content, _meta={FACTS: facts}, is_error=result.is_error)
