"""Readings that all watching browsers share: the latest events, the server's numbers over time, the usage of boxes."""

import asyncio
import time
from collections import deque
from typing import Generic, TypeVar

from hutch.errors import HutchError
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import BoxInfo, State
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.results import Usage
from hutch.server.metrics import BUCKETS, Histogram, Metrics

T = TypeVar("T")

EVENTS_KEPT = 500
SAMPLE_SECONDS = 2.0
"""Seconds between two samples of the server's numbers."""
SAMPLES_KEPT = 150
LATENCY_SAMPLES = 15
"""Latencies are those of the last half minute: of a shorter time, one slow request would be the whole truth."""
SHARE = 0.95
MAX_USAGES = 60
"""Boxes whose usage is read, those used last."""
FRESH_SECONDS = 1.0
"""A usage that was read within this time is not read again."""


class Recent(Generic[T]):
    """The latest of something, so that a page that opens shows what just happened."""

    def __init__(self, most: int) -> None:
        self._kept: deque[T] = deque(maxlen=most)
        self.count = 0
        """Number of all that were added so far; a watcher remembers it to get only newer ones."""

    def add(self, one: T) -> None:
        self._kept.append(one)
        self.count += 1

    def since(self, count: int) -> list[T]:
        newer = min(self.count - count, len(self._kept))
        return list(self._kept)[len(self._kept) - newer :]


class Sample(Record, frozen=True, kw_only=True):
    """What the server did around one moment."""

    at: float
    requests: float
    """Requests a second; those that last, such as streams and terminals, count when they end."""
    failures: float
    """Answers with an error a second."""
    created: float
    """Boxes created or claimed from the pool a second."""
    request_ms: float | None
    """95 % of the requests of the last half minute took at most this long; null if there was none."""
    exec_ms: float | None
    """The same for commands."""


class Reading(Record, frozen=True, kw_only=True):
    """The counters from which samples are worked out."""

    at: float
    requests: int
    failures: int
    created: int
    request_counts: tuple[int, ...]
    exec_counts: tuple[int, ...]


class History:
    """Samples the server's numbers while it runs, whether somebody watches or not."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._readings: deque[Reading] = deque(maxlen=LATENCY_SAMPLES + 1)
        self.samples: Recent[Sample] = Recent(SAMPLES_KEPT)

    async def record(self) -> None:
        """Take samples for ever."""
        while True:
            self.take()
            await asyncio.sleep(SAMPLE_SECONDS)

    def take(self) -> None:
        now = read(self._metrics)
        if self._readings:
            self.samples.add(sample(self._readings[0], self._readings[-1], now))
        self._readings.append(now)


def read(metrics: Metrics) -> Reading:
    counters = metrics.keeper.counters
    requests = Histogram()
    for op, histogram in metrics.latencies.items():
        # Streams and terminals last as long as somebody watches them.
        if not op.startswith("WS ") and not op.endswith(("/live", "/events", "/follow", "/watch")):
            requests.counts = [a + b for a, b in zip(requests.counts, histogram.counts, strict=True)]
    return Reading(
        at=time.time(), requests=sum(metrics.requests.values()), failures=sum(metrics.failures.values()),
        created=sum(sum(counters.by_profile(what).values()) for what in ("created", "claimed")),
        request_counts=tuple(requests.counts),
        exec_counts=tuple(metrics.operations.get("exec", Histogram()).counts),
    )  # fmt: skip


def sample(oldest: Reading, last: Reading, now: Reading) -> Sample:
    """Rates since the last reading, and latencies since the oldest."""
    passed = max(now.at - last.at, SAMPLE_SECONDS / 2)
    return Sample(
        at=now.at, requests=(now.requests - last.requests) / passed, failures=(now.failures - last.failures) / passed,
        created=(now.created - last.created) / passed,
        request_ms=quantile_ms(oldest.request_counts, now.request_counts),
        exec_ms=quantile_ms(oldest.exec_counts, now.exec_counts),
    )  # fmt: skip


def quantile_ms(before: tuple[int, ...], after: tuple[int, ...]) -> float | None:
    """Return the time within which 95 % of the observations between two readings lie, interpolated in its bucket."""
    counts = [new - old for old, new in zip(before, after, strict=True)]
    wanted = sum(counts) * SHARE
    seen = 0.0
    lower = 0.0
    for count, upper in zip(counts, (*BUCKETS, BUCKETS[-1]), strict=True):
        if count and seen + count >= wanted:
            return (lower + (upper - lower) * (wanted - seen) / count) * 1000
        seen, lower = seen + count, upper
    return None


class Usages:
    """Reads the usage of boxes, once for all watchers."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._read: dict[BoxId, tuple[float, Usage]] = {}

    async def of(self, boxes: list[BoxInfo]) -> dict[BoxId, Usage]:
        running = sorted((box for box in boxes if box.state is State.RUNNING), key=lambda box: -box.used_at)
        chosen = [box.id for box in running[:MAX_USAGES]]
        self._read = {box: self._read[box] for box in chosen if box in self._read}
        await asyncio.gather(*(self._refresh(box) for box in chosen))
        return {box: self._read[box][1] for box in chosen if box in self._read}

    async def _refresh(self, box: BoxId) -> None:
        if box in self._read and time.monotonic() - self._read[box][0] < FRESH_SECONDS:
            return
        live = self._keeper.held(box)
        if live is None or live.instance is None:
            return
        try:
            self._read[box] = (time.monotonic(), await live.instance.usage())
        except HutchError:  # A box that does not answer has no usage; its state says what is wrong with it.
            self._read.pop(box, None)
