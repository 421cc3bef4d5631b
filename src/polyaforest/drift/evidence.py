"""Evidence that two samples differ: Bayes factors of shared partitions, their p-value, and bounds of distances.

Every tree is grown on the rows of both samples without their labels, and so is as likely under either hypothesis. The
Bayes factor of a forest is therefore the mean of those of its trees, not of their logarithms. Each has a mean of at
most 1 over all permutations of the labels, and so has that of the forest: by chance it exceeds a value x in at most one
of x comparisons, whatever the data are.

Features are compared on ranks, so their scale does not matter and stray values are no farther away than others. Many
different values share few levels, so that cuts fall between values that exist. Categories have no order: each is a
corner of a cube of yes/no questions, and a cut asks one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, ndtri

from polyaforest.drift.comparison import Bound, Share
from polyaforest.forest.grow import grow_trees
from polyaforest.forest.spec import Plan, weighting_of_rows
from polyaforest.kernels import two_samples
from polyaforest.kernels.arrays import QUESTIONS, Array, Forest
from polyaforest.kernels.boxes import answer, empty_box
from polyaforest.kernels.rng import seed_states
from polyaforest.tables.categories import Texts
from polyaforest.util.parallel import ordered_sum, run, spans

MISSING = 0  # the level of a missing value, below those of all values
LEVEL = 0.95  # of all intervals
SPARSITY = 0.5  # at each level of a tree one node is expected to differ
_MAX_LEVELS = 2048  # of a feature
_GAP = 0.5  # from a missing value to the lowest, in units of the distance from the lowest value to the highest
_SOFTNESS = 0.5  # the power of Bayes factors whose mean is the statistic of the permutation test
_MARKS_AT_ONCE, _FEWEST_AT_ONCE = 2**25, 32  # labels that are counted together, and the fewest columns of them
_PANELS, _POINTS = 24, 8  # of the integral over powers of Bayes factors
_SLOPES = np.append(0.0, np.geomspace(0.05, 20.0, 25))  # factors that turn scores into log-odds
_FOLDS = (0, 1)


# ---- rows on common axes ---------------------------------------------------------------------------------------------


class Levels:
    """Base of axes: the levels of a feature, of which the first, `MISSING`, is that of missing values."""

    positions: Array  # of each level
    has_gaps: bool  # whether any value is missing

    @property
    def lowest(self) -> int:
        """The lowest level in use."""
        return MISSING if self.has_gaps else MISSING + 1

    @property
    def highest(self) -> int:
        """The highest level in use."""
        return len(self.positions) - 1

    @property
    def n_levels(self) -> int:
        """Number of levels, including that of missing values."""
        return len(self.positions)


@dataclass(frozen=True, eq=False)
class Axis(Levels):
    """The levels of a numeric feature: `MISSING`, then one for the values up to each edge.

    Attributes
    ----------
    edges : float64 array
        The highest value of each level, ascending; values above the last edge have the last level.
    positions : float64 array
        The position of each level on the axis, from 0 to 1 + _GAP; the first is that of missing values.
    has_gaps : bool
        Whether any value is missing.
    """

    edges: Array
    positions: Array
    has_gaps: bool

    @classmethod
    def of(cls, values: Array) -> Axis:
        """Build the axis of a feature from its values, NaN where one is missing."""
        present = values[~np.isnan(values)]
        distinct, counts = np.unique(present, return_counts=True)
        if len(distinct) > _MAX_LEVELS:
            ranks = np.linspace(0, len(present) - 1, _MAX_LEVELS + 1)[1:].round().astype(np.int64)
            distinct = np.unique(np.sort(present)[ranks])
            counts = np.bincount(np.searchsorted(distinct, present), minlength=len(distinct))
        below = np.cumsum(counts) - counts
        middle = (below + counts / 2) / max(len(present), 1)
        return cls(distinct, np.append(0.0, _GAP + middle), len(present) < len(values))

    def levels(self, values: Array) -> Array:
        """Return the level of each value, int32."""
        if not len(self.edges):
            return np.full(len(values), MISSING, np.int32)
        above = np.minimum(np.searchsorted(self.edges, values), len(self.edges) - 1) + 1
        return np.where(np.isnan(values), MISSING, above).astype(np.int32)

    def last_below(self, cut: float) -> int:
        """Return the highest level to the left of a cut."""
        return int(np.searchsorted(self.positions, cut, side="right")) - 1


class Coded(NamedTuple):
    """Which columns of rows hold codes of categories."""

    columns: tuple[int, ...]
    texts: Texts
    rng: np.random.Generator  # draws their corners


@dataclass(frozen=True, eq=False)
class Corners(Levels):
    """The levels of a feature of categories: `MISSING`, then one for each category, the most common first.

    Corners are drawn in order of how common categories are, so the result does not depend on their names.

    Attributes
    ----------
    codes : float64 array of shape (K,)
        The codes of the categories, ascending.
    ranks : int32 array of shape (K,)
        Their levels.
    texts : list of str or None
        The text of each category by level; None where unknown.
    positions : float64 array of shape (K + 1,)
        The corner of each level, as a code.
    has_gaps : bool
        Whether any value is missing.
    """

    codes: Array
    ranks: Array
    texts: list[str | None]
    positions: Array
    has_gaps: bool

    @classmethod
    def of(cls, values: Array, texts: Texts, rng: np.random.Generator) -> Corners:
        """Draw a corner for each category of a feature, given by codes, NaN where one is missing."""
        present = values[~np.isnan(values)]
        codes, counts = np.unique(present, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        ranks = np.empty(len(codes), np.int32)
        ranks[order] = MISSING + 1 + np.arange(len(codes))
        corners = rng.integers(2**QUESTIONS, size=len(codes) + 1).astype(np.float64)
        known = [texts.get(code) for code in codes[order].tolist()]
        return cls(codes, ranks, known, corners, len(present) < len(values))

    def levels(self, values: Array) -> Array:
        """Return the level of each code, int32; all codes must be known."""
        if not len(self.codes):
            return np.full(len(values), MISSING, np.int32)
        places = np.searchsorted(self.codes, np.nan_to_num(values))
        return np.where(np.isnan(values), MISSING, self.ranks[np.minimum(places, len(self.ranks) - 1)])

    def answers_yes(self, question: float) -> Array:
        """Return which levels answer yes to a question, bool (K + 1,)."""
        return answer(self.positions, question)


class Grid(NamedTuple):
    """Rows on common axes."""

    axes: list[Axis | Corners]
    levels: Array  # int32 (n, D)

    @classmethod
    def of(cls, rows: Array, sample: Array, coded: Coded | None = None) -> Grid:
        """Place rows on axes built from a sample of them; categories are those of all rows."""
        axes: list[Axis | Corners] = []
        for k in range(rows.shape[1]):
            if coded is not None and k in coded.columns:
                axes.append(Corners.of(rows[:, k], coded.texts, coded.rng))
            else:
                axes.append(Axis.of(sample[:, k]))
        levels = np.empty(rows.shape, np.int32)
        for k, axis in enumerate(axes):
            levels[:, k] = axis.levels(rows[:, k])
        return cls(axes, levels)

    @property
    def order(self) -> Array:
        """The features in the order of trees, (D,): numbers, then categories."""
        return np.argsort([isinstance(axis, Corners) for axis in self.axes], kind="stable")

    @property
    def n_categories(self) -> int:
        """Number of features that are categories."""
        return sum(isinstance(axis, Corners) for axis in self.axes)

    def positions(self, rows: slice | Array) -> Array:
        """Return the positions of rows, float64 (n, D), in the order of trees."""
        chosen = self.levels[rows]
        places = np.empty(chosen.shape)
        for at, k in enumerate(self.order.tolist()):
            places[:, at] = self.axes[k].positions[chosen[:, k]]
        return places


# ---- partitions ------------------------------------------------------------------------------------------------------


class TreePartition(NamedTuple):
    """A tree of cuts, and the leaf of every row in it."""

    left: Array  # int32 (C,): NONE at leaves
    parent: Array  # int32 (C,): NONE at the root, which comes first
    feature: Array  # int32 (C,)
    cut: Array  # float64 (C,): a position on the axis of the feature, or the number of a question to categories
    depth: Array  # int64 (C,)
    fineness: Array  # int64 (C,): number of numeric cuts above a numeric cut; 0 at a cut of categories
    leaves: Array  # uint16 or int32 (n,)

    def counts_of(self, marks: Array) -> Array:
        """Count the rows marked in each column of `marks`, uint8 (n, P), below every node: int32 (C, P)."""
        counts = np.empty((len(self.left), marks.shape[1]), np.int32)
        two_samples.count_marked(self.parent, self.leaves, marks, counts)
        return counts


class SplitPrior(NamedTuple):
    """The prior of a difference between the samples."""

    strength: float  # gamma of the Beta of the first cut
    sparsity: float = SPARSITY

    def at(self, fineness: Array) -> Array:
        """Return the strength of the Beta of cuts."""
        strength: Array = self.strength * (2.0 * fineness + 1.0) ** 2
        return strength

    def evidence(self, partition: TreePartition, counts: Array, marked: Array) -> Array:
        """Return the contribution of each node to the log Bayes factor, (C, P), given its rows and those of A."""
        log_factorials = gammaln(np.arange(float(counts[0].max()) + 1) + 1)
        out = np.empty((len(partition.left), marked.shape[1]))
        two_samples.node_evidence(
            partition.left, partition.depth, partition.fineness, counts, marked, self.strength, self.sparsity,
            log_factorials, out,
        )  # fmt: skip
        return out


def grow_partitions(
    grid: Grid, sample: Array, n_trees: int, max_depth: int, seed: np.random.SeedSequence, n_jobs: int | None
) -> list[TreePartition]:
    """Grow trees on the rows numbered in `sample`, ascending, and find the leaves of all rows."""
    rows, n_categories, order = grid.positions(sample), grid.n_categories, grid.order
    measured, states = weighting_of_rows(rows, n_categories), seed_states(seed, n_trees)
    weights = draw_weights(measured.spread, n_trees, np.random.default_rng(seed), n_categories)
    box = empty_box(rows.shape[1], n_categories)
    plan = Plan(1, np.inf, max_depth, measured, box, seed, 1, n_categories)
    every = rows if len(sample) == len(grid.levels) else grid.positions(slice(None))

    def grow(t: int) -> TreePartition:
        own = plan._replace(weighting=measured._replace(fixed=weights[t]))
        return _partition(grow_trees(rows, own, states[t : t + 1]), every, order)

    return run(grow, range(n_trees), n_jobs)


def draw_weights(spread: Array, n_trees: int, rng: np.random.Generator, n_categories: int = 0) -> Array:
    """Draw the feature weights of all trees, (T, D): every other tree uses one feature, or two, in turn.

    Otherwise cuts of many features would hide a change of a few. Of the other trees, every other one uses a single
    feature of categories (the last `n_categories`): separating one of many categories takes many cuts.
    """
    weights = rng.exponential(size=(n_trees, len(spread))) / spread
    decks: dict[int, list[int]] = {1: [], 2: []}
    for t in range(0, n_trees, 2):
        size = 1 + t // 2 % 2
        if size < len(spread):
            weights[t, np.delete(np.arange(len(spread)), draw_features(decks[size], size, len(spread), rng))] = 0.0
    if n_categories:
        turns = len(spread) - 1 - rng.permutation(n_categories)
        for turn, t in enumerate(range(1, n_trees, 4)):
            weights[t, np.arange(len(spread)) != turns[turn % n_categories]] = 0.0
    return weights


def draw_features(
    deck: list[int], size: int, n_features: int, rng: np.random.Generator, drawn: Collection[set[int]] = ()
) -> list[int]:
    """Draw one or two features from a deck, which is reshuffled when it runs out.

    A pair is one that has not been `drawn` yet, if the deck has one.
    """
    if len(deck) < size:
        deck += [k for k in rng.permutation(n_features).tolist() if k not in deck]
    first = deck.pop(0)
    if size == 1:
        return [first]
    place = next((i for i, second in enumerate(deck) if {first, second} not in drawn), 0)
    return [first, deck.pop(place)]


def _partition(forest: Forest, rows: Array, order: Array) -> TreePartition:
    """Return the tree of a forest of one, with the leaves of `rows`; `order` maps its features to columns."""
    leaves, size = np.empty(len(rows), np.int32), int(forest.size[0])
    two_samples.find_leaves(forest, 0, rows, leaves)
    left, parent = forest.left[0, :size].copy(), forest.parent[0, :size].copy()
    feature, cut = forest.feature[0, :size].copy(), forest.cut[0, :size].copy()
    is_cut, (depth, finer) = left >= 0, np.zeros((2, size), np.int64)
    asks = is_cut & (feature >= len(order) - int(forest.n_categories[0]))
    feature[is_cut] = order[feature[is_cut]]
    for j in range(1, size):
        above = parent[j]
        depth[j], finer[j] = depth[above] + 1, finer[above] + (not asks[above])
    short = leaves.astype(np.uint16) if size < 2**16 else leaves
    return TreePartition(left, parent, feature, cut, depth, np.where(asks, 0, finer), short)


# ---- permutations ----------------------------------------------------------------------------------------------------


def permute_labels(
    labels: Array, n_permutations: int, block_size: int | None, rng: np.random.Generator
) -> Iterator[Array]:
    """Yield permutations of the labels, uint8 (n, P), in parts of `n_permutations` columns in total.

    With a `block_size`, blocks of consecutive rows of a sample are permuted; rows after its last whole block keep their
    label.
    """
    order, block_labels = _blocks(labels, block_size or 1)
    for part in spans(n_permutations, max(_MARKS_AT_ONCE // len(labels), _FEWEST_AT_ONCE)):
        marks = np.repeat(labels[:, None], part.stop - part.start, axis=1)
        for p in range(marks.shape[1]):
            marks[order.ravel(), p] = np.repeat(rng.permutation(block_labels), order.shape[1])
        yield marks


def _blocks(labels: Array, size: int) -> tuple[Array, Array]:
    """Return the rows of all whole blocks, (blocks, size), and the labels of the blocks."""
    own = [np.flatnonzero(labels == label) for label in (1, 0)]
    whole = [rows[: len(rows) // size * size].reshape(-1, size) for rows in own]
    return np.concatenate(whole), np.repeat(np.array([1, 0], np.uint8), [len(blocks) for blocks in whole])


# ---- evidence --------------------------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """Log Bayes factors, two distributions against one, in natural logarithms."""

    log_bayes_factor: float
    by_feature: Array  # (D,): the sum is log_bayes_factor
    p_value: float


def weigh(
    partitions: Sequence[TreePartition],
    labels: Array,
    n_features: int,
    prior: SplitPrior,
    permuted: Iterator[Array],
    n_jobs: int | None,
) -> Evidence:
    """Return the evidence that rows labelled 1 (A) and 0 (B) have two distributions rather than one."""
    counts = [partition.counts_of(np.ones((len(labels), 1), np.uint8)) for partition in partitions]

    def nodes_of(t: int, marks: Array) -> Array:
        return prior.evidence(partitions[t], counts[t], partitions[t].counts_of(marks))

    by_tree = np.zeros((len(partitions), n_features))
    for t, partition in enumerate(partitions):
        is_cut = partition.left >= 0
        np.add.at(by_tree[t], partition.feature[is_cut], nodes_of(t, labels[:, None])[is_cut, 0])
    found, n_more, n_permuted = _statistic(by_tree.sum(axis=1)[:, None])[0], 0, 0
    for marks in permuted:
        factors = run(partial(_total, nodes_of, marks), range(len(partitions)), n_jobs)
        n_more += int((_statistic(np.stack(factors)) >= found - 1e-9 * max(abs(found), 1.0)).sum())
        n_permuted += marks.shape[1]
    by_feature = attribute(by_tree)
    return Evidence(float(by_feature.sum()), by_feature, (1 + n_more) / (1 + n_permuted))


def _total(nodes_of: Callable[[int, Array], Array], marks: Array, t: int) -> Array:
    """Return the log Bayes factor of a tree for each column of labels."""
    return ordered_sum(nodes_of(t, marks))


def _statistic(factors: Array) -> Array:
    """Return the statistic of the permutation test, (P,), from the log Bayes factors of trees, (T, P).

    The mean of the Bayes factors is dominated by the best tree, and detects what one tree sees well; the mean of their
    logarithms detects what all trees see a little of. The mean of their square roots detects both.
    """
    mean: Array = logsumexp(_SOFTNESS * factors, axis=0) / _SOFTNESS
    return mean


def attribute(by_tree: Array) -> Array:
    """Attribute the log of the mean Bayes factor to features, (D,), given the contributions in each tree, (T, D).

    By the rule of Aumann and Shapley: the log of the mean of all Bayes factors to the power s grows from 0 at s = 0 to
    the total at s = 1, at a rate that is the mean of the trees' logarithms, each weighted by its power.
    """
    whole = by_tree.sum(axis=1)
    log_mean = float(logsumexp(whole) - np.log(len(whole)))
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    ends = np.append(0.0, 2.0 ** np.arange(1 - _PANELS, 1))  # trees diverge early where factors are large
    parts = np.zeros(by_tree.shape[1])
    for low, high in pairwise(ends.tolist()):
        for point, weight in zip(points, weights, strict=True):
            powers = np.exp((low + (high - low) * (point + 1) / 2) * (whole - whole.max()))
            parts += (high - low) / 2 * weight * (powers / powers.sum()) @ by_tree
    size = np.abs(parts).sum()  # the rounding error of the integral is distributed in proportion
    remainder = log_mean - parts.sum()
    parts += remainder * (np.abs(parts) / size if size > 0 else 1 / len(parts))
    return parts


# ---- distances -------------------------------------------------------------------------------------------------------
# Any set of rows, and any guess of which sample a row is from, bounds a distance from below. Each fold is scored by the
# log density ratio that the other fold shows, so the choice of the score cannot inflate the bounds.


class Split(NamedTuple):
    """The sample, the fold and the block of every row."""

    labels: Array  # uint8 (n,): 1 for A
    folds: Array  # uint8 (n,)
    blocks: Array  # int64 (n,): rows of the same block depend on each other


def split(labels: Array, block_size: int | None, rng: np.random.Generator) -> Split:
    """Split the rows of both samples into two folds at random, by whole blocks."""
    folds, blocks, n_blocks = np.empty(len(labels), np.uint8), np.empty(len(labels), np.int64), 0
    for label in (1, 0):
        own = np.flatnonzero(labels == label)
        number = np.arange(len(own)) // (block_size or 1)
        fold_of = rng.permutation(np.arange(number[-1] + 1) % 2).astype(np.uint8)
        folds[own], blocks[own] = fold_of[number], n_blocks + number
        n_blocks += len(fold_of)
    return Split(labels, folds, blocks)


def log_density_ratios(partitions: Sequence[TreePartition], rows: Split, prior: SplitPrior) -> Array:
    """Return log(density of A / density of B) at each row, estimated from the other fold, on average over trees.

    The log ratio of the posterior means at a node is weighted by the probability that the samples differ there.
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


def _path_sums(partition: TreePartition, of_a: Array, of_b: Array, prior: SplitPrior) -> Array:
    """Return the log ratios of the masses of all nodes, (C, folds)."""
    both = of_a + of_b
    columns = [[np.ascontiguousarray(counts[:, f : f + 1]) for counts in (both, of_a)] for f in _FOLDS]
    own = [prior.evidence(partition, *counts) for counts in columns]
    rho = (prior.sparsity**partition.depth)[:, None]
    differs = np.where(rho < 1, 1 - (1 - rho) * np.exp(-np.concatenate(own, axis=1)), 1.0)
    logs = np.zeros(of_a.shape)
    for depth in range(1, int(partition.depth.max()) + 1):
        nodes = np.flatnonzero(partition.depth == depth)
        above = partition.parent[nodes]
        strength = prior.at(partition.fineness[above])[:, None]
        share = (both[nodes] + 0.5) / (both[above] + 1)  # also where the fold has no rows
        means = [(strength * share + of[nodes]) / (strength + of[above]) for of in (of_a, of_b)]
        logs[nodes] = logs[above] + differs[above] * np.log(means[0] / means[1])
    return logs


def total_variation(scores: Array, rows: Split, changes: Sequence[Share] = ()) -> Bound:
    """Bound the total variation distance: the share of rows that moved, at the least.

    The score threshold that separates the samples of one fold best is measured on the other. The change of a region is
    used instead if it gives a better bound; the intervals are corrected for the choice.
    """
    is_in = np.empty(len(scores))
    for fold in _FOLDS:
        threshold = _best_threshold(scores[rows.folds != fold], rows.labels[rows.folds != fold])
        own = rows.folds == fold
        is_in[own] = scores[own] > threshold
    shares = [mean_of(is_in, rows, label, smooth=True) for label in (1, 0)]
    error = np.hypot(shares[0].error, shares[1].error)
    level = 1 - (1 - LEVEL) / (1 + len(changes))
    bounds = [_clipped(shares[0].value - shares[1].value, error, level)]
    for change in changes:
        bounds.append(Bound(*change) if change.value > 0 else Bound(*(-np.array(change)[[0, 2, 1]]).tolist()))
    return max(bounds, key=lambda bound: (bound.low, bound.value))


def jensen_shannon(scores: Array, rows: Split) -> Bound:
    """Bound the Jensen-Shannon divergence in bits: the information of a row about its sample, at the least.

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
    """Return log2 of probabilities, given as log-odds."""
    bits: Array = -np.logaddexp2(0.0, -log_odds / np.log(2))
    return bits


def _best_threshold(scores: Array, labels: Array) -> float:
    """Return the threshold above which the share of A exceeds that of B the most."""
    order = np.argsort(-scores, kind="stable")
    steps = np.where(labels[order] == 1, 1 / max(labels.sum(), 1), -1 / max((labels == 0).sum(), 1))
    gains = np.cumsum(steps)
    is_last = np.append(np.diff(scores[order]) != 0, True)  # of rows with equal scores
    best = int(np.argmax(np.where(is_last, gains, -np.inf)))
    below = scores[order[best + 1]] if best + 1 < len(order) else -np.inf
    return float((scores[order[best]] + below) / 2) if np.isfinite(below) else -np.inf


def _clipped(value: float, error: float, level: float = LEVEL) -> Bound:
    """Return an estimate of a distance from 0 to 1 with its interval."""
    reach = float(ndtri((1 + level) / 2)) * error
    value, low, high = np.clip([value, value - reach, value + reach], 0.0, 1.0).tolist()
    return Bound(value, low, high)


class Mean(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float
    n: int
    design: float  # design effect: the factor by which dependence within blocks multiplies the variance


def mean_of(values: Array, rows: Split, label: int, *, smooth: bool = False, among: Array | None = None) -> Mean:
    """Return the mean of values over the rows of a sample, with its standard error, which accounts for blocks.

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
