"""The parameters of a forest, apart from the estimator that users set them on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from polyaforest import forest as forests
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.json_parameters import encode, encode_columns
from polyaforest.forest.retention import Policy, Reservoir, Window, as_policy
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.spec import Plan, Weighting, unmeasured
from polyaforest.forest.thresholds import ThresholdPolicy, check_calibration_size
from polyaforest.kernels.arrays import EVERY, Array, Prior
from polyaforest.kernels.boxes import empty_box, whole_cube
from polyaforest.model.fitted import FittedCounts, FittedForest, FittedStream, Query
from polyaforest.storage.modelfile import Header
from polyaforest.tables.validation import read_domain, read_seed, read_weights

LEAST_HELD = 2048  # points of a table that a forest holds with window="auto"
IN_FILES = {"score_type": "score"}  # parameters with another name in files
_APART = frozenset({"tree", "categorical_features"})  # parameters with their own encoding in files
WIDE = 256  # features above which each tree of a stream cuts only some of them ...
_LEAST_FEATURES, _FEATURES_PER_MORE = 64, 16  # ... at least so many, and one more for each so many features
_SAMPLE_SIZES = np.array([8, 16, 32, 64])  # points per tree, cycling through the trees
_SIZES_WITH_CATEGORIES = np.array([32, 64, 128, 256])  # fewer do not show which categories occur together


class TreeParameters(NamedTuple):
    """The parameters of the trees, as described at `Tree`."""

    domain: Any = None
    feature_weights: Any = "auto"
    lifetime: float = np.inf
    max_depth: int | None = None
    max_features: int | str | None = "auto"
    prior_strength: float = 0.001


@dataclass(frozen=True, kw_only=True, eq=False)
class ForestParameters:
    """The validated parameters that streams and counts share, as described at `StreamingMPF`."""

    kind: ClassVar[type[FittedForest]] = FittedCounts

    n_estimators: int
    tree: TreeParameters
    score_type: str | EpsilonPhi
    contamination: str | float
    false_alarm_rate: float | None
    missing: str
    categorical_features: Any
    random_state: Any
    n_jobs: int | None

    def but(self, **changes: Any) -> Self:
        """Return these parameters with some changes."""
        return replace(self, **changes)

    def query(self, score: Score) -> Query:
        """Return how to score rows."""
        epsilon_phi = self.score_type if isinstance(self.score_type, EpsilonPhi) else None
        policy = ThresholdPolicy.of(self.contamination, self.false_alarm_rate)
        return Query(score, epsilon_phi, self.missing, self.n_jobs, policy)

    @property
    def score(self) -> Score:
        """The score that kernels compute; `EpsilonPhi` is explained by the mean log mass."""
        return Score.LOG_MASS if isinstance(self.score_type, EpsilonPhi) else Score(self.score_type)

    @property
    def grid(self) -> Array:
        """The times at which the score evaluates cells, in units of the weighting."""
        return self.kind.grid(self.score)

    @property
    def prior(self) -> Prior:
        """The prior of the posterior."""
        return Prior(float(self.tree.prior_strength), is_open=not self.is_closed)

    @property
    def allows_missing(self) -> bool:
        """Whether rows may have missing values."""
        return self.missing != "error"

    def seed(self) -> np.random.SeedSequence:
        """Return the seed of the trees; a generator as `random_state` advances."""
        return read_seed(self.random_state)

    @property
    def is_closed(self) -> bool:
        """Whether the domain is the bounding box of the data, with mass 0 outside."""
        return isinstance(self.tree.domain, str)

    @property
    def has_given_domain(self) -> bool:
        """Whether the domain is a given array."""
        return self.tree.domain is not None and not self.is_closed

    def given_domain(self, n_features: int, n_categories: int = 0) -> Array:
        """Return the given domain of the numeric columns, unbounded in the categorical ones."""
        numbers, whole = read_domain(self.tree.domain, n_features - n_categories), whole_cube(n_categories)
        return np.hstack([numbers, whole])

    def plan(
        self,
        measured: Weighting,
        domain: Array,
        seed: np.random.SeedSequence,
        n_categories: int = 0,
        order: Array | None = None,
    ) -> Plan:
        """Return the plan of a forest for the measured features; `order` is that of encoded columns."""
        tree, weighting = self.tree, measured
        if not isinstance(tree.feature_weights, str):
            given = read_weights(tree.feature_weights, len(measured.spread))
            weighting = measured._replace(fixed=given if order is None else given[order])
        limits = float(tree.lifetime), tree.max_depth
        most = self.max_features(len(measured.spread), n_categories)
        return Plan(self.n_estimators, *limits, weighting, domain, seed, self.n_jobs, n_categories, most)

    def max_features(self, n_features: int, n_categories: int = 0) -> int | None:
        """Return the most features that a tree cuts; None for all."""
        most = self.tree.max_features
        return None if isinstance(most, str) else most

    def check_rates(self, n_rows: int | None = None) -> None:
        """Raise ValueError if both rates are set, or if `n_rows` are too few for `false_alarm_rate`."""
        if self.contamination != "auto" and self.false_alarm_rate is not None:
            raise ValueError(
                f"contamination={self.contamination} and false_alarm_rate={self.false_alarm_rate} exclude each other: "
                "set one of them"
            )
        if self.false_alarm_rate is not None and n_rows is not None:
            check_calibration_size(n_rows, self.false_alarm_rate, "pass more rows or set a higher rate")

    def stored(self) -> Header:
        """Return the JSON-serialisable parameters, including those of the trees."""
        own = {name: getattr(self, name) for name in sorted(part.name for part in fields(self)) if name not in _APART}
        found = {IN_FILES.get(name, name): encode(value) for name, value in {**own, **self.tree._asdict()}.items()}
        if found["max_features"] == "auto":  # as in files of earlier releases, which lack it
            del found["max_features"]
        columns = encode_columns(self.categorical_features)
        return found if columns == "from_dtype" else {**found, "categorical_features": columns}


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamParameters(ForestParameters):
    """The validated parameters of a stream, as described at `StreamingMPF`."""

    kind: ClassVar[type[FittedForest]] = FittedStream

    max_samples: int | float | str | None
    window: int | timedelta | Window | Reservoir | str | None

    def max_features(self, n_features: int, n_categories: int = 0) -> int | None:
        """Return the most features that a tree cuts; None for all."""
        is_wide = n_features > WIDE and not n_categories
        if isinstance(self.tree.max_features, str) and is_wide:
            return _LEAST_FEATURES + n_features // _FEATURES_PER_MORE
        return super().max_features(n_features, n_categories)

    def domain(self, n_features: int, n_categories: int = 0) -> Array:
        """Return the domain of a stream; empty if it is the bounding box of the points held."""
        if self.has_given_domain:
            return self.given_domain(n_features, n_categories)
        return empty_box(n_features, n_categories)

    def policy_of_table(self) -> Policy | None:
        """Return the retention policy for a table: by default as many points as the threshold and the trees need."""
        if not isinstance(self.window, str):
            return self.policy_of_stream()
        wanted = int(self.max_samples) if isinstance(self.max_samples, Integral) else 0
        least = n_to_calibrate(self.false_alarm_rate) if self.false_alarm_rate is not None else 0
        return Reservoir(max(LEAST_HELD, wanted, least))

    def policy_of_stream(self) -> Policy | None:
        """Return the retention policy for a stream; None to hold no points."""
        if isinstance(self.window, str):
            return Window(forests.stream.WARM_UP)
        return None if self.window is None else as_policy(self.window)

    def inquiry(self, seed: np.random.SeedSequence, n_categories: int = 0) -> forests.survey.Inquiry:
        """Return the inquiry to survey a table with before the trees are grown."""
        policy = self.policy_of_table()
        assert isinstance(policy, Reservoir)
        return forests.survey.Inquiry.seeded(seed, max(LEAST_HELD, policy.n), self.allows_missing, n_categories)

    def new_stream(
        self,
        shape: tuple[int, ...],
        domain: Array,
        policy: Policy | None,
        seed: np.random.SeedSequence,
        n_categories: int = 0,
        order: Array | None = None,
        damping: Array | None = None,
    ) -> forests.stream.Stream:
        """Return a stream for rows of this shape; `damping` divides the weight of each feature."""
        self.check_rates()
        if policy is None and self.tree.max_depth is None:
            raise ValueError("window=None needs trees of limited depth: set max_depth in tree=, or set a window")
        n_rows, n_features = shape
        plan = self.plan(unmeasured(n_features, None), domain, seed, n_categories, order)
        sizes, n_calibration = self.sizes(policy, n_rows, n_categories), n_to_calibrate(self.false_alarm_rate)
        rules = forests.stream.Rules(plan, policy, self.prior, self.grid, self.score, sizes, n_calibration, damping)
        return forests.stream.Stream(rules)

    def sizes(self, policy: Policy | None, n_rows: int, n_categories: int = 0) -> Array:
        """Return the sample size of each tree, for a stream that starts with `n_rows` rows.

        Trees use all points if none are held to sample from, or if the domain is the box of all points.
        """
        if policy is None or self.is_closed:
            return np.full(self.n_estimators, EVERY)
        is_table = isinstance(self.window, str) and isinstance(policy, Reservoir)
        most = min(policy.n or n_rows, n_rows) if is_table else policy.n
        sizes = self._sizes_of_samples(most, n_categories)
        return np.where(sizes < (most or EVERY), sizes, EVERY)

    def _sizes_of_samples(self, n_rows: int | None, n_categories: int) -> Array:
        """Return the sample size of each tree, given the most points held, None if unlimited."""
        most = EVERY if n_rows is None else n_rows
        if self.max_samples is None:
            return np.full(self.n_estimators, most)
        if isinstance(self.max_samples, str):
            sizes = _SIZES_WITH_CATEGORIES if n_categories else _SAMPLE_SIZES
            return np.minimum(np.resize(sizes, self.n_estimators), max(most // 2, 1))
        if isinstance(self.max_samples, Integral):
            return np.full(self.n_estimators, min(int(self.max_samples), most))
        if n_rows is None:
            raise ValueError(
                f"max_samples={self.max_samples} is a share of the points held, but this window does not limit their "
                "number: set max_samples to an integer, or limit the number of points in the window"
            )
        return np.full(self.n_estimators, max(int(self.max_samples * n_rows), 1))
