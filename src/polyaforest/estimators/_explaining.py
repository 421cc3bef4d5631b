"""Explanations of scores by a fitted forest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest import forest as forests
from polyaforest.core.arrays import Array, Posterior
from polyaforest.core.score import EpsilonPhi
from polyaforest.core.validation import LARGEST, feature_names
from polyaforest.decision.thresholds import Detections
from polyaforest.estimators._masses import MassForest
from polyaforest.explain import Explanations, read_features

if TYPE_CHECKING:
    from polyaforest.explain.context import Witness

_FEW = 16  # rows for which only a part of the posterior is derived, and whose words are safe from changes of a stream


class PolyaForest(MassForest):
    """Base of `BatchMPF` and `StreamingMPF`."""

    def explain(self, X: Any, features: Sequence[str | int] | None = None) -> Explanations:
        """Explain how surprising rows are: in bits, feature by feature, and in words.

        With the scores ``"typicality"`` and ``"multiscale"`` the surprise of a row is the mean, over trees and
        ``lifetimes_``, of -log2 of the mass of its cell; with other scores the mean over trees of -log2 of the mass of
        its leaf. So for ``"typicality"`` and ``"log_mass"`` it is the score itself, in bits:
        ``-score_samples(X) / log(2)``.

        Every bit is attributed to the feature that caused it, on its low or its high side, and the bits that a typical
        point gets are subtracted: the rest adds up to the surprise beyond the typical, exactly.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            Values that are missing are imputed first; they cannot be to blame.
        features : sequence of names or column numbers, optional
            The features that may be named, if not all; the bits of the others count all the same.

        Returns
        -------
        explanations : Explanations
            A sequence of one `Explanation` per row, with the arrays ``surprise``, ``low``, ``high`` and ``parts``.
            Words are looked up on first use. Those of a few rows are looked up before a stream changes, at the latest;
            for more, see `Explanations.settle`.
        """
        given = self._read(X, allow_missing=True)
        explained = self._explained(given, features, X.index if hasattr(X, "iloc") else None)
        is_score = self._score.is_additive and not isinstance(self.score_type, EpsilonPhi) and not np.isnan(given).any()
        scores = explained.surprise * -np.log(2) if is_score else self._scores(given)
        return self._with_verdicts(explained, self._detected(scores))

    def _explained(
        self,
        given: Array,
        features: Sequence[str | int] | None = None,
        index: Any = None,
        offset: float | None = None,
    ) -> Explanations:
        """Return explanations of rows that were read, without verdicts."""
        names = self._feature_names
        candidates, threshold = read_features(features, names), self.offset_ if offset is None else offset
        with self._frozen():
            rows = self._imputed(given, "mean") if np.isnan(given).any() else given.copy()
            typical, times = self._typical_charges(), self._times_of_cells
            known = self._known_along(rows[None])
            charges, base = forests.attribute.attribute_rows(self.forest_, known, rows, times, self.n_jobs)
            explained = Explanations(rows, names, charges, base, typical, candidates, self._asked(threshold), index)
            if len(rows) <= _FEW:
                self._remember(explained)
        return explained

    def _known_along(self, rows: Array) -> Posterior:
        """Return the posterior, of all nodes or of those on the paths of rows: (T, n, D), or (1, n, D) for all trees.

        Where it is derived it is the same, to the last bit.
        """
        if self._posterior is not None or rows.shape[1] > _FEW or forests.posterior.is_empty(self.forest_):
            return self.posterior_
        known = self._paths
        if known is None:
            known = self._paths = forests.posterior.underived(self.forest_)
        forests.posterior.derive_along(self.forest_, self.prior_, rows, self._times_of_cells, known)
        return known

    def _typical_charges(self) -> Array:
        """Return what the low and the high side of each feature cost a typical point, (2, D), in bits."""
        from polyaforest.explain import context

        if self._typical is None or self._typical[0] != self._score:
            points = self._points_in_turn
            charges = (
                context.typical_of_trees(self.forest_, self.posterior_, self._times_of_cells)
                if points is None
                else context.typical_of_points(self.forest_, points, self._known_along, self._times_of_cells)
            )
            self._typical = self._score, charges
        return self._typical[1]

    @property
    def _times_of_cells(self) -> Array:
        """The times of the cells that a score is made of; none if it is made of leaves."""
        return self.lifetimes_ if self._score.uses_cells else np.empty(0)

    def _asked(self, offset: float) -> Callable[[], Witness]:
        """Return a function that looks up the forest as it is now, for questions about rows."""
        witness = self._witness(offset)
        return lambda: witness

    def _remember(self, explained: Explanations) -> None:
        """See to it that the words of these explanations can be looked up even after the forest has changed."""

    @staticmethod
    def _with_verdicts(explained: Explanations, detected: Detections) -> Explanations:
        has_p_values = not np.isnan(detected.p_values).all()
        return explained.judged(detected.is_anomaly, detected.p_values if has_p_values else None)

    def _witness(self, offset: float) -> Witness:
        """Return the forest as it is now, for questions about rows."""
        from polyaforest.explain import context

        forest, known, times = self.forest_, self.posterior_, self._times_of_cells
        reference = self._reference
        if reference is None:
            reference = self._reference = context.derive(forest, known.world, self._points_kept, self._quantiles)
        return context.Witness(
            forest, known, times, self._score_by(forest, known), offset, reference, None, nullcontext
        )

    @property
    def _feature_names(self) -> list[str]:
        """What to call features: by the names of columns, those of a shingle, or else by their numbers."""
        return feature_names(self) if self._names_of_shingle is None else self._names_of_shingle

    @property
    def _points_kept(self) -> Array | None:
        """The points that the forest holds, if it does."""
        return None

    @property
    def _points_in_turn(self) -> Array | None:
        """The same, in an order that changes little as they come and go."""
        return None

    def _check(self) -> None:
        super()._check()
        if self._quantiles is not None:
            from polyaforest.explain.context import N_QUANTILES

            if len(self._quantiles) != N_QUANTILES or not (np.abs(self._quantiles) <= LARGEST).all():  # or NaN
                raise ValueError(f"array quantiles: it must hold {N_QUANTILES} finite values of each feature")
