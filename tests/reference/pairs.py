"""Rare pairs of values, counted one by one: slow and exact, for points without missing values."""

from collections import Counter
from itertools import combinations
from math import ceil, exp, log, log2

import numpy as np


def costs_in_steps(points, n_categories, rows, *, are_held=False):
    """Return the cost of the most avoided pair of each row; with `are_held` the rows are the points, each left out."""
    n, n_features = points.shape
    n_numbers = n_features - n_categories
    partitions = {k: partition(points[:, k].tolist(), k < n_numbers) for k in range(n_features)}
    partitions = {k: bins for k, bins in partitions.items() if bins is not None}
    pairs = [(a, b) for a, b in combinations(partitions, 2) if b >= n_numbers]

    def bin_of(row, k):
        return partitions[k](row[k])

    single = {k: Counter(bin_of(row, k) for row in points) for k in partitions}
    double = {(a, b): Counter((bin_of(row, a), bin_of(row, b)) for row in points) for a, b in pairs}

    def rarity(row, pair, left_out):
        a, b = pair
        u, v = bin_of(row, a), bin_of(row, b)
        if u is None or v is None:
            return 0.0
        n_left, n_right, n_both = single[a][u] - left_out, single[b][v] - left_out, double[pair][u, v] - left_out
        expected, least = n_left * n_right / (n - left_out), 12 + log2(len(pairs))
        if n_both >= expected or expected <= least * log(2) or lower_tail(n_both, expected) > 2.0**-least:
            return 0.0
        return log2((expected + 2) / (n_both + 2))

    def rarest(row):
        return max((rarity(row, pair, 1) for pair in pairs), default=0.0)

    def cell(row, pair):
        return bin_of(row, pair[0]), bin_of(row, pair[1])

    held = [rarest(row) for row in points]

    def cost(row, pair, i):
        own = rarity(row, pair, int(i is not None))
        if not own > 0:
            return 0.0
        rarer = [j for j in range(n) if j != i and held[j] >= own]
        same = sum(cell(points[j], pair) == cell(row, pair) for j in range(n) if j != i)
        n_rarer, n_others = max(len(rarer) - min(same, 2), 0), n - (i is not None)
        if n_rarer <= max((n_others + 1) // 2048 - 1, 0):
            return 10.0
        return min(max(log2((n_others + 1) / (1 + n_rarer)) - 4, 0.0), 4.0)

    places = range(n) if are_held else [None] * len(rows)
    return np.array(
        [max((cost(row, pair, i) for pair in pairs), default=0.0) for row, i in zip(rows, places, strict=True)]
    )


def partition(values, is_number):
    """Return the function that bins a column, None for values in no bin; None if it has no two common values."""
    if is_number:
        ascending = sorted(values)
        bounds = sorted({ascending[max(ceil(j / 8 * len(values)) - 1, 0)] for j in range(1, 8)} - {ascending[-1]})
        return (lambda value: sum(bound < value for bound in bounds)) if bounds else None
    common = [code for code, count in Counter(sorted(values)).most_common(32) if count >= 8]
    return (lambda value: value if value in common else None) if len(common) > 1 else None


def lower_tail(count, mean):
    """Return the probability of at most `count` events of a Poisson process."""
    term = total = exp(-mean)
    for k in range(1, count + 1):
        term *= mean / k
        total += term
    return total
