"""How new a reading is: how far it lies from every reading before, on a scale that is the same for all series.

The share of cuts, uniform over the readings known and a new one, that part it from all of them: d / (d + r), d being
the distance to the nearest and r their range. A Mondrian tree would cut it off with that probability at its root. A
score compares a course with what is usual in its series; this compares one value with the range of its channel, so one
limit serves many series.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.timeseries._courses import REACH, kernels

KNOWN = 4096  # readings that a new one is compared with
LEAST = 100  # readings before which nothing is new
_LEAST_DEVIATIONS = 512  # deviations from the rhythm before which none is new
_OF_RHYTHM = 0.25  # what a new deviation from the rhythm counts beside a new value


class Known(NamedTuple):
    """The last readings of a series, with what is needed to tell how new the next one is; at most `KNOWN` of them."""

    readings: Array  # float64 (L, C), by order of arrival: NaN where a value is missing
    deviations: Array  # float64 (L, C): from the rhythm, NaN where there was none
    novelties: Array  # float64 (H,): of the last readings, at most as many as one odd reading reaches

    @classmethod
    def nothing(cls, n_channels: int) -> Known:
        """Return what is known before the first reading."""
        return cls(np.empty((0, n_channels)), np.empty((0, n_channels)), np.empty(0))

    def judge_then_learn(self, rows: Array, deviations: Array) -> tuple[Array, Known]:
        """Return how new each row is, and what is known after the last. The result is the same row by row or in chunks.

        Parameters
        ----------
        rows : ndarray of shape (n, C)
            Readings; NaN where a value is missing.
        deviations : ndarray of shape (n, C)
            From the rhythm; NaN without one.

        Returns
        -------
        novelty : ndarray of shape (n,)
            From 0 to 1; NaN while too little is known. It is 0 beside a reading shortly before that was as new.
        known : Known
        """
        later = self._with(rows, deviations)
        novelty = np.full(len(rows), np.nan)
        fill: Callable[..., None] = kernels().fill_novelties
        fill(_by_channel(later.readings), KNOWN, LEAST, 1.0, novelty)
        if not np.isnan(later.deviations).all():
            fill(_by_channel(later.deviations), KNOWN, _LEAST_DEVIATIONS, _OF_RHYTHM, novelty)
        before = np.concatenate([np.zeros(REACH - len(self.novelties)), self.novelties, np.nan_to_num(novelty)])
        highest = np.lib.stride_tricks.sliding_window_view(before, REACH)[: len(rows)].max(axis=1, initial=0.0)
        onset = np.where(novelty <= highest, 0.0, novelty)
        return onset, later._replace(novelties=before[-REACH:]).last(KNOWN)

    def learn(self, rows: Array, deviations: Array) -> Known:
        """Return what is known after rows of a table, of which nothing is said."""
        return self._with(rows, deviations).last(KNOWN)

    def without_rhythm(self) -> Known:
        """Return the same without deviations, for a rhythm that has changed."""
        return self._replace(deviations=np.full_like(self.deviations, np.nan))

    def last(self, n: int) -> Known:
        """Return the newest `n` readings, copied, so that nothing else is kept alive."""
        start = max(len(self.readings) - n, 0)
        n_left = min(len(self.novelties), len(self.readings) - start)
        return Known(
            self.readings[start:].copy(),
            self.deviations[start:].copy(),
            self.novelties[len(self.novelties) - n_left :].copy(),
        )

    def check(self, n_seen: int, largest: float) -> None:
        """Raise unless contents read from a file are consistent."""
        if not len(self.novelties) <= REACH or not len(self.readings) <= min(KNOWN, n_seen):
            raise ValueError(f"it knows {len(self.readings)} readings, of which {len(self.novelties)} were judged")
        if (np.abs(self.readings) > largest).any() or (np.abs(self.deviations) > 2 * largest).any():  # NaN is not
            raise ValueError("the readings that it knows are too large")
        if not ((self.novelties >= 0) & (self.novelties <= 1)).all():
            raise ValueError("array novelties: must be between 0 and 1")

    def _with(self, rows: Array, deviations: Array) -> Known:
        return self._replace(
            readings=np.concatenate([self.readings, rows]),
            deviations=np.concatenate([self.deviations, np.where(np.isnan(rows), np.nan, deviations)]),
        )


def _by_channel(values: Array) -> Array:
    return np.ascontiguousarray(values.T)
