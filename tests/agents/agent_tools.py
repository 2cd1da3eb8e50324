"""The tools of a scripted agent: schemas, and answers as text and pictures. This module knows nothing of Hutch.

Each interface (OpenAI, Anthropic, MCP) implements `AgentTools`. The tasks of `tasks` are written once against it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple


class Spec(NamedTuple):
    """A tool as a model sees it."""

    name: str
    description: str
    schema: dict[str, Any]


class Reply(NamedTuple):
    """The answer that a model gets."""

    text: str
    failed: bool
    pictures: tuple[bytes, ...] = ()


class AgentTools(ABC):
    """The tools of an agent, which it can list and call."""

    @abstractmethod
    async def tools(self) -> list[Spec]:
        """Return the current tools. An activated skill may add more."""

    @abstractmethod
    async def send(self, name: str, arguments: dict[str, Any]) -> Reply: ...

    @abstractmethod
    async def prompt(self) -> str:
        """Return the text about the tools in the system prompt."""

    async def call(self, name: str, /, **arguments: Any) -> Reply:
        """Call a tool with arguments that follow its schema, as a model would."""
        known = {spec.name: spec for spec in await self.tools()}
        assert name in known, f"no tool {name}; there are {sorted(known)}"
        problem = mismatch(arguments, known[name].schema)
        assert not problem, f"{name}: {problem}"
        return await self.send(name, arguments)

    async def use(self, name: str, /, **arguments: Any) -> str:
        """Call a tool that must succeed, and return its text."""
        reply = await self.call(name, **arguments)
        assert not reply.failed, reply.text
        return reply.text


class Host(ABC):
    """The application around the agent, which the agent does not see."""

    @abstractmethod
    async def install_skill(self, directory: str) -> None: ...

    @abstractmethod
    async def give(self, files: Mapping[str, bytes]) -> None:
        """Pass files that come with the user's message."""

    @abstractmethod
    async def collect(self) -> dict[str, bytes]:
        """Return the files that leave with the agent's answer."""


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def mismatch(value: Any, schema: Mapping[str, Any]) -> str:
    """Return why the schema does not allow the value. Only the part of JSON Schema that our schemas use is checked."""
    if "anyOf" in schema:
        problems = [mismatch(value, choice) for choice in schema["anyOf"]]
        return "" if "" in problems else "; ".join(problems)
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{value!r} is none of {schema['enum']}"
    kinds = _TYPES.get(schema.get("type", ""), (object,))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds and object not in kinds):
        return f"{value!r} is no {schema['type']}"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            return f"{missing[0]} is missing"
        if schema.get("additionalProperties") is False and (
            extra := [name for name in value if name not in properties]
        ):
            return f"{extra[0]} is not in the schema"
        found = [mismatch(each, properties[name]) for name, each in value.items() if name in properties]
        return next(filter(None, found), "")
    if isinstance(value, list):
        return next(filter(None, (mismatch(each, schema.get("items", {})) for each in value)), "")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{value} is out of bounds"
    return ""
