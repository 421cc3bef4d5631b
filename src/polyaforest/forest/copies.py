"""Sample weights: a row of weight w is w copies of the row, one after another.

The fraction of a weight is the chance of one more copy. A hash of a seed and the row's id decides, so that the result
depends neither on chunks nor on threads, and the expected number of copies is the weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.forest.draws import priorities
from polyaforest.kernels.sampling import NO_CUTOFF

AT_ONCE = 2**16  # copies that are held in memory together
_SALT = np.uint64(0x5EED_0F_C0175)  # coins are independent of the priorities of the same seed and ids


def is_fractional(weights: Array) -> Array:
    """Return which rows have a weight with a fraction."""
    return np.asarray(weights % 1 != 0)


def n_copies(weights: Array, ids: Array, seed: int) -> Array:
    """Return how many copies of rows with these ids there are, int64 (n,)."""
    whole = np.floor(weights)
    seeds = np.array([np.uint64(seed) ^ _SALT])
    coins = priorities(seeds, np.require(ids, np.int64, ["C", "W"]))[0] / float(NO_CUTOFF)
    copies: Array = (whole + (coins < weights - whole)).astype(np.int64)
    return copies


def check_any_counts(copies: Array | None) -> None:
    """Raise if a table has no row that counts."""
    if copies is not None and not copies.any():
        raise ValueError("all weights are zero, or came out so: there is no row to learn")


def starts_of(copies: Array, first: int = 0) -> Array:
    """Return the number of the first copy of each row, when they are numbered one after another."""
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
