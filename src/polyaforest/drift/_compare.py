"""Compare two samples: one distribution or two, how far apart, where, and which features carry it."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, validate_params

from polyaforest.core.arrays import Array
from polyaforest.core.text import label
from polyaforest.core.validation import feature_names, read_rows, read_seed
from polyaforest.drift._comparison import Comparison

FEWEST = 10  # rows of a sample
_MOST_LAID_OUT = 100_000  # rows that lay out the axes
_MOST_GROWN = 20_000  # rows that trees are grown on


@validate_params(
    {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "max_depth": [Interval(Integral, 1, 14, closed="both")],
        "prior_strength": [Interval(Real, 0, None, closed="neither")],
        "n_permutations": [Interval(Integral, 1, None, closed="left")],
        "block_size": [Interval(Integral, 1, None, closed="left"), None],
        "alpha": [Interval(Real, 0, 1, closed="neither")],
        "least_effect": [Interval(Real, 0, 1, closed="both")],
        "max_regions": [Interval(Integral, 0, None, closed="left")],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
    },
    prefer_skip_nested_validation=True,
)
def compare(
    A: Any,
    B: Any,
    *,
    n_estimators: int = 100,
    max_depth: int = 8,
    prior_strength: float = 10.0,
    n_permutations: int = 199,
    block_size: int | None = None,
    alpha: float = 0.01,
    least_effect: float = 0.01,
    max_regions: int = 5,
    random_state: Any = None,
    n_jobs: int | None = None,
) -> Comparison:
    """Compare two samples: whether they have one distribution or two, how far apart they are, and where.

    Trees cut the rows of both samples without a look at which sample a row is from. Counts of both samples below every
    node then give the evidence, as a Bayes factor, which the labels dealt anew to the same rows calibrate. Features may
    have any scale: only the order of their values counts. A missing value has a place of its own, so a change in how
    many are missing is a change too.

    Parameters
    ----------
    A, B : array-like of shape (n_rows, n_features)
        The samples, NaN where a value is missing. Frames are matched by the names of their columns, which must be the
        same; columns of text are refused.
    n_estimators : int, default=100
        Trees.
    max_depth : int, default=8
        Cuts above any cell.
    prior_strength : float, default=10
        Pseudo-points behind the share that goes left at the first cut; those of deeper cuts grow with the square of the
        depth.
    n_permutations : int, default=199
        How often the labels are dealt anew. The p-value is at least ``1 / (n_permutations + 1)``.
    block_size : int, optional
        For rows in order of time that depend on their neighbours: consecutive rows to keep together. The Bayes factor
        still counts rows as independent; the p-value and the intervals do not.
    alpha : float, default=0.01
        The p-value up to which the samples count as different.
    least_effect : float, default=0.01
        The share of rows below which a difference does not matter.
    max_regions : int, default=5
        The most regions to look for, if the samples differ by more than chance.
    random_state : int, RandomState or None, default=None
        Random seed.
    n_jobs : int or None, default=None
        Threads; the result does not depend on it.

    Returns
    -------
    comparison : Comparison

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> before, after = rng.normal(size=(2, 500, 2))
    >>> after[:100, 0] += 4.0
    >>> result = compare(before, after, random_state=0)
    >>> result.is_changed, round(result.p_value, 3)
    (True, 0.005)
    """
    from polyaforest.drift import _effects, _evidence, _regions
    from polyaforest.drift._axes import Grid

    rows, labels, names = _read(A, B, block_size)
    axes_seed, tree_seed, chance = read_seed(random_state).spawn(3)
    rng = np.random.default_rng(chance)
    laid_out = _drawn(len(rows), _MOST_LAID_OUT, axes_seed)
    grid = Grid.of(rows, rows[laid_out])
    grown = _drawn(len(rows), _MOST_GROWN, axes_seed)
    partitions = _evidence.grow_partitions(grid, grown, n_estimators, max_depth, tree_seed, n_jobs)
    prior = _evidence.Prior(float(prior_strength))
    dealt = _evidence.deal(labels, n_permutations, block_size, rng)
    evidence = _evidence.weigh(partitions, labels, len(names), prior, dealt, n_jobs)
    halves = _effects.split(labels, block_size, rng)
    scores = _effects.log_density_ratios(partitions, halves, prior)
    most = max_regions if evidence.p_value <= alpha else 0
    regions = _regions.find_regions(partitions, grid, rows, halves, names, most)
    return Comparison(
        log_bayes_factor=evidence.log_bayes_factor,
        p_value=evidence.p_value,
        total_variation=_effects.total_variation(scores, halves, regions),
        jensen_shannon=_effects.jensen_shannon(scores, halves),
        regions=regions,
        feature_bits=evidence.by_feature / np.log(2),
        names=names,
        n_rows=(int(labels.sum()), int((labels == 0).sum())),
        n_permutations=int(n_permutations),
        block_size=None if block_size is None else int(block_size),
        alpha=float(alpha),
        least_effect=float(least_effect),
    )


class _Sample(BaseEstimator):
    """One of the samples, for messages about its columns."""

    missing = "marginalise"


def _read(A: Any, B: Any, block_size: int | None) -> tuple[Array, Array, list[str]]:
    """Return the rows of both samples, their labels, 1 for A, and the names of the columns."""
    both, rows = [_Sample(), _Sample()], []
    for name, sample, X in zip("AB", both, (A, B), strict=True):
        try:
            rows.append(read_rows(sample, X, reset=True, allow_missing=True))
        except (TypeError, ValueError) as problem:
            raise type(problem)(f"sample {name}: {problem}") from problem
        if len(rows[-1]) < FEWEST:
            raise ValueError(f"sample {name} has {len(rows[-1])} rows: at least {FEWEST} are needed to compare")
        if block_size is not None and len(rows[-1]) < 4 * block_size:
            raise ValueError(
                f"sample {name} has {len(rows[-1])} rows, fewer than four blocks of {block_size}: "
                "set a smaller block_size"
            )
    order = _matched(*both)
    labels = np.repeat(np.array([1, 0], np.uint8), [len(part) for part in rows])
    return np.concatenate([rows[0], rows[1][:, order]]), labels, feature_names(both[0])


def _matched(a: _Sample, b: _Sample) -> list[int]:
    """Return the columns of B in the order of A's."""
    of_a, of_b = (getattr(sample, "feature_names_in_", None) for sample in (a, b))
    if (of_a is None) != (of_b is None):
        with_names, without = ("A", "B") if of_b is None else ("B", "A")
        raise ValueError(
            f"sample {with_names} has names of columns and sample {without} has none: pass two frames or two arrays"
        )
    if of_a is None or of_b is None:
        if a.n_features_in_ != b.n_features_in_:
            raise ValueError(f"sample A has {a.n_features_in_} columns and sample B has {b.n_features_in_}")
        return list(range(a.n_features_in_))
    known, given = [str(name) for name in of_a], [str(name) for name in of_b]
    for name, one, other in (("B", known, given), ("A", given, known)):
        lacking = [label(column) for column in one if column not in other]
        if lacking:
            more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
            raise ValueError(
                f"sample {name} has no column {', '.join(map(repr, lacking[:5]))}{more}: "
                "both samples need the same columns"
            )
    return [given.index(name) for name in known]


def _drawn(n: int, most: int, seed: np.random.SeedSequence) -> Array:
    """Return the numbers of at most `most` rows, those of lowest priority, ascending."""
    from polyaforest.forest.draws import priorities

    numbers = np.arange(n)
    if n <= most:
        return numbers
    own = priorities(seed.generate_state(1, np.uint64), numbers)[0]
    return np.sort(np.argpartition(own, most)[:most])
