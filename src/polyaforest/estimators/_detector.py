"""What all detectors share: scores to verdicts, and models to files and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from polyaforest.core.arrays import Array
from polyaforest.core.locks import Guarded
from polyaforest.core.validation import read_rate
from polyaforest.decision.thresholds import Detections, benjamini_hochberg
from polyaforest.persistence.codec import pack
from polyaforest.persistence.modelfile import Arrays, Header, Place, read_model, write_model
from polyaforest.persistence.state import refusing


class Detector(Guarded, OutlierMixin, BaseEstimator):
    """Base of all detectors: one threshold decides, whichever method is asked.

    ``detect(X).is_anomaly``, ``predict(X) == -1`` and ``decision_function(X) < 0`` flag the same rows. Rows of a time
    series have `times`; other detectors take none.
    """

    score_samples: Callable[..., Array]
    detect: Callable[..., Detections]
    offset_: Any  # a float, the threshold; each detector has it as a property
    _notes: Mapping[str, Any] = MappingProxyType({})

    def p_value(self, X: Any, **labels: Any) -> Array:
        """Return conformal p-values: how likely a normal new row is to look at least as anomalous.

        A p-value is (1 + the number of calibration scores that are not above the row's) / (1 + their number). The
        calibration scores are those of rows scored before, or as if, they were learned. If the new row is exchangeable
        with them, its p-value is at most alpha with a probability of about alpha, for every alpha.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        p_values : ndarray of shape (n_rows,)
            From ``1 / (n + 1)``, for rows more anomalous than all n calibration scores, to 1.
        """
        self._refuse_uncalibrated()
        return self._p_values(self.score_samples(X, **labels))

    def decision_function(self, X: Any, **labels: Any) -> Array:
        """Return ``score_samples(X) - offset_``: negative for anomalies."""
        scores, offset = self.score_samples(X, **labels), self.offset_
        with np.errstate(invalid="ignore"):
            return np.where(scores == offset, 0.0, scores - offset)  # both may be infinite

    def predict(self, X: Any, **labels: Any) -> Array:
        """Return +1 for normal rows and -1 for anomalies."""
        return np.where(self.score_samples(X, **labels) >= self.offset_, 1, -1)

    def predict_fdr(self, X: Any, rate: float = 0.1, **labels: Any) -> Array:
        """Return +1 and -1 as `predict`, with anomalies chosen at a false discovery rate.

        The procedure of Benjamini and Hochberg on ``p_value(X)``: on average at most a share `rate` of the rows flagged
        are false alarms, however many rows there are.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        rate : float between 0 and 1, default=0.1
        """
        is_anomaly = benjamini_hochberg(self.p_value(X, **labels), read_rate("rate", rate))
        return np.where(is_anomaly, -1, 1)

    def reading(self) -> AbstractContextManager[None]:
        """Hold off changes by other threads while the block reads several results that must belong together."""
        return self._frozen()

    def _p_values(self, scores: Array) -> Array:
        """Return the p-values of rows with these scores, NaN without calibration scores."""
        raise NotImplementedError

    def _refuse_uncalibrated(self) -> None:
        """Raise if there are no calibration scores, and say what to do."""
        raise NotImplementedError

    def _refuse_unfitted(self) -> None:
        """Raise if nothing has been learned."""
        if not self.is_fitted:
            check_is_fitted(self)  # slow, but it says what is wrong

    # ---- size -------------------------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether the detector has learned anything."""
        return hasattr(self, "forest_")

    @property
    def nbytes(self) -> int:
        """Bytes of the trees and of the points held; 0 before there are any."""
        raise NotImplementedError

    # ---- files ------------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> dict[str, Any]:
        """The notes in the file that the detector was loaded from; empty for any other detector."""
        return dict(self._notes)

    def save(self, path: Place, notes: Mapping[str, Any] | None = None) -> None:
        """Write the detector to a file, from which `load` restores it bit for bit.

        The file holds arrays and a JSON header, no code. It is written completely or not at all: if anything goes
        wrong, what was at `path` before stays there.

        Parameters
        ----------
        path : str, path-like or binary file
        notes : dict that JSON can hold, optional
            Anything to remember with the model, returned by ``notes`` after `load`. By default the notes that the
            detector was loaded with.
        """
        with self._contents(notes) as (header, arrays):
            write_model(path, header, arrays)

    def to_bytes(self, notes: Mapping[str, Any] | None = None) -> bytes:
        """Return what `save` writes as bytes, in the format of the rows of a model store."""
        with self._contents(notes) as (header, arrays):
            return pack(header, arrays)

    @contextmanager
    def _contents(self, notes: Mapping[str, Any] | None) -> Iterator[tuple[Header, Arrays]]:
        """Yield what to save, which does not change until it is written."""
        check_is_fitted(self)
        self._validate_params()  # or it could not be read again
        with self._frozen():
            header, arrays = self._state()
            yield {**header, "notes": self.notes if notes is None else dict(notes)}, arrays

    @classmethod
    def load(cls, path: Place) -> Self:
        """Return the detector saved in a file; raise `ModelFileError` if it is damaged or of another class."""
        header, arrays = read_model(path)
        with refusing(path):
            if header.get("detector") != cls.__name__:
                raise ValueError(f"it holds a {header.get('detector')}, not a {cls.__name__}")
            return cls._of_state(header, arrays)

    def _state(self) -> tuple[Header, Arrays]:
        """Return the complete state of a fitted detector."""
        raise NotImplementedError

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        """Return the detector with a state that was read from a file."""
        raise NotImplementedError
