"""Arguments as models write them: what can be meant one way only is taken, the rest refused with an example."""

from typing import Any

import pytest

from hutch.errors import Invalid
from hutch.tools.arguments import decode_arguments
from hutch.tools.builtin.exec import exec_tool
from hutch.tools.builtin.jobs import JobAction, job_tool
from hutch.tools.builtin.read import Unit, read_tool
from hutch.tools.builtin.write import write_tool


def test_numbers_booleans_and_choices_may_be_text() -> None:
    given: Any = decode_arguments(
        read_tool, {"path": "a", "limit": "20", "offset": 3.0, "unit": "LINES", "numbered": "True"}
    )
    assert (given.limit, given.offset, given.unit, given.numbered) == (20, 3, Unit.LINES, True)
    given = decode_arguments(exec_tool, {"command": "x", "timeout": "30s"})
    assert given.timeout == 30
    given = decode_arguments(job_tool, {"Action": "Start", "cmd": ["a", "b"], "env": {"N": 1}})
    assert (given.action, given.command, given.env) == (JobAction.START, ("a", "b"), {"N": "1"})
    given = decode_arguments(job_tool, {"action": "start", "env": '{"A": "b"}', "command": "x"})
    assert given.env == {"A": "b"}


def test_arguments_may_be_json_text_and_nulls_count_as_absent() -> None:
    given: Any = decode_arguments(exec_tool, '{"command": "x", "timeout": null, "cwd": null}')
    assert (given.command, given.timeout, given.cwd) == ("x", None, None)


def test_a_command_that_looks_like_json_stays_a_command() -> None:
    given: Any = decode_arguments(exec_tool, {"command": '["not", "a list"]'})
    assert given.command == '["not", "a list"]'
    given = decode_arguments(write_tool, {"path": "a", "content": "true"})
    assert given.content == "true"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "command"),
        ({"command": "x", "timeout": "soon"}, "timeout"),
        ({"command": "x", "timeout": -1}, "timeout"),
        ({"command": "x", "timeout": "nan"}, "timeout"),
        ({"command": "x", "timeout": float("inf")}, "timeout"),
        ({"command": {"a": 1}}, "command"),
        ({"command": ["a", {"b": 1}]}, "command"),
        ({"command": "x", "env": "A=b"}, "env"),
        ({"command": "x", "network": "on"}, "network"),
        ({"command": "x", "user": "root"}, "user"),
        ({"command": "x", "cmd": "y"}, "cmd"),
        ({"command": "x", "mounts": ["/:/host"]}, "mounts"),
    ],
)
def test_what_is_wrong_is_named_with_an_example(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode_arguments(exec_tool, arguments)
    assert caught.value.details["field"] == field
    assert "command" in caught.value.remedy


@pytest.mark.parametrize("given", ["{", "[1]", "7", b"\xff", 7, ["command"], '{"command": "\\ud800"}', "[" * 100_000])
def test_what_is_no_object_at_all_is_refused(given: object) -> None:
    with pytest.raises(Invalid):
        decode_arguments(exec_tool, given)
