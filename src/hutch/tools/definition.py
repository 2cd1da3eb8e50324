"""The definition of a tool: its name, its description, the record of its arguments and its handler."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hutch.tools.result import ToolResult

if TYPE_CHECKING:
    from hutch.tools.call import Call

A = TypeVar("A", bound="Arguments")

MAX_PATH = 4096
"""Linux refuses longer paths (PATH_MAX)."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for argument records. None means "not given". The `Meta` of a field holds description and bounds."""


Handler = Callable[["Call", Any], Awaitable[ToolResult]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. Schemas, dispatch, permissions and guidance are all derived from it."""

    name: str
    description: str
    arguments: type[Arguments] | None
    """None if a skill or a provider supplies the tool; it then has `parameters`."""
    handler: Handler
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of the arguments if there is no record for them."""
    origin: str = ""
    """Empty for built-in tools, else `provider:NAME` or `skill:NAME`."""
    example: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments that are shown to a model whose own were wrong."""
    read_only: bool = False
    """The tool changes nothing, so clients may call it without asking anybody."""
    action: str = ""
    """The field that chooses what a grouped tool does."""
    actions: dict[str, str] = msgspec.field(default_factory=dict)
    """What each action of a grouped tool does, for its schema and for the guidance."""
    answers: type | None = None
    """Type of its structured content (`hutch.tools.builtin.answers`), or None if it is not declared."""
    settles: bool = False
    """The handler asks the gate about its command or path, whose rule may differ from the rule for the tool."""


def tool(
    name: str,
    arguments: type[A],
    *,
    example: dict[str, Any],
    answers: type | None = None,
    read_only: bool = False,
    action: str = "",
    actions: dict[str, str] | None = None,
    settles: bool = False,
) -> Callable[[Callable[["Call", A], Awaitable[ToolResult]]], Tool]:
    """Turn a function into a tool. The function's docstring becomes the description that the model sees."""

    def decorate(handler: Callable[["Call", A], Awaitable[ToolResult]]) -> Tool:
        described = " ".join((handler.__doc__ or "").split())
        return Tool(
            name=name, description=described, arguments=arguments, handler=handler, example=example,
            read_only=read_only, action=action, actions=actions or {}, answers=answers, settles=settles,
        )  # fmt: skip

    return decorate
