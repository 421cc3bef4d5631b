"""Coordinates of context windows: what the last readings of a series look like at several scales.

All are fixed functions of the readings, nearly all linear, so a Mondrian tree over them is a Mondrian tree.
"""

import numpy as np

from polyaforest.core.jit import jit_borrowing, jit_borrowing_helper


@jit_borrowing
def fill_contexts(values, places, starts, edges, means, roughness, waves, most_still, window, out):
    """Fill `out`, (n, C, K), with the coordinates of the context windows that end at the steps `places`.

    Parameters
    ----------
    values : float64 (S, C)
        Readings in even steps.
    places, starts : int64 (n,)
        The step at which each context window ends, and the first of the unbroken steps before it. Where the run is
        shorter than the window, its mirror image stands in for what came before.
    edges : int64 (E,)
        Numbers of steps: the mean of the last so many, minus that of as many before.
    means : int64 (M,)
        The mean of the last so many.
    roughness : int64 (R,)
        The mean absolute change from step to step over the last so many. While readings stand still, the first is less
        by the last for each step: in noise, zero is not far from what is usual, but a long silence is.
    waves : float64 (W, L)
        Functions of age, newest first, to project on.
    most_still : int
        Most steps of standing still that count.
    window : float64 (A,)
        Workspace for the readings of a context window, newest first; A is the longest age that a coordinate needs.
    """
    for i in range(places.shape[0]):
        for c in range(values.shape[1]):
            read_window(values, places[i], starts[i], c, window)
            k = 0
            for j in range(edges.shape[0]):
                n = edges[j]
                out[i, c, k] = mean_of(window, 0, n) - mean_of(window, n, 2 * n)
                k += 1
            for j in range(means.shape[0]):
                out[i, c, k] = mean_of(window, 0, means[j])
                k += 1
            for j in range(roughness.shape[0]):
                out[i, c, k] = mean_change(window, roughness[j])
                if j == 0:
                    usual = mean_change(window, roughness[roughness.shape[0] - 1])
                    out[i, c, k] -= usual * count_still(window, most_still)
                k += 1
            for j in range(waves.shape[0]):
                total = 0.0
                for age in range(waves.shape[1]):
                    total += waves[j, age] * window[age]
                out[i, c, k] = total
                k += 1


@jit_borrowing_helper
def read_window(values, place, start, c, window):
    """Read the steps up to `place` of channel `c`, newest first, mirrored at `start`."""
    n = place - start + 1
    for age in range(window.shape[0]):
        turn = age % (2 * n)
        window[age] = values[place - (turn if turn < n else 2 * n - 1 - turn), c]


@jit_borrowing_helper
def mean_of(window, first, last):
    """Return the mean of the ages from `first` up to `last`; of equal values exactly their value."""
    total, base = 0.0, window[first]
    for age in range(first, last):
        total += window[age] - base
    return base + total / np.float64(last - first)


@jit_borrowing_helper
def mean_change(window, n):
    """Return the mean absolute change between neighbours among the newest `n` + 1 ages."""
    total = 0.0
    for age in range(n):
        total += abs(window[age] - window[age + 1])
    return total / np.float64(n)


@jit_borrowing_helper
def count_still(window, most):
    """Return how many of the newest steps have brought no change, at most so many."""
    n = 0
    while n < most and window[n] == window[n + 1]:
        n += 1
    return n


@jit_borrowing
def fill_seasons(values, places, period, spans, out):
    """Fill `out`, (n, C, M), with mean deviations from the rhythm over the last `spans` steps, int64 (M,), ascending.

    A reading deviates from the nearest of those one, two and three periods before it, so that an anomaly has no echo a
    period later; by 0 where fewer than two of them are known, or the reading itself is not.
    """
    for i in range(places.shape[0]):
        for c in range(values.shape[1]):
            total, k = 0.0, 0
            for age in range(spans[spans.shape[0] - 1]):
                total += deviation(values, places[i] - age, c, period)
                if age + 1 == spans[k]:
                    out[i, c, k] = total / np.float64(age + 1)
                    k += 1


@jit_borrowing_helper
def deviation(values, step, c, period):
    """Return how far a reading is from the nearest of those one, two and three periods before it."""
    if step < 0 or np.isnan(values[step, c]):  # missing
        return 0.0
    n, least = 0, np.inf
    for k in range(1, 4):
        before = step - k * period
        if before >= 0 and not np.isnan(values[before, c]):
            n += 1
            change = values[step, c] - values[before, c]
            if abs(change) < abs(least):
                least = change
    return least if n >= 2 else 0.0


@jit_borrowing
def fill_novelties(values, begin, end, most, least, weight, ranges, out):
    """Raise `out`, (n,), to how new the n steps from `end` on are, in any channel, times `weight`; NaN counts as least.

    Parameters
    ----------
    values : float64 (C, S)
        Channels; NaN where a value is missing.
    begin, end : int
        Where the steps known before begin and end.
    most, least : int
        Steps before each that it is compared with, at most, and values among them, at least.
    ranges : float64 (C, 3)
        How many values there are among the steps known, the lowest and the highest; afterwards of those known then.
    """
    for c in range(values.shape[0]):
        first, n, low, high = begin, ranges[c, 0], ranges[c, 1], ranges[c, 2]
        for i in range(out.shape[0]):
            step = end + i
            x = values[c, step]
            if not np.isnan(x):
                if n >= least:
                    share = weight * share_beyond(values, c, first, step, high - low)
                    if not out[i] >= share:
                        out[i] = share
                n, low, high = n + 1.0, min(low, x), max(high, x)
            if step + 1 - first > most:
                gone = values[c, first]
                first += 1
                if not np.isnan(gone):
                    n -= 1.0
                    if gone in (low, high):
                        low, high = range_of(values, c, first, step + 1)
        ranges[c, 0], ranges[c, 1], ranges[c, 2] = n, low, high


@jit_borrowing_helper
def range_of(values, c, begin, end):
    """Return the lowest and the highest value from `begin` to before `end`."""
    low, high = np.inf, -np.inf
    for step in range(begin, end):
        x = values[c, step]
        if not np.isnan(x):
            low, high = min(low, x), max(high, x)
    return low, high


@jit_borrowing_helper
def share_beyond(values, c, begin, step, spread):
    """Return d / (d + `spread`), d the distance to the nearest value from `begin` on; 0 if it is less than 1 / 4096.

    So many values are not farther apart in the mean, and few readings need to be compared with all of them.
    """
    x, nearest = values[c, step], np.inf
    for other in range(step - 1, begin - 1, -1):
        distance = abs(x - values[c, other])
        if distance < nearest:  # which NaN is not
            nearest = distance
            if nearest * 4096.0 <= spread:
                return 0.0
    return nearest / (nearest + spread)
