"""A scikit-learn transformer from rows to shingles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import isnan
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from polyaforest.kernels.arrays import Array
from polyaforest.series.shingles import (
    CONSTRAINTS,
    align,
    check_times,
    measured_spacing,
    new_track,
    read_every,
    read_pattern,
)
from polyaforest.tables.validation import read_rows, read_stamps


class Shingler(TransformerMixin, BaseEstimator):
    """Transform each row of a series to a shingle: the last readings of all channels, oldest first.

    The number of rows does not change. At the start of a series, and after a gap longer than `max_gap`, the first
    reading is repeated. Gaps are handled as in `SeriesMPF`; an incomplete row becomes a row of NaN. Each call of
    `transform` starts a new series.

    Parameters
    ----------
    shingle : int, default=10
        Number of readings in a shingle.
    every : float or timedelta, optional
        Usual time between readings, in seconds or in the unit of numeric `times`. By default the median spacing of the
        rows passed to `fit`.
    max_gap : int, default=3
        Most consecutive missing steps to interpolate.
    difference : bool, default=False
        Whether to return changes between steps instead of levels.
    calendar : sequence of str, default=()
        Features to add to each shingle, as sine and cosine; requires `times`: "time of day", "day of week", "day of
        month", and "public holidays DE" with the code of a country, or of a part of it, such as "DE-BY".
    timezone : str, default="UTC"
        Time zone of the calendar, such as "Europe/Berlin".

    Attributes
    ----------
    every_ : float or None
        The usual time between readings; None if `fit` had no times to tell.
    n_features_in_ : int
        Channels.
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> from polyaforest.series import Shingler
    >>> Shingler(shingle=3).fit_transform([[1.0], [2.0], [4.0], [8.0]])
    array([[1., 1., 1.],
           [1., 1., 2.],
           [1., 2., 4.],
           [2., 4., 8.]])
    >>> Shingler(shingle=3).fit([[1.0], [2.0]]).get_feature_names_out(["cpu"])
    array(['cpu[-2]', 'cpu[-1]', 'cpu'], dtype=object)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = CONSTRAINTS | {"shingle": CONSTRAINTS["shingle"][:1]}

    def __init__(
        self,
        shingle: int = 10,
        *,
        every: float | timedelta | None = None,
        max_gap: int = 3,
        difference: bool = False,
        calendar: Sequence[str] = (),
        timezone: str = "UTC",
    ) -> None:
        self.shingle = shingle
        self.every = every
        self.max_gap = max_gap
        self.difference = difference
        self.calendar = calendar
        self.timezone = timezone

    def fit(self, X: Any, y: Any = None, *, times: Any = None) -> Self:
        """Learn the channels and the usual spacing; `y` is ignored.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_channels)
            Readings in order; NaN where a value is missing.
        times : array-like of float or datetime, optional
            The time of each reading.
        """
        self._validate_params()
        rows = read_rows(self, X, reset=True, allow_missing=True)
        stamps = self._read_times(times, len(rows))
        every = read_every(self.every)
        if isnan(every) and times is not None:
            every = measured_spacing(stamps)
        self.every_ = None if isnan(every) else every
        return self

    def transform(self, X: Any, *, times: Any = None) -> Array:
        """Return the shingles that end at the rows of a series.

        Parameters
        ----------
        X, times
            As in `fit`.

        Returns
        -------
        shingles : ndarray of shape (n_rows, n_channels * shingle + 2 * number of calendar words)
        """
        check_is_fitted(self, "every_")
        rows = read_rows(self, X, reset=False, allow_missing=True)
        stamps = self._read_times(times, len(rows))
        every = measured_spacing(stamps) if self.every_ is None else self.every_
        return align(new_track(rows.shape[1], every), rows, stamps, 0, read_pattern(self)).padded_shingles()

    def fit_transform(self, X: Any, y: Any = None, *, times: Any = None) -> Array:
        """Fit, then transform the same rows with the same times."""
        return self.fit(X, times=times).transform(X, times=times)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the feature names: "cpu" is the newest reading, "cpu[-3]" the one three steps before."""
        check_is_fitted(self, "every_")
        channels = [str(name) for name in _check_feature_names_in(self, input_features)]
        return np.array(read_pattern(self).names(channels), dtype=object)

    def _read_times(self, times: Any, n_rows: int) -> Array:
        stamps = read_stamps(times, n_rows, needed=False)
        check_times(stamps, np.nan, read_pattern(self))
        return stamps

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
