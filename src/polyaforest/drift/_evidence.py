"""The evidence of shared partitions: log Bayes factors, how they fall out by chance, and which features carry them.

Every tree is grown on the rows of both samples without their labels and so is as likely under either hypothesis. The
Bayes factor of a forest is therefore the mean of those of its trees, not of their logarithms; and since each has a mean
of at most 1 over all ways to deal the labels, so has that of the forest: by chance it exceeds a value x at most once in
x comparisons, whatever the data are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from polyaforest.core.arrays import Array, Forest
from polyaforest.core.boxes import empty_box
from polyaforest.core.parallel import ordered_sum, run, spans
from polyaforest.core.rng import seed_states
from polyaforest.drift._axes import Grid
from polyaforest.forest.grow import grow_trees
from polyaforest.forest.spec import Plan, weighting_of_rows
from polyaforest.kernels import two_samples

SPARSITY = 0.5  # at each level of a tree one node is expected to differ
_SOFTNESS = 0.5  # the power of Bayes factors whose mean is the statistic of the permutation test
_MARKS_AT_ONCE, _FEWEST_AT_ONCE = 2**25, 32  # labels that are counted together, and the fewest columns of them
_PANELS, _POINTS = 24, 8  # of the integral over powers of Bayes factors


class Partition(NamedTuple):
    """One tree of cuts, and the leaf of every row in it."""

    left: Array  # int32 (C,): NONE at leaves
    parent: Array  # int32 (C,): NONE at the root, which comes first
    feature: Array  # int32 (C,)
    cut: Array  # float64 (C,): in positions on the axis of the feature; the number of a question to categories
    depth: Array  # int64 (C,)
    fineness: Array  # int64 (C,): the cuts of numbers above a cut of a number; 0 at a cut of a category
    leaves: Array  # uint16 or int32 (n,)

    def counts_of(self, marks: Array) -> Array:
        """Count the rows marked in each column of `marks`, uint8 (n, P), below every node: int32 (C, P)."""
        counts = np.empty((len(self.left), marks.shape[1]), np.int32)
        two_samples.count_marked(self.parent, self.leaves, marks, counts)
        return counts


class Prior(NamedTuple):
    """How samples differ where they do."""

    strength: float  # gamma of the Beta of the first cut
    sparsity: float = SPARSITY

    def at(self, fineness: Array) -> Array:
        """Return the strength of the Beta of cuts, as everywhere in trees."""
        strength: Array = self.strength * (2.0 * fineness + 1.0) ** 2
        return strength

    def evidence(self, partition: Partition, counts: Array, marked: Array) -> Array:
        """Return what each node adds to the log Bayes factor, (C, P), given all rows and those of A below it."""
        log_factorials = gammaln(np.arange(float(counts[0].max()) + 1) + 1)
        out = np.empty((len(partition.left), marked.shape[1]))
        two_samples.node_evidence(
            partition.left, partition.depth, partition.fineness, counts, marked, self.strength, self.sparsity,
            log_factorials, out,
        )  # fmt: skip
        return out


def grow_partitions(
    grid: Grid, sample: Array, n_trees: int, max_depth: int, seed: np.random.SeedSequence, n_jobs: int | None
) -> list[Partition]:
    """Grow trees on the rows whose numbers, ascending, are in `sample`, and find the leaves of all rows."""
    rows, n_categories, order = grid.positions(sample), grid.n_categories, grid.order
    measured, states = weighting_of_rows(rows, n_categories), seed_states(seed, n_trees)
    weights = draw_weights(measured.spread, n_trees, np.random.default_rng(seed), n_categories)
    box = empty_box(rows.shape[1], n_categories)
    plan = Plan(1, np.inf, max_depth, measured, box, seed, 1, n_categories)
    every = rows if len(sample) == len(grid.levels) else grid.positions(slice(None))

    def grow(t: int) -> Partition:
        own = plan._replace(weighting=measured._replace(fixed=weights[t]))
        return _partition(grow_trees(rows, own, states[t : t + 1]), 0, every, order)

    return run(grow, range(n_trees), n_jobs)


def draw_weights(spread: Array, n_trees: int, rng: np.random.Generator, n_categories: int = 0) -> Array:
    """Draw the feature weights of all trees, (T, D): every other tree looks at one feature alone, or at two, in turn.

    Those are dealt as cards from a shuffled deck, one deck for either number. What only a few of many features show
    would otherwise be cut up by the others. Of the other trees, every other one looks at a single feature of
    categories, if there are any, which are the last: it takes many cuts to part one of many categories from the rest.
    """
    weights = rng.exponential(size=(n_trees, len(spread))) / spread
    decks: dict[int, list[int]] = {1: [], 2: []}
    for t in range(0, n_trees, 2):
        size = 1 + t // 2 % 2
        if size < len(spread):
            weights[t, np.delete(np.arange(len(spread)), deal_features(decks[size], size, len(spread), rng))] = 0.0
    if n_categories:
        turns = len(spread) - 1 - rng.permutation(n_categories)
        for turn, t in enumerate(range(1, n_trees, 4)):
            weights[t, np.arange(len(spread)) != turns[turn % n_categories]] = 0.0
    return weights


def deal_features(
    deck: list[int], size: int, n_features: int, rng: np.random.Generator, dealt: Collection[set[int]] = ()
) -> list[int]:
    """Return the next features of a deck, one or two; it is shuffled anew when it runs out.

    Two are a pair that has not been `dealt` yet, if the deck has one.
    """
    if len(deck) < size:
        deck += [k for k in rng.permutation(n_features).tolist() if k not in deck]
    first = deck.pop(0)
    if size == 1:
        return [first]
    place = next((i for i, second in enumerate(deck) if {first, second} not in dealt), 0)
    return [first, deck.pop(place)]


def _partition(forest: Forest, t: int, rows: Array, order: Array) -> Partition:
    """Return a tree without boxes, with the leaves of `rows`; `order` says which column each of its features is."""
    leaves, size = np.empty(len(rows), np.int32), int(forest.size[t])
    two_samples.find_leaves(forest, t, rows, leaves)
    left, parent = forest.left[t, :size].copy(), forest.parent[t, :size].copy()
    feature, cut = forest.feature[t, :size].copy(), forest.cut[t, :size].copy()
    is_cut, (depth, finer) = left >= 0, np.zeros((2, size), np.int64)
    asks = is_cut & (feature >= len(order) - int(forest.n_categories[0]))
    feature[is_cut] = order[feature[is_cut]]
    for j in range(1, size):
        above = parent[j]
        depth[j], finer[j] = depth[above] + 1, finer[above] + (not asks[above])
    short = leaves.astype(np.uint16) if size < 2**16 else leaves
    return Partition(left, parent, feature, cut, depth, np.where(asks, 0, finer), short)


# ---- labels dealt anew -----------------------------------------------------------------------------------------------


def deal(labels: Array, n_times: int, block_size: int | None, rng: np.random.Generator) -> Iterator[Array]:
    """Yield labels dealt anew, uint8 (n, P), in parts that have `n_times` columns in all.

    With a `block_size`, runs of so many consecutive rows of a sample keep together; what is left at the end of a sample
    keeps its label.
    """
    order, n_dealt = _blocks(labels, block_size or 1)
    for part in spans(n_times, max(_MARKS_AT_ONCE // len(labels), _FEWEST_AT_ONCE)):
        marks = np.repeat(labels[:, None], part.stop - part.start, axis=1)
        for p in range(marks.shape[1]):
            marks[order.ravel(), p] = np.repeat(rng.permutation(n_dealt), order.shape[1])
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
    by_feature: Array  # (D,), which add up to it
    p_value: float


def weigh(
    partitions: Sequence[Partition],
    labels: Array,
    n_features: int,
    prior: Prior,
    dealt: Iterator[Array],
    n_jobs: int | None,
) -> Evidence:
    """Weigh the evidence that rows labelled 1 (A) and 0 (B) have two distributions rather than one."""
    counts = [partition.counts_of(np.ones((len(labels), 1), np.uint8)) for partition in partitions]

    def nodes_of(t: int, marks: Array) -> Array:
        return prior.evidence(partitions[t], counts[t], partitions[t].counts_of(marks))

    by_tree = np.zeros((len(partitions), n_features))
    for t, partition in enumerate(partitions):
        is_cut = partition.left >= 0
        np.add.at(by_tree[t], partition.feature[is_cut], nodes_of(t, labels[:, None])[is_cut, 0])
    found, n_more, n_dealt = _statistic(by_tree.sum(axis=1)[:, None])[0], 0, 0
    for marks in dealt:
        factors = run(partial(_total, nodes_of, marks), range(len(partitions)), n_jobs)
        n_more += int((_statistic(np.stack(factors)) >= found - 1e-9 * max(abs(found), 1.0)).sum())
        n_dealt += marks.shape[1]
    by_feature = share_out(by_tree)
    return Evidence(float(by_feature.sum()), by_feature, (1 + n_more) / (1 + n_dealt))


def _total(nodes_of: Callable[[int, Array], Array], marks: Array, t: int) -> Array:
    """Return the log Bayes factor of a tree for each column of labels."""
    return ordered_sum(nodes_of(t, marks))


def _statistic(factors: Array) -> Array:
    """Return what is compared with labels dealt anew: a mean over trees, (P,), that the best tree alone cannot decide.

    The mean of the Bayes factors is all but that of the best tree, and finds what one tree sees well; the mean of their
    logarithms finds what all trees see a little of. A mean of their roots finds both.
    """
    mean: Array = logsumexp(_SOFTNESS * factors, axis=0) / _SOFTNESS
    return mean


def share_out(by_tree: Array) -> Array:
    """Share the log of the mean Bayes factor out among features, (D,), from those of the trees, (T, D).

    By the rule of Aumann and Shapley: the log of the mean of all Bayes factors to the power s grows from 0 at s = 0 to
    the whole at s = 1, at every moment by the mean of the trees' logarithms, each weighted by its power.
    """
    whole = by_tree.sum(axis=1)
    log_mean = float(logsumexp(whole) - np.log(len(whole)))
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    ends = np.append(0.0, 2.0 ** np.arange(1 - _PANELS, 1))  # trees part early where factors are large
    parts = np.zeros(by_tree.shape[1])
    for low, high in pairwise(ends.tolist()):
        for point, weight in zip(points, weights, strict=True):
            powers = np.exp((low + (high - low) * (point + 1) / 2) * (whole - whole.max()))
            parts += (high - low) / 2 * weight * (powers / powers.sum()) @ by_tree
    size = np.abs(parts).sum()  # the integral is exact but for its last digits, which go to all alike
    remainder = log_mean - parts.sum()
    parts += remainder * (np.abs(parts) / size if size > 0 else 1 / len(parts))
    return parts
