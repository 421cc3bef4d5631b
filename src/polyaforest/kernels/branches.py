"""Walks of rows with missing values down growing trees: they follow both sides of a cut along a missing feature."""

import math

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import LEAST_LOG, NONE
from polyaforest.kernels.geometry import extension, is_question
from polyaforest.kernels.jit import jit_borrowing_helper, jit_inline
from polyaforest.kernels.polya import child_mass, root_mass


@jit_inline
def log_add(a, b):
    """Return the logarithm of exp(a) + exp(b)."""
    high, low = (a, b) if a > b else (b, a)
    return high + math.log1p(math.exp(low - high)) if low > -np.inf else high


@jit_inline
def may_go(X, i, delta, xi, is_left, n_categories):
    """Return whether row `i` of `X` may lie on that side of a cut, if its missing values may be anything."""
    value = X[i, delta]
    if is_question(delta, X.shape[1], n_categories):
        return math.isnan(value) or cubes.says_no(value, xi) == is_left
    return not value > xi if is_left else not value <= xi


@jit_inline
def hazard_until(lifetime, began, ends, rate):
    """Return the hazard of a row that is cut off from a node at a `rate`, up to a lifetime."""
    elapsed = min(lifetime, ends) - began
    return elapsed * rate if rate > 0.0 and elapsed > 0.0 else 0.0  # either may be infinite


@jit_borrowing_helper
def set_cells(tree, X, i, scoring, walk, log_masses):
    """Write the log of the total mass of the cells that row `i` may be in at each lifetime to `log_masses`, (S,).

    Like `marginal.cell_masses` for one tree, but without a posterior: masses are derived on the way down.
    """
    lifetimes, n_lifetimes, n_categories = scoring.lifetimes, scoring.lifetimes.shape[0], tree.n_categories
    nodes, births, logs, masses, steps = walk.freed, walk.births, walk.hazards, walk.masses, walk.waiting
    log_masses[:] = -np.inf
    nodes[0], births[0], logs[0], steps[0, 0], steps[0, 1] = tree.root[0], 0.0, 0.0, 0, 0
    masses[0] = root_mass(tree, scoring.gamma, scoring.is_open, scoring.domain)
    n_waiting = 1
    while n_waiting > 0:
        n_waiting -= 1
        j, began, log_weight, mass = nodes[n_waiting], births[n_waiting], logs[n_waiting], masses[n_waiting]
        s, depth, ends, is_leaf = steps[n_waiting, 0], steps[n_waiting, 1], tree.time[j], tree.feature[j] == NONE
        rate = extension(tree.lower, tree.upper, j, tree.weights, X, i, n_categories)
        while s < n_lifetimes and (lifetimes[s] < ends or is_leaf):
            own = mass + (log_weight - hazard_until(lifetimes[s], began, ends, rate))
            log_masses[s] = log_add(log_masses[s], own)
            s += 1
        if s == n_lifetimes:
            continue
        log_weight -= (ends - began) * rate if rate > 0.0 else 0.0
        for side in range(2):
            if may_go(X, i, tree.feature[j], tree.cut[j], side == 0, n_categories):
                child = tree.left[j] if side == 0 else tree.right[j]
                nodes[n_waiting], births[n_waiting], logs[n_waiting] = child, ends, log_weight
                masses[n_waiting] = child_mass(tree, j, child, depth, scoring.gamma, mass)
                steps[n_waiting, 0], steps[n_waiting, 1] = s, depth + 1
                n_waiting += 1
    for s in range(n_lifetimes):
        log_masses[s] = max(log_masses[s], LEAST_LOG)
