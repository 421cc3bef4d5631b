"""Score the next row of a stream as learning it would."""

from __future__ import annotations

from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.kernels.arrays import Array
from polyaforest.tables.validation import as_plain_row

__all__ = ["score_ahead"]


def score_ahead(forest: StreamingMPF, row: Array) -> Array:
    """Return the score that `score_then_learn` would give to a row, (1, D), without learning it.

    It equals that of `score_samples` up to rounding, but costs less between changes of the forest.
    """
    plain = as_plain_row(forest, row)
    found = None if plain is None else forest._score_ahead(plain)
    return forest.score_samples(row) if found is None else found
