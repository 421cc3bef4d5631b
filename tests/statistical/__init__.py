"""What the statistical tests share.

False alarms: each test case fails by chance, over the choice of its seed, with a probability of at most ALARM, or RARE
where the seed is another one in every run (`any_seed`): exact tests, and those whose law is known far into the tails.
Several comparisons in one case share it between them.
"""

import numpy as np

from polyaforest.core.arrays import NONE
from polyaforest.forest import grow
from polyaforest.forest.spec import Plan, Weighting

ALARM = 1e-4
RARE = 1e-6


def plan(n_trees, weights, *, seed, domain=None, lifetime=np.inf, max_depth=None):
    """Draw `n_trees` trees with fixed feature weights."""
    weights = np.asarray(weights, np.float64)
    if domain is None:
        domain = np.repeat([[np.inf], [-np.inf]], len(weights), axis=1)
    weighting = Weighting(np.ones_like(weights), np.ones_like(weights), weights)
    return Plan(n_trees, lifetime, max_depth, weighting, np.asarray(domain), np.random.SeedSequence(seed), None)


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
        goes_on = (feature != NONE) & (forest.time[trees, nodes] <= time)
        if not goes_on.any():
            return nodes
        goes_left = X[rows, feature] <= forest.cut[trees, nodes]
        children = np.where(goes_left, forest.left[trees, nodes], forest.right[trees, nodes])
        nodes = np.where(goes_on, children, nodes)
