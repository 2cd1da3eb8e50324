"""What a measurement is: samples, their percentiles, and the goals they are held to. No clock in here."""

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
    """One line of the result: ours, the peers' of the same run, and what was promised."""

    name: str
    what: str
    unit: str
    ours: Summary
    peers: Mapping[str, Summary] = field(default_factory=dict)
    goals: tuple["Goal", ...] = ()
    more_is_better: bool = False

    def times(self, peer: str) -> float:
        """How many times better than the peer: above 1 we win."""
        theirs = self.peers[peer].p50
        return self.ours.p50 / theirs if self.more_is_better else theirs / self.ours.p50

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            **_plain(self.ours),
            "peers": {
                name: {**_plain(theirs), "times": round(self.times(name), 3)} for name, theirs in self.peers.items()
            },
            "goals": [{"goal": goal.text, "met": goal.met(self)} for goal in self.goals],
        }


@dataclass(frozen=True)
class Goal:
    """A promise about a number. `met` answers None when the peer it speaks of was not measured."""

    text: str
    met: Callable[[Number], bool | None]


def at_most(bound: float, unit: str) -> Goal:
    return Goal(f"≤ {bound:g} {unit}", lambda number: number.ours.p50 <= bound)


def at_least(bound: float, unit: str) -> Goal:
    return Goal(f"≥ {bound:g} {unit}", lambda number: number.ours.p50 >= bound)


def times_faster(factor: float, peer: str) -> Goal:
    return Goal(
        f"≥ {factor:g}× faster than {peer}",
        lambda number: number.times(peer) >= factor if peer in number.peers else None,
    )


def times_as_long(factor: float, peer: str) -> Goal:
    return Goal(
        f"≤ {factor:g}× {peer}",
        lambda number: number.ours.p50 <= factor * number.peers[peer].p50 if peer in number.peers else None,
    )


def at_most_above(bound: float, unit: str, peer: str) -> Goal:
    """At most `bound` above the peer's."""
    return Goal(
        f"≤ {peer} + {bound:g} {unit}",
        lambda number: number.ours.p50 - number.peers[peer].p50 <= bound if peer in number.peers else None,
    )


def _plain(summary: Summary) -> dict[str, float]:
    return {"p50": round(summary.p50, 4), "p95": round(summary.p95, 4), "n": summary.n}
