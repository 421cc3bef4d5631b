"""Margins: the values beyond which a single feature makes a row anomalous.

The score of a row is a mean over trees, which cut along all features. One extreme feature among thirty thus has only a
thirtieth of the weight. So every feature has margins. On either side, the surprise of a value x is h(x) bits if a share
2**-h of the points lies at least as far out. Down to 32 points this share is counted. Beyond, h is extrapolated by the
best-fitting parabola through the last count, as for a Gaussian, or by a straight line for heavier tails. A side without
variation has no scale: any departure larger than rounding errors counts.

The margins lie where h exceeds a threshold. A feature beyond them costs that many bits, however far beyond: the trees
measure the rest. The threshold is chosen so that about one normal row in 2,048 has a feature beyond its margins,
estimated on the points held as if each were new. Where outstanding features are common, as with rare categories and
heavy tails, the threshold is higher.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.util.parallel import spans

LEAST_POINTS = 256  # needed to extrapolate tails
MOST_POINTS = 2048  # used at most
RATE = 2.0**-11  # share of normal rows that may have a feature beyond its margins
_TAIL = 32  # points beyond the last count
_FEW, _FEWEST = 64, 256  # the threshold is extrapolated from one point in 64 and one in 256
_LEAST_BITS = 10.0  # least threshold for one feature; log2 of the number of features is added
_MOST_BITS = 64.0  # largest surprise: no tail is known better
_DEPARTURE = 13.0  # most bits for the size of a departure from a constant, beside the bits for the departure itself
_VALUES_AT_ONCE = 2**15  # values of points measured together
_ROUNDING = 1e-9  # departures below this share of a value are errors of rounding


class Margins(NamedTuple):
    """The values beyond which single features make a row anomalous."""

    bits: float  # the cost of a feature beyond its margins
    limit: Array  # float64 (2, D): of the low sides, negated, and of the high sides; infinite without a margin

    @classmethod
    def of(cls, points: Array, n_categories: int = 0) -> Self | None:
        """Measure the margins on points; return None if they are too few. Categories have no margins."""
        n = points.shape[1] - n_categories
        if len(points) < LEAST_POINTS or not n:
            return None
        tails = Tails.of(points[:, :n])
        threshold = tails.threshold(points[:, :n])
        return cls(threshold, np.hstack([tails.limit(threshold), np.full((2, n_categories), np.inf)]))

    @classmethod
    def of_state(cls, bits: Array, limit: Array) -> Self:
        """Return margins from a file; raise ValueError if invalid."""
        if not _LEAST_BITS <= bits < np.inf or np.isnan(limit).any():
            raise ValueError("array margins: invalid values")
        return cls(float(bits), limit)

    def attributions(self, rows: Array) -> Array:
        """Return the cost to rows of each side of a feature beyond its margins, (n, 2, D), in bits."""
        return np.where(_signed(rows) > self.limit, self.bits, 0.0)

    def costs(self, rows: Array) -> Array | None:
        """Return the total cost to each row of features beyond their margins, (n,), in bits; None if all are 0."""
        is_beyond = self.are_beyond(rows)
        return self.bits * is_beyond.sum(axis=1) if is_beyond.any() else None

    def are_beyond(self, rows: Array) -> Array:
        """Return which features of rows are beyond their margins, bool (n, D)."""
        return np.asarray((rows < -self.limit[0]) | (rows > self.limit[1]))


class Tails(NamedTuple):
    """The tails of all features; arrays have shape (2, D), for low sides, whose values are negated, and high sides."""

    n: int  # points on which they are measured
    edge: Array  # the farthest value that was counted
    bits: Array  # its surprise
    slope: Array  # of the surprise beyond the edge, per unit; NaN where nothing varies
    curve: Array
    second: Array  # the second farthest value of all, and the third
    third: Array

    @classmethod
    def of(cls, points: Array) -> Self:
        """Measure the tails of the features on points: at least twice as many as the uncounted ones."""
        n, ascending = len(points), np.sort(points, axis=0)
        signed = np.stack([-ascending[::-1], ascending])  # (2, n, D)
        levels = np.arange(1, int(np.log2(n / _TAIL)) + 1)
        knots = signed[:, n - np.rint(n * 2.0**-levels).astype(int)]  # (2, J, D)
        counts = np.stack([(signed >= knots[:, j : j + 1]).sum(axis=1) for j in range(len(levels))], axis=1)
        return cls(n, *_fitted(knots, -np.log2(counts / n)), signed[:, -2], signed[:, -3])

    def surprise(self, rows: Array) -> Array:
        """Return the surprise of both sides of each feature, (n, 2, D), in bits; 0 up to the edge, and if missing."""
        bits = np.zeros((len(rows), 2, rows.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # far out, and where values are missing
            distance = _signed(rows) - self.edge
            places = np.nonzero(distance > 0)  # few, so that wide tables cost little
            excess, of = distance[places], places[1:]
            varying = self.bits[of] + excess * (self.slope[of] + excess * self.curve[of])
            departing = np.log2(self.n + 1) + np.minimum(np.log2(1 + excess / self._rounding[of]), _DEPARTURE)
            bits[places] = np.minimum(np.where(np.isnan(self.slope[of]), departing, varying), _MOST_BITS)
        return bits

    def threshold(self, points: Array) -> float:
        """Return the bits that a share `RATE` of rows exceeds in some feature, given the points of the tails.

        The share is assumed to halve in steps of constant size, as it does between one point in 64 and one in 256. A
        constant feature must depart by more than all other values but one, which may belong to the same row.
        """
        parts = spans(len(points), max(_VALUES_AT_ONCE // points.shape[1], 1))  # that stay in the cache
        most = np.sort(np.concatenate([self._most_new(points[part]) for part in parts]))[::-1]
        few, fewest = (float(most[self.n // part - 1]) for part in (_FEW, _FEWEST))
        step = max((fewest - few) / np.log2(_FEWEST / _FEW), 1.0)
        placed = fewest + step * np.log2(1 / (_FEWEST * RATE))
        return float(max(placed, _LEAST_BITS + np.log2(points.shape[1])))

    def _most_new(self, points: Array) -> Array:
        """Return the largest surprise of each row, (n,), without those of known departures from a constant."""
        is_known = np.isnan(self.slope) & (_signed(points) <= self.third)
        most: Array = np.where(is_known, 0.0, self.surprise(points)).max(axis=(1, 2))
        return most

    def limit(self, threshold: float) -> Array:
        """Return the value from which the surprise of each side exceeds the threshold; infinite if there is none.

        A stream may keep limits for longer than the points. Where a limit would reveal a value, it is rounded.
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
    """Return rows negated for low sides and unchanged for high sides, (n, 2, D)."""
    return np.stack([-rows, rows], axis=1)


def _fitted(knots: Array, heights: Array) -> tuple[Array, Array, Array, Array]:
    """Return edge, bits, slope and curve of sides, (2, D) each, given counted values and their bits, (2, J, D).

    The parabola goes through the edge, with least squares at the other values; the line goes through the last two.
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
