"""Reference for masses: the Beta distributions of a forest, read from its arrays (see docs, How it works)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import NONE, LeafKind

OUTSIDE = "outside"


class Shares(NamedTuple):
    """Parameters of all Beta shares of a tree, and for each place the shares whose product is its mass.

    A place is a node with True for what lies in its box, or with False for what the restriction to it left out; or
    OUTSIDE. A factor is the number of a share, and whether the share itself counts or what it leaves.
    """

    betas: list[tuple[float, float]]
    places: dict[object, list[tuple[int, bool]]]

    def moments(self, place):
        """Return E[m] and E[m²] of the mass of a place."""
        first = second = 1.0
        for number, is_itself in self.places[place]:
            a, b = self.betas[number] if is_itself else self.betas[number][::-1]
            first *= a / (a + b)
            second *= a * (a + 1) / ((a + b) * (a + b + 1))
        return first, second

    def draw(self, rng, n):
        """Draw log shares and log complements, each (number of shares, n)."""
        first, second = (np.array([log_gammas(rng, beta[side], n) for beta in self.betas]) for side in (0, 1))
        whole = np.logaddexp(first, second)
        return first - whole, second - whole

    def log_masses(self, place, draws):
        """Return the log masses of a place for draws of all shares."""
        total = np.zeros(draws[0].shape[1])
        for number, is_itself in self.places[place]:
            total += draws[0 if is_itself else 1][number]
        return total


def log_gammas(rng, a, n):
    """Draw logarithms of Gamma(a), which underflows for small `a`."""
    return np.log(rng.gamma(a + 1, size=n)) - rng.exponential(size=n) / a


def shares_of_tree(forest, t, prior):
    """Return the Betas of tree `t`, for data whose volumes are floats."""
    betas, places = [], {}
    boxed, gamma, root = forest.lower.shape[2] > 0, prior.strength, forest.root[t]
    lower, upper = forest.domain.copy()
    if boxed:
        lower, upper = np.minimum(lower, forest.lower[t, root]), np.maximum(upper, forest.upper[t, root])

    def add(a, b):
        betas.append((a, b))
        return len(betas) - 1

    def restrict(j, low, high, strength, factors, depth):
        if boxed:
            box_low, box_high = forest.lower[t, j], forest.upper[t, j]
            live = box_low < box_high
            f = np.prod((box_high - box_low)[live] / (high - low)[live])
            low, high = np.where(live, box_low, low), np.where(live, box_high, high)
            if f < 1:
                share = add(strength * f + forest.counts[t, j], strength * (1 - f))
                places[j, False] = [*factors, (share, False)]
                factors = [*factors, (share, True)]
        places[j, True] = factors
        if forest.left[t, j] != NONE:
            cut(j, low, high, factors, depth)

    def cut(j, low, high, factors, depth):
        delta, xi = forest.feature[t, j], forest.cut[t, j]
        left, right = forest.left[t, j], forest.right[t, j]
        p = (xi - low[delta]) / (high[delta] - low[delta])
        a = gamma * (2 * depth + 1) ** 2 if boxed else gamma * (depth + 1) ** 2
        share = add(a * p + forest.counts[t, left], a * (1 - p) + forest.counts[t, right])
        for child, is_left in ((left, True), (right, False)):
            child_low, child_high = low.copy(), high.copy()
            (child_high if is_left else child_low)[delta] = xi
            restrict(
                child, child_low, child_high, gamma * (2 * depth + 2) ** 2, [*factors, (share, is_left)], depth + 1
            )

    factors = []
    if prior.is_open:
        n_out, n_in = forest.outside[t], forest.counts[t, root]
        outside = add(gamma / 2 + n_out, gamma / 2 + n_in)
        places[OUTSIDE], factors = [(outside, True)], [(outside, False)]
    restrict(root, lower, upper, gamma, factors, 0)
    return Shares(betas, places)


def places_of_rows(detector, X):
    """Return the place of each row in each tree and the factor of its mass, both (n, T)."""
    forest, world = detector.forest_, detector.posterior_.world
    leaves = detector.leaves(X)
    places, weights = np.empty(leaves.node.shape, object), np.ones(leaves.node.shape)
    for i, t in np.ndindex(*places.shape):
        node, kind = leaves.node[i, t], leaves.kind[i, t]
        if kind == LeafKind.OUTSIDE:
            low, high = world[:, t]
            away = np.maximum(np.maximum(low - X[i], X[i] - high), 0)
            places[i, t] = OUTSIDE
            weights[i, t] = 1 / (1 + forest.weights[t] @ away / (forest.weights[t] @ (high - low)))
        else:
            is_left_out = kind == LeafKind.COMPLEMENTARY and forest.lower.shape[2] > 0
            places[i, t] = (node, not is_left_out)
    return places, weights


def cells_of_rows(detector, X, lifetime):
    """Like `places_of_rows`, for cells at a lifetime."""
    forest = detector.forest_
    boxed = forest.lower.shape[2] > 0
    places, weights = np.empty((len(X), len(forest.root)), object), np.ones((len(X), len(forest.root)))
    for i, t in np.ndindex(*places.shape):
        j, began, hazard = forest.root[t], 0.0, 0.0
        while True:
            low, high = (forest.lower[t, j], forest.upper[t, j]) if boxed else forest.domain
            away = forest.weights[t] @ np.maximum(np.maximum(low - X[i], X[i] - high), 0)
            ends = forest.time[t, j]
            if away > 0:
                hazard += (min(ends, lifetime) - began) * away
            if ends > lifetime or forest.left[t, j] == NONE:
                break
            goes_left = X[i, forest.feature[t, j]] <= forest.cut[t, j]
            j, began = (forest.left if goes_left else forest.right)[t, j], ends
        places[i, t], weights[i, t] = (j, True), np.exp(-hazard)
    return places, weights
