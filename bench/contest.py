"""Measures contenders in turns, so that whatever else the machine does meanwhile hits all of them alike."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from bench.peers.errors import PeerFailed

ROUNDS = 10


@dataclass(frozen=True)
class Contender:
    """`once` does the thing one time and answers how many seconds the measured part took."""

    name: str
    once: Callable[[], Awaitable[float]]
    count: int


@dataclass(frozen=True)
class Outcome:
    """Milliseconds by contender, and why a contender is not among them."""

    milliseconds: dict[str, list[float]]
    failed: dict[str, str]


async def contest(contenders: Sequence[Contender], rounds: int = ROUNDS) -> Outcome:
    """Each round gives every contender its share of its count, back to back; one run of each before all is not counted.

    A peer that fails leaves the contest and is named with its reason; an error of ours ends the bench.
    """
    measured: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    failed: dict[str, str] = {}
    for turn in range(-1, rounds):
        for contender in contenders:
            if contender.name in failed:
                continue
            share = 1 if turn < 0 else _share(contender.count, turn, rounds)
            try:
                seconds = [await contender.once() for _ in range(share)]
            except PeerFailed as error:
                failed[contender.name] = str(error)
                continue
            if turn >= 0:
                measured[contender.name] += [1000 * each for each in seconds]
    return Outcome({name: values for name, values in measured.items() if values and name not in failed}, failed)


def blocking(work: Callable[[], object]) -> Callable[[], Awaitable[float]]:
    """A contender that needs no event loop: timed as a plain call."""

    async def once() -> float:
        start = perf_counter()
        work()
        return perf_counter() - start

    return once


def _share(count: int, turn: int, rounds: int) -> int:
    """How many of `count` fall into this round, spread evenly."""
    return count * (turn + 1) // rounds - count * turn // rounds
