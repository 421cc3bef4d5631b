"""Surprise of the newest readings of a series: the exact Mondrian kernel over the readings before.

A Mondrian forest estimates the mean of exp(-t * distance) over its points, where the distance is the weighted L1
distance and t the lifetime. For shingles of a few readings the sum over all points is as fast as a forest, has no
noise, and needs no trees: readings can be left out, and weights can change, at any time.
"""

import numpy as np

from polyaforest.kernels.jit import jit_borrowing, jit_borrowing_helper

_SCALE = 64.0  # exp(-x) is computed as exp(-x / 64) ** 64


@jit_borrowing
def fill_surprise(values, is_known, rows, begins, ends, weights, lengths, is_apart, distances, out):
    """Fill `out`, (n, K), with the surprise of the shingles that end at the steps `rows`, in nats.

    The surprise is minus the log of the mean kernel over known shingles, averaged over the lifetimes 1, 3 and 9.

    Parameters
    ----------
    values : float64 (C, S)
        Channels; NaN where a value is missing, which adds nothing to distances.
    is_known : bool (S,)
        Whether the shingle that ends at a step takes part in the mean.
    rows, begins, ends : int64 (n,)
        The steps to measure, and for each the range of steps at which the shingles to compare with end.
    weights : float64 (C,)
        Weight of each channel. The distance of shingles is the mean over their readings.
    lengths : int64 (K,)
        Lengths of the shingles, ascending.
    is_apart : bool
        Whether shingles that share readings with the one measured are left out.
    distances : float64 (W,)
        Workspace, for the largest range.
    """
    for r in range(rows.shape[0]):
        step, begin, n = rows[r], begins[r], ends[r] - begins[r]
        for i in range(n):
            distances[i] = 0.0
        n_added = 0
        for k in range(lengths.shape[0]):
            add_lags(values, step, begin, n, n_added, lengths[k], weights, distances)
            n_added = lengths[k]
            reach = n_added if is_apart else 0
            share = 1.0 / np.float64(n_added * values.shape[0])
            out[r, k] = surprise_of(is_known, step, begin, n, reach, share, distances)


@jit_borrowing_helper
def add_lags(values, step, begin, n, first, last, weights, distances):
    """Add the distances of the readings `first` to before `last` steps back to `distances`."""
    for lag in range(first, last):
        for c in range(values.shape[0]):
            x, weight, offset = values[c, step - lag], weights[c], begin - lag
            if np.isnan(x):
                continue
            for i in range(n):
                gap = abs(x - values[c, offset + i]) * weight
                distances[i] += gap if gap == gap else 0.0  # noqa: PLR0124 -- NaN


@jit_borrowing_helper
def surprise_of(is_known, step, begin, n, reach, share, distances):
    """Return the surprise, given the distances times 1 / `share`; infinite if no shingle is known.

    Shingles that end fewer than `reach` steps from `step` are left out.
    """
    nearest, n_known = np.inf, 0
    for i in range(n):
        if is_known[begin + i] and abs(begin + i - step) >= reach:
            n_known += 1
            nearest = min(nearest, distances[i])
    if n_known == 0:
        return np.inf
    one, three, nine = 0.0, 0.0, 0.0
    for i in range(n):
        if is_known[begin + i] and abs(begin + i - step) >= reach:
            mass = negative_exponential((distances[i] - nearest) * share)
            cube = mass * mass * mass
            one += mass
            three += cube
            nine += cube * cube * cube
    logs = np.log(one / n_known) + np.log(three / n_known) + np.log(nine / n_known)
    return (13.0 * nearest * share - logs) / 3.0


@jit_borrowing_helper
def negative_exponential(x):
    """Return exp(-x) for x >= 0, within a relative error of 1e-5 up to 8, in a form that vectorises."""
    u = min(x / _SCALE, 0.75)
    power = 1.0 - u * (1.0 - u / 2.0 * (1.0 - u / 3.0 * (1.0 - u / 4.0 * (1.0 - u / 5.0))))
    for _ in range(6):
        power *= power
    return power
