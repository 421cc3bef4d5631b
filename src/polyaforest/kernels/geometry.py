"""Boxes: lengths, containment, distances and volume shares. No randomness, no probability.

The last `n_categories` dimensions of a box are cubes (`kernels.cubes`), each with one axis per question. Volumes cover
only the numeric dimensions: categories fill a cube completely, and a collapsed cube restricts nothing. A box without
dimensions (as in a Mondrian process) has length 0, contains everything and is at distance 0 from everything.

Functions of the hot walks take a matrix and a row number instead of a row: slicing one out costs two atomic updates of
a reference count that all threads share.
"""

import math

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.jit import jit_borrowing_helper, jit_inline
from polyaforest.kernels.simd import LANES, larger, load, load_row, product_of, spread, sum_of, within

_SMALL = 1e-250  # floats represent volumes between this and its inverse without loss
_LEAST_GAP = 2.0**-1022  # smallest share of a gap, so that it never vanishes


@jit_inline
def first_category(n_dimensions, n_categories):
    """Return where the categories of a box begin; a box of a process has neither numbers nor categories."""
    return max(n_dimensions - n_categories, 0)


@jit_inline
def is_question(delta, n_features, n_categories):
    """Return whether dimension `delta` is a category."""
    return delta >= n_features - n_categories


@jit_inline
def goes_left(X, i, delta, xi, n_categories):
    """Return whether row `i` of `X` goes left of a cut."""
    if is_question(delta, X.shape[1], n_categories):
        return cubes.says_no(X[i, np.uint32(delta)], xi)
    return X[i, np.uint32(delta)] <= xi


@jit_inline
def linear_dimension(lower, upper, weights, n_categories):
    """Return the weighted linear dimension L(B): the weighted sum of the side lengths."""
    total, n = 0.0, first_category(lower.shape[0], n_categories)
    for k in range(n):
        total += weights[k] * (upper[k] - lower[k])
    return cubes.add_lengths(total, lower, upper, weights, n) if n < lower.shape[0] else total


@jit_inline
def contains(lower, upper, j, X, i, n_categories):
    """Return whether row `i` of `X` lies in the closed box `j`."""
    violated, n = False, first_category(lower.shape[1], n_categories)
    for k in range(n):
        value = X[i, k]
        violated |= (value < lower[j, k]) | (value > upper[j, k])
    if n < lower.shape[1] and not violated:
        return cubes.are_held(lower, upper, j, X, i, n)
    return not violated


@jit_inline
def contains_live(lower, upper, j, X, i, n_categories):
    """Return whether row `i` of `X` lies in box `j` along its live dimensions; collapsed ones restrict nothing."""
    violated = False
    for k in range(first_category(lower.shape[1], n_categories)):
        value, low, high = X[i, k], lower[j, k], upper[j, k]
        violated |= (low < high) & ((value < low) | (value > high))
    return not violated


@jit_inline
def excess(low, high, value):
    """Return how far `value` lies outside [low, high]."""
    below, above = low - value, value - high
    distance = below if below > above else above
    return distance if distance > 0.0 else 0.0


@jit_inline
def extension(lower, upper, j, weights, X, i, n_categories):
    """Return the weighted L1 distance from row `i` of `X` to box `j`: the growth of L if the box is to hold the row."""
    total, n = spread(0.0), first_category(lower.shape[1], n_categories)
    n_full = n & ~np.int64(LANES - 1)
    for k in range(0, n_full, LANES):
        total += weighted_excess(lower, upper, j, weights, X, i, k, within(LANES))
    if n_full < n:
        total += weighted_excess(lower, upper, j, weights, X, i, n_full, within(n - n_full))
    return with_categories(sum_of(total), lower, upper, j, weights, X, i, n)


@jit_inline
def with_categories(total, lower, upper, j, weights, X, i, n_numbers):
    """Add the part of the categories to the `total` of an extension."""
    if n_numbers < lower.shape[1]:
        return cubes.add_distances(total, lower, upper, j, weights, X, i, n_numbers)
    return total


@jit_inline
def extensions(lower, upper, j, other, weights, X, i, n_categories):
    """Return the `extension` of box `j` and that of box `other`: row and weights are read once for both."""
    total, total_other, n = spread(0.0), spread(0.0), first_category(lower.shape[1], n_categories)
    n_full = n & ~np.int64(LANES - 1)
    for k in range(0, n_full, LANES):
        total += weighted_excess(lower, upper, j, weights, X, i, k, within(LANES))
        total_other += weighted_excess(lower, upper, other, weights, X, i, k, within(LANES))
    if n_full < n:
        total += weighted_excess(lower, upper, j, weights, X, i, n_full, within(n - n_full))
        total_other += weighted_excess(lower, upper, other, weights, X, i, n_full, within(n - n_full))
    whole, whole_other = sum_of(total), sum_of(total_other)
    if n < lower.shape[1]:
        whole = cubes.add_distances(whole, lower, upper, j, weights, X, i, n)
        whole_other = cubes.add_distances(whole_other, lower, upper, other, weights, X, i, n)
    return whole, whole_other


@jit_inline
def weighted_excess(lower, upper, j, weights, X, i, k, live):
    """Return how far row `i` of `X` lies outside box `j`, weighted, in the `live` lanes from dimension `k` on."""
    x, weight = load_row(X, i, k, live, 0.0), load(weights, k, live, 0.0)
    low, high = load_row(lower, j, k, live, 0.0), load_row(upper, j, k, live, 0.0)
    return weight * larger(larger(low - x, x - high), spread(0.0))


@jit_inline
def set_point(lower, upper, j, X, i):
    """Set box `j` to the point in row `i` of `X`."""
    for k in range(lower.shape[1]):
        lower[j, k] = upper[j, k] = X[i, k]


@jit_inline
def copy_box(lower, upper, j, other):
    """Make box `j` equal to box `other`."""
    for k in range(lower.shape[1]):
        lower[j, k], upper[j, k] = lower[other, k], upper[other, k]


@jit_inline
def grow(lower, upper, j, X, i, n_categories):
    """Grow box `j` until it holds row `i` of `X`."""
    n = first_category(lower.shape[1], n_categories)
    for k in range(n):
        value, low, high = X[i, k], lower[j, k], upper[j, k]
        lower[j, k] = value if value < low else low
        upper[j, k] = value if value > high else high
    if n < lower.shape[1]:
        cubes.grow_all(lower, upper, j, X, i, n)


@jit_inline
def is_spanned_by(lower, upper, j, X, i, n_categories):
    """Return whether row `i` of `X` lies on a side of box `j`, so that the box may shrink without it.

    A live question has two sides, and every row lies on one of them.
    """
    touched, n = False, first_category(lower.shape[1], n_categories)
    for k in range(n):
        value, low, high = X[i, k], lower[j, k], upper[j, k]
        touched |= (low < high) & ((value == low) | (value == high))
    return touched or (n < lower.shape[1] and cubes.are_live(lower, upper, j, n))


@jit_inline
def set_hull(lower, upper, j, a, b, n_categories):
    """Make box `j` the hull of boxes `a` and `b`."""
    n = first_category(lower.shape[1], n_categories)
    for k in range(n):  # one loop per side: a joint loop would not be vectorised
        lower[j, k] = lower[a, k] if lower[a, k] < lower[b, k] else lower[b, k]
    for k in range(n):
        upper[j, k] = upper[a, k] if upper[a, k] > upper[b, k] else upper[b, k]
    if n < lower.shape[1]:
        cubes.set_hulls(lower, upper, j, a, b, n)


@jit_inline
def measure(lower, upper, j, weights, X, i, n_categories):
    """Return the `extension` of box `j` to row `i` of `X`, and its volume: 0 unless all its dimensions are live."""
    total, product, nothing = spread(0.0), spread(1.0), spread(0.0)
    n = first_category(lower.shape[1], n_categories)
    for k in range(0, n, LANES):
        live = within(n - k)
        x, weight = load_row(X, i, k, live, 0.0), load(weights, k, live, 0.0)
        low, high = load_row(lower, j, k, live, 0.0), load_row(upper, j, k, live, 1.0)
        total += weight * larger(larger(low - x, x - high), nothing)
        product *= high - low
    return with_categories(sum_of(total), lower, upper, j, weights, X, i, n), product_of(product)


@jit_inline
def live_share(lower, upper, j, delta, low, high, child, n_categories):
    """Return f: the share of the box `child` in the volume of its region, over the dimensions live in that box.

    The region is box `j`, restricted to `low` up to `high` along dimension `delta`.
    """
    part, whole, share, n = 1.0, 1.0, 1.0, first_category(lower.shape[1], n_categories)
    for k in range(n):
        length, side = upper[child, k] - lower[child, k], upper[j, k] - lower[j, k]
        side = high - low if k == delta else side
        part *= length if length > 0.0 else 1.0
        whole *= side if length > 0.0 else 1.0
    if are_distinguishable(part, whole):
        return min(part / whole, 1.0)
    for k in range(n):
        length, side = upper[child, k] - lower[child, k], upper[j, k] - lower[j, k]
        side = high - low if k == delta else side
        share *= length / side if length > 0.0 and side > length else 1.0
    return share


@jit_inline
def are_distinguishable(part, whole):
    """Return whether floats represent the volumes of a box and of a part of it without loss."""
    return part > _SMALL and whole < 1.0 / _SMALL


@jit_inline
def log_share(low, high, box_low, box_high):
    """Return the log of the share of [box_low, box_high] in [low, high], exact for shares near 0 and near 1."""
    whole, part = high - low, box_high - box_low
    gap = (box_low - low) + (high - box_high)
    if gap <= 0.0:
        return 0.0
    if gap < 0.5 * whole:
        return math.log1p(-max(gap / whole, _LEAST_GAP))
    return math.log(part) - math.log(whole)


@jit_inline
def log_live_share(lower, upper, delta, xi, is_left, box_lower, box_upper, n_categories):
    """Return log f: f is the share of a child's box in the volume of its region, over the dimensions live in the box.

    The region is the child's side of the cut (delta, xi) of the parent's box [lower, upper]; with ``delta < 0`` it is
    the whole box. Without dimensions f is 1.
    """
    total = 0.0
    for k in range(first_category(box_lower.shape[0], n_categories)):
        if box_lower[k] < box_upper[k]:
            low, high = lower[k], upper[k]
            if k == delta:
                low, high = (low, xi) if is_left else (xi, high)
            total += log_share(low, high, box_lower[k], box_upper[k])
    return total


@jit_borrowing_helper
def log_volume(lower, upper, n_categories):
    """Return the log of the volume over the live dimensions."""
    total = 0.0
    for k in range(first_category(lower.shape[0], n_categories)):
        if lower[k] < upper[k]:
            total += math.log(upper[k] - lower[k])
    return total
