"""Compilation of kernels and helpers."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from polyaforest.kernels.jit import direct, jit_borrowing, jit_helper

compiled_only = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")


@jit_helper
def pick(values, k, doubled):
    return 2 * values[k] if doubled else values[k]


@numba.njit  # never from disk, where it would find the helper compiled
def pick_all(values, k):
    return pick(values, 0, True) + pick(values, k, False) + pick(values, np.int32(k), k > 1)


@compiled_only
def test_helper_compiles_once_for_all_integer_types():
    assert pick_all(np.array([1, 10, 100]), 2) == 2 + 100 + 200
    assert len(pick.signatures) == 1


@compiled_only
def test_helper_rejects_calls_from_python():
    values = np.array([1, 10, 100])
    with pytest.raises(TypeError, match="pick is a helper that only compiled kernels can call"):
        pick(values, 0, True)
    pick_all(values, 1)
    with pytest.raises(TypeError, match="only compiled kernels"):
        pick(values, 0, True)


def test_direct_call_matches_dispatched_call():
    @jit_borrowing
    def scale(pair, factor, out):
        for k in range(out.shape[0]):
            out[k] = pair[0][k] * factor + pair[1][k]

    call, ones, threes = direct(scale), np.ones(3), np.full(3, 3.0)
    for factor in (2.0, 4.0, 5.0):
        out = np.empty(3)
        call((ones, threes), factor, out)
        assert out.tolist() == [factor + 3.0] * 3
