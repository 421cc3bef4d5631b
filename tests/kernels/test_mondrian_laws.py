"""Cuts follow the law of a Mondrian process: exponential in time, proportional to length, uniform in location.

For the false-alarm rate see the package. Every run has other seeds.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
from laws import RARE, mondrian_processes, mondrian_trees, plan
from scipy import stats

from polyaforest import StreamingMPF
from polyaforest.forest import grow
from polyaforest.forest.spec import Weighting
from polyaforest.kernels.arrays import NONE, Array

pytestmark = pytest.mark.statistical

N_TREES = 3000
POINTS = np.array([[0.0, 5.0, -1.0], [1.0, 5.5, 3.0], [0.3, 7.0, 0.0], [0.9, 5.1, 1.0], [0.2, 6.0, 2.0]])
DOMAIN = np.array([[0.0, -1.0, 10.0], [1.0, 1.0, 14.0]])
WEIGHTS = [[1.0, 1.0, 1.0], [3.0, 0.5, 0.25], [2.0, 0.0, 1.0]]


class Cuts(NamedTuple):
    """Return all cuts of a forest, one per row."""

    depth: Array
    wait: Array  # time since the cut above
    lower: Array  # the box that was cut, (n, D)
    upper: Array
    feature: Array
    place: Array


def read_cuts(forest):
    found = []
    for t, root in enumerate(forest.root):
        stack = [(root, 0, 0.0, forest.domain[0], forest.domain[1])]
        while stack:
            j, depth, began, lower, upper = stack.pop()
            if forest.lower.shape[2]:
                lower, upper = forest.lower[t, j], forest.upper[t, j]
            delta, xi, time = forest.feature[t, j], forest.cut[t, j], forest.time[t, j]
            if delta == NONE:
                continue
            found.append((depth, time - began, lower, upper, delta, xi))
            side = np.arange(len(lower)) == delta
            stack.append((forest.left[t, j], depth + 1, time, lower, np.where(side, xi, upper)))
            stack.append((forest.right[t, j], depth + 1, time, np.where(side, xi, lower), upper))
    return Cuts(*(np.array(column) for column in zip(*found, strict=True)))


def draw(kind, weights, seed, **limits):
    if kind == "tree":
        return mondrian_trees(POINTS, weights, N_TREES, seed=[seed, 11], **limits)
    return mondrian_processes(DOMAIN, weights, N_TREES, seed=[seed, 12], **{"max_depth": 2} | limits)


@pytest.fixture(scope="module", params=["tree", "process"])
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=WEIGHTS, ids=["plain", "weighted", "with a zero"])
def weights(request):
    return np.array(request.param)


@pytest.fixture(scope="module")
def drawn(kind, weights, any_seed):
    return read_cuts(draw(kind, weights, any_seed))


def test_cut_times_are_exponential_with_rate_of_weighted_length(drawn, weights):
    rate = (drawn.upper - drawn.lower) @ weights
    for level in range(2):
        at_level = drawn.depth == level
        assert at_level.sum() >= N_TREES
        assert stats.kstest((drawn.wait * rate)[at_level], "expon").pvalue > RARE / 2


def test_cut_dimensions_follow_weighted_length_and_locations_are_uniform(drawn, weights):
    sides = (drawn.upper - drawn.lower) * weights
    root = drawn.depth == 0
    expected = sides[root][0] / sides[root][0].sum()
    seen = np.bincount(drawn.feature[root], minlength=len(weights))
    assert (seen[expected == 0] == 0).all()
    live = expected > 0
    assert stats.chisquare(seen[live], root.sum() * expected[live]).pvalue > RARE / 3

    every = np.arange(len(sides))
    share = (drawn.place - drawn.lower[every, drawn.feature]) / (drawn.upper - drawn.lower)[every, drawn.feature]
    assert stats.kstest(share, "uniform").pvalue > RARE / 3

    # both at once, for cuts of every depth: aligned end to end, the weighted sides are hit uniformly
    before = np.cumsum(sides, axis=1)[every, drawn.feature] - sides[every, drawn.feature]
    along = (before + share * sides[every, drawn.feature]) / sides.sum(axis=1)
    assert stats.kstest(along, "uniform").pvalue > RARE / 3


def test_root_is_uncut_with_probability_of_no_cut_before_lifetime(kind, any_seed):
    weights = np.array(WEIGHTS[1])
    low, high = (POINTS.min(axis=0), POINTS.max(axis=0)) if kind == "tree" else DOMAIN
    length = (high - low) @ weights
    forest = draw(kind, weights, any_seed, lifetime=0.7 / length)
    uncut = int((forest.feature[:, 0] == NONE).sum())
    assert stats.binomtest(uncut, N_TREES, np.exp(-0.7)).pvalue > RARE
    assert (forest.time[forest.feature != NONE] <= 0.7 / length).all()


SPREAD, DEVIATION = np.array([0.1, 1.0, 20.0]), np.array([0.05, 0.5, 10.0])


def random_weights(deviation, seed):
    weighting = Weighting(SPREAD, deviation)
    drawing = plan(N_TREES, np.ones(3), seed=[seed, 13])._replace(weighting=weighting)
    return grow.grow_trees(POINTS, drawing).weights


def test_random_weights_divide_deviation_evenly_among_features(any_seed):
    shares = random_weights(DEVIATION, any_seed) * DEVIATION
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    for share in shares.T:  # spreads and deviations agree, so the shares are uniform over those that sum to 1
        assert stats.kstest(share, stats.beta(1, 2).cdf).pvalue > RARE / 3


def test_random_weights_are_exponential_over_spread_up_to_their_common_scale(any_seed):
    deviation = DEVIATION * [1.0, 7.0, 0.3]
    weights = random_weights(deviation, any_seed)
    np.testing.assert_allclose((weights * deviation).sum(axis=1), 1.0, rtol=1e-12)
    scaled = weights * SPREAD
    for a, b in combinations(range(3), 2):
        assert stats.kstest(scaled[:, a] / (scaled[:, a] + scaled[:, b]), "uniform").pvalue > RARE / 3


def rows_in_trees(n_rows, n_chosen, seed):
    """Return which of `n_rows` rows each tree holds, bool (T, n_rows)."""
    X = np.arange(n_rows, dtype=np.float64)[:, None]
    stream = StreamingMPF(n_estimators=N_TREES, max_samples=n_chosen, random_state=seed).fit(X)._stream
    held = stream.is_member(stream.store.held)
    assert (held.sum(axis=1) == n_chosen).all()
    return held


def test_every_subset_of_rows_is_equally_likely_for_a_tree(any_seed):
    held = rows_in_trees(6, 3, any_seed)
    subsets = np.bincount(held @ (1 << np.arange(6)), minlength=64)
    assert stats.chisquare(subsets[subsets > 0]).pvalue > RARE
    assert (subsets > 0).sum() == 20


@pytest.mark.parametrize("n_chosen", [5, 35])
def test_every_row_is_equally_likely_to_be_in_a_tree(n_chosen, any_seed):
    n_rows = 40
    included, p = rows_in_trees(n_rows, n_chosen, any_seed).sum(axis=0), n_chosen / n_rows
    # inclusions are negatively correlated; with this scale the sum of squares is still chi-square
    scale = N_TREES * p * (1 - p) * n_rows / (n_rows - 1)
    assert stats.chi2(n_rows - 1).sf(((included - N_TREES * p) ** 2).sum() / scale) > RARE
