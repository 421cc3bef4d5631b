"""Compiled SIMD operations match plain Python, bit for bit."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from polyaforest.kernels.jit import jit
from polyaforest.kernels.simd import (
    LANES,
    ascending,
    count_of,
    larger,
    load,
    load_row,
    pick,
    product_of,
    smaller,
    spread,
    store,
    sum_of,
    within,
)

pytestmark = pytest.mark.plain


def fold(matrix, j, vector):
    total, product, n_equal, n_below = spread(0.0), spread(1.0), 0, 0
    for k in range(0, matrix.shape[1], LANES):
        live = within(matrix.shape[1] - k)
        a, b = load_row(matrix, j, k, live, 0.0), load(vector, k, live, 1.0)
        total += a
        product *= b
        n_equal += count_of(a == b)
        n_below += count_of(a <= b) - (LANES - count_of(live))  # lanes not live hold 0 and 1
    return sum_of(total), product_of(product), n_equal, n_below


def transform(matrix, j, vector, out):
    for k in range(0, matrix.shape[1], LANES):
        live = within(matrix.shape[1] - k)
        a, b = load_row(matrix, j, k, live, 0.0), load(vector, k, live, 1.0)
        store(out[0], k, live, larger(a, b) - smaller(a, b))
        store(out[1], k, live, pick(a == b, ascending(1.0 * k), a / b))
        store(out[2], k, live, a * b + a)


compiled_fold, compiled_transform = jit(fold), jit(transform)


def numbers(width):
    rng = np.random.default_rng(width)
    matrix = rng.normal(size=(3, width))
    return matrix, np.where(rng.random(width) < 0.3, matrix[1], rng.normal(size=width))


@pytest.mark.parametrize("width", range(11))
def test_compiled_folds_match_plain_python(width):
    matrix, vector = numbers(width)
    assert compiled_fold(matrix, 1, vector) == fold(matrix, 1, vector)
    total, product, n_equal, n_below = fold(matrix, 1, vector)
    assert total == pytest.approx(matrix[1].sum(), rel=1e-12, abs=1e-12)
    assert product == pytest.approx(vector.prod(), rel=1e-12)
    assert n_equal == (matrix[1] == vector).sum()
    assert n_below == (matrix[1] <= vector).sum()


@pytest.mark.parametrize("width", range(11))
def test_compiled_store_writes_only_its_row(width):
    matrix, vector = numbers(width)
    out, expected = np.full((4, width), 7.0), np.full((4, width), 7.0)
    compiled_transform(matrix, 1, vector, out)
    transform(matrix, 1, vector, expected)
    assert_array_equal(out, expected)
    row = matrix[1]
    plain = [np.abs(row - vector), np.where(row != vector, row / vector, np.arange(width)), row * vector + row]
    assert_array_equal(out, [*plain, np.full(width, 7.0)])


def copy_first(vector, n, out):
    live = within(n)
    store(out, 1, live, load(vector, 0, live, 0.0))


@pytest.mark.parametrize("copy", [copy_first, jit(copy_first)])
@pytest.mark.parametrize("n", range(LANES + 1))
def test_dead_lanes_are_neither_read_nor_written(copy, n):
    out = np.zeros(9)
    copy(np.arange(1.0, 9.0), n, out)
    assert_array_equal(out, [0.0, *range(1, n + 1), *np.zeros(8 - n)])


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="plain Python takes any layout")
def test_rejects_non_contiguous_rows():
    matrix, vector = numbers(8)
    with pytest.raises(numba.TypingError):
        compiled_fold(np.asfortranarray(matrix), 1, vector)
