"""The base class of all detectors: verdicts from scores, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.utils.validation import check_is_fitted

from polyaforest.forest.thresholds import Detections, benjamini_hochberg
from polyaforest.kernels.arrays import Array
from polyaforest.storage.codec import pack
from polyaforest.storage.migrations import upgrade
from polyaforest.storage.modelfile import Arrays, Header, Place, read_model, write_model
from polyaforest.storage.state import reporting_invalid_model
from polyaforest.tables.validation import read_rate
from polyaforest.util.locks import Guarded

_COMPANION = "companion"  # the array of its bytes
_Method = TypeVar("_Method", bound=Callable[..., Any])


def validates_parameters(method: _Method) -> _Method:
    """Decorate `fit` to validate the parameters of the detector first, keeping its type."""
    return cast(_Method, _fit_context(prefer_skip_nested_validation=True)(method))


def remembers_frame(method: _Method) -> _Method:
    """Decorate a method that returns `Detections` so that their `to_frame` returns a frame like its argument `X`."""

    @wraps(method)
    def detect(self: Any, X: Any, *args: Any, **given: Any) -> Detections:
        found: Detections = method(self, X, *args, **given)
        return found.like(X)

    return cast(_Method, detect)


class Companion(Protocol):
    """An object that follows the same stream as a detector and is saved with it."""

    def to_bytes(self) -> bytes:
        """Return the state."""

    def forget(self, keys: Iterable[int | str]) -> None:
        """Delete the points with these keys."""


class Detector(Guarded, OutlierMixin, BaseEstimator):
    """Base class of all detectors.

    ``detect(X).is_anomaly``, ``predict(X) == -1`` and ``decision_function(X) < 0`` flag the same rows.
    """

    score_samples: Callable[..., Array]
    detect: Callable[..., Detections]
    offset_: Any  # float: the threshold, a property of each detector
    _notes: Mapping[str, Any] = MappingProxyType({})
    _companion: Companion | bytes | None = None  # bytes until the companion is loaded

    if TYPE_CHECKING:

        def set_params(self, **params: Any) -> Self:
            """Set parameters, as in scikit-learn."""

    def p_value(self, X: Any, **labels: Any) -> Array:
        """Return conformal p-values: the probability that a new normal row scores as low or lower.

        A p-value is (1 + number of calibration scores <= the row's score) / (1 + number of calibration scores). The
        calibration scores are out-of-sample scores of learned rows. If a new row is exchangeable with these rows, its
        p-value is at most alpha with a probability of about alpha, for every alpha.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        p_values : ndarray of shape (n_rows,)
            Between ``1 / (n + 1)``, for a score below all n calibration scores, and 1.
        """
        self._check_calibrated()
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
        """Return -1 for anomalies and +1 for normal rows, controlling the false discovery rate.

        Applies the Benjamini-Hochberg procedure to ``p_value(X)``: on average at most a share `rate` of the flagged
        rows are false alarms.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        rate : float between 0 and 1, default=0.1
        """
        is_anomaly = benjamini_hochberg(self.p_value(X, **labels), read_rate("rate", rate))
        return np.where(is_anomaly, -1, 1)

    def reading(self) -> AbstractContextManager[None]:
        """Return a context manager that blocks changes by other threads, for reads that must be consistent."""
        return self._frozen()

    def _p_values(self, scores: Array) -> Array:
        """Return the p-values of scores; NaN without calibration scores."""
        raise NotImplementedError

    def _check_calibrated(self) -> None:
        """Raise ValueError if there are no calibration scores."""
        raise NotImplementedError

    def _check_fitted(self) -> None:
        """Raise NotFittedError if nothing has been learned."""
        if not self.is_fitted:
            check_is_fitted(self)  # slow, hence only for its message

    # ---- companions -------------------------------------------------------------------------------------------------

    @property
    def companion(self) -> Companion | bytes | None:
        """The object that follows the stream beside the detector; its bytes until it is loaded."""
        return self._companion

    @companion.setter
    def companion(self, companion: Companion | bytes | None) -> None:
        self._companion = companion

    def _check_companion(self) -> None:
        """Raise ValueError if the companion is not loaded and could not delete its points."""
        if isinstance(self._companion, bytes):
            raise ValueError(
                "this model was saved with a drift monitor that holds points too: load the monitor with "
                "DriftMonitor.beside(model) before deleting. Nothing was deleted"
            )

    def _have_companion_forget(self, keys: Iterable[int | str]) -> None:
        if self._companion is not None and not isinstance(self._companion, bytes):
            self._companion.forget(keys)

    # ---- size -------------------------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether the detector has learned anything."""
        return hasattr(self, "forest_")

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes; 0 before fitting."""
        raise NotImplementedError

    # ---- files ------------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> dict[str, Any]:
        """The notes in the file that the detector was loaded from; empty if it was not loaded."""
        return dict(self._notes)

    def save(self, path: Place, notes: Mapping[str, Any] | None = None) -> None:
        """Write the detector to a file; `load` restores it bit for bit.

        The file holds arrays and a JSON header, no code. It is written atomically: if writing fails, an existing file
        at `path` is unchanged.

        Parameters
        ----------
        path : str, path-like or binary file
        notes : JSON-serialisable dict, optional
            Metadata to save, available as ``notes`` after `load`. By default the notes that the detector was loaded
            with.
        """
        with self._contents(notes) as (header, arrays):
            write_model(path, header, arrays)

    def to_bytes(self, notes: Mapping[str, Any] | None = None) -> bytes:
        """Return the detector as bytes; `loads` restores it bit for bit.

        The bytes are smaller than a file from `save`, because they omit derived arrays, and they contain a checksum.
        Equal detectors have equal bytes.
        """
        with self._contents(notes, is_compact=True) as (header, arrays):
            has_whole_trees = any(name.endswith("forest/left") for name in arrays)  # these compress well
            return pack(header, arrays, is_compact=not has_whole_trees)

    @contextmanager
    def _contents(
        self, notes: Mapping[str, Any] | None, *, is_compact: bool = False
    ) -> Iterator[tuple[Header, Arrays]]:
        """Yield the state to save, protected from changes until the block ends."""
        self._check_fitted()
        self._validate_params()  # invalid ones could not be loaded again
        with self._frozen():
            header, arrays = self._state(is_compact=is_compact)
            companion = self._companion
            if companion is not None:
                block = companion if isinstance(companion, bytes) else companion.to_bytes()
                arrays = {**arrays, _COMPANION: np.frombuffer(block, np.uint8)}
            yield {**header, "notes": self.notes if notes is None else dict(notes)}, arrays

    @classmethod
    def load(cls, path: Place) -> Self:
        """Load a detector of this class from a file; raise `ModelFileError` if it is damaged or of another class."""
        header, arrays = read_model(path)
        with reporting_invalid_model(path):
            if header.get("detector") != cls.__name__:
                raise ValueError(f"it contains a {header.get('detector')}, not a {cls.__name__}")
            return cls.restored(header, arrays)

    @classmethod
    def restored(cls, header: Header, arrays: Arrays) -> Self:
        """Return the detector with a state read from a file of any format, and the bytes of its companion, if any."""
        header, arrays = upgrade(header, arrays)
        own = {name: part for name, part in arrays.items() if name != _COMPANION}
        detector = cls._of_state(header, own)
        if _COMPANION in arrays:
            block = arrays[_COMPANION]
            if block.dtype != np.uint8 or block.ndim != 1:
                raise ValueError(f"array {_COMPANION} must be bytes")
            detector._companion = block.tobytes()
        return detector

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the complete state of a fitted detector; a compact state omits derived arrays."""
        raise NotImplementedError

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        """Return the detector with a state read from a file."""
        raise NotImplementedError
