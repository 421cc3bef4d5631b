"""The Pólya posterior over a given partition (Alg. 2 and 4), in logarithms.

At every cut and every restriction the share of the mass is the mean of a Beta posterior, whose prior is proportional to
volume and grows stronger with depth.
"""

import math

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import LEAST_LOG, NONE
from polyaforest.kernels.geometry import (
    are_distinguishable,
    excess,
    first_category,
    goes_left,
    is_question,
    linear_dimension,
    live_share,
    log_live_share,
    log_share,
    log_volume,
)
from polyaforest.kernels.jit import jit_borrowing, jit_borrowing_helper, jit_inline

EVEN = 0.5  # the share that a question leaves to either side
SLIVER = 2.0**-54  # share of a side whose length rounds to 0: half the least share that a draw can give


@jit_inline
def posterior_mean(strength, share, n, total):
    """Return the mean of a Beta posterior: prior `share` of `strength` pseudo-points, then `n` of `total` points."""
    return (strength * share + n) / (strength + total)


@jit_inline
def cut_strength(gamma, depth, boxed):
    """Return the prior strength of a cut at `depth`: trees alternate cuts and restrictions, processes only cut."""
    level = 2.0 * depth + 1.0 if boxed else depth + 1.0
    return gamma * level * level


@jit_inline
def restriction_strength(gamma, depth):
    """Return the prior strength of restricting a child of a node at `depth`."""
    level = 2.0 * depth + 2.0
    return gamma * level * level


@jit_inline
def cut_share(low, high, xi, is_left):
    """Return the share of a side from `low` to `high` that a cut at `xi` leaves to the left or to the right."""
    return max(((xi - low) if is_left else (high - xi)) / (high - low), SLIVER)


@jit_borrowing_helper
def side_share(forest, t, j, world, is_left):
    """Return the prior share that the cut of node `j` leaves to the left or to the right."""
    if is_question(forest.feature[t, j], forest.weights.shape[1], forest.n_categories[0]):
        return EVEN
    low, high = side_bounds(forest, t, j, world)
    return cut_share(low, high, forest.cut[t, j], is_left)


@jit_borrowing_helper
def side_bounds(forest, t, j, world):
    """Return the interval that the cut of node `j` divides: the side of its box, or of its region in a process."""
    delta = forest.feature[t, j]
    if forest.lower.shape[2] > 0:
        return forest.lower[t, j, delta], forest.upper[t, j, delta]
    low, high = world[0, t, delta], world[1, t, delta]
    child, above = j, forest.parent[t, j]
    while above != NONE:
        if forest.feature[t, above] == delta:
            if forest.left[t, above] == child:
                high = min(high, forest.cut[t, above])
            else:
                low = max(low, forest.cut[t, above])
        child, above = above, forest.parent[t, above]
    return low, high


@jit_borrowing
def set_posteriors(forest, first, last, gamma, is_open, waiting, posterior):
    """Fill in `posterior` for the trees from `first` up to `last`; `waiting`, int32 (C, 2), is a buffer."""
    for t in range(first, last):
        set_root(forest, t, gamma, is_open, posterior)
        waiting[0, 0], waiting[0, 1] = forest.root[t], 0
        n_waiting = 1
        while n_waiting > 0:
            n_waiting -= 1
            j, depth = waiting[n_waiting, 0], waiting[n_waiting, 1]
            if forest.left[t, j] == NONE:
                continue
            for child in (forest.left[t, j], forest.right[t, j]):
                set_child(forest, t, j, child, depth, gamma, posterior)
                waiting[n_waiting, 0], waiting[n_waiting, 1] = child, depth + 1
                n_waiting += 1


@jit_borrowing
def set_paths(forest, X, until, gamma, is_open, posterior):
    """Fill in `posterior`, where it is NaN, for the nodes on the paths of rows up to time `until`.

    `X` holds the rows of each tree, (T, n, D), or those of all trees, (1, n, D).
    """
    for t in range(forest.left.shape[0]):
        rows, root = X[t if X.shape[0] > 1 else 0], forest.root[t]
        if math.isnan(posterior.inside[t, root]):
            set_root(forest, t, gamma, is_open, posterior)
        for i in range(rows.shape[0]):
            j, depth = root, 0
            while forest.left[t, j] != NONE and forest.time[t, j] <= until:
                is_left = goes_left(rows, i, forest.feature[t, j], forest.cut[t, j], forest.n_categories[0])
                child = forest.left[t, j] if is_left else forest.right[t, j]
                if math.isnan(posterior.inside[t, child]):
                    set_child(forest, t, j, child, depth, gamma, posterior)
                j, depth = child, depth + 1


@jit_borrowing_helper
def set_root(forest, t, gamma, is_open, posterior):
    """Set masses and volumes of the root of tree `t`, and of the outside of the known world.

    With `is_open` the outside has a share with prior Beta(gamma / 2, gamma / 2); otherwise it has none.
    """
    root = forest.root[t]
    set_outside(forest, t, gamma, is_open, posterior)
    within = 0.0 if not is_open else math.log1p(-math.exp(posterior.outside[t]))
    lower, upper = posterior.world[0, t], posterior.world[1, t]
    box_lower, box_upper, n_categories = forest.lower[t, root], forest.upper[t, root], forest.n_categories[0]
    log_f = log_live_share(lower, upper, NONE, 0.0, True, box_lower, box_upper, n_categories)
    split_off_complement(forest, t, root, gamma, log_f, within, log_volume(lower, upper, n_categories), posterior)


@jit_borrowing_helper
def set_child(forest, t, j, child, depth, gamma, posterior):
    """Set mass and volume of one child of `j`: its side of the cut, then the restriction to its box."""
    xi, delta = forest.cut[t, j], forest.feature[t, j]
    is_left = forest.left[t, j] == child
    share = side_share(forest, t, j, posterior.world, is_left)
    strength = cut_strength(gamma, depth, forest.lower.shape[2] > 0)
    mean = posterior_mean(strength, share, forest.counts[t, child], forest.counts[t, j])
    mass = posterior.inside[t, j] + math.log(mean)
    volume = posterior.inside_volume[t, j] + math.log(share)
    whole, part = (forest.lower[t, j], forest.upper[t, j]), (forest.lower[t, child], forest.upper[t, child])
    log_f = log_live_share(*whole, delta, xi, is_left, *part, forest.n_categories[0])
    split_off_complement(forest, t, child, restriction_strength(gamma, depth), log_f, mass, volume, posterior)


@jit_inline
def restricted_mass(mass, strength, log_f, n):
    """Return the log-mass of a box of `n` points with volume share f, given the log-`mass` of its region."""
    if -math.expm1(log_f) > 0.0:
        return mass + math.log(posterior_mean(strength, math.exp(log_f), n, n))
    return mass


@jit_borrowing_helper
def split_off_complement(forest, t, j, strength, log_f, mass, volume, posterior):
    """Split the mass and volume of a region between the box of node `j` and its complement (empty if f is 1)."""
    left_out = -math.expm1(log_f)
    n = forest.counts[t, j]
    posterior.inside[t, j], posterior.inside_volume[t, j] = restricted_mass(mass, strength, log_f, n), volume + log_f
    posterior.complement[t, j], posterior.complement_volume[t, j] = -np.inf, -np.inf
    if left_out > 0.0:
        posterior.complement[t, j] = mass + math.log(posterior_mean(strength, left_out, 0, n))
        posterior.complement_volume[t, j] = volume + math.log(left_out)


@jit_borrowing_helper
def set_outside(forest, t, gamma, is_open, posterior):
    """Set the mass beyond the known world, and the normaliser of its density.

    The density falls as exp(-D * reach); the reach is the weighted distance divided by the weighted size L of the
    world. The exponential factorises over the features, so its integral is a product: each side adds L / (D * weight)
    at both ends. Categories do not count: a live question has nothing beyond its two answers.
    """
    posterior.outside[t], posterior.outside_volume[t] = -np.inf, 0.0
    if not is_open:
        return
    n_out = forest.outside[t]
    n = n_out + forest.counts[t, forest.root[t]]
    posterior.outside[t] = math.log(posterior_mean(gamma, 0.5, n_out, n))
    lower, upper = posterior.world[0, t], posterior.world[1, t]
    n_categories = forest.n_categories[0]
    size = linear_dimension(lower, upper, forest.weights[t], n_categories)
    log_f = 0.0
    for k in range(first_category(lower.shape[0], n_categories)):
        side = forest.weights[t, k] * (upper[k] - lower[k])
        if side > 0.0:
            log_f += math.log(lower.shape[0] * side) - math.log(lower.shape[0] * side + 2.0 * size)
    if log_f < 0.0:
        posterior.outside_volume[t] = log_volume(lower, upper, n_categories) - log_f + math.log(-math.expm1(log_f))


# ---- along one path ------------------------------------------------------------------------------------------------


@jit_inline
def within_mean(gamma, is_open, n):
    """Return the share of mass within the known world, given `n` points there and none beyond."""
    return 1.0 - posterior_mean(gamma, 0.5, 0, n) if is_open else 1.0


@jit_borrowing_helper
def root_mass(tree, gamma, is_open, domain):
    """Return the log-mass of the root's box, as `set_root` does, for a tree without points outside."""
    j = tree.root[0]
    n = tree.counts[j]
    outside = math.log(posterior_mean(gamma, 0.5, 0, n))
    within = math.log1p(-math.exp(outside)) if is_open else 0.0
    return restricted_mass(within, gamma, log_world_share(tree.lower, tree.upper, j, domain, tree.n_categories), n)


@jit_borrowing_helper
def child_mass(tree, j, child, depth, gamma, mass):
    """Return the log-mass of the box of a child of `j`, given that of `j`, as `set_child` does."""
    lower, upper, xi, delta = tree.lower, tree.upper, tree.cut[j], tree.feature[j]
    is_left, n = tree.left[j] == child, tree.counts[child]
    is_number = not is_question(delta, lower.shape[1], tree.n_categories)
    share = cut_share(lower[j, delta], upper[j, delta], xi, is_left) if is_number else EVEN
    mass += math.log(posterior_mean(cut_strength(gamma, depth, True), share, n, tree.counts[j]))
    log_f = log_live_share(lower[j], upper[j], delta, xi, is_left, lower[child], upper[child], tree.n_categories)
    return restricted_mass(mass, restriction_strength(gamma, depth), log_f, n)


@jit_inline
def world_share(lower, upper, root, domain, n_categories):
    """Return f of the root: the volume share of its box in the known world, the hull of that box and the domain."""
    share = 1.0
    for k in range(first_category(lower.shape[1], n_categories)):
        low, high = lower[root, k], upper[root, k]
        whole = max(high, domain[1, k]) - min(low, domain[0, k])
        share *= (high - low) / whole if high > low else 1.0
    return share


@jit_inline
def log_world_share(lower, upper, root, domain, n_categories):
    """Return the logarithm of `world_share`, exact for shares near 1."""
    total = 0.0
    for k in range(first_category(lower.shape[1], n_categories)):
        low, high = lower[root, k], upper[root, k]
        if low < high:
            total += log_share(min(low, domain[0, k]), max(high, domain[1, k]), low, high)
    return total


@jit_inline
def world_reach(lower, upper, root, domain, weights, X, i, n_categories):
    """Return the weighted distance of row `i` from the known world, divided by the world's size; -1 within it."""
    is_within, distance, size, n = True, 0.0, 0.0, first_category(lower.shape[1], n_categories)
    for k in range(n):
        low, high = min(lower[root, k], domain[0, k]), max(upper[root, k], domain[1, k])
        is_within &= (low <= X[i, k]) & (X[i, k] <= high)
        distance += weights[k] * excess(low, high, X[i, k])
        size += weights[k] * (high - low)
    for k in range(n, lower.shape[1]):
        low, high = cubes.meet(lower[root, k], domain[0, k]), cubes.join(upper[root, k], domain[1, k])
        is_within &= cubes.new_questions(low, high, X[i, k]) == 0
        distance += weights[k] * cubes.distance(low, high, X[i, k])
        size += weights[k] * cubes.length(low, high)
    return -1.0 if is_within else min(distance / (size if size > 0.0 else 1.0), -LEAST_LOG)


@jit_inline
def box_share(lower, upper, j, delta, xi, is_left, child, share, whole, part, n_categories):
    """Return f of a child: the volume share of its box in its side of the cut of `j`, which is a `share` of box `j`.

    `whole` and `part` are the volumes of both boxes; a question halves `part`. They are not used if floats cannot
    represent them or a dimension is collapsed.
    """
    if are_distinguishable(part, whole):
        return min(part / (whole * share), 1.0)
    low, high = (lower[j, delta], xi) if is_left else (xi, upper[j, delta])
    return live_share(lower, upper, j, delta, low, high, child, n_categories)
