"""Margins: how far a single feature may go, by the points held, before it alone makes a row odd.

The score of a row is a mean over trees, which weigh all features: one of thirty has a thirtieth of a say, however far
it goes. So every feature has margins of its own. On either side, the surprise of a value x is h(x) bits if a share
2**-h of the points lies as far out. Up to 32 points they are counted; beyond, the counts are extrapolated by the
parabola through the last of them that fits the others best, as those of a Gaussian are, or by a straight line where
tails are not that light. A side on which nothing varies has no scale: there any departure, by more than rounding, is
as good as any other.

The margins lie where h exceeds a threshold, and a feature beyond them costs that many bits: how much farther it goes,
the trees see. The threshold is such that about one normal row in 2,048 has any feature beyond it, judged by the points
held, each as if it were new: where many rows have a feature that stands out, as with rare categories and heavy tails,
it takes more to stand out.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from polyaforest.core.arrays import Array

LEAST_POINTS = 256  # fewer do not tell how tails go on
MOST_POINTS = 2048  # to be looked at
RATE = 2.0**-11  # share of normal rows that may have a feature beyond its margins
_TAIL = 32  # points beyond the last count
_FEW, _FEWEST = 64, 256  # the threshold is extrapolated from one point in so many
_LEAST_BITS = 10.0  # that a feature must have by itself, and log2 of the number of features more
_MOST_BITS = 64.0  # if it took more, no tail would be known so well
_DEPARTURE = 13.0  # most bits for how far what never varied departs, beside those for that it does
_ROUNDING = 1e-9  # departures below this share of a value are errors of rounding


class Margins(NamedTuple):
    """The values beyond which single features make a row odd."""

    bits: float  # what a feature beyond them costs
    limit: Array  # float64 (2, D): of the low sides, negated, and of the high ones; infinite if there is none

    @classmethod
    def of(cls, points: Array, n_categories: int = 0) -> Self | None:
        """Return the margins that points give, None if they are too few; categories have none."""
        n = points.shape[1] - n_categories
        if len(points) < LEAST_POINTS or not n:
            return None
        tails = Tails.of(points[:, :n])
        threshold = tails.threshold(points[:, :n])
        return cls(threshold, np.hstack([tails.limit(threshold), np.full((2, n_categories), np.inf)]))

    @classmethod
    def of_state(cls, bits: Array, limit: Array) -> Self:
        """Return the margins with a state from a file; raise unless they can be such."""
        if not _LEAST_BITS <= bits < np.inf or np.isnan(limit).any():
            raise ValueError("array margins: these are no margins of features")
        return cls(float(bits), limit)

    def charges(self, rows: Array) -> Array:
        """Return what the sides of features beyond their margins cost rows, (n, 2, D), in bits."""
        return np.where(_signed(rows) > self.limit, self.bits, 0.0)

    def costs(self, rows: Array) -> Array | None:
        """Return what features beyond their margins cost each row in all, (n,), in bits; None if they cost none."""
        is_beyond = (rows < -self.limit[0]) | (rows > self.limit[1])
        return self.bits * is_beyond.sum(axis=1) if is_beyond.any() else None


class Tails(NamedTuple):
    """The tails of all features; arrays have shape (2, D): of low sides, on which values are negated, and high ones."""

    n: int  # points that they rest on
    edge: Array  # the farthest value that was counted
    bits: Array  # its surprise
    slope: Array  # of the surprise from there on, per unit; NaN where nothing varies
    curve: Array
    second: Array  # the second farthest value of all, and the third
    third: Array

    @classmethod
    def of(cls, points: Array) -> Self:
        """Return the tails of the features of points, at least twice as many as are left uncounted."""
        n, ascending = len(points), np.sort(points, axis=0)
        signed = np.stack([-ascending[::-1], ascending])  # (2, n, D)
        levels = np.arange(1, int(np.log2(n / _TAIL)) + 1)
        knots = signed[:, n - np.rint(n * 2.0**-levels).astype(int)]  # (2, J, D)
        counts = np.stack([(signed >= knots[:, j : j + 1]).sum(axis=1) for j in range(len(levels))], axis=1)
        return cls(n, *_fitted(knots, -np.log2(counts / n)), signed[:, -2], signed[:, -3])

    def surprise(self, rows: Array) -> Array:
        """Return the surprise of both sides of each feature, (n, 2, D), in bits: 0 up to the edge, or if missing."""
        with np.errstate(over="ignore", invalid="ignore"):  # far out, and where values are missing
            excess = np.maximum(_signed(rows) - self.edge, 0.0)
            varying = self.bits + excess * (self.slope + excess * self.curve)
            departing = np.log2(self.n + 1) + np.minimum(np.log2(1 + excess / self._rounding), _DEPARTURE)
            bits = np.where(np.isnan(self.slope), departing, varying)
            return np.where(excess > 0, np.minimum(bits, _MOST_BITS), 0.0)

    def threshold(self, points: Array) -> float:
        """Return the bits beyond which a share `RATE` of rows has a feature, given the points of the tails.

        The share is taken to halve with every step that it does between one point in 64 and one in 256. What never
        varied must depart by more than all other values but one, which may be the same row's in a table.
        """
        is_known = np.isnan(self.slope) & (_signed(points) <= self.third)
        most = np.sort(np.where(is_known, 0.0, self.surprise(points)).max(axis=(1, 2)))[::-1]
        few, fewest = (float(most[self.n // part - 1]) for part in (_FEW, _FEWEST))
        step = max((fewest - few) / np.log2(_FEWEST / _FEW), 1.0)
        placed = fewest + step * np.log2(1 / (_FEWEST * RATE))
        return float(max(placed, _LEAST_BITS + np.log2(points.shape[1])))

    def limit(self, threshold: float) -> Array:
        """Return from which value on the surprise of every side exceeds the threshold, infinite if none does.

        A stream may keep limits for longer than the points. Where they would tell the value of one, they are rounded.
        """
        more, steps = np.maximum(threshold - self.bits, 0.0), max(threshold - np.log2(self.n + 1), 1.0)
        departure = (2.0**steps - 1) * self._rounding if steps < _DEPARTURE else np.inf
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # where nothing varies
            known = 2.0 ** np.ceil(np.log2(self.second - self.edge))  # 0 if there is no other value
            excess = 2 * more / (self.slope + np.sqrt(self.slope**2 + 4 * self.curve * more))
            limit = self.edge + np.where(np.isnan(self.slope), np.maximum(departure, known), excess)
        return np.where(np.isnan(limit) | (threshold >= _MOST_BITS), np.inf, limit)

    @property
    def _rounding(self) -> Array:
        """The largest departures that are errors of rounding."""
        size = np.abs(self.edge)
        return _ROUNDING * np.where(size > 0, size, 1.0)


def _signed(rows: Array) -> Array:
    """Return rows as both sides see them, (n, 2, D)."""
    return np.stack([-rows, rows], axis=1)


def _fitted(knots: Array, heights: Array) -> tuple[Array, Array, Array, Array]:
    """Return edge, bits, slope and curve of sides, (2, D) each, given values counted and their bits, (2, J, D).

    The parabola goes through the edge, with the least squares at the other values; a line goes through the last two.
    """
    edge, bits = knots[:, -1], heights[:, -1]
    behind, below = knots[:, :-1] - edge[:, None], heights[:, :-1] - bits[:, None]
    reach = np.abs(behind).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where nothing varies
        z = behind / reach[:, None]  # from -1 to 0
        (s2, s3, s4), (r1, r2) = ((z**k).sum(axis=1) for k in (2, 3, 4)), ((z**k * below).sum(axis=1) for k in (1, 2))
        spread = s2 * s4 - s3**2
        slope, curve = (r1 * s4 - r2 * s3) / spread, (s2 * r2 - s3 * r1) / spread
        last = np.where(z < 0, z, -np.inf).argmax(axis=1)[:, None]
        straight = (np.take_along_axis(below, last, 1) / np.take_along_axis(z, last, 1))[:, 0]
        is_parabola = (spread > 1e-12) & (slope > 0) & (curve >= 0)
        slope, curve = np.where(is_parabola, slope, straight), np.where(is_parabola, curve, 0.0)
        return edge, bits, np.where(reach > 0, slope / reach, np.nan), np.where(reach > 0, curve / reach / reach, 0.0)
