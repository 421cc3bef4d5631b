"""Explanations of scores by a fitted forest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest import forest as forests
from polyaforest.core.arrays import Array
from polyaforest.core.score import EpsilonPhi
from polyaforest.core.validation import LARGEST, feature_names
from polyaforest.decision.thresholds import Detections
from polyaforest.estimators._masses import MassForest
from polyaforest.explain import Explanations, read_features

if TYPE_CHECKING:
    from polyaforest.explain.context import Witness

_FEW = 16  # rows of a stream whose explanations are looked up at once


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
            Words are looked up on first use. A stream that has learned since can no longer be asked: see
            `Explanations.settle`, which is called automatically for a few rows.
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
            witness = self._witness(threshold)
            is_at_once = witness.watching is not nullcontext and len(rows) <= _FEW
            if is_at_once:  # the forest cannot change until all is looked up
                witness = witness._replace(watching=nullcontext)
            charges, base = forests.attribute.attribute_rows(
                witness.forest, witness.known, rows, witness.lifetimes, self.n_jobs
            )
            explained = Explanations(rows, names, charges, base, candidates, witness, index)
            if is_at_once:
                explained.settle()
        return explained

    @staticmethod
    def _with_verdicts(explained: Explanations, detected: Detections) -> Explanations:
        has_p_values = not np.isnan(detected.p_values).all()
        return explained.judged(detected.is_anomaly, detected.p_values if has_p_values else None)

    def _witness(self, offset: float) -> Witness:
        """Return the forest as it is now, for questions about rows."""
        from polyaforest.explain import context

        forest, known, times, score = self.forest_, self.posterior_, self.lifetimes_, self._score
        lifetimes = times if score.uses_cells else np.empty(0)
        if self._reference is None or self._reference[0] is not known or self._reference[1] != score:
            reference = context.derive(forest, known, lifetimes, self._points_kept, self._quantiles)
            self._reference = known, score, reference
        return context.Witness(
            forest, known, lifetimes, self._score_by(forest, known), offset, self._reference[2], None, nullcontext
        )

    @property
    def _feature_names(self) -> list[str]:
        """What to call features: by the names of columns, those of a shingle, or else by their numbers."""
        return feature_names(self) if self._names_of_shingle is None else self._names_of_shingle

    @property
    def _points_kept(self) -> Array | None:
        """The points that the forest holds, if it does."""
        return None

    def _check(self) -> None:
        super()._check()
        if self._quantiles is not None:
            from polyaforest.explain.context import N_QUANTILES

            if len(self._quantiles) != N_QUANTILES or not (np.abs(self._quantiles) <= LARGEST).all():  # or NaN
                raise ValueError(f"array quantiles: it must hold {N_QUANTILES} finite values of each feature")
