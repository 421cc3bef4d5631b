"""Fit a detector in passes over a partitioned table, on any engine that can map a function and add up results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from polyaforest.detectors import BatchMPF, StreamingMPF
from polyaforest.detectors.tables import ScoreTask, TableFit, WeighTask
from polyaforest.distributed.quantiles import Quantiles
from polyaforest.kernels.arrays import Array

Kind = TypeVar("Kind", BatchMPF, StreamingMPF)
Task = Callable[..., Any]  # takes the rows of a part, their ids, and copies if any; its results can be added
Gather = Callable[[Task], Any]  # applies a task to each part and returns the sum of the results


def fit_in_passes(
    detector: Kind,
    columns: int | Sequence[str],
    gather: Gather,
    of_categorical_type: Sequence[int] = (),
    prepare: Callable[[WeighTask], None] = lambda weigh: None,
) -> Kind:
    """Fit a detector to a table; return the detector.

    This takes one pass for `StreamingMPF`, two for `BatchMPF`, and another if `contamination` is a number and the table
    has more rows than the sample for the threshold.

    Parameters
    ----------
    detector : BatchMPF or StreamingMPF
    columns : int or sequence of str
        Number of columns, or their names.
    gather : callable
        Applies a task, which can be pickled, to the rows and ids of each part, in any order, and returns the sum of the
        results. A part may have no rows. A retried task returns the same result.
    of_categorical_type : sequence of int
        Indices of the columns with a categorical type.
    prepare : callable, optional
        Called first, with the function that turns weights into copies: see `TableFit`.
    """
    fit = TableFit(detector, columns, of_categorical_type)
    prepare(fit.weigh)
    count = fit.begin(gather(fit.look))
    fitted = fit.finish(None if count is None else gather(count))
    score = fit.task_of_scores
    if score is not None:
        found: Quantiles = gather(Sketch(score))
        fit.place_threshold(found.quantile(float(detector.contamination)))
    return fitted


@dataclass(frozen=True, eq=False)
class Sketch:
    """Task that sketches the distribution of scores."""

    score: ScoreTask

    def __call__(self, X: Any, ids: Array, copies: Array | None = None) -> Quantiles:
        """Sketch the scores of the rows of a part."""
        scores = self.score(X)
        return Quantiles.of(scores if copies is None else scores.repeat(copies))


def numbered(n_before: int, n_rows: int) -> Array:
    """Return the numbers of `n_rows` rows that follow `n_before` others."""
    return np.arange(n_before, n_before + n_rows)
