"""The points that a stream holds: what they are, and how to delete, rescale and widen them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone

from polyaforest.detectors.tree import Tree
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.point_store import Key
from polyaforest.kernels.arrays import Array
from polyaforest.model.stream_model import StreamModel
from polyaforest.tables.categories import Categories, Codes
from polyaforest.tables.validation import (
    LARGEST,
    SMALLEST,
    check_complete,
    read_copies,
    read_one_or_more_keys,
    read_rows,
)
from polyaforest.util.locks import Guarded, uninterrupted

if TYPE_CHECKING:
    from polyaforest.forest.stream import Stream


class StreamPoints(Guarded):
    """The part of `StreamingMPF` about the points held and their changes."""

    # of the forest detector
    categorical_features: Any
    encoding_: Categories | None
    false_alarm_rate: float | None
    is_fitted: bool
    n_features_in_: int
    n_jobs: int | None
    _allows_missing: bool
    _model: StreamModel
    _tree: Tree
    _as_given: Callable[[Array], Array]
    _check_companion: Callable[[], None]
    _check_fitted: Callable[[], None]
    _have_companion_forget: Callable[[Iterable[Key]], None]

    # ---- changes -----------------------------------------------------------------------------------------------------

    def delete(self, keys: Key | Iterable[Key], *, sample_weight: Any = None) -> Self:
        """Delete points exactly, as if they had never been learned.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If a key is not held, KeyError is raised and nothing is deleted.
        sample_weight : array-like of int, one for each key, optional
            Number of copies to delete, oldest first; by default all.
        """
        stream, wanted = self._continued(), read_one_or_more_keys(keys)
        limits = None if sample_weight is None else read_copies(sample_weight, len(wanted))
        self._check_companion()
        with self._writing(stream):
            self._model.delete(wanted, limits, self.n_jobs)
        self._have_companion_forget(wanted)
        return self

    def delete_rows(self, X: Any, *, sample_weight: Any = None) -> Self:
        """Delete points by value: for each row of `X` the oldest point equal to it.

        If a row is not held, ValueError is raised and nothing is deleted. `sample_weight` is the number of equal points
        to delete for each row, as integers. Rows may lack values only in columns without a value so far.

        A forest with ``window=None`` can delete rows inside the boxes of all their leaves, and rows with duplicates. It
        cannot verify that a row was learned.
        """
        stream = self._continued()
        rows = stream.columns.placed(
            read_rows(self, X, reset=False, allow_missing=self._allows_missing and not stream.columns.are_known)
        )
        check_complete(self, rows)
        copies = read_copies(sample_weight, len(rows))
        self._check_companion()
        with self._writing(stream):
            keys = self._model.delete_rows(rows, copies, self.n_jobs)
        self._have_companion_forget(keys)
        return self

    def change_false_alarm_rate(self, rate: float | None) -> Self:
        """Change `false_alarm_rate` without fitting again.

        The threshold changes at once, given the calibration scores held. A lower rate keeps more scores from now on,
        and flags nothing until there are ``1 / rate`` of them.

        Parameters
        ----------
        rate : float between 0 and 1, or None
            None for the automatic threshold.
        """
        draft = clone(self).set_params(false_alarm_rate=rate)
        draft._validate_params()
        draft._parameters.check_rates()
        if hasattr(self, "forest_"):
            stream = self._continued()
            with self._writing(stream):
                self.false_alarm_rate = rate
                self._model.keep_scores(n_to_calibrate(rate))
        else:
            self.false_alarm_rate = rate
        return self

    def rebuild(self) -> Self:
        """Recompute feature weights from the points held and regrow all trees, after the scale of a stream changed."""
        stream = self._continued()
        with self._writing(stream):
            self._model.rebuild(self.n_jobs)
        return self

    def add_features(self, values: Any) -> Self:
        """Append columns and regrow the trees; later rows must have these columns.

        Not available if columns have names, or if feature weights or the domain are arrays.

        Parameters
        ----------
        values : array-like of shape (n_new_features,)
            The value of each new feature in the points held.
        """
        stream, filler = self._continued(), np.atleast_1d(np.asarray(values, np.float64))
        if filler.ndim != 1 or not filler.size or not (np.abs(filler) <= LARGEST).all():  # NaN fails too
            raise ValueError(f"values must be one finite number for each new feature; got {values!r}")
        if hasattr(self, "feature_names_in_") or np.ndim(self._tree.feature_weights) or np.ndim(self._tree.domain):
            raise ValueError(
                "cannot add features to named columns, or to feature weights or a domain given as an array"
            )
        with self._writing(stream):
            self._model.widen(np.where(np.abs(filler) < SMALLEST, 0.0, filler), self.n_jobs)
            self.n_features_in_ += len(filler)
            if self.encoding_ is not None:
                are_last = isinstance(self.categorical_features, Codes)
                self.encoding_ = self.encoding_.widened(len(filler), are_last=are_last)
        return self

    # ---- points held -------------------------------------------------------------------------------------------------

    @property
    def keeps_points_(self) -> bool:
        """Whether the forest holds points; with ``window=None`` only during its first 256 rows."""
        self._check_fitted()
        return self._stream.keeps_points

    @property
    def n_points_(self) -> int:
        """Number of points held, or counted with ``window=None``."""
        self._check_fitted()
        with self._frozen():
            return self._stream.n_points

    @property
    def is_frozen_(self) -> bool:
        """Whether the forest cannot learn, because an earlier version saved it without its points."""
        self._check_fitted()
        return self._stream.is_frozen

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes; 0 before fitting."""
        return 8 * self.n_points_ * self.n_features_in_ + self._model.nbytes if self.is_fitted else 0

    @property
    def n_seen_(self) -> int:
        """Number of rows learned so far, held or not: the position in the stream."""
        self._check_fitted()
        return self._stream.store.n_seen

    @property
    def points_(self) -> Array:
        """The points held, by order of arrival, of shape (n_points_, n_features), with texts of categories.

        Columns without a value so far are NaN.
        """
        with self._with_points() as stream:
            return self._as_given(stream.rows)

    @property
    def times_(self) -> Array:
        """The times of ``points_``, in the same order, as seconds since 1970 or numbers; NaN if not given."""
        with self._with_points() as stream:
            return stream.store.times[stream.store.held]

    def holds(self, key: Key) -> bool:
        """Return whether a point with this key is held."""
        if not hasattr(self, "forest_"):
            return False
        with self._with_points() as stream:
            return key in stream.store.slot_of

    @property
    def keys_(self) -> list[Key]:
        """The keys of ``points_``, in the same order."""
        with self._with_points() as stream:
            return stream.store.held_keys

    # ---- access -----------------------------------------------------------------------------------------------------

    @property
    def _stream(self) -> Stream:
        return self._model.stream

    def _continued(self) -> Stream:
        """Return the stream to change; raise ValueError if it is frozen."""
        self._check_fitted()
        if self._stream.is_frozen:
            raise ValueError(
                "this model was fitted on a table by an earlier version and holds no points: it can score, but not "
                "learn or delete. Fit it again"
            )
        return self._stream

    @contextmanager
    def _with_points(self) -> Iterator[Stream]:
        """Yield the stream while it cannot change."""
        self._check_fitted()
        stream = self._stream
        with self._frozen():
            if not stream.keeps_points:
                raise AttributeError("a forest with window=None holds no points")
            yield stream

    @contextmanager
    def _writing(self, stream: Stream) -> Iterator[Callable[[], bool]]:
        """Change `stream` exclusively and atomically, deferring Ctrl-C; yield whether it was pressed."""
        with uninterrupted() as is_interrupted, self._lock.writing():
            if self._stream is not stream:
                raise RuntimeError("another thread has fitted this forest at the same time: nothing was changed")
            self._model.leave_snapshots()
            yield is_interrupted
