"""A tool call over MCP on stdio, from a client's request to its answer; beside it the official SDK's own client."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from bench.context import Context
from bench.interleave import Candidate, interleave
from bench.numbers import Number, Summary
from hutch.mcp.serving.render import FACTS
from mcp import Client, StdioServerParameters

SDK = "SDK client"
WORDS = ("-m", "hutch.cli.main", "mcp", "--scope")


class Lines:
    """The protocol as bare lines: what is measured is the server, and no client's work."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._number = 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._to.write(json.dumps(message).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._from.readline())
        assert answer["id"] == self._number, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = await self.ask("tools/call", name=name, arguments=arguments)
        assert not result.get("isError"), result
        found: dict[str, Any] = result["_meta"][FACTS]
        return found


@asynccontextmanager
async def _lines(context: Context) -> AsyncIterator[Lines]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *WORDS, "lines", env=_environment(context), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        lines = Lines(process)
        info = {"name": "bench", "version": "1"}
        await lines.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
        assert process.stdin is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        yield lines
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def _environment(context: Context) -> dict[str, str]:
    return dict(each.split("=", 1) for each in context.environment())


async def mcp(context: Context) -> list[Number]:
    program = shutil.which("true")
    assert program is not None
    place = StdioServerParameters(command=sys.executable, args=[*WORDS, "sdk"], env=_environment(context))
    async with _lines(context) as lines, Client(place) as client:
        box = (await lines.call("exec", command=[program]))["box"]
        other = ((await client.call_tool("exec", {"command": [program]})).meta or {})[FACTS]["box"]

        async def bare() -> float:
            start = perf_counter()
            result = await lines.call("exec", command=[program])
            taken = perf_counter() - start
            assert result["exit_code"] == 0
            return taken

        async def through_sdk() -> float:
            start = perf_counter()
            result = await client.call_tool("exec", {"command": [program]})
            taken = perf_counter() - start
            assert not result.is_error
            return taken

        count = context.count(500)
        samples = await interleave([Candidate("hutch", bare, count), Candidate(SDK, through_sdk, count)])
        await lines.call("box_lifecycle", action="destroy", box=box)
        await client.call_tool("box_lifecycle", {"action": "destroy", "box": other})
    ours, theirs = (Summary.of(samples.milliseconds[name]) for name in ("hutch", SDK))
    return [Number("mcp", "MCP round trip on stdio: exec `true`", "ms", ours, {SDK: theirs})]
