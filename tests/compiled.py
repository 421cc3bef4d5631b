"""Helpers of kernels for tests: from Python, compiled as within the kernels that call them."""

from __future__ import annotations

from types import SimpleNamespace

import numba


def from_python(helper):
    """Return a compiled function that does nothing but call `helper`."""

    def call(*args):
        return helper(*args)

    return helper if numba.config.DISABLE_JIT else numba.njit(call)


def all_from_python(module, *names):
    """Return the helpers of a module, each as `from_python` gives it."""
    return SimpleNamespace(**{name: from_python(getattr(module, name)) for name in names})
