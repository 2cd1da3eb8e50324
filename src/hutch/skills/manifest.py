"""The front matter of a SKILL.md: the fields of the open format, checked, and our own under `hutch`.

The file is never written back from what was parsed here, so that comments and unknown fields survive.
"""

import re
from typing import Any, TypeVar

import msgspec

from hutch.errors import Invalid
from hutch.model.record import Record
from hutch.model.skills import SkillDependencies, SkillPermissions, SkillTool
from hutch.skills.tool_call import READING_TOOLS, WRITING_TOOLS

R = TypeVar("R", bound=Record)

MANIFEST = "SKILL.md"
MAX_MANIFEST_BYTES = 256 << 10
MAX_FRONT_MATTER = 32 << 10
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_TOOL_NAME = re.compile(r"[a-z][a-z0-9_-]{0,47}")
_FENCE = re.compile(r"---[ \t]*(?:\r\n|\n|\r|$)")
_FENCE_LATER = re.compile(r"(?:\r\n|\n|\r)---[ \t]*(?:\r\n|\n|\r|$)")
KNOWN_TOOLS = READING_TOOLS | WRITING_TOOLS | {
    "box_query", "box_lifecycle", "box_operation", "list_skills", "activate_skill",
}  # fmt: skip
_KNOWN = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools", "hutch"})


class Manifest(Record, frozen=True, kw_only=True):
    """What a SKILL.md declares."""

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    tools: tuple[SkillTool, ...] = ()
    dependencies: SkillDependencies = SkillDependencies()
    permissions: SkillPermissions = SkillPermissions()
    warnings: tuple[str, ...] = ()


def is_skill_name(name: str) -> bool:
    return len(name) <= 64 and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    if not is_skill_name(name):
        raise Invalid(
            f"{name[:80]!r} is not a valid skill name",
            remedy="lowercase letters and digits, single hyphens between them, 64 at most",
            details={"field": "name"},
        )
    return name


def split(text: str) -> tuple[str, str]:
    """Return front matter and body, both as they are in the file."""
    text = text.removeprefix("\ufeff")
    first = _FENCE.match(text)
    if first is None:
        raise _invalid("it does not begin with a line `---`")
    # The search starts one character back: an empty front matter has its closing line right after the opening one.
    closing = _FENCE_LATER.search(text, first.end() - 1)
    if closing is None:
        raise _invalid("its front matter has no closing line `---`")
    return text[first.end() : closing.start()], text[closing.end() :]


def parse(content: bytes) -> Manifest:
    """Parse a manifest. Raises Invalid that names the field."""
    if len(content) > MAX_MANIFEST_BYTES:
        raise _invalid(
            f"it has {len(content)} bytes, and {MAX_MANIFEST_BYTES} are allowed", "move the bulk into other files"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8 ({error.reason} at byte {error.start})") from error
    front = split(text)[0]
    if len(front) > MAX_FRONT_MATTER:
        raise _invalid(f"its front matter has more than {MAX_FRONT_MATTER} characters")
    fields = _fields(front)
    hutch_fields = _hutch_fields(fields)
    warnings = [f"unknown field {name!r} is kept and ignored" for name in sorted(fields.keys() - _KNOWN)]
    tools = _tools(hutch_fields.pop("tools", None))
    permissions = _permissions(hutch_fields.pop("permissions", None))
    dependencies = _dependencies(hutch_fields.pop("dependencies", None))
    warnings += [f"unknown field 'hutch.{name}' is kept and ignored" for name in sorted(hutch_fields)]
    if tools and permissions.network is None:
        warnings.append("it brings tools and does not say whether they need the network: they get what the box has")
    unknown = sorted({*(permissions.tools or ())} - KNOWN_TOOLS)
    if unknown:
        warnings.append(f"`permissions.tools` names {', '.join(unknown)}: there is no such tool here")
    return Manifest(
        name=check_name(_text(fields, "name", 64, required=True)),
        description=_text(fields, "description", MAX_DESCRIPTION, required=True),
        license=_text(fields, "license", 200),
        compatibility=_text(fields, "compatibility", MAX_COMPATIBILITY),
        metadata=_metadata(fields.get("metadata")),
        allowed_tools=_allowed_tools(fields.get("allowed-tools")),
        tools=tools,
        dependencies=dependencies,
        permissions=permissions,
        warnings=tuple(warnings),
    )


def edit_manifest(content: bytes, description: str | None = None, body: str | None = None) -> bytes:
    """Replace the description or the instructions. Everything else stays byte for byte: unknown fields, their
    order, comments and line ends."""
    from hutch.skills.yaml_fields import replace_text

    parse(content)
    text = content.decode()
    front, old_body = split(text)
    end = text[: len(text) - len(old_body)]
    if description is not None:
        at = end.index(front)
        end = end[:at] + replace_text(front, "description", description) + end[at + len(front) :]
    new = end + (old_body if body is None else body)
    return new.encode()


def _fields(text: str) -> dict[str, Any]:
    from hutch.skills.yaml_fields import load  # YAML is slow to import, and most commands read no skill

    fields = load(text)
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise _invalid("its front matter is not a list of `field: value`")
    return fields


def _hutch_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return our own declarations: under `hutch`, or under `metadata.hutch` for tools that know only open fields."""
    metadata = fields.get("metadata")
    inner = metadata.get("hutch") if isinstance(metadata, dict) else None
    outer = fields.get("hutch")
    if inner is not None and outer is not None:
        raise _invalid("`hutch` is both at the top level and under metadata", "keep one")
    found = outer if outer is not None else inner
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise _invalid("`hutch` is not a mapping")
    return dict(found)


def _text(fields: dict[str, Any], name: str, max_length: int, *, required: bool = False) -> str:
    value = fields.get(name)
    if value is None and not required:
        return ""
    if isinstance(value, bool | int | float) and not required:
        value = str(value)
    if not isinstance(value, str) or (required and not value.strip()):
        raise _invalid(f"`{name}` must be text{' and not empty' if required else ''}", field=name)
    if len(value) > max_length:
        raise _invalid(f"`{name}` has {len(value)} characters, and {max_length} are allowed", field=name)
    return value.strip()


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid("`metadata` is not a mapping", field="metadata")
    plain = {str(name): item for name, item in value.items() if name != "hutch"}
    return {name: item if isinstance(item, str) else msgspec.json.encode(item).decode() for name, item in plain.items()}


def _allowed_tools(value: Any) -> tuple[str, ...]:
    """Parse the allowed tools. The open format has one text with blanks between the names; lists occur as well."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(re.findall(r"[^\s,(]+(?:\([^)]*\))?", value))
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise _invalid("`allowed-tools` must be names separated by blanks", field="allowed-tools")


def _tools(value: Any) -> tuple[SkillTool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid("`hutch.tools` is not a list", field="tools")
    tools = tuple(_tool(each) for each in value)
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise _invalid("two of its tools have the same name", field="tools")
    return tools


def _tool(value: Any) -> SkillTool:
    if not isinstance(value, dict):
        raise _invalid("a tool is not a mapping with name, description, parameters and command", field="tools")
    plain = dict(value)
    if isinstance(plain.get("command"), str):
        plain["command"] = ["sh", "-c", plain["command"]]
    tool = _converted(plain, SkillTool, "tools")
    if not _TOOL_NAME.fullmatch(tool.name):
        raise _invalid(
            f"{tool.name[:80]!r} is not a valid tool name",
            "lowercase letters, digits, _ and -; a letter first",
            "tools",
        )
    if not tool.command or not tool.command[0] or any("\0" in word for word in tool.command):
        raise _invalid(f"tool {tool.name} has no command", field="tools")
    if ".." in tool.command[0].split("/"):
        raise _invalid(f"the command of tool {tool.name} leads out of the skill", field="tools")
    if tool.parameters and tool.parameters.get("type", "object") != "object":
        raise _invalid(f"the parameters of tool {tool.name} are not the JSON schema of an object", field="tools")
    return tool


def _permissions(value: Any) -> SkillPermissions:
    permissions = _converted({} if value is None else value, SkillPermissions, "permissions")
    for path in permissions.paths or ():
        if ".." in path.split("/") or not path.removesuffix(":ro") or "\0" in path:
            raise _invalid(f"path {path!r} in its permissions is not plain", "write it without ..", "permissions")
    return permissions


def _dependencies(value: Any) -> SkillDependencies:
    plain = dict(value) if isinstance(value, dict) else value
    if isinstance(plain, dict):
        if "apt" in plain:
            raise _invalid(
                "it requires system packages (`apt`), which a box does not install", "use an image that has them"
            )
        plain = {{"pip": "python", "npm": "node"}.get(name, name): item for name, item in plain.items()}
    found = _converted({} if plain is None else plain, SkillDependencies, "dependencies")
    for requirement in (*found.python, *found.node):
        # Both installers accept options among requirements, which could name other indexes or run scripts.
        if not requirement.strip() or requirement.lstrip().startswith("-") or not requirement.isprintable():
            raise _invalid(f"{requirement!r} is not a requirement", field="dependencies")
    return found


def _converted(plain: object, kind: type[R], field: str) -> R:
    try:
        return kind.from_plain(plain)
    except Invalid as error:
        raise _invalid(f"`hutch.{field}`: {error.message.partition(': ')[2]}", field=field) from error


def _invalid(reason: str, remedy: str = "see docs/guides/skills.md for the format", field: str = "") -> Invalid:
    return Invalid(f"{MANIFEST} cannot be used: {reason}", remedy=remedy, details={"field": field} if field else None)
