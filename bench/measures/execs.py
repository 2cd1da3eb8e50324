"""`true` in a box that lives already, beside a bare fork and exec of the same program."""

import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.numbers import Number, Summary, at_most_times, times_faster

BARE = "fork+exec"


async def execs(context: Context) -> list[Number]:
    program = shutil.which("true")
    assert program is not None
    with ExitStack() as stack:
        candidates = [Candidate(BARE, blocking(lambda: subprocess.Popen([program]).wait()), context.count(500))]
        for engine in context.peers.engines.values():
            container = engine.create()
            stack.callback(engine.remove, container)
            work: Callable[[], None] = partial(engine.exec, container, ["true"])
            candidates.append(Candidate(engine.name, blocking(work), context.count(50)))
        async with context.hutch() as hutch, hutch.box() as box:

            async def once() -> float:
                start = perf_counter()
                result = await box.exec([program])
                taken = perf_counter() - start
                assert result.exit_code == 0
                return taken

            samples = await interleave([Candidate("hutch", once, context.count(500)), *candidates])
    context.peers.missing.update(samples.failed)
    peers = {name: Summary.of(values) for name, values in samples.milliseconds.items()}
    ours = peers.pop("hutch")
    goals = (at_most_times(2, BARE), times_faster(35, "docker"))
    return [Number("exec", "exec `true` in a living box", "ms", ours, peers, goals)]
