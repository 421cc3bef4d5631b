"""Send scores and verdicts to a collector, as metrics of OpenTelemetry."""

from __future__ import annotations

import gzip
import logging
import threading
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyaforest import __version__
from polyaforest.io.errors import BadInput
from polyaforest.service.blocks import FLAGGED, ScoredRecord
from polyaforest.service.config import ServerConfig
from polyaforest.service.otlp import PROTOBUF
from polyaforest.util.extras import extra
from polyaforest.util.text import printable

__all__ = ["VerdictExporter"]

_LOG = logging.getLogger("polyaforest.service")
_MOST_KEYS = 10_000  # of all streams
_AT_ONCE = 2000  # keys in a request
_SECONDS = 10.0  # to wait for an answer
_CUMULATIVE = 2
_NANO = 1_000_000_000


@dataclass
class _KeyState:
    """What is known about a key since the start, and since the last export."""

    time: float = 0.0
    score: float = 0.0
    p_value: float = 1.0  # the lowest since the last export
    n: int = 0
    n_flagged: int = 0
    is_new: bool = False  # whether there are records since the last export


class VerdictExporter:
    """A thread that exports the scores of all keys with new records.

    It sends the gauges `polyaforest.score` (of the latest record) and `polyaforest.p_value` (the lowest since the last
    export), and the sums `polyaforest.records` and `polyaforest.anomalies`. Their attributes are `stream` and `key`.
    If the collector cannot be reached, the next export has what is missing.

    Parameters
    ----------
    config : ServerConfig
        With `otlp_url`.
    """

    def __init__(self, config: ServerConfig) -> None:
        assert config.otlp_url is not None
        with extra("otlp_url", "opentelemetry", "opentelemetry.proto", "google", name="otlp"):
            from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415 - an extra
        self._request = metrics_service_pb2.ExportMetricsServiceRequest
        self._url, self._every = config.otlp_url, config.otlp_every
        self._token = None if config.otlp_token_file is None else _token(config.otlp_token_file)
        self._started = clock.time()
        self._lock = threading.Lock()
        self._keys: dict[tuple[str, str], _KeyState] = {}
        self._is_failing = False
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Export what is left, and stop the thread."""
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * _SECONDS)

    def note(self, stream: str, samples: Mapping[str, Sequence[ScoredRecord]]) -> None:
        """Take scored records of a stream, by key; from any thread."""
        with self._lock:
            for key, records in samples.items():
                place = (stream, key)
                if place not in self._keys and len(self._keys) >= _MOST_KEYS:
                    continue
                state = self._keys.setdefault(place, _KeyState())
                state.time, state.score = records[-1].time, records[-1].score
                state.p_value = min(state.p_value, *(record.p_value for record in records))
                state.n += len(records)
                state.n_flagged += sum(record.flags & FLAGGED for record in records)
                state.is_new = True

    def _run(self) -> None:
        while not self._is_stopped.wait(self._every):
            self._export()
        self._export()

    def _export(self) -> None:
        """Send the keys with new records; keep them for the next time if that fails."""
        with self._lock:
            new = [place for place, state in self._keys.items() if state.is_new]
        for start in range(0, len(new), _AT_ONCE):
            places = new[start : start + _AT_ONCE]
            with self._lock:
                text = self._text(places)
                n_sent = {place: self._keys[place].n for place in places}
            problem = self._send(text)
            if problem is not None:
                if not self._is_failing:  # once, not every few seconds
                    _LOG.error("scores cannot be sent to server.otlp_url: %s", printable(problem))
                self._is_failing = True
                return
            self._is_failing = False
            with self._lock:
                for place, n in n_sent.items():
                    state = self._keys[place]
                    if state.n == n:  # otherwise records came meanwhile
                        state.is_new, state.p_value = False, 1.0

    def _text(self, places: Sequence[tuple[str, str]]) -> bytes:
        """Return the request for some keys."""
        request = self._request()
        resource = request.resource_metrics.add()
        _attribute(resource.resource, "service.name", "polyaforest")
        scope = resource.scope_metrics.add()
        scope.scope.name, scope.scope.version = "polyaforest", __version__
        metrics = {name: scope.metrics.add(name=f"polyaforest.{name}") for name in _METRICS}
        for name, (words, is_sum) in _METRICS.items():
            metrics[name].description = words
            if is_sum:
                metrics[name].sum.aggregation_temporality, metrics[name].sum.is_monotonic = _CUMULATIVE, True
        now = clock.time()
        for place in places:
            state = self._keys[place]
            values = {"score": state.score, "p_value": state.p_value, "records": state.n, "anomalies": state.n_flagged}
            for name, value in values.items():
                is_sum = _METRICS[name][1]
                point = (metrics[name].sum if is_sum else metrics[name].gauge).data_points.add()
                point.time_unix_nano = _nanoseconds(now if is_sum else state.time)
                if is_sum:
                    point.start_time_unix_nano = _nanoseconds(self._started)
                point.as_double = float(value)
                for label, value_of in zip(("stream", "key"), place, strict=True):
                    _attribute(point, label, value_of)
        text: bytes = request.SerializeToString()
        return text

    def _send(self, text: bytes) -> str | None:
        """Send a request; return why it failed, or None."""
        import requests  # noqa: PLC0415 - comes with apprise

        headers = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        headers |= {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            body = gzip.compress(text, 1)
            answer = requests.post(self._url, data=body, headers=headers, timeout=_SECONDS, allow_redirects=False)
        except requests.RequestException as problem:
            return type(problem).__name__  # its text may contain the address, which may be secret
        return None if answer.ok else f"HTTP status {answer.status_code}"


_METRICS = {  # description, and whether it is a sum
    "score": ("Score of the latest record; higher is more normal.", False),
    "p_value": ("Lowest p-value since the last export.", False),
    "records": ("Records scored.", True),
    "anomalies": ("Records flagged.", True),
}


def _attribute(owner: Any, name: str, text: str) -> None:
    one = owner.attributes.add(key=name)
    one.value.string_value = text.encode("utf-8", "replace").decode()


def _nanoseconds(time: float) -> int:
    return max(0, min(int(time * _NANO), 2**63 - 1))


def _token(path: str) -> str:
    token = Path(path).read_text("utf-8").strip()
    if not (token and token.isascii() and token.isprintable()):
        raise BadInput(f"the token in {path} must have only printable ASCII characters")
    return token
