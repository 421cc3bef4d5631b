"""Rows of a stream: a record as numbers, and the columns of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.tables.categories import Categories, Texts
from polyaforest.tables.validation import NamedRows

__all__ = ["RowLayout", "StreamRow"]


class StreamRow(NamedTuple):
    """A record as numbers, NaN for missing fields; categories are codes."""

    values: Sequence[float]
    time: float | None = None  # in seconds since 1970; None if records have no times
    key: str | None = None  # of its stream
    id: str | None = None
    texts: Texts = {}  # noqa: RUF012 -- categories by their codes; never written to
    place: int = 0  # in its batch or, on a cluster, in its stream
    position: str = ""  # in the source
    weight: int = 1  # how many times it counts


class RowLayout(NamedTuple):
    """The columns of rows."""

    names: Sequence[str]
    coded: tuple[int, ...] = ()  # columns of categories
    has_times: bool = False

    def named(self, rows: Sequence[StreamRow]) -> NamedRows:
        """Return rows in the form that detectors accept."""
        values = np.array([row.values for row in rows], np.float64)
        if not self.coded:
            return NamedRows(values, list(self.names))
        texts = {code: text for row in rows for code, text in row.texts.items()}
        return NamedRows(values, list(self.names), Categories(self.coded, len(self.names), texts))

    def weights(self, rows: Sequence[StreamRow]) -> Array | None:
        """Return how many times each row counts; None if each counts once."""
        weights = np.array([row.weight for row in rows], np.float64)
        return None if (weights == 1).all() else weights

    def times(self, rows: Sequence[StreamRow]) -> Array | None:
        """Return the times of rows, None if they have no times."""
        return np.array([row.time for row in rows], np.float64) if self.has_times else None
