"""Fit a detector to a table in parts: on a cluster, or out of memory.

The tasks of a `TableFit` take the rows of a part and their ids, can be pickled, and return values whose sum does not
depend on the partition or the order of the parts. If ids are row numbers, the detector has the same bits as after a
local `fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from sklearn.base import clone

from polyaforest import forest as forests
from polyaforest.detectors.batch import BatchMPF
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.forest.survey import Inquiry, Survey
from polyaforest.kernels.arrays import Array, Forest
from polyaforest.tables.categories import Categories, read_categorical
from polyaforest.tables.validation import CodedRows, read_coded, read_sample_weight

Kind = TypeVar("Kind", BatchMPF, StreamingMPF)


@dataclass(frozen=True, eq=False)
class PartReader:
    """Validate parts of a table as a local `fit` validates the whole."""

    blank: BatchMPF | StreamingMPF  # unfitted, but with columns

    def __call__(self, X: Any) -> Array:
        """Return the validated rows of a part, which may be empty."""
        return self.coded(X).rows

    def coded(self, X: Any) -> CodedRows:
        """Return the validated rows of a part and the texts of their categories."""
        if not len(X):
            return CodedRows(np.empty((0, self.blank.n_features_in_)), {})
        return read_coded(self.blank, X, reset=False, allow_missing=self.blank._allows_missing)


@dataclass(frozen=True, eq=False)
class SurveyTask:
    """The task of the first pass: survey the rows before the trees are drawn."""

    read: PartReader
    inquiry: Inquiry

    def __call__(self, X: Any, ids: Array, copies: Array | None = None) -> PartSurvey:
        """Survey the rows of a part."""
        (rows, texts), ids = self.read.coded(X), _as_ids(ids, len(X))
        survey = self.inquiry.of(rows, ids) if copies is None else self.inquiry.of_copies(rows, copies, ids)
        encoding = self.read.blank.encoding_
        return PartSurvey(survey, None if encoding is None else encoding.with_texts(texts)).tidied()


@dataclass(frozen=True, eq=False)
class WeighTask:
    """Convert the weights of a part to numbers of copies, given the row numbers."""

    seed: int

    def __call__(self, sample_weight: Any, ids: Array) -> Array:
        """Return the number of copies of each row."""
        weights = read_sample_weight(sample_weight, len(ids))
        return np.ones(len(ids), np.int64) if weights is None else forests.copies.n_copies(weights, ids, self.seed)


@dataclass(frozen=True, eq=False)
class PartSurvey:
    """The survey of some rows, and the texts of the categories of the sampled ones."""

    survey: Survey
    encoding: Categories | None

    def __add__(self, other: PartSurvey) -> PartSurvey:
        """Combine two surveys."""
        encoding = self.encoding
        if encoding is not None and other.encoding is not None:
            encoding = encoding.with_texts(other.encoding.texts)
        return PartSurvey(self.survey + other.survey, encoding).tidied()

    def tidied(self) -> PartSurvey:
        """Return the survey without the texts of rows that are not in the sample."""
        if self.encoding is None:
            return self
        donors = self.survey.donors
        draws = [self.survey.drawn, *([] if donors is None else [donors.of_all, *donors.of_column.values()])]
        return PartSurvey(self.survey, self.encoding.kept(np.concatenate([drawn.rows for drawn in draws])))


@dataclass(frozen=True, eq=False)
class CellCounts:
    """Numbers of rows below every node of a forest, (T, C), and outside its domain, (T,)."""

    counts: Array
    outside: Array

    def __add__(self, other: CellCounts) -> CellCounts:
        """Add two counts."""
        return CellCounts(self.counts + other.counts, self.outside + other.outside)

    def __getstate__(self) -> tuple[Array, Array]:
        """Pickle with the smallest integer type that holds the largest count."""
        return tuple(part.astype(np.min_scalar_type(part.max(initial=0))) for part in (self.counts, self.outside))  # type: ignore[return-value]

    def __setstate__(self, state: tuple[Array, Array]) -> None:
        """Restore int64."""
        for name, part in zip(("counts", "outside"), state, strict=True):
            object.__setattr__(self, name, part.astype(np.int64))


@dataclass(frozen=True, eq=False)
class CountTask:
    """The task of the second pass, for `BatchMPF`: count the rows in the cells of an empty forest."""

    read: PartReader
    survey: Survey
    forest: Forest

    def __call__(self, X: Any, ids: Array, copies: Array | None = None) -> CellCounts:
        """Count the rows of a part."""
        rows, ids = self.read(X), _as_ids(ids, len(X))
        if copies is None:
            return CellCounts(*forests.learn.count_rows(self.forest, self.survey.filled(rows, ids), 1))
        return CellCounts(*forests.learn.count_copies(self.forest, rows, copies, ids, self.survey.filled, 1))


@dataclass(frozen=True, eq=False)
class ScoreTask:
    """The task of the third pass, needed for `contamination`: score the rows."""

    read: PartReader
    detector: BatchMPF | StreamingMPF

    def __call__(self, X: Any) -> Array:
        """Return the log-scores of the rows of a part."""
        rows = self.read(X)
        return self.detector._score.to_log(self.detector._scores(rows)) if len(rows) else np.empty(0)


class TableFit(Generic[Kind]):
    """A fit in passes over a table.

    1. Call `look` with every part, and `begin` with the sum of the results.
    2. If `begin` returns a task, call it with every part. Call `finish` with the sum of the results, or with None.
    3. If `task_of_scores` is not None, call it with every part, and `place_threshold` with a quantile of the scores.

    If rows have weights, `weigh` returns the number of copies of each row. Tasks then take the copies too, and the
    number of the first copy of each row as its id.

    Parameters
    ----------
    detector : BatchMPF or StreamingMPF
        Unchanged until `finish`.
    columns : int or sequence of str
        The number of columns, or their names.
    of_categorical_type : sequence of int
        Indices of the columns of a categorical type, for ``categorical_features="from_dtype"``.
    """

    def __init__(self, detector: Kind, columns: int | Sequence[str], of_categorical_type: Sequence[int] = ()) -> None:
        self._detector: Kind = detector
        self._draft: Kind = clone(detector)
        self._draft._validate_params()
        if isinstance(columns, int):
            self._draft.n_features_in_ = columns
        else:
            self._draft.n_features_in_ = len(columns)
            self._draft.feature_names_in_ = np.array(list(columns), dtype=object)
        names = None if isinstance(columns, int) else list(columns)
        n_features = self._draft.n_features_in_
        chosen = read_categorical(detector.categorical_features, names, n_features, lambda: of_categorical_type)
        self._draft.encoding_ = Categories(chosen, n_features) if chosen else None
        self._seed = detector._parameters.seed()  # drawn once for all passes
        self._read = PartReader(_blank(self._draft))
        self.look = SurveyTask(self._read, self._inquiry())
        self.weigh = WeighTask(self.look.inquiry.seed)
        self._survey: Survey | None = None

    def _inquiry(self) -> Inquiry:
        draft = self._draft
        if isinstance(draft, BatchMPF):
            return draft._inquiry()
        policy = draft._parameters.policy_of_table()
        if policy is None or not policy.is_uniform:
            raise ValueError(
                f"window={draft.window!r} depends on the order of the rows or needs all of them at once, so it does "
                'not work with a table in parts: use window="auto" or Reservoir(n)'
            )
        return draft._inquiry(self._seed)

    def begin(self, seen: PartSurvey) -> CountTask | None:
        """Draw the trees for a surveyed table; return the task of the second pass, or None."""
        survey, self._draft.encoding_ = seen.survey, seen.encoding
        if not survey.facts.n:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: the table is empty")
        survey.drawn.check_unique_ids()
        self._survey = survey
        draft = self._draft
        if isinstance(draft, BatchMPF):
            draft._cut(survey, self._seed)
            return CountTask(self._read, replace(survey, drawn=survey.drawn.first(0)), draft.forest_)
        draft._grow_from(survey, self._seed)
        return None

    def finish(self, counts: CellCounts | None) -> Kind:
        """Add the counts of the second pass, if there was one, and return the fitted detector."""
        draft, survey = self._draft, self._survey
        assert survey is not None
        if isinstance(draft, BatchMPF):
            assert counts is not None
            draft._take_counts(survey, counts.counts, counts.outside)
        self._detector._become(draft)
        return self._detector

    @property
    def task_of_scores(self) -> ScoreTask | None:
        """The task of the third pass; None if the threshold does not need it."""
        policy, survey = self._draft._policy, self._survey
        assert survey is not None
        if policy.contamination is None or survey.facts.n <= survey.drawn.most:
            return None
        return ScoreTask(self._read, self._detector)

    def place_threshold(self, log_score: float) -> None:
        """Set the threshold to a log-score."""
        self._detector._place_by_table(log_score)


def _blank(detector: Kind) -> Kind:
    """Return an unfitted detector with the columns of another."""
    blank: Kind = clone(detector)
    for name in ("n_features_in_", "feature_names_in_", "encoding_"):
        if hasattr(detector, name):
            setattr(blank, name, getattr(detector, name))
    return blank


def _as_ids(ids: Array, n_rows: int) -> Array:
    given = np.asarray(ids)
    if given.dtype.kind not in "iu" or given.shape != (n_rows,):
        raise ValueError(f"ids must be {n_rows} integers, one for each row; got {given.dtype} {given.shape}")
    return given.astype(np.int64, copy=False)
