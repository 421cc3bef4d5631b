"""Fit a detector in passes over a table in parts, with any engine that can map a function and add up the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.distributed.quantiles import Quantiles
from polyaforest.estimators import BatchMPF, StreamingMPF
from polyaforest.estimators.tables import Score, TableFit, Weigh

Kind = TypeVar("Kind", BatchMPF, StreamingMPF)
Task = Callable[..., Any]  # takes the rows of a part, their ids, and copies if any; what it returns can be added
Gather = Callable[[Task], Any]  # applies a task to every part, and returns the sum of the results


def fit_in_passes(
    detector: Kind,
    columns: int | Sequence[str],
    gather: Gather,
    of_categorical_type: Sequence[int] = (),
    prepare: Callable[[Weigh], None] = lambda weigh: None,
) -> Kind:
    """Fit a detector to a table; return it.

    One pass for `StreamingMPF`, two for `BatchMPF`; another if `contamination` is a number and the table has more rows
    than are drawn.

    Parameters
    ----------
    detector : BatchMPF or StreamingMPF
    columns : int or sequence of str
        The number of columns, or their names.
    gather : callable
        Takes a task that can be pickled, applies it to the rows and ids of every part, in any order, and returns the
        sum of the results. A part may have no rows. A task that is repeated returns the same again.
    of_categorical_type : sequence of int
        Which columns have a categorical type.
    prepare : callable, optional
        Called first with what turns weights into copies, for tables that have any: see `TableFit`.
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
    """The task of sketching the distribution of scores."""

    score: Score

    def __call__(self, X: Any, ids: Array, copies: Array | None = None) -> Quantiles:
        """Sketch the scores of the rows of a part."""
        scores = self.score(X)
        return Quantiles.of(scores if copies is None else scores.repeat(copies))


def numbered(n_before: int, n_rows: int) -> Array:
    """Return the numbers of rows that come after `n_before` others."""
    return np.arange(n_before, n_before + n_rows)
