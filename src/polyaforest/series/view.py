"""One view of a series: a forest on some of the features of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from polyaforest.explain import Explanations, read_features
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.point_store import Key, Labels
from polyaforest.forest.retention import Policy
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array
from polyaforest.kernels.boxes import empty_box
from polyaforest.model import forest_state
from polyaforest.model.fitted import ExplainedRows, Query, with_verdicts
from polyaforest.model.learning import Access, Learner, NewRows
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import LearnTask, StreamModel
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.validation import read_weights
from polyaforest.util import schema

_DETECTOR = "StreamingMPF"  # in files, where a view is the forest that users see
_UNBEGUN = schema.record({"parameters": schema.mapping})


class View:
    """A forest that learns some features of each row of a series.

    Parameters
    ----------
    name : str
    parameters : StreamParameters
    features : list of str
        Names of its features.
    columns : slice
        Their columns among the features of all views.

    Attributes
    ----------
    model : StreamModel or None
        What it has learned; None before the first row.
    """

    def __init__(self, name: str, parameters: StreamParameters, features: Sequence[str], columns: slice) -> None:
        self.name, self.parameters, self.features, self.columns = name, parameters, list(features), columns
        self.model: StreamModel | None = None
        self._damping: Array | None = None  # factor by which the weight of each feature is reduced

    @property
    def known(self) -> StreamModel:
        """What it has learned; there must be something."""
        assert self.model is not None
        return self.model

    @property
    def query(self) -> Query:
        """How to score rows."""
        return self.parameters.query(self.known.stream.rules.score)

    def of(self, rows: Array) -> Array:
        """Return its columns of rows."""
        return np.ascontiguousarray(rows[:, self.columns])

    # ---- points held ------------------------------------------------------------------------------------------------

    @property
    def n_points(self) -> int:
        """Number of points held."""
        return 0 if self.model is None else self.model.stream.n_points

    @property
    def n_seen(self) -> int:
        """Number of rows learned so far."""
        return 0 if self.model is None else self.model.stream.store.n_seen

    @property
    def points(self) -> Array:
        """The points held, by order of arrival."""
        stream = self.known.stream
        return stream.columns.shown(stream.rows)

    @property
    def keys(self) -> list[Key]:
        """The keys of the points held, in the same order."""
        return [] if self.model is None else self.model.stream.store.held_keys

    @property
    def slot_of(self) -> dict[Key, int]:
        """The slot of each point held, by its key."""
        return {} if self.model is None else self.model.stream.store.slot_of

    @property
    def is_damped(self) -> bool:
        """Whether the weights of some features are reduced."""
        return self._damping is not None

    @property
    def n_until_weighed(self) -> int:
        """Number of rows until the next change of feature weights during warm-up; 0 afterwards."""
        if self.model is None:
            return 1
        stream = self.model.stream
        return stream.next_rebuild - stream.store.n_seen if stream.next_rebuild else 0

    @property
    def policy(self) -> Policy:
        """The retention policy: of the stream, or of the parameters before it learns."""
        policy = None if self.model is None else self.model.stream.rules.policy
        policy = self.parameters.policy_of_stream() if policy is None else policy
        assert policy is not None
        return policy

    @property
    def domain(self) -> Array:
        """The bounds of its features, (2, D); infinite if there are none."""
        if self.model is not None:
            return self.model.forest.domain
        n = len(self.features)
        return self.parameters.given_domain(n) if self.parameters.has_given_domain else empty_box(n)

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes."""
        if self.model is None:
            return 0
        return 8 * self.n_points * len(self.features) + self.model.nbytes

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, rows: Array, keys: list[Key | None], times: Array) -> None:
        """Learn the rows of a table."""
        parameters, policy, seed = self.parameters, self.parameters.policy_of_table(), self.parameters.seed()
        parameters.check_rates(len(rows))
        stream = parameters.new_stream(
            rows.shape, parameters.domain(rows.shape[1]), policy, seed, damping=self._damping
        )
        model = self.model = StreamModel(stream)
        stream.store.check_keys(keys)
        if policy is not None and policy.is_uniform:
            survey = parameters.inquiry(seed).of_table(rows)
            model.begin_with_survey(survey, lambda places: Labels.of(keys, times, places), parameters.n_jobs)
        else:
            model.begin_with_table(rows, rows, keys, times, self.query)

    def learn(self, rows: Array, keys: list[Key | None], times: Array, task: LearnTask) -> Detections:
        """Learn rows; return the results of the task."""
        if self.model is None:
            parameters, seed = self.parameters, self.parameters.seed()
            domain, policy = parameters.domain(rows.shape[1]), parameters.policy_of_stream()
            self.model = StreamModel(parameters.new_stream(rows.shape, domain, policy, seed, damping=self._damping))
        model, query = self.model, self.query
        access = Access(nullcontext, self._changing, lambda: query, lambda rows: None, self._as_explained)
        return Learner(model, access, task).learn(NewRows(rows, keys, times))[0]

    @contextmanager
    def _changing(self) -> Iterator[Callable[[], bool]]:
        """Leave the arrays to explanations that need them, before a change; yield whether to stop."""
        self.known.leave_snapshots()
        yield lambda: False

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete points."""
        with self._changing():
            self.known.delete(keys, None, self.parameters.n_jobs)

    def rebuild(self) -> None:
        """Recompute feature weights and regrow all trees."""
        with self._changing():
            self.known.rebuild(self.parameters.n_jobs)

    def amend(self, first: int, values: Array) -> None:
        """Replace features of the points held, from the `first` on, by `values`, (n, m), and regrow the trees."""
        with self._changing():
            self.known.amend(first, values, self.parameters.n_jobs)

    def damp(self, damping: Array) -> None:
        """Divide the weight of each feature by a factor, (D,), from the next rebuild on."""
        self._damping = damping
        if self.model is not None:
            self.model.stream.rules = self.model.stream.rules._replace(damping=damping)

    def change_false_alarm_rate(self, rate: float | None) -> None:
        """Change the false alarm rate."""
        parameters = self.parameters.but(false_alarm_rate=rate)
        parameters.check_rates()
        self.parameters = parameters
        if self.model is not None:
            with self._changing():
                self.model.keep_scores(n_to_calibrate(rate))

    # ---- scores -----------------------------------------------------------------------------------------------------

    def scores(self, rows: Array) -> Array:
        """Return the scores of rows."""
        return self.known.fitted.scores(rows, self.query)

    def detect(self, rows: Array) -> Detections:
        """Return the results for rows by the threshold of this view alone."""
        return self.known.detected(self.scores(rows), self.query)

    @property
    def threshold(self) -> float:
        """The threshold of this view alone."""
        return self.known.threshold(self.query)

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores of this view alone."""
        return self.known.p_values(scores, self.query)

    def check_calibrated(self) -> None:
        """Raise ValueError if there are no calibration scores."""
        self.known.check_calibrated(self.query)

    def left_out_scores(self) -> tuple[Array, Array]:
        """Return scores and arrivals of points held, each left out of the forest."""
        return self.known.left_out_scores(self.query)

    def explain(self, rows: Array, features: Any) -> Explanations:
        """Explain rows, with the verdicts of this view alone."""
        explained = self.explained(rows, features, self.threshold)
        scores = explained.surprise * -np.log(2) if self.query.is_additive else self.scores(rows)
        return with_verdicts(explained, self.known.detected(scores, self.query))

    def explained(self, rows: Array, features: Any, threshold: float) -> Explanations:
        """Explain rows, without verdicts."""
        given = self._as_explained(rows)._replace(candidates=read_features(features, self.features))
        return self.known.fitted.explain(given, self.query, threshold)

    def _as_explained(self, rows: Array) -> ExplainedRows:
        return ExplainedRows(rows, self.features, np.arange(len(self.features)), None)

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the state; only the parameters if nothing has been learned."""
        if self.model is None:
            return {"parameters": self.parameters.stored()}, {}
        model = self.model
        is_compact &= model.can_be_compact
        header = forest_state.header_of(model, self.parameters.stored(), len(self.features), None, _DETECTOR)
        about, parts = model.state(is_compact=is_compact)
        return {**header, "stream": about}, {**forest_state.arrays_of(model, {}, is_compact=is_compact), **parts}

    def restore(self, header: Header, arrays: Arrays) -> None:
        """Restore what it had learned from a state."""
        if not arrays:
            _UNBEGUN(header, "forest")
            return
        rules: dict[str, schema.Rule] = {"stream": schema.mapping, "feature_names": schema.nothing}
        forest_state.check_state(header, arrays, rules, StreamModel.groups_of_arrays)
        if "categories" in header or header["n_features"] != len(self.features):
            raise ValueError("its views do not hold the same points")
        self.model = StreamModel.of_state(header, arrays, 0)
        forest_state.restore(self.model, arrays, self.query.policy)
        self.model.forget_derived_offset(self.query)
        self.model.check_besides_trees(len(self.features), 0)

    def check_consistent(self) -> None:
        """Raise RuntimeError if a change was interrupted."""
        if self.model is not None:
            self.model.stream.check_consistent()

    def check(self) -> None:
        """Raise ValueError if trees from a pickle are invalid."""
        if self.model is not None:
            self.model.check_trees()
            self.model.check_besides_trees(len(self.features), 0)

    def check_unbegun(self) -> None:
        """Raise ValueError if the parameters do not work with its features, before it learns."""
        if not isinstance(self.parameters.tree.feature_weights, str):
            read_weights(self.parameters.tree.feature_weights, len(self.features))

    @property
    def kept(self) -> Any:
        """The points held and the state of the retention policy, to compare."""
        if self.model is None:
            return None
        stream = self.model.stream
        store, slots = stream.store, stream.store.held
        moments = (stream.numbers[slots].tolist(), store.times[slots].tobytes(), store.clock, store.floor)
        return self.keys, store.n_seen, stream.next_rebuild, stream.rules.policy, stream.rules.score, repr(moments)
