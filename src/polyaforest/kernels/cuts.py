"""Draw one cut: its time, dimension and location; and the feature weights of a tree.

Mondrian trees cut the boxes of their data, Mondrian processes their domain; both use these kernels.
"""

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import NONE
from polyaforest.kernels.geometry import first_category, is_question, linear_dimension
from polyaforest.kernels.jit import jit, jit_borrowing_helper, jit_helper, jit_inline
from polyaforest.kernels.rng import exponential, uniform


@jit
def draw_weights(rng, spread, deviation, most, weights):
    """Draw the feature weights of one tree: Exp(1) / spread, scaled so that weighted deviations sum to 1.

    If more than `most` features vary, a random choice of so many has weights, and constant ones as rarely; the weights
    of the others are 0.
    """
    total, n_left, n_chosen = 0.0, 0, most
    for k in range(spread.shape[0]):
        n_left += deviation[k] > 0.0
    chance = most / n_left if n_left > most else 1.0
    for k in range(spread.shape[0]):
        weights[k] = 0.0
        if chance < 1.0 and deviation[k] > 0.0:  # as many of those left as are still to be chosen
            is_chosen = uniform(rng) * n_left < n_chosen
            n_left -= 1
            n_chosen -= is_chosen
        else:
            is_chosen = chance == 1.0 or uniform(rng) < chance
        if is_chosen:
            weights[k] = exponential(rng) / spread[k]
            total += weights[k] * deviation[k]
    if total > 0.0:
        for k in range(spread.shape[0]):
            weights[k] /= total


@jit_helper
def make_leaf(forest, t, j, parent, count, lifetime):
    """Claim slot `j` as a leaf of `count` points below `parent`."""
    forest.left[t, j], forest.right[t, j], forest.parent[t, j] = NONE, NONE, parent
    forest.feature[t, j], forest.cut[t, j], forest.time[t, j] = NONE, np.nan, lifetime
    forest.counts[t, j] = count


@jit_helper
def make_children(forest, t, j, size, n_left, n_right, lifetime):
    """Claim the first two slots beyond `size` as the children of `j`, leaves with the given counts; return them."""
    left, right = size, size + 1
    forest.left[t, j], forest.right[t, j] = left, right
    make_leaf(forest, t, left, j, n_left, lifetime)
    make_leaf(forest, t, right, j, n_right, lifetime)
    return left, right


@jit_inline
def draw_cut(rng, weights, began, lower, upper, lifetime, n_categories):
    """Draw time, dimension and location of the first cut of a box after `began`; dimension NONE if after `lifetime`.

    The location of a cut along a category is the number of one of its live questions.
    """
    length = linear_dimension(lower, upper, weights, n_categories)
    if not length > 0.0:
        return lifetime, NONE, np.nan
    time = began + exponential(rng) / length
    if not time < lifetime:
        return lifetime, NONE, np.nan
    delta, remaining = choose_dimension(rng, lower, upper, weights, length, n_categories)
    if is_question(delta, lower.shape[0], n_categories):
        questions = cubes.live_questions(lower[delta], upper[delta])
        return time, delta, cubes.choose_question(questions, remaining / weights[delta])
    xi = lower[delta] + uniform(rng) * (upper[delta] - lower[delta])
    if not xi < upper[delta]:  # rounding must not leave the right side empty
        xi = lower[delta]
    return time, delta, xi


@jit_inline
def birth_time(parent, time, j):
    """Return when node `j` was born: when its parent was cut."""
    return 0.0 if parent[j] == NONE else time[np.uint32(parent[j])]


@jit_inline
def choose_dimension(rng, lower, upper, weights, length, n_categories):
    """Draw a dimension in proportion to its weighted length; return it, and the remaining part of the draw."""
    remaining, chosen = uniform(rng) * length, NONE
    n = first_category(lower.shape[0], n_categories)
    for k in range(n):
        side = weights[k] * (upper[k] - lower[k])
        if side > 0.0:
            chosen = k
            if remaining < side:
                return chosen, remaining
            remaining -= side
    return choose_category(lower, upper, weights, n, chosen, remaining) if n < lower.shape[0] else (chosen, remaining)


@jit_borrowing_helper
def choose_category(lower, upper, weights, first, chosen, remaining):
    """Continue `choose_dimension` with the categories, from dimension `first` on."""
    for k in range(first, lower.shape[0]):
        side = weights[k] * cubes.length(lower[k], upper[k])
        if side > 0.0:
            chosen = k
            if remaining < side:
                break
            remaining -= side
    return chosen, remaining
