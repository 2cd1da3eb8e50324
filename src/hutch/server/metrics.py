"""Numbers for Prometheus: boxes made, reused, cleaned and by state, failures by code, requests and their latencies."""

from collections import Counter
from collections.abc import Iterator

from hutch.keeper.keeper import Keeper
from hutch.model.boxes import Event

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Histogram:
    """Counts of observations up to each bound, their number and their sum."""

    __slots__ = ("counts", "number", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(BUCKETS)
        self.total = 0.0
        self.number = 0

    def observe(self, value: float) -> None:
        self.number += 1
        self.total += value
        for position, bound in enumerate(BUCKETS):
            if value <= bound:
                self.counts[position] += 1


class Metrics:
    """Counts what the keeper tells and what the app serves (S9)."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.boxes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latencies: dict[str, Histogram] = {}

    def heard(self, event: Event) -> None:
        """A listener of the keeper's states."""
        name = {"created": "created", "claimed": "reused", "adopted": "adopted", "gone": "cleaned"}.get(event.kind)
        if name is not None:
            self.boxes[name] += 1
        elif event.kind == "state" and event.reason.startswith("health check failed"):
            self.boxes["health_check_failures"] += 1

    def served(self, op: str, status: int, seconds: float) -> None:
        self.requests[op, status] += 1
        self.latencies.setdefault(op, Histogram()).observe(seconds)

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name in ("created", "reused", "adopted", "cleaned", "health_check_failures"):
            yield f"# TYPE hutch_boxes_{name}_total counter"
            yield f"hutch_boxes_{name}_total {self.boxes[name]}"
        yield "# TYPE hutch_boxes gauge"
        present = Counter((str(record.state), record.spec.profile) for record in self._keeper.boxes())
        for (state, profile), count in sorted(present.items()):
            yield f'hutch_boxes{{state="{state}",profile="{profile}"}} {count}'
        yield "# TYPE hutch_failures_total counter"
        for code, count in sorted(self.failures.items()):
            yield f'hutch_failures_total{{code="{code}"}} {count}'
        yield "# TYPE hutch_requests_total counter"
        for (op, status), count in sorted(self.requests.items()):
            yield f'hutch_requests_total{{op="{op}",status="{status}"}} {count}'
        yield "# TYPE hutch_request_seconds histogram"
        for op, histogram in sorted(self.latencies.items()):
            for bound, count in zip(BUCKETS, histogram.counts, strict=True):
                yield f'hutch_request_seconds_bucket{{op="{op}",le="{bound:g}"}} {count}'
            yield f'hutch_request_seconds_bucket{{op="{op}",le="+Inf"}} {histogram.number}'
            yield f'hutch_request_seconds_sum{{op="{op}"}} {histogram.total:.6f}'
            yield f'hutch_request_seconds_count{{op="{op}"}} {histogram.number}'
