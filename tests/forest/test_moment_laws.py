"""Moments and intervals match draws from the posterior of a whole forest, Beta by Beta.

For the false-alarm rate see the package. Means and variances are compared by z-scores over DRAWS draws. Coverage has an
error beyond that of the draws, because a product of Betas is approximated by a Beta: allow SLACK, and more for bounds
below one in a million, since in empty cells within empty cells all shares are close to 0 or 1.
"""

import numpy as np
import pytest
from effort import FULL, PROFILE, mostly_slow
from laws import ALARM
from scipy import stats
from shares import OUTSIDE, cells_of_rows, places_of_rows, shares_of_tree

from polyaforest import BatchMPF, LeafKind, StreamingMPF, Tree

pytestmark = pytest.mark.statistical

DRAWS = 20_000 if PROFILE == FULL else 8000
SLACK, MORE_SLACK = 0.025, 0.15
NEGLIGIBLE = 1e-6
NEAR = 1e-9
TINY = np.finfo(np.float64).tiny
BOX = [[-2.5, -2.5], [2.5, 2.5]]
FORESTS = {
    "trees": lambda gamma: StreamingMPF(max_samples=None, tree=Tree(max_depth=5, prior_strength=gamma)),
    "samples": lambda gamma: StreamingMPF(tree=Tree(prior_strength=gamma)),
    "stream": lambda gamma: StreamingMPF(window=30, tree=Tree(domain=BOX, prior_strength=gamma)),
    "processes": lambda gamma: BatchMPF(tree=Tree(max_depth=4, domain=BOX, prior_strength=gamma)),
}


def forest_and_rows(kind, gamma):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(40, 2)).clip(-2.5, 2.5)
    X = np.concatenate([rows[-4:], rng.uniform(-2.5, 2.5, size=(6, 2)), [[2.4, -2.4], [2.8, 0.0], [0.0, -9.0]]])
    return FORESTS[kind](gamma).set_params(n_estimators=6, random_state=7).fit(rows), X


def drawn_log_masses(forest, X, lifetime):
    """Return log-masses of rows under draws of the whole posterior, (n, T, DRAWS)."""
    places, weights = places_of_rows(forest, X) if lifetime is None else cells_of_rows(forest, X, lifetime)
    rng = np.random.default_rng(11)
    logs = np.empty((*places.shape, DRAWS))
    for t in range(places.shape[1]):
        shares = shares_of_tree(forest.forest_, t, forest.prior_)
        draws = shares.draw(rng, DRAWS)
        for i in range(len(X)):
            logs[i, t] = np.log(weights[i, t]) + shares.log_masses(places[i, t], draws)
    return logs


@pytest.mark.parametrize("lifetime", mostly_slow([None, 0.5, 2.0], 0, 1))
@pytest.mark.parametrize("gamma", mostly_slow([0.01, 1.0]))
@pytest.mark.parametrize("kind", FORESTS)
def test_moments_match_draws(kind, gamma, lifetime):
    forest, X = forest_and_rows(kind, gamma)
    masses = np.exp(drawn_log_masses(forest, X, lifetime))
    mean, std = forest.mass(X, lifetime, return_std=True)
    limit = stats.norm.isf(ALARM / (4 * len(X)))
    of_forests = masses.mean(axis=1)  # independent draws, each a mean over trees
    errors = of_forests.std(axis=1) / np.sqrt(DRAWS)
    assert (np.abs(of_forests.mean(axis=1) - mean) <= limit * errors + 1e-12).all()
    squares = (masses**2).mean(axis=1)
    errors = squares.std(axis=1) / np.sqrt(DRAWS)
    assert (np.abs(squares.mean(axis=1) - std**2 - mean**2) <= limit * errors + 1e-12).all()


@pytest.mark.parametrize("level", mostly_slow([0.5, 0.9], 1))
@pytest.mark.parametrize("lifetime", mostly_slow([None, 0.5, 2.0], 0, 1))
@pytest.mark.parametrize("gamma", mostly_slow([0.01, 1.0]))
@pytest.mark.parametrize("kind", FORESTS)
def test_intervals_cover_the_stated_share_of_draws(kind, gamma, lifetime, level):
    forest, X = forest_and_rows(kind, gamma)
    logs = drawn_log_masses(forest, X, lifetime).reshape(len(X), -1)  # all trees alike: a tree drawn at random
    bounds = forest.credible_interval(X, level, lifetime).T[:, :, None]
    chance = stats.norm.isf(ALARM / (4 * len(X))) * np.sqrt(0.25 / DRAWS)
    for bound, p in zip(bounds, [(1 - level) / 2, (1 + level) / 2], strict=True):
        # near 0 and 1 floats cannot distinguish masses, and a bound may fall on such a step
        log_bound = np.log(np.maximum(bound, TINY))
        below, up_to = (logs < log_bound - NEAR).mean(axis=1), (logs <= log_bound + NEAR).mean(axis=1)
        below[bound[:, 0] == 0] = 0.0
        slack = np.where(bound[:, 0] < NEGLIGIBLE, MORE_SLACK, SLACK) + chance
        assert (below <= p + slack).all()
        assert (up_to >= p - slack).all()


@pytest.mark.parametrize("kind", FORESTS)
def test_rows_cover_every_kind_of_leaf(kind):
    forest, X = forest_and_rows(kind, 0.01)
    kinds = set(forest.leaves(X).kind.ravel().tolist())
    assert {LeafKind.COMPLEMENTARY, LeafKind.OUTSIDE} < kinds
    places, weights = places_of_rows(forest, X)
    assert OUTSIDE in places.ravel().tolist()
    assert (weights < 1).any()
    assert (cells_of_rows(forest, X, 2.0)[1] < 1).any()


def test_check_detects_wrong_moments():
    forest, X = forest_and_rows("processes", 1.0)
    logs = drawn_log_masses(forest, X, None)[:4].reshape(4, -1)
    low, high = np.log(forest.credible_interval(X[:4], 0.8)).T[:, :, None]
    assert (np.abs(((logs >= low) & (logs <= high)).mean(axis=1) - 0.9) > 2 * SLACK).all()
