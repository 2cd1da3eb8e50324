"""What a tool call adds to the command it runs: arguments, permissions, rendering."""

import shutil
from time import perf_counter

from bench.contest import Contender, contest
from bench.numbers import Number, Summary, at_most_above
from bench.setting import Setting
from hutch.tools import Tools

BARE = "box.exec"


async def tools(setting: Setting) -> list[Number]:
    program = shutil.which("true")
    assert program is not None
    async with setting.hutch() as hutch:
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

        count = setting.count(500)
        outcome = await contest([Contender("hutch", through_tool, count), Contender(BARE, bare, count)])
        await calls.close()
    ours, theirs = (Summary.of(outcome.milliseconds[name]) for name in ("hutch", BARE))
    goals = (at_most_above(1.0, "ms", BARE),)
    return [Number("tools", "tools.call('exec', true)", "ms", ours, {BARE: theirs}, goals)]
