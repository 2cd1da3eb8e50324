"""The result as a person reads it in a terminal, and as one JSON value."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.numbers import Number, Summary
from bench.peers import Peers
from bench.steadiness import LoopTimer

VERDICTS = {True: "met", False: "MISSED", None: "not measured"}


def lines(number: Number) -> str:
    """One number: ours, each peer's with the ratio, each goal with its verdict."""
    shown = [f"\n{number.what}", f"  {'hutch':<20}{_summary(number.ours, number.unit)}"]
    for name, theirs in number.peers.items():
        shown.append(f"  {name:<20}{_summary(theirs, number.unit)}   {number.times_better(name):.2f}×")
    for goal in number.goals:
        measured = goal.shown(number)
        shown.append(f"  goal: {goal.text}: {f'{measured}, ' if measured else ''}{VERDICTS[goal.met(number)]}")
    return "\n".join(shown)


def goal_counts(numbers: Sequence[Number]) -> str:
    answers = [goal.met(number) for number in numbers for goal in number.goals]
    counted = {word: sum(answer is key for answer in answers) for key, word in VERDICTS.items()}
    return "\ngoals: " + (", ".join(f"{count} {word}" for word, count in counted.items() if count) or "none")


def steadiness(loop_ms: Mapping[str, float]) -> str:
    taken = f"{loop_ms['fastest']} to {loop_ms['slowest']} ms"
    return f"the same loop, timed {loop_ms['n']:g} times between the benches, took {taken}"


def result(
    numbers: Sequence[tuple[str, Number]], peers: Peers, started: dict[str, object], loop_timer: LoopTimer, *,
    brief: bool, broken: dict[str, str],
) -> dict[str, object]:  # fmt: skip
    """`numbers` come with the name of the bench that measured them."""
    return {
        "brief": brief,
        "broken": broken,
        "machine": {**started, "load_after": _load(), "loop_ms": loop_timer.as_json()},
        "peer_versions": peers.versions,
        "not_measured": peers.missing,
        "numbers": [number.as_json(bench) for bench, number in numbers],
    }


def machine() -> dict[str, object]:
    """What the numbers depend on. The load shows whether the machine was quiet."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "commit": _commit(),
        "load_before": _load(),
    }


def quantity(value: float, unit: str) -> str:
    """Three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _summary(summary: Summary, unit: str) -> str:
    p50, p95 = quantity(summary.p50, unit), quantity(summary.p95, unit)
    return f"p50 {p50:>14}   p95 {p95:>14}   n {summary.n:>4}"


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The commit that was measured, and whether the tree differed from it."""
    commit, changes = (
        subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()
        for arguments in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "src"])
    )
    return f"{commit or 'unknown'}{' with changes' if changes else ''}"
