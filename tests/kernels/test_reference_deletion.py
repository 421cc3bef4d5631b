"""Insertion and deletion in the reference preserve the law of a tree sampled from its rows.

The kernels match the reference draw for draw, so their trees have the same law. For the false-alarm rate see the
package.
"""

from itertools import combinations

import numpy as np
import pytest
from effort import FULL, PROFILE, mostly_slow
from laws import ALARM
from reference import naive
from scipy import stats

pytestmark = pytest.mark.statistical

N_TREES = 1000 if PROFILE == FULL else 300
WEIGHTS = [0.5, 1.5]
POINTS = [[0.0, 0.0], [0.4, -0.2], [-0.3, 0.5], [0.9, 0.8], [-1.1, -0.9], [1.8, -1.5], [2.5, 3.0]]  # ever further out
DOMAIN = [naive.side(-1.0, 1.0), naive.side(-9.0, 9.0)]

HISTORY = [0, 1, 2, 3, 4, ~0, ~2, 5, 6, ~5, ~6]  # row numbers: i comes, ~i goes
REMAINING = [1, 3, 4]


def generators(seed, n=N_TREES):
    return [naive.Xoshiro(child.generate_state(4, np.uint64)) for child in np.random.SeedSequence(seed).spawn(n)]


def fresh_tree(rng, rows, lifetime=np.inf, max_depth=np.inf):
    return naive.sample_mondrian_tree(rng, rows, WEIGHTS, lifetime, max_depth)


def tree_after(rng, history, lifetime=np.inf, max_depth=np.inf, *, n_sampled=0):
    """Return a tree after a history of updates, the first rows of which arrived together."""
    tree = naive.empty_tree(WEIGHTS)
    if n_sampled:
        tree = fresh_tree(rng, [POINTS[i] for i in history[:n_sampled]], lifetime, max_depth)
    for i in history[n_sampled:]:
        if i >= 0:
            naive.insert_point(rng, tree, POINTS[i], lifetime, max_depth)
        else:
            naive.delete_point(rng, tree, POINTS[~i], lifetime, max_depth)
    return tree


def summary(tree):
    """Return statistics of a tree: time and location of the root's cut; number, times and depths of cuts."""
    root, cuts = tree.root, [j for j in naive.preorder(tree.root) if not j.is_leaf]
    place = -1.0
    if cuts:  # the weighted sides of the box, aligned end to end
        sides = [w * (s.high - s.low) for w, s in zip(WEIGHTS, root.box, strict=True)]
        place = sum(sides[: root.feature]) + WEIGHTS[root.feature] * (root.cut - root.box[root.feature].low)
    times = [j.time for j in cuts]
    return root.time, place, len(cuts), sum(times), max(times, default=0.0), max(j.depth for j in cuts or [root])


def assert_same_law(trees, others):
    summaries = np.array([summary(t) for t in trees]), np.array([summary(t) for t in others])
    for one, other in zip(summaries[0].T, summaries[1].T, strict=True):  # ties only make alarms rarer
        assert stats.ks_2samp(one, other, method="asymp").pvalue > ALARM / summaries[0].shape[1]


@pytest.mark.parametrize("lifetime", mostly_slow([np.inf, 0.5]))
def test_insertion_one_by_one_has_law_of_whole_tree(lifetime):
    everyone = range(len(POINTS))
    trees = [tree_after(rng, everyone, lifetime) for rng in generators(52)]
    assert_same_law(trees, [fresh_tree(rng, POINTS, lifetime) for rng in generators(53)])


@pytest.mark.parametrize("max_depth", mostly_slow([1, 2, 3], 1))
@pytest.mark.parametrize(("lifetime", "n_sampled"), [(np.inf, 0), (0.5, 4)])
def test_bounded_tree_after_updates_has_law_of_fresh_tree(lifetime, n_sampled, max_depth):
    trees = [tree_after(rng, HISTORY, lifetime, max_depth, n_sampled=n_sampled) for rng in generators(54)]
    remaining = [POINTS[i] for i in REMAINING]
    assert_same_law(trees, [fresh_tree(rng, remaining, lifetime, max_depth) for rng in generators(55)])


@pytest.mark.parametrize("history", [range(len(POINTS)), HISTORY], ids=["insertions", "insertions and deletions"])
def test_points_separate_at_exponential_time_with_rate_of_distance(history):
    trees = [tree_after(rng, history) for rng in generators(56)]
    pairs = list(combinations(naive.rows_below(trees[0].root), 2))
    for x, y in pairs:
        rate = np.abs(np.subtract(x, y)) @ WEIGHTS
        times = [naive.separation_time(tree, x, y) for tree in trees]
        assert stats.kstest(times, stats.expon(scale=1 / rate).cdf).pvalue > ALARM / len(pairs)


def root_times_without_the_last_of_three(delete, max_depth=np.inf):
    """Return root times of trees of 0, 1 and 3 after deleting 3: Exp(1) if deletion preserves the law."""
    times = []
    for rng in generators(57, 4 * N_TREES):
        tree = naive.sample_mondrian_tree(rng, [[0.0], [1.0], [3.0]], [1.0], np.inf, max_depth)
        delete(rng, tree, [3.0], np.inf, max_depth)
        assert sorted(naive.rows_below(tree.root)) == [[0.0], [1.0]]
        assert naive.separation_time(tree, [0.0], [1.0]) == tree.root.time
        times.append(tree.root.time)
    return np.array(times), stats.kstest(times, "expon").pvalue


@pytest.mark.parametrize("max_depth", [1, np.inf])
def test_deletion_by_contraction_preserves_law_of_root_time(max_depth):
    times, pvalue = root_times_without_the_last_of_three(naive.delete_point, max_depth)
    assert pvalue > ALARM / 2
    assert abs(times.mean() - 1) < stats.norm.isf(ALARM / 4) / np.sqrt(len(times))


def test_deletion_by_rescaling_breaks_law_of_root_time():
    """The mean is 11/9: 1 where the root remains (a third), 1/3 + 1 where the cut of 0 and 1 replaces it."""
    times, pvalue = root_times_without_the_last_of_three(naive.delete_point_by_rescaling)
    assert pvalue < 1e-6
    assert times.mean() == pytest.approx(11 / 9, abs=0.12)


def assert_sound(tree, rows, lifetime, max_depth):
    """Check everything that a tree stores, recomputed from its rows and cuts."""
    assert sorted(naive.rows_below(tree.root)) == sorted(rows)
    again = naive.plant(rows, WEIGHTS, lifetime, tree.domain)
    assert tree.world == again.world
    nodes = [(tree.root, again.root, rows)]
    while nodes:
        j, other, below = nodes.pop()
        assert (j.depth, j.region, j.box, j.count) == (other.depth, other.region, other.box, other.count)
        assert j.depth <= max_depth
        if j.is_leaf:
            assert (j.time, sorted(j.rows)) == (lifetime, sorted(below))
            continue
        assert not j.rows
        left, right = naive.cut(other, below, j.time, j.feature, j.cut, lifetime)
        assert j.time <= min(j.left.time, j.right.time)
        nodes += [(j.left, other.left, left), (j.right, other.right, right)]
    naive.set_polya_parameters(tree, 0.5, is_open=True)
    assert sum(naive.leaves(tree)) == 1


@pytest.mark.parametrize("domain", [None, DOMAIN], ids=["no domain", "domain"])
@pytest.mark.parametrize("max_depth", mostly_slow([0, 1, 2, np.inf], 0, 2))
@pytest.mark.parametrize("lifetime", [np.inf, 0.5])
def test_tree_stays_valid_through_updates_with_equal_points(lifetime, max_depth, domain):
    points = [[x, y] for x in (0.0, 1.0, 3.0) for y in (-1.0, 2.0)]
    choices = np.random.default_rng(58)
    for rng in generators(59, 20):
        tree, rows = naive.empty_tree(WEIGHTS, domain), []
        for _ in range(20):
            if rows and choices.uniform() < 0.4:
                x = rows.pop(choices.integers(len(rows)))
                naive.delete_point(rng, tree, x, lifetime, max_depth)
            else:
                x = points[choices.integers(len(points))]
                rows.append(x)
                naive.insert_point(rng, tree, x, lifetime, max_depth)
            if rows:
                assert_sound(tree, rows, lifetime, max_depth)
            else:
                assert tree.root is None
        for x in rows:
            naive.delete_point(rng, tree, x, lifetime, max_depth)
        assert tree.root is None
