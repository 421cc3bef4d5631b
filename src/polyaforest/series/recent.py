"""The short memory of a series: how surprising the last two and the last eight readings are.

Shingles of the last readings are compared with those of up to 4,096 readings before, by the exact Mondrian kernel
(`kernels/recent.py`). The surprise of a reading that has passed leaves the score with its shingles, after one and
seven more readings, and shingles can be scored from the first readings on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from polyaforest.kernels.arrays import Array

KNOWN = 4096  # most readings to compare with
LENGTHS = np.array([2, 8])  # of the shingles
MOST_CHANNELS = 3  # of a series whose last readings are compared: with more, no reading resembles another
LEAST = 16  # known shingles that a score needs
LEAST_READINGS = 2 * LEAST  # of a series: with fewer, hardly any has a score
REACH = _LONGEST = int(LENGTHS[-1])  # readings whose shingles contain an anomalous one
MOST_HELD = KNOWN + _LONGEST  # readings
_OFTEN, _SELDOM, _EARLY = 16, 64, 512  # readings between changes of weights, early and later
MOST_UNTIL_WEIGHED = _SELDOM


class RecentReadings:
    """The last readings of a series.

    Parameters
    ----------
    n_channels : int

    Attributes
    ----------
    values : ndarray of shape (n_channels, n)
        Readings by order of arrival; NaN where a value is missing.
    is_known : ndarray of bool, shape (n,)
        Whether later readings are compared with the shingle that ends here.
    weights : ndarray of shape (n_channels,)
        1 / the typical distance of readings from their mean.
    n_seen : int
        Number of readings so far.
    """

    def __init__(self, n_channels: int) -> None:
        self.values, self.is_known = np.empty((n_channels, 0)), np.empty(0, np.bool_)
        self.weights, self.n_seen = np.ones(n_channels), 0

    def append(self, rows: Array) -> int:
        """Append readings, (n, C), that are not known yet; return the place of the first. `keep_last` frees memory."""
        self.values = np.concatenate([self.values, rows.T], axis=1)
        self.is_known = np.concatenate([self.is_known, np.zeros(len(rows), np.bool_)])
        return len(self.is_known) - len(rows)

    @property
    def n_until_weighed(self) -> int:
        """Number of readings until `weigh` is due: at fixed counts, so that chunks do not matter."""
        step = 1 if self.n_seen < 4 * LEAST else _OFTEN if self.n_seen < _EARLY else _SELDOM
        return step - self.n_seen % step

    def learn(self, begin: int, end: int, *, is_known: bool) -> None:
        """Compare later readings with the shingles that end at places from `begin` to before `end`, or stop to."""
        is_there = ~np.isnan(self.values[:, begin:end]).all(axis=0)
        self.is_known[begin:end] = is_there & is_known

    def keep_last(self, n: int) -> None:
        """Forget all but the last `n` readings."""
        n = min(n, len(self.is_known))
        first = len(self.is_known) - n
        self.values, self.is_known = self.values[:, first:].copy(), self.is_known[first:].copy()

    def check(self) -> None:
        """Raise ValueError if the state is inconsistent."""
        n = len(self.is_known)
        if n > self.n_seen or n > MOST_HELD or np.isinf(self.values).any():
            raise ValueError(f"it has {n} recent readings of {self.n_seen}, or readings that are not finite")
        if not ((self.weights > 0) & (self.weights < np.inf)).all():
            raise ValueError("the weights of its channels must be positive and finite")
        if (self.is_known & np.isnan(self.values).all(axis=0)).any():
            raise ValueError("it compares readings with missing ones")

    def weigh(self, end: int) -> None:
        """Weigh channels by the readings before the place `end`."""
        held = self.values[:, max(0, end - KNOWN) : end]
        self.weights = 1 / np.array([typical_distance(channel) for channel in held])

    def surprise(self, begin: int, end: int, lengths: Array = LENGTHS) -> Array:
        """Return the surprise of the shingles that end at places from `begin` to before `end`, (n, K), in nats.

        NaN where fewer than 16 shingles are known, or the reading is missing.
        """
        places = np.arange(begin, end)
        first = np.maximum(places - KNOWN, _LONGEST - 1)
        counts = np.concatenate([[0], np.cumsum(self.is_known)])
        is_scored = (places >= first) & ~np.isnan(self.values[:, begin:end]).all(axis=0)
        is_scored &= counts[places] - counts[np.minimum(first, places)] >= LEAST
        found, rows = np.full((len(places), len(lengths)), np.nan), places[is_scored]
        found[is_scored] = _measured(
            self.values, self.is_known, rows, first[is_scored], rows, self.weights, lengths, is_apart=False
        )
        return found


def surprise_in_table(values: Array) -> Array:
    """Return the surprise of the readings of a table, (C, S), by each length of shingles, (2, S).

    They are compared with readings on both sides. Every reading takes the mean of the shingles that contain it, and
    shingles that share readings are not compared.
    """
    n = values.shape[1]
    found = np.full((n, len(LENGTHS)), np.nan)
    is_known = np.asarray(~np.isnan(values).all(axis=0))
    places = np.flatnonzero(is_known)
    places = places[places >= _LONGEST - 1]
    if n < LEAST + 3 * _LONGEST or not len(places):
        return np.full((len(LENGTHS), n), np.nan)
    begins = np.clip(places - KNOWN // 2, _LONGEST - 1, max(_LONGEST - 1, n - KNOWN))
    ends = np.minimum(begins + KNOWN, n)
    weights = 1 / np.array([typical_distance(channel) for channel in values])
    found[places] = _measured(values, is_known, places, begins, ends, weights, LENGTHS, is_apart=True)
    return np.stack([mean_ahead(found[:, k], int(length)) for k, length in enumerate(LENGTHS)])


def mean_ahead(values: Array, n: int) -> Array:
    """Return the mean of each value and the next `n` - 1, as far as there are any; NaN is left out."""
    is_there = ~np.isnan(values)
    totals = np.concatenate([[0.0], np.cumsum(np.where(is_there, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(is_there)])
    first = np.arange(len(values))
    last = np.minimum(first + n, len(values))
    with np.errstate(invalid="ignore"):
        return np.asarray((totals[last] - totals[first]) / (counts[last] - counts[first]))


def typical_distance(channel: Array) -> float:
    """Return the mean absolute deviation of a channel, at least half of the least difference of two values.

    If all values are equal, return their absolute value, or 1 if they are 0.

    Examples
    --------
    >>> typical_distance(np.array([1.0, 3.0, 2.0, 2.0])), typical_distance(np.array([0.0, 0.0]))
    (0.5, 1.0)
    >>> typical_distance(np.array([0.0] * 99 + [1.0]))
    0.5
    """
    known = channel[~np.isnan(channel)]
    different = np.unique(known)
    if len(different) < 2:
        return float(np.abs(different).max(initial=0.0)) or 1.0
    deviation = np.abs(known - known.mean()).mean()
    return float(max(deviation, np.diff(different).min() / 2))


def _measured(
    values: Array,
    is_known: Array,
    rows: Array,
    begins: Array,
    ends: Array,
    weights: Array,
    lengths: Array,
    *,
    is_apart: bool,
) -> Array:
    out = np.empty((len(rows), len(lengths)))
    fill: Callable[..., None] = _kernels().fill_surprise
    places = (np.ascontiguousarray(part, np.int64) for part in (rows, begins, ends))
    workspace = np.empty(int((ends - begins).max(initial=0)))
    fill(np.ascontiguousarray(values), is_known, *places, weights, lengths, is_apart, workspace, out)
    return out


@cache
def _kernels() -> Any:
    """Import the compiled loops on first use."""
    from polyaforest.kernels import recent

    return recent
