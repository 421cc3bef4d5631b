"""Compilation of kernels and helpers."""

from __future__ import annotations

from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary
from numba.core.cpu import CPUTargetOptions
from numba.core.dispatcher import Dispatcher

from polyaforest.kernels.jit import (
    borrowing_options,
    direct,
    helper_options,
    jit_borrowing,
    jit_helper,
    of_few_types,
)

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


class Bare:
    """A class of a future Numba, without the parts that kernels replace or call."""


def test_this_numba_has_all_parts():
    assert helper_options(JITCodeLibrary, Dispatcher).keys() == {"no_cpython_wrapper", "pipeline_class"}
    assert borrowing_options(CPUTargetOptions) == {"error_model": "numpy", "_nrt": False}


def test_without_a_part_of_numba_kernels_compile_in_the_documented_way():
    assert helper_options(JITCodeLibrary, Bare) == {}
    assert helper_options(Bare, Dispatcher) == {"no_cpython_wrapper": True}
    assert borrowing_options(Bare) == {"error_model": "numpy"}
    bare = Bare()
    assert of_few_types(bare) is bare
    assert not vars(bare)


@compiled_only
@pytest.mark.parametrize("found", [{}, {(numba.int64,): SimpleNamespace()}])
def test_without_machine_code_to_call_each_call_is_dispatched(found):
    calls = []

    class Plain:
        overloads = found

        def __call__(self, x):
            calls.append(x)
            return x + 1

    call = direct(Plain())
    assert [call(1), call(2)] == [2, 3]
    assert calls == [1, 2]


@compiled_only
def test_fully_compiled_helper_gives_the_same_results():
    options = helper_options(Bare, Dispatcher)
    helper = of_few_types(numba.njit(nogil=True, **options)(pick.py_func))

    @numba.njit
    def call(values, k):
        return helper(values, 0, True) + helper(values, k, False)

    assert call(np.array([1, 10, 100]), 2) == 2 + 100
