"""The trees that a reference and the recent points of a stream share, and what is counted in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from polyaforest.core.arrays import QUESTIONS, Array, stack
from polyaforest.core.boxes import bounding_box, empty_box
from polyaforest.core.categories import ABSENT
from polyaforest.core.rng import seed_states
from polyaforest.drift.evidence import draw_features
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
_BEYOND = 0.05  # how far beyond them strangers lie where values count by their ranks, which span 1
_RARE = 0.03  # the chance that a change reaches a cut, in trees on values
_OFTEN, _LEAST_OFTEN = 0.5, 0.01  # to the power of its depth, but no less, in trees on ranks
_STIFFNESS = 10.0  # pseudo-points behind a share that has changed, in trees on ranks
_SIZES = (1, 2, 2**31, 2)  # features that trees look at, in turn: one, two, all


class Shared:
    """Mondrian trees grown on some points of a reference, as partitions of the whole space.

    Each is grown on some of the older half of the points, and on as many strangers from all of space around, so that
    space is cut, too, where no points are yet. That half alone, so that points of the other lie as often where the
    trees have not seen any as points to come do. Trees follow from the points, the numbers of their arrivals and the
    seed. A missing value counts as one below all others, a missing category as one more category.

    Trees are of two kinds, in turn. Those on values have small cells far out, and expect a change of few shares to
    anything (an outlying corner); those on ranks have cells of even mass, and expect a change of many shares by a
    little (a shift). Some of either kind look at one or two features alone, which take turns.

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
        drawn = priorities(of_members.generate_state(n_trees, np.uint64), numbers[: len(older)])
        n_members = min(MOST_MEMBERS, max(len(rows) // _MEMBERS, 2))
        members = np.argsort(drawn, axis=1, kind="stable")[:, :n_members]
        self.is_ranked = np.arange(n_trees) % 2 == 1
        self.cuts = _grow(older, members, self.is_ranked, n_categories, of_trees, np.random.default_rng(of_strangers))
        depth = change.depths(self.cuts)
        ranked = np.maximum(_OFTEN**depth, _LEAST_OFTEN)
        self._chance = np.where(self.is_ranked[:, None], ranked, _RARE)
        self._stiffness = np.where(self.is_ranked, _STIFFNESS, 0.0)
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
        units = np.rint(change.UNIT * n / np.asarray(dispersions)[:, None]).astype(np.int32)
        largest = 2 * int(units.max()) + change.UNIT * (int(_STIFFNESS) + 2)
        log_gammas = gammaln(np.maximum(np.arange(largest), 1) / change.UNIT)
        windows = np.zeros(shape, np.int32), np.zeros(shape)
        return Tally(counts, self._prior(counts), self._chance, *windows, units, log_gammas)

    def beside(self, tally: Tally, leaves: Array) -> Tally:
        """Return windows beside another reference, of as many points."""
        counts = self.count(leaves)
        return tally._replace(reference=counts, prior=self._prior(counts))

    def _prior(self, counts: Array) -> Array:
        prior = np.zeros(counts.shape, np.int32)
        change.set_prior(self.cuts, counts, self._stiffness, prior)
        return prior

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
        self._tally = self.shared.beside(self._tally, leaves)

    def slide(self, leaves: Array, first: int, start: int, bars: Array | None = None) -> tuple[int, Array]:
        """Take in points from `start` on; return how many were, and the evidence after each, (n, K).

        `leaves` are those of all points held, of which those before `first` are in no window. With bars, stop after the
        first point after which the evidence of a full window exceeds its own.
        """
        evidence = np.empty((len(leaves) - start, len(self.lengths)))
        change.slide(self.shared.cuts, self._tally, leaves, first, start, self.lengths, evidence)
        if bars is None:
            return len(evidence), evidence
        room = np.arange(start, len(leaves))[:, None] - self.lengths  # points before the first of each window
        is_alarm: Array = np.any((evidence > bars) & (room >= first - 1), axis=1)
        if not is_alarm[:-1].any():
            return len(evidence), evidence
        n = int(np.argmax(is_alarm)) + 1
        self.fill(leaves[first : start + n])  # back to where the alarm was: evidence depends on the counts alone
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


def _grow(
    rows: Array,
    members: Array,
    is_ranked: Array,
    n_categories: int,
    seed: np.random.SeedSequence,
    rng: np.random.Generator,
) -> Cuts:
    """Grow a tree on each set of members, rows by their numbers, (T, n), and on as many strangers."""
    n_trees, n_features = len(members), rows.shape[1]
    axes = [_Axis(column) for column in rows.T[: n_features - n_categories]]
    ranks, box = rows.copy(), empty_box(n_features, n_categories)
    for k, axis in enumerate(axes):
        ranks[:, k] = axis.ranks(rows[:, k])
    views, states, trees = _views(n_trees, n_features, rng), seed_states(seed, n_trees), []
    for t in range(n_trees):
        known, reach = (ranks, _BEYOND) if is_ranked[t] else (rows, _REACH)
        measured = weighting_of_rows(known, n_categories)
        weights = np.where(views[t], rng.exponential(size=n_features) / measured.spread, 0.0)
        plan = Plan(1, np.inf, _MAX_DEPTH, measured._replace(fixed=weights), box, seed, 1, n_categories)
        strangers = _strangers(known, members.shape[1], reach, rng, n_categories)
        trees.append(grow_trees(np.concatenate([known[members[t]], strangers]), plan, states[t : t + 1]))
    forest = stack(trees)
    for t in np.flatnonzero(is_ranked).tolist():
        for k, axis in enumerate(axes):
            is_own = forest.feature[t] == k
            forest.cut[t, is_own] = axis.values(forest.cut[t, is_own])
    return Cuts(*(getattr(forest, name) for name in Cuts._fields))


def _views(n_trees: int, n_features: int, rng: np.random.Generator) -> Array:
    """Return which features each tree looks at, bool (T, D): all, or some alone, as cards from shuffled decks.

    Trees come in pairs of the two kinds, which look at the same number of features.
    """
    views = np.ones((n_trees, n_features), np.bool_)
    decks: dict[tuple[int, int], list[int]] = {}
    dealt: list[list[set[int]]] = [[], []]
    for t in range(n_trees):
        size, kind = _SIZES[t // 2 % len(_SIZES)], t % 2
        if size < n_features:
            own = draw_features(decks.setdefault((size, kind), []), size, n_features, rng, dealt[kind])
            dealt[kind].append(set(own))
            views[t] = False
            views[t, own] = True
    return views


class _Axis:
    """A feature by the ranks of its values: from 0 to 1, and a little beyond where strangers lie."""

    def __init__(self, column: Array) -> None:
        distinct, counts = np.unique(column, return_counts=True)
        reach = _REACH * (distinct[-1] - distinct[0])
        middle = (np.cumsum(counts) - counts / 2) / len(column)
        self._values = np.concatenate([[distinct[0] - reach], distinct, [distinct[-1] + reach]])
        self._ranks = np.concatenate([[middle[0] - _BEYOND], middle, [middle[-1] + _BEYOND]])

    def ranks(self, values: Array) -> Array:
        """Return the ranks of values."""
        ranks: Array = np.interp(values, self._values, self._ranks)
        return ranks

    def values(self, ranks: Array) -> Array:
        """Return the values of ranks."""
        values: Array = np.interp(ranks, self._ranks, self._values)
        return values


def _strangers(rows: Array, n: int, reach: float, rng: np.random.Generator, n_categories: int) -> Array:
    """Return `n` points from the box of rows, stretched on all sides: where new points may come that no old one is.

    Of categories they have such as rows have, each drawn by itself, and new ones.
    """
    numbers = rows[:, : rows.shape[1] - n_categories]
    low, high = bounding_box(numbers)
    beyond = reach * (high - low)
    strangers = rng.uniform(low - beyond, high + beyond, size=(n, numbers.shape[1]))
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
