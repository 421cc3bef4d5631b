"""PIDForest (Gopalan, Sharan and Wieder, 2019): trees that cut where the density of the data changes most.

A tree takes a small sample. In each node, every distinct value of a feature owns the gap between the midpoints to its
neighbours; its *sparsity* is that gap per point. A histogram of few buckets is fitted to the sparsities, and the node
is cut at the borders of the buckets, along a feature drawn in proportion to the variance that its histogram explains.
A larger sample then estimates the density of every leaf.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numba import njit
from sklearn.utils import check_array

LEAF = -1
ROWS_PER_LEVEL = 200  # of the sample that measures densities
ROWS_PER_CHUNK = 1 << 14  # rows to score by all trees at a time
TINY = 1e-12  # relative size of rounding errors


class Tree(NamedTuple):
    """A tree as arrays with an entry per node; the root is node 0, children lie side by side after their parent."""

    axis: np.ndarray  # int64, the feature that is cut, or LEAF
    first_child: np.ndarray  # int64
    cuts: np.ndarray  # float64 [nodes, most buckets - 1], ascending; infinite where there are fewer buckets
    log_volume: np.ndarray  # float64
    log_density: np.ndarray  # float64, known after `measure`


class PIDForest:
    """Score rows by the log density of their leaves, the median over trees: low scores are anomalies.

    Parameters
    ----------
    n_trees, max_depth : int
        How many trees, and how many cuts lie at most between a root and a leaf.
    n_samples : int
        How many rows, drawn without replacement, shape a tree.
    max_buckets : int
        How many children a node has at most.
    epsilon : float
        The accuracy that the published settings ask of a histogram. Ours are exact, and so meet any.
    random_state : int or None
        The seed.
    """

    def __init__(
        self,
        n_trees: int = 50,
        max_depth: int = 10,
        n_samples: int = 100,
        max_buckets: int = 3,
        epsilon: float = 0.1,
        random_state: int | None = None,
    ) -> None:
        self.n_trees, self.max_depth, self.n_samples = n_trees, max_depth, n_samples
        self.max_buckets, self.epsilon, self.random_state = max_buckets, epsilon, random_state

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        """Grow the trees. Constant features are left out: they have no gaps."""
        X = check_array(X, dtype=np.float64, order="C")
        self.varied_ = np.flatnonzero(X.min(axis=0) < X.max(axis=0))
        rows = np.ascontiguousarray(X[:, self.varied_])
        cube = root_cube(rows)
        streams = np.random.default_rng(self.random_state).spawn(self.n_trees)
        self.trees_ = [self._tree(rows, *cube, stream) for stream in streams]
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Return the median over trees of the log density of each row's leaf; higher is more normal."""
        rows = np.ascontiguousarray(check_array(X, dtype=np.float64)[:, self.varied_])
        chunks = [rows[start : start + ROWS_PER_CHUNK] for start in range(0, len(rows), ROWS_PER_CHUNK)]
        return np.concatenate([self._median(chunk) for chunk in chunks])

    def _tree(self, rows: np.ndarray, lower: np.ndarray, upper: np.ndarray, rng: np.random.Generator) -> Tree:
        shaping = rows[rng.choice(len(rows), min(self.n_samples, len(rows)), replace=False)]
        measuring = rows[rng.choice(len(rows), min(ROWS_PER_LEVEL * self.max_depth, len(rows)), replace=False)]
        tree = grow(shaping, lower, upper, rng.random(2 * len(shaping)), self.max_depth, self.max_buckets)
        measure(tree, measuring)
        return tree

    def _median(self, rows: np.ndarray) -> np.ndarray:
        return np.median([tree.log_density[leaves(tree, rows)] for tree in self.trees_], axis=0)


def root_cube(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the cube that reaches half a gap beyond the outermost values of each (varied) feature."""
    first, last = rows.min(axis=0), rows.max(axis=0)
    second = np.where(rows > first, rows, np.inf).min(axis=0)
    before_last = np.where(rows < last, rows, -np.inf).max(axis=0)
    # half of the smallest gap there is would be rounded away
    lower = np.minimum(first - (second - first) / 2, np.nextafter(first, -np.inf))
    upper = np.maximum(last + (last - before_last) / 2, np.nextafter(last, np.inf))
    return lower, upper


@njit(cache=True, nogil=True)
def grow(
    rows: np.ndarray, lower: np.ndarray, upper: np.ndarray, uniforms: np.ndarray, max_depth: int, max_buckets: int
) -> Tree:
    """Grow a tree on `rows` in a cube; `uniforms` has a random number for each node that there may be."""
    n_rows, n_axes = rows.shape
    capacity = 2 * n_rows  # every child holds a row, and every parent has two children or more
    axis = np.full(capacity, LEAF)
    first_child = np.zeros(capacity, np.int64)
    cuts = np.full((capacity, max_buckets - 1), np.inf)
    log_volume = np.zeros(capacity)
    lowers, uppers = np.empty((capacity, n_axes)), np.empty((capacity, n_axes))
    begin, end, depth = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    order = np.arange(n_rows)  # the rows of a node are order[begin:end]

    lowers[0], uppers[0], end[0] = lower, upper, n_rows
    log_volume[0] = np.log(upper - lower).sum()
    node, n_nodes = 0, 1
    while node < n_nodes:
        if depth[node] < max_depth and end[node] - begin[node] > 1:
            held = rows[order[begin[node] : end[node]]]
            cut_axis, found = draw_cuts(held, lowers[node], uppers[node], uniforms[node], max_buckets)
            if cut_axis != LEAF:
                axis[node], first_child[node] = cut_axis, n_nodes
                cuts[node, : found.size] = found
                start, side = begin[node], uppers[node, cut_axis] - lowers[node, cut_axis]
                for child in range(found.size + 1):
                    lowers[n_nodes], uppers[n_nodes] = lowers[node], uppers[node]
                    if child > 0:
                        lowers[n_nodes, cut_axis] = found[child - 1]
                    if child < found.size:
                        uppers[n_nodes, cut_axis] = found[child]
                    child_side = uppers[n_nodes, cut_axis] - lowers[n_nodes, cut_axis]
                    log_volume[n_nodes] = log_volume[node] + np.log(child_side / side)
                    begin[n_nodes] = start
                    start = gather(order, start, end[node], rows[:, cut_axis], uppers[n_nodes, cut_axis])
                    end[n_nodes], depth[n_nodes] = start, depth[node] + 1
                    n_nodes += 1
        node += 1
    log_density = np.zeros(n_nodes)
    return Tree(axis[:n_nodes], first_child[:n_nodes], cuts[:n_nodes], log_volume[:n_nodes], log_density)


@njit(cache=True, nogil=True)
def gather(order: np.ndarray, begin: int, end: int, values: np.ndarray, cut: float) -> int:
    """Move the rows whose value is at most `cut` to the front of order[begin:end]; return where they end."""
    for place in range(begin, end):
        if values[order[place]] <= cut:
            order[begin], order[place] = order[place], order[begin]
            begin += 1
    return begin


@njit(cache=True, nogil=True)
def draw_cuts(
    rows: np.ndarray, lower: np.ndarray, upper: np.ndarray, uniform: float, max_buckets: int
) -> tuple[int, np.ndarray]:
    """Draw a feature in proportion to the variance that its histogram explains; LEAF where none explains any."""
    explained = np.zeros(rows.shape[1])
    all_cuts = np.empty((rows.shape[1], max_buckets - 1))
    n_cuts = np.zeros(rows.shape[1], np.int64)
    columns = rows.T.copy()
    for axis in range(rows.shape[1]):
        cuts, explained[axis] = best_cuts(columns[axis], lower[axis], upper[axis], max_buckets)
        all_cuts[axis, : cuts.size], n_cuts[axis] = cuts, cuts.size
    cumulative = np.cumsum(explained)
    if cumulative.size == 0 or cumulative[-1] == 0.0:
        return LEAF, np.empty(0)
    # a feature that explains nothing leaves the sum as it was, so the first sum beyond the draw is never its own
    drawn = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return drawn, all_cuts[drawn, : n_cuts[drawn]]


@njit(cache=True, nogil=True)
def best_cuts(values: np.ndarray, lower: float, upper: float, max_buckets: int) -> tuple[np.ndarray, float]:
    """Return the cuts of the best histogram of the sparsities, and the share of the variance that it explains."""
    points, counts = distinct(values)
    if points.size < 2:
        return np.empty(0), 0.0
    middles = midpoints(points)
    edges = np.concatenate((np.array([lower]), middles, np.array([upper])))
    borders, explained = best_histogram(np.diff(edges) / counts, counts, max_buckets)
    return middles[borders - 1], explained


@njit(cache=True, nogil=True)
def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in ascending order, and how often each occurs."""
    ascending = np.sort(values)
    counts = np.zeros(values.size)
    last = 0
    for value in ascending:
        if value != ascending[last]:
            last += 1
            ascending[last] = value
        counts[last] += 1.0
    return ascending[: last + 1], counts[: last + 1]


@njit(cache=True, nogil=True)
def midpoints(points: np.ndarray) -> np.ndarray:
    """Return the middle of each gap between ascending points; never the point above it, so that cuts separate them."""
    middles = points[:-1] + np.diff(points) / 2
    return np.where(middles < points[1:], middles, points[:-1])


@njit(cache=True, nogil=True)
def best_histogram(values: np.ndarray, weights: np.ndarray, max_buckets: int) -> tuple[np.ndarray, float]:
    """Fit the histogram with the least weighted squared error: where its buckets begin but the first, and the share of
    the variance that it explains. Of equally good ones it is one with the fewest buckets.
    """
    size = values.size
    most = min(max_buckets, size)
    centred = values - (weights * values).sum() / weights.sum()  # squares of far-off values would drown the variance
    weight, first, second = running_sum(weights), running_sum(weights * centred), running_sum(weights * centred**2)
    if second[size] <= TINY * (weights * values**2).sum():
        return np.empty(0, np.int64), 0.0

    # least[k, i] is the least error of k + 1 buckets over the first i values, the last of which begins at begins[k, i]
    least, begins = np.full((most, size + 1), np.inf), np.zeros((most, size + 1), np.int64)
    for bucket in range(most):
        for i in range(bucket + 1, size + 1):
            for j in range(bucket, i if bucket else 1):
                before = least[bucket - 1, j] if bucket else 0.0
                mean_part = (first[i] - first[j]) ** 2 / (weight[i] - weight[j])
                error = before + max(second[i] - second[j] - mean_part, 0.0)
                if error < least[bucket, i]:
                    least[bucket, i], begins[bucket, i] = error, j
    best = 0
    for bucket in range(1, most):
        if least[bucket, size] < least[best, size] - TINY * second[size]:
            best = bucket

    borders = np.empty(best, np.int64)
    border = size
    for bucket in range(best, 0, -1):
        border = begins[bucket, border]
        borders[bucket - 1] = border
    return borders, 1.0 - least[best, size] / least[0, size]


@njit(cache=True, nogil=True)
def running_sum(values: np.ndarray) -> np.ndarray:
    """Return the sums of the first 0, 1, 2, ... values."""
    sums = np.zeros(values.size + 1)
    sums[1:] = np.cumsum(values)
    return sums


@njit(cache=True, nogil=True)
def step(tree: Tree, node: int, row: np.ndarray) -> int:
    """Return the child that contains a row."""
    child = tree.first_child[node]
    for cut in tree.cuts[node]:
        if row[tree.axis[node]] > cut:
            child += 1
    return child


@njit(cache=True, nogil=True)
def leaves(tree: Tree, rows: np.ndarray) -> np.ndarray:
    """Return the leaf of each row."""
    found = np.zeros(len(rows), np.int64)
    for i in range(len(rows)):
        while tree.axis[found[i]] != LEAF:
            found[i] = step(tree, found[i], rows[i])
    return found


@njit(cache=True, nogil=True)
def count_rows(tree: Tree, rows: np.ndarray) -> np.ndarray:
    """Return how many rows pass through each node."""
    counts = np.zeros(tree.axis.size)
    for i in range(len(rows)):
        node = 0
        counts[node] += 1.0
        while tree.axis[node] != LEAF:
            node = step(tree, node, rows[i])
            counts[node] += 1.0
    return counts


def measure(tree: Tree, rows: np.ndarray) -> None:
    """Set the log density of each node by the rows that reach it; a node that none reaches is a leaf of density 1."""
    counts = count_rows(tree, rows)
    reached = counts > 0
    tree.axis[~reached] = LEAF
    tree.log_density[reached] = np.log(counts[reached]) - tree.log_volume[reached]
