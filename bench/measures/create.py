"""From nothing to the end of the first command: one creation after the other, and 50 ms apart.

The pause matters: caches cool down, and on cgroup v1 the kernel makes the first move into a group wait.
"""

import asyncio
import subprocess
from time import perf_counter

from bench.contest import Contender, blocking, contest
from bench.numbers import Number, Summary, at_most, times_faster
from bench.peers.engine import Engine
from bench.setting import Setting
from hutch.keeper.embedded import Hutch

PAUSE_SECONDS = 0.05


async def create(setting: Setting) -> list[Number]:
    async with setting.hutch() as hutch:
        contenders = [
            Contender("tight", lambda: first_command(hutch), setting.count(300)),
            Contender("spaced", lambda: _after_a_pause(hutch), setting.count(200)),
            *(_engine(engine, setting.count(30)) for engine in setting.peers.engines.values()),
        ]
        if argv := setting.peers.bwrap:
            contenders.append(
                Contender("bwrap", blocking(lambda: subprocess.run(argv, check=True)), setting.count(100))
            )
        outcome = await contest(contenders)
    setting.peers.missing.update(outcome.failed)
    peers = {name: Summary.of(values) for name, values in outcome.milliseconds.items()}
    tight, spaced = peers.pop("tight"), peers.pop("spaced")
    goals = (at_most(5, "ms"), times_faster(45, "docker"))
    return [
        Number("create", "create to first command", "ms", tight, peers, goals),
        Number("create_spaced", "the same, 50 ms apart", "ms", spaced, peers, goals),
    ]


async def first_command(hutch: Hutch) -> float:
    start = perf_counter()
    box = await hutch.create()
    result = await box.exec(["true"])
    taken = perf_counter() - start
    await box.destroy()
    assert result.exit_code == 0
    return taken


async def _after_a_pause(hutch: Hutch) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    return await first_command(hutch)


def _engine(engine: Engine, count: int) -> Contender:
    async def once() -> float:
        container, taken = engine.first_command()
        engine.remove(container)
        return taken

    return Contender(engine.name, once, count)
