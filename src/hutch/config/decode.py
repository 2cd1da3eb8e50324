"""Decode plain data to checked records; an error names the place, the key and what was probably meant."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from hutch.errors import ConfigError
from hutch.model.spec import Mount
from hutch.policy.profiles import LimitsTable, Maxima, WorkspaceTable

T = TypeVar("T")

_MESSAGE = r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?"
_UNKNOWN = r"Object contains unknown field `(.*)`"


class Source(NamedTuple):
    """Where plain data came from."""

    origin: Callable[..., str]
    """Turns the parts of a key to a text such as FILE:LINE."""
    text: bool = False
    """Whether numbers and booleans are written as text, as in the environment."""


def decode(kind: type[T], plain: object, source: Source, *prefix: str) -> T:
    """Decode data that stands under the key `prefix`. Raises ConfigError."""
    try:
        return msgspec.convert(_without_paths(plain), type=kind, strict=not source.text)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind, source, prefix) from error


def unknown_key(key: Sequence[str], known: Sequence[str], source: Source) -> ConfigError:
    from difflib import get_close_matches

    near = get_close_matches(key[-1], known, n=1)
    return ConfigError(
        f"{source.origin(*key)}: unknown key {'.'.join(key)}",
        remedy=f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}",
        details={"field": ".".join(key)},
    )


def _explained(message: str, kind: type, source: Source, prefix: tuple[str, ...]) -> ConfigError:
    """Parse the error text of msgspec, such as "Expected `int`, got `str` - at `$.limits.pids`"."""
    match = re.fullmatch(_MESSAGE, message, flags=re.DOTALL)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    # `[...]` stands for a value of a mapping; msgspec does not name its key.
    inner = tuple(part for part in re.findall(r"[^.\[\]]+", path.replace("[...]", "")) if part)
    if unknown := re.fullmatch(_UNKNOWN, what):
        named = [part for part in inner if not part.isdigit()]
        holder = _inner().get(named[-1], kind) if named else kind
        return unknown_key((*prefix, *inner, unknown[1]), getattr(holder, "__struct_fields__", ()), source)
    key = (*prefix, *inner)
    shown = ".".join(key) or "the configuration"
    what = what.replace(" | null", "")
    return ConfigError(
        f"{source.origin(*key)}: {shown}: {what[:1].lower()}{what[1:]}", details={"field": ".".join(key)}
    )


def _inner() -> dict[str, type[msgspec.Struct]]:
    """Return the types of tables within tables, by their keys."""
    from hutch.policy.permissions import CommandRule, PathRule

    return {
        "limits": LimitsTable, "maxima": Maxima, "workspace": WorkspaceTable, "mounts": Mount, "commands": CommandRule,
        "paths": PathRule,
    }  # fmt: skip


def _without_paths(value: Any) -> Any:
    """Turn paths to text: keyword arguments may hold them, files and variables never do."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, dict):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(each) for each in value]
    return value
