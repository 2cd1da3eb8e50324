"""Decodes the arguments that models write into records. It corrects what has only one meaning and refuses the rest."""

import json
import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from hutch.errors import Invalid
from hutch.tools.definition import Arguments, Tool

MAX_ARGUMENTS = 24 << 20
"""Most characters of a call's arguments as JSON text. The application puts larger files into the inbox."""

_ALIASES = {
    "cmd": "command", "shell": "command", "script": "command", "file_path": "path", "filepath": "path",
    "filename": "path", "file": "path", "directory": "path", "dir": "path", "root": "path", "text": "content",
    "contents": "content", "file_text": "content", "old_string": "old", "old_str": "old", "old_text": "old",
    "new_string": "new", "new_str": "new", "new_text": "new", "timeout_sec": "timeout", "timeout_seconds": "timeout",
    "regex": "pattern", "query": "pattern", "include": "glob", "job_id": "job", "id": "job", "box_id": "box",
    "working_directory": "cwd", "workdir": "cwd", "start_line": "offset", "start": "offset", "skill": "name",
}  # fmt: skip
"""Names that other tools use for our fields. They apply only where the tool has no field of the given name."""


def decode_arguments(tool: Tool, given: object) -> Arguments:
    """Return the record of the tool's arguments.

    Raises:
        Invalid: The arguments are wrong. It names the field, what is expected and an example.
    """
    if tool.arguments is None:
        raise TypeError(f"{tool.name} brings its own schema")
    plain = _with_field_names(tool, as_mapping(tool, given))
    kinds = _field_types(tool.arguments)
    values = {name: _coerce(value, kinds[name]) for name, value in plain.items()}
    try:
        return msgspec.convert(values, type=tool.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(tool, str(error), values) from error


def as_mapping(tool: Tool, given: object) -> dict[str, Any]:
    """Return a dict from a mapping, its JSON text, or nothing. Null values count as not given."""
    if given is None or given == "":
        return {}
    if isinstance(given, str | bytes):
        if len(given) > MAX_ARGUMENTS:
            raise _invalid(tool, f"the arguments have more than {MAX_ARGUMENTS} characters")
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise _invalid(tool, f"the arguments are not JSON: {error}") from error
    if not isinstance(given, Mapping):
        raise _invalid(tool, f"the arguments must be an object, not {_type_name(given)}")
    plain = {str(name): value for name, value in given.items() if value is not None}
    for name, value in plain.items():
        _check_text(tool, name, value)
    return plain


def _check_text(tool: Tool, name: str, value: object, depth: int = 0) -> None:
    """Refuse lone surrogates: they are half a character, which no file, path or command can hold."""
    if depth > 32:
        raise _invalid(tool, f"{name[:80]!r} is nested too deeply", field=name[:80])
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _invalid(tool, f"{name[:80]!r} is not valid Unicode text at character {error.start}") from error
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check_text(tool, name, str(key), depth + 1)
            _check_text(tool, name, each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_text(tool, name, each, depth + 1)


def _with_field_names(tool: Tool, plain: dict[str, Any]) -> dict[str, Any]:
    assert tool.arguments is not None
    fields = tool.arguments.__struct_fields__
    values: dict[str, Any] = {}
    for name, value in plain.items():
        meant = name if name in fields else _field_for(name, fields)
        if not meant or (meant != name and (meant in plain or meant in values)):
            raise _unknown_argument(tool, name, fields)
        values[meant] = value
    return values


def _field_for(name: str, fields: tuple[str, ...]) -> str:
    plain = name.strip().lower().replace("-", "_")
    for candidate in (plain, plain.replace("_", ""), _ALIASES.get(plain, "")):
        if candidate in fields:
            return candidate
    return ""


def _unknown_argument(tool: Tool, name: str, fields: tuple[str, ...]) -> Invalid:
    from difflib import get_close_matches

    near = get_close_matches(name[:80], fields, n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    return _invalid(tool, f"{tool.name} has no argument {name[:80]!r}{guess}", field=name[:80], known=list(fields))


@cache
def _field_types(arguments: type[Arguments]) -> dict[str, tuple[type, ...]]:
    """Return the plain types that each field takes."""
    return {name: tuple(_plain_types(hint)) for name, hint in get_type_hints(arguments).items()}


def _plain_types(hint: Any) -> list[type]:
    origin = get_origin(hint)
    if isinstance(hint, type) and origin is None:
        return [] if hint is type(None) else [hint]
    if origin in (tuple, list, dict):
        return [origin]
    return [each for part in get_args(hint) for each in _plain_types(part)]


def _coerce(value: Any, kinds: tuple[type, ...]) -> Any:
    """Convert the value if its meaning is certain. Otherwise return it unchanged, so that the check refuses it."""
    if isinstance(value, str):
        return _coerce_text(value, kinds)
    if isinstance(value, bool):
        return str(value).lower() if bool not in kinds and str in kinds else value
    if isinstance(value, int | float):
        if int in kinds and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        if str in kinds and not {int, float, bool} & set(kinds):
            return str(value)
        if kinds == (bool,) and value in (0, 1):
            return bool(value)
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and dict in kinds:
        return {str(key): str(each) if isinstance(each, int | float) else each for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _coerce_text(text: str, kinds: tuple[type, ...]) -> Any:
    plain = text.strip().lower()
    for kind in kinds:
        if issubclass(kind, Enum):
            return plain
    if str in kinds:
        return text
    if bool in kinds and plain in ("true", "false", "yes", "no", "1", "0"):
        return plain in ("true", "yes", "1")
    if {int, float} & set(kinds):
        return _number(plain, text, whole=float not in kinds)
    if (dict in kinds and plain[:1] == "{") or ({tuple, list} & set(kinds) and plain[:1] == "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _number(plain: str, text: str, *, whole: bool) -> Any:
    try:
        value = float(plain.removesuffix("s").strip() if not whole else plain)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _explain(tool: Tool, message: str, values: Mapping[str, Any]) -> Invalid:
    """Parse the message of msgspec, which has the form "Expected `int`, got `str` - at `$.limit`"."""
    what, _, place = message.partition(" - at `$.")
    field = place.rstrip("`").split("[")[0].split(".")[0]
    what = what.replace(" | null", "").replace("`", "")
    if what.startswith("Object missing required field"):
        field = what.rpartition(" ")[2]
        return _invalid(tool, f"{tool.name} needs the argument {field!r}", field=field)
    shown = f" (given: {str(values.get(field))[:80]!r})" if field in values else ""
    return _invalid(tool, f"argument {field!r}: {what[:1].lower()}{what[1:]}{shown}", field=field)


def _invalid(tool: Tool, message: str, **details: Any) -> Invalid:
    example = json.dumps(tool.example, ensure_ascii=False)
    return Invalid(message, op=tool.name, remedy=f"for example {example}", details={"tool": tool.name, **details})


def missing_argument(tool_name: str, field: str, action: str, example: dict[str, Any]) -> Invalid:
    """Return the error for an action of a grouped tool that lacks its argument."""
    return Invalid(
        f"{tool_name} with action {action!r} needs the argument {field!r}",
        op=tool_name,
        remedy=f"for example {json.dumps(example)}",
        details={"tool": tool_name, "field": field},
    )


def _type_name(value: object) -> str:
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), type(value).__name__)
