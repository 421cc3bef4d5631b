"""Recent windows of a stream beside its reference: shared trees, points held, evidence and alarm thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import gammaln

from polyaforest.drift.evidence import draw_features
from polyaforest.forest.draws import priorities
from polyaforest.forest.grow import grow_trees
from polyaforest.forest.point_store import Key
from polyaforest.forest.spec import Plan, weighting_of_rows
from polyaforest.kernels import change
from polyaforest.kernels.arrays import QUESTIONS, Array, stack
from polyaforest.kernels.boxes import bounding_box, empty_box, is_code
from polyaforest.kernels.change import Cuts, Tally
from polyaforest.kernels.rng import seed_states
from polyaforest.storage.modelfile import Arrays
from polyaforest.storage.state import pack_keys, unpack_keys
from polyaforest.tables.categories import ABSENT
from polyaforest.tables.validation import LARGEST

MAX_TREE_POINTS = 64  # points of the reference that a tree is grown on
_REFERENCE_PER_TREE_POINT = 8  # fewer if the reference has fewer than so many points for each
_MARGIN, _RANK_MARGIN = 0.5, 0.05  # of background points beyond the range of values, and of ranks
_NEW_CATEGORIES = 0.5  # share of background points with a category of their own
_MAX_DEPTH = 12
_VALUE_CHANCE = 0.03  # probability that a change affects a cut, in trees on values
_RANK_CHANCE, _MIN_RANK_CHANCE = 0.5, 0.01  # in trees on ranks: to the power of the depth, but at least the second
_STIFFNESS = 10.0  # pseudo-points behind a share that has changed, in trees on ranks
_FEATURES_USED = (1, 2, 2**31, 2)  # number of features that trees use, in turn; the large number means all
_SLACK = 256  # points that can arrive before the arrays are moved
TRIALS = 160  # simulated streams without change
STEPS = 64  # points of each of them
_MIN_WINDOWS = 4  # windows in the reference that a dispersion can be measured on
_DEGREES_OF_FREEDOM = 20.0  # of a partition, about
_MIN_EXPECTED = 1.0  # points in a cell that dispersion is measured on
_CAUTION = 1.0 + (2.0 / TRIALS) ** 0.5  # the scale of a tail plus its standard error
_MIN_SCALE = 1e-3  # of a tail, in nats
_MIN_DEPENDENT_SCALE = 1.0  # the same for dependent points: the reference has few independent ones
_BLOCK = 16.0  # block length of the bootstrap, in dispersions


# ---- trees -----------------------------------------------------------------------------------------------------------


class SharedTrees:
    """Mondrian trees grown on a reference that also count recent points.

    Each is grown on a sample of the older half of the reference and on as many background points, so that empty space
    is cut too. The newer half is left out because it should fall where a tree has no points as often as later points
    do. Trees depend only on the points, their arrival numbers and the seed. A missing value counts as one below all
    others, a missing category as one more category.

    Trees are of two kinds, in turn. Trees on values have small cells in the tails, and expect a few shares to change to
    anything (an outlying corner); trees on ranks have cells of even mass, and expect many shares to change by a little
    (a shift). Some trees of either kind use only one or two features, in turn.

    Parameters
    ----------
    rows : ndarray of shape (n, D)
        The reference; NaN where values are missing.
    numbers : ndarray of int, shape (n,)
        Their arrival numbers, which determine the sample of each tree.
    seed : SeedSequence
    n_trees : int
    n_categories : int
        Number of features, the last ones, that hold codes of categories.
    """

    def __init__(
        self, rows: Array, numbers: Array, seed: np.random.SeedSequence, n_trees: int, n_categories: int = 0
    ) -> None:
        self.absent = _below_all(rows)
        self.absent[rows.shape[1] - n_categories :] = ABSENT
        older = self.fill(rows[: -(-len(rows) // 2)])
        own_seed = np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key)  # spawning would change `seed`
        tree_seed, sample_seed, background_seed = own_seed.spawn(3)
        drawn = priorities(sample_seed.generate_state(n_trees, np.uint64), numbers[: len(older)])
        n_sampled = min(MAX_TREE_POINTS, max(len(rows) // _REFERENCE_PER_TREE_POINT, 2))
        samples = np.argsort(drawn, axis=1, kind="stable")[:, :n_sampled]
        self.is_ranked, rng = np.arange(n_trees) % 2 == 1, np.random.default_rng(background_seed)
        self.cuts = _grow(older, samples, self.is_ranked, n_categories, tree_seed, rng)
        ranked = np.maximum(_RANK_CHANCE ** change.depths(self.cuts), _MIN_RANK_CHANCE)
        self._chance = np.where(self.is_ranked[:, None], ranked, _VALUE_CHANCE)
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
        """Return rows with missing values replaced by a value below all others."""
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
        """Return empty windows of up to `most` points beside a reference, by default that of the trees."""
        counts = self.counts if reference is None else reference
        shape, n = (len(dispersions), *self.cuts.left.shape), np.arange(counts.max() + most + 2)
        units = np.rint(change.UNIT * n / np.asarray(dispersions)[:, None]).astype(np.int32)
        largest = 2 * int(units.max()) + change.UNIT * (int(_STIFFNESS) + 2)
        log_gammas = gammaln(np.maximum(np.arange(largest), 1) / change.UNIT)
        windows = np.zeros(shape, np.int32), np.zeros(shape)
        return Tally(counts, self._prior(counts), self._chance, *windows, units, log_gammas)

    def with_reference(self, tally: Tally, leaves: Array) -> Tally:
        """Return windows beside another reference of the same size."""
        counts = self.count(leaves)
        return tally._replace(reference=counts, prior=self._prior(counts))

    def _prior(self, counts: Array) -> Array:
        prior = np.zeros(counts.shape, np.int32)
        change.set_prior(self.cuts, counts, self._stiffness, prior)
        return prior

    def evidence(self, before: Array, after: Array, dispersion: float) -> Array:
        """Return the log Bayes factor of each tree, two distributions of `before` and `after` against one.

        Rows are given by their leaves.
        """
        tally = self._tally_of(before, after, dispersion)
        change.set_sums(self.cuts, tally, 0)
        return np.asarray(tally.sums[0, np.arange(self.n_trees), self.cuts.root])

    def contrasts(self, after: Array, dispersion: float) -> Array:
        """Return the log ratio of the density of rows, given by their leaves, to the reference's, by node, (T, C)."""
        tally, out = self._tally_of(self.leaves, after, dispersion), np.zeros(self.cuts.left.shape)
        change.log_contrasts(self.cuts, tally, 0, out)
        return out

    def _tally_of(self, before: Array, after: Array, dispersion: float) -> Tally:
        tally = self.tally([dispersion], len(after), self.count(before))
        tally.recent[0] = self.count(after)
        return tally


def _grow(
    rows: Array,
    samples: Array,
    is_ranked: Array,
    n_categories: int,
    seed: np.random.SeedSequence,
    rng: np.random.Generator,
) -> Cuts:
    """Grow a tree on each sample of rows, given by their numbers, (T, n), and on as many background points."""
    n_trees, n_features = len(samples), rows.shape[1]
    axes = [_RankAxis(column) for column in rows.T[: n_features - n_categories]]
    ranks, box = rows.copy(), empty_box(n_features, n_categories)
    for k, axis in enumerate(axes):
        ranks[:, k] = axis.ranks(rows[:, k])
    used, states, trees = _features_used(n_trees, n_features, rng), seed_states(seed, n_trees), []
    for t in range(n_trees):
        known, margin = (ranks, _RANK_MARGIN) if is_ranked[t] else (rows, _MARGIN)
        measured = weighting_of_rows(known, n_categories)
        weights = np.where(used[t], rng.exponential(size=n_features) / measured.spread, 0.0)
        plan = Plan(1, np.inf, _MAX_DEPTH, measured._replace(fixed=weights), box, seed, 1, n_categories)
        background = _background(known, samples.shape[1], margin, rng, n_categories)
        trees.append(grow_trees(np.concatenate([known[samples[t]], background]), plan, states[t : t + 1]))
    forest = stack(trees)
    for t in np.flatnonzero(is_ranked).tolist():
        for k, axis in enumerate(axes):
            is_own = forest.feature[t] == k
            forest.cut[t, is_own] = axis.values(forest.cut[t, is_own])
    return Cuts(*(getattr(forest, name) for name in Cuts._fields))


def _features_used(n_trees: int, n_features: int, rng: np.random.Generator) -> Array:
    """Draw the features that each tree uses, bool (T, D).

    Trees come in pairs of the two kinds, which use the same number of features.
    """
    used = np.ones((n_trees, n_features), np.bool_)
    decks: dict[tuple[int, int], list[int]] = {}
    drawn: list[list[set[int]]] = [[], []]
    for t in range(n_trees):
        size, kind = _FEATURES_USED[t // 2 % len(_FEATURES_USED)], t % 2
        if size < n_features:
            own = draw_features(decks.setdefault((size, kind), []), size, n_features, rng, drawn[kind])
            drawn[kind].append(set(own))
            used[t] = False
            used[t, own] = True
    return used


class _RankAxis:
    """Ranks of the values of a feature: from 0 to 1, and a little beyond for background points."""

    def __init__(self, column: Array) -> None:
        distinct, counts = np.unique(column, return_counts=True)
        margin = _MARGIN * (distinct[-1] - distinct[0])
        middle = (np.cumsum(counts) - counts / 2) / len(column)
        self._values = np.concatenate([[distinct[0] - margin], distinct, [distinct[-1] + margin]])
        self._ranks = np.concatenate([[middle[0] - _RANK_MARGIN], middle, [middle[-1] + _RANK_MARGIN]])

    def ranks(self, values: Array) -> Array:
        """Return the ranks of values."""
        ranks: Array = np.interp(values, self._values, self._ranks)
        return ranks

    def values(self, ranks: Array) -> Array:
        """Return the values of ranks."""
        values: Array = np.interp(ranks, self._ranks, self._values)
        return values


def _background(rows: Array, n: int, margin: float, rng: np.random.Generator, n_categories: int) -> Array:
    """Sample background points from the expanded bounding box of rows.

    Their categories are new, or drawn from the rows, each feature independently.
    """
    numbers = rows[:, : rows.shape[1] - n_categories]
    low, high = bounding_box(numbers)
    beyond = margin * (high - low)
    points = rng.uniform(low - beyond, high + beyond, size=(n, numbers.shape[1]))
    if not n_categories:
        return points
    shape = (n, n_categories)
    known = rows[rng.integers(len(rows), size=shape), np.arange(numbers.shape[1], rows.shape[1])]
    new = rng.integers(2**QUESTIONS, size=shape).astype(np.float64)
    return np.hstack([points, np.where(rng.random(shape) < _NEW_CATEGORIES, new, known)])


def _below_all(rows: Array) -> Array:
    """Return a value below all others of each column, by as much as their range, (D,)."""
    is_there = ~np.isnan(rows)
    low = np.where(is_there, rows, np.inf).min(axis=0)
    high = np.where(is_there, rows, -np.inf).max(axis=0)
    low, high = (np.where(is_there.any(axis=0), edge, 0.0) for edge in (low, high))
    size = np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
    return low - size


# ---- points ----------------------------------------------------------------------------------------------------------


class MonitoredPoints:
    """The last points of a stream, at most `most`, in the order of arrival, with their leaves in the trees.

    Parameters
    ----------
    most : int
    n_features, n_trees : int
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("values", "numbers", "times", "keys")  # stored

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
        """Their arrival numbers, int64 (n,), ascending."""
        return self._numbers[self._held]

    @property
    def times(self) -> Array:
        """Their times, (n,); NaN where not given."""
        return self._times[self._held]

    def place(self, number: int) -> int:
        """Return the position of the first point with at least this arrival number."""
        return int(np.searchsorted(self.numbers, number))

    def part(self, start: int) -> tuple[Array, Array, Array, list[Key]]:
        """Return values, numbers, times and keys from a position on."""
        return self.values[start:], self.numbers[start:], self.times[start:], self.keys[start:]

    def append(
        self, values: Array, numbers: Array, times: Array, keys: Sequence[Key], leaves: Array | None = None
    ) -> None:
        """Append at most `most` points; drop older ones once the arrays are full."""
        n = len(values)
        if self._stop + n > len(self._values):
            kept = slice(max(self._start, self._stop - self.most), self._stop)
            n_kept = kept.stop - kept.start
            self.keys = self.keys[len(self) - n_kept :]
            for part in (self._values, self._leaves, self._numbers, self._times):
                part[:n_kept] = part[kept].copy()
            self._start, self._stop = 0, n_kept
        into = slice(self._stop, self._stop + n)
        self._values[into], self._numbers[into], self._times[into] = values, numbers, times
        if leaves is not None:
            self._leaves[into] = leaves
        self.keys.extend(keys)
        self._stop += n

    def cut(self, n: int) -> None:
        """Keep only the first `n` points."""
        self._stop = self._start + n
        del self.keys[n:]

    def drop(self, place: int) -> None:
        """Remove the point at a position."""
        at, end = self._start + place, self._stop
        for part in (self._values, self._leaves, self._numbers, self._times):
            part[at : end - 1] = part[at + 1 : end].copy()
        del self.keys[place]
        self._stop -= 1

    def state(self) -> Arrays:
        """Return the points as arrays, without leaves, which follow from the trees."""
        values, numbers, times, keys = self.part(max(len(self) - self.most, 0))
        return {"values": values.copy(), "numbers": numbers.copy(), "times": times.copy(), "keys": pack_keys(keys)}

    def restore(self, arrays: Arrays, group: str, n_seen: int, n_categories: int) -> None:
        """Validate and append the points of a state; their leaves are not set."""
        values, numbers, times, keys = (arrays[f"{group}/{name}"] for name in self.FIELDS)
        n, n_features = len(values), self._values.shape[1]
        if values.dtype != np.float64 or values.shape != (n, n_features) or n > self.most:
            raise ValueError(f"{group}/values must be at most {self.most} rows of {n_features} numbers")
        if (np.abs(values) > LARGEST).any():  # False for NaN, a missing value
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
        self.append(values, numbers, times, names)


# ---- windows ---------------------------------------------------------------------------------------------------------


class Windows:
    """Recent windows of several lengths beside a reference; each holds the last points.

    Parameters
    ----------
    trees : SharedTrees
    lengths : sequence of int
        Numbers of points of the windows, ascending.
    dispersions : sequence of float
        Factors by which the variance of counts exceeds that of independent points, for each window.
    longest_run : int
        Maximum number of points of a run.
    """

    def __init__(
        self, trees: SharedTrees, lengths: Sequence[int], dispersions: Sequence[float], longest_run: int = 0
    ) -> None:
        self.trees, self.lengths, self._longest_run = trees, np.asarray(lengths, np.int64), longest_run
        # the last window is a workspace for the evidence of runs of any length
        self._tally = trees.tally([*dispersions, max(dispersions)], max(int(self.lengths[-1]), longest_run) + 1)

    def compare_with(self, leaves: Array) -> None:
        """Replace the reference by another one of the same size."""
        self._tally = self.trees.with_reference(self._tally, leaves)

    def slide(self, leaves: Array, first: int, start: int, thresholds: Array | None = None) -> tuple[int, Array]:
        """Slide the windows over points from `start` on; return how many, and the evidence after each, (n, K).

        `leaves` are those of all points held; points before `first` are in no window. With thresholds, stop after the
        first point at which the evidence of a full window exceeds its threshold.
        """
        evidence = np.empty((len(leaves) - start, len(self.lengths)))
        change.slide(self.trees.cuts, self._tally, leaves, first, start, self.lengths, evidence)
        if thresholds is None:
            return len(evidence), evidence
        room = np.arange(start, len(leaves))[:, None] - self.lengths  # number of points before each window
        is_alarm: Array = np.any((evidence > thresholds) & (room >= first - 1), axis=1)
        if not is_alarm[:-1].any():
            return len(evidence), evidence
        n = int(np.argmax(is_alarm)) + 1
        self.fill(leaves[first : start + n])  # return to the alarm: evidence depends only on the counts
        return n, evidence[:n]

    def fill(self, leaves: Array) -> None:
        """Fill the windows with the last of these points."""
        for k, length in enumerate(self.lengths.tolist()):
            self._tally.recent[k] = self.trees.count(leaves[-length:] if length else leaves[:0])
            change.set_sums(self.trees.cuts, self._tally, k)

    def replace(self, k: int, removed: Array, added: Array | None) -> None:
        """Remove a point from window k, and add another one, if given."""
        change.move_point(self.trees.cuts, self._tally, k, removed, -1)
        if added is not None:
            change.move_point(self.trees.cuts, self._tally, k, added, 1)

    @property
    def counts(self) -> Array:
        """The points of each window below every node, int32 (K, T, C)."""
        return self._tally.recent[:-1]

    @property
    def evidence(self) -> Array:
        """The evidence of every window, (K,)."""
        evidence = np.empty(len(self.lengths))
        change.read_evidence(self.trees.cuts, self._tally, evidence)
        return evidence

    def of_runs(self, leaves: Array) -> Array:
        """Return the evidence that the last r of these points come from another distribution, for r = 1 .. n."""
        if len(leaves) > self._longest_run:
            raise ValueError(f"runs of {len(leaves)} points are longer than {self._longest_run}")
        evidence = np.empty(len(leaves))
        change.run_evidence(self.trees.cuts, self._tally, len(self.lengths), leaves, evidence)
        return evidence


# ---- alarm thresholds ------------------------------------------------------------------------------------------------


class Thresholds(NamedTuple):
    """The evidence of windows while nothing changes, for each length, (K,)."""

    dispersions: Array  # factors by which the variance of counts exceeds that of independent points
    baseline: Array  # the mean of the evidence
    levels: Array  # an alarm is raised when the evidence exceeds them
    slopes: Array  # the increase of `levels` that makes false alarms e times rarer


def find_thresholds(
    trees: SharedTrees, lengths: Sequence[int], every: float, seed: np.random.SeedSequence
) -> Thresholds:
    """Return thresholds of which any is exceeded once in `every` points without a change.

    A block bootstrap of the reference simulates streams without change. Their maxima of evidence have an exponential
    tail, as every log Bayes factor has. Each window is standardised by the median of its maxima and the scale of their
    tail. The threshold is the same for all windows in these units, from the tail of the largest of them; its scale is
    increased by a standard error.
    """
    dispersions = measure_dispersions(trees, lengths)
    block = _block_length(dispersions[-1], len(trees.leaves))
    baseline, maxima = _simulate(trees, lengths, dispersions, block, np.random.default_rng(seed))
    middle, scale = _tail_of(maxima)
    if block > 1:
        scale = np.maximum(scale, _MIN_DEPENDENT_SCALE)
    level, slope = exceedance_level(((maxima - middle) / scale).max(axis=1), every)
    return Thresholds(dispersions, baseline, middle + scale * level, scale * slope)


def exceedance_level(highest: Array, every: float) -> tuple[float, float]:
    """Return the level exceeded once in `every` points, and the increase that makes it e times rarer.

    `highest` are maxima over `STEPS` points without a change, (trials,).
    """
    median, slope = _tail_of(highest)
    n_trials, slope = every / STEPS, _CAUTION * slope
    if n_trials > 2:
        return float(median + slope * np.log(n_trials / 2)), float(slope)
    return float(np.quantile(highest, max(1.0 - 1.0 / max(n_trials, 1.0), 0.0))), float(slope)


def _tail_of(maxima: Array) -> tuple[Array, Array]:
    """Return the median along the first axis, and the scale of an exponential tail above it."""
    middle = np.median(maxima, axis=0)
    scale = 2.0 * np.maximum(maxima - middle, 0.0).mean(axis=0)  # half of the maxima are above
    return middle, np.maximum(scale, _MIN_SCALE)


def measure_dispersions(trees: SharedTrees, lengths: Sequence[int]) -> Array:
    """Return the dispersion of counts in windows of each length, (K,), at least 1 and not decreasing.

    It is the design effect of Rao and Scott: the variance of counts in windows of the reference, in order, over that of
    independent points. Evidence uses counts divided by it, so windows shorter than a season count for little. Windows
    too long to be measured have the dispersion of the longest that are not.
    """
    n, found = len(trees.leaves), []
    share = trees.counts / n
    for length in lengths:
        if length * _MIN_WINDOWS > n:
            break
        spread = length * share * (1.0 - share) * (1.0 - length / n)
        is_used = (length * np.minimum(share, 1.0 - share) >= _MIN_EXPECTED) & (spread > 0)
        starts = range(0, n - length + 1, max(length // 4, 1))
        excess = np.zeros(share.shape)
        for start in starts:
            excess += (trees.count(trees.leaves[start : start + length]) - length * share) ** 2
        measured = float(excess[is_used].sum() / spread[is_used].sum()) / len(starts) if is_used.any() else 1.0
        chance = 3.0 * np.sqrt(2.0 * length / (_DEGREES_OF_FREEDOM * n))
        found.append(measured if measured > 1.0 + chance else 1.0)
    known = np.maximum.accumulate(found or [1.0])
    return np.array([known[min(k, len(known) - 1)] for k in range(len(lengths))])


def _block_length(dispersion: float, n: int) -> int:
    """Return the block length of a bootstrap of `n` points: 1 if they are independent."""
    return 1 if dispersion == 1 else int(min(np.ceil(_BLOCK * dispersion), n // _MIN_WINDOWS))


def _simulate(
    trees: SharedTrees, lengths: Sequence[int], dispersions: Array, block: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the mean evidence of windows in streams without change, (K,), and its maxima, (trials, K)."""
    n, longest = len(trees.leaves), lengths[-1]
    maxima, means = [], []
    windows = Windows(trees, lengths, dispersions.tolist())
    for _ in range(TRIALS):
        stream = trees.leaves[_bootstrap(rng, n, longest + STEPS, block)]
        windows.compare_with(trees.leaves[_bootstrap(rng, n, n, block)])
        windows.fill(stream[:longest])
        evidence = windows.slide(stream, 0, longest)[1]
        maxima.append(evidence.max(axis=0))
        means.append(evidence.mean(axis=0))
    return np.mean(means, axis=0), np.array(maxima)


def _bootstrap(rng: np.random.Generator, n: int, n_drawn: int, block: int) -> Array:
    """Return the numbers of `n_drawn` of `n` points, drawn in blocks; the first point follows the last."""
    starts = rng.integers(n, size=-(-n_drawn // block))
    return ((starts[:, None] + np.arange(block)) % n).ravel()[:n_drawn]
