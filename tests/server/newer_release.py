"""A server as a later release might be: `hutch serve` whose answers have one field more in every record, and values of
states and causes that no release has yet."""

import sys
from typing import Any

import msgspec

from hutch.cli.main import main
from hutch.model.record import encoded
from hutch.model.results import Cause
from hutch.model.state import State
from hutch.server import app, commands


def grown(value: Any) -> Any:
    """As plain data, with a field in each record that no release has yet."""
    if isinstance(value, msgspec.Struct):
        fields = {name: grown(getattr(value, name)) for name in value.__struct_fields__}
        return {**fields, "of_a_newer_release": {"deep": [1]}}
    if isinstance(value, dict):
        # A result is plain data already when it gets here.
        return {name: grown(Cause(each) if name == "cause" else each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [grown(each) for each in value]
    if isinstance(value, State | Cause):
        return f"{value}_of_a_newer_release"
    return msgspec.to_builtins(value)


def grown_json(value: object) -> bytes:
    """The answer as a whole has grown too."""
    plain = grown(value)
    return encoded({**plain, "of_a_newer_release": {"deep": [1]}} if isinstance(plain, dict) else plain)


if __name__ == "__main__":
    app.as_json = commands.encoded = grown_json  # type: ignore[attr-defined]
    sys.exit(main())
