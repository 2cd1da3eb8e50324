"""A server as a later release might be: `hutch serve` whose answers have one field more in every record, and values of
states and causes that no release has yet."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from hutch.cli.main import main
from hutch.model.boxes import State
from hutch.model.record import encode_json
from hutch.model.results import Cause
from hutch.server import app
from hutch.server.handlers.box import commands


def grown(value: Any, named: Callable[[State | Cause], str] = str) -> Any:
    """As plain data, with a field in each record that no release has yet."""
    if isinstance(value, msgspec.Struct):
        fields = {name: grown(getattr(value, name), named) for name in value.__struct_fields__}
        return {**fields, "of_a_newer_release": {"deep": [1]}}
    if isinstance(value, dict):
        return {name: grown(each, named) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [grown(each, named) for each in value]
    if isinstance(value, State | Cause):
        return named(value)
    return msgspec.to_builtins(value)


def grown_json(value: object) -> bytes:
    """The answer as a whole has grown too, and its states and causes have names that nobody knows."""
    plain = grown(_with_causes(value), lambda each: f"{each}_of_a_newer_release")
    return encode_json({**plain, "of_a_newer_release": {"deep": [1]}} if isinstance(plain, dict) else plain)


def _with_causes(value: Any) -> Any:
    """A result is plain data already when it gets here."""
    if not isinstance(value, dict):
        return value
    return {name: Cause(each) if name == "cause" else _with_causes(each) for name, each in value.items()}


if __name__ == "__main__":
    app.as_json = commands.encode_json = grown_json  # type: ignore[attr-defined]
    sys.exit(main())
