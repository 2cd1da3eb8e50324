"""Racing attempts: the same box is forked several times, a task runs in each fork, and the best one is merged back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hutch.api.boxes import Box
from hutch.errors import HutchError
from hutch.model.layers import Merge

Task = Callable[[Box, int], Awaitable[Any]]
"""Works in a fork, whose number it is given, and returns whatever the score needs."""
Score = Callable[[Box, Any], Awaitable[float | None]]
"""Rates a fork by what its task returned: more is better, None is out of the race."""


@dataclass(frozen=True)
class Race:
    """What came of a race."""

    winner: int | None
    """The number of the fork whose changes the box has now; None if none was good enough, and nothing changed."""
    results: tuple[Any, ...]
    """What each task returned; None where it failed."""
    scores: tuple[float | None, ...]
    errors: tuple[str, ...]
    """Why a task or its score failed; "" where it did not."""
    merge: Merge | None = None


async def race(box: Box, count: int, task: Task, score: Score) -> Race:
    """Fork the box, run the task in each fork at once, and merge the fork with the highest score into the box.

    All forks are destroyed at the end. A task that raises is out of the race and does not end the others.

    Raises: as `Box.fork` and `Box.merge`.
    """
    forks = await box.fork(count)
    try:
        runs = await asyncio.gather(*(_run(fork, number, task, score) for number, fork in enumerate(forks)))
        rated = [(run.score, -number) for number, run in enumerate(runs) if run.score is not None]
        winner = -max(rated)[1] if rated else None
        merge = None if winner is None else await box.merge(forks[winner].id)
    finally:
        await asyncio.gather(*(_destroy(fork) for fork in forks))
    return Race(
        winner=winner, results=tuple(run.result for run in runs), scores=tuple(run.score for run in runs),
        errors=tuple(run.error for run in runs), merge=merge,
    )  # fmt: skip


@dataclass
class _Run:
    result: Any = None
    score: float | None = None
    error: str = ""


async def _run(fork: Box, number: int, task: Task, score: Score) -> _Run:
    run = _Run()
    try:
        run.result = await task(fork, number)
        run.score = await score(fork, run.result)
    except Exception as error:  # the task boundary: whatever the caller's code raised is reported beside the others
        run.error = f"{type(error).__name__}: {error}"
        run.score = None
    return run


async def _destroy(fork: Box) -> None:
    try:
        await fork.destroy()
    except HutchError:
        return  # its own clock ends it
