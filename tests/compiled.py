"""Kernel helpers callable from Python, compiled as within kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numba


def from_python(helper):
    """Return a compiled function that only calls `helper`."""

    def call(*args):
        return helper(*args)

    return helper if numba.config.DISABLE_JIT else numba.njit(call)


def all_from_python(module, *names):
    """Apply `from_python` to helpers of a module."""
    return SimpleNamespace(**{name: from_python(getattr(module, name)) for name in names})
