"""Skills: packages in the open SKILL.md format, as everybody sees them."""

from typing import Any

import msgspec

from hutch.model.record import Record


class SkillTool(Record, frozen=True, kw_only=True):
    """A tool that a skill brings; its command runs in the box while the skill is active (B38)."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of its arguments; they reach the command as JSON on its standard input."""
    command: tuple[str, ...]


class SkillPermissions(Record, frozen=True, kw_only=True):
    """What a skill declares to need; more than this its calls do not get."""

    network: bool = False
    paths: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    """Tools of ours it may use; None: all that the agent may."""


class SkillInfo(Record, frozen=True, kw_only=True):
    """One skill in its active version."""

    name: str
    description: str
    digest: str
    """sha256 of its content: the version."""
    installed_at: float
    origin: str = ""
    """Where it came from."""
    pinned: bool = False
    files: int = 0
    size: int = 0
    tools: tuple[SkillTool, ...] = ()
    permissions: SkillPermissions = SkillPermissions()
    warning: str = ""
