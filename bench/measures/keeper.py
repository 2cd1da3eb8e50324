"""What the keeper costs and saves: exec through a handle, a box from the pool, the lookup of a conversation's box."""

import asyncio
import shutil
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, interleave
from bench.numbers import Number, Summary
from hutch.keeper.embedded import Hutch
from hutch.providers.base import Command

BARE = "bare instance"
POOLED = 8


async def handle(context: Context) -> list[Number]:
    """The cost of leases, pins and events: exec through a handle beside exec on the bare instance."""
    program = shutil.which("true")
    assert program is not None
    async with context.hutch() as hutch, hutch.box() as box:
        instance = (await hutch._keeper.live(box.id)).running
        command = Command(command=(program,), timeout_sec=30.0)

        async def through_handle() -> float:
            start = perf_counter()
            await box.exec([program])
            return perf_counter() - start

        async def bare() -> float:
            start = perf_counter()
            await instance.run(command)
            return perf_counter() - start

        count = context.count(500)
        samples = await interleave([Candidate("hutch", through_handle, count), Candidate(BARE, bare, count)])
    ours, theirs = (Summary.of(samples.milliseconds[name]) for name in ("hutch", BARE))
    return [Number("handle", "exec with lease, pin and events", "ms", ours, {BARE: theirs})]


async def found(context: Context) -> list[Number]:
    """Claim a ready box from the pool, and look up the live box of a conversation."""
    async with context.hutch(pool={"default": POOLED}) as hutch:
        claimed = [await _claim(hutch) for _ in range(context.count(100))]
    async with context.hutch() as hutch:
        again = []
        for _ in range(context.count(300)):
            start = perf_counter()
            async with hutch.box_for("{chat}", chat=7) as box:
                again.append(1000 * (perf_counter() - start))
        await hutch.destroy(box.id)  # box_for keeps it for the next program
    return [
        Number("claim", "a ready box claimed from the pool", "ms", Summary.of(claimed)),
        Number("found", "a conversation's live box found and leased", "ms", Summary.of(again)),
    ]


async def _claim(hutch: Hutch) -> float:
    while hutch._keeper.pool.waiting()["default"] < POOLED:
        await asyncio.sleep(0.005)
    start = perf_counter()
    box = await hutch.create()
    taken = 1000 * (perf_counter() - start)
    await box.destroy()
    return taken
