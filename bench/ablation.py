"""What each optimisation of box creation saves: Hutch with it beside Hutch without it, in turns.

Every variant leaves out one optimisation. In each round every variant creates the same number of boxes, and its round
is compared with the round of the complete Hutch. An optimisation pays if its gain is above zero in nine of ten rounds.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench.context import Context
from bench.measures.create import first_command
from bench.numbers import percentile
from hutch.keeper.embedded import Hutch
from hutch.keeper.store.sqlite import SqliteStore

COMPLETE = "complete"
ENGINE = ("prestarted children", "prefault", "heap filling", "warm-up", "child programs")
"""The names that `NativeProvider(without=...)` takes."""
SQLITE = "SQLite on the loop"
OPTIMISATIONS = (*ENGINE, SQLITE)

MEASURED = {
    "ms": "create to first command, one after the other",
    "spaced ms": "the same, 50 ms apart",
    "CPU ms": "CPU time of all processes for each box",
    "KB": "private memory of a box after its first command",
}
if os.geteuid() != 0:
    del MEASURED["KB"]  # The kernel shows the memory of a box only to root.
ROUNDS = 10
BOXES = 20
SPACED_BOXES = 10
PAUSE_SECONDS = 0.05
SETTLE_SECONDS = 0.2
"""Time in which a spawner starts children for the next boxes, whose CPU time belongs to this round."""
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Gain:
    """What an optimisation saves by one measure: the median over the rounds, and where eight of ten rounds lie."""

    median: float
    low: float
    high: float

    def verdict(self, complete: float) -> str:
        """`complete` is what the complete Hutch has; less than a hundredth of it is nothing."""
        if self.low <= 0 <= self.high or abs(self.median) < complete / 100:
            return "none outside its spread"
        return "gain" if self.low > 0 else "loss"


@dataclass
class _Variant:
    hutch: Hutch
    rounds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEASURED})


async def measure(context: Context) -> dict[str, dict[str, Gain]]:
    """The gain of each optimisation, by measure. `complete` has the medians of the complete Hutch, without a spread."""
    async with contextlib.AsyncExitStack() as stack:
        variants = {}
        for name in (COMPLETE, *OPTIMISATIONS):
            variants[name] = _Variant(await stack.enter_async_context(_variant(context, name)))
        for variant in variants.values():
            for _ in range(context.count(100) // 10 + 3):  # the spawner warms up after its first boxes
                await first_command(variant.hutch)
        names = list(variants)
        for turn in range(2 if context.brief else ROUNDS):
            first = turn % len(names)
            for name in (*names[first:], *names[:first]):
                await _round(variants[name], brief=context.brief)
    complete = variants[COMPLETE].rounds
    found = {COMPLETE: {unit: _gain(values, [0.0] * len(values)) for unit, values in complete.items()}}
    for name in OPTIMISATIONS:
        found[name] = {unit: _gain(variants[name].rounds[unit], complete[unit]) for unit in MEASURED}
    return found


def table(found: Mapping[str, Mapping[str, Gain]]) -> str:
    """What a person reads: the gain in each unit, its spread, and whether it is outside of that."""
    lines = [f"{unit}: {what}" for unit, what in MEASURED.items()]
    lines.append("gain: how much more it is without the optimisation; in brackets where eight of ten rounds lie")
    for unit in MEASURED:
        complete = found[COMPLETE][unit].median
        lines.append(f"\n{unit} (complete: {complete:,.2f})")
        for name in OPTIMISATIONS:
            gain = found[name][unit]
            spread = f"[{gain.low:+,.2f} to {gain.high:+,.2f}]"
            lines.append(f"  {name:<22}{gain.median:>+10,.2f}   {spread:<24}{gain.verdict(complete)}")
    return "\n".join(lines)


def as_json(found: Mapping[str, Mapping[str, Gain]]) -> dict[str, object]:
    return {
        name: {
            unit: {"median": round(gain.median, 3), "low": round(gain.low, 3), "high": round(gain.high, 3)}
            for unit, gain in gains.items()
        }
        for name, gains in found.items()
    }


def _variant(context: Context, name: str) -> contextlib.AbstractAsyncContextManager[Hutch]:
    place = name.replace(" ", "-")
    own = replace(context, state=context.state / place, run=context.run / place)
    own.state.mkdir(mode=0o700)
    own.run.mkdir(mode=0o700)
    if name == SQLITE:
        return own.hutch(_in_thread(own.store()))
    return own.hutch(without=frozenset({name}) & frozenset(ENGINE))


def _in_thread(store: SqliteStore) -> SqliteStore:
    """The same store with every piece of work left to its thread."""
    store._do = partial(store._writer.do, long=True)
    return store


async def _round(variant: _Variant, *, brief: bool) -> None:
    hutch, rounds = variant.hutch, variant.rounds
    boxes, spaced = (2, 2) if brief else (BOXES, SPACED_BOXES)
    await first_command(hutch)
    await asyncio.sleep(SETTLE_SECONDS)
    before = _cpu_ms()
    rounds["ms"].append(percentile([1000 * await first_command(hutch) for _ in range(boxes)], 0.5))
    await asyncio.sleep(SETTLE_SECONDS)
    rounds["CPU ms"].append((_cpu_ms() - before) / boxes)
    taken = []
    for _ in range(spaced):
        await asyncio.sleep(PAUSE_SECONDS)
        taken.append(1000 * await first_command(hutch))
    rounds["spaced ms"].append(percentile(taken, 0.5))
    if "KB" in rounds:
        rounds["KB"].append(await _private_kb(hutch))


async def _private_kb(hutch: Hutch) -> float:
    box = await hutch.create()
    await box.exec(["true"])
    instance = (await hutch._keeper.live(box.id)).running
    lines = Path(f"/proc/{instance.record.data['pid']}/smaps_rollup").read_text().splitlines()
    await box.destroy()
    return float(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")))


def _cpu_ms() -> float:
    """CPU time of this process and of all below it, with their children that have ended."""
    return _TICK_MS * sum(sum(times) for times in _below(os.getpid()))


def _below(pid: int) -> Iterator[list[int]]:
    stats: dict[int, list[str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stats[int(entry)] = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
    wanted, found = {pid}, {pid}
    while found:
        found = {child for child, fields in stats.items() if int(fields[1]) in wanted} - wanted
        wanted |= found
    for each in wanted:
        yield [int(value) for value in stats[each][11:15]]  # utime, stime, cutime, cstime


def _gain(without: list[float], with_it: list[float]) -> Gain:
    gains = [off - on for off, on in zip(without, with_it, strict=True)]
    return Gain(percentile(gains, 0.5), percentile(gains, 0.1), percentile(gains, 0.9))
