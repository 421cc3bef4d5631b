"""Metrics in the format of Prometheus. Keys of records are labels only if that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of the process; one registry for each, so that several may run in a test."""

    def __init__(self, *, key_labels: bool = False) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._key_labels = key_labels
        labels = ("stream", "key") if key_labels else ("stream",)
        counter, histogram = (
            partial(Counter, registry=self.registry),
            partial(Histogram, registry=self.registry, buckets=_SECONDS),
        )
        self._records = counter("polyaforest_records_total", "Records that were judged.", labels)
        self._anomalies = counter("polyaforest_anomalies_total", "Records that were flagged.", labels)
        self.quarantined = counter("polyaforest_quarantined_total", "Records that could not be used.", ("stream",))
        self.events = counter("polyaforest_events_total", "Events that began.", ("stream", "kind"))
        self.errors = counter("polyaforest_stream_errors_total", "Failures of a stream.", ("stream",))
        self.batch = histogram("polyaforest_batch_seconds", "Time to judge a batch.", ("stream",))
        self.save = histogram("polyaforest_save_seconds", "Time to save models.", ("stream",))
        self.requests = histogram(
            "polyaforest_http_request_seconds",
            "Time to answer.",
            ("method", "route", "status"),
        )
        self.alerts = counter("polyaforest_alerts_total", "Alerts by outcome.", ("outcome",))
        self.dropped = counter("polyaforest_feed_dropped_total", "Readers dropped for being slow.")

    def count(self, stream: str, key: str, n: int, n_flagged: int) -> None:
        """Count records of a key."""
        labels = (stream, key) if self._key_labels else (stream,)
        self._records.labels(*labels).inc(n)
        self._anomalies.labels(*labels).inc(n_flagged)

    def watch(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        """Add gauges that are measured when they are asked for: name, help, labels and value of each."""
        self.registry.register(_Gauges(gauges))

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self.registry)


class _Gauges:
    """A collector of gauges."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        families: dict[str, GaugeMetricFamily] = {}
        for name, words, labels, value in self._gauges():
            if name not in families:
                families[name] = GaugeMetricFamily(name, words, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is to measure is known later."""
        return ()
