"""What all detectors share: scores to verdicts, and models to files and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Protocol, Self

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

_COMPANION = "companion"  # the array of its bytes


class Companion(Protocol):
    """What follows the stream of a detector beside it, and is saved with it."""

    def to_bytes(self) -> bytes:
        """Return its state."""

    def forget(self, keys: Iterable[int | str]) -> None:
        """Delete the points of these keys, as the detector does."""


class Detector(Guarded, OutlierMixin, BaseEstimator):
    """Base of all detectors: one threshold decides, whichever method is asked.

    ``detect(X).is_anomaly``, ``predict(X) == -1`` and ``decision_function(X) < 0`` flag the same rows. Rows of a time
    series have `times`; other detectors take none.
    """

    score_samples: Callable[..., Array]
    detect: Callable[..., Detections]
    offset_: Any  # a float, the threshold; each detector has it as a property
    _notes: Mapping[str, Any] = MappingProxyType({})
    _companion: Companion | bytes | None = None  # bytes after loading, until someone asks what they are

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

    def _check_calibrated(self) -> None:
        """Raise if there are no calibration scores, and say what to do."""
        raise NotImplementedError

    def _check_fitted(self) -> None:
        """Raise if nothing has been learned."""
        if not self.is_fitted:
            check_is_fitted(self)  # slow, but it says what is wrong

    # ---- companions -------------------------------------------------------------------------------------------------

    @property
    def companion(self) -> Companion | bytes | None:
        """What follows the stream beside the detector; its bytes, if the detector was loaded and it was not yet."""
        return self._companion

    @companion.setter
    def companion(self, companion: Companion | bytes | None) -> None:
        self._companion = companion

    def _check_companion(self) -> None:
        """Raise before points are deleted that the companion could not delete."""
        if isinstance(self._companion, bytes):
            raise ValueError(
                "this model was saved with a monitor that holds points too: load it with DriftMonitor.beside(model) "
                "before points are deleted. Nothing was deleted"
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
        """Return the detector as bytes, from which `loads` restores it bit for bit; equal detectors make equal bytes.

        They are a fraction of what `save` writes, because they leave out what can be derived: for streams by key, and
        stores of them. A checksum tells damage.
        """
        with self._contents(notes, is_compact=True) as (header, arrays):
            has_whole_trees = any(name.endswith("forest/left") for name in arrays)  # mostly zeros and small numbers
            return pack(header, arrays, is_compact=not has_whole_trees)

    @contextmanager
    def _contents(
        self, notes: Mapping[str, Any] | None, *, is_compact: bool = False
    ) -> Iterator[tuple[Header, Arrays]]:
        """Yield what to save, which does not change until it is written."""
        self._check_fitted()
        self._validate_params()  # or it could not be read again
        with self._frozen():
            header, arrays = self._state(is_compact=is_compact)
            companion = self._companion
            if companion is not None:
                block = companion if isinstance(companion, bytes) else companion.to_bytes()
                arrays = {**arrays, _COMPANION: np.frombuffer(block, np.uint8)}
            yield {**header, "notes": self.notes if notes is None else dict(notes)}, arrays

    @classmethod
    def load(cls, path: Place) -> Self:
        """Return the detector saved in a file; raise `ModelFileError` if it is damaged or of another class."""
        header, arrays = read_model(path)
        with refusing(path):
            if header.get("detector") != cls.__name__:
                raise ValueError(f"it holds a {header.get('detector')}, not a {cls.__name__}")
            return cls.restored(header, arrays)

    @classmethod
    def restored(cls, header: Header, arrays: Arrays) -> Self:
        """Return the detector with a state that was read from a file, and its companion's bytes, if it has one."""
        own = {name: part for name, part in arrays.items() if name != _COMPANION}
        detector = cls._of_state(header, own)
        if _COMPANION in arrays:
            block = arrays[_COMPANION]
            if block.dtype != np.uint8 or block.ndim != 1:
                raise ValueError(f"array {_COMPANION} must be bytes")
            detector._companion = block.tobytes()
        return detector

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the complete state of a fitted detector; a compact one leaves out what can be derived."""
        raise NotImplementedError

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        """Return the detector with a state that was read from a file."""
        raise NotImplementedError
