"""The batch detector: a forest of Mondrian processes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils.validation import check_is_fitted

from polyaforest import forest as forests
from polyaforest.core.arrays import Array, Forest, LeafKind, Posterior
from polyaforest.core.derived import Derived, lasting
from polyaforest.core.score import EpsilonPhi
from polyaforest.core.validation import (
    read_domain,
    read_rows,
    refuse_rows_outside,
    refuse_uncountable,
)
from polyaforest.decision.calibration import as_beyond, boxes_without, n_to_calibrate, some_rows
from polyaforest.decision.thresholds import check_scores, refuse_too_few
from polyaforest.estimators._explaining import PolyaForest
from polyaforest.estimators._forest import Offset
from polyaforest.estimators._tree import Tree
from polyaforest.forest.imputation import fill_table
from polyaforest.forest.spec import bounding_box, weighting_of_domain
from polyaforest.persistence.modelfile import Arrays, Header

_ROWS_THAT_TELL = 100  # rows of a chunk from which on it calibrates the forest anew
_LEAST_SAMPLE = 2048  # rows to calibrate with, where there are as many


def _n_counted(forest: Forest) -> int:
    return int(forest.counts[0, forest.root[0]] + forest.outside[0])


class _Sample(NamedTuple):
    """Rows that were counted, kept to calibrate with when that is needed."""

    rows: Array  # as given
    whole: Array  # as counted, without gaps
    beyond: Array | None  # as scored when counted out, where the domain follows the rows


class BatchMPF(PolyaForest):
    """Batch Mondrian Pólya forest (bMPF): anomalies by probability mass, from partitions that do not look at the data.

    Scores are higher for normal rows. Each tree is a Mondrian process over the domain, cut at random whatever the
    data, and counts the rows in its cells. So rows can be added and removed at any time, in any order, exactly; and
    forests with the same seed, domain and parameters can be counted apart and merged.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    tree : Tree, optional
        How each tree cuts space: depth (here 10 by default), lifetime, feature weights, prior and domain. Forests to be
        merged need an array as domain.
    score_type : {"log_mass", "mass", "multiscale", "typicality"} or EpsilonPhi, default="log_mass"
        What `score_samples` returns: see there. "mass" is the paper's; `EpsilonPhi` brings the paper's threshold too.
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of the rows to flag, estimated from a sample of those last fitted. "auto" flags what lies so far below the
        bulk of the scores that only one normal row in a thousand should.
    false_alarm_rate : float between 0 and 1, optional
        Share of new, normal rows that may be flagged; instead of `contamination`. See `p_value`.
    missing : {"error", "marginalise"}, default="error"
        How to treat NaN. "error" refuses it. "marginalise" scores a row by its other values, and learns it with the
        values of the nearest row that has them.
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
        The threshold: ``decision_function = score_samples - offset_``.
    n_points_ : int
        Rows counted.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Notes
    -----
    The paper's own setting is ``score_type="mass", tree=Tree(feature_weights=None, domain="data")``.

    Every tree counts every row: what a tree costs does not depend on how its rows were chosen, so there is no
    ``max_samples``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import BatchMPF, Tree
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    >>> tree = Tree(domain=[[-9, -9], [9, 9]])
    >>> whole = BatchMPF(tree=tree, random_state=0).fit(X)
    >>> parts = [BatchMPF(tree=tree, random_state=0).fit(part) for part in (X[:400], X[400:])]
    >>> bool((whole.mass(X) == (parts[0] + parts[1]).mass(X)).all())
    True
    """

    _why_uncalibrated: ClassVar[str] = (
        "its counts have changed since, or it was fitted on one row. A fit or partial_fit with 100 rows adds some"
    )
    _auto_depth: ClassVar[int | None] = 10
    _lifetimes: ClassVar[dict[str, Array]] = {"multiscale": np.geomspace(8, 128, 5)}
    _grids: ClassVar[list[Array]] = [*_lifetimes.values()]
    _imputing_times: ClassVar[Array] = np.array([32.0, 64.0])
    _sample: _Sample | None = None  # rows to calibrate with, until that is needed
    _calibration = Derived[Array](is_lasting=True)  # log-scores of such rows, each counted out

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        tree: Tree | None = None,
        score_type: str | EpsilonPhi = "log_mass",
        contamination: str | float = "auto",
        false_alarm_rate: float | None = None,
        missing: str = "error",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.tree = tree
        self.score_type = score_type
        self.contamination = contamination
        self.false_alarm_rate = false_alarm_rate
        self.missing = missing
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def n_points_(self) -> int:
        """Rows counted, those beyond the domain included."""
        check_is_fitted(self)
        return _n_counted(self.forest_)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Cut the domain afresh and count the rows of `X`; `y` is ignored."""
        with self._lock.turn(), self._anew() as draft:
            draft._begin(X)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Count more rows; rows beyond the domain count as outside it. The first call is a `fit`.

        A hundred rows or more place the threshold, and calibrate `p_value`, anew.
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
        if len(rows) < _ROWS_THAT_TELL:
            self._settle()  # else the threshold would depend on whether it was asked for before these rows came
        self._adopt(self._with_counts(*forests.learn.count_rows(self.forest_, whole, self.n_jobs)))
        if len(rows) >= _ROWS_THAT_TELL:
            self._draw_sample(rows, whole, follows_rows=False)

    def delete_rows(self, X: Any) -> Self:
        """Count rows out: afterwards the forest is what it would be had they never been counted.

        Nothing remains of them but the threshold, ``offset_``; `p_value` waits for the next hundred rows to compare
        with.
        """
        with self._lock.turn(), self._anew() as draft:
            draft._count_out(X)
        return self

    def _count_out(self, X: Any) -> None:
        rows = self._read(X)
        count, outside = forests.learn.count_rows(self.forest_, rows, self.n_jobs)
        if (self.forest_.counts < count).any() or (self.forest_.outside < outside).any():
            _, kinds = forests.posterior.leaf_kinds(self.forest_, self.posterior_, rows, self.n_jobs)
            is_empty = (kinds == LeafKind.COMPLEMENTARY) | ((kinds == LeafKind.OUTSIDE) & (self.forest_.outside == 0))
            unknown = np.flatnonzero(is_empty.any(axis=1))
            which = f"row {unknown[0]} was never counted" if unknown.size else "some rows were not counted so often"
            raise ValueError(f"{which}: a cell would have a negative count. Nothing was deleted")
        self._keep_threshold()
        self._adopt(self._with_counts(-count, -outside))

    def merge(self, other: BatchMPF) -> Self:
        """Add the counts of another forest with the same partition; exact, as if all rows had been seen here.

        The threshold, ``offset_``, stays this forest's own; `p_value` waits for the next hundred rows to compare with.
        """
        check_is_fitted(self)
        if not isinstance(other, BatchMPF):
            raise TypeError(f"only a BatchMPF can be merged into a BatchMPF, not {type(other).__name__}")
        check_is_fitted(other)
        with self._lock.turn(), self._anew() as draft:
            draft._refuse_other_partition(other)
            draft._keep_threshold()
            theirs = other.forest_  # as it is now
            draft._adopt(draft._with_counts(theirs.counts, theirs.outside))
        return self

    def __add__(self, other: object) -> BatchMPF:
        if not isinstance(other, BatchMPF):
            return NotImplemented
        return deepcopy(self).merge(other)

    def _begin(self, X: Any) -> None:
        from polyaforest.explain.context import quantiles_of

        rows = read_rows(self, X, reset=True, allow_missing=self._marginalises)
        tree = self._tree
        if self._max_depth is None and not np.isfinite(tree.lifetime):
            raise ValueError("a Mondrian process without max_depth and lifetime would never end: set one of them")
        self._refuse_rates(len(rows))
        is_given = tree.domain is not None and not self._is_closed
        whole = fill_table(self, rows)
        domain = read_domain(tree.domain, rows.shape[1]) if is_given else bounding_box(whole)
        self.forest_ = forests.grow.sample_processes(self._plan(weighting_of_domain(domain), domain))
        self._sample = self._calibration = self._offset = None
        self._adopt(self._with_counts(*forests.learn.count_rows(self.forest_, whole, self.n_jobs)))
        self._draw_sample(rows, whole, follows_rows=not is_given)
        self._quantiles = quantiles_of(rows)

    def _adopt(self, forest: Forest) -> None:
        """Make `forest` this detector's."""
        self.forest_, self._derived = forest, lasting(vars(self).get("_derived", {}))

    # ---- thresholds -------------------------------------------------------------------------------------------------

    @property
    def posterior_(self) -> Posterior:
        """Log-masses and log-volumes of every node, derived from the forest on first use."""
        with self._frozen():
            return super().posterior_

    def _threshold(self) -> float:
        offset, rate = self._place_threshold(), self.false_alarm_rate
        if offset == -np.inf and rate is not None:
            refuse_too_few(len(self._calibration_scores()), rate, "fit more rows or allow a higher rate")
        return offset

    def _place_threshold(self) -> float:
        with self._frozen():
            policy = self._policy
            if self._offset is not None and self._offset.policy == policy:
                return self._offset.value
            if policy.contamination is not None and self._sample is not None:
                logs = self._score.to_log(self._scores(self._sample.rows))
            else:
                logs = self._calibration_scores()
            if self._offset is not None and not len(logs):
                raise ValueError(
                    f"the threshold cannot be placed anew without calibration scores: {self._why_uncalibrated}"
                )
            threshold = policy.threshold(np.sort(logs).tolist())
            self._offset = Offset(policy, float(self._score.from_log(np.array(threshold))))
            return self._offset.value

    def _calibration_scores(self) -> Array:
        if isinstance(self.score_type, EpsilonPhi):
            return np.empty(0)
        with self._frozen():
            if self._calibration is None and self._sample is not None:
                self._calibration = self._score.to_log(self._scores_counted_out(self._sample))
            return np.empty(0) if self._calibration is None else self._calibration

    def _keep_threshold(self) -> None:
        """Settle the threshold before counts change that it could not be placed by any more."""
        self._settle()
        self._sample = self._calibration = self._quantiles = None

    def _draw_sample(self, rows: Array, whole: Array, *, follows_rows: bool) -> None:
        """Keep some of the rows just counted, and `whole` as they were counted, to calibrate with when needed.

        Where the domain follows the rows, one that lies beyond all others is scored as beyond the domain.
        """
        if len(rows) < 2:
            return
        chosen = some_rows(len(rows), max(n_to_calibrate(self.false_alarm_rate), _LEAST_SAMPLE))
        beyond = as_beyond(whole[chosen], boxes_without(whole, chosen), self.forest_.domain) if follows_rows else None
        self._sample = _Sample(rows[chosen].copy(), whole[chosen].copy(), beyond)
        self._offset = self._calibration = None

    def _scores_counted_out(self, sample: _Sample) -> Array:
        """Return the scores of rows that were counted, each as if it had not been.

        Rows with missing values, and those beyond a domain that was given, are counted out by halves and scored by the
        rest.
        """
        follows_rows, domain = sample.beyond is not None, self.forest_.domain
        own = sample.whole if sample.beyond is None else sample.beyond
        is_outside = ((own < domain[0]) | (own > domain[1])).any(axis=1)
        is_apart = np.isnan(sample.rows).any(axis=1) | (is_outside & (not follows_rows))
        is_moved = is_outside & ~is_apart & (not self._score.uses_cells)  # to where no cell has counted it
        is_plain, scores = ~(is_apart | is_moved), np.empty(len(own))
        if is_plain.any():
            scores[is_plain] = forests.score.left_out_scores(
                self._score, self.forest_, self.posterior_, self.prior_, own[is_plain], self.lifetimes_, self.n_jobs
            )
        if is_moved.any():
            scores[is_moved] = self._scores(own[is_moved])
        apart = np.flatnonzero(is_apart)
        for half in (apart[::2], apart[1::2]):
            if half.size:
                counts, outside = forests.learn.count_rows(self.forest_, sample.whole[half], self.n_jobs)
                rest = self._with_counts(-counts, -outside)
                known = forests.posterior.posterior(rest, self.prior_, n_jobs=self.n_jobs)
                scores[half] = self._score_by(rest, known)(sample.rows[half], self.n_jobs)
        return scores

    # ---- state ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "forest_"):
            self._settle()
        return super().__getstate__()

    def _settle(self) -> None:
        """Work out what was left until it is needed."""
        if not isinstance(self.score_type, EpsilonPhi):
            self._place_threshold()
            self._calibration_scores()

    def _state(self) -> tuple[Header, Arrays]:
        self._settle()
        scores = self._calibration_scores()
        header, arrays = super()._state()
        return header, {**arrays, **({"calibration": self._score.from_log(scores)} if len(scores) else {})}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        forest: Self = super()._of_state(header, arrays)
        if not forest.forest_.size.all():
            raise ValueError("its forest is empty")
        if "calibration" in arrays:
            check_scores("calibration", arrays["calibration"])
            forest._calibration = forest._score.to_log(arrays["calibration"])
        if forest._offset is None and not isinstance(forest.score_type, EpsilonPhi):
            raise ValueError("it has no offset")
        forest._adopt_noted_threshold()
        forest._check()
        return forest

    def _with_counts(self, counts: Array, outside: Array) -> Forest:
        """Return the forest with these counts added to its own."""
        forest = self.forest_
        refuse_uncountable(_n_counted(forest), _n_counted(forest._replace(counts=counts, outside=outside)))
        return forest._replace(counts=forest.counts + counts, outside=forest.outside + outside)

    def _refuse_other_partition(self, other: BatchMPF) -> None:
        for name, mine, theirs in (
            ("n_estimators", self.n_estimators, other.n_estimators),
            ("score_type", self.score_type, other.score_type),
            ("tree__max_depth", self._tree.max_depth, other._tree.max_depth),
            ("tree__lifetime", self._tree.lifetime, other._tree.lifetime),
        ):
            if mine != theirs:
                raise ValueError(f"forests differ in {name} ({mine!r} and {theirs!r}) and cannot be merged")
        if self.prior_.strength != other.prior_.strength:
            strengths = f"{self.prior_.strength} and {other.prior_.strength}"
            raise ValueError(f"forests differ in prior_strength ({strengths}) and cannot be merged")
        if self.prior_.is_open != other.prior_.is_open:
            raise ValueError("only one of the forests leaves room beyond its domain: they cannot be merged")
        names, others = (getattr(forest, "feature_names_in_", np.array([])) for forest in (self, other))
        if not np.array_equal(names, others) or self.n_features_in_ != other.n_features_in_:
            raise ValueError("forests were fitted on different columns and cannot be merged")
        if not np.array_equal(self.forest_.domain, other.forest_.domain):
            raise ValueError("forests cover different domains and cannot be merged: give both the same domain array")
        for name in ("left", "feature", "cut", "time", "weights"):
            if not np.array_equal(getattr(self.forest_, name), getattr(other.forest_, name), equal_nan=name == "cut"):
                raise ValueError(
                    "forests cut their domain differently and cannot be merged: give both the same integer "
                    "random_state and the same feature_weights"
                )
