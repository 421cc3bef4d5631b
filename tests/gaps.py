"""Reference for rows with missing values: masses computed leaf by leaf and cell by cell."""

import math

import numpy as np

from polyaforest.kernels.boxes import APART, as_codes, count_bits, distances

NONE = -1


def first_category(forest):
    return forest.weights.shape[1] - int(forest.n_categories[0])


def apart(box, x, forest):
    """Distance of a row from a box by feature; missing values do not count."""
    return np.where(np.isnan(x), 0.0, distances(np.stack(box), x[None], int(forest.n_categories[0]))[0])


def hide(rows, hidden):
    """Copy rows, without the values of hidden columns."""
    return np.where(hidden, np.nan, rows)


def sides(forest, t, j, low, high, opened):
    """Regions of a node's children: corners, and whether the lower side is open."""
    delta, xi = forest.feature[t, j], forest.cut[t, j]
    upper, lower, is_open = high.copy(), low.copy(), opened.copy()
    if delta >= first_category(forest):
        upper[delta] = int(high[delta]) & ~(1 << int(xi))
        lower[delta] = int(low[delta]) | (1 << int(xi))
        return (forest.left[t, j], low, upper, opened), (forest.right[t, j], lower, high, is_open)
    upper[delta], lower[delta], is_open[delta] = min(high[delta], xi), max(low[delta], xi), True
    return (forest.left[t, j], low, upper, opened), (forest.right[t, j], lower, high, is_open)


def holds(value, low, high, is_open):
    return (low < value if is_open else low <= value) and value <= high


def leaves_of(forest, known, t):
    """All leaves of a tree: log mass, and a test whether a row may be in it."""
    boxed, n = forest.lower.shape[2] > 0, first_category(forest)
    found = []

    def walk(j, low, high, opened):
        live = forest.lower[t, j] < forest.upper[t, j] if boxed else np.zeros(len(low), bool)
        live[n:] = False  # a category restricts nothing
        in_low = np.where(live, forest.lower[t, j], low) if boxed else low
        in_high = np.where(live, forest.upper[t, j], high) if boxed else high

        def may_be_in_region(x):
            numbers = zip(x[:n], low[:n], high[:n], opened[:n], strict=True)
            is_in_cube = (apart((low, high), x, forest)[n:] == 0).all()
            return is_in_cube and all(np.isnan(v) or holds(v, *side) for v, *side in numbers)

        def may_be_left_out(x):
            return may_be_in_region(x) and any(
                (low[k] < in_low[k] or in_high[k] < high[k]) if np.isnan(x[k]) else not in_low[k] <= x[k] <= in_high[k]
                for k in np.flatnonzero(live)
            )

        def may_be_in_box(x):
            return may_be_in_region(x) and all(
                np.isnan(x[k]) or in_low[k] <= x[k] <= in_high[k] for k in np.flatnonzero(live)
            )

        if live.any():
            found.append((known.complement[t, j], may_be_left_out))
        if forest.left[t, j] == NONE:
            found.append((known.inside[t, j], may_be_in_box))
            return
        for child in sides(forest, t, j, in_low, in_high, opened & ~live):
            walk(*child)

    low, high = known.world[0, t].copy(), known.world[1, t].copy()
    walk(forest.root[t], low, high, np.zeros(len(low), bool))
    return found


def plain_mass(forest, known, t, x):
    """Total mass of the leaves that may contain a row."""
    low, high = known.world[0, t], known.world[1, t]
    excess, lengths, n = apart((low, high), x, forest), high - low, first_category(forest)
    lengths[n:] = count_bits(as_codes(low[n:]) ^ as_codes(high[n:])) / APART
    reach = (forest.weights[t] * excess).sum() / ((forest.weights[t] * lengths).sum() or 1.0)
    is_within = (excess == 0).all()
    within = sum(math.exp(log_mass) for log_mass, may_be in leaves_of(forest, known, t) if is_within and may_be(x))
    return within + math.exp(known.outside[t]) / (1.0 + reach)


def plain_cells(forest, known, t, x, time):
    """Cells that may contain a row at a time: node and log weight."""
    boxed = forest.lower.shape[2] > 0

    def walk(j, began, log_weight):
        low = forest.lower[t, j] if boxed else forest.domain[0]
        high = forest.upper[t, j] if boxed else forest.domain[1]
        rate = float((forest.weights[t] * apart((low, high), x, forest)).sum())
        ends, is_leaf = forest.time[t, j], forest.left[t, j] == NONE
        if time < ends or is_leaf:
            elapsed = min(time, ends) - began
            yield j, log_weight - (elapsed * rate if rate else 0.0)
            return
        value, xi = x[forest.feature[t, j]], forest.cut[t, j]
        if forest.feature[t, j] >= first_category(forest) and not np.isnan(value):
            value, xi = int(value) >> int(xi) & 1, 0
        log_weight -= (ends - began) * rate if rate else 0.0
        if not value > xi:
            yield from walk(forest.left[t, j], ends, log_weight)
        if not value <= xi:
            yield from walk(forest.right[t, j], ends, log_weight)

    return [(j, known.inside[t, j] + log_weight) for j, log_weight in walk(forest.root[t], 0.0, 0.0)]
