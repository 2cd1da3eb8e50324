"""A tool as data: its name, what it is for, the record of its arguments, and the function that does it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hutch.tools.result import ToolResult

if TYPE_CHECKING:
    from hutch.tools.call import Call

A = TypeVar("A", bound="Arguments")

MAX_PATH = 4096
"""Linux takes no longer ones."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the records of arguments. None is "not given"; descriptions and bounds are `Meta` of the fields."""


Handler = Callable[["Call", Any], Awaitable[ToolResult]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One definition; schemas, dispatch, permissions and guidance all come from it."""

    name: str
    description: str
    arguments: type[Arguments] | None
    """None: the tool is a skill's or a provider's and brings `parameters`."""
    handler: Handler
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of arguments that have no record here."""
    origin: str = ""
    """Empty: of Hutch itself; else `provider:NAME` or `skill:NAME` (P13)."""
    example: dict[str, Any] = msgspec.field(default_factory=dict)
    """Shown to a model whose arguments were wrong."""
    read_only: bool = False
    """It changes nothing: clients may call it without asking anybody."""
    action: str = ""
    """The field that chooses what a grouped tool does."""
    answers: type | None = None
    """What its structured content holds (`hutch.tools.builtin.answers`); None: it is not said."""
    settles: bool = False
    """Its handler asks the gate about the command or the path, which may decide otherwise than the tool's own rule."""


def tool(
    name: str,
    arguments: type[A],
    *,
    example: dict[str, Any],
    answers: type | None = None,
    read_only: bool = False,
    action: str = "",
    settles: bool = False,
) -> Callable[[Callable[["Call", A], Awaitable[ToolResult]]], Tool]:
    """Make a tool of a function; its docstring is what the model is told."""

    def made(handler: Callable[["Call", A], Awaitable[ToolResult]]) -> Tool:
        described = " ".join((handler.__doc__ or "").split())
        return Tool(
            name=name, description=described, arguments=arguments, handler=handler, example=example,
            read_only=read_only, action=action, answers=answers, settles=settles,
        )  # fmt: skip

    return made
