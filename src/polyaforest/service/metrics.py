"""Metrics in the format of Prometheus.

The values of every label are bounded, so that clients cannot make memory or scrapes grow: `stream` comes from the
configuration, `kind` and `outcome` from the code, `method`, `route` and `status` from `_METHODS`, the routes and the
five status classes. Keys of records are labels only on request, and then only the first `_MOST_KEYS` of each stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

__all__ = ["Metrics"]

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST")
_MOST_KEYS = 1000  # of a stream with their own labels
_OTHER = "(other)"  # label of the rest
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of a service; each has its own registry, so that tests can run several."""

    def __init__(self, *, key_labels: bool = False) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._key_labels = key_labels
        self._keys: dict[str, set[str]] = {}  # with labels, by stream
        labels = ("stream", "key") if key_labels else ("stream",)
        counter, histogram = (
            partial(Counter, registry=self.registry),
            partial(Histogram, registry=self.registry, buckets=_SECONDS),
        )
        self._records = counter("polyaforest_records_total", "Records scored.", labels)
        self._anomalies = counter("polyaforest_anomalies_total", "Records flagged.", labels)
        self.quarantined = counter("polyaforest_quarantined_total", "Records rejected.", ("stream",))
        self.events = counter("polyaforest_events_total", "Events opened.", ("stream", "kind"))
        self.errors = counter("polyaforest_stream_errors_total", "Failures of a stream.", ("stream",))
        self.batch = histogram("polyaforest_batch_seconds", "Time to process a batch.", ("stream",))
        self.save = histogram("polyaforest_save_seconds", "Time to save models.", ("stream",))
        self._requests = histogram(
            "polyaforest_http_request_seconds",
            "Time to respond.",
            ("method", "route", "status"),
        )
        self.alerts = counter("polyaforest_alerts_total", "Alerts by outcome.", ("outcome",))
        self.dropped = counter("polyaforest_feed_dropped_total", "Slow readers dropped.")

    def count(self, stream: str, key: str, n: int, n_flagged: int) -> None:
        """Count records of a key."""
        labels = (stream, self._key_label(stream, key)) if self._key_labels else (stream,)
        self._records.labels(*labels).inc(n)
        self._anomalies.labels(*labels).inc(n_flagged)

    def observe_request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count the response to a request; `route` is the template of its route, None if no route matched."""
        labels = (method if method in _METHODS else _OTHER, route or "none", f"{status // 100}xx")
        self._requests.labels(*labels).observe(seconds)

    def _key_label(self, stream: str, key: str) -> str:
        known = self._keys.setdefault(stream, set())
        if len(known) < _MOST_KEYS:
            known.add(key)
        return key if key in known else _OTHER

    def watch(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        """Add gauges that are measured on each scrape: name, help, labels and value."""
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
        """Return nothing: the gauges are known at scrape time."""
        return ()
