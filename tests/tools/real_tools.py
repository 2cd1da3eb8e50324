"""Opens tools on real boxes, makes the usual calls, and checks every answer against its output schema."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from hutch.keeper.embedded import Hutch
from hutch.tools import ToolResult, Tools
from hutch.tools.schemas import output_schema
from hutch.tools.toolbox import TOOLS


@asynccontextmanager
async def open_tools(**options: Any) -> AsyncIterator[Tools]:
    """Open tools on a Hutch of their own, and destroy its boxes at the end. `config={...}` configures the Hutch."""
    async with Hutch(**options.pop("config", {})) as hutch:
        tools = Tools(hutch, **options)
        try:
            yield tools
        finally:
            await tools.close()
            for info in await hutch.boxes():
                if not info.elsewhere:
                    await hutch.destroy(info.id, force=True)


async def done(tools: Tools, tool: str, /, *, agent: str | None = None, **arguments: Any) -> ToolResult:
    """Make a call that must succeed."""
    result = await tools.call(tool, arguments, agent=agent)
    check_answer(tool, result)
    assert not result.is_error, result.text
    return result


async def refused(tools: Tools, tool: str, code: str, /, *, agent: str | None = None, **arguments: Any) -> ToolResult:
    """Make a call that must fail with this code and a message."""
    result = await tools.call(tool, arguments, agent=agent)
    check_answer(tool, result)
    assert result.is_error, result.text
    assert result.code == code, result.text
    assert result.structured["error"]["message"]
    return result


async def put(tools: Tools, path: str, data: bytes) -> None:
    """Write a file into the agent's box."""
    box, _ = await tools.agent().box()
    await box.files.write(path, data)


async def content(tools: Tools, path: str) -> bytes:
    box, _ = await tools.agent().box()
    return await box.files.read(path)


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
