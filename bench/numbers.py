"""What a measurement is: samples, their percentiles, and the goals they are held to. No clock in here.

A goal is a ratio within one run, or an amount of memory. Machines differ and are noisy, so no absolute time is judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, interpolated between the two nearest."""
    if not values:
        raise ValueError("no values, no percentile")
    if not 0 <= share <= 1:
        raise ValueError(f"a share lies between 0 and 1, not {share}")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


@dataclass(frozen=True)
class Summary:
    """Half of the samples were at least as good as `p50`, 95 of 100 at least as good as `p95`."""

    p50: float
    p95: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float], *, more_is_better: bool = False) -> "Summary":
        tail = 0.05 if more_is_better else 0.95
        return cls(percentile(values, 0.5), percentile(values, tail), len(values))


@dataclass(frozen=True)
class Number:
    """One line of the result: ours, the peers' of the same run, and the goals."""

    name: str
    what: str
    unit: str
    ours: Summary
    peers: Mapping[str, Summary] = field(default_factory=dict)
    goals: tuple["Goal", ...] = ()
    more_is_better: bool = False

    def times_better(self, peer: str) -> float:
        """How many times better than the peer: above 1 we win."""
        theirs = self.peers[peer].p50
        return self.ours.p50 / theirs if self.more_is_better else theirs / self.ours.p50

    def as_json(self, bench: str) -> dict[str, object]:
        """`bench` is the name that the command line takes to measure this again."""
        return {
            "name": self.name,
            "bench": bench,
            "what": self.what,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            **_rounded(self.ours),
            "peers": {
                name: {**_rounded(theirs), "times": round(self.times_better(name), 3)}
                for name, theirs in self.peers.items()
            },
            "goals": [{"goal": goal.text, "measured": goal.shown(self), "met": goal.met(self)} for goal in self.goals],
        }


@dataclass(frozen=True)
class Goal:
    """A bound on a value that follows from a number; the value is None when its peer was not measured."""

    text: str
    value: Callable[[Number], float | None]
    bound: float
    at_least: bool = False
    unit: str = "×"

    def met(self, number: Number) -> bool | None:
        value = self.value(number)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def shown(self, number: Number) -> str:
        """The measured value; empty if there is none."""
        value = self.value(number)
        return "" if value is None else f"{value:.3g}{self.unit}"


def times_faster(factor: float, peer: str) -> Goal:
    return Goal(
        f"≥ {factor:g}× faster than {peer}",
        lambda number: number.times_better(peer) if peer in number.peers else None,
        factor,
        at_least=True,
    )


def at_most_times(factor: float, peer: str) -> Goal:
    return Goal(f"≤ {factor:g}× {peer}", lambda number: _ratio(number, peer), factor)


def at_least_times(factor: float, peer: str) -> Goal:
    """For numbers of which more is better."""
    return Goal(f"≥ {factor:g}× {peer}", lambda number: _ratio(number, peer), factor, at_least=True)


def at_most_memory(megabytes: float) -> Goal:
    return Goal(f"≤ {megabytes:g} MB", lambda number: number.ours.p50, megabytes, unit=" MB")


def _ratio(number: Number, peer: str) -> float | None:
    return number.ours.p50 / number.peers[peer].p50 if peer in number.peers else None


def _rounded(summary: Summary) -> dict[str, float]:
    return {"p50": round(summary.p50, 4), "p95": round(summary.p95, 4), "n": summary.n}
