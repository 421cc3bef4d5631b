"""Boxes in NumPy: intervals of numbers and, in the last features, cubes of categories (see `Forest`)."""

from __future__ import annotations

import numpy as np

from polyaforest.kernels.arrays import ALL_YES, QUESTIONS, Array

APART = QUESTIONS / 2  # questions that two categories answer differently, on average


_PAIRS, _NIBBLES, _BYTES = 0x5555555555555, 0x3333333333333, 0xF0F0F0F0F0F0F  # every other 1, 2, 4 bits


def as_codes(values: Array) -> Array:
    """Return codes of categories as int64; 0 where missing."""
    return np.nan_to_num(values).astype(np.int64)


def count_bits(words: Array) -> Array:
    """Count the 1 bits of codes, for NumPy versions before 2."""
    words = words - ((words >> 1) & _PAIRS)
    words = (words & _NIBBLES) + ((words >> 2) & _NIBBLES)
    words = (words + (words >> 4)) & _BYTES
    for shift in (8, 16, 32):
        words = words + (words >> shift)
    return np.asarray(words & 0x7F)


def is_code(values: Array) -> Array:
    """Return which numbers are valid codes of categories."""
    is_whole: Array = (values >= 0) & (values <= ALL_YES) & (values == np.floor(values))  # False for NaN
    return is_whole


def empty_box(n_features: int, n_categories: int = 0) -> Array:
    """Return the empty box, (2, D), the neutral element of hulls."""
    box = np.repeat([[np.inf], [-np.inf]], n_features, axis=1)
    box[:, n_features - n_categories :] = [[ALL_YES], [0.0]]
    return box


def whole_cube(n_categories: int) -> Array:
    """Return the box, (2, F), that holds all categories."""
    return np.repeat([[0.0], [ALL_YES]], n_categories, axis=1)


def bounding_box(rows: Array, n_categories: int = 0) -> Array:
    """Return the smallest box that holds all rows, (2, D)."""
    n = rows.shape[1] - n_categories
    codes = as_codes(rows[:, n:])
    cube = np.stack([np.bitwise_and.reduce(codes, axis=0), np.bitwise_or.reduce(codes, axis=0)])
    return np.hstack([np.stack([rows[:, :n].min(axis=0), rows[:, :n].max(axis=0)]), cube])


def hull(a: Array, b: Array, n_categories: int = 0) -> Array:
    """Return the smallest boxes that hold both, (2, ..., D) each."""
    joined = np.stack([np.minimum(a[0], b[0]), np.maximum(a[1], b[1])])
    if n_categories:
        ours, theirs = (as_codes(part[..., -n_categories:]) for part in (a, b))
        joined[0, ..., -n_categories:] = ours[0] & theirs[0]
        joined[1, ..., -n_categories:] = ours[1] | theirs[1]
    return joined


def distances(box: Array, rows: Array, n_categories: int = 0) -> Array:
    """Return how far each row lies outside a box along each feature, (n, D); the box is (2, D), or (2, n, D) by row."""
    apart = np.maximum(np.maximum(box[0] - rows, rows - box[1]), 0.0)
    if n_categories:
        codes, (low, high) = (as_codes(part[..., -n_categories:]) for part in (rows, box))
        apart[:, -n_categories:] = count_bits((low & ~codes) | (codes & ~high)) / APART
    return np.asarray(apart)


def answers(low: Array, high: Array, question: Array) -> tuple[Array, Array]:
    """Split cubes by a question: return the upper ends of the parts with answer no, the lower ends of the others."""
    asked = np.int64(1) << question.astype(np.int64)
    return as_codes(high) & ~asked, as_codes(low) | asked


def answer(codes: Array, question: float) -> Array:
    """Return which codes answer yes to a question."""
    is_yes: Array = (as_codes(codes) >> int(question)) & 1 == 1
    return is_yes


def are_within(rows: Array, box: Array, n_categories: int = 0) -> Array:
    """Return which rows lie in the closed box; rows with missing values do not."""
    n = rows.shape[1] - n_categories
    is_within = np.asarray(((rows[:, :n] >= box[0, :n]) & (rows[:, :n] <= box[1, :n])).all(axis=1))
    if n_categories:
        is_within = is_within & (distances(box[:, n:], rows[:, n:], n_categories) == 0).all(axis=1)
    return is_within
