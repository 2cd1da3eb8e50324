"""What it costs that a box's record is on disk before its engine is called: the usual store beside one in memory."""

from bench.contest import Contender, contest
from bench.measures.create import first_command
from bench.numbers import Number, Summary, at_most_above
from bench.setting import Setting
from hutch.keeper.store.store import MemoryStore

MEMORY = "memory store"


async def durable(setting: Setting) -> list[Number]:
    async with setting.hutch() as usual, setting.hutch(MemoryStore()) as forgetful:
        count = setting.count(200)
        outcome = await contest(
            [
                Contender("hutch", lambda: first_command(usual), count),
                Contender(MEMORY, lambda: first_command(forgetful), count),
            ]
        )
    ours, memory = (Summary.of(outcome.milliseconds[name]) for name in ("hutch", MEMORY))
    goals = (at_most_above(1, "ms", MEMORY),)
    return [Number("durable", "create to first command, records in SQLite", "ms", ours, {MEMORY: memory}, goals)]
