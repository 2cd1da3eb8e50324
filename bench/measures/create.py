"""From nothing to the end of the first command: one creation after the other, and 50 ms apart; durable or not.

The pause matters: caches cool down, and on cgroup v1 the kernel makes the first move into a group wait.
"""

import asyncio
import subprocess
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.numbers import Number, Summary, at_most_times, times_faster
from bench.peers.engine import Engine
from hutch.keeper.embedded import Hutch
from hutch.keeper.store.store import MemoryStore

PAUSE_SECONDS = 0.05
MEMORY = "memory store"


async def create(context: Context) -> list[Number]:
    async with context.hutch() as hutch:
        candidates = [
            Candidate("tight", lambda: first_command(hutch), context.count(300)),
            Candidate("spaced", lambda: _after_a_pause(hutch), context.count(200)),
            *(_engine(engine, context.count(30)) for engine in context.peers.engines.values()),
        ]
        if argv := context.peers.bwrap:
            candidates.append(
                Candidate("bwrap", blocking(lambda: subprocess.run(argv, check=True)), context.count(100))
            )
        samples = await interleave(candidates)
    context.peers.missing.update(samples.failed)
    peers = {name: Summary.of(values) for name, values in samples.milliseconds.items()}
    tight, spaced = peers.pop("tight"), peers.pop("spaced")
    goals = (times_faster(45, "docker"), at_most_times(1, "bwrap"))
    return [
        Number("create", "create to first command", "ms", tight, peers, goals),
        Number("create_spaced", "the same, 50 ms apart", "ms", spaced, peers, goals),
    ]


async def durable(context: Context) -> list[Number]:
    """What it costs that a box's record is on disk before its engine is called: SQLite beside a store in memory."""
    async with context.hutch() as usual, context.hutch(MemoryStore()) as forgetful:
        count = context.count(200)
        samples = await interleave(
            [
                Candidate("hutch", lambda: first_command(usual), count),
                Candidate(MEMORY, lambda: first_command(forgetful), count),
            ]
        )
    ours, memory = (Summary.of(samples.milliseconds[name]) for name in ("hutch", MEMORY))
    return [Number("durable", "create to first command, records in SQLite", "ms", ours, {MEMORY: memory})]


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


def _engine(engine: Engine, count: int) -> Candidate:
    async def once() -> float:
        container, taken = engine.first_command()
        engine.remove(container)
        return taken

    return Candidate(engine.name, once, count)
