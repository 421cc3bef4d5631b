"""Learn the rows of a stream, each after it is scored, compared with the threshold and explained.

Rows are learned in pieces, between which other threads may read the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import NamedTuple

import numpy as np

from polyaforest import forest as forests
from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key, copied_keys
from polyaforest.forest.thresholds import NOTHING, Detections
from polyaforest.kernels.arrays import Array
from polyaforest.model.fitted import ExplainedRows, Query
from polyaforest.model.stream_model import LearnTask, StreamModel
from polyaforest.tables.validation import check_countable

_FEW = 16  # up to so many rows are explained one by one; replaying more rows on a copy is faster


class NewRows(NamedTuple):
    """Validated rows to learn, with their keys and times."""

    values: Array
    keys: list[Key | None]
    times: Array

    def part(self, span: slice) -> NewRows:
        """Return some of the rows."""
        return NewRows(self.values[span], self.keys[span], self.times[span])


class Access(NamedTuple):
    """How to use a model that threads share, as its detector provides it."""

    reading: Callable[[], AbstractContextManager[None]]  # prevents changes
    writing: Callable[[], AbstractContextManager[Callable[[], bool]]]  # excludes others; yields whether to stop
    query: Callable[[], Query]  # the current parameters
    check_inside: Callable[[Array], None]  # raises if a row is outside the domain
    explained: Callable[[Array], ExplainedRows]  # labels rows to explain


class Learner:
    """Learn rows with a model, and return the results of a task."""

    def __init__(self, model: StreamModel, access: Access, task: LearnTask) -> None:
        self._model, self._access, self._task = model, access, task

    def learn_weighted(self, rows: NewRows, weights: Array) -> tuple[Detections, Key | None]:
        """Learn weighted rows; the results of a row are those before its first copy."""
        with self._access.writing():
            model, seed = self._model, int(self._model.stream.seeds[0])
            copies, n_random_draws = forests.copies.n_copies_next(weights, seed, model.n_random_draws)
            self._check_copies(rows, copies)
            model.n_random_draws += n_random_draws
        if self._task.is_judged:
            self._seed_calibration([])
        answers: list[Detections] = []
        key, is_learned, is_scored, n = None, copies > 0, self._task.is_scored, len(rows.values)
        ends = [*(np.flatnonzero(np.diff(is_learned)) + 1).tolist(), n] if is_scored else [n]
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            if is_scored and start < stop and not is_learned[start]:
                answers += [self._detect_ahead(rows.values[i : i + 1]) for i in range(start, stop)]
                continue
            for places, turns in forests.copies.parts(copies[start:stop], np.zeros(stop - start, np.int64)):
                own = places + start
                names = copied_keys([rows.keys[i] for i in own.tolist()], turns=turns)
                found, key = self.learn(NewRows(rows.values[own], names, rows.times[own]))
                answers.append(found.select(np.flatnonzero(turns == 0)) if is_scored else found)
        return Detections.joined(answers), key

    def learn(self, rows: NewRows) -> tuple[Detections, Key | None]:
        """Learn rows; return the results, and the key of the last row if it is held."""
        task, stream, n = self._task, self._model.stream, len(rows.values)
        if task.is_explained and n > _FEW:
            return self._learn_and_replay(rows)
        self._access.check_inside(rows.values)
        if task.is_judged:
            self._seed_calibration(rows.keys)
        ends = [*self._model.places_alone(rows.values, task, self._access.query()), n]  # of rows learned together
        answers: list[Detections] = []
        start, key = 0, None
        # more than one iteration only if rows are learned one by one, or if a handler ignored Ctrl-C
        while start < n:
            stop = ends[bisect_left(ends, start)]
            part = rows.part(slice(start, max(stop, start + 1)))
            ahead = self._detect_ahead(part.values) if stop == start else None
            with self._access.writing() as is_interrupted:
                came = stream.store.n_seen
                check_countable(came, n - start)
                stream.store.check_keys(rows.keys[start:])
                answers.append(self._model.learn(*part, task, self._access.query(), ahead, is_interrupted))
                start += stream.store.n_seen - came
                key = stream.store.newest_key
        return Detections.joined(answers), key

    def _learn_and_replay(self, rows: NewRows) -> tuple[Detections, Key | None]:
        """Learn rows together, and explain the flagged ones by replaying the rows on a copy."""
        with self._access.reading():
            before = self._copy()
        detected, key = Learner(self._model, self._access, self._task._replace(is_explained=False)).learn(rows)
        explanations, start = {}, 0
        for i in np.flatnonzero(detected.is_anomaly).tolist():
            before.learn(rows.part(slice(start, i)))
            explanations[i] = before._explanation(rows.values[i : i + 1], detected.row(i))
            start = i
        return detected._replace(explanations=explanations), key

    def _copy(self) -> Learner:
        """Return a learner with a copy of the model, which only this thread uses, and without results."""
        model, query = deepcopy(self._model), self._access.query()

        @contextmanager
        def writing() -> Iterator[Callable[[], bool]]:
            model.leave_snapshots()
            yield lambda: False

        access = self._access._replace(reading=nullcontext, writing=writing, query=lambda: query)
        return Learner(model, access, LearnTask())

    def _detect_ahead(self, row: Array) -> Detections:
        """Return the results for a single row before it is learned."""
        if not self._task.is_scored:
            return NOTHING
        with self._access.reading():
            detected = self._model.detect_ahead(row, self._task, self._access.query())
        if not (self._task.is_explained and detected.is_anomaly[0]):
            return detected
        return detected._replace(explanations={0: self._explanation(row, detected)})

    def _explanation(self, row: Array, detected: Detections) -> Explanation:
        """Explain a flagged row, given the threshold it was compared with."""
        given = self._access.explained(row)
        with self._access.reading():
            return self._model.explanation(given, detected, self._access.query())

    def _seed_calibration(self, keys: list[Key | None]) -> None:
        """Seed the calibration scores of a stream with those of the points held, if there are any."""
        stream = self._model.stream
        if len(stream.calibration) or not stream.n_points or not stream.keeps_points:
            return
        with self._access.writing():
            stream.store.check_keys(keys)  # raise before changing anything
            self._model.seed_calibration(self._access.query())

    def _check_copies(self, rows: NewRows, copies: Array) -> None:
        """Raise, before any row is learned, if one of them is invalid."""
        store = self._model.stream.store
        check_countable(store.n_seen, int(copies.sum()))
        if any(key is not None for key in rows.keys):
            store.check_keys(copied_keys(rows.keys, copies))
        self._access.check_inside(rows.values[copies > 0])
