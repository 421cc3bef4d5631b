"""Bars for the evidence of windows, so that false alarms are as far apart as asked for.

The reference itself says how evidence behaves when nothing changes: stretches of it are drawn, with replacement, as
another reference and as the stream that follows. Two things have to be known for that.

How much more counts vary than those of independent points (`dispersions`): counts in windows *of the reference*, in
order, are compared with what independent points would give (the design effect of Rao and Scott). Evidence is worked out
from counts divided by it, as from so many independent points. In a season or a random walk, windows shorter than its
period differ by nature, and so they count for little.

How long a stretch must be to carry what depends on each other: several times the dispersion, which is also the number
of points that count as one; single points, if there is no dispersion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.drift._shared import Shared, Windows

TRIALS = 160  # stretches of a stream without change
STEPS = 64  # points of each of them
_FEWEST = 4  # windows in the reference from which a dispersion can be measured
_FREEDOM = 20.0  # independent cells of a partition, about
_LEAST_EXPECTED = 1.0  # points in a cell by which dispersion is measured
_CAUTION = 1.0 + (2.0 / TRIALS) ** 0.5  # the scale of a tail, and its standard error
_LEAST_SCALE = 1e-3  # of a tail, in nats
_DEPENDENT_SCALE = 1.0  # the same, of points that depend on each other: the reference is worth few of them
_STRETCH = 16.0  # lengths of stretches over dispersions


class Bars(NamedTuple):
    """How evidence behaves while nothing changes, for windows of each length, (K,)."""

    dispersions: Array  # by which factor counts vary more than those of independent points
    usual: Array  # the mean of the evidence
    bars: Array  # the evidence from which on there is an alarm
    slopes: Array  # by how much bars rise if false alarms are to be e times as seldom


def find_bars(shared: Shared, lengths: Sequence[int], every: float, seed: np.random.SeedSequence) -> Bars:
    """Return bars of which any is exceeded without a change once in `every` points.

    The maxima of evidence over stretches without change have a tail that falls exponentially, as that of every log
    Bayes factor does. Each window is measured in its own terms, by the median of its maxima and the scale of their
    tail, and the bar is the same for all in these terms: where the tail of the largest of them says so, if it falls
    more slowly than measured by a standard error.
    """
    dispersions = measure_dispersions(shared, lengths)
    stretch = _stretch_for(dispersions[-1], len(shared.leaves))
    usual, maxima = _simulate(shared, lengths, dispersions, stretch, np.random.default_rng(seed))
    middle, scale = _tail_of(maxima)
    if stretch > 1:
        scale = np.maximum(scale, _DEPENDENT_SCALE)
    height, slope = height_of_bars(((maxima - middle) / scale).max(axis=1), every)
    return Bars(dispersions, usual, middle + scale * height, scale * slope)


def height_of_bars(highest: Array, every: float) -> tuple[float, float]:
    """Return the height exceeded once in `every` points, and its rise if alarms are to be e times as rare.

    `highest` are maxima over stretches of `STEPS` points without a change, (trials,).
    """
    median, slope = _tail_of(highest)
    n_stretches, slope = every / STEPS, _CAUTION * slope  # until the height may be exceeded
    if n_stretches > 2:
        return float(median + slope * np.log(n_stretches / 2)), float(slope)
    return float(np.quantile(highest, max(1.0 - 1.0 / max(n_stretches, 1.0), 0.0))), float(slope)


def _tail_of(maxima: Array) -> tuple[Array, Array]:
    """Return the median along the first axis, and the scale of an exponential tail above it."""
    middle = np.median(maxima, axis=0)
    scale = 2.0 * np.maximum(maxima - middle, 0.0).mean(axis=0)  # half of all are above
    return middle, np.maximum(scale, _LEAST_SCALE)


def measure_dispersions(shared: Shared, lengths: Sequence[int]) -> Array:
    """Return the dispersion of counts in windows of each length, (K,), at least 1 and never less than of shorter ones.

    Of windows too long to be measured it is that of the longest that are not.
    """
    n, found = len(shared.leaves), []
    share = shared.counts / n
    for length in lengths:
        if length * _FEWEST > n:
            break
        spread = length * share * (1.0 - share) * (1.0 - length / n)
        is_told = (length * np.minimum(share, 1.0 - share) >= _LEAST_EXPECTED) & (spread > 0)
        starts = range(0, n - length + 1, max(length // 4, 1))
        excess = np.zeros(share.shape)
        for start in starts:
            excess += (shared.count(shared.leaves[start : start + length]) - length * share) ** 2
        measured = float(excess[is_told].sum() / spread[is_told].sum()) / len(starts) if is_told.any() else 1.0
        chance = 3.0 * np.sqrt(2.0 * length / (_FREEDOM * n))
        found.append(measured if measured > 1.0 + chance else 1.0)
    known = np.maximum.accumulate(found or [1.0])
    return np.array([known[min(k, len(known) - 1)] for k in range(len(lengths))])


def _stretch_for(dispersion: float, n: int) -> int:
    """Return the length of the stretches that `n` points are drawn in."""
    return 1 if dispersion == 1 else int(min(np.ceil(_STRETCH * dispersion), n // _FEWEST))


def _simulate(
    shared: Shared, lengths: Sequence[int], dispersions: Array, stretch: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the mean of the evidence of windows over stretches without change, (K,), and its maxima, (trials, K)."""
    n, longest = len(shared.leaves), lengths[-1]
    maxima, means = [], []
    windows = Windows(shared, lengths, dispersions.tolist())
    for _ in range(TRIALS):
        stream = shared.leaves[_drawn(rng, n, longest + STEPS, stretch)]
        windows.compare_with(shared.leaves[_drawn(rng, n, n, stretch)])
        windows.fill(stream[:longest])
        evidence = windows.slide(stream, 0, longest)[1]
        maxima.append(evidence.max(axis=0))
        means.append(evidence.mean(axis=0))
    return np.mean(means, axis=0), np.array(maxima)


def _drawn(rng: np.random.Generator, n: int, wanted: int, stretch: int) -> Array:
    """Return the numbers of `wanted` points out of `n`, drawn in stretches; the first follows the last."""
    starts = rng.integers(n, size=-(-wanted // stretch))
    return ((starts[:, None] + np.arange(stretch)) % n).ravel()[:wanted]
