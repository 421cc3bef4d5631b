"""Explanations of scores by a fitted forest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest import forest as forests
from polyaforest.detectors._masses import MassForest
from polyaforest.explain import Explanations, read_features
from polyaforest.forest.score_types import EpsilonPhi
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array, Posterior
from polyaforest.tables.categories import Texts
from polyaforest.tables.validation import LARGEST, feature_names, read_coded

if TYPE_CHECKING:
    from polyaforest.explain.context import Snapshot

_FEW = 16  # rows for which a part of the posterior is enough, and whose text is computed before a stream changes


class PolyaForest(MassForest):
    """Base of `BatchMPF` and `StreamingMPF`."""

    def explain(self, X: Any, features: Sequence[str | int] | None = None) -> Explanations:
        """Explain the score of each row: bits of surprise by feature, and text.

        The surprise is -log2 of a probability, averaged over trees: of the mass of the row's cells at ``lifetimes_``
        if `score_type` is ``"margins"``, ``"typicality"`` or ``"multiscale"``, else of the mass of its leaf.
        ``"margins"`` adds the bits of features outside their margins. For ``"margins"``, ``"typicality"`` and
        ``"log_mass"`` the surprise equals ``-score_samples(X) / log(2)``.

        Each bit is attributed to a feature, for being low or for being high. The attributions of a typical point are
        subtracted; the rest adds up to the surprise beyond the typical, exactly.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            An incomplete row is explained by the mean over its completions, or with ``missing="marginalise"`` after
            `impute`. Missing values are never reported as a cause.
        features : sequence of names or column indices, optional
            Features to report; all by default. The bits of the others still count.

        Returns
        -------
        explanations : Explanations
            A sequence with one `Explanation` per row, and the arrays ``surprise``, ``low``, ``high`` and ``parts``.
            Text is computed on first access; for more than 16 rows of a stream, call `Explanations.materialise` before
            the stream changes.
        """
        self._check_fitted()
        given, texts = read_coded(self, X, reset=False, allow_missing=self._allows_missing)
        explained = self._explained(given, features, X.index if hasattr(X, "iloc") else None, texts=texts)
        is_marginal = self.missing == "marginalise" and np.isnan(given).any()
        is_score = self._score.is_additive and not isinstance(self.score_type, EpsilonPhi) and not is_marginal
        scores = explained.surprise * -np.log(2) if is_score else self._scores(given)
        return self._with_verdicts(explained, self._detected(scores))

    def _explained(
        self,
        given: Array,
        features: Sequence[str | int] | None = None,
        index: Any = None,
        offset: float | None = None,
        texts: Texts = MappingProxyType({}),
    ) -> Explanations:
        """Return explanations of validated rows, without verdicts; `texts` are those of their categories."""
        names = self._feature_names
        candidates, threshold = read_features(features, names), self.offset_ if offset is None else offset
        with self._frozen():
            rows, attributions, base = self._attributions(self._as_scored(given))
            given = self._as_explained(given)
            ask, typical = self._asked(threshold), self._typical_attributions()
            categories = None if self.encoding_ is None else self.encoding_.with_texts(texts)
            if categories is not None:  # as the table has them
                places = categories.places
                given, rows = given[:, places], rows[:, places]
                attributions, typical = attributions[:, :, places], typical[:, places]
            explained = Explanations(
                given.copy(), rows, names, attributions, base, typical, candidates, ask, index, categories
            )
            if len(rows) <= _FEW:
                self._remember(explained)
        return explained

    def _as_explained(self, given: Array) -> Array:
        """Return rows with NaN in place of values that scores ignore."""
        return given

    def _attributions(self, given: Array) -> tuple[Array, Array, float]:
        """Return completed rows, their attributions by side, (n, 2, D), and the base.

        An incomplete row has the mean attributions of its completions, and the nearest completion as its values.
        """
        gaps = forests.posterior.rows_with_gaps(given)
        if self.missing == "marginalise" and gaps.size:
            rows, gaps = self._imputed(given, "mean"), gaps[:0]
        else:
            rows = given.copy()
        completed = self._completions(given[gaps]) if gaps.size else given[:0, None]
        rows[gaps] = completed[:, 0]
        n_more = completed.shape[1] - 1
        whole = np.concatenate([rows, completed[:, 1:].reshape(-1, rows.shape[1])]) if gaps.size else rows
        known = self._known_along(whole[None])
        attributions, base = forests.attribute.attribute_rows(
            self.forest_, known, whole, self._times_of_cells, self.n_jobs
        )
        beyond = self._margin_attributions(whole)
        if beyond is not None:
            attributions += beyond
        if n_more:
            others = attributions[len(rows) :].reshape(len(gaps), n_more, *attributions.shape[1:])
            attributions[gaps] = (attributions[gaps] + others.sum(axis=1)) / completed.shape[1]
        return rows, attributions[: len(rows)], base

    def _margin_attributions(self, rows: Array) -> Array | None:
        """Return the bits of features outside their margins, (n, 2, D); None if there are no margins."""
        return None

    def _known_along(self, rows: Array) -> Posterior:
        """Return the posterior, of all nodes or only of those on the paths of rows: (T, n, D), or (1, n, D) for all.

        Both have the same bits where they are defined.
        """
        if self._posterior is not None or rows.shape[1] > _FEW or forests.posterior.is_empty(self.forest_):
            return self.posterior_
        known = self._paths
        if known is None:
            known = self._paths = forests.posterior.underived(self.forest_)
        forests.posterior.derive_along(self.forest_, self.prior_, rows, self._times_of_cells, known)
        return known

    def _typical_attributions(self) -> Array:
        """Return the attributions of a typical point by side and feature, (2, D), in bits."""
        from polyaforest.explain import context

        if self._typical is None or self._typical[0] != self._score:
            points = self._points_in_turn
            attributions = (
                context.typical_of_trees(self.forest_, self.posterior_, self._times_of_cells)
                if points is None
                else context.typical_of_points(self.forest_, points, self._known_along, self._times_of_cells)
            )
            self._typical = self._score, attributions
        return self._typical[1]

    @property
    def _times_of_cells(self) -> Array:
        """The times at which the score evaluates cells; empty for scores of leaves."""
        return self.lifetimes_ if self._score.uses_cells else np.empty(0)

    def _asked(self, offset: float) -> Callable[[], Snapshot]:
        """Return a function that returns a snapshot of the current forest."""
        snapshot = self._snapshot(offset)
        return lambda: snapshot

    def _remember(self, explained: Explanations) -> None:
        """Ensure that the text of these explanations is computed before the forest changes."""

    @staticmethod
    def _with_verdicts(explained: Explanations, detected: Detections) -> Explanations:
        has_p_values = not np.isnan(detected.p_values).all()
        return explained.set_verdicts(detected.is_anomaly, detected.p_values if has_p_values else None)

    def _snapshot(self, offset: float) -> Snapshot:
        """Return a snapshot of the current forest, to explain rows with."""
        from polyaforest.explain import context

        forest, known, times = self.forest_, self.posterior_, self._times_of_cells
        reference, categories = self._reference, self.encoding_
        rows = None if categories is None else self._rows_known
        if reference is None:
            reference = context.derive(forest, known.world, self._points_kept, self._quantiles)
            if categories is not None:
                reference = reference._replace(common=context.common_codes(forest, rows, categories))
            self._reference = reference
        drawn = None if rows is None else lambda: rows
        score = self._score_by(forest, known)
        return context.Snapshot(forest, known, times, score, offset, reference, None, nullcontext, categories, drawn)

    @property
    def _feature_names(self) -> list[str]:
        """Names of the features: of a shingle, of columns, or generic."""
        return feature_names(self) if self._names_of_shingle is None else self._names_of_shingle

    @property
    def _points_kept(self) -> Array | None:
        """The points held; None if the forest holds none."""
        return None

    @property
    def _points_in_turn(self) -> Array | None:
        """The points held, in an order that changes little as points come and go."""
        return None

    def _check_besides_trees(self) -> None:
        super()._check_besides_trees()
        if self._quantiles is not None:
            from polyaforest.explain.context import N_QUANTILES

            if len(self._quantiles) != N_QUANTILES or not (np.abs(self._quantiles) <= LARGEST).all():  # or NaN
                raise ValueError(f"array quantiles: must have {N_QUANTILES} finite values for each feature")
