"""Model files on the command line: the columns they were made of, and which rows they flag."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.cli._judging import RATE, frame, in_small_leaves, refuse_disorder
from polyaforest.core.arrays import Array
from polyaforest.decision.thresholds import line_below_bulk
from polyaforest.io.tables import BadInput, open_table

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Chunk, Table

_WEEK = 7 * 86_400.0  # seconds


class Wishes(NamedTuple):
    """Which rows to flag, if not those that the model would."""

    false_alarm_rate: float | None = None
    epsilon: float | None = None
    phi: float = 0.8


class Verdicts(NamedTuple):
    """What a model says of rows."""

    scores: Array  # NaN where a series has no whole shingle
    p_values: Array | None  # None where there is nothing to compare with
    is_anomaly: Array


def read_detector(path: str, key: str | None = None) -> Any:
    """The detector in a file: the only one, or that of a stream by its key."""
    from polyaforest import load
    from polyaforest.live.model_store import is_stock, read_model, read_notes

    if not is_stock(path):
        if key is not None:
            raise BadInput(f"{path} holds one model only: --key is for files that `watch --key` wrote")
        return load(path)
    _, keys = read_notes(path)
    if key is None and keys != [""]:  # a stream without keys has the empty one
        raise BadInput(f"{path} holds models of {len(keys):,} streams: choose one by --key, such as {keys[:1]}")
    if (key or "") not in keys:
        near = get_close_matches(key or "", keys)
        raise BadInput(f"{path} has no model of {key!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
    return read_model(path, key or "")


class Model:
    """A model file that judges rows without learning them.

    Parameters
    ----------
    path : str
        Of the file.
    wishes : Wishes, optional
        Which rows to flag.
    key : str, optional
        Which stream, of a file that `watch` keeps.
    """

    def __init__(self, path: str, wishes: Wishes | None = None, key: str | None = None) -> None:
        from polyaforest.timeseries import SeriesMPF

        self.path, self.wishes = path, wishes or Wishes()
        self.detector: Any = read_detector(path, key)
        self.is_series = isinstance(self.detector, SeriesMPF)
        if self.is_series and self.wishes != Wishes():
            raise BadInput(f"{path} is a model of time series, which flags rows by the line that it was made with")
        names = getattr(self.detector, "feature_names_in_", None)
        self.names = None if names is None else [str(name) for name in names]

    def open_table(self, files: Sequence[str], *, columns: list[str] | None, **options: Any) -> Table:
        """Files, read for the columns of the model, whatever their order."""
        if self.is_series and options.get("time") is None:
            options["time"] = self.detector.notes.get("time")
        table = open_table(files, columns=self.names or columns, **options)
        if len(table.columns.used) != self.detector.n_features_in_:
            table.close()
            raise BadInput(
                f"{self.path} was made of {self.detector.n_features_in_} columns whose names it does not know, and "
                f"there are {len(table.columns.used)} here: choose them, in the same order, by --columns"
            )
        return table

    def judge(self, chunk: Chunk) -> Verdicts:
        """What the model says of rows; those of a series are taken as the ones that come next."""
        if self.is_series:
            judged = self.detector.judge(self._named(chunk.rows), times=self._times(chunk))
            return Verdicts(judged.scores, judged.p_values, judged.is_anomaly)
        rows = self._named(chunk.rows)
        scores = self.detector.score_samples(rows)
        p_values = self.detector._p_values(scores)
        return Verdicts(scores, p_values, self._flags(rows, scores, p_values))

    def explain(self, chunk: Chunk, places: Sequence[int]) -> list[Explanation]:
        """Why rows are as strange as they are; of a row that lacks values, with those filled in."""
        if self.is_series:
            explained = self.detector.explain(self._named(chunk.rows), times=self._times(chunk), rows=places)
            verdicts, at = self.judge(chunk), list(places)
            p_values = None if verdicts.p_values is None else verdicts.p_values[at]
            return list(explained.judged(verdicts.is_anomaly[at], p_values))
        rows = self._named(chunk.rows[list(places)])
        if np.isnan(chunk.rows[list(places)]).any():
            rows = self._named(self.detector.impute(rows))
        explanations = self.detector.explain(rows, line=None if self.wishes.epsilon is not None else self._line)
        scores = self.detector.score_samples(rows)
        p_values = self.detector._p_values(scores)
        return list(explanations.judged(self._flags(rows, scores, p_values), p_values))

    def _named(self, rows: Array) -> Any:
        """Rows as the model wants them: with names, if it has any."""
        return rows if self.names is None else frame(rows, self.names)

    def _times(self, chunk: Chunk) -> Array | None:
        """The times of rows, for a series that goes by them.

        Rows from before what was learned are taken some whole weeks later, as if they came next: at the same time of
        the day, on the same day of the week.
        """
        times, memory = chunk.times, self.detector._memory
        if not memory.is_timed or times is None:
            return None
        refuse_disorder(times, chunk.numbers)
        latest = memory.track.latest
        return times if times[0] >= latest else times + _WEEK * (1 + np.ceil((latest - times[0]) / _WEEK))

    def _flags(self, rows: Any, scores: Array, p_values: Array | None) -> Array:
        """Which rows are flagged."""
        rate, epsilon, phi = self.wishes
        if epsilon is not None:
            return in_small_leaves(self.detector, rows, epsilon, phi)
        if rate is None:
            return np.asarray(scores < self._line)
        if p_values is None:
            raise BadInput(f"{self.path} has nothing to tell p-values by, which --false-alarm-rate needs: fit it anew")
        return np.asarray(p_values <= rate)

    @cached_property
    def _line(self) -> float:
        """The score below which rows are flagged.

        By the false alarm rate, if the model was made with one; else where `fit` found the rows of a table to thin out,
        or where those that a stream holds do.
        """
        detector = self.detector
        if detector.false_alarm_rate is not None:
            return float(detector.offset_)
        if "line" in detector.notes:
            return float(detector.notes["line"])
        is_stream = getattr(detector, "_stream", None) is not None and detector.n_points_ > 0
        return line_below_bulk(detector._calibrated(), RATE) if is_stream else float(detector.offset_)
