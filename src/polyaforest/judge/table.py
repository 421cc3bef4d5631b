"""Detect anomalies in whole tables, and in tables that are read once like a stream.

The detector validates and scores each row once, and sets the threshold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from polyaforest.detectors import (
    BatchMPF,
    Detections,
    EpsilonPhi,
    GroupedMPF,
    SeriesMPF,
    StreamingMPF,
    Tree,
    loads,
)
from polyaforest.forest.thresholds import AUTO_RATE, least_calibration
from polyaforest.io.tables import BadInput, TableChunk, TableColumns
from polyaforest.kernels.arrays import Array
from polyaforest.series import Forecast, find_events
from polyaforest.series.recent import LEAST_READINGS, MOST_CHANNELS, REACH
from polyaforest.series.rhythm import has_context, is_series, least_readings
from polyaforest.storage.model_store import ModelStore
from polyaforest.tables.validation import NamedRows
from polyaforest.util.dates import moment
from polyaforest.util.text import count

if TYPE_CHECKING:
    from polyaforest.explain import Explanation

_LEAST_ROWS = 8  # of a table or partition; fewer do not show what is normal
_LEAST_PER_PARTITION = 3  # rows, on average
_LEAST_TO_COUNT = 20  # rows; with fewer, the number of partitions is not checked
_MOST_DETECTORS = 32  # kept for explanations; those of other partitions are fitted again if needed
_DEPTH = 10  # of trees whose leaves decide, as in the paper


@dataclass(frozen=True)
class DetectorSettings:
    """The choice of detector and its threshold policy."""

    kind: str | None = None  # "batch", "stream" or None for a table
    seed: int = 0
    window: int | None = None  # points to hold, if not the default
    shingle: int | None = None  # raw readings of a time series to score together
    is_series: bool | None = None  # whether rows are a time series; None detects it, for a table
    false_alarm_rate: float | None = None
    epsilon: float | None = None
    phi: float | None = None
    n_jobs: int | None = -1  # results do not depend on it

    @property
    def expected_rate(self) -> float | None:
        """The share of normal rows expected to be flagged, if the policy has one."""
        return None if self.epsilon is not None else self.false_alarm_rate or AUTO_RATE

    @property
    def is_stream(self) -> bool:
        """Whether each row is scored against earlier ones."""
        return self.kind == "stream"

    @property
    def least_rows(self) -> int:
        """The fewest rows of a table or partition that can be scored."""
        rate, least = self.false_alarm_rate, LEAST_READINGS if self.is_series else _LEAST_ROWS
        return least if rate is None else max(least, least_calibration(rate) + 1)

    @property
    def reach(self) -> int:
        """Number of following rows that an anomaly can make look anomalous."""
        return self.shingle or (REACH if self.is_series else 0)

    def new_detector(self) -> Any:
        """Return an unfitted detector."""
        given: dict[str, Any] = {
            "false_alarm_rate": self.false_alarm_rate,
            "random_state": self.seed,
            "n_jobs": self.n_jobs,
        }
        if self.epsilon is not None:
            given["score_type"] = EpsilonPhi(self.epsilon, *([] if self.phi is None else [self.phi]))
        if self.kind == "batch":
            return BatchMPF(**given)
        if self.epsilon is not None:
            given |= {"tree": Tree(max_depth=_DEPTH), "max_samples": None}
        if self.window is not None:
            given["window"] = self.window
        forest = StreamingMPF(**given)
        if self.shingle is not None:
            return SeriesMPF(forest, shingle=self.shingle)
        return SeriesMPF(forest) if self.is_series else forest


class Detected(NamedTuple):
    """Rows with their results; scores and p-values are NaN if a row could not be scored."""

    chunk: TableChunk
    scores: Array  # higher is more normal
    p_values: Array
    is_anomaly: Array
    explanations: dict[int, Explanation]  # by position
    thresholds: Array  # -inf where no row would have been flagged
    tail_bits: Array  # as in `Detections`

    @classmethod
    def unscored(cls, chunk: TableChunk) -> Self:
        """Return rows without results, to be filled in."""
        scores, p_values, thresholds, bits = (np.full(len(chunk.rows), np.nan) for _ in range(4))
        return cls(chunk, scores, p_values, np.zeros(len(scores), np.bool_), {}, thresholds, bits)

    def fill(self, places: Array, found: Detections) -> None:
        """Fill in the results of some rows."""
        self.scores[places], self.p_values[places], self.is_anomaly[places], self.thresholds[places] = found[:4]
        if len(found.tail_bits):
            self.tail_bits[places] = found.tail_bits
        self.explanations.update((int(places[i]), explanation) for i, explanation in found.explanations.items())

    def select(self, places: Array) -> Detected:
        """Return some of the rows."""
        kept = {j: self.explanations[i] for j, i in enumerate(places.tolist()) if i in self.explanations}
        scores, p_values, is_anomaly, thresholds, bits = (part[places] for part in (*self[1:4], *self[5:]))
        return Detected(self.chunk.select(places), scores, p_values, is_anomaly, kept, thresholds, bits)

    def flagged(self) -> Detected:
        """Return the flagged rows."""
        return self.select(np.flatnonzero(self.is_anomaly))

    def worst(self, most: int) -> list[int]:
        """Return the positions of the `most` flagged rows with the lowest scores, ascending."""
        places = np.flatnonzero(self.is_anomaly)
        return sorted(places[np.argsort(self.scores[places], kind="stable")[:most]].tolist())


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass
class TableDetector:
    """Score a table as a whole; with partitions, score each as its own table."""

    table: TableChunk
    columns: TableColumns
    settings: DetectorSettings
    too_small: dict[str, int] = field(init=False, default_factory=dict)  # number of rows by partition
    _fitted: list[tuple[Array, Any]] = field(init=False, default_factory=list)  # places and detector, None if not kept

    def detect(self) -> Detected:
        """Return all rows with their results; partitions with too few rows stay unscored."""
        found = Detected.unscored(self.table)
        check_partitions(self.table.keys)
        partitions = places_by_partition(self.table.keys, len(self.table.rows))
        if self.settings.is_series is None:
            self.settings = replace(self.settings, is_series=self._is_series(list(partitions.values())))
        least = self.settings.least_rows
        for name, places in partitions.items():
            if len(places) < least or not (len(partitions) == 1 or self._can_be_scored(places)):
                self.too_small[name] = len(places)
                continue
            rows, times = self._rows_at(places), self._times_at(places)
            detector, groups = self._fit(places), self._groups_at(places)
            found.fill(places, detector.detect(rows, **times, **groups, **self._in_place))
            self._fitted.append((places, detector if len(self._fitted) < _MOST_DETECTORS else None))
        if not self._fitted:
            rate, n = self.settings.false_alarm_rate, len(self.table.rows)
            purpose = "to learn what is normal" if rate is None else f"for a false alarm rate of {rate:g}"
            if self.table.keys is None:
                raise BadInput(f"the input has only {count(n, 'row')}; at least {least:,} are needed {purpose}")
            raise BadInput(
                f"all {len(self.too_small):,} partitions have fewer than the {least:,} rows needed {purpose}: omit "
                "--by, or give more rows"
            )
        return found

    def explain(self, places: Iterable[int]) -> dict[int, Explanation]:
        """Explain the rows at these places."""
        wanted = np.fromiter(places, np.int64)
        found: dict[int, Explanation] = {}
        for own, kept in self._fitted:
            mine = wanted[np.isin(wanted, own)]
            if len(mine):
                times = self._times_at(own)
                detector = kept or self._fit(own)
                if self.settings.is_series:
                    at = np.searchsorted(own, mine)
                    explained = detector.explain(self._rows_at(own), rows=at, **times, **self._in_place)
                else:
                    explained = detector.explain(self._rows_at(mine), **self._groups_at(mine))
                    if self.columns.categories and self.table.groups is None:
                        explained.count_in(self.table.rows[own])
                found |= zip(mine.tolist(), explained, strict=True)
        return found

    def expect(self, places: Array, found: Detected) -> Forecast | None:
        """Forecast rows of one partition, ignoring its events; None if they are no time series."""
        fitted = [(own, kept) for own, kept in self._fitted if np.isin(places, own).all()]
        if not self.settings.is_series or self.settings.shingle is not None or not fitted:
            return None
        own, kept = fitted[0]
        times, ignored = self._times_at(own), np.zeros(len(own), np.bool_)
        for event in find_events(found.is_anomaly[own], found.scores[own], merge=REACH):
            ignored[event.first : event.last + 1] = True
        detector = kept or self._fit(own)
        expected = detector.expect(self._rows_at(own), unseen=ignored, **times, **self._in_place)
        return Forecast(*(part[np.searchsorted(own, places)] for part in expected))

    @property
    def _in_place(self) -> dict[str, bool]:
        """Keyword arguments for rows that the detector was fitted on."""
        return {"standalone": True} if self.settings.is_series else {}

    def _is_series(self, partitions: list[Array]) -> bool:
        """Return whether all partitions that are long enough are time series."""
        times, rows = self.table.times, self.table.rows
        if times is None or self.settings.kind is not None or self.settings.epsilon is not None:
            return False
        is_number = self._is_number
        least = least_readings(int(is_number.sum()))
        long = [places for places in partitions if len(places) >= least]
        if not is_number.any():
            return False
        return bool(long) and all(is_series(times[places], rows[np.ix_(places, is_number)]) for places in long)

    def _can_be_scored(self, places: Array) -> bool:
        """Return whether rows are independent, or a series of few columns or with a complete context window."""
        if not self.settings.is_series or self._is_number.sum() <= MOST_CHANNELS:
            return True
        times = None if self.table.times is None else self.table.times[places]
        return has_context(times, self.table.rows[np.ix_(places, self._is_number)])

    @property
    def _is_number(self) -> Array:
        """Whether each column is numeric, (D,)."""
        return np.isin(self.columns.used, self.columns.numeric)

    def _times_at(self, places: Array) -> dict[str, Array]:
        """Return the times of a time series, if it has any; raise if they decrease."""
        if not self.settings.is_series or self.table.times is None:
            return {}
        times = self.table.times[places]
        check_order(times, self.table.numbers[places])
        return {"times": times}

    def _fit(self, places: Array) -> Any:
        """Return a detector fitted on rows."""
        rows, detector = self._rows_at(places), self.settings.new_detector()
        if self.table.groups is not None:
            return GroupedMPF(detector).fit(rows, **self._groups_at(places))
        weights = {} if self.table.weights is None else {"sample_weight": self.table.weights[places]}
        return detector.fit(rows, **self._times_at(places), **weights)

    def _groups_at(self, places: Array) -> dict[str, list[str | None]]:
        """Return the groups of rows, if there are any; an empty cell is no group."""
        groups = self.table.groups
        return {} if groups is None else {"groups": [groups[place] or None for place in places.tolist()]}

    def _rows_at(self, places: Array) -> NamedRows:
        """Return rows; of a time series, only the numeric columns."""
        is_whole = len(places) == len(self.table.rows)  # then no copy is needed
        if self.settings.is_series and self.columns.categories:
            return NamedRows(self.table.rows[np.ix_(places, self._is_number)], self.columns.numeric)
        return self.table.named(self.columns, None if is_whole else places)


def places_by_partition(names: list[str] | None, n: int) -> dict[str, Array]:
    """Return the places of the rows of each partition, in order of first appearance; without names, all under ""."""
    if names is None:
        return {"": np.arange(n)}
    codes: dict[str, int] = {}
    inverse = np.fromiter((codes.setdefault(name, len(codes)) for name in names), np.int64, n)
    ends = np.cumsum(np.bincount(inverse, minlength=len(codes)))
    return dict(zip(codes, np.split(np.argsort(inverse, kind="stable"), ends[:-1]), strict=False))


def check_partitions(names: list[str] | None) -> None:
    """Raise if partitions have too few rows on average."""
    if names is None or len(names) < _LEAST_TO_COUNT:
        return
    n = len(set(names))
    if n * _LEAST_PER_PARTITION > len(names):
        raise BadInput(
            f"the column given as --by has {n:,} different values in {len(names):,} rows, so most partitions would "
            "have too few rows to compare: if it identifies rows, use --id instead"
        )


# ---- streams ---------------------------------------------------------------------------------------------------------


class StreamDetector:
    """Score each row against earlier ones, then learn it; with partitions, each is its own stream.

    The least recently used models are moved to a temporary file, so memory is bounded.
    """

    def __init__(self, columns: TableColumns, settings: DetectorSettings) -> None:
        self.columns, self.settings = columns, settings
        self._models = ModelStore(None, settings.new_detector, loads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._models.close()

    def detect(self, chunk: TableChunk) -> Detected:
        """Score rows, explain flagged ones, and learn all."""
        found = Detected.unscored(chunk)
        for name, places in places_by_partition(chunk.keys, len(chunk.rows)).items():
            detector: Any = self._models[name].detector
            part = chunk.select(places)
            rows, times = part.named(self.columns), times_of(detector, part)
            weights = {} if part.weights is None else {"sample_weight": part.weights}
            found.fill(places, detector.detect_then_learn(rows, times=times, explain=True, **weights))
        return found


def times_of(detector: Any, chunk: TableChunk) -> Array | None:
    """Return the times of rows for a time series, if there are any; raise if they decrease."""
    if not isinstance(detector, SeriesMPF) or chunk.times is None:
        return None
    latest = detector.latest_ if detector.is_fitted else None
    check_order(chunk.times, chunk.numbers, -inf if latest is None else latest)
    return chunk.times


def check_order(times: Array, numbers: Array, latest: float = -inf) -> None:
    """Raise if a row of a time series is earlier than the one before it."""
    before = np.concatenate([[latest], times[:-1]])
    if (times < before).any():
        at = int((times < before).argmax())
        raise BadInput(
            f"row {numbers[at]:,} is from {moment(times[at])}, but the row before it is from {moment(before[at])}: "
            "rows of a time series must be in order of time. Sort the input, or use --by if it holds several series"
        )
