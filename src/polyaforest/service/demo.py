"""The demo: generated streams of web servers and payments, with a past and planted incidents."""

from __future__ import annotations

import logging
import threading
import time as clock
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from polyaforest.kernels.arrays import Array
from polyaforest.service.config import Config, parse_config
from polyaforest.service.inbox import Busy
from polyaforest.service.stream import ServedStream

__all__ = ["DemoFeeder", "demo_config"]

_HOSTS = ("web-1", "web-2", "web-3", "db-1")
_SHOPS = ("Berlin", "Nairobi", "Osaka", "Recife")
_STEP = 60.0  # seconds between readings of the past
_PAST = 1200  # of them
_LIVE = 1.0  # seconds between live readings
_BATCH = 2000
_LOG = logging.getLogger("polyaforest.service")

_CONFIG = """
[streams.servers]
time = "time"
by = "host"
silence = "2m"
series = false
trees = 50

[streams.payments]
time = "time"
by = "shop"
series = false
trees = 50
"""


def demo_config() -> Config:
    """Return the configuration of the demo."""
    return parse_config(_CONFIG, "the demo")


class DemoFeeder:
    """Posts generated records: first the past hours, then one record per key and second."""

    def __init__(self, seed: int = 7) -> None:
        self._rng = np.random.default_rng(seed)
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, streams: Mapping[str, ServedStream]) -> None:
        """Start the posting thread."""
        self._thread = threading.Thread(target=self._run, args=(streams,), name="demo", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, streams: Mapping[str, ServedStream]) -> None:
        while not all(stream.is_ready for stream in streams.values()) and not self._is_stopped.wait(0.05):
            pass
        try:
            began = clock.time()
            moments = began - _STEP * np.arange(_PAST, 0, -1)
            for name, make in (("servers", self._servers), ("payments", self._payments)):
                records = [record for i, moment in enumerate(moments) for record in make(float(moment), i - _PAST)]
                for start in range(0, len(records), _BATCH):
                    _post(streams[name], records[start : start + _BATCH])
            step = 0
            while not self._is_stopped.wait(_LIVE):
                _post(streams["servers"], self._servers(clock.time(), step))
                _post(streams["payments"], self._payments(clock.time(), step))
                step += 1
        except Busy:  # the service is stopping
            return

    def _servers(self, moment: float, step: int) -> list[dict[str, Any]]:
        """Return one reading per server; `step` is its number, negative in the past."""
        load = 1.0 + 0.6 * np.sin(2 * np.pi * (moment % 86400) / 86400 - 2.0)
        records = []
        for k, host in enumerate(_HOSTS):
            noise: Array = self._rng.normal(size=4)
            requests = 400 * load * (1 + 0.2 * k) + 15 * noise[0]
            cpu = 8 + 0.06 * requests + 1.5 * noise[1]
            latency = 30 + 0.03 * requests + 2.5 * abs(noise[2])
            memory = 48 + 2 * k + 0.8 * noise[3]
            if host == "web-2" and (-420 <= step < -408 or 12 <= step % 90 < 18 <= step + 6):
                latency *= 4.0  # a slow database
            if host == "web-1" and -900 <= step < -894:
                requests, cpu, latency = 0.0, 3.0, 1.0  # dropped by the load balancer
            if host == "db-1" and (-180 <= step < -150 or 50 <= step % 120 < 60 <= step + 10):
                memory += 25.0 + 0.5 * (step % 30)  # a leak
            if host in ("web-1", "web-2", "web-3") and -60 <= step < -54:
                latency, cpu = latency * 3, cpu + 40  # all at once
            values = {"requests": requests, "cpu": cpu, "latency_ms": latency, "memory": memory}
            records.append({"time": moment, "host": host, **{name: round(float(v), 2) for name, v in values.items()}})
        return records

    def _payments(self, moment: float, step: int) -> list[dict[str, Any]]:
        """Return the payments of a minute, one record per shop."""
        records = []
        for k, shop in enumerate(_SHOPS):
            busy = 1.0 + 0.5 * np.sin(2 * np.pi * ((moment + 3600 * 6 * k) % 86400) / 86400)
            count = int(self._rng.poisson(60 * busy))
            amount = float(self._rng.gamma(40, 1.0)) * 0.9
            refused = int(self._rng.binomial(max(count, 1), 0.02))
            if shop == "Nairobi" and -300 <= step < -290:
                refused = count // 2  # a card network is down
            if shop == "Osaka" and 30 <= step % 100 < 36 <= step + 6:
                amount *= 6.0  # fraud
            records.append(
                {"time": moment, "shop": shop, "payments": count, "mean_amount": round(amount, 2), "refused": refused}
            )
        return records


def _post(stream: ServedStream, records: list[dict[str, Any]]) -> None:
    """Post records to a stream."""
    assert stream.inbox is not None
    stream.inbox.put([orjson.dumps(record) for record in records]).result(timeout=60)
