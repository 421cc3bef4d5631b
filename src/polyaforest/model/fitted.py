"""A forest at one moment: it scores, completes, weighs and explains rows, and never changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from polyaforest import forest as forests
from polyaforest.explain import Explanations
from polyaforest.forest.credible import Masses
from polyaforest.forest.score_types import EpsilonPhi, Score, epsilon_levels
from polyaforest.forest.thresholds import Detections, ThresholdPolicy
from polyaforest.kernels.arrays import Array, Forest, LeafTable, Posterior, Prior
from polyaforest.tables.categories import Categories, Texts
from polyaforest.util.parallel import ordered_sum, spans

if TYPE_CHECKING:
    from polyaforest.explain.context import HeldPoints, Reference, Snapshot
    from polyaforest.forest.columns import LateColumns
    from polyaforest.forest.margins import Margins
    from polyaforest.forest.pairs import Pairs, RarePair
    from polyaforest.forest.stream import Stream
    from polyaforest.model.sample import CalibrationSample

Tabulate = Callable[[Posterior], LeafTable]
_GAPPY_AT_ONCE = 256  # incomplete rows to complete at a time
NO_TEXTS: Texts = MappingProxyType({})
_FEW = 16  # rows for which a part of the posterior is enough
_MOST_BY_FEW = 8  # rows scored in such calls before the whole posterior pays


class Query(NamedTuple):
    """How to score rows: parameters that a user may change after a fit."""

    score: Score
    epsilon_phi: EpsilonPhi | None
    missing: str
    n_jobs: int | None
    policy: ThresholdPolicy = ThresholdPolicy()

    @property
    def is_marginal(self) -> bool:
        """Whether scores integrate missing values out."""
        return self.missing == "marginalise"

    @property
    def is_additive(self) -> bool:
        """Whether the score is the negative surprise of a row."""
        return self.epsilon_phi is None and self.score.is_additive


class ExplainedRows(NamedTuple):
    """What to explain: validated rows, the features to report, and labels."""

    rows: Array
    names: list[str]
    candidates: Array  # the columns that may be reported
    encoding: Categories | None
    texts: Texts = NO_TEXTS  # of the categories of the rows
    index: Any = None  # of a frame


def with_verdicts(explained: Explanations, detected: Detections) -> Explanations:
    """Return explanations with the results for their rows."""
    has_p_values = not np.isnan(detected.p_values).all()
    return explained.set_verdicts(detected.is_anomaly, detected.p_values if has_p_values else None)


class FittedForest(ABC):
    """The trees of a detector and the rows behind them.

    Whatever it derives from the trees is computed on first use.
    """

    grids: ClassVar[dict[str, Array]]  # times at which scores evaluate cells, in units of the weighting
    grids_in_files: ClassVar[list[Array]]  # all grids of such times that files may contain
    imputing_times: ClassVar[Array]  # times at which imputation evaluates cells, in the same units

    def __init__(self, forest: Forest, prior: Prior, lifetimes: Array, quantiles: Array | None) -> None:
        self.forest, self.prior, self.lifetimes = forest, prior, lifetimes
        self._quantiles = quantiles  # of the fitted rows, for the usual ranges
        self._posterior: Posterior | None = None
        self._paths: Posterior | None = None  # the posterior of the nodes on the paths of explained rows
        self._n_scored_few = 0  # rows scored with a posterior along their paths
        self._moments: Any = None
        self._typical: dict[Score, Array] = {}

    @classmethod
    def grid(cls, score: Score) -> Array:
        """Return the times at which a score evaluates cells; scores of leaves have a default."""
        return cls.grids.get(score, cls.grids["multiscale"])

    # ---- rows -------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def rows(self) -> Array | None:
        """The rows held, whose categories are known; None if no rows are held."""

    @property
    @abstractmethod
    def donors(self) -> Array | None:
        """Complete rows to take missing values from, if any are kept."""

    @property
    def points(self) -> Array | None:
        """The points that the trees were grown on; None if they are not held."""
        return None

    @property
    def points_in_turn(self) -> Array | None:
        """The points, in an order that changes little as points come and go."""
        return None

    @property
    def held(self) -> HeldPoints | None:
        """The points and their keys."""
        return None

    @property
    def late_columns(self) -> LateColumns | None:
        """The columns without a value in the first rows of a stream; None in other forests."""
        return None

    @property
    def margins(self) -> Margins | None:
        """The margins that `subtract_margins` uses."""
        return None

    @property
    def pairs(self) -> Pairs | None:
        """The rare pairs that `subtract_margins` uses."""
        return None

    def as_scored(self, rows: Array, query: Query) -> Array:
        """Return rows with NaN in place of values that scores ignore."""
        return rows

    def as_explained(self, rows: Array) -> Array:
        """Return rows with NaN in place of values that explanations ignore."""
        return rows

    def subtract_margins(self, scores: Array, rows: Array) -> Array:
        """Subtract the bits of features outside their margins, and of rare pairs, from scores, if there are any."""
        return scores

    def margin_attributions(self, rows: Array) -> Array | None:
        """Return the bits that `subtract_margins` subtracts, (n, 2, D); None if there are no margins."""
        return None

    def rarest_pair(self, row: Array) -> RarePair | None:
        """Return the pair of values of a row, (D,), that costs bits because it is rare; None if there is none."""
        return None

    # ---- derived from the trees -------------------------------------------------------------------------------------

    def posterior(self, n_jobs: int | None = None) -> Posterior:
        """Return log-masses and log-volumes of every node."""
        if self._posterior is None:
            self._posterior = forests.posterior.posterior(self.forest, self.prior, n_jobs=n_jobs)
        return self._posterior

    def _posterior_along(self, rows: Array, times: Array, n_jobs: int | None = None) -> Posterior:
        """Return the posterior, of all nodes or only of those on the paths of rows: (T, n, D), or (1, n, D) for all.

        Both have the same bits where they are defined.
        """
        if self._posterior is not None or rows.shape[1] > _FEW or forests.posterior.is_empty(self.forest):
            return self.posterior(n_jobs)
        if self._paths is None:
            self._paths = forests.posterior.underived(self.forest)
        forests.posterior.derive_along(self.forest, self.prior, rows, times, self._paths)
        return self._paths

    def _posterior_of_few(self, rows: Array, query: Query) -> Posterior:
        """Return the posterior to score a few rows with: of all nodes, or with equal bits only along their paths.

        A stream changes before many rows have been scored, so that the posterior of all nodes would not pay. Threads
        may score at the same time, so each call derives its own part.
        """
        self._n_scored_few += len(rows)
        is_whole = self._posterior is not None or self._n_scored_few > _MOST_BY_FEW
        if is_whole or forests.posterior.is_empty(self.forest) or np.isnan(rows).any():
            return self.posterior(query.n_jobs)
        known = forests.posterior.underived(self.forest)
        forests.posterior.derive_along(self.forest, self.prior, rows[None], self.times_of_cells(query), known)
        return known

    def _second_moments(self, n_jobs: int | None) -> Any:
        """Return the second moments of the posterior."""
        if self._moments is None:
            known = self.posterior(n_jobs)
            self._moments = forests.posterior.second_moments(self.forest, self.prior, known, n_jobs)
        return self._moments

    @property
    def n_categories(self) -> int:
        """The number of categorical columns, which are last."""
        return int(self.forest.n_categories[0])

    @property
    def grown_until(self) -> float:
        """The lifetime that the forest was grown with, read from its leaves because the parameter may have changed."""
        return float(self.forest.time[0, : self.forest.size[0]].max())

    @property
    def unit_of_time(self) -> float:
        """The unit of the lifetimes, derived from them because parameters may have changed."""
        for grid in self.grids_in_files:
            if len(grid) == len(self.lifetimes) and np.allclose(grid / grid[0], self.lifetimes / self.lifetimes[0]):
                return float(self.lifetimes[0] / grid[0])
        return 1.0

    def times_of_cells(self, query: Query) -> Array:
        """Return the times at which the score evaluates cells; empty for scores of leaves."""
        return self.lifetimes if query.score.uses_cells else np.empty(0)

    # ---- scores -----------------------------------------------------------------------------------------------------

    def scores(self, rows: Array, query: Query) -> Array:
        """Return the scores of rows."""
        if query.epsilon_phi is None:
            score = partial(self.row_scores, query=query)
        else:
            score = partial(self.epsilon_levels, phi=query.epsilon_phi.phi, n_jobs=query.n_jobs)
        return self.over_completions(rows, query, score)

    def row_scores(self, rows: Array, query: Query) -> Array:
        """Return the scores of complete rows, and marginal scores of others; `EpsilonPhi` is ignored."""
        known = self._posterior_of_few(rows, query) if len(rows) <= _FEW else self.posterior(query.n_jobs)
        scores = forests.score.row_scores(query.score, self.forest, known, rows, self.lifetimes, query.n_jobs)
        return self.subtract_margins(scores, rows)

    def over_completions(self, rows: Array, query: Query, score: Callable[[Array], Array]) -> Array:
        """Return `score` of rows; with ``missing="impute"``, the mean over the completions of an incomplete row."""
        rows = self.as_scored(rows, query)
        gaps = forests.posterior.rows_with_gaps(rows) if query.missing == "impute" else np.empty(0, np.intp)
        if not gaps.size:
            return score(rows)
        values, is_whole = np.empty(len(rows)), np.ones(len(rows), np.bool_)
        is_whole[gaps] = False
        if is_whole.any():
            values[is_whole] = score(rows[is_whole])
        for span in spans(len(gaps), _GAPPY_AT_ONCE):
            some = gaps[span]
            completed = self._completions(rows[some], query.n_jobs)
            each = score(completed.reshape(-1, rows.shape[1])).reshape(completed.shape[:2])
            values[some] = ordered_sum(each.T) / completed.shape[1]
        return values

    def _completions(self, rows: Array, n_jobs: int | None) -> Array:
        """Return rows with missing values imputed from each of K donors, (n, K, D).

        Without donors K is 1: the values are imputed from the forest, or stay missing if it is empty.
        """
        donors = self.donors
        if donors is not None and len(donors):
            return forests.imputation.completions(rows, donors, self.n_categories)
        return (rows if forests.posterior.is_empty(self.forest) else self.impute(rows, "mode", n_jobs))[:, None]

    # ---- probabilities ----------------------------------------------------------------------------------------------

    def mass(self, rows: Array, n_jobs: int | None) -> Array:
        """Return the mean mass of the leaves of rows."""
        table = forests.posterior.mass_table(self.posterior(n_jobs))
        return forests.posterior.leaf_means(self.forest, table, rows, n_jobs)

    def log_cell_masses(self, rows: Array, times: Array, n_jobs: int | None) -> Array:
        """Return the log of the mean mass of the cells of rows at ascending times, (n, n_times)."""
        logs: Array = forests.score.log_cell_masses(self.forest, self.posterior(n_jobs), rows, times, n_jobs)
        return logs

    def leaf_values(
        self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array], n_jobs: int | None
    ) -> Array:
        """Reduce the table values of the leaves of `rows`, (n_trees, n), over the trees."""
        table = tabulate(self.posterior(n_jobs))
        return forests.posterior.leaf_values(self.forest, table, rows, reduce, n_jobs)

    def epsilon_levels(self, rows: Array, phi: float, n_jobs: int | None) -> Array:
        """Return the `phi`-quantile over trees of the mass of each row's leaf."""
        table = forests.posterior.mass_table
        return self.leaf_values(table, rows, lambda masses: epsilon_levels(masses, phi), n_jobs)

    def row_masses(self, rows: Array, time: float | None, n_jobs: int | None) -> Masses:
        """Return the mass of each row's leaf, or of its cell at a time, by every tree, and its second moment."""
        known, spread = self.posterior(n_jobs), self._second_moments(n_jobs)
        return forests.posterior.row_masses(self.forest, known, spread, rows, time, n_jobs)

    def leaves(self, rows: Array, n_jobs: int | None) -> tuple[Array, Array]:
        """Return node and `LeafKind` of the leaf of each row in each tree, both (n, T)."""
        return forests.posterior.leaf_kinds(self.forest, self.posterior(n_jobs), rows, n_jobs)

    def impute(self, rows: Array, how: str, n_jobs: int | None) -> Array:
        """Return rows with missing values imputed from the cells that may contain them."""
        times = np.unique(np.minimum(self.imputing_times * self.unit_of_time, self.grown_until))
        codes = forests.score.known_categories(self.forest, self.rows) if self.n_categories else []
        filled: Array = forests.score.impute(self.forest, self.posterior(n_jobs), rows, times, how, n_jobs, codes)
        return filled

    # ---- explanations -----------------------------------------------------------------------------------------------

    def explain(self, given: ExplainedRows, query: Query, offset: float) -> Explanations:
        """Return explanations of rows, without verdicts; `offset` is the threshold."""
        rows, attributions, base = self._attributions(self.as_scored(given.rows, query), query)
        shown, typical = self.as_explained(given.rows), self._typical_attributions(query)
        snapshot, encoding = self.snapshot(query, offset, given.encoding), given.encoding
        if encoding is not None:  # as the table has them
            encoding = encoding.with_texts(given.texts)
            places = encoding.places
            shown, rows = shown[:, places], rows[:, places]
            attributions, typical = attributions[:, :, places], typical[:, places]
        own = shown.copy(), rows, given.names, attributions, base, typical
        return Explanations(*own, given.candidates, snapshot, given.index, encoding)

    def snapshot(self, query: Query, offset: float, encoding: Categories | None) -> Snapshot:
        """Return this forest with a score and a threshold, to answer questions about explained rows."""
        from polyaforest.explain.context import Snapshot

        score = partial(self.scores, query=query._replace(n_jobs=None))
        return Snapshot(self, score, self.times_of_cells(query), offset, encoding)

    @cached_property
    def reference(self) -> Reference:
        """The distribution of the points, that rows are compared with."""
        from polyaforest.explain import context

        reference = context.derive(self.forest, self.posterior().world, self.points, self._quantiles)
        if not self.n_categories:
            return reference
        return reference._replace(common=context.common_codes(self.forest, self.rows))

    def _attributions(self, given: Array, query: Query) -> tuple[Array, Array, float]:
        """Return completed rows, their attributions by side, (n, 2, D), and the base.

        An incomplete row has the mean attributions of its completions, and the nearest completion as its values.
        """
        gaps = forests.posterior.rows_with_gaps(given)
        if query.is_marginal and gaps.size:
            rows, gaps = self.impute(given, "mean", query.n_jobs), gaps[:0]
        else:
            rows = given.copy()
        completed = self._completions(given[gaps], query.n_jobs) if gaps.size else given[:0, None]
        rows[gaps] = completed[:, 0]
        n_more = completed.shape[1] - 1
        whole = np.concatenate([rows, completed[:, 1:].reshape(-1, rows.shape[1])]) if gaps.size else rows
        times = self.times_of_cells(query)
        known = self._posterior_along(whole[None], times, query.n_jobs)
        attributions, base = forests.attribute.attribute_rows(self.forest, known, whole, times, query.n_jobs)
        beyond = self.margin_attributions(whole)
        if beyond is not None:
            attributions += beyond
        if n_more:
            others = attributions[len(rows) :].reshape(len(gaps), n_more, *attributions.shape[1:])
            attributions[gaps] = (attributions[gaps] + others.sum(axis=1)) / completed.shape[1]
        return rows, attributions[: len(rows)], base

    def _typical_attributions(self, query: Query) -> Array:
        """Return the attributions of a typical point by side and feature, (2, D), in bits."""
        from polyaforest.explain import context

        if query.score not in self._typical:
            points, times = self.points_in_turn, self.times_of_cells(query)
            self._typical[query.score] = (
                context.typical_of_trees(self.forest, self.posterior(query.n_jobs), times)
                if points is None
                else context.typical_of_points(self.forest, points, partial(self._posterior_along, times=times), times)
            )
        return self._typical[query.score]


class FittedCounts(FittedForest):
    """Mondrian processes, which count rows, and a sample of these rows."""

    grids: ClassVar[dict[str, Array]] = {"multiscale": np.geomspace(8, 128, 5)}
    grids_in_files: ClassVar[list[Array]] = [*grids.values()]
    imputing_times: ClassVar[Array] = np.array([32.0, 64.0])

    def __init__(
        self,
        forest: Forest,
        prior: Prior,
        lifetimes: Array,
        quantiles: Array | None,
        sample: CalibrationSample | None,
    ) -> None:
        super().__init__(forest, prior, lifetimes, quantiles)
        self._sample = sample

    @property
    def rows(self) -> Array | None:
        """The sampled rows."""
        return None if self._sample is None else self._sample.rows

    @property
    def donors(self) -> Array | None:
        """Completed rows of the sample."""
        return None if self._sample is None else self._sample.donors


class FittedStream(FittedForest):
    """The trees and points of a stream as they are now; the stream leaves its arrays to this before it changes."""

    grids: ClassVar[dict[str, Array]] = {
        "multiscale": np.geomspace(0.5, 5, 5),
        "typicality": np.geomspace(0.25, 16, 7),
        "margins": np.geomspace(0.25, 16, 7),
    }
    grids_in_files: ClassVar[list[Array]] = [*grids.values(), np.geomspace(0.25, 4, 5)]  # the last: version 1
    imputing_times: ClassVar[Array] = np.array([8.0, 16.0])

    def __init__(self, stream: Stream, quantiles: Array | None) -> None:
        super().__init__(stream.forest, stream.rules.prior, stream.lifetimes, quantiles)
        self._stream = stream.twin()

    @property
    def rows(self) -> Array | None:
        """The points held."""
        return self.points

    @property
    def points(self) -> Array | None:
        """The points held, by order of arrival; None in a summary."""
        return self._stream.rows if self._stream.keeps_points else None

    @property
    def points_in_turn(self) -> Array | None:
        """The points held, ordered so that a new point of a full window takes the place of the oldest."""
        return forests.stream_rows.ring(self._stream) if self._stream.keeps_points else None

    @property
    def donors(self) -> Array | None:
        """Some of the points held."""
        stream = self._stream
        return stream.points.values[stream.some_held(forests.imputation.MOST)] if stream.keeps_points else None

    @property
    def held(self) -> HeldPoints | None:
        """The points held and their keys; None in a summary."""
        from polyaforest.explain.context import HeldPoints

        stream = self._stream
        if not stream.keeps_points:
            return None
        return HeldPoints(stream.rows, stream.store.held_keys, stream.columns.is_unknown)

    @property
    def grown_until(self) -> float:
        """The lifetime of the trees."""
        return super().grown_until if self._stream.is_frozen else float(self._stream.rules.plan.lifetime)

    @property
    def late_columns(self) -> LateColumns:
        """The unknown and young columns of the stream."""
        return self._stream.columns

    @property
    def margins(self) -> Margins | None:
        """The margins of single features."""
        return self._stream.penalties.margins

    @property
    def pairs(self) -> Pairs | None:
        """The rare pairs of values."""
        return self._stream.penalties.pairs

    def as_scored(self, rows: Array, query: Query) -> Array:
        """Return rows without the values of unknown and young columns."""
        return forests.stream_rows.as_scored(self._stream, rows, is_marginal=query.is_marginal)

    def as_explained(self, rows: Array) -> Array:
        """Return rows with NaN in unknown and young columns."""
        columns = self._stream.columns
        return np.where(columns.is_unknown | columns.is_young, np.nan, rows)

    def subtract_margins(self, scores: Array, rows: Array) -> Array:
        """Subtract the bits of features outside their margins, and of rare pairs, from scores."""
        return self._stream.penalties.subtract(scores, rows)

    def margin_attributions(self, rows: Array) -> Array | None:
        """Return the bits that `subtract_margins` subtracts, (n, 2, D); None without margins."""
        return self._stream.penalties.attributions(rows)

    def rarest_pair(self, row: Array) -> RarePair | None:
        """Return the pair of values of a row that costs bits because it is rare."""
        pairs = self._stream.penalties.pairs
        return None if pairs is None else pairs.rarest(row)
