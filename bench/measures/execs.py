"""`true` in a box that lives already, beside a bare fork and exec of the same program."""

import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from bench.contest import Contender, blocking, contest
from bench.numbers import Number, Summary, at_most, times_as_long, times_faster
from bench.setting import Setting

BARE = "fork+exec"


async def execs(setting: Setting) -> list[Number]:
    program = shutil.which("true")
    assert program is not None
    with ExitStack() as stack:
        contenders = [Contender(BARE, blocking(lambda: subprocess.Popen([program]).wait()), setting.count(500))]
        for engine in setting.peers.engines.values():
            container = engine.create()
            stack.callback(engine.remove, container)
            work: Callable[[], None] = partial(engine.exec, container, ["true"])
            contenders.append(Contender(engine.name, blocking(work), setting.count(50)))
        async with setting.hutch() as hutch, hutch.box() as box:

            async def once() -> float:
                start = perf_counter()
                result = await box.exec([program])
                taken = perf_counter() - start
                assert result.exit_code == 0
                return taken

            outcome = await contest([Contender("hutch", once, setting.count(500)), *contenders])
    setting.peers.missing.update(outcome.failed)
    peers = {name: Summary.of(values) for name, values in outcome.milliseconds.items()}
    ours = peers.pop("hutch")
    goals = (at_most(1.5, "ms"), times_as_long(2, BARE), times_faster(35, "docker"))
    return [Number("exec", "exec `true` in a living box", "ms", ours, peers, goals)]
