"""How steady the machine is: the same loop, timed between the benches.

Neighbours on a shared machine slow everything down and do not show in its load; they show here.
"""

from time import perf_counter

_STEPS = 300_000


class LoopTimer:
    """Collects the milliseconds that the same loop took each time."""

    def __init__(self) -> None:
        self._taken: list[float] = []

    def take(self) -> None:
        start, total = perf_counter(), 0
        for step in range(_STEPS):
            total += step
        self._taken.append((perf_counter() - start) * 1000)

    def as_json(self) -> dict[str, float]:
        return {"fastest": round(min(self._taken), 1), "slowest": round(max(self._taken), 1), "n": len(self._taken)}
