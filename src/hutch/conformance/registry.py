"""The registry of checks: each is a coroutine with its theme, its name and the capability it needs.

A need is spelled like `Missing.what`: a field of the capabilities, with the value where there are several (`pty`,
`networks.on`, `users.root`, `grades.memory_mb`); several are separated by spaces. If the provider lacks one, its
refusal runs instead. A check that tries the wall needs `isolation`: where there is none it would hit the machine.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

from hutch.errors import Invalid
from hutch.model.capabilities import Capabilities

if TYPE_CHECKING:
    from hutch.conformance.workbench import Workbench

Body = Callable[["Workbench"], Awaitable[None]]

THEMES = ("capabilities", "life", "exec", "streams", "jobs", "terminal", "files", "edits", "search", "trees", "limits",
          "isolation", "network", "ports", "mounts", "layers")  # fmt: skip
"""The themes in the order in which a provider's author wants them to pass, each a module of `conformance.checks`."""


@dataclass(frozen=True, slots=True)
class Check:
    """One behaviour that every provider has."""

    name: str
    theme: str
    needs: str
    sentence: str
    """The behaviour, as the contract states it."""
    body: Body


_checks: dict[str, Check] = {}
_refusals: dict[str, Body] = {}


def check(theme: str, *, needs: str = "") -> Callable[[Body], Body]:
    """Register `async def check_NAME(bench)`; its docstring is the behaviour."""

    def register(body: Body) -> Body:
        name = f"{theme}.{_title(body).removeprefix('check_')}"
        sentence = " ".join((body.__doc__ or "").split())
        if name in _checks or not sentence:
            raise Invalid(f"check {name} is registered twice, or has no docstring")
        _checks[name] = Check(name=name, theme=theme, needs=needs, sentence=sentence, body=body)
        return body

    return register


def refusal(need: str) -> Callable[[Body], Body]:
    """Register a request that a provider without `need` gets nevertheless, and has to refuse."""

    def register(body: Body) -> Body:
        _refusals[need] = body
        return body

    return register


def checks() -> tuple[Check, ...]:
    """Return every check, ordered by theme."""
    import_module("hutch.conformance.refusals")
    for theme in THEMES:
        import_module(f"hutch.conformance.checks.{theme}")
    return tuple(sorted(_checks.values(), key=lambda each: THEMES.index(each.theme)))


def chosen(select: tuple[str, ...]) -> tuple[Check, ...]:
    """Return the checks whose name or theme is given, or all without a selection."""
    every = checks()
    for asked in select:
        if not any(asked in (each.name, each.theme) for each in every):
            raise Invalid(f"there is no check {asked!r}", remedy=_nearest(asked, every))
    return tuple(each for each in every if not select or each.name in select or each.theme in select)


def refusal_of(need: str) -> Body | None:
    return _refusals.get(need)


def lacking(capabilities: Capabilities, needs: str) -> str:
    """Return the first need that the provider does not claim, or "" if it claims all of them."""
    return next((need for need in needs.split() if not _claims(capabilities, need)), "")


def has(capabilities: Capabilities, needs: str) -> bool:
    """Return whether the provider claims what a check needs."""
    return not lacking(capabilities, needs)


def _claims(capabilities: Capabilities, need: str) -> bool:
    field, _, value = need.partition(".")
    claimed = getattr(capabilities, field)
    if isinstance(claimed, tuple):
        return value in claimed
    if isinstance(claimed, StrEnum) and value:
        return claimed == value
    if value:
        claimed = getattr(claimed, value)
    return claimed not in (False, "none")


def _title(body: Body) -> str:
    return str(getattr(body, "__name__", ""))


def _nearest(asked: str, every: tuple[Check, ...]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(asked, [each.name for each in every], n=1)
    return f"did you mean {near[0]}?" if near else f"themes: {', '.join(THEMES)}"
