"""Coordinates of context windows: features of the last readings of a series at several scales.

All are fixed functions of the readings, nearly all of them linear.
"""

import numpy as np

from polyaforest.kernels.jit import jit_borrowing, jit_borrowing_helper


@jit_borrowing
def fill_contexts(values, places, starts, edges, means, volatility, waves, most_still, window, out):
    """Fill `out`, (n, C, K), with the coordinates of the context windows that end at the steps `places`.

    Parameters
    ----------
    values : float64 (S, C)
        Evenly spaced readings.
    places, starts : int64 (n,)
        The last step of each context window, and the first step of the unbroken run that ends there. If the run is
        shorter than the window, it is extended by its mirror image.
    edges : int64 (E,)
        Lengths n: the mean of the last n steps minus the mean of the n steps before.
    means : int64 (M,)
        Lengths n: the mean of the last n steps.
    volatility : int64 (R,)
        Lengths n: the mean absolute change from step to step over the last n steps. While readings do not change, each
        step lowers the first of these by the last: in noise, 0 is close to usual values, but a long constant run is
        unusual.
    waves : float64 (W, L)
        Functions of age, newest first, to project on.
    most_still : int
        Maximum number of unchanged steps that count.
    window : float64 (A,)
        Workspace for the readings of a context window, newest first; A is the largest age that a coordinate needs.
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
            for j in range(volatility.shape[0]):
                out[i, c, k] = mean_change(window, volatility[j])
                if j == 0:
                    usual = mean_change(window, volatility[volatility.shape[0] - 1])
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
    """Return the mean of the ages from `first` up to `last`; exact if all values are equal."""
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
    """Return the number of newest steps without change, up to `most`."""
    n = 0
    while n < most and window[n] == window[n + 1]:
        n += 1
    return n


@jit_borrowing
def fill_seasons(values, places, period, spans, out):
    """Fill `out`, (n, C, M), with mean deviations from the season over the last `spans` steps, int64 (M,), ascending.

    The deviation of a reading is its difference from the nearest of the readings one, two and three periods before, so
    that an anomaly has no echo a period later. It is 0 if fewer than two of them, or the reading itself, are known.
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
    """Return the difference of a reading from the nearest of those one, two and three periods before."""
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
    """Raise `out`, (n,), to the novelty of the n steps from `end` on, in any channel, times `weight`; NaN is lowest.

    Parameters
    ----------
    values : float64 (C, S)
        Channels; NaN where a value is missing.
    begin, end : int
        Range of the steps known before.
    most, least : int
        Maximum number of earlier steps to compare each step with, and minimum number of values among them.
    ranges : float64 (C, 3)
        The number of values among the known steps, the lowest and the highest; updated in place.
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
    """Return d / (d + `spread`), with d the distance to the nearest value from `begin` on; 0 if below 1 / 4096.

    Returning 0 for near values spares most readings the comparison with all others.
    """
    x, nearest = values[c, step], np.inf
    for other in range(step - 1, begin - 1, -1):
        distance = abs(x - values[c, other])
        if distance < nearest:  # False for NaN
            nearest = distance
            if nearest * 4096.0 <= spread:
                return 0.0
    return nearest / (nearest + spread)
