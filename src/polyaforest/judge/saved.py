"""Score rows of tables with saved models, without learning them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest.detectors import EpsilonPhi, SeriesMPF, load, loads
from polyaforest.forest.thresholds import least_calibration
from polyaforest.io.tables import BadInput, TableChunk, TableColumns, open_table
from polyaforest.judge.table import Detected, check_order
from polyaforest.kernels.arrays import Array
from polyaforest.series.calendar import moved_on
from polyaforest.storage.model_store import is_model_store, read_model, read_notes

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Table

__all__ = ["SavedModel", "category_names", "read_detector"]


def read_detector(path: str, by: str | None = None) -> Any:
    """Load the only detector of a file, or that of a partition."""
    if not is_model_store(path):
        if by is not None:
            raise BadInput(f"{path} holds a single model: --by is for model files written by `watch --by`")
        return load(path)
    _, names = read_notes(path)
    if by is None and names != [""]:  # the name of the stream of a `watch` without partitions
        raise BadInput(f"{path} holds models of {len(names):,} partitions: choose one with --by, such as {names[0]!r}")
    if (by or "") not in names:
        near = get_close_matches(by or "", names)
        raise BadInput(f"{path} has no model of {by!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
    return read_model(path, by or "", loads)


def category_names(detector: Any) -> list[str]:
    """Return the columns of a detector that are categories."""
    encoding = getattr(detector, "encoding_", None)
    return [] if encoding is None else [str(detector.feature_names_in_[k]) for k in encoding.columns]


class SavedModel:
    """Score rows with a model file, without learning them.

    Parameters
    ----------
    path : str
    by : str, optional
        Partition whose model to use, if the file holds several.
    false_alarm_rate : float, optional
        Replaces the threshold policy of the model.
    """

    def __init__(self, path: str, by: str | None = None, false_alarm_rate: float | None = None) -> None:
        self.path, self.detector = path, read_detector(path, by)
        self.is_series = isinstance(self.detector, SeriesMPF)
        if false_alarm_rate is not None:
            self._set_rate(false_alarm_rate)
        names = getattr(self.detector, "feature_names_in_", None)
        self.names = None if names is None else [str(name) for name in names]
        self._columns: TableColumns | None = None  # of the table opened

    def _set_rate(self, rate: float) -> None:
        series = self.detector if isinstance(self.detector, SeriesMPF) else None
        forest = self.detector if series is None else next(iter(series.estimators_.values()))
        if isinstance(forest.score_type, EpsilonPhi):
            raise BadInput(f"{self.path} was fitted with --epsilon, which has no false alarm rate")
        if series is None:
            self.detector.set_params(contamination="auto", false_alarm_rate=rate)
        else:
            series.flag_at_rate(rate)
        try:
            offset = self.detector.offset_
        except ValueError as problem:
            raise BadInput(f"{self.path}: {problem}") from problem
        if offset == -inf:
            raise BadInput(
                f"{self.path}: a false alarm rate of {rate:g} needs at least {least_calibration(rate):,} calibration "
                "scores: fit the model on more rows, or allow a higher rate"
            )

    def open_table(self, files: Sequence[str], *, columns: list[str] | None, **options: Any) -> Table:
        """Open files to read the columns of the model, in any order."""
        if self.is_series and options.get("time") is None:
            options["time"] = self.detector.notes.get("time")
        options.setdefault("sentinels", self.detector.notes.get("missing", {}))
        encoding = getattr(self.detector, "encoding_", None)
        if encoding is not None and self.names is None:
            raise BadInput(f"{self.path} was fitted on unnamed columns, some of categories: use it from Python")
        categories = category_names(self.detector)
        table = open_table(files, columns=self.names or columns, categories=categories, **options)
        self._columns = table.columns
        if len(table.columns.used) != self.detector.n_features_in_:
            table.close()
            raise BadInput(
                f"{self.path} was fitted on {self.detector.n_features_in_} unnamed columns, but there are "
                f"{len(table.columns.used)} here: choose them with --columns, in the same order"
            )
        return table

    def detect(self, chunk: TableChunk) -> Detected:
        """Return rows with their results; score those of a time series as if they came next."""
        found = Detected.unscored(chunk)
        found.fill(np.arange(len(chunk.rows)), self.detector.detect(self._rows(chunk), **self._times(chunk)))
        return found

    def explain(self, chunk: TableChunk, places: Sequence[int]) -> list[Explanation]:
        """Explain the rows at these places."""
        if self.is_series:
            return list(self.detector.explain(self._rows(chunk), **self._times(chunk), rows=places))
        return list(self.detector.explain(self._rows(chunk.select(np.array(places, np.intp)))))

    def _rows(self, chunk: TableChunk) -> Any:
        assert self._columns is not None
        return chunk.rows if self.names is None else chunk.named(self._columns)

    def _times(self, chunk: TableChunk) -> dict[str, Array]:
        """Return the times of rows, if the model has times.

        Move rows from before the end of the learned rows on by whole weeks, which keeps time of day and day of week.
        """
        latest = self.detector.latest_ if self.is_series else None
        if latest is None or chunk.times is None:
            return {}
        check_order(chunk.times, chunk.numbers)
        return {"times": moved_on(chunk.times, latest)}
