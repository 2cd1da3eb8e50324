"""What a tool call adds to the command it runs: arguments, permissions, rendering."""

import shutil
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, interleave
from bench.numbers import Number, Summary
from hutch.tools import Tools

BARE = "box.exec"


async def tools(context: Context) -> list[Number]:
    program = shutil.which("true")
    assert program is not None
    async with context.hutch() as hutch:
        calls = Tools(hutch)
        assert not (await calls.call("exec", {"command": [program]})).is_error
        box = (await calls.agent().box())[0]

        async def through_tool() -> float:
            start = perf_counter()
            result = await calls.call("exec", {"command": [program]})
            taken = perf_counter() - start
            assert result.structured["exit_code"] == 0
            return taken

        async def bare() -> float:
            start = perf_counter()
            await box.exec([program])
            return perf_counter() - start

        count = context.count(500)
        samples = await interleave([Candidate("hutch", through_tool, count), Candidate(BARE, bare, count)])
        await calls.close()
    ours, theirs = (Summary.of(samples.milliseconds[name]) for name in ("hutch", BARE))
    return [Number("tools", "tools.call('exec', true)", "ms", ours, {BARE: theirs})]
