"""Labelled tables and series, and series as tables of windows."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Dataset", "Floats", "Series", "shingle", "shingled"]

Floats: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int8]


class Dataset(NamedTuple):
    """A table with labels.

    Attributes
    ----------
    name : str
    X : float64 array of shape (n, D), C-contiguous
    y : int8 array of shape (n,)
        1 for anomalies, 0 for normal rows.
    """

    name: str
    X: Floats
    y: Labels


class Series(NamedTuple):
    """A series with labels, in file order; times may repeat or decrease.

    Attributes
    ----------
    name : str
    time : int64 array of shape (n,)
        Seconds since 1970; timestamps are read as UTC.
    value : float64 array of shape (n,)
    label : int8 array of shape (n,)
        1 within NAB's anomaly windows, both ends included, 0 elsewhere.
    """

    name: str
    time: NDArray[np.int64]
    value: Floats
    label: Labels


@overload
def shingle(values: ArrayLike, size: int = 10, label: None = None) -> Floats: ...
@overload
def shingle(values: ArrayLike, size: int = 10, *, label: ArrayLike) -> tuple[Floats, Labels]: ...
@overload
def shingle(values: ArrayLike, size: int, label: ArrayLike) -> tuple[Floats, Labels]: ...
def shingle(values: ArrayLike, size: int = 10, label: ArrayLike | None = None) -> Floats | tuple[Floats, Labels]:
    """Return all windows of `size` consecutive values.

    Unlike `polyaforest.series.Shingler`, which labels a window by its last reading and fills gaps, this follows the
    paper's experiments.

    Parameters
    ----------
    values : array-like of shape (n,)
    size : int
    label : array-like of shape (n,), optional
        A window gets the label of its first point, which reproduces the paper's figures.

    Returns
    -------
    X : float64 array of shape (n - size + 1, size), C-contiguous
    y : int8 array of shape (n - size + 1,)
        Only if `label` is given.
    """
    points = np.asarray(values, np.float64)
    if points.ndim != 1:
        raise ValueError(f"values must be 1-D; got an array of shape {points.shape}")
    if not 1 <= size <= points.size:
        raise ValueError(f"size must be from 1 to the number of values, {points.size}; got {size}")
    X = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(points, size))
    if label is None:
        return X
    labels = np.asarray(label, np.int8)
    if labels.shape != points.shape:
        raise ValueError(f"label must have the shape of values, {points.shape}; got {labels.shape}")
    return X, labels[: X.shape[0]].copy()


def shingled(series: Series, size: int = 10) -> Dataset:
    """Return a series as a table of windows (see `shingle`)."""
    return Dataset(series.name, *shingle(series.value, size, series.label))
