"""`StreamingMPF` and `BatchMPF` as PyOD detectors: `decision_function` is higher for anomalies."""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyaforest import detectors
from polyaforest.adapters._shared import anomaly_scores
from polyaforest.kernels.arrays import Array
from polyaforest.util.extras import extra
from polyaforest.util.locks import Guarded

with extra(__name__, "pyod"):
    import pyod  # noqa: F401 -- first, so that the error names it if it is missing
    from pyod.models.base import BaseDetector

__all__ = ["BatchMPF", "StreamingMPF"]


class _Detector(Guarded, BaseDetector):
    """Common base. It takes the parameters of the wrapped detector; `contamination` may be a thresholder."""

    _wrapped: ClassVar[type[detectors.StreamingMPF | detectors.BatchMPF]]

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Fit on the rows of `X`, score them and set the threshold; `y` is ignored with PyOD's warning.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        sample_weight : array-like of shape (n_rows,), optional
            How often each row counts. ``decision_scores_`` has one score per row, whatever its weight.
        """
        is_share = isinstance(self.contamination, Real)
        parameters = self.get_params(deep=False) | ({} if is_share else {"contamination": "auto"})
        detector = self._wrapped(**parameters).fit(X, sample_weight=sample_weight)
        scores = anomaly_scores(detector.score_samples(X))
        with self._lock.turn(), self._drafted() as draft:
            draft._set_n_classes(y)
            draft.detector_, draft.decision_scores_ = detector, scores
            draft._process_decision_scores()
            if is_share:  # use the detector's threshold, so that both flag the same rows
                draft.threshold_ = float(anomaly_scores(np.array(detector.offset_)))
                draft.labels_ = (scores > draft.threshold_).astype(int)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the anomaly score of each row, ``-detector_.score_samples(X)``: higher is more anomalous.

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

    The default score is the surprise in nats: a negative log probability, 0 or more.

    Parameters
    ----------
    contamination : float in (0, 0.5], default=0.1
        Share of rows to flag, estimated from the points held, or a PyThresh thresholder.
    n_estimators, max_samples, window, tree, score_type, missing, categorical_features, random_state, n_jobs
        As for `polyaforest.StreamingMPF`.

    Attributes
    ----------
    detector_ : polyaforest.StreamingMPF
        The fitted forest, for methods beyond PyOD's interface, such as ``mass``. It flags the same rows unless
        `contamination` is a thresholder.
    decision_scores_ : ndarray of shape (n_rows,)
        ``decision_function`` of the fitted rows.
    threshold_ : float
        Rows with scores above it are anomalies.
    labels_ : ndarray of int, shape (n_rows,)
        1 for anomalies among the fitted rows, 0 for other rows.

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

    _wrapped = detectors.StreamingMPF

    def __init__(
        self,
        contamination: Any = 0.1,
        *,
        n_estimators: int = 100,
        max_samples: int | float | str | None = "auto",
        window: Any = "auto",
        tree: detectors.Tree | None = None,
        score_type: str | detectors.EpsilonPhi = "margins",
        missing: str = "impute",
        categorical_features: Any = "from_dtype",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(contamination=contamination)
        self.n_estimators = n_estimators
        self.max_samples = max_samples
        self.window = window
        self.tree = tree
        self.score_type = score_type
        self.missing = missing
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs


class BatchMPF(_Detector):
    """`polyaforest.BatchMPF` for PyOD. Scores are higher for anomalies.

    The default score is the surprise in nats: a negative log probability, 0 or more.

    Parameters
    ----------
    contamination : float in (0, 0.5], default=0.1
        Share of rows to flag, or a PyThresh thresholder.
    n_estimators, tree, score_type, missing, categorical_features, random_state, n_jobs
        As for `polyaforest.BatchMPF`.

    Attributes
    ----------
    detector_ : polyaforest.BatchMPF
        The fitted forest.
    decision_scores_, threshold_, labels_
        As for `StreamingMPF`.
    """

    _wrapped = detectors.BatchMPF

    def __init__(
        self,
        contamination: Any = 0.1,
        *,
        n_estimators: int = 100,
        tree: detectors.Tree | None = None,
        score_type: str | detectors.EpsilonPhi = "log_mass",
        missing: str = "impute",
        categorical_features: Any = "from_dtype",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(contamination=contamination)
        self.n_estimators = n_estimators
        self.tree = tree
        self.score_type = score_type
        self.missing = missing
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs
