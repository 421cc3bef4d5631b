"""Hypothesis strategies: data, weights and limits of forests."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from hypothesis import strategies as st

from polyaforest.forest.retention import Reservoir, Window
from polyaforest.forest.spec import Weighting, weighting_of_domain, weighting_of_rows
from polyaforest.kernels.arrays import QUESTIONS
from polyaforest.kernels.boxes import bounding_box, whole_cube
from polyaforest.tables.validation import LARGEST, SMALLEST

WIDE = 400
SCALES = [SMALLEST * 1e6, 1e-9, 1.0, 1e9, LARGEST]  # times unit values, which may be as small as 1e-6

seeds = st.integers(0, 2**32 - 1)
depths = st.sampled_from([None, 0, 1, 2, 3, 10])
prior_strengths = st.sampled_from([0.001, 0.01, 1.0])
lifetimes = st.sampled_from([np.inf, 0.1, 1.0, 3.0])  # in units of the weighting


def unit_values():
    return st.floats(-1, 1, allow_subnormal=False).filter(lambda v: v == 0 or abs(v) > 1e-6)


@st.composite
def columns(draw, n):
    """Draw one feature of `n` rows: spread at any scale, far from zero, on a grid, in adjacent floats, or constant."""

    def values(element):
        return np.array(draw(st.lists(element, min_size=n, max_size=n)), np.float64)

    kind = draw(st.sampled_from(["scaled", "offset", "grid", "integer", "adjacent", "constant"]))
    if kind == "scaled":
        return draw(st.sampled_from(SCALES)) * values(unit_values())
    if kind == "offset":
        return 1.7e9 + values(unit_values())
    if kind == "grid":
        return values(st.integers(0, 4)) / 4
    if kind == "integer":
        return values(st.integers(-(2**40), 2**40))
    if kind == "adjacent":
        return 1.0 + values(st.integers(0, 3)) * np.finfo(np.float64).eps
    return np.full(n, draw(st.sampled_from(SCALES)) * draw(unit_values()))


@st.composite
def narrow_matrices(draw, max_rows, max_features):
    """Draw few features of mixed kinds, sometimes with repeated rows or all rows on a line."""
    n, n_features = draw(st.integers(1, max_rows)), draw(st.integers(1, max_features))
    rows = np.stack([draw(columns(n)) for _ in range(n_features)], axis=1)
    twist = draw(st.sampled_from(["plain", "repeated", "collinear"]))
    if twist == "repeated":
        rows = rows[draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))]
    if twist == "collinear":
        rows = rows[:, :1] * np.array(draw(st.lists(st.integers(-2, 2), min_size=n_features, max_size=n_features)))
    return np.ascontiguousarray(rows.clip(-LARGEST, LARGEST))


@st.composite
def wide_matrices(draw, max_rows=4):
    """Draw few rows of hundreds of features; every seventh feature is constant."""
    rows = np.random.default_rng(draw(seeds)).normal(size=(draw(st.integers(1, max_rows)), WIDE))
    rows[:, ::7] = 3.0
    return rows


def matrices(max_rows=10, max_features=4):
    """Return a strategy for matrices: mostly narrow, one in eight wide."""
    wide = st.integers(0, 7).map(lambda k: k == 7)
    return wide.flatmap(lambda is_wide: wide_matrices() if is_wide else narrow_matrices(max_rows, max_features))


@st.composite
def categories(draw, n):
    """Draw a categorical feature of `n` rows: few codes, some differing in a single bit, or a constant."""
    seed = draw(seeds)
    pool = np.random.default_rng(seed).integers(0, 2**QUESTIONS, 4)
    pool = np.array([*pool, pool[0] ^ 1, pool[0] ^ (1 << (QUESTIONS - 1)), 0, 2**QUESTIONS - 1])
    places = draw(st.lists(st.integers(0, draw(st.integers(0, len(pool) - 1))), min_size=n, max_size=n))
    return pool[places].astype(np.float64)


@st.composite
def mixed(draw, matrices):
    """Draw a matrix with categories appended or instead of numbers; return it and the number of categories."""
    rows, n_categories = draw(matrices), draw(st.sampled_from([0, 0, 1, 2, 3]))
    codes = [draw(categories(len(rows))) for _ in range(n_categories)]
    numbers = [] if n_categories and draw(st.integers(0, 4)) == 0 else [rows]
    return np.ascontiguousarray(np.column_stack([*numbers, *codes])), n_categories


@st.composite
def feature_weights(draw, n_features):
    """Draw feature weights, some but not all zero; None for random weights."""
    if draw(st.booleans()):
        return None
    few = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=4))
    weights = np.resize(few, n_features)
    weights[draw(st.integers(0, n_features - 1))] = 1.0
    return weights


@st.composite
def weightings(draw, rows=None, domain=None, n_categories=0):
    """Draw the feature weighting of a forest over `rows` or `domain`."""
    measured: Weighting = (
        weighting_of_domain(domain, n_categories) if rows is None else weighting_of_rows(rows, n_categories)
    )
    return measured._replace(fixed=draw(feature_weights(len(measured.spread))))


@st.composite
def domains(draw, rows, n_categories=0):
    """Draw a box around all or some of the `rows`; constant features may have zero length."""
    if n_categories:
        n, chosen = rows.shape[1] - n_categories, rows[: draw(st.integers(1, len(rows)))]
        numbers = draw(domains(rows[:, :n])) if n else np.empty((2, 0))
        whole = draw(st.booleans())
        return np.hstack([numbers, whole_cube(n_categories) if whole else bounding_box(chosen[:, n:], n_categories)])
    low, high = rows.min(axis=0), rows.max(axis=0)
    span = high - low
    margin = draw(st.sampled_from([0.0, 0.25, -0.25]))
    low, high = low - margin * span, high + margin * span
    if draw(st.booleans()):
        high = np.where(span > 0, high, high + np.maximum(np.abs(high), 1.0))
    return np.stack([low, np.maximum(low, high)])


def probes(rows, seed, n_categories=0):
    """Return query points: the rows, mixtures of them, points between them, just outside, and far away.

    Categories are those of the rows in other combinations, and new ones.
    """
    if n_categories:
        n, rng = rows.shape[1] - n_categories, np.random.default_rng([seed, 1])
        numbers = probes(rows[:, :n], seed) if n else np.empty((19, 0))
        codes = rows[rng.integers(len(rows), size=(len(numbers), n_categories)), np.arange(n, rows.shape[1])]
        is_new = rng.random(codes.shape) < 0.2
        codes = np.where(is_new, rng.integers(0, 2**QUESTIONS, codes.shape), codes)
        return np.ascontiguousarray(np.concatenate([rows[:4], np.hstack([numbers, codes])]))
    rng = np.random.default_rng(seed)
    low, high = rows.min(axis=0), rows.max(axis=0)
    span = np.where(high > low, high - low, np.maximum(np.abs(high), 1e-3))
    n, n_features = rows.shape
    mixed = rows[rng.integers(n, size=(4, n_features)), np.arange(n_features)]
    between = low + rng.random((4, n_features)) * (high - low)
    one_off = rows[rng.integers(n, size=4)]
    feature = rng.integers(n_features, size=4)
    one_off[np.arange(4), feature] += span[feature] * np.array([-2.0, -0.3, 0.3, 2.0])
    far = np.stack([low - 0.1 * span, high + 0.1 * span, low - 30.0 * span])
    return np.concatenate([rows[:4], mixed, between, one_off, far]).clip(-LARGEST, LARGEST)


def rows_of_a_stream(max_features=4):
    """Return a strategy for a few rows, from which streams with recurring rows are drawn."""
    return narrow_matrices(max_rows=7, max_features=max_features)


@st.composite
def histories(draw, n_rows, max_size=24):
    """Draw operations on a stream: a list of steps for each chunk.

    Step ``i >= 0``: learn row i. ``~k``: delete the k-th of the points held (modulo their number). ``(i,)``: score row
    i without learning it.
    """
    comes, goes = st.integers(0, n_rows - 1), st.integers(0, 11).map(lambda k: ~k)
    looked_at = comes.map(lambda i: (i,))
    step = st.one_of(comes, comes, goes, looked_at, st.none())
    chunks = [[]]
    for event in draw(st.lists(step, min_size=2, max_size=max_size)):
        if event is None:
            chunks.append([])
        else:
            chunks[-1].append(event)
    return [chunk for chunk in chunks if chunk]


policies = st.one_of(
    st.builds(Window, st.integers(1, 6)),
    st.builds(Window, st.none() | st.integers(1, 6), duration=st.sampled_from([1.0, 2.5, 6.0])),
    st.builds(Reservoir, st.integers(1, 6)),
    st.builds(Reservoir, st.integers(1, 6), half_life=st.sampled_from([0.5, 3.0, timedelta(seconds=2)])),
)
stream_times = st.sampled_from([0.0, 0.5, 1.0, 3.0, -0.5, -2.0])  # relative to the latest point


CODES = [0.0, 1.0, 3.0, 2.0**QUESTIONS - 1, float(0x5A5A5A5A5A5A5), float(0x123456789ABCD)]


@st.composite
def stream_points(draw, n_features, n_categories=0):
    """Draw points that are often equal or share coordinates, with zeros of both signs; the last features are codes."""
    n = n_features - n_categories
    numbers = draw(st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 1e6]), min_size=n, max_size=n))
    return numbers + draw(st.lists(st.sampled_from(CODES), min_size=n_categories, max_size=n_categories))
