"""Synthetic metrics of two web servers over a week, with daily cycles, noise and five incidents."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from polyaforest.kernels.arrays import Array

__all__ = ["INCIDENTS", "Incident", "server_metrics"]

HOSTS = ("web-1", "web-2")
START = np.datetime64("2026-03-02T00:00:00", "s")  # a Monday
STEP = 5  # minutes between readings
READINGS = 7 * 24 * 60 // STEP


class Incident(NamedTuple):
    """An incident on a host."""

    host: str
    start: str  # time of its first reading
    n_readings: int
    what: str


INCIDENTS = (
    Incident("web-2", "2026-03-03T03:10:00", 4, "high latency at low load: a backup locked the database"),
    Incident("web-1", "2026-03-04T14:35:00", 3, "no requests: the load balancer dropped the host"),
    Incident("web-1", "2026-03-05T20:00:00", 5, "request spike with errors"),
    Incident("web-2", "2026-03-06T09:30:00", 6, "memory leak"),
    Incident("web-1", "2026-03-08T04:45:00", 2, "high CPU at low load"),
)


def server_metrics(seed: int = 6) -> dict[str, list[Any]]:
    """Generate the columns: one reading per host every five minutes, reproducible by seed."""
    rng = np.random.default_rng(seed)
    stamps = START + np.arange(READINGS) * np.timedelta64(60 * STEP, "s")
    by_host = {host: _readings(rng) for host in HOSTS}
    for incident in INCIDENTS:
        first = int(np.searchsorted(stamps, np.datetime64(incident.start, "s")))
        _apply(by_host[incident.host], slice(first, first + incident.n_readings), incident.what)
    columns: dict[str, list[Any]] = {
        "timestamp": [f"{stamp}Z" for stamp in stamps.astype(str) for _ in HOSTS],
        "host": [*HOSTS] * READINGS,
    }
    for name, digits in (("requests", 0), ("cpu", 1), ("memory", 1), ("latency_ms", 1), ("errors", 0)):
        values = np.stack([by_host[host][name] for host in HOSTS], axis=1).ravel()
        columns[name] = (np.round(values, digits) if digits else np.rint(values).astype(np.int64)).tolist()
    return columns


def _readings(rng: np.random.Generator) -> dict[str, Array]:
    """Generate a normal week of one host: requests follow a daily cycle, the other metrics follow requests."""
    hours = np.arange(READINGS) * STEP / 60
    is_weekend = hours >= 5 * 24
    rhythm = 1 + 0.75 * np.sin(2 * np.pi * (hours - 9) / 24)
    requests = rng.poisson(900 * rhythm * np.where(is_weekend, 0.7, 1.0)).astype(np.float64)
    cpu = 6 + 0.03 * requests + rng.normal(0, 1.5, READINGS)
    memory = 52 + 0.004 * requests + rng.normal(0, 0.8, READINGS)
    latency = 28 + 0.02 * requests + rng.gamma(4, 1.5, READINGS)
    errors = rng.poisson(0.0015 * requests).astype(np.float64)
    return {"requests": requests, "cpu": cpu.clip(1), "memory": memory, "latency_ms": latency, "errors": errors}


def _apply(readings: dict[str, Array], where: slice, what: str) -> None:
    """Apply an incident to the readings of a host."""
    n = where.stop - where.start
    if what.startswith("high latency"):
        readings["latency_ms"][where] *= np.linspace(3, 4, n)
    elif what.startswith("no requests"):
        for name, rest in (("requests", 0.0), ("cpu", 2.5), ("latency_ms", 1.0), ("errors", 0.0)):
            readings[name][where] = rest
    elif what.startswith("request spike"):
        readings["requests"][where] *= 2.6
        readings["cpu"][where] = np.linspace(93, 99, n)
        readings["latency_ms"][where] *= 3
        readings["errors"][where] = np.linspace(40, 90, n)
    elif what.startswith("memory"):
        readings["memory"][where] += np.linspace(14, 38, n)
    else:
        readings["cpu"][where] = 88.0
