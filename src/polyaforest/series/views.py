"""The views of a series, and how their scores become verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import LearnTask
from polyaforest.series.shingles import Alignment, Pattern, Track
from polyaforest.series.view import View
from polyaforest.storage.modelfile import Arrays, Header

ReadParameters = Callable[[Header], StreamParameters]


class Rows:
    """Rows of features to learn, one for each shingle or context window that ends in an alignment.

    Parameters
    ----------
    values : ndarray of shape (n, n_features)
    keys : list of int or str
    times : ndarray of shape (n,)
    numbers : list of int
        Arrival numbers of the readings at which they end.
    """

    def __init__(self, values: Array, keys: list[Key | None], times: Array, numbers: list[int]) -> None:
        self.values, self.keys, self.times, self.numbers = values, keys, times, numbers

    def __len__(self) -> int:
        return len(self.values)

    def part(self, span: slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.values[span], self.keys[span], self.times[span], self.numbers[span])


class Views:
    """Forests that each learn some features of the same rows.

    A subclass decides which views there are, and how to compare their scores with a threshold.

    Parameters
    ----------
    pattern : Pattern
        Of the rows.
    channels : list of str
        Names of the channels of the series.
    members : list of View

    Attributes
    ----------
    run_length : float
        Mean number of consecutive rows that are anomalous together; 1 unless it is measured.
    """

    has_warm_up: ClassVar[bool]  # whether a stream has no scores until it has measured its features
    run_length: float = 1.0

    def __init__(self, pattern: Pattern, channels: Sequence[str], members: Sequence[View]) -> None:
        self.pattern, self.channels, self.members = pattern, list(channels), list(members)

    @classmethod
    def begin(cls, pattern: Pattern, channels: Sequence[str], parameters: StreamParameters) -> Views:
        """Return the views of a new series."""
        raise NotImplementedError

    @staticmethod
    def spans(pattern: Pattern, channels: Sequence[str]) -> list[tuple[list[str], slice]]:
        """Return names and columns of the features of each view, side by side."""
        names, ends = pattern.names(channels), list(accumulate(pattern.widths(len(channels))))
        return [(names[start:end], slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def first(self) -> View:
        """The first view, whose points are those of all views."""
        return self.members[0]

    @property
    def has_begun(self) -> bool:
        """Whether the forests have learned any row."""
        return self.first.model is not None

    @property
    def n_points(self) -> int:
        """Number of points held."""
        return self.first.n_points

    @property
    def slot_of(self) -> Mapping[Key, object]:
        """The points held, by their keys."""
        return self.first.slot_of

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes."""
        return sum(member.nbytes for member in self.members)

    @property
    def points(self) -> Array:
        """The points held, by order of arrival, the columns of all views side by side."""
        return np.concatenate([member.points for member in self.members], axis=1)

    @property
    def domain(self) -> Array:
        """The bounds of all features, (2, D); infinite if there are none."""
        return np.hstack([member.domain for member in self.members])

    @property
    def n_until_weighed(self) -> int:
        """Number of rows until the next change of feature weights during warm-up; 0 afterwards."""
        return self.first.n_until_weighed

    @property
    def is_warming_up(self) -> bool:
        """Whether rows are learned but not yet scored."""
        return self.has_warm_up and self.n_until_weighed > 0

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, rows: Rows) -> None:
        """Fit the forests to the rows of a table."""
        for member in self.members:
            member.fit(member.of(rows.values), rows.keys, rows.times)

    def learn(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn the rows of an alignment; return the results of the task."""
        raise NotImplementedError

    def delete(self, keys: Iterable[Key]) -> None:
        """Delete points."""
        gone = list(keys)
        for member in self.members:
            member.delete(gone)

    def change_false_alarm_rate(self, rate: float | None) -> None:
        """Change the false alarm rate."""
        for member in self.members:
            member.change_false_alarm_rate(rate)

    def flag_at_rate(self, rate: float) -> None:
        """Flag rows at a false alarm rate, by the calibration scores held."""
        for member in self.members:
            member.parameters = member.parameters.but(contamination="auto", false_alarm_rate=rate)

    def rebuild(self) -> None:
        """Recompute feature weights and regrow all trees."""
        for member in self.members:
            member.rebuild()

    def end_warm_up(self) -> None:
        """Adapt the feature weights to what is known at the end of the warm-up."""

    def weigh(self, rows: Array) -> None:
        """Decide by rows which features weigh less, from the next rebuild on."""

    def measure_run_length(self, rows: Array | None = None) -> None:
        """Measure how many rows are anomalous together, on consecutive rows or on the calibration scores."""

    def measure_run_length_if_known(self, least: int) -> None:
        """Measure the run length, if there are at least so many calibration scores."""

    def follow_rhythm(self, track: Track, numbers: Array, every: float | None) -> None:
        """Recompute what the points held, which end at readings `numbers`, know about the rhythm of a track.

        The clock of the phase is the time of a point in units of `every`, or its number.
        """

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def scores(self, rows: Array) -> Array:
        """Return the scores of rows: the mean over all trees."""
        return self.mean([member.scores(member.of(rows)) for member in self.members])

    def mean(self, scores: Sequence[Array]) -> Array:
        """Return the mean of the scores of the views, weighted by their numbers of trees."""
        sizes = [len(member.known.forest.left) for member in self.members]
        parts = [size / sum(sizes) * part for size, part in zip(sizes, scores, strict=True)]
        return np.asarray(sum(parts[1:], parts[0]))

    def detect(self, rows: Array) -> Detections:
        """Return the results for rows without learning them."""
        raise NotImplementedError

    @property
    def threshold(self) -> float:
        """The threshold."""
        raise NotImplementedError

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores."""
        raise NotImplementedError

    def explain(
        self, rows: Array, features: Any, aligned: Alignment, places: Array, *, is_apart: bool = False
    ) -> Sequence[Explanation]:
        """Explain rows, which end at `places` of an alignment; `is_apart` as in `Outlook`."""
        raise NotImplementedError

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the state; a compact state omits derived arrays."""
        raise NotImplementedError

    @classmethod
    def of_state(
        cls,
        pattern: Pattern,
        channels: Sequence[str],
        header: Header,
        arrays: Arrays,
        read: ReadParameters,
    ) -> Views:
        """Return the views with a state from `state`; `read` validates parameters."""
        raise NotImplementedError

    def restore_numbers(self, spans: Mapping[Key, tuple[int, int]]) -> None:
        """Restore the arrival numbers of the readings at which the points held end."""

    def check_consistent(self) -> None:
        """Raise RuntimeError if a change was interrupted."""
        for member in self.members:
            member.check_consistent()


class ShingleViews(Views):
    """A forest on raw readings, which has its own threshold."""

    has_warm_up: ClassVar[bool] = False

    @classmethod
    def begin(cls, pattern: Pattern, channels: Sequence[str], parameters: StreamParameters) -> ShingleViews:
        """Return the views of a new series."""
        ((features, columns),) = cls.spans(pattern, channels)
        return cls(pattern, channels, [View("shingle", parameters, features, columns)])

    def learn(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn the rows of an alignment; return the results of the task."""
        return self.first.learn(self.first.of(rows.values), rows.keys, rows.times, task)

    def detect(self, rows: Array) -> Detections:
        """Return the results for rows without learning them."""
        return self.first.detect(rows)

    @property
    def threshold(self) -> float:
        """The threshold."""
        return self.first.threshold

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores."""
        return self.first.p_values(scores)

    def explain(
        self, rows: Array, features: Any, aligned: Alignment, places: Array, *, is_apart: bool = False
    ) -> Sequence[Explanation]:
        """Explain rows."""
        return self.first.explain(rows, features)

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the state; a compact state omits derived arrays."""
        return self.first.state(is_compact=is_compact)

    @classmethod
    def of_state(
        cls,
        pattern: Pattern,
        channels: Sequence[str],
        header: Header,
        arrays: Arrays,
        read: ReadParameters,
    ) -> ShingleViews:
        """Return the views with a state from `state`."""
        views = cls.begin(pattern, channels, read(header))
        views.first.restore(header, arrays)
        return views
