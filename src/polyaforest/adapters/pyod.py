"""Both detectors as PyOD has them: `decision_function` higher for anomalies, `labels_`, `threshold_`, probabilities."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyaforest import estimators
from polyaforest.adapters._shared import anomaly_scores, extra
from polyaforest.core.arrays import Array
from polyaforest.core.locks import Guarded

with extra("pyod"):
    import pyod  # noqa: F401 -- by itself first, so that the error names it if it is missing
    from pyod.models.base import BaseDetector

__all__ = ["BatchMPF", "StreamingMPF"]


class _Detector(Guarded, BaseDetector):
    """What both have in common: all parameters but `contamination` are the wrapped detector's."""

    _wrapped: ClassVar[type[estimators.StreamingMPF | estimators.BatchMPF]]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on the rows of `X`, score them and place the threshold; `y` is ignored, with PyOD's warning.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        """
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "contamination"}
        detector = self._wrapped(**parameters).fit(X)
        scores = anomaly_scores(detector.score_samples(X))
        with self._lock.turn(), self._anew() as draft:
            draft._set_n_classes(y)
            draft.detector_, draft.decision_scores_ = detector, scores
            draft._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> Array:
        """How anomalous each row is: higher is more anomalous, minus ``detector_.score_samples(X)``.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        scores : ndarray of shape (n_rows,)
        """
        check_is_fitted(self, ["detector_"])
        return anomaly_scores(self.detector_.score_samples(X))


class StreamingMPF(_Detector):
    """`polyaforest.StreamingMPF` on tables, for PyOD. Scores are higher for anomalies.

    With the default score they are surprises: minus a log probability, 0 or more, in nats.

    Parameters
    ----------
    contamination : float in (0, 0.5], default=0.1
        Share of the fitted rows to flag; or a thresholder of PyThresh.
    n_estimators, max_samples, max_depth, prior_strength, lifetime, feature_weights, score, domain, missing,
    random_state, n_jobs
        As for `polyaforest.StreamingMPF`.

    Attributes
    ----------
    detector_ : polyaforest.StreamingMPF
        The fitted forest, for all that PyOD has no word for, such as ``mass``. Its own threshold is the automatic one.
    decision_scores_ : ndarray of shape (n_rows,)
        ``decision_function`` of the fitted rows.
    threshold_ : float
        Rows that score above it are anomalies.
    labels_ : ndarray of int, shape (n_rows,)
        1 for the anomalies among the fitted rows, 0 for the others.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest.adapters.pyod import StreamingMPF
    >>> X = np.random.default_rng(0).normal(size=(1000, 2))
    >>> detector = StreamingMPF(contamination=0.01, random_state=0).fit(X)
    >>> int(detector.labels_.sum())
    10
    >>> detector.predict(np.array([[0.0, 0.0], [8.0, 8.0]]))
    array([0, 1])
    """

    _wrapped = estimators.StreamingMPF

    def __init__(
        self,
        contamination: Any = 0.1,
        *,
        n_estimators: int = 100,
        max_samples: int | float | str | None = "auto",
        max_depth: int | None = None,
        prior_strength: float = 0.001,
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        score: str = "typicality",
        domain: Any = None,
        missing: str = "error",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(contamination=contamination)
        self.n_estimators = n_estimators
        self.max_samples = max_samples
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.domain = domain
        self.missing = missing
        self.random_state = random_state
        self.n_jobs = n_jobs


class BatchMPF(_Detector):
    """`polyaforest.BatchMPF` for PyOD. Scores are higher for anomalies.

    With the default score they are surprises: minus a log probability, 0 or more, in nats.

    Parameters
    ----------
    contamination : float in (0, 0.5], default=0.1
        Share of the fitted rows to flag; or a thresholder of PyThresh.
    n_estimators, max_depth, prior_strength, lifetime, feature_weights, score, domain, missing, random_state, n_jobs
        As for `polyaforest.BatchMPF`.

    Attributes
    ----------
    detector_ : polyaforest.BatchMPF
        The fitted forest, for all that PyOD has no word for, such as ``mass``. Its own threshold is the automatic one.
    decision_scores_, threshold_, labels_
        As for `StreamingMPF`.
    """

    _wrapped = estimators.BatchMPF

    def __init__(
        self,
        contamination: Any = 0.1,
        *,
        n_estimators: int = 100,
        max_depth: int | None = 10,
        prior_strength: float = 0.001,
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        score: str = "log_mass",
        domain: Any = None,
        missing: str = "error",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(contamination=contamination)
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.domain = domain
        self.missing = missing
        self.random_state = random_state
        self.n_jobs = n_jobs
