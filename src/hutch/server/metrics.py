"""Counts commands and requests for `GET /metrics`; the keeper counts boxes itself.

Every label has a bounded set of values: states, causes, codes, profiles of the configuration, operations of Hutch. No
name that a caller chooses becomes a label. Counting is a dictionary update; `exposition` turns the counts into text.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping

from hutch.keeper.keeper import Keeper
from hutch.model.receipts import Receipt

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the histograms in seconds."""


class Histogram:
    """Observations counted by bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        """The number of observations in each bucket, not cumulative; the last one is unbounded."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value


class Metrics:
    """The counts of one server since its start."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.started_at = time.time()
        self.failures: Counter[str] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.latencies: dict[str, Histogram] = {}
        self.operations: dict[str, Histogram] = {}
        self.active: Counter[str] = Counter()
        """Requests (`http`) and WebSockets (`websocket`) that are being served now."""
        self.connections: Callable[[], Mapping[str, int]] = dict
        """Gives the open connections of each socket; set by the code that runs the servers."""
        self.held: Callable[[], Mapping[str, int]] = dict
        """Gives the bytes held for callers, now and at most; set by the service."""

    def on_receipt(self, receipt: Receipt) -> None:
        """Count an operation that ended; the keeper calls this for each."""
        if receipt.op.startswith(("box.", "tool.", "mcp.", "note.")):
            return  # Events count the first group; callers choose the names of the others.
        self.operations.setdefault(receipt.op, Histogram()).observe(receipt.duration_ms / 1000)
        if receipt.cause:
            self.verdicts[receipt.cause] += 1
        if receipt.error:
            self.refusals[receipt.op, receipt.error] += 1

    def count_request(self, op: str, status: int, seconds: float) -> None:
        self.requests[op, status] += 1
        self.latencies.setdefault(op, Histogram()).observe(seconds)
