"""Categories behave like other axes: rows share cells with the kernel's probability, after any updates.

For the false-alarm rate see the package.
"""

from itertools import combinations

import numpy as np
import pytest
from effort import mostly_slow
from forests import made
from laws import ALARM, RARE, cells, mondrian_processes, mondrian_trees
from scipy import stats

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest.forest.retention import Reservoir, Window
from polyaforest.forest.stream_checks import check_stream
from polyaforest.kernels import traversal as walks
from polyaforest.kernels.arrays import QUESTIONS
from polyaforest.kernels.boxes import APART, as_codes, count_bits

pytestmark = pytest.mark.statistical

SIZES = mostly_slow([2000, 20_000])
TIMES = np.array([0.1, 0.5, 2.0])
WEIGHTS = np.array([0.8, 1.5, 0.5])  # of a number and two categories


def some_codes(rng, n):
    return rng.integers(0, 2**QUESTIONS, n).astype(np.float64)


def pool(n=20):
    """Return rows of a number and two categories: some differ in one answer, some in a category, some are equal."""
    rng = np.random.default_rng(7)
    first, second = some_codes(rng, 4), some_codes(rng, 3)
    rows = np.column_stack([rng.uniform(size=n), first[rng.integers(4, size=n)], second[rng.integers(3, size=n)]])
    rows[1] = [rows[0, 0], rows[0, 1], second[(second != rows[0, 2]).argmax()]]  # another category alone
    rows[2] = rows[0]
    rows[3, 1] = float(int(rows[3, 1]) ^ 1)  # one answer differs from that of others
    return rows


def distances(X, Y, weights=WEIGHTS):
    """Return distances between rows, (n, m); for categories, count questions with different answers."""
    apart = weights[0] * np.abs(X[:, None, 0] - Y[:, 0])
    for k in (1, 2):
        apart = apart + weights[k] * count_bits(as_codes(X[:, None, k]) ^ as_codes(Y[:, k])) / APART
    return apart


def assert_kernel(forest, held, times=TIMES):
    """Check that two rows share a cell at time t in a share exp(-t * distance) of the trees."""
    pairs, n_trees, apart = list(combinations(range(len(held)), 2)), len(forest.root), distances(held, held)
    for time in times:
        cell = cells(forest, held, time)
        for a, b in pairs:
            together = int((cell[:, a] == cell[:, b]).sum())
            expected = np.exp(-time * apart[a, b])
            assert stats.binomtest(together, n_trees, expected).pvalue > RARE / (len(pairs) * len(times))


@pytest.mark.parametrize("n_trees", SIZES)
@pytest.mark.parametrize("kind", ["tree", "process"])
def test_rows_share_a_cell_with_kernel_probability(kind, n_trees, any_seed):
    X, times = pool()[:7], TIMES
    if kind == "tree":
        forest = mondrian_trees(X, WEIGHTS, n_trees, seed=[any_seed, 81], n_categories=2)
    else:
        domain = np.array([[-0.1, 0.0, 0.0], [1.1, 2.0**QUESTIONS - 1, 2.0**QUESTIONS - 1]])
        times = TIMES[:2]  # a whole cube is cut into thousands of cells soon after
        limits = {"lifetime": times.max() * 1.001, "n_categories": 2}
        forest = mondrian_processes(domain, WEIGHTS, n_trees, seed=[any_seed, 82], **limits)
    assert_kernel(forest, X, times)


@pytest.mark.parametrize("n_trees", SIZES)
@pytest.mark.parametrize("window", mostly_slow([Window(7), Reservoir(7)]), ids=str)
def test_remaining_rows_share_a_cell_with_kernel_probability(window, n_trees, any_seed):
    rows = pool()[np.random.default_rng(65).integers(20, size=120)]
    tree = Tree(feature_weights=WEIGHTS)
    detector = made(
        StreamingMPF,
        n_estimators=n_trees,
        window=window,
        tree=tree,
        max_samples=None,
        random_state=any_seed,
        n_categories=2,
    )
    detector.partial_fit(rows, times=np.arange(120.0))
    detector.delete(detector.keys_[1:3])
    check_stream(detector._stream)
    assert_kernel(detector.forest_, detector.points_)


def test_mean_distance_of_categories_is_their_weight():
    """The mean over random codes is ((1 + exp(-t w / 26)) / 2) ** 52."""
    rng, n, t, w = np.random.default_rng(5), 20_000, 0.7, 1.5
    apart = count_bits(as_codes(some_codes(rng, n)) ^ as_codes(some_codes(rng, n)))
    found = np.exp(-t * w * apart / APART)
    expected = ((1 + np.exp(-t * w / APART)) / 2) ** QUESTIONS
    assert stats.ttest_1samp(found, expected).pvalue > ALARM


@pytest.mark.parametrize("kind", ["tree", "process"])
def test_new_category_has_kernel_mass(kind):
    """Its mass is positive: it is as far from every other category as these are from each other."""
    rng, n_trees = np.random.default_rng(3), 2000
    times = np.array([0.3, 1.0, 3.0] if kind == "tree" else [0.1, 0.3, 0.6])
    held = pool(30)
    X = held[:6].copy()
    X[:3, 1] = some_codes(rng, 3)  # new, next to a known one
    X[3, 1:] = some_codes(rng, 2)  # both new
    shared = {"n_estimators": n_trees, "prior_strength": 1e-13, "feature_weights": WEIGHTS, "random_state": 5}
    if kind == "tree":
        forest = made(StreamingMPF, max_samples=None, n_categories=2, **shared).fit(held)
    else:
        tree = Tree(max_depth=None, lifetime=0.6, domain=[[0.0], [1.0]])
        forest = made(BatchMPF, tree=tree, n_categories=2, **shared).fit(held)
    each = np.zeros((n_trees, len(times), len(X)))
    walks.cell_masses(forest.forest_, forest.posterior_.inside, X, times, np.empty((len(times), 0)), each)
    each, mass = np.exp(each), forest.mass(X, lifetime=times)
    np.testing.assert_allclose(mass, each.mean(axis=0).T, rtol=1e-10)
    truth = np.exp(-times[:, None, None] * distances(X, held)).mean(axis=2).T
    error = each.std(axis=0, ddof=1).T / np.sqrt(n_trees)
    z = np.abs(mass - truth) / np.maximum(error, 1e-9 * truth)
    assert (mass > 0).all()
    assert z.max() < stats.norm.isf(ALARM / 2 / z.size)
