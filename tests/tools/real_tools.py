"""Opens tools on real boxes, and the calls that most tests of them make."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.keeper.embedded import Hutch
from hutch.tools import ToolResult, Tools
from tests.tools.answer_schema import check_answer


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
