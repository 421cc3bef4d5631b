"""Metrics in the format of Prometheus.

Every label comes from a closed set, so that no client can make the process remember, or a scrape return, ever more:
`stream` from the configuration, `kind` and `outcome` from the code, `method`, `route` and `status` from `_METHODS`,
the routes and the five classes of statuses. Keys of records are labels only if that was asked for, and then only the
first `_MOST_KEYS` of each stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

__all__ = ["Metrics"]

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST")
_MOST_KEYS = 1000  # of a stream that have labels of their own
_OTHER = "(other)"  # the label of all that has none of its own
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of the process; one registry for each, so that several may run in a test."""

    def __init__(self, *, key_labels: bool = False) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._key_labels = key_labels
        self._keys: dict[str, set[str]] = {}  # that have labels, by stream
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
        self._requests = histogram(
            "polyaforest_http_request_seconds",
            "Time to answer.",
            ("method", "route", "status"),
        )
        self.alerts = counter("polyaforest_alerts_total", "Alerts by outcome.", ("outcome",))
        self.dropped = counter("polyaforest_feed_dropped_total", "Readers dropped for being slow.")

    def count(self, stream: str, key: str, n: int, n_flagged: int) -> None:
        """Count records of a key."""
        labels = (stream, self._key_label(stream, key)) if self._key_labels else (stream,)
        self._records.labels(*labels).inc(n)
        self._anomalies.labels(*labels).inc(n_flagged)

    def observe_request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count the answer to a request of any method; `route` is the template of its route, None if it has none."""
        labels = (method if method in _METHODS else _OTHER, route or "none", f"{status // 100}xx")
        self._requests.labels(*labels).observe(seconds)

    def _key_label(self, stream: str, key: str) -> str:
        known = self._keys.setdefault(stream, set())
        if len(known) < _MOST_KEYS:
            known.add(key)
        return key if key in known else _OTHER

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
