"""Attribute the bits of a context window to its steps."""

from __future__ import annotations

from functools import cache

import numpy as np

from polyaforest.kernels.arrays import NONE, Array
from polyaforest.series.contexts import LENGTH, Layout, layout_of


def fold_on_steps(low: Array, high: Array, features: slice, readings: Array, usual: Array, deviations: Array) -> Array:
    """Distribute the bits of features to the steps that they depend on, (n, C), preserving the sum.

    A feature is a sum over steps: of weighted readings, changes or deviations. The bits of a high feature go to the
    steps that contribute more than usual, in proportion, and the bits of a low feature to the others; to all of its
    steps if there are none. Bits of the calendar and the phase go to the newest step.

    Parameters
    ----------
    low, high : ndarray of shape (F,)
        Bits of the features, for being low and for being high.
    features : slice
        Their columns among all features of a context window; columns beyond the last belong to the calendar.
    readings, usual, deviations : ndarray of shape (n, C)
        Readings of the context window, oldest first; usual readings; deviations from the rhythm.
    """
    n, n_channels = readings.shape
    layout, ages = layout_of(n_channels), _mirrored(n)
    newest_first = [part[::-1][ages] for part in (readings, usual, deviations)]
    folded = np.zeros((n, n_channels))
    channels, labels = layout.channels(), layout.names(["{}"] * n_channels)
    for k, place in enumerate(range(features.start, features.stop)):
        c = int(channels[place]) if place < len(channels) else NONE
        if c == NONE:
            folded[-1] += (low[k] + high[k]) / n_channels
            continue
        weights, added = _added(layout, labels[place], *(part[:, c] for part in newest_first))
        for bits, departure in ((high[k], added), (low[k], -added)):
            shares = np.maximum(departure, 0.0)
            shares = shares if shares.sum() > 0 else weights
            np.add.at(folded[::-1, c], ages, bits * (shares / shares.sum()))
    return folded


def _mirrored(n: int) -> Array:
    """Return the step, counted from the newest of `n`, for each age, mirrored as in `read_window`."""
    turn = np.arange(LENGTH) % (2 * n)
    return np.where(turn < n, turn, 2 * n - 1 - turn)


def _added(layout: Layout, label: str, readings: Array, usual: Array, deviations: Array) -> tuple[Array, Array]:
    """Return the weight of each age in a feature, and its contribution beyond the usual."""
    weights = _weights(layout.n_channels)[label]
    if label.startswith("volatility"):
        changes = np.abs(np.diff(readings, append=readings[-1]))
        added, usual = weights * (changes - changes[:-1].mean()), changes[: layout.steps[2][-1]].mean()
        if label == layout.stillness:
            is_still = np.cumprod(changes == 0).astype(np.bool_) & (np.arange(LENGTH) < layout.coordinates.most_still)
            added = np.where(is_still, -usual, added)
        return weights, added
    if label.startswith("deviation"):
        return weights, weights * deviations
    return np.abs(weights), weights * (readings - usual)


@cache
def _weights(n_channels: int) -> dict[str, Array]:
    """Return the weight of each age in the features of a channel, by label."""
    layout, ages = layout_of(n_channels), np.arange(LENGTH)
    edges, means, volatility = layout.steps
    waves = np.pad(layout.waves, ((0, 0), (0, LENGTH - layout.waves.shape[1])))
    rows = [
        *(np.where(ages < n, 1 / n, np.where(ages < 2 * n, -1 / n, 0.0)) for n in edges.tolist()),
        *(np.where(ages < n, 1 / n, 0.0) for n in (*means.tolist(), *volatility.tolist())),
        *waves,
    ]
    own = dict(zip(layout.coordinates.labels(), rows, strict=True))
    return own | {label: np.where(ages < n, 1 / n, 0.0) for n, label in layout.season_labels.items()}
