"""Checks that every answer of a tool matches its output schema and holds nothing else."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from hutch.tools import ToolResult
from hutch.tools.schemas import output_schema
from hutch.tools.toolbox import TOOLS

_KINDS = {tool.name: tool.answers for tool in TOOLS}


def check_answer(tool: str, result: ToolResult) -> None:
    """Check an answer of a built-in tool, which may be an error."""
    kind = _KINDS.get(tool)
    if kind is None:
        return
    assert ("error" in result.structured) == result.is_error
    for problem in _validator(kind).iter_errors(result.structured):
        raise AssertionError(f"{tool}: {problem.json_path}: {problem.message[:300]}")


@cache
def _validator(kind: type) -> Draft202012Validator:
    return Draft202012Validator(_closed(output_schema(kind)))


def _closed(schema: Any) -> Any:
    """Return the schema with unknown fields forbidden."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(schema.get("properties"), dict) else closed
