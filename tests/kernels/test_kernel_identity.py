"""The lifetime is a bandwidth: two points share a cell at time t with probability exp(-t * distance).

So the expected mass of a row's cell is a Laplace kernel density. For the false-alarm rate see the package. With
thousands of trees, z-scores are compared with the normal distribution.
"""

from itertools import combinations

import numpy as np
import pytest
from effort import mostly_slow
from forests import made
from laws import ALARM, RARE, cells, mondrian_processes, mondrian_trees
from scipy import stats
from scipy.spatial.distance import cdist

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest.kernels import traversal as walks

pytestmark = pytest.mark.statistical

TIMES = np.array([0.1, 0.4, 1.0])
WEIGHTS = {1: [2.5], 2: [0.4, 3.0], 5: [0.5, 2.0, 1.0, 0.0, 1.5]}


@pytest.mark.parametrize("n_trees", mostly_slow([2000, 20_000]))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_features", mostly_slow([1, 2, 5], 2))
@pytest.mark.parametrize("kind", ["tree", "process"])
def test_points_share_a_cell_with_laplace_kernel_probability(kind, n_features, weighted, n_trees, any_seed):
    X = np.random.default_rng(n_features).uniform(size=(6, n_features))
    weights = np.array(WEIGHTS[n_features]) if weighted else np.ones(n_features)
    if kind == "tree":
        forest = mondrian_trees(X, weights, n_trees, seed=[any_seed, 21])
    else:
        domain = np.repeat([[-0.1], [1.1]], n_features, axis=1)
        forest = mondrian_processes(domain, weights, n_trees, seed=[any_seed, 22], lifetime=TIMES.max() * 1.001)
    pairs = list(combinations(range(len(X)), 2))
    for time in TIMES:
        cell = cells(forest, X, time)
        for a, b in pairs:
            together = int((cell[:, a] == cell[:, b]).sum())
            expected = np.exp(-time * weights @ np.abs(X[a] - X[b]))
            assert stats.binomtest(together, n_trees, expected).pvalue > RARE / (len(pairs) * len(TIMES))


def laplace_density(X, held, times, weights):
    """Return the kernel density that masses at `times` estimate, (n, S)."""
    distances = cdist(X * weights, held * weights, "cityblock")
    return np.exp(-times[:, None, None] * distances).mean(axis=2).T


def held_rows(n_features, n_rows=30):
    return np.random.default_rng(3).normal(0.5, 0.2, size=(n_rows, n_features)).clip(0, 1)


def new_rows(n_features):
    """Return rows between the fitted rows, at their edge, and far away."""
    rng = np.random.default_rng(4)
    near = rng.uniform(0.2, 0.8, size=(6, n_features))
    edge = rng.uniform(-0.4, 1.4, size=(6, n_features))
    far = rng.uniform(3, 6, size=(2, n_features)) * rng.choice([-1, 1], size=(2, n_features))
    return np.concatenate([near, edge, far])


def forest_of(kind, n_trees, weights, seed=5):
    shared = {"n_estimators": n_trees, "prior_strength": 1e-13, "feature_weights": weights, "random_state": seed}
    if kind == "tree":
        return made(StreamingMPF, max_samples=None, **shared)
    domain = np.repeat([[0.0], [1.0]], len(weights), axis=1)
    return made(BatchMPF, tree=Tree(max_depth=None, lifetime=3.0, domain=domain), **shared)


def masses_by_tree(forest, X, times):
    """Return the mass of each row's cell at each time in each tree, (T, S, n)."""
    each = np.zeros((forest.n_estimators, len(times), len(X)))
    walks.cell_masses(forest.forest_, forest.posterior_.inside, X, times, np.empty((len(times), 0)), each)
    return np.exp(each)


@pytest.mark.parametrize("n_trees", mostly_slow([2000, 20_000]))
@pytest.mark.parametrize("weights", mostly_slow([[1.0], [1.0, 1.0], [0.5, 2.0, 0.0]], 2))
@pytest.mark.parametrize("kind", ["tree", "process"])
def test_forest_mean_mass_converges_to_laplace_kernel_density(kind, weights, n_trees):
    weights, times = np.array(weights), np.array([0.3, 1.0, 3.0])
    held = held_rows(len(weights))
    X = np.concatenate([held[:8], new_rows(len(weights))])
    forest = forest_of(kind, n_trees, weights).fit(held)
    each = masses_by_tree(forest, X, times)
    mass = forest.mass(X, lifetime=times)
    np.testing.assert_allclose(mass, each.mean(axis=0).T, rtol=1e-10)
    truth = laplace_density(X, held, times, weights)
    error = each.std(axis=0, ddof=1).T / np.sqrt(n_trees)
    # a mass that is equal in all trees has no Monte-Carlo error, only rounding and a remnant of the prior
    z = np.abs(mass - truth) / np.maximum(error, 1e-9 * truth)
    assert z.max() < stats.norm.isf(ALARM / 2 / z.size)


@pytest.mark.parametrize("kind", mostly_slow(["tree", "process"]))
def test_error_shrinks_with_root_of_number_of_trees(kind):
    n_repeats, few, many = 40, 8, 128
    weights, times = np.ones(2), np.array([2.0])
    held, x = held_rows(2), np.array([[0.6, 0.3]])
    truth = laplace_density(x, held, times, weights)[0, 0]

    def squared_error(n_trees, seed):
        errors = [forest_of(kind, n_trees, weights, seed + r).fit(held).mass(x, 2.0) - truth for r in range(n_repeats)]
        return np.mean(np.square(errors))

    ratio = squared_error(few, 100) / squared_error(many, 900) / (many / few)
    law = stats.f(n_repeats, n_repeats)
    assert law.ppf(ALARM / 2) < ratio < law.isf(ALARM / 2)
