"""The one door to Numba: how every kernel is compiled, and what happens when its cache cannot be written."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def jit(kernel: Kernel) -> Kernel:
    """Compile `kernel` lazily, without the GIL and without fast-math, and keep the machine code on disk.

    A package directory that cannot be written to (a read-only image, a shared install) costs the cache, never the
    program. With ``NUMBA_DISABLE_JIT=1`` the kernel stays plain Python, where unsigned arithmetic must wrap around, and
    0 / 0 be NaN, in silence as in machine code.
    """
    return _compile(kernel, {})


def jit_inline(kernel: Kernel) -> Kernel:
    """As `jit_borrowing`, and always inlined: for the steps of a walk, where a call costs more than the step."""
    return _compile(kernel, {"forceinline": True, "_nrt": False, "error_model": "numpy"})


def jit_borrowing(kernel: Kernel) -> Kernel:
    """As `jit`, for kernels that allocate nothing: arrays are borrowed from the caller without counting references.

    Numba otherwise counts, atomically and shared by all threads, whenever an array is taken out of a tuple, which
    costs several times what is then done with it. Every kernel called from here must be borrowing or inline too.
    """
    return _compile(kernel, {"_nrt": False, "error_model": "numpy"})


def _compile(kernel: Kernel, options: dict[str, bool | str]) -> Kernel:
    if numba.config.DISABLE_JIT:
        return np.errstate(over="ignore", divide="ignore", invalid="ignore")(kernel)
    try:
        return numba.njit(nogil=True, cache=True, **options)(kernel)  # type: ignore[no-any-return]
    except RuntimeError:  # Numba found no directory that it may write to
        _warn_that_nothing_is_cached()
        return numba.njit(nogil=True, **options)(kernel)  # type: ignore[no-any-return]


@cache
def _warn_that_nothing_is_cached() -> None:
    warnings.warn(
        "compiled kernels cannot be cached: each new process compiles them again. Point NUMBA_CACHE_DIR at a writable "
        "directory to avoid this.",
        RuntimeWarning,
        stacklevel=2,
    )


class _Announcer(event.Listener):
    """Tells a person at a terminal or in a notebook, once, why the first call takes seconds."""

    def __init__(self) -> None:
        self.silent = not (sys.stderr.isatty() or hasattr(sys, "ps1"))

    def on_start(self, event: event.Event) -> None:
        is_ours = str(event.data["dispatcher"].py_func.__module__).startswith("polyaforest")  # others' may be None
        if is_ours and not self.silent:
            self.silent = True
            print("polyaforest: compiling for this machine, once (15 to 30 seconds) ...", file=sys.stderr)

    def on_end(self, event: event.Event) -> None:
        """Nothing to say: the work goes on."""


event.register("numba:compile", _Announcer())

if hasattr(os, "register_at_fork"):  # a child forked while another thread compiles could never compile anything
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
