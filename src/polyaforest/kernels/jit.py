"""Compilation of kernels by Numba."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUTargetOptions
from numba.core.dispatcher import Dispatcher

from polyaforest.kernels import cache as kernel_cache

kernel_cache.select_cpu()

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# Kernels that take long to compile: their purpose, and the seconds to compile them on the reference machine.
COSTS = {"attribute_rows": ("explain", 9), "run_chunk": ("learn from a stream", 13)}
_PROBES, _SECONDS_OF_PROBE = 5, 0.0225  # on the reference machine


class _HelperLibrary(JITCodeLibrary):
    """The code of a helper: LLVM optimises and translates it only as part of the kernels that call it."""

    codegen = SimpleNamespace(set_env=lambda name, env: None)  # without machine code there is no environment to set

    def _optimize_final_module(self) -> None:
        """Do nothing: the calling kernels are optimised."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return a null pointer: there is no machine code."""
        return 0


class _HelperCompiler(Compiler):
    """Compile a helper only as far as kernels need to link it, which halves the time for most helpers."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, _HelperLibrary(target.codegen(), "helper"), *rest)


# What this module replaces or calls in Numba beyond its documented interface. Where a version of Numba lacks one of
# these, kernels are compiled in the documented way, which takes longer, and give the same results.
_OF_LIBRARIES = (
    "_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals", "get_pointer_to_function",
)  # fmt: skip
_OF_DISPATCHERS = ("_insert", "_compile_for_args")


def helper_options(library: type, dispatcher: type) -> dict[str, Any]:
    """Return the options of helpers for these classes of Numba."""
    if not all(hasattr(dispatcher, name) for name in _OF_DISPATCHERS):
        return {}
    has_hooks = all(hasattr(library, name) for name in _OF_LIBRARIES)
    return {"no_cpython_wrapper": True, **({"pipeline_class": _HelperCompiler} if has_hooks else {})}


def borrowing_options(known: type) -> dict[str, Any]:
    """Return the options of borrowing kernels, given the class of the options that Numba knows."""
    return {"error_model": "numpy", **({"_nrt": False} if hasattr(known, "_nrt") else {})}


_OUTER: dict[str, Any] = {"cache": True}
_INNER = helper_options(JITCodeLibrary, Dispatcher)
_BORROWS = borrowing_options(CPUTargetOptions)


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel that Python calls: lazily, without the GIL or fast-math; cache its machine code on disk.

    If the cache cannot be written, the program works without it. With ``NUMBA_DISABLE_JIT=1`` the kernel stays plain
    Python, with NumPy's warnings off: unsigned arithmetic wraps around and 0 / 0 is NaN, as in machine code.
    """
    return _compile(kernel, _OUTER)  # type: ignore[no-any-return]


def jit_borrowing(kernel: Kernel) -> Kernel:
    """Compile a kernel that Python calls and that allocates nothing, without reference counting.

    Otherwise Numba updates an atomic reference count, shared by all threads, whenever an array is taken out of a tuple;
    that can cost several times the work itself. All kernels that it calls must be borrowing or inline too.
    """
    return _compile(kernel, _OUTER | _BORROWS)  # type: ignore[no-any-return]


def jit_helper(kernel: Kernel) -> Kernel:
    """Compile a kernel that only kernels call; it becomes part of their machine code."""
    return _forbid_python_calls(_compile(kernel, _INNER))  # type: ignore[no-any-return]


def jit_borrowing_helper(kernel: Kernel) -> Kernel:
    """Compile a kernel that only borrowing kernels call."""
    return _forbid_python_calls(_compile(kernel, _INNER | _BORROWS))  # type: ignore[no-any-return]


def jit_inline(kernel: Kernel) -> Kernel:
    """Compile a borrowing helper and always inline it, for steps cheaper than a call."""
    return _forbid_python_calls(_compile(kernel, _INNER | _BORROWS | {"forceinline": True}))  # type: ignore[no-any-return]


def direct(kernel: Kernel) -> Kernel:
    """Return a function that calls a kernel; from the second call on, it skips the dispatch on argument types.

    Dispatch on tuples of arrays takes longer than the work on a single row. All calls must pass the same types: the
    machine code does not check them.
    """
    if numba.config.DISABLE_JIT:
        return kernel
    dispatcher: Any = kernel
    code: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal code
        if code is not None:
            return code(*args)
        result = dispatcher(*args)
        code = getattr(dispatcher.overloads.get(tuple(map(numba.typeof, args))), "entry_point", None)
        return result

    return call  # type: ignore[return-value]


def _compile(kernel: Callable[..., Any], options: dict[str, Any]) -> Any:
    if numba.config.DISABLE_JIT:
        return np.errstate(over="ignore", divide="ignore", invalid="ignore")(kernel)
    options = {"nogil": True, "no_cfunc_wrapper": True, **options}
    if "cache" in options:
        return of_few_types(_compile_cached(kernel, options))
    return of_few_types(numba.njit(**options)(kernel))


def _compile_cached(kernel: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Compile a kernel and cache its machine code in our directory; do not cache if Numba would use another directory.

    Elsewhere, Numba could load machine code of other versions of the sources.
    """
    with kernel_cache.caching(kernel.__code__.co_filename) as may_cache:
        if may_cache:
            with suppress(RuntimeError):  # Numba found no writable directory
                compiled = numba.njit(**options)(kernel)
                if Path(compiled.stats.cache_path).is_relative_to(numba.config.CACHE_DIR):
                    return compiled
    return numba.njit(**{**options, "cache": False})(kernel)


def _forbid_python_calls(helper: Any) -> Any:
    """Make calls of `helper` from Python raise TypeError, since it has no machine code of its own."""
    if not numba.config.DISABLE_JIT and _INNER:

        def reject(*args: Any, **keywords: Any) -> Any:
            raise TypeError(f"{helper.__name__} is a helper that only compiled kernels can call")

        helper._insert, helper._compile_for_args = (lambda *args, **keywords: None), reject
    return helper


def of_few_types(kernel: Any) -> Any:
    """Widen integer arguments of calls from other kernels to 64 bits, and drop literal types.

    Numba compiles a helper again for every constant and every integer width, nearly half of all compilation time.
    """
    template = getattr(kernel, "get_call_template", None)
    if template is None:
        return kernel

    def call_template(args: Any, keywords: Any) -> Any:
        return template([_widened(arg) for arg in args], {name: _widened(arg) for name, arg in keywords.items()})

    kernel.get_call_template = call_template
    return kernel


def _widened(kind: Any) -> Any:
    kind = types.misc.unliteral(kind)
    if isinstance(kind, types.Integer):
        return types.int64 if kind.signed else types.uint64  # type: ignore[attr-defined]
    return kind


class _Announcer(event.Listener):
    """Announce compilation in a terminal or notebook: once per purpose, with an estimate."""

    def __init__(self) -> None:
        self.is_silent = not (sys.stderr.isatty() or hasattr(sys, "ps1"))
        self._announced: set[str] = set()

    def on_start(self, event: event.Event) -> None:
        kernel = event.data["dispatcher"].py_func
        if self.is_silent or not str(kernel.__module__).startswith("polyaforest"):  # the module may be None
            return
        purpose, cost = COSTS.get(kernel.__name__, ("fit and score", 15))
        if purpose not in self._announced and (not self._announced or kernel.__name__ in COSTS):
            self._announced.add(purpose)
            advice = "" if len(self._announced) > 1 else " (`polyaforest warmup` does this in advance)"
            seconds = max(round(cost * seconds_per_cost()), 1)
            print(
                f"polyaforest: compiling once for this machine{advice}: about {seconds} s to {purpose} ...",
                file=sys.stderr,
            )

    def on_end(self, event: event.Event) -> None:
        """Do nothing."""


announcer = _Announcer()
event.register("numba:compile", announcer)


def seconds_per_cost() -> float:
    """Return how much slower this machine currently is than the reference machine.

    Like Numba, the probe builds code in Python and translates it with LLVM, on one core.
    """
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return statistics.median(_seconds_of_probe() for _ in range(_PROBES)) / _SECONDS_OF_PROBE


def _seconds_of_probe() -> float:
    began = time.perf_counter()
    parsed = binding.parse_assembly(_probe())
    binding.Target.from_default_triple().create_target_machine(opt=3).emit_object(parsed)
    return time.perf_counter() - began


def _probe() -> str:
    """Return LLVM code for benchmarking: functions of a few hundred operations."""
    module, number = ir.Module("probe"), ir.DoubleType()
    for k in range(10):
        function = ir.Function(module, ir.FunctionType(number, [number] * 4), f"f{k}")
        builder, values = ir.IRBuilder(function.append_basic_block()), list(function.args)
        for _ in range(40):
            values.append(builder.fadd(builder.fmul(values[-1], values[-3]), builder.fdiv(values[-2], values[-4])))
        builder.ret(values[-1])
    return str(module)


if hasattr(os, "register_at_fork"):  # otherwise a child forked while another thread compiles would deadlock
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
