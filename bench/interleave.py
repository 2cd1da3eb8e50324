"""Measures candidates in turns, so that whatever else the machine does meanwhile slows all of them alike."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from bench.peers.errors import PeerFailed

ROUNDS = 10


@dataclass(frozen=True)
class Candidate:
    """`once` does the thing one time and returns how many seconds the measured part took."""

    name: str
    once: Callable[[], Awaitable[float]]
    count: int


@dataclass(frozen=True)
class Samples:
    """Milliseconds by candidate, and the reason why a candidate is not among them."""

    milliseconds: dict[str, list[float]]
    failed: dict[str, str]


async def interleave(candidates: Sequence[Candidate], rounds: int = ROUNDS) -> Samples:
    """Give every candidate its share of its count in each round. One run of each comes first and does not count.

    A peer that fails is left out from then on and named with its reason. An error of Hutch ends the bench.
    """
    measured: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    failed: dict[str, str] = {}
    for turn in range(-1, rounds):
        for candidate in candidates:
            if candidate.name in failed:
                continue
            share = 1 if turn < 0 else _share(candidate.count, turn, rounds)
            try:
                seconds = [await candidate.once() for _ in range(share)]
            except PeerFailed as error:
                failed[candidate.name] = str(error)
                continue
            if turn >= 0:
                measured[candidate.name] += [1000 * each for each in seconds]
    return Samples({name: values for name, values in measured.items() if values and name not in failed}, failed)


def blocking(work: Callable[[], object]) -> Callable[[], Awaitable[float]]:
    """A candidate that needs no event loop: timed as a plain call."""

    async def once() -> float:
        start = perf_counter()
        work()
        return perf_counter() - start

    return once


def _share(count: int, turn: int, rounds: int) -> int:
    """How many of `count` fall into this round, spread evenly."""
    return count * (turn + 1) // rounds - count * turn // rounds
