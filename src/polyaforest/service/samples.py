"""Samples of metrics as senders push them, before they become records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["Kind", "MetricSample", "series_id", "why_not_a_time", "why_too_many_labels"]

_LAST = 253402300800.0  # seconds since 1970 to the year 10000
_MOST_LABELS = 256
_LONGEST_LABELS = 65536  # characters of all labels of a series


class Kind(StrEnum):
    """What the numbers of a metric mean."""

    GAUGE = "gauge"  # a value
    COUNTER = "counter"  # a total since some start
    DELTA = "delta"  # an increase since the sample before
    MEAN = "mean"  # a total and a number of observations since some start
    MEAN_DELTA = "mean delta"  # a sum and a number of observations since the sample before


class MetricSample(NamedTuple):
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    time: float  # seconds since 1970
    kind: Kind
    value: float
    weight: float = 0.0  # number of observations, for means
    start: float | None = None  # begin of the count, if known


def series_id(sample: MetricSample) -> bytes:
    """Return a digest of the name and all labels of a series."""
    parts = [sample.name, *(text for label in sorted(sample.labels.items()) for text in label)]
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def why_not_a_time(time: float) -> str | None:
    """Return why a time cannot be used, or None if it can."""
    return None if 0.0 < time < _LAST else "its time is not between 1970 and 9999"


def why_too_many_labels(labels: Sequence[tuple[str, str]]) -> str | None:
    """Return why the labels of a series cannot be used, or None if they can."""
    if len(labels) > _MOST_LABELS:
        return f"a series has {len(labels):,} labels; at most {_MOST_LABELS} are possible"
    if sum(len(name) + len(value) for name, value in labels) > _LONGEST_LABELS:
        return f"the labels of a series have more than {_LONGEST_LABELS:,} characters"
    return None
