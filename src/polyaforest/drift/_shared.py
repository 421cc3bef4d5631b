"""The trees that a reference and the recent points of a stream share, and what is counted in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from polyaforest.core.arrays import QUESTIONS, Array
from polyaforest.core.boxes import bounding_box, empty_box
from polyaforest.core.categories import ABSENT
from polyaforest.forest.draws import priorities
from polyaforest.forest.grow import grow_trees
from polyaforest.forest.spec import Plan, weighting_of_rows
from polyaforest.kernels import change
from polyaforest.kernels.change import Cuts, Tally

MOST_MEMBERS = 64  # points of the reference that each tree is grown on: as many leaves
_MEMBERS = 8  # of so many points of the reference, at most one is among those of a tree
_REACH = 0.5  # of the range of a feature: how far beyond it strangers lie
_NEW = 0.5  # the share of strangers of a category that no point has
_MAX_DEPTH = 12
_SPARSITY = 0.01  # the share of cuts expected to send another share of points to the left after a change


class Shared:
    """Mondrian trees grown on some points of a reference, as partitions of the whole space.

    Each is grown on some of the older half of the points, and on as many strangers from all of space around, so that
    space is cut, too, where no points are yet. That half alone, so that points of the other lie as often where the
    trees have not seen any as points to come do. Trees follow from the points, the numbers of their arrivals and the
    seed. A missing value counts as one below all others, a missing category as one more category.

    Parameters
    ----------
    rows : ndarray of shape (n, D)
        The reference; NaN where values are missing.
    numbers : ndarray of int, shape (n,)
        Their arrivals: each tree is grown on the points of lowest priority, which depends on the number alone.
    seed : SeedSequence
    n_trees : int
    n_categories : int
        How many of the features, the last ones, hold codes of categories.
    """

    def __init__(
        self, rows: Array, numbers: Array, seed: np.random.SeedSequence, n_trees: int, n_categories: int = 0
    ) -> None:
        self.absent = _below_all(rows)
        self.absent[rows.shape[1] - n_categories :] = ABSENT
        older = self.fill(rows[: -(-len(rows) // 2)])
        of_trees, of_members, of_strangers = np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(3)
        weighting, box = weighting_of_rows(older, n_categories), empty_box(rows.shape[1], n_categories)
        plan = Plan(n_trees, np.inf, _MAX_DEPTH, weighting, box, of_trees, n_jobs=1, n_categories=n_categories)
        drawn = priorities(of_members.generate_state(n_trees, np.uint64), numbers[: len(older)])
        n_members = min(MOST_MEMBERS, max(len(rows) // _MEMBERS, 2))
        members = np.argsort(drawn, axis=1, kind="stable")[:, :n_members]
        strangers = _strangers(older, n_trees * n_members, of_strangers, n_categories)
        numbered = len(older) + np.arange(len(strangers)).reshape(n_trees, -1)
        grown_on = np.concatenate([members, numbered], axis=1)
        forest = grow_trees(np.concatenate([older, strangers]), plan, members=grown_on)
        self.cuts = Cuts(*(getattr(forest, name) for name in Cuts._fields))
        self.leaves = self.find(rows)

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.cuts.root)

    @cached_property
    def counts(self) -> Array:
        """The points of the reference below every node, int32 (T, C)."""
        return self.count(self.leaves)

    def fill(self, rows: Array) -> Array:
        """Return rows with a value below all others in place of each that is missing."""
        return np.where(np.isnan(rows), self.absent, rows)

    def find(self, rows: Array) -> Array:
        """Return the leaf of every row in every tree, int32 (n, T)."""
        leaves = np.empty((len(rows), self.n_trees), np.int32)
        change.find_leaves(self.cuts, self.fill(rows), leaves)
        return leaves

    def count(self, leaves: Array) -> Array:
        """Return how many rows, by their leaves, are below every node, int32 (T, C)."""
        counts = np.zeros(self.cuts.left.shape, np.int32)
        change.count_leaves(self.cuts, leaves, counts)
        return counts

    def tally(self, dispersions: Sequence[float], most: int, reference: Array | None = None) -> Tally:
        """Return empty windows of up to `most` points beside a reference, by default the one the trees know."""
        counts = self.counts if reference is None else reference
        shape, n = (len(dispersions), *self.cuts.left.shape), np.arange(counts.max() + most + 2)
        scaled = n / np.asarray(dispersions)[:, None]
        tables = gammaln(0.5 + scaled), gammaln(1.0 + scaled)
        return Tally(counts, np.zeros(shape, np.int32), np.zeros(shape), *tables, _SPARSITY)

    def evidence(self, before: Array, after: Array, dispersion: float) -> Array:
        """Return the evidence of each tree that rows before and after, given by their leaves, differ in distribution.

        The mean over trees of the Bayes factors themselves is that of a model that does not know which tree to trust.
        """
        tally = self._beside_each_other(before, after, dispersion)
        change.set_sums(self.cuts, tally, 0)
        return np.asarray(tally.sums[0, np.arange(self.n_trees), self.cuts.root])

    def contrasts(self, after: Array, dispersion: float) -> Array:
        """Return the log ratio of the density of rows, given by their leaves, to the reference's, in nodes, (T, C)."""
        tally, out = self._beside_each_other(self.leaves, after, dispersion), np.zeros(self.cuts.left.shape)
        change.log_contrasts(self.cuts, tally, 0, out)
        return out

    def _beside_each_other(self, before: Array, after: Array, dispersion: float) -> Tally:
        tally = self.tally([dispersion], len(after), self.count(before))
        tally.recent[0] = self.count(after)
        return tally


class Windows:
    """Recent windows of several lengths beside a reference: each holds the last points, by their leaves.

    Parameters
    ----------
    shared : Shared
    lengths : sequence of int
        The numbers of points that windows hold, ascending.
    dispersions : sequence of float
        By which factor counts in windows of each length vary more than those of independent points.
    longest_run : int
        The most points that the evidence of runs is asked for.
    """

    def __init__(
        self, shared: Shared, lengths: Sequence[int], dispersions: Sequence[float], longest_run: int = 0
    ) -> None:
        self.shared, self.lengths, self._longest_run = shared, np.asarray(lengths, np.int64), longest_run
        # the last window is where the evidence of runs of any length is worked out
        self._tally = shared.tally([*dispersions, max(dispersions)], max(int(self.lengths[-1]), longest_run) + 1)

    def compare_with(self, leaves: Array) -> None:
        """Let another reference, of as many points, take the place of the one that the trees know."""
        self._tally = self._tally._replace(reference=self.shared.count(leaves))

    def slide(self, leaves: Array, first: int, start: int, bars: Array) -> tuple[int, Array]:
        """Take in points from `start` on; return how many were, and the evidence after each, (n, K).

        `leaves` are those of all points held, of which those before `first` are in no window. Stop after the first
        point after which the evidence of a full window exceeds its bar.
        """
        evidence = np.empty((len(leaves) - start, len(self.lengths)))
        n = change.slide(self.shared.cuts, self._tally, leaves, first, start, len(leaves), self.lengths, bars, evidence)
        return n, evidence[:n]

    def fill(self, leaves: Array) -> None:
        """Let the windows hold the last of these points, and no others."""
        for k, length in enumerate(self.lengths.tolist()):
            self._tally.recent[k] = self.shared.count(leaves[-length:] if length else leaves[:0])
            change.set_sums(self.shared.cuts, self._tally, k)

    def replace(self, k: int, gone: Array, came: Array | None) -> None:
        """Take a point out of window k, and let another take its place, if there is one."""
        change.move_point(self.shared.cuts, self._tally, k, gone, -1)
        if came is not None:
            change.move_point(self.shared.cuts, self._tally, k, came, 1)

    @property
    def counts(self) -> Array:
        """The points of each window below every node, int32 (K, T, C)."""
        return self._tally.recent[:-1]

    @property
    def evidence(self) -> Array:
        """The log evidence of every window, (K,)."""
        evidence = np.empty(len(self.lengths))
        change.read_evidence(self.shared.cuts, self._tally, evidence)
        return evidence

    def of_runs(self, leaves: Array) -> Array:
        """Return the evidence that the last r of these points come from another distribution, for r = 1 .. n."""
        if len(leaves) > self._longest_run:
            raise ValueError(f"runs of {len(leaves)} points are longer than {self._longest_run}")
        evidence = np.empty(len(leaves))
        change.run_evidence(self.shared.cuts, self._tally, len(self.lengths), leaves, evidence)
        return evidence


def _strangers(rows: Array, n: int, seed: np.random.SeedSequence, n_categories: int = 0) -> Array:
    """Return `n` points from the box of rows, stretched on all sides: where new points may come that no old one is.

    Of categories they have such as rows have, each drawn by itself, and new ones.
    """
    rng, numbers = np.random.default_rng(seed), rows[:, : rows.shape[1] - n_categories]
    low, high = bounding_box(numbers)
    reach = _REACH * (high - low)
    strangers = rng.uniform(low - reach, high + reach, size=(n, numbers.shape[1]))
    if not n_categories:
        return strangers
    shape = (n, n_categories)
    known = rows[rng.integers(len(rows), size=shape), np.arange(numbers.shape[1], rows.shape[1])]
    new = rng.integers(2**QUESTIONS, size=shape).astype(np.float64)
    return np.hstack([strangers, np.where(rng.random(shape) < _NEW, new, known)])


def _below_all(rows: Array) -> Array:
    """Return, for every column, a value below all that are there by as much as they span, (D,)."""
    is_there = ~np.isnan(rows)
    low = np.where(is_there, rows, np.inf).min(axis=0)
    high = np.where(is_there, rows, -np.inf).max(axis=0)
    low, high = (np.where(is_there.any(axis=0), edge, 0.0) for edge in (low, high))
    size = np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
    return low - size
