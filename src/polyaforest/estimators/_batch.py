"""The batch detector: a forest of Mondrian processes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils.validation import check_is_fitted

from polyaforest.core.arrays import Array, Forest, LeafKind
from polyaforest.core.validation import (
    read_domain,
    read_rows,
    refuse_rows_outside,
    refuse_uncountable,
)
from polyaforest.decision.calibration import as_beyond, boxes_without
from polyaforest.estimators._base import PolyaForest, kernels
from polyaforest.forest.imputation import fill_table
from polyaforest.forest.spec import bounding_box, weighting_of_domain

_ROWS_THAT_TELL = 100  # rows of a chunk from which on it calibrates the forest anew


class BatchMPF(PolyaForest):
    """Batch Mondrian Pólya forest (bMPF): anomalies by probability mass, from partitions that do not look at the data.

    Scores are higher for normal rows. Each tree is a Mondrian process over the domain, cut at random whatever the
    data, and counts the rows in its cells. So rows can be added and removed at any time, in any order, exactly; and
    forests with the same seed, domain and parameters can be counted apart and merged.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_depth : int or None, default=10
        Depth at which cutting stops; None needs a finite `lifetime`.
    prior_strength : float, default=0.001
        Pseudo-points behind the prior (the paper's gamma).
    lifetime : float, default=inf
        Time at which cutting stops.
    feature_weights : "auto", None or array-like of shape (n_features,), default="auto"
        Weight of each feature's length in the choice of cuts. "auto" draws Exp(1) / (length of the domain) for every
        tree. None cuts plain lengths, as the paper does.
    score : {"log_mass", "mass", "multiscale", "typicality"}, default="log_mass"
        What `score_samples` returns: see there. "mass" is the paper's.
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of the fitted rows to flag. "auto" flags the lowest hundredth, and more where more lie so far below the
        bulk that no more than one normal row in a thousand should.
    false_alarm_rate : float between 0 and 1, optional
        Share of new, normal rows that may be flagged; instead of `contamination`. See `p_value`.
    domain : None, "data" or array-like of shape (2, n_features), default=None
        The box that is cut. None: the box of the rows first given, with room for rows beyond it. An array of lower and
        upper bounds: that box, with room beyond. "data": the box of the rows and nothing outside it (mass 0), the
        paper's reading. Forests to be merged need an array.
    missing : {"error", "marginalise"}, default="error"
        What to do about NaN. "error" refuses it. "marginalise" scores a row by the values that are there, a missing one
        being free to be anything, and learns it with the values of the nearest row that has them.
    random_state : int, RandomState or None, default=None
        Forests to be merged need the same integer.
    n_jobs : int or None, default=None
        Threads; None means 1. Results do not depend on it.

    Attributes
    ----------
    forest_ : Forest
        The trees, as arrays.
    posterior_ : Posterior
        Log-masses and log-volumes of every node.
    prior_ : Prior
        The prior that the posterior was derived with.
    lifetimes_ : ndarray
        The times behind the scores that have any.
    offset_ : float
        ``decision_function = score_samples - offset_``; set by `fit` or the first `partial_fit`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Notes
    -----
    The paper's own setting is ``feature_weights=None, score="mass", domain="data"``.

    Every tree counts every row: what a tree costs does not depend on how its rows were chosen, so there is no
    ``max_samples``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import BatchMPF
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    >>> whole = BatchMPF(domain=[[-9, -9], [9, 9]], random_state=0).fit(X)
    >>> parts = [BatchMPF(domain=[[-9, -9], [9, 9]], random_state=0).fit(part) for part in (X[:400], X[400:])]
    >>> bool((whole.mass(X) == (parts[0] + parts[1]).mass(X)).all())
    True
    """

    _why_uncalibrated: ClassVar[str] = (
        "its counts have changed since, or it was fitted on one row. A fit or partial_fit with 100 rows or more will do"
    )
    _lifetimes: ClassVar[dict[str, Array]] = {"multiscale": np.geomspace(8, 128, 5)}
    _grids: ClassVar[list[Array]] = [*_lifetimes.values()]
    _imputing_times: ClassVar[Array] = np.array([32.0, 64.0])

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_depth: int | None = 10,
        prior_strength: float = 0.001,
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        score: str = "log_mass",
        contamination: str | float = "auto",
        false_alarm_rate: float | None = None,
        domain: Any = None,
        missing: str = "error",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.contamination = contamination
        self.false_alarm_rate = false_alarm_rate
        self.domain = domain
        self.missing = missing
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def n_points_(self) -> int:
        """Rows counted, those beyond the domain included."""
        check_is_fitted(self)
        return int(self.forest_.counts[0, self.forest_.root[0]] + self.forest_.outside[0])

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Cut the domain afresh and count the rows of `X`; `y` is ignored."""
        with self._lock.turn(), self._anew() as draft:
            draft._begin(X)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Count more rows; rows beyond the domain count as outside it. The first call is a `fit`.

        A hundred rows or more calibrate `p_value`, and a line by `false_alarm_rate`, anew.
        """
        with self._lock.turn(), self._anew() as draft:
            if hasattr(draft, "forest_"):
                draft._count(X)
            else:
                draft._begin(X)
        return self

    def _count(self, X: Any) -> None:
        rows = read_rows(self, X, reset=False, allow_missing=self._marginalises)
        whole = fill_table(self, rows)
        if not self.prior_.is_open:
            refuse_rows_outside(self, whole, self.forest_.domain)
        known = self._calibration, self._quantiles
        self._adopt(self._with_counts(*kernels().count_rows(self.forest_, whole, self.n_jobs)))
        self._calibration, self._quantiles = known
        if len(rows) >= _ROWS_THAT_TELL:
            self._calibration = self._scores_of_left_out(rows, whole, follows_rows=False)
            if self.false_alarm_rate is not None:
                self._offset = self._threshold(rows)

    def remove(self, X: Any) -> Self:
        """Take rows out again: afterwards the forest is what it would be had they never been counted.

        Nothing remains of them but the line, ``offset_``; `p_value` waits for the next hundred rows to compare with.
        """
        with self._lock.turn(), self._anew() as draft:
            draft._count_out(X)
        return self

    def _count_out(self, X: Any) -> None:
        rows = self._read(X)
        count, outside = kernels().count_rows(self.forest_, rows, self.n_jobs)
        if (self.forest_.counts < count).any() or (self.forest_.outside < outside).any():
            _, kinds = kernels().leaf_kinds(self.forest_, self.posterior_, rows, self.n_jobs)
            strange = (kinds == LeafKind.COMPLEMENTARY) | ((kinds == LeafKind.OUTSIDE) & (self.forest_.outside == 0))
            strangers = np.flatnonzero(strange.any(axis=1))
            which = f"row {strangers[0]} was never counted" if strangers.size else "some rows were not counted so often"
            raise ValueError(f"{which}: a cell would be left with fewer than no rows. Nothing was removed")
        self._adopt(self._with_counts(-count, -outside))

    def merge(self, other: BatchMPF) -> Self:
        """Take over the counts of another forest with the same partition; exact, as if all rows had been seen here.

        The line, ``offset_``, stays this forest's own; `p_value` waits for the next hundred rows to compare with.
        """
        check_is_fitted(self)
        if not isinstance(other, BatchMPF):
            raise TypeError(f"only a BatchMPF can be merged into a BatchMPF, not {type(other).__name__}")
        check_is_fitted(other)
        with self._lock.turn(), self._anew() as draft:
            draft._refuse_other_partition(other)
            theirs = other.forest_
            draft._adopt(draft._with_counts(theirs.counts, theirs.outside))
        return self

    def __add__(self, other: object) -> BatchMPF:
        if not isinstance(other, BatchMPF):
            return NotImplemented
        return deepcopy(self).merge(other)

    def _begin(self, X: Any) -> None:
        rows = read_rows(self, X, reset=True, allow_missing=self._marginalises)
        engine = kernels()
        if self.max_depth is None and not np.isfinite(self.lifetime):
            raise ValueError("a Mondrian process without max_depth and lifetime would never end: set one of them")
        self._refuse_two_rates()
        given = self.domain is not None and not self._is_closed
        whole = fill_table(self, rows)
        domain = read_domain(self.domain, rows.shape[1]) if given else bounding_box(whole)
        self.forest_ = engine.sample_processes(self._plan(weighting_of_domain(domain), domain))
        self._adopt(self._with_counts(*engine.count_rows(self.forest_, whole, self.n_jobs)))
        if len(rows) > 1:
            self._calibration = self._scores_of_left_out(rows, whole, follows_rows=not given)
        self._offset = self._threshold(rows)
        self._note_what_is_usual(rows)

    def _scores_of_left_out(self, rows: Array, whole: Array, *, follows_rows: bool) -> Array:
        """Scores of some of the rows that were counted, made `whole`, each as if it had not been.

        Where the domain follows the rows, one that lies beyond all others is scored as beyond the domain. Rows that
        lack values, and those beyond a domain that was given, are counted out by halves and scored by the rest.
        """
        chosen, domain = self._rows_to_calibrate(len(rows)), self.forest_.domain
        own = as_beyond(whole[chosen], boxes_without(whole, chosen), domain) if follows_rows else whole[chosen]
        is_outside = ((own < domain[0]) | (own > domain[1])).any(axis=1)
        is_apart = np.isnan(rows[chosen]).any(axis=1) | (is_outside & (not follows_rows))
        is_moved = is_outside & ~is_apart & (self.score in ("mass", "log_mass"))  # to where no cell has counted it
        is_plain, scores = ~(is_apart | is_moved), np.empty(len(own))
        if is_plain.any():
            scores[is_plain] = kernels().left_out_scores(
                self.score, self.forest_, self.posterior_, self.prior_, own[is_plain], self.lifetimes_, self.n_jobs
            )
        if is_moved.any():
            scores[is_moved] = self._scores(own[is_moved])
        apart = np.flatnonzero(is_apart)
        for half in (apart[::2], apart[1::2]):
            if half.size:
                scores[half] = self._scores_without(rows[chosen[half]], whole[chosen[half]])
        return scores

    def _scores_without(self, rows: Array, whole: Array) -> Array:
        """The scores of rows by the forest without any of them."""
        engine = kernels()
        counts, outside = engine.count_rows(self.forest_, whole, self.n_jobs)
        rest = self._with_counts(-counts, -outside)
        known = engine.posterior(rest, self.prior_, n_jobs=self.n_jobs)
        scores: Array = engine.row_scores(self.score, rest, known, rows, self.lifetimes_, self.n_jobs)
        return scores

    def _with_counts(self, counts: Array, outside: Array) -> Forest:
        """The forest with these counts added to its own."""
        forest, root = self.forest_, self.forest_.root[0]
        refuse_uncountable(int(forest.counts[0, root] + forest.outside[0]), int(counts[0, root] + outside[0]))
        return forest._replace(counts=forest.counts + counts, outside=forest.outside + outside)

    def _refuse_other_partition(self, other: BatchMPF) -> None:
        for name in ("n_estimators", "max_depth", "lifetime", "score"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"forests differ in {name} ({mine!r} and {theirs!r}) and cannot be merged")
        if self.prior_.strength != other.prior_.strength:
            strengths = f"{self.prior_.strength} and {other.prior_.strength}"
            raise ValueError(f"forests differ in prior_strength ({strengths}) and cannot be merged")
        if self.prior_.is_open != other.prior_.is_open:
            raise ValueError("only one of the forests leaves room beyond its domain: they cannot be merged")
        mine, theirs = (getattr(forest, "feature_names_in_", np.array([])) for forest in (self, other))
        if not np.array_equal(mine, theirs) or self.n_features_in_ != other.n_features_in_:
            raise ValueError("forests were fitted on different columns and cannot be merged")
        if not np.array_equal(self.forest_.domain, other.forest_.domain):
            raise ValueError("forests cover different domains and cannot be merged: give both the same domain array")
        for name in ("left", "feature", "cut", "time", "weights"):
            if not np.array_equal(getattr(self.forest_, name), getattr(other.forest_, name), equal_nan=name == "cut"):
                raise ValueError(
                    "forests cut their domain differently and cannot be merged: give both the same integer "
                    "random_state and the same feature_weights"
                )
