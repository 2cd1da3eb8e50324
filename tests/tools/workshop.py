"""Tools on real boxes, and what every test of them does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.keeper.embedded import Hutch
from hutch.tools import ToolResult, Tools
from tests.tools.answering import check_answer


@asynccontextmanager
async def workshop(**options: Any) -> AsyncIterator[Tools]:
    """Tools on a Hutch of their own; its boxes are gone at the end. Settings of the Hutch: `config={...}`."""
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
    """A call that has to succeed."""
    result = await tools.call(tool, arguments, agent=agent)
    check_answer(tool, result)
    assert not result.is_error, result.text
    return result


async def refused(tools: Tools, tool: str, code: str, /, *, agent: str | None = None, **arguments: Any) -> ToolResult:
    """A call that has to end in that error, with words for a model."""
    result = await tools.call(tool, arguments, agent=agent)
    check_answer(tool, result)
    assert result.is_error, result.text
    assert result.code == code, result.text
    assert result.structured["error"]["message"]
    return result


async def put(tools: Tools, path: str, data: bytes) -> None:
    """A file in the agent's box, byte for byte."""
    box, _ = await tools.agent().box()
    await box.files.write(path, data)


async def content(tools: Tools, path: str) -> bytes:
    box, _ = await tools.agent().box()
    return await box.files.read(path)
