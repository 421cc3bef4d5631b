"""Novelty of readings: the distance from all earlier readings, on a scale that is the same for all series.

Novelty is d / (d + r), where d is the distance to the nearest known reading and r is their range: the probability that
the first cut of a Mondrian tree separates the new reading from all known ones. While a score depends on what is usual
in a series, novelty compares a value with the range of its channel, so one limit fits many series.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.series.contexts import REACH, kernels

KNOWN = 4096  # most known readings
LEAST = 100  # known readings that novelty needs
_LEAST_DEVIATIONS = 512  # known deviations from the rhythm that their novelty needs
_OF_RHYTHM = 0.25  # weight of the novelty of a deviation from the rhythm
_PIECE = 256  # readings to process at a time
_READINGS, _DEVIATIONS = range(2)
_NOTHING = (0.0, np.inf, -np.inf)  # count, minimum and maximum of no values


class KnownReadings:
    """The last readings of a series, at most `KNOWN`, that new readings are compared with.

    Parameters
    ----------
    n_channels : int

    Attributes
    ----------
    novelties : ndarray of shape (H,)
        Novelties of the last readings, at most `REACH`.
    """

    def __init__(self, n_channels: int) -> None:
        self.novelties = np.empty(0)
        self._room = np.empty((2, n_channels, 0))  # readings and deviations by channel, between start and end
        self._start = self._end = 0
        self._ranges = np.tile(_NOTHING, (2, n_channels, 1))  # cached counts and ranges

    @classmethod
    def of_state(cls, readings: Array, deviations: Array | None, novelties: Array) -> KnownReadings:
        """Restore from `readings`, `deviations` and `novelties`."""
        known = cls(readings.shape[1])
        known.learn(readings, np.full(readings.shape, np.nan) if deviations is None else deviations)
        known.novelties = novelties.copy()
        return known

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def readings(self) -> Array:
        """The readings by order of arrival, float64 (L, C); NaN where a value is missing."""
        return np.ascontiguousarray(self._room[_READINGS, :, self._start : self._end].T)

    @property
    def deviations(self) -> Array | None:
        """The deviations from the rhythm, float64 (L, C); NaN where there was no rhythm, None if there never was."""
        if not self._ranges[_DEVIATIONS, :, 0].any():
            return None
        return np.ascontiguousarray(self._room[_DEVIATIONS, :, self._start : self._end].T)

    def judge_then_learn(self, rows: Array, deviations: Array) -> Array:
        """Return the novelty of each row, then learn it. The result does not depend on chunks.

        Parameters
        ----------
        rows : ndarray of shape (n, C)
            Readings; NaN where a value is missing.
        deviations : ndarray of shape (n, C)
            Deviations from the rhythm; NaN without one.

        Returns
        -------
        novelty : ndarray of shape (n,)
            Between 0 and 1; NaN while too few readings are known. It is 0 if a reading shortly before was as new.
        """
        novelty = np.full(len(rows), np.nan)
        for start in range(0, len(rows), _PIECE):
            part = slice(start, start + _PIECE)
            self._judge_piece(rows[part], deviations[part], novelty[part])
        n_before = len(self.novelties)
        recent = np.concatenate([self.novelties, np.where(np.isnan(novelty), 0.0, novelty)])
        self.novelties = recent[-REACH:].copy()
        for i in np.flatnonzero(novelty > 0).tolist():  # few rows
            place = n_before + i
            if (recent[max(place - REACH, 0) : place] >= recent[place]).any():
                novelty[i] = 0.0
        return novelty

    def learn(self, rows: Array, deviations: Array) -> None:
        """Add the rows of a table."""
        for start in range(max(len(rows) - KNOWN, 0), len(rows), _PIECE):
            part = slice(start, start + _PIECE)
            self._append(rows[part], deviations[part])
            self._keep(KNOWN)
        self._survey()

    def begin_rhythm(self) -> None:
        """Forget all deviations, for another rhythm."""
        self._room[_DEVIATIONS] = np.nan
        self._ranges[_DEVIATIONS] = _NOTHING

    def keep_last(self, n: int) -> None:
        """Forget all but the last `n` readings and their novelties."""
        self._keep(n)
        self.novelties = self.novelties[max(len(self.novelties) - len(self), 0) :].copy()
        self._survey()

    def copy(self) -> KnownReadings:
        """Return a copy, to compute novelties without learning."""
        return deepcopy(self)

    def check(self, n_seen: int, largest: float) -> None:
        """Raise ValueError if the state is inconsistent."""
        if len(self.novelties) > REACH or len(self) > n_seen:
            raise ValueError(f"it has {len(self)} known readings and {len(self.novelties)} novelties, too many")
        values = self._room[:, :, self._start : self._end]
        if (np.abs(values[_READINGS]) > largest).any() or (
            np.abs(values[_DEVIATIONS]) > 2 * largest
        ).any():  # NaN is not
            raise ValueError("its known readings are too large")
        if not ((self.novelties >= 0) & (self.novelties <= 1)).all():
            raise ValueError("array novelties: must be between 0 and 1")

    def _judge_piece(self, rows: Array, deviations: Array, out: Array) -> None:
        begin, end = self._append(rows, deviations)
        fill: Callable[..., None] = kernels().fill_novelties
        fill(self._room[_READINGS], begin, end, KNOWN, LEAST, 1.0, self._ranges[_READINGS], out)
        if self._ranges[_DEVIATIONS, :, 0].any() or not np.isnan(deviations).all():
            weighed = (_LEAST_DEVIATIONS, _OF_RHYTHM, self._ranges[_DEVIATIONS])
            fill(self._room[_DEVIATIONS], begin, end, KNOWN, *weighed, out)
        self._keep(KNOWN)

    def _append(self, rows: Array, deviations: Array) -> tuple[int, int]:
        """Append rows; return where the earlier ones begin and end."""
        if self._end + len(rows) > self._room.shape[2]:
            n = len(self)
            width = min(2 * (n + len(rows)), KNOWN + 2 * _PIECE)
            room = np.full((2, self._room.shape[1], width), np.nan)
            room[:, :, :n] = self._room[:, :, self._start : self._end]
            self._room, self._start, self._end = room, 0, n
        begin, end = self._start, self._end
        self._end = end + len(rows)
        self._room[_READINGS, :, end : self._end] = rows.T
        self._room[_DEVIATIONS, :, end : self._end] = np.where(np.isnan(rows), np.nan, deviations).T
        return begin, end

    def _keep(self, n: int) -> None:
        """Forget all but the last `n` readings, without updating ranges."""
        start = max(self._start, self._end - n)
        self._room[:, :, self._start : start] = np.nan
        self._start = start

    def _survey(self) -> None:
        """Recompute counts and ranges."""
        values = self._room[:, :, self._start : self._end]
        self._ranges[..., 0] = np.count_nonzero(~np.isnan(values), axis=2)
        self._ranges[..., 1] = np.fmin.reduce(values, axis=2, initial=np.inf)
        self._ranges[..., 2] = np.fmax.reduce(values, axis=2, initial=-np.inf)
