"""Helpers of the statistical tests.

Over random seeds, each test case fails by chance with a probability of at most ALARM, or RARE if every run has another
seed (`any_seed`): exact tests, and tests whose law is known far into the tails. Several comparisons in one case share
this probability.
"""

import numpy as np

from polyaforest.forest import grow
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.kernels.arrays import NONE
from polyaforest.kernels.boxes import as_codes, empty_box

ALARM = 1e-4
RARE = 1e-6


def plan(n_trees, weights, *, seed, domain=None, lifetime=np.inf, max_depth=None, n_categories=0):
    """Draw `n_trees` trees with fixed feature weights."""
    weights = np.asarray(weights, np.float64)
    domain = empty_box(len(weights), n_categories) if domain is None else np.asarray(domain)
    weighting = Weighting(np.ones_like(weights), np.ones_like(weights), weights)
    return Plan(n_trees, lifetime, max_depth, weighting, domain, np.random.SeedSequence(seed), None, n_categories)


def mondrian_trees(X, weights, n_trees, *, seed, **limits):
    """Mondrian trees over all rows of `X`."""
    return grow.grow_trees(X, plan(n_trees, weights, seed=seed, **limits))


def mondrian_processes(domain, weights, n_trees, *, seed, **limits):
    """Mondrian processes over `domain`."""
    return grow.sample_processes(plan(n_trees, weights, seed=seed, domain=domain, **limits))


def cells(forest, X, time):
    """The node whose cell holds each row at `time`, (T, n): a walk over the cuts made by then."""
    trees, rows = np.ogrid[: len(forest.root), : len(X)]
    nodes = np.repeat(forest.root[:, None], len(X), axis=1)
    while True:
        feature = forest.feature[trees, nodes]
        is_cut = (feature != NONE) & (forest.time[trees, nodes] <= time)
        if not is_cut.any():
            return nodes
        values, cut = X[rows, feature], forest.cut[trees, nodes]
        is_number = feature < X.shape[1] - forest.n_categories[0]
        question = np.where(is_number, 0.0, np.nan_to_num(cut)).astype(np.int64)
        answer = as_codes(np.where(is_number, 0.0, values)) >> question & 1
        goes_left = np.where(is_number, values <= cut, answer == 0)
        children = np.where(goes_left, forest.left[trees, nodes], forest.right[trees, nodes])
        nodes = np.where(is_cut, children, nodes)
