"""Renders tool definitions as the schemas of OpenAI, Anthropic and MCP. No box is needed for it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from hutch.errors import Invalid
from hutch.tools.definition import Arguments, Tool


class Flavour(StrEnum):
    OPENAI = "openai"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


class View(NamedTuple):
    """The part of a tool that an agent may see."""

    hidden: frozenset[str] = frozenset()
    """Fields and actions that the agent may not use."""
    choices: Mapping[str, tuple[str, ...]] = {}
    """Fields that are restricted to these values."""
    maxima: Mapping[str, float] = {}
    """The largest values that the box allows in these fields."""
    descriptions: Mapping[str, str] = {}
    """Descriptions of fields that depend on the box."""
    extra_description: str = ""
    """Text that is added to the description for an agent that may use the described action."""


def render_schemas(flavour: str, tools: Iterable[Tool], views: Mapping[str, View]) -> list[dict[str, Any]]:
    """Return the schemas of the tools. `views` maps a tool's name to what the agent sees of it."""
    try:
        kind = Flavour(flavour)
    except ValueError:
        known = ", ".join(Flavour)
        raise Invalid(f"there is no schema for {flavour!r}", op="schemas", remedy=f"one of {known}") from None
    return [_render(kind, tool, views.get(tool.name, View())) for tool in tools]


def _render(kind: Flavour, tool: Tool, view: View) -> dict[str, Any]:
    schema = parameters(tool, view)
    named = {"name": tool.name, "description": f"{tool.description} {view.extra_description}".strip()}
    if kind is Flavour.OPENAI:
        return {"type": "function", "function": {**named, "parameters": schema}}
    if kind is Flavour.OPENAI_RESPONSES:
        return {"type": "function", **named, "parameters": schema, "strict": False}
    if kind is Flavour.ANTHROPIC:
        return {**named, "input_schema": schema}
    # Every path stays in a disposable box, so nothing here is destructive to the client's own machine.
    hints = {"readOnlyHint": tool.read_only, "openWorldHint": False}
    output = {"outputSchema": output_schema(tool.answers)} if tool.answers is not None else {}
    return {**named, "inputSchema": schema, **output, "annotations": hints}


def parameters(tool: Tool, view: View) -> dict[str, Any]:
    """Return the JSON schema of the tool's arguments."""
    if tool.arguments is None:
        return {"type": "object", "properties": {}, **tool.parameters}
    whole = _input_schema(tool.arguments)
    properties = {name: field for name, field in whole["properties"].items() if name not in view.hidden}
    for field, values in view.choices.items():
        properties[field] = {**properties[field], "enum": list(values)}
    for field, bound in view.maxima.items():
        properties[field] = {**properties[field], "maximum": bound}
    for field, text in view.descriptions.items():
        properties[field] = {**properties[field], "description": text}
    if tool.action:
        choice = properties[tool.action]
        shown = [each for each in choice["enum"] if each not in view.hidden]
        texts = "; ".join(f"{each}: {tool.actions[each]}" for each in shown)
        properties[tool.action] = {**choice, "enum": shown, "description": texts}
    return {**whole, "properties": properties}


@cache
def _input_schema(arguments: type[Arguments]) -> dict[str, Any]:
    """Return the schema of msgspec with references resolved and "or null" removed: models follow plain schemas best."""
    _, components = msgspec.json.schema_components((arguments,), ref_template="{name}")
    whole = _simplify(components[arguments.__name__], components)
    return {
        "type": "object",
        "properties": whole["properties"],
        "required": whole.get("required", []),
        "additionalProperties": False,
    }


@cache
def output_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a tool's structured content, in which "or null" has a meaning.

    Some clients validate errors against it too, so the required fields are required only if there is no error.
    """
    _, components = msgspec.json.schema_components((kind,), ref_template="{name}")
    whole: dict[str, Any] = _inline_references(components[kind.__name__], components)
    required = whole.pop("required", [])
    return {**whole, "anyOf": [{"required": required}, {"required": ["error"]}]} if required else whole


def _inline_references(schema: Any, components: Mapping[str, Any]) -> Any:
    """Replace every reference by its target, and drop titles and defaults."""
    if isinstance(schema, list):
        return [_inline_references(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline_references(components[schema["$ref"]], components)
    return typed_enum(
        {key: _inline_references(each, components) for key, each in schema.items() if key not in ("title", "default")}
    )


def _simplify(schema: Any, components: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_simplify(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = _simplify(components[schema["$ref"]], components)
        return {**named, **{key: value for key, value in schema.items() if key != "$ref"}}
    plain = {key: _simplify(value, components) for key, value in schema.items() if key not in ("title", "$defs")}
    if plain.get("default", 0) is None:
        del plain["default"]
    if isinstance(plain.get("anyOf"), list):
        choices = [choice for choice in plain.pop("anyOf") if choice != {"type": "null"}]
        plain = {**choices[0], **plain} if len(choices) == 1 else {**plain, "anyOf": choices}
    return typed_enum(plain)


def typed_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """Give an enum of texts its type, which msgspec leaves out and some models' interfaces demand."""
    values = schema.get("enum")
    if "type" in schema or not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        return schema
    return {"type": "string", **schema}
