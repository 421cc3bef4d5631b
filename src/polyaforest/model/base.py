"""What the models of streams and of counts share: a fitted forest, its threshold and its calibration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from polyaforest.forest.severity import tail_bits
from polyaforest.forest.thresholds import Detections, ThresholdPolicy, check_scores, conformal_p_values
from polyaforest.kernels.arrays import Array, Forest, Prior, is_ascending
from polyaforest.model.fitted import FittedForest, Query
from polyaforest.tables.validation import LARGEST, SMALLEST


class Offset(NamedTuple):
    """A threshold score and the policy it was computed with."""

    policy: ThresholdPolicy
    value: float


class ForestModel(ABC):
    """Trees, their threshold and the scores to compare new ones with.

    Callers exclude other threads while they change a model. Methods that only read may compute what is derived from
    the trees, such as the threshold, and keep it.

    Attributes
    ----------
    forest : Forest
    prior : Prior
    lifetimes : ndarray
        The times at which the score evaluates cells.
    offset : Offset or None
        The threshold, once it is computed.
    quantiles : ndarray or None
        Quantiles of the fitted rows, for the usual ranges.
    n_random_draws : int
        Number of fractional weights rounded at random since the fit.
    """

    why_uncalibrated: ClassVar[str]  # the reason, and what to do
    detector: ClassVar[str]  # the class that users see
    has_boxes: ClassVar[bool]  # whether nodes store the bounding box of their points
    _not_copied: ClassVar[dict[str, None]] = {"_fitted": None}  # derived again by copies and pickles

    forest: Forest
    lifetimes: Array

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.offset: Offset | None = None
        self.quantiles: Array | None = None
        self.n_random_draws = 0
        self._fitted: FittedForest | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self._not_copied}

    def copy(self) -> Self:
        """Return a model with the same parts, to replace some of them."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    @property
    def nbytes(self) -> int:
        """Size of the trees in bytes."""
        return sum(part.nbytes for part in self.forest)

    @property
    def fitted(self) -> FittedForest:
        """The forest as it is now."""
        fitted = self._fitted
        if fitted is None:
            fitted = self._fitted = self._new_fitted()
        return fitted

    @abstractmethod
    def _new_fitted(self) -> FittedForest: ...

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def place_threshold(self, query: Query) -> float:
        """Return the threshold score of a policy."""

    @abstractmethod
    def calibration_scores(self, query: Query) -> Array:
        """Return the log-scores to compare new ones with; may be empty."""

    def threshold(self, query: Query) -> float:
        """Return the threshold score: that of `EpsilonPhi`, or of the policy."""
        return self.place_threshold(query) if query.epsilon_phi is None else query.epsilon_phi.threshold

    def detected(self, scores: Array, query: Query) -> Detections:
        """Return the results for rows with these scores."""
        offset = self.threshold(query)
        is_anomaly, p_values = ~(scores >= offset), self.p_values(scores, query)
        bits = self._tail_bits(scores, is_anomaly, query)
        return Detections(scores, p_values, is_anomaly, np.full(len(scores), offset), tail_bits=bits)

    def _tail_bits(self, scores: Array, is_anomaly: Array, query: Query) -> Array:
        """Return the tail bits of flagged rows (`severity`); NaN for other rows."""
        if query.epsilon_phi is not None or not is_anomaly.any():
            return np.full(len(scores), np.nan)
        return tail_bits(query.score.to_log(scores), is_anomaly, np.sort(self.calibration_scores(query)))

    def p_values(self, scores: Array, query: Query) -> Array:
        """Return the p-values of scores; NaN without calibration scores."""
        known = self.calibration_scores(query)
        return conformal_p_values(query.score.to_log(scores), known) if len(known) else np.full(len(scores), np.nan)

    def check_calibrated(self, query: Query) -> None:
        """Raise ValueError if there are no calibration scores."""
        if query.epsilon_phi is not None:
            raise ValueError("EpsilonPhi scores have no p-values: choose another score_type")
        if not len(self.calibration_scores(query)):
            raise ValueError(f"this forest has no calibration scores: {self.why_uncalibrated}")

    # ---- checks -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_trees(self) -> None:
        """Raise ValueError if the trees are invalid."""

    def check_besides_trees(self, n_features: int, n_categories: int) -> None:
        """Raise ValueError if anything but the trees is invalid, in a state from a file or a pickle."""
        if self.forest.weights.shape[1] != n_features:
            raise ValueError(f"its forest has {self.forest.weights.shape[1]} features, not {n_features}")
        if self.forest.n_categories[0] != n_categories:
            raise ValueError(f"its forest has {self.forest.n_categories[0]} categories, not {n_categories}")
        if self.forest.lower.shape[2] != (n_features if self.has_boxes else 0):
            raise ValueError(f"its trees do not belong to a {self.detector}")
        if not SMALLEST <= self.prior.strength <= LARGEST:
            raise ValueError(f"its prior strength is {self.prior.strength}, out of range")
        if self.n_random_draws < 0:
            raise ValueError(f"its number of random draws is negative: {self.n_random_draws}")
        if self.offset is not None:
            check_scores("offset", np.array([self.offset.value]))
        times = self.lifetimes
        if not times.size or not (np.isfinite(times) & (times > 0)).all() or not is_ascending(times):
            raise ValueError("the lifetimes of its score must be positive, finite and ascending")
        if self.quantiles is not None:
            from polyaforest.explain.context import N_QUANTILES

            if len(self.quantiles) != N_QUANTILES or not (np.abs(self.quantiles) <= LARGEST).all():  # or NaN
                raise ValueError(f"array quantiles: must have {N_QUANTILES} finite values for each feature")
