"""The text of `GET /metrics`, written by prometheus-client from the counts in `metrics`.

Its own counters are not used: they take a lock for each update, add a `_created` sample for each label set, and write
to files if a program that embeds Hutch has set PROMETHEUS_MULTIPROC_DIR for itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import hutch
from hutch.server.metrics import BUCKETS, Histogram, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
_BOX_COUNTERS = {
    "created": "Boxes created.",
    "claimed": "Boxes of the pool given to their first owner.",
    "adopted": "Boxes taken over from a keeper that died.",
    "reused": "Boxes that their scope found again.",
    "health_check_failures": "Boxes that failed a health check.",
}

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value of the metric."""


def text(metrics: Metrics) -> bytes:
    """The metrics in the text format of Prometheus, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsCollector(metrics))
    return generate_latest(registry)


class MetricsCollector(Collector):
    """Gives prometheus-client the counts of a server, and the present state of its keeper."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._keeper = metrics.keeper

    def collect(self) -> Iterator[Metric]:
        yield _gauge("hutch_info", "The release that runs.", ("version",), [((hutch.__version__,), 1)])
        yield _gauge("hutch_start_time_seconds", "When this server started.", (), [((), self._metrics.started_at)])
        yield from self._boxes()
        yield from self._pool()
        yield from self._work()
        yield from self._server()
        yield from self._ports()
        yield from self._kernels()
        yield from self._receipts()

    def _boxes(self) -> Iterator[Metric]:
        counters, default = self._keeper.counters, {self._keeper.config.profile: 0}
        for name, description in _BOX_COUNTERS.items():
            counts = {**default, **counters.by_profile(name)}
            yield _counter(f"hutch_boxes_{name}", description, ("profile",), _single(counts))
        ends = counters.ends().items()
        yield _counter(
            "hutch_boxes_cleaned", "Boxes that are gone, by the kind of their end.", ("reason", "profile"), ends
        )
        present = Counter(
            (str(record.state), record.spec.profile, record.instance.provider) for record in self._keeper.boxes()
        )
        yield _gauge("hutch_boxes", "Boxes that this server keeps.", ("state", "profile", "provider"), present.items())

    def _pool(self) -> Iterator[Metric]:
        pool, labels = self._keeper.pool, ("profile",)
        yield _gauge("hutch_pool_ready", "Boxes that wait to be claimed.", labels, _single(pool.waiting()))
        yield _counter("hutch_pool_claims", "Creations that got a ready box.", labels, _single(pool.claims))
        yield _counter("hutch_pool_misses", "Creations for which no box was ready.", labels, _single(pool.misses))

    def _work(self) -> Iterator[Metric]:
        metrics = self._metrics
        causes, codes = _single(metrics.verdicts), _single(metrics.failures)
        yield _counter("hutch_commands", "Commands that ended, by the cause of their verdict.", ("cause",), causes)
        yield _counter("hutch_failures", "Errors that callers got, by code.", ("code",), codes)
        refusals = metrics.refusals.items()
        yield _counter("hutch_operation_failures", "Operations on boxes that failed.", ("op", "code"), refusals)
        yield _histogram("hutch_operation_seconds", "The duration of operations on boxes.", metrics.operations)

    def _server(self) -> Iterator[Metric]:
        metrics = self._metrics
        requests = [((op, str(status)), count) for (op, status), count in metrics.requests.items()]
        yield _counter("hutch_requests", "Requests that were answered.", ("op", "status"), requests)
        yield _histogram("hutch_request_seconds", "The duration of requests and whole streams.", metrics.latencies)
        active = _single({kind: metrics.active[kind] for kind in ("http", "websocket")})
        yield _gauge("hutch_requests_active", "Requests and WebSockets that are being served.", ("type",), active)
        yield _gauge("hutch_connections", "Open connections.", ("door",), _single(metrics.connections()))
        held = _single(metrics.held())
        yield _gauge("hutch_held_bytes", "Bytes held for callers: unread answers, unused bodies.", ("when",), held)

    def _ports(self) -> Iterator[Metric]:
        ports = self._keeper.ports
        yield _gauge("hutch_port_connections", "Open connections to ports of boxes.", (), [((), ports.open)])
        opened = [((), ports.opened)]
        yield _counter("hutch_port_connections_opened", "Connections made to ports of boxes.", (), opened)
        moved = _single({"in": ports.bytes_in, "out": ports.bytes_out})
        yield _counter("hutch_port_bytes", "Bytes sent to and received from ports of boxes.", ("direction",), moved)

    def _kernels(self) -> Iterator[Metric]:
        counts = self._keeper.engines.templates.counts
        starts = _single({start: counts.starts[start] for start in ("warm", "cold", "forked")})
        yield _counter("hutch_kernels_started", "Python kernels by how they began.", ("start",), starts)
        runs = counts.runs.items()
        yield _counter("hutch_code_runs", "Runs of code by the cause of their verdict.", ("language", "cause"), runs)

    def _receipts(self) -> Iterator[Metric]:
        queue = self._keeper.receipts.queue
        if queue is None:
            return
        yield _gauge("hutch_receipts_waiting", "Receipts that are not written yet.", (), [((), len(queue))])
        yield _counter("hutch_receipts", "Receipts written.", (), [((), queue.written)])
        yield _counter("hutch_receipts_failures", "Failed attempts to write receipts.", (), [((), queue.failures)])


def _single(values: Mapping[str, float]) -> list[Sample]:
    """The samples of a metric with one label."""
    return [((label,), value) for label, value in values.items()]


def _gauge(name: str, description: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(name, description, labels=labels)
    for label_values, value in sorted(samples):
        family.add_metric(label_values, value)
    return family


def _counter(name: str, description: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    """A counter; its samples are named `{name}_total`."""
    family = CounterMetricFamily(name, description, labels=labels)
    for label_values, value in sorted(samples):
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, description: str, by_op: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, description, labels=("op",))
    for op, histogram in sorted(by_op.items()):
        family.add_metric((op,), _cumulative(histogram.counts), histogram.total)
    return family


def _cumulative(counts: Iterable[int]) -> list[tuple[str, float]]:
    return list(zip(_BOUNDS, accumulate(counts), strict=True))
