"""Skills: packages in the open SKILL.md format, as they are shown."""

from enum import StrEnum
from typing import Any

import msgspec

from hutch.model.record import Record

INSTALLED_AT = "/workspace/.skills"
"""Directory in every box with its skills, read-only."""
STATE_AT = "/workspace/.skills-state"
"""Directory in the box's own workspace where each skill may write."""
EVERY_SKILL = "all"
"""The group of all skills of an owner."""
NO_SKILL = "none"
"""The group of a box without skills."""


class SkillTool(Record, frozen=True, kw_only=True):
    """A tool of a skill; its command runs in the box while the skill is active."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of its arguments; they reach the command as JSON on its standard input."""
    command: tuple[str, ...]
    """A relative program with a slash in its name (`scripts/run.py`) is a file of the skill."""


class SkillPermissions(Record, frozen=True, kw_only=True):
    """What a skill declares to need; its calls get no more. None if not declared, so that the box decides."""

    network: bool | None = None
    paths: tuple[str, ...] | None = None
    """Below the workspace or absolute; `PATH:ro` only to read. Beside them a call has its state directory and /tmp."""
    tools: tuple[str, ...] | None = None
    """Tools of ours it relies on: its programs may do to files what these could. None if the box decides."""


class SkillDependencies(Record, frozen=True, kw_only=True):
    """Packages that are installed once before its programs run, and shown beside the skill."""

    python: tuple[str, ...] = ()
    """Requirements in pip's format; one that begins with `./` is a file of the skill."""
    node: tuple[str, ...] = ()
    """Packages in npm's format."""


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
    versions: int = 1
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    tools: tuple[SkillTool, ...] = ()
    dependencies: SkillDependencies = SkillDependencies()
    permissions: SkillPermissions = SkillPermissions()
    warning: str = ""


class SkillFile(Record, frozen=True, kw_only=True):
    """One file of a skill."""

    path: str
    """Below the skill's directory."""
    size: int
    digest: str
    executable: bool = False


class SkillVersion(Record, frozen=True, kw_only=True):
    """One version that is kept."""

    digest: str
    installed_at: float
    origin: str = ""
    active: bool = False
    pinned: bool = False


class ChangeKind(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class SkillChange(Record, frozen=True, kw_only=True):
    """A difference of a new version from the active one in one file."""

    path: str
    kind: ChangeKind


class SkillPreview(Record, frozen=True, kw_only=True):
    """What an installation would install; nothing has been installed yet."""

    name: str
    description: str
    digest: str
    origin: str
    size: int
    files: tuple[SkillFile, ...]
    license: str = ""
    compatibility: str = ""
    tools: tuple[SkillTool, ...] = ()
    dependencies: SkillDependencies = SkillDependencies()
    permissions: SkillPermissions = SkillPermissions()
    warnings: tuple[str, ...] = ()
    replaces: str = ""
    """The digest that is active now; empty if the name is new."""
    changes: tuple[SkillChange, ...] = ()
    """Differences from the active version; empty if there is none, or if it is the same."""


class FoundSkill(Record, frozen=True, kw_only=True):
    """One directory with a SKILL.md, found by a scan; `problem` says why it could not be installed."""

    path: str
    name: str = ""
    description: str = ""
    problem: str = ""


class SkillBinding(Record, frozen=True, kw_only=True):
    """A named group of skills, which the boxes of one pipeline show."""

    group: str
    skills: tuple[str, ...]


class SkillPlace(Record, frozen=True, kw_only=True):
    """A skill prepared in one box: its directory, its state directory, and the environment of its programs."""

    name: str
    digest: str
    path: str
    state: str
    env: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
