"""Numbers for Prometheus: what happened to boxes and commands, how long operations took, what is there right now.

Every label has a bounded set of values: states, causes, codes, profiles of the configuration, operations of ours. No
name that a caller chooses becomes one.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

import hutch
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import Event, EventCause
from hutch.model.receipts import Receipt

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

_KINDS = {"created": "created", "claimed": "claimed", "adopted": "adopted"}


class Histogram:
    """Observations by the first bound that holds them, their number and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value


class Metrics:
    """Counts what the keeper tells and what the app serves (S9)."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._since = time.time()
        self.boxes: Counter[tuple[str, str]] = Counter(("adopted", record.spec.profile) for record in keeper.boxes())
        """By what happened and profile."""
        self.cleaned: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[str] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.latencies: dict[str, Histogram] = {}
        self.operations: dict[str, Histogram] = {}
        self.active: Counter[str] = Counter()
        """What is being served now: http, websocket."""
        self.connections: Callable[[], Mapping[str, int]] = dict
        """Open ones by door; set by whoever runs the doors."""
        self.held: Callable[[], Mapping[str, int]] = dict
        """Bytes held for callers, now and at most; set by the service."""

    def saw(self, _: BoxRecord | None, record: BoxRecord, event: Event | None) -> None:
        """A witness of the keeper's states."""
        if event is None:
            return
        profile = record.spec.profile
        if name := _KINDS.get(event.kind):
            self.boxes[name, profile] += 1
        elif event.kind == "gone":
            self.cleaned[event.cause, profile] += 1
        elif event.cause == EventCause.HEALTH_CHECK:
            self.boxes["health_check_failures", profile] += 1

    def ended(self, receipt: Receipt) -> None:
        """A listener of the keeper's operations."""
        if receipt.op.startswith(("box.", "tool.", "mcp.", "note.")):
            return  # events tell of the first; the others' names are their callers' choice
        self.operations.setdefault(receipt.op, Histogram()).observe(receipt.duration_ms / 1000)
        if receipt.cause:
            self.verdicts[receipt.cause] += 1
        if receipt.error:
            self.refusals[receipt.op, receipt.error] += 1

    def served(self, op: str, status: int, seconds: float) -> None:
        self.requests[op, status] += 1
        self.latencies.setdefault(op, Histogram()).observe(seconds)

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _gauge("hutch_info", "Which release runs.", {_labels(version=hutch.__version__): 1})
        yield from _gauge("hutch_start_time_seconds", "When this server started.", {"": round(self._since, 3)})
        yield from self._of_boxes()
        yield from self._of_work()
        yield from self._of_receipts()

    def _of_boxes(self) -> Iterator[str]:
        told = {
            "created": "Boxes made.", "claimed": "Boxes of the pool given to their first owner.",
            "adopted": "Boxes taken over from a keeper that died.",
            "health_check_failures": "Boxes that gave no real answer when they were asked for one.",
        }  # fmt: skip
        for name, text in told.items():
            found = {_labels(profile=profile): count for (kind, profile), count in self.boxes.items() if kind == name}
            found.setdefault(_labels(profile=self._keeper.config.profile), 0)
            yield from _counter(f"hutch_boxes_{name}_total", text, found)
        reused = {_labels(profile=profile): count for profile, count in self._keeper.reuses.items()}
        reused.setdefault(_labels(profile=self._keeper.config.profile), 0)
        yield from _counter("hutch_boxes_reused_total", "Boxes that their scope found again.", reused)
        ends = {_labels(reason=reason, profile=profile): count for (reason, profile), count in self.cleaned.items()}
        yield from _counter("hutch_boxes_cleaned_total", "Boxes that are gone, by the kind of their end.", ends)
        present = Counter(
            _labels(state=record.state, profile=record.spec.profile, provider=record.instance.provider)
            for record in self._keeper.boxes()
        )
        yield from _gauge("hutch_boxes", "Boxes in this server's hands.", present)
        pool = self._keeper.pool
        ready = {_labels(profile=profile): count for profile, count in pool.waiting().items()}
        yield from _gauge("hutch_pool_ready", "Boxes that wait to be claimed.", ready)
        for name, told_of, counts in (
            ("claims", "Creations that got a ready box.", pool.claims),
            ("misses", "Creations for which none was ready.", pool.misses),
        ):
            by_profile = {_labels(profile=profile): count for profile, count in counts.items()}
            yield from _counter(f"hutch_pool_{name}_total", told_of, by_profile)

    def _of_work(self) -> Iterator[str]:
        causes = {_labels(cause=cause): count for cause, count in self.verdicts.items()}
        yield from _counter("hutch_commands_total", "Commands that ended, by the cause of their verdict.", causes)
        codes = {_labels(code=code): count for code, count in self.failures.items()}
        yield from _counter("hutch_failures_total", "Errors that callers were told, by code.", codes)
        refusals = {_labels(op=op, code=code): count for (op, code), count in self.refusals.items()}
        yield from _counter("hutch_operation_failures_total", "Operations on boxes that failed.", refusals)
        yield from _histogram("hutch_operation_seconds", "How long operations on boxes took.", self.operations)
        requests = {_labels(op=op, status=status): count for (op, status), count in self.requests.items()}
        yield from _counter("hutch_requests_total", "Requests that were answered.", requests)
        yield from _histogram("hutch_request_seconds", "How long requests took, streams to their end.", self.latencies)
        active = {_labels(type=kind): self.active[kind] for kind in ("http", "websocket")}
        yield from _gauge("hutch_requests_active", "Requests and WebSockets that are being served.", active)
        doors = {_labels(door=door): count for door, count in self.connections().items()}
        yield from _gauge("hutch_connections", "Open connections.", doors)
        held = {_labels(when=when): size for when, size in self.held().items()}
        yield from _gauge("hutch_held_bytes", "Bytes held for callers: answers not read, bodies not used.", held)

    def _of_receipts(self) -> Iterator[str]:
        queue = self._keeper.receipts.queue
        if queue is None:
            return
        yield from _gauge("hutch_receipts_waiting", "Receipts that are not yet on record.", {"": len(queue)})
        yield from _counter("hutch_receipts_total", "Receipts put on record.", {"": queue.written})
        yield from _counter("hutch_receipts_failures_total", "Tries to write that failed.", {"": queue.failures})


def _labels(**values: object) -> str:
    inner = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items())
    return f"{{{inner}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _counter(name: str, told: str, values: Mapping[str, float]) -> Iterable[str]:
    return _family(name, "counter", told, values)


def _gauge(name: str, told: str, values: Mapping[str, float]) -> Iterable[str]:
    return _family(name, "gauge", told, values)


def _family(name: str, kind: str, told: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"
    for labels, value in sorted(values.items()):
        yield f"{name}{labels} {value}"


def _histogram(name: str, told: str, by_op: Mapping[str, Histogram]) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} histogram"
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    for op, histogram in sorted(by_op.items()):
        sums = list(accumulate(histogram.counts))
        for bound, count in zip(bounds, sums, strict=True):
            yield f"{name}_bucket{_labels(op=op, le=bound)} {count}"
        yield f"{name}_sum{_labels(op=op)} {histogram.total:.6f}"
        yield f"{name}_count{_labels(op=op)} {sums[-1]}"
