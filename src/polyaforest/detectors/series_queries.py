"""What a series answers without learning: scores, verdicts, explanations, forecasts, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyaforest.detectors._detector import Detector, remembers_frame
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array
from polyaforest.series.contexts import REACH
from polyaforest.series.forecasts import Forecast
from polyaforest.series.model import FARTHEST, SeriesModel
from polyaforest.series.recent import MOST_CHANNELS
from polyaforest.series.recent import REACH as SHORT_REACH
from polyaforest.series.shingles import Alignment
from polyaforest.series.view import View
from polyaforest.tables.validation import read_flags, read_rows, read_stamps


class SeriesQueries(Detector):
    """The part of `SeriesMPF` that does not learn: rows are taken as the next readings, or as another series."""

    shingle: int | str
    short_memory: bool
    _model: SeriesModel

    # ---- as if rows came next ---------------------------------------------------------------------------------------

    def score_samples(self, X: Any, *, times: Any = None, standalone: bool = False) -> Array:
        """Return the scores of rows, as the next readings of the series, without learning them.

        Parameters
        ----------
        X, times
            As in `fit`.
        standalone : bool, default=False
            Whether the rows are a separate series, such as the one passed to `fit`, instead of the next readings.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            Higher is more normal; NaN where no complete context window ends, or during warm-up.
        """
        with self._looking_ahead(X, times, standalone) as aligned:
            return self._model.scores(aligned, is_apart=standalone)

    @remembers_frame
    def detect(self, X: Any, *, times: Any = None, standalone: bool = False) -> Detections:
        """Return what `detect_then_learn` would, without learning the rows. Parameters as in `score_samples`."""
        with self._looking_ahead(X, times, standalone) as aligned:
            return self._model.detect(aligned, is_apart=standalone)

    def p_value(self, X: Any, **labels: Any) -> Array:
        """Return the p-values of rows, NaN without a score. Parameters as in `detect`."""
        self._check_calibrated()
        return self.detect(X, **labels).p_values

    def predict(self, X: Any, **labels: Any) -> Array:
        """Return +1 for normal rows and rows without a score, and -1 for anomalies. Parameters as in `detect`."""
        return np.where(self.detect(X, **labels).is_anomaly, -1, 1)

    @property
    def offset_(self) -> float:
        """The threshold: ``decision_function = score_samples - offset_``."""
        check_is_fitted(self)
        with self._frozen():
            return self._model.threshold

    def _p_values(self, scores: Array) -> Array:
        with self._frozen():
            return self._model.p_values(scores)

    def _check_calibrated(self) -> None:
        check_is_fitted(self)
        with self._frozen():
            self._model.check_calibrated()

    def explain(
        self,
        X: Any,
        features: Sequence[str | int] | None = None,
        *,
        times: Any = None,
        rows: Sequence[int] | None = None,
        standalone: bool = False,
    ) -> Sequence[Explanation]:
        """Explain the context windows or shingles that end at rows, without learning them.

        In shingles, feature "cpu" is the newest reading and "cpu[-3]" the one three steps before.

        Parameters
        ----------
        X, times, standalone
            As in `score_samples`.
        features
            As in `StreamingMPF.explain`.
        rows : sequence of int, optional
            Indices of the rows to explain; all by default.

        Returns
        -------
        explanations : sequence of Explanation
            A context window is explained by its most anomalous view. See `bits_by_channel` for totals by channel.
        """
        check_is_fitted(self)
        self._model.check_features(features)  # before reading rows
        with self._looking_ahead(X, times, standalone) as aligned:
            return self._model.explain(aligned, rows, features, is_apart=standalone)

    def expect(self, X: Any, *, times: Any = None, standalone: bool = False, unseen: Any = None) -> Forecast:
        """Return the reading expected at each row, given the rows before it, without learning them.

        Parameters
        ----------
        X, times, standalone
            As in `score_samples`. With `standalone`, context windows that share readings with a row are not used for
            it.
        unseen : array-like of bool, shape (n_rows,), optional
            Rows to ignore, such as flagged ones: the forecast continues across them from the last row before.

        Returns
        -------
        expected : Forecast
            A named tuple of arrays of shape (n_rows, n_channels): `mean`, `low`, `high` and `median`; NaN where no
            context window ends before a row.

        Examples
        --------
        >>> import numpy as np
        >>> from polyaforest import SeriesMPF, StreamingMPF
        >>> wave = np.sin(np.arange(1000) / 8)
        >>> is_odd = np.arange(1000) // 20 == 35
        >>> series = SeriesMPF(StreamingMPF(random_state=0)).fit(np.where(is_odd, 0.0, wave))
        >>> expected = series.expect(np.where(is_odd, 0.0, wave), standalone=True, unseen=is_odd)
        >>> bool(np.abs(expected.mean[is_odd, 0] - wave[is_odd]).max() < 0.2)
        True
        """
        with self._looking_ahead(X, times, standalone) as aligned:
            n = len(aligned.places)
            hidden = np.zeros(n, np.bool_) if unseen is None else read_flags("unseen", unseen, n)
            return self._model.expect(aligned, hidden, is_apart=standalone)

    def forecast(self, n_steps: int = 1) -> Forecast:
        """Forecast the next readings, with a range for nine readings in ten.

        The forecast averages the continuations of similar context windows, weighted by the probability that the forest
        puts them into one cell. If the series has a period, it uses context windows with a similar deviation from the
        rhythm instead, where their range is narrower.

        Parameters
        ----------
        n_steps : int, default=1
            Steps to look ahead, at most 1,024; fewer if few context windows are held.

        Returns
        -------
        forecast : Forecast
            A named tuple of arrays of shape (n_steps, n_channels): `mean`, `low`, `high` and `median`.

        Examples
        --------
        >>> import numpy as np
        >>> from polyaforest import SeriesMPF, StreamingMPF
        >>> series = SeriesMPF(StreamingMPF(random_state=0)).partial_fit(np.sin(np.arange(1000) / 8))
        >>> error = np.abs(series.forecast(3).mean[:, 0] - np.sin(np.arange(1000, 1003) / 8)).max()
        >>> bool(error < 0.05)
        True
        """
        check_is_fitted(self)
        if not isinstance(n_steps, Integral) or isinstance(n_steps, bool) or not 1 <= n_steps <= FARTHEST:
            raise ValueError(f"n_steps must be an integer from 1 to {FARTHEST:,}; got {n_steps!r}")
        with self._frozen():
            expected = self._model.forecast(int(n_steps))
        if np.isnan(expected.mean).any():
            raise ValueError(
                f"there are too few unbroken readings to forecast {n_steps} steps ahead: learn more readings first"
            )
        return expected

    def bits_by_channel(self, explanation: Explanation) -> dict[str, float]:
        """Return the bits of each channel in an explanation, summed over steps, largest first.

        Calendar features are listed under their own names.
        """
        check_is_fitted(self)
        return self._model.bits_by_channel(explanation)

    @contextmanager
    def _looking_ahead(self, X: Any, times: Any, standalone: bool) -> Iterator[Alignment]:
        """Align rows after the series, or separately; no row is complete if the detector has no scores yet."""
        rows = self._read(X, allow_missing=True)
        with self._frozen():
            stamps = self._read_times(len(rows), times, is_apart=standalone)
            yield self._model.align_ahead(rows, stamps, is_apart=standalone)

    # ---- points held -------------------------------------------------------------------------------------------------

    @property
    def n_seen_(self) -> int:
        """Number of readings learned so far: the position in the series."""
        check_is_fitted(self)
        return self._model.history.n_seen

    @property
    def is_fitted(self) -> bool:
        """Whether the detector has learned any reading."""
        return hasattr(self, "_model")

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the shingles held, in bytes; 0 before fitting."""
        return self._model.views.nbytes if self.is_fitted else 0

    @property
    def estimator_(self) -> StreamingMPF:
        """The forest, with ``shingle=n``."""
        check_is_fitted(self)
        if self._model.has_contexts:
            raise AttributeError("with shingle='auto' there is one forest for each view: use estimators_")
        return self._forest_of(self._model.views.first)

    @property
    def estimators_(self) -> dict[str, StreamingMPF]:
        """The forest of each view, or of the "shingle"."""
        check_is_fitted(self)
        return {view.name: self._forest_of(view) for view in self._model.views.members}

    def _forest_of(self, view: View) -> StreamingMPF:
        """Return the forest of a view as a detector, which shares the lock of this one."""
        return StreamingMPF._around(view.model, view.parameters, view.features, self._lock)

    @property
    def n_points_(self) -> int:
        """Number of context windows or shingles held."""
        check_is_fitted(self)
        return self._model.views.n_points

    @property
    def keys_(self) -> list[Key]:
        """Keys of the readings that can be deleted, by order of arrival."""
        check_is_fitted(self)
        with self._frozen():
            return self._model.keys

    def holds(self, key: Key) -> bool:
        """Return whether a reading with this key can be deleted."""
        if not self.is_fitted:
            return False
        with self._frozen():
            return self._model.holds(key)

    @property
    def has_short_memory(self) -> bool:
        """Whether readings have a level by the short memory, so that alarms end when an incident does."""
        n_channels = getattr(self, "n_features_in_", 1)
        return self.short_memory and isinstance(self.shingle, str) and n_channels <= MOST_CHANNELS

    @property
    def reach(self) -> int:
        """Number of rows after an anomalous reading that may look anomalous because of it."""
        if self.has_short_memory:
            return SHORT_REACH
        return REACH if isinstance(self.shingle, str) else int(self.shingle)

    @property
    def every_(self) -> float | None:
        """The usual time between readings, if known."""
        check_is_fitted(self)
        return self._model.every

    @property
    def periods_(self) -> tuple[int, ...]:
        """The periods of the series in steps, strongest first; empty if it has none."""
        check_is_fitted(self)
        return self._model.history.track.periods

    @property
    def latest_(self) -> float | None:
        """The time of the newest reading; None if readings have no times."""
        check_is_fitted(self)
        return self._model.history.track.latest if self._model.history.is_timed else None

    # ---- validation -------------------------------------------------------------------------------------------------

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        with super()._frozen():
            if self.is_fitted:
                self._model.views.check_consistent()
            yield

    def _read(self, X: Any, *, at_least: int = 1, allow_missing: bool = False) -> Array:
        """Return validated rows, after those of the series."""
        check_is_fitted(self)
        table = as_table(X, self.n_features_in_)
        return read_rows(self, table, reset=False, at_least=at_least, allow_missing=allow_missing)

    def _read_times(self, n_rows: int, times: Any, *, is_apart: bool = False) -> Array:
        """Return the validated times of the next rows."""
        stamps = read_stamps(times, n_rows, needed=self._model.policy.needs_times)
        self._model.check_stamps(stamps, is_timed=times is not None, is_apart=is_apart)
        return stamps


def as_table(X: Any, n_channels: int = 1) -> Any:
    """Return one-dimensional readings of one channel as a table; anything else unchanged."""
    if hasattr(X, "columns") or n_channels != 1:
        return X
    if hasattr(X, "to_frame"):
        return X.to_frame()
    return np.reshape(X, (-1, 1)) if np.ndim(np.asanyarray(X)) == 1 else X
