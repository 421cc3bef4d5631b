"""The points of a stream that a monitor holds, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.boxes import is_code
from polyaforest.core.validation import LARGEST
from polyaforest.forest.point_store import Key
from polyaforest.persistence.modelfile import Arrays
from polyaforest.persistence.state import pack_keys, unpack_keys

_SLACK = 256  # points that can come before the arrays are moved


class Points:
    """The last points of a stream, at most `most` of them, each with its leaves in the trees it is counted in.

    Parameters
    ----------
    most : int
    n_features, n_trees : int
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("values", "numbers", "times", "keys")  # of a state

    def __init__(self, most: int, n_features: int, n_trees: int) -> None:
        self.most = most
        room = most + max(most, _SLACK)
        self._values, self._leaves = np.empty((room, n_features)), np.empty((room, n_trees), np.int32)
        self._numbers, self._times = np.empty(room, np.int64), np.empty(room)
        self.keys: list[Key] = []
        self._start = self._stop = 0

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def _held(self) -> slice:
        return slice(self._start, self._stop)

    @property
    def values(self) -> Array:
        """The points, (n, D)."""
        return self._values[self._held]

    @property
    def leaves(self) -> Array:
        """Their leaves, int32 (n, T)."""
        return self._leaves[self._held]

    @property
    def numbers(self) -> Array:
        """The numbers of their arrivals, int64 (n,), ascending."""
        return self._numbers[self._held]

    @property
    def times(self) -> Array:
        """Their times, NaN where none was given, (n,)."""
        return self._times[self._held]

    def place(self, number: int) -> int:
        """Return the place of the first point that came as this arrival or later."""
        return int(np.searchsorted(self.numbers, number))

    def append(self, values: Array, leaves: Array, numbers: Array, times: Array, keys: Sequence[Key]) -> None:
        """Take in points, as many as `most` at the most; older ones go only once they do not fit."""
        n = len(values)
        if self._stop + n > len(self._values):
            kept = slice(max(self._start, self._stop - self.most), self._stop)
            n_kept = kept.stop - kept.start
            self.keys = self.keys[len(self) - n_kept :]
            for part in (self._values, self._leaves, self._numbers, self._times):
                part[:n_kept] = part[kept].copy()
            self._start, self._stop = 0, n_kept
        into = slice(self._stop, self._stop + n)
        self._values[into], self._leaves[into] = values, leaves
        self._numbers[into], self._times[into] = numbers, times
        self.keys.extend(keys)
        self._stop += n

    def cut(self, n: int) -> None:
        """Take back all but the first `n` points."""
        self._stop = self._start + n
        del self.keys[n:]

    def drop(self, place: int) -> None:
        """Remove the point at a place."""
        at, end = self._start + place, self._stop
        for part in (self._values, self._leaves, self._numbers, self._times):
            part[at : end - 1] = part[at + 1 : end].copy()
        del self.keys[place]
        self._stop -= 1

    # ---- to stop and go on -------------------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Return the points as arrays; leaves follow from the trees."""
        kept = slice(max(len(self) - self.most, 0), None)
        return {
            "values": self.values[kept].copy(),
            "numbers": self.numbers[kept].copy(),
            "times": self.times[kept].copy(),
            "keys": pack_keys(self.keys[kept]),
        }

    def restore(self, arrays: Arrays, group: str, n_seen: int, n_categories: int) -> None:
        """Take in the points of a state, checked; their leaves are still to be found."""
        values, numbers, times, keys = (arrays[f"{group}/{name}"] for name in self.FIELDS)
        n, n_features = len(values), self._values.shape[1]
        if values.dtype != np.float64 or values.shape != (n, n_features) or n > self.most:
            raise ValueError(f"{group}/values must be at most {self.most} rows of {n_features} numbers")
        if (np.abs(values) > LARGEST).any():  # which NaN, a missing value, is not
            raise ValueError(f"{group}/values must not exceed {LARGEST:g}")
        codes = values[:, n_features - n_categories :]
        if not (is_code(codes) | np.isnan(codes)).all():
            raise ValueError(f"{group}/values must be codes in columns of categories")
        if numbers.dtype != np.int64 or numbers.shape != (n,) or (np.diff(numbers, prepend=-1) <= 0).any():
            raise ValueError(f"{group}/numbers must be ascending integers, one for each row")
        if n and numbers[-1] >= n_seen:
            raise ValueError(f"{group}/numbers must be below the number of points seen, {n_seen}")
        if times.dtype != np.float64 or times.shape != (n,) or np.isinf(times).any():
            raise ValueError(f"{group}/times must be finite numbers or NaN, one for each row")
        names = unpack_keys(keys)
        if len(names) != n:
            raise ValueError(f"{group}/keys must be one for each row")
        self.append(values, np.empty((n, self._leaves.shape[1]), np.int32), numbers, times, names)
