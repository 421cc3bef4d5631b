"""Fit detectors to Dask arrays and frames, and score them.

`fit` runs immediately, with the current scheduler; the other functions are lazy. Models and tasks are part of the
graph, so that a lost worker loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import accumulate
from operator import add
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from polyaforest.detectors import BatchMPF, StreamingMPF, loads
from polyaforest.detectors.tables import WeighTask
from polyaforest.forest.copies import starts_of
from polyaforest.kernels.arrays import Array
from polyaforest.util.extras import extra

with extra(__name__, "dask", "datasketches", "pandas"):
    import dask
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

    from polyaforest.distributed.passes import Task, fit_in_passes, numbered
    from polyaforest.distributed.wire import packed, unpacked

__all__ = ["explain", "fit", "p_value", "predict", "score_samples"]

Forest = TypeVar("Forest", BatchMPF, StreamingMPF)
_AT_ONCE = 8  # results added up by one task


def fit(detector: Forest, X: Any, *, sample_weight: Any = None) -> Forest:
    """Fit a detector to a Dask array or frame; return the detector.

    The result equals ``detector.fit(X.compute())``, bit for bit, whatever the chunks. The only exception is the
    threshold of a numeric `contamination` for many rows: it is estimated from a sketch of the scores of all rows, not
    from a sample.

    Parameters
    ----------
    detector : BatchMPF or StreamingMPF
        A `StreamingMPF` needs ``window="auto"`` or a `Reservoir` without half-life.
    X : dask.array.Array or dask.dataframe.DataFrame of shape (n_rows, n_features)
        Read once for a `StreamingMPF`, twice for a `BatchMPF`, and once more for a numeric `contamination`. Persist it
        if it is expensive to compute.
    sample_weight : dask.array.Array or dask.dataframe.Series of shape (n_rows,), optional
        How often each row counts, as in the detector's `fit`; with the same chunks as `X`.
    """
    _check_dask(X)
    columns: Any = int(X.shape[1]) if isinstance(X, da.Array) else [str(name) for name in X.columns]
    parts: list[Any] = _parts(X)
    starts = _starts(_lengths(X, parts))
    copies: list[Any] = [None] * len(parts)
    firsts = starts

    def prepare(weigh: WeighTask) -> None:
        nonlocal copies, firsts
        if sample_weight is not None:
            weights = _parts_of_weights(sample_weight, len(parts))
            copies = [
                dask.delayed(_copies)(weigh, part, own, start)
                for part, own, start in zip(parts, weights, starts, strict=True)
            ]
            firsts = _starts(dask.compute(*(dask.delayed(np.sum)(own) for own in copies)))

    def gather(task: Task) -> Any:
        name = f"polyaforest-{type(task).__name__.lower()}-{uuid4().hex[:8]}"
        sent = dask.delayed(unpacked)(packed(task), dask_key_name=f"{name}-task")
        results = [
            dask.delayed(_apply)(sent, *part, dask_key_name=f"{name}-{i}")
            for i, part in enumerate(zip(parts, firsts, copies, strict=True))
        ]
        return dask.compute(_added(results))[0]

    kinds = [] if isinstance(X, da.Array) else X._meta.dtypes.tolist()
    of_categorical_type = [k for k, kind in enumerate(kinds) if isinstance(kind, pd.CategoricalDtype)]
    return fit_in_passes(detector, columns, gather, of_categorical_type, prepare)


def score_samples(detector: BatchMPF | StreamingMPF, X: Any) -> Any:
    """Return the scores of rows: a Dask array for an array, a series for a frame. Higher is more normal."""
    return _by_row(detector, X, "score_samples", np.float64)


def p_value(detector: BatchMPF | StreamingMPF, X: Any) -> Any:
    """Return conformal p-values of rows: a Dask array for an array, a series for a frame."""
    return _by_row(detector, X, "p_value", np.float64)


def predict(detector: BatchMPF | StreamingMPF, X: Any) -> Any:
    """Return +1 for normal rows and -1 for anomalies: a Dask array for an array, a series for a frame."""
    return _by_row(detector, X, "predict", np.int64)


def explain(detector: BatchMPF | StreamingMPF, X: Any) -> Any:
    """Return how surprising rows are, in bits by feature.

    For a frame, return the rows of `Explanations.to_frame`; for an array, its columns of bits, (n_rows, n_features).
    To get texts for a few rows, call ``detector.explain(X[17:18].compute())``.
    """
    _check_dask(X)
    model = _in_graph(detector)
    if isinstance(X, da.Array):
        X = X.rechunk({1: -1})
        return X.map_blocks(_bits, model, dtype=np.float64, meta=np.empty((0, 0)))
    return X.map_partitions(_lines, model, meta=_lines(X._meta, detector))


def _by_row(detector: BatchMPF | StreamingMPF, X: Any, method: str, dtype: type) -> Any:
    _check_dask(X)
    task = partial(_values, method=method, dtype=dtype)
    model = _in_graph(detector)
    if isinstance(X, da.Array):
        return X.rechunk({1: -1}).map_blocks(task, model, dtype=dtype, drop_axis=1, meta=np.empty(0, dtype))
    meta = pd.Series(np.empty(0, dtype), index=X._meta.index, name=method)
    return X.map_partitions(task, model, meta=meta)


def _check_dask(X: Any) -> None:
    if not isinstance(X, da.Array | dd.DataFrame) or X.ndim != 2:
        raise TypeError(
            f"X must be a two-dimensional Dask array or frame; got {type(X).__name__}: for data in memory, call the "
            "detector's own methods"
        )


def _parts(X: Any) -> list[Any]:
    return list(X.rechunk({1: -1}).to_delayed().ravel() if isinstance(X, da.Array) else X.to_delayed())


def _lengths(X: Any, parts: list[Any]) -> list[int]:
    """Return the number of rows of each part; count them if the chunk sizes are unknown."""
    if isinstance(X, da.Array) and not np.isnan(X.chunks[0]).any():
        return [int(length) for length in X.chunks[0]]
    return list(dask.compute(*(dask.delayed(len)(part) for part in parts)))


def _starts(lengths: Sequence[int]) -> list[int]:
    """Return the number of rows before each part."""
    return [0, *accumulate(map(int, lengths))][:-1]


def _parts_of_weights(sample_weight: Any, n_parts: int) -> list[Any]:
    if not isinstance(sample_weight, da.Array | dd.Series) or sample_weight.ndim != 1:
        raise TypeError(f"sample_weight must be a Dask array or series; got {type(sample_weight).__name__}")
    weights: list[Any] = np.ravel(sample_weight.to_delayed()).tolist()
    if len(weights) != n_parts:
        raise ValueError(f"sample_weight has {len(weights)} chunks, but X has {n_parts}: rechunk it like X")
    return weights


def _copies(weigh: WeighTask, part: Any, weights: Any, start: int) -> Array:
    try:
        return weigh(weights, numbered(start, len(part)))
    except ValueError as problem:
        raise ValueError(f"in the chunk that starts at row {start}: {problem}") from problem


def _added(results: list[Any]) -> Any:
    """Add up results in a tree, so that no worker has to hold them all."""
    while len(results) > 1:
        groups = (results[i : i + _AT_ONCE] for i in range(0, len(results), _AT_ONCE))
        results = [dask.delayed(_sum)(group) for group in groups]
    return results[0]


def _sum(values: list[Any]) -> Any:
    return reduce(add, values)


def _apply(task: Task, part: Any, first: int, copies: Array | None) -> Any:
    if copies is None:
        return task(part, numbered(first, len(part)))
    return task(part, starts_of(copies, first), copies)


def _in_graph(detector: BatchMPF | StreamingMPF) -> Any:
    """Return the detector as a node of the graph, which loads it where it is needed."""
    return dask.delayed(loads)(detector.to_bytes())


def _values(part: Any, model: BatchMPF | StreamingMPF, *, method: str, dtype: type) -> Any:
    found: Array = getattr(model, method)(part).astype(dtype) if len(part) else np.empty(0, dtype)
    if not hasattr(part, "iloc"):
        return found
    return pd.Series(found, index=part.index, name=method)


def _bits(part: Array, model: BatchMPF | StreamingMPF) -> Array:
    return model.explain(part).parts if len(part) else np.empty(part.shape)


def _lines(part: Any, model: BatchMPF | StreamingMPF) -> Any:
    if len(part):
        return model.explain(part).to_frame()
    coded = [] if model.is_categorical_ is None else part.columns[model.is_categorical_]
    one = pd.DataFrame([{name: "" if name in coded else 0.0 for name in part.columns}])  # for the columns of the result
    return model.explain(one).to_frame().iloc[:0].set_axis(part.index, axis=0)
