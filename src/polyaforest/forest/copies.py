"""Sample weights: a row of weight w counts as w consecutive copies.

The fractional part of a weight is the probability of one more copy, so the expected number of copies is the weight. The
draw is a hash of a seed and the row's id, so the result does not depend on chunks or threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyaforest.forest.draws import priorities
from polyaforest.kernels.arrays import Array
from polyaforest.kernels.sampling import NO_CUTOFF

AT_ONCE = 2**16  # copies in memory at a time
_SALT = np.uint64(0x5EED_0F_C0175)  # makes the draws independent of the priorities of the same seed and ids


def is_fractional(weights: Array) -> Array:
    """Return which weights have a fractional part."""
    return np.asarray(weights % 1 != 0)


def n_copies(weights: Array, ids: Array, seed: int) -> Array:
    """Return the number of copies of each row, int64 (n,)."""
    whole = np.floor(weights)
    seeds = np.array([np.uint64(seed) ^ _SALT])
    draws = priorities(seeds, np.require(ids, np.int64, ["C", "W"]))[0] / float(NO_CUTOFF)
    copies: Array = (whole + (draws < weights - whole)).astype(np.int64)
    return copies


def n_copies_next(weights: Array, seed: int, n_random_draws: int) -> tuple[Array, int]:
    """Return the number of copies of each of the next rows, and the number of fractional weights among them.

    The number of earlier fractional weights, `n_random_draws`, determines the rounding.
    """
    is_rounded = is_fractional(weights)
    ids = -1 - (n_random_draws + np.cumsum(is_rounded) - is_rounded)  # rows of a table have numbers from 0 on
    return n_copies(weights, ids, seed), int(is_rounded.sum())


def check_any_counts(copies: Array | None) -> None:
    """Raise if all rows have zero copies."""
    if copies is not None and not copies.any():
        raise ValueError("there is no row to learn: all weights are zero, or were rounded to zero")


def starts_of(copies: Array, first: int = 0) -> Array:
    """Return the number of the first copy of each row, if copies are numbered consecutively."""
    return first + np.cumsum(copies) - copies


def parts(copies: Array, starts: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the places of rows and the ids of their copies, at most `AT_ONCE` copies at a time.

    Examples
    --------
    >>> [(places.tolist(), ids.tolist()) for places, ids in parts(np.array([2, 0, 1]), np.array([5, 7, 7]))]
    [([0, 0, 2], [5, 6, 7])]
    """
    ends = np.cumsum(copies)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, AT_ONCE):
        numbers = np.arange(begin, min(begin + AT_ONCE, total))
        places = np.searchsorted(ends, numbers, side="right")
        yield places, starts[places] + numbers - (ends - copies)[places]
