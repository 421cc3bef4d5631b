"""Run tasks on threads, with results that do not depend on the number of threads.

Each task writes its own part, and sums run in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from joblib import effective_n_jobs

from polyaforest.kernels.arrays import Array

_LEAST_WORK = 2000  # rows times trees below which starting threads costs more than it saves

Item = TypeVar("Item")
Result = TypeVar("Result")


def run(task: Callable[[Item], Result], items: Sequence[Item], n_jobs: int | None) -> list[Result]:
    """Apply `task` to every item on up to `n_jobs` threads; return the results in order."""
    n_threads = min(effective_n_jobs(n_jobs), len(items)) if len(items) > 1 else 1
    if n_threads <= 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(task, items))


def spans(n: int, size: int) -> list[slice]:
    """Return consecutive slices of at most `size` that cover range(n)."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def tree_spans(n_trees: int, n_jobs: int | None) -> list[slice]:
    """Return one slice of trees per thread."""
    return spans(n_trees, -(-n_trees // max(effective_n_jobs(n_jobs), 1)))


def ordered_sum(terms: Array) -> Array:
    """Sum along the first axis, term by term: the order in which NumPy sums depends on the other axes."""
    total: Array = np.add.accumulate(terms, axis=0)[-1]
    return total


def log_mean_exp(values: Array) -> Array:
    """Return the log of the mean of exp(values) along the first axis, without overflow; -inf if all are -inf."""
    top = values.max(axis=0)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        result: Array = shift + np.log(ordered_sum(np.exp(values - shift)) / len(values))
    return result


def is_worth_threads(work: int) -> bool:
    """Return whether `work`, in rows times trees, is worth starting threads."""
    return work >= _LEAST_WORK
