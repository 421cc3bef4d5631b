"""How large a difference is: lower bounds of distances between two distributions, measured on rows not learned from.

Every set of rows, and every way to guess which sample a row is from, gives a lower bound. Rows are dealt to two folds;
those of one are scored by what the other shows of the log ratio of the two densities, and so the bounds are honest: how
well the score was chosen makes them better, never too large but for the luck of the rows measured, which the interval
covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from polyaforest.core.arrays import Array
from polyaforest.drift._comparison import Bound, Region, Share
from polyaforest.drift._evidence import Partition, Prior

LEVEL = 0.95  # of all intervals
_SLOPES = np.append(0.0, np.geomspace(0.05, 20.0, 25))  # by which scores are multiplied to be log-odds
_FOLDS = (0, 1)


class Split(NamedTuple):
    """Which rows are of A, in which fold each is, and which belong together."""

    labels: Array  # uint8 (n,): 1 for A
    folds: Array  # uint8 (n,)
    blocks: Array  # int64 (n,): rows of the same block depend on each other


def split(labels: Array, block_size: int | None, rng: np.random.Generator) -> Split:
    """Deal the rows of both samples to two folds, half of each; consecutive rows by whole blocks."""
    folds, blocks, n_blocks = np.empty(len(labels), np.uint8), np.empty(len(labels), np.int64), 0
    for label in (1, 0):
        own = np.flatnonzero(labels == label)
        number = np.arange(len(own)) // (block_size or 1)
        fold_of = rng.permutation(np.arange(number[-1] + 1) % 2).astype(np.uint8)
        folds[own], blocks[own] = fold_of[number], n_blocks + number
        n_blocks += len(fold_of)
    return Split(labels, folds, blocks)


def log_density_ratios(partitions: Sequence[Partition], rows: Split, prior: Prior) -> Array:
    """Return for each row what the other fold shows of log(density of A / density of B) there, on average over trees.

    At each node the log ratio of the posterior means of both samples counts by the probability that they differ there.
    """
    is_a = rows.labels == 1
    marks = np.stack([(rows.folds == fold) & chosen for fold in _FOLDS for chosen in (is_a, ~is_a)], axis=1)
    total = np.zeros(len(is_a))
    for partition in partitions:
        counts = partition.counts_of(marks.astype(np.uint8))
        of_a, of_b = counts[:, ::2], counts[:, 1::2]
        logs = _path_sums(partition, of_a, of_b, prior)
        total += logs[partition.leaves, 1 - rows.folds]
    return total / len(partitions)


def _path_sums(partition: Partition, of_a: Array, of_b: Array, prior: Prior) -> Array:
    """Return the log ratios of the masses of all nodes, (C, folds)."""
    both = of_a + of_b
    own = [prior.evidence(partition, n, m) for n, m in zip(_columns(both), _columns(of_a), strict=True)]
    rho = (prior.sparsity**partition.depth)[:, None]
    differs = np.where(rho < 1, 1 - (1 - rho) * np.exp(-np.concatenate(own, axis=1)), 1.0)
    logs = np.zeros(of_a.shape)
    for depth in range(1, int(partition.depth.max()) + 1):
        nodes = np.flatnonzero(partition.depth == depth)
        above = partition.parent[nodes]
        strength = prior.at(partition.fineness[above])[:, None]
        share = (both[nodes] + 0.5) / (both[above] + 1)  # of a side that the fold leaves empty too
        means = [(strength * share + of[nodes]) / (strength + of[above]) for of in (of_a, of_b)]
        logs[nodes] = logs[above] + differs[above] * np.log(means[0] / means[1])
    return logs


def _columns(counts: Array) -> list[Array]:
    return [np.ascontiguousarray(counts[:, f : f + 1]) for f in _FOLDS]


# ---- bounds ----------------------------------------------------------------------------------------------------------


def total_variation(scores: Array, rows: Split, regions: Sequence[Region] = ()) -> Bound:
    """Bound the total variation distance: the share of rows that moved, at the least.

    Of all sets of rows with a score above a threshold, the one that tells the samples of one fold apart best is
    measured on the other. Where a region that was found gives a better bound, that counts; the intervals allow for the
    choice.
    """
    is_in = np.empty(len(scores))
    for fold in _FOLDS:
        threshold = _best_threshold(scores[rows.folds != fold], rows.labels[rows.folds != fold])
        own = rows.folds == fold
        is_in[own] = scores[own] > threshold
    shares = [mean_of(is_in, rows, label, smooth=True) for label in (1, 0)]
    error = np.hypot(shares[0].error, shares[1].error)
    level = 1 - (1 - LEVEL) / (1 + len(regions))
    bounds = [_clipped(shares[0].value - shares[1].value, error, level)]
    for region in regions:
        change = region.change if region.change.value > 0 else Share(*(-np.array(region.change)[[0, 2, 1]]).tolist())
        bounds.append(Bound(*change))
    return max(bounds, key=lambda bound: (bound.low, bound.value))


def jensen_shannon(scores: Array, rows: Split) -> Bound:
    """Bound the Jensen-Shannon divergence in bits: what a row tells of the sample it is from, at the least.

    By its variational form: 1 + E_A[log2 d] / 2 + E_B[log2(1 - d)] / 2 for any guess d of the probability of A.
    """
    bits = np.empty(len(scores))
    signs = np.where(rows.labels == 1, 1.0, -1.0)
    for fold in _FOLDS:
        other, own = rows.folds != fold, rows.folds == fold
        tried = [_bits(slope * scores[other] * signs[other]) for slope in _SLOPES]
        worth = [float(one[signs[other] > 0].mean() + one[signs[other] < 0].mean()) for one in tried]
        bits[own] = _bits(_SLOPES[int(np.argmax(worth))] * scores[own] * signs[own])
    means = [mean_of(bits, rows, label) for label in (1, 0)]
    error = np.hypot(means[0].error, means[1].error) / 2
    return _clipped(1 + (means[0].value + means[1].value) / 2, error)


def _bits(log_odds: Array) -> Array:
    """Return log2 of the probabilities that log-odds stand for."""
    bits: Array = -np.logaddexp2(0.0, -log_odds / np.log(2))
    return bits


def _best_threshold(scores: Array, labels: Array) -> float:
    """Return the threshold above which the share of A exceeds that of B the most."""
    order = np.argsort(-scores, kind="stable")
    steps = np.where(labels[order] == 1, 1 / max(labels.sum(), 1), -1 / max((labels == 0).sum(), 1))
    gains = np.cumsum(steps)
    is_last = np.append(np.diff(scores[order]) != 0, True)  # of rows with the same score
    best = int(np.argmax(np.where(is_last, gains, -np.inf)))
    below = scores[order[best + 1]] if best + 1 < len(order) else -np.inf
    return float((scores[order[best]] + below) / 2) if np.isfinite(below) else -np.inf


def _clipped(value: float, error: float, level: float = LEVEL) -> Bound:
    """Return an estimate with its interval, as a distance from 0 to 1."""
    reach = float(ndtri((1 + level) / 2)) * error
    value, low, high = np.clip([value, value - reach, value + reach], 0.0, 1.0).tolist()
    return Bound(value, low, high)


class Mean(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float
    n: int
    design: float  # by what dependence within blocks multiplies the variance


def mean_of(values: Array, rows: Split, label: int, *, smooth: bool = False, among: Array | None = None) -> Mean:
    """Return the mean of values over the rows of a sample, with its standard error, which allows for blocks.

    With `smooth`, values are 0 or 1, and the error is that of Agresti and Caffo, with one more of each.
    """
    chosen = rows.labels == label if among is None else (rows.labels == label) & among
    own, blocks = values[chosen], rows.blocks[chosen]
    n, mean = len(own), float(own.mean())
    sums = np.bincount(np.unique(blocks, return_inverse=True)[1], own - mean)
    plain = float(((own - mean) ** 2).sum())
    design = max(float((sums**2).sum()) / plain, 1.0) if plain > 0 else 1.0
    variance = plain / n
    if smooth:
        middle = (own.sum() + 1) / (n + 2)
        variance = middle * (1 - middle)
    return Mean(mean, float(np.sqrt(variance * design / n)), n, design)
