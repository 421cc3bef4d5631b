"""Verdicts on rows as they come, with the reasons of those that are flagged, by the forest as it stood before them."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.validation import NamedRows
from polyaforest.estimators import Judgements, StreamingMPF
from polyaforest.explain import Explanation
from polyaforest.timeseries import SeriesMPF

if TYPE_CHECKING:
    from collections.abc import Sequence

Detector: TypeAlias = StreamingMPF | SeriesMPF
Rows: TypeAlias = Array | NamedRows

FEW = 16  # rows up to which each is looked at before it is learned; for more, a copy of the detector costs less


def judge_and_explain(
    detector: Detector, rows: Rows, *, times: Array | None = None, keys: Sequence[int | str] | None = None
) -> tuple[Judgements, dict[int, Explanation]]:
    """Judge rows and learn them, as `judge_then_learn` does, and explain those that are flagged.

    The results are the same row by row or in chunks of any size.

    Parameters
    ----------
    detector : StreamingMPF or SeriesMPF
        One that follows a stream.
    rows : array or NamedRows of shape (n_rows, n_features)
    times, keys
        As in `judge_then_learn`.

    Returns
    -------
    judgements : Judgements
    explanations : dict of int to Explanation
        Of the flagged rows, by their place among `rows`.
    """
    if len(rows) <= FEW:
        return _one_by_one(detector, rows, times, keys)
    before = deepcopy(detector)
    judged = detector.judge_then_learn(rows, keys=keys, times=times)
    explanations, start = {}, 0
    for i in np.flatnonzero(judged.is_anomaly).tolist():
        part = slice(start, i)
        before.partial_fit(rows[part], keys=_part(keys, part), times=_part(times, part))
        own = slice(i, i + 1)
        explanations[i] = _explain(before, rows[own], _part(times, own), Judgements(*(part[own] for part in judged)))
        start = i
    return judged, explanations


def _one_by_one(
    detector: Detector, rows: Rows, times: Array | None, keys: Sequence[int | str] | None
) -> tuple[Judgements, dict[int, Explanation]]:
    """Each row is looked at, explained if need be, and only then learned."""
    answers, explanations = [], {}
    for i in range(len(rows)):
        own = slice(i, i + 1)
        row, time = rows[own], _part(times, own)
        ahead = _look(detector, row, time)
        if ahead is not None and ahead.is_anomaly[0]:
            explanations[i] = _explain(detector, row, time, ahead)
        answers.append(detector.judge_then_learn(row, keys=_part(keys, own), times=time))
    if not answers:
        return detector.judge_then_learn(rows, keys=keys, times=times), {}
    return Judgements(*(np.concatenate(field) for field in zip(*answers, strict=True))), explanations


def _look(detector: Detector, row: Rows, time: Array | None) -> Judgements | None:
    """The verdict on a row that has not come yet; None if nothing has that it could be compared with."""
    if not hasattr(detector, "forest_"):
        return None
    return detector.judge(row, times=time) if isinstance(detector, SeriesMPF) else detector.judge(row)


def _explain(detector: Detector, row: Rows, time: Array | None, judged: Judgements) -> Explanation:
    """Why a row is flagged, by a detector that has learned what came before it, and by the line that held then."""
    line = float(judged.lines[0])
    if isinstance(detector, SeriesMPF):
        explanation = detector.explain(row, times=time, line=line)[0]
    else:
        explanation = detector.explain(_made_whole(detector, row), line=line)[0]
    explanation.is_anomaly, explanation.p_value = True, float(judged.p_values[0])
    return explanation


def _made_whole(detector: StreamingMPF, row: Rows) -> Rows:
    """A row with what the forest would expect in place of missing values, which cannot be to blame."""
    values = row.values if isinstance(row, NamedRows) else row
    if not np.isnan(values).any():
        return row
    whole = detector.impute(row)
    return NamedRows(whole, row.names) if isinstance(row, NamedRows) else whole


def _part(labels: Any, part: slice) -> Any:
    return None if labels is None else labels[part]
