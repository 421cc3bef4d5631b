"""The probabilities behind the scores of a forest: masses, densities, leaves, credible intervals and imputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from polyaforest import forest as forests
from polyaforest.forest.credible import Masses, moments
from polyaforest.kernels.arrays import Array
from polyaforest.model.base import ForestModel
from polyaforest.model.fitted import FittedForest, Query, Tabulate
from polyaforest.tables.validation import read_rate, read_rows, read_share, read_times
from polyaforest.util.locks import Guarded
from polyaforest.util.parallel import log_mean_exp

_ROWS_OF_MASSES = 2048  # rows per block of tree masses


class Leaves(NamedTuple):
    """The leaf that contains each row, per tree; both arrays have shape (n_rows, n_estimators)."""

    node: Array  # int32: the node of the leaf, -1 outside
    kind: Array  # int8: a `LeafKind`


class Probabilities(Guarded):
    """The part of `BatchMPF` and `StreamingMPF` that returns probabilities of rows."""

    # of the detector
    n_jobs: int | None
    _model: ForestModel
    _as_given: Callable[[Array], Array]
    _check_fitted: Callable[[], None]

    def _read(self, X: Any, *, allow_missing: bool = False) -> Array:
        raise NotImplementedError

    @property
    def _query(self) -> Query:
        raise NotImplementedError

    def mass(self, X: Any, lifetime: float | Array | None = None, *, return_std: bool = False) -> Any:
        """Return the probability mass around each row, averaged over the trees.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        lifetime : float or array-like of shape (n_lifetimes,), optional
            If None, the mass of the row's leaves. Otherwise the mass of the row's cells in the partition at that time:
            early cells are large, late cells small. For a prior strength near 0 its expectation is a kernel density
            with a Laplace kernel of bandwidth 1 / lifetime.
        return_std : bool, default=False
            Also return the posterior standard deviation of the mass in a random tree, which covers the uncertainty of
            each tree and the disagreement between trees. Needs complete rows and a single lifetime.

        Returns
        -------
        mass : ndarray of shape (n_rows,), or (n_rows, n_lifetimes) for an array of lifetimes
        std : ndarray of shape (n_rows,), if `return_std`
        """
        if return_std:
            parts = [moments(masses) for masses in self._masses(X, lifetime)]
            mean, variance = map(np.concatenate, zip(*parts, strict=True))
            return mean, np.sqrt(variance)
        rows = self._read(X, allow_missing=True)
        if lifetime is None:
            with self._frozen():
                fitted, rows = self._as_scored(rows)
                return fitted.mass(rows, self.n_jobs)
        times = read_times("lifetime", lifetime, self._grown_until)
        ascending, places = np.unique(times, return_inverse=True)
        with self._frozen():
            fitted, rows = self._as_scored(rows)
            logs = fitted.log_cell_masses(rows, ascending, self.n_jobs)
        masses = np.exp(logs)[:, places]
        return masses if np.ndim(lifetime) else masses[:, 0]

    def tree_masses(self, X: Any) -> Array:
        """Return the mass of each row's leaf in every tree, of shape (n_rows, n_estimators)."""
        return self._leaf_values(forests.posterior.mass_table, self._read(X, allow_missing=True), np.transpose)

    def log_density(self, X: Any) -> Array:
        """Return the log of the mean density at each row, over the features that vary.

        The density of a leaf is its mass divided by its volume. Missing values are integrated out.
        """
        rows = self._read(X, allow_missing=True)
        return self._leaf_values(forests.posterior.log_density_table, rows, log_mean_exp)

    def epsilon_level(self, X: Any, phi: float) -> Array:
        """Return the smallest epsilon at which each row is an (epsilon, phi)-anomaly: a quantile of its tree masses.

        Leaf masses depend on the depth of the trees: unlimited trees of 64 rows have leaves of about 1/64, even in
        normal regions. Limit the depth or the lifetime to make epsilon meaningful. `EpsilonPhi` makes this the score.
        """
        rows, phi = self._read(X, allow_missing=True), read_share("phi", phi)
        with self._frozen():
            fitted, rows = self._as_scored(rows)
            return fitted.epsilon_levels(rows, phi, self.n_jobs)

    def leaves(self, X: Any) -> Leaves:
        """Return the leaf of each row in every tree: its node in ``forest_`` and its `LeafKind`."""
        rows = self._read(X)
        with self._frozen():
            fitted, rows = self._as_scored(rows)
            return Leaves(*fitted.leaves(rows, self.n_jobs))

    def impute(self, X: Any, how: str = "mean") -> Array:
        """Return the rows of `X` with missing values (NaN) imputed by the forest, for any setting of `missing`.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        how : {"mean", "mode"}, default="mean"
            "mean" imputes the conditional expectation of each value: the mean of the centres of the cells that may
            contain the row, weighted by mass and by proximity in the observed values. "mode" imputes the centre of the
            heaviest of these cells, so that the imputed values of a row are consistent. A category is always the one
            with the highest score.

        Returns
        -------
        imputed : ndarray of shape (n_rows, n_features)
            Complete rows are unchanged.
        """
        if how not in ("mean", "mode"):
            raise ValueError(f'how must be "mean" or "mode"; got {how!r}')
        self._check_fitted()
        rows = read_rows(self, X, reset=False, allow_missing=True)
        with self._frozen():
            if forests.posterior.is_empty(self._model.forest):
                raise ValueError("an empty forest cannot impute values: learn some rows first")
            return self._as_given(self._model.fitted.impute(rows, how, self.n_jobs))

    def credible_interval(self, X: Any, level: float = 0.9, lifetime: float | None = None) -> Array:
        """Return an equal-tailed credible interval for the mass of each row, by the posterior of a random tree.

        The interval measures the uncertainty of a mass, not the rate of false alarms.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        level : float between 0 and 1, default=0.9
        lifetime : float, optional
            As in `mass`.

        Returns
        -------
        interval : ndarray of shape (n_rows, 2)
            Lower and upper bounds; 0 if too small for a float.
        """
        level = read_rate("level", level)
        return np.concatenate(
            [forests.posterior.intervals(masses, level, self.n_jobs) for masses in self._masses(X, lifetime)]
        )

    def _masses(self, X: Any, lifetime: float | Array | None) -> Iterator[Masses]:
        """Yield the tree masses of rows in blocks, so that a stream can learn in between."""
        rows = self._read(X)
        if np.ndim(lifetime):  # type: ignore[arg-type]
            raise ValueError(f"lifetime must be a single number; got {lifetime!r}")
        time = None if lifetime is None else float(read_times("lifetime", lifetime, self._grown_until)[0])
        for start in range(0, len(rows), _ROWS_OF_MASSES):
            with self._frozen():
                fitted, some = self._as_scored(rows[start : start + _ROWS_OF_MASSES])
                masses = fitted.row_masses(some, time, self.n_jobs)
            yield masses

    @property
    def _grown_until(self) -> float:
        with self._frozen():
            return self._model.fitted.grown_until

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        with self._frozen():
            fitted, rows = self._as_scored(rows)
            return fitted.leaf_values(tabulate, rows, reduce, self.n_jobs)

    def _as_scored(self, rows: Array) -> tuple[FittedForest, Array]:
        """Return the forest as it is now, and rows with the values that it scores."""
        fitted = self._model.fitted
        return fitted, fitted.as_scored(rows, self._query)
