"""Single rows of a stream: the arguments of the kernel for a chunk of one row, prepared once for many rows."""

from __future__ import annotations

import numpy as np

from polyaforest.forest import learn
from polyaforest.forest.point_store import Key, Schedule
from polyaforest.forest.stream import MOST_BEYOND, Stream
from polyaforest.kernels.arrays import NONE, SCORE_NOTHING, Array
from polyaforest.kernels.jit import direct
from polyaforest.kernels.online import Limits
from polyaforest.kernels.prequential import Scoring, StreamChunk
from polyaforest.kernels.sampling import TreeSamples
from polyaforest.kernels.single_row import ORDINARY, UNUSABLE, take_row
from polyaforest.tables.validation import LARGEST, SMALLEST
from polyaforest.util.parallel import is_worth_threads

_take_row = direct(take_row)
_IDLE = Schedule(np.full(1, NONE, np.int32), np.zeros(1, np.int32), np.empty(0, np.int32))


class SingleRow:
    """A row of a stream, and the arguments to process it with.

    The kernel takes some fifty arrays. They are the same for one row after another, until the stream replaces one.

    Attributes
    ----------
    values : Array
        The row, (1, D), overwritten by the next.
    """

    def __init__(self, stream: Stream) -> None:
        rules, forest, margins = stream.rules, stream.forest, stream.penalties.margins
        plan, score = rules.plan, rules.score
        self._of = stream
        self._forest, self._points, self._rules, self._lifetimes = forest, stream.points, rules, stream.lifetimes
        self._numbers, self._cutoffs, self._penalties = stream.numbers, stream.cutoffs, stream.penalties
        self._since = stream.columns.since
        is_bounded = bool(plan.domain[0, -1] <= plan.domain[1, -1])  # only added features, which are last, have none
        is_shared = is_worth_threads(plan.n_trees)
        self._is_supported = stream.columns.are_known and not (is_bounded or is_shared or stream.is_frozen)
        self.values = np.empty((1, stream.n_features))
        self._limits = Limits(plan.lifetime, plan.depth_limit)
        prior = rules.prior.strength, rules.prior.is_open, plan.domain
        self._scoring = Scoring(score.code, stream.lifetimes if score.uses_cells else np.empty(0), *prior)
        self._silent = Scoring(SCORE_NOTHING, np.empty(0), *prior)
        self._samples = TreeSamples(rules.sizes, stream.seeds, stream.cutoffs, stream.numbers, stream.numbers != NONE)
        self._totals = learn.new_totals(self._scoring, plan.n_trees, 1)
        self._limit = np.full((2, stream.n_features), np.inf) if margins is None else margins.limit
        self._is_ordinary = False

    @classmethod
    def of(cls, stream: Stream, X: Array, known: SingleRow | None = None) -> SingleRow | None:
        """Return the row of `X`, (1, D), C-contiguous float64, or None if the stream cannot score and learn it alone.

        `known` is an earlier row, to be overwritten if the stream still has the same arrays.
        """
        row = known if known is not None and known._is_current else cls(stream)
        return row if row._is_supported and row._take(X) else None

    def with_room(self) -> SingleRow:
        """Return this row for its stream with room for one more point."""
        stream = self._of
        stream._make_slots(1)
        stream._make_nodes(1)
        if self._is_current:
            return self
        other = SingleRow(stream)
        other._take(self.values)
        return other

    def cleared(self) -> SingleRow:
        """Return this row without its values."""
        self.values[:] = 0.0
        return self

    @property
    def _is_current(self) -> bool:
        stream = self._of
        return (
            stream.forest is self._forest
            and stream.points is self._points
            and stream.rules is self._rules
            and stream.lifetimes is self._lifetimes
            and stream.numbers is self._numbers
            and stream.cutoffs is self._cutoffs
            and stream.penalties is self._penalties
            and stream.columns.since is self._since
        )

    @property
    def is_steady(self) -> bool:
        """Whether the stream has nothing else to do when it learns the row, such as to rebuild trees."""
        stream = self._of
        is_beyond = stream.n_beyond + (not self._is_ordinary) >= MOST_BEYOND
        return stream._until_rebuild > 1 and stream._until_measurement > 1 and not is_beyond

    def _take(self, X: Array) -> bool:
        """Copy the row of `X`; return False if a value is missing or unusable."""
        kind = _take_row(X, SMALLEST, LARGEST, self._limit, self.values)
        self._is_ordinary = kind == ORDINARY
        return bool(kind != UNUSABLE)

    def score(self) -> Array:
        """Return the score of the row, (1,), without learning it."""
        return self._run(_IDLE, self._scoring)

    def learn(self, key: Key | None, time: float, *, is_scored: bool) -> Array:
        """Learn the row, as `Stream.advance` would; return its score before, (1,), if wanted."""
        stream, store = self._of, self._of.store
        stream._begin_to_change()
        came = store.n_seen
        np.not_equal(self._numbers, NONE, out=self._samples.is_held)
        is_next = stream.keeps_points and store.is_full and store.takes_all
        schedule = store.replace_oldest(key, time) if is_next else stream._admit([key], np.array([time]))
        stream._keep(self.values, schedule.slots, came)
        scores = self._run(schedule, self._scoring if is_scored else self._silent)
        stream._let_go(schedule.leaving)
        stream.n_beyond += not self._is_ordinary
        stream.is_dirty = False
        return scores

    def _run(self, schedule: Schedule, scoring: Scoring) -> Array:
        chunk = StreamChunk(self.values, *schedule)
        trees = self._forest, self._points
        scores = learn.run_row(*trees, chunk, self._limits, scoring, self._samples, self._totals)
        if scoring is self._silent or (self._is_ordinary and self._penalties.pairs is None):
            return scores
        return self._penalties.subtract(scores, self.values)
