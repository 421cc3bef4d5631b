"""Compare two samples: one distribution or two, how far apart, where, and which features carry it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from polyaforest.core.arrays import Array
from polyaforest.core.categories import Texts
from polyaforest.core.text import label
from polyaforest.core.validation import categorical_columns, feature_names, read_coded, read_seed
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
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
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
    categorical_features: Any = "from_dtype",
    random_state: Any = None,
    n_jobs: int | None = None,
) -> Comparison:
    """Compare two samples: whether they have one distribution or two, how far apart they are, and where.

    Trees cut the rows of both samples without a look at which sample a row is from. Counts of both samples below every
    node then give the evidence, as a Bayes factor, which the labels dealt anew to the same rows calibrate. Features may
    have any scale: only the order of their values counts. Categories have no order, and one that only one of the
    samples has is a category like any other. A missing value has a place of its own, so a change in how many are
    missing is a change too.

    Parameters
    ----------
    A, B : array-like of shape (n_rows, n_features)
        The samples, NaN where a value is missing. Frames are matched by the names of their columns, which must be the
        same.
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
    categorical_features : "from_dtype", array-like of str, int or bool, or None, default="from_dtype"
        Which columns are categories: those of a categorical type in either sample (not text), those of these names or
        places in A, or, as a mask, those that are True; None for none.
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
    from polyaforest.drift._axes import Coded, Grid

    rows, labels, names, columns, texts = _read(A, B, block_size, categorical_features)
    axes_seed, tree_seed, chance, corners = read_seed(random_state).spawn(4)
    rng = np.random.default_rng(chance)
    laid_out = _drawn(len(rows), _MOST_LAID_OUT, axes_seed)
    grid = Grid.of(rows, rows[laid_out], Coded(columns, texts, np.random.default_rng(corners)))
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

    def __init__(self, categorical_features: Any = None) -> None:
        self.categorical_features = categorical_features


class _Both(NamedTuple):
    """The rows of both samples."""

    rows: Array  # float64 (n, D), A's columns, categories as codes
    labels: Array  # uint8 (n,): 1 for A
    names: list[str]
    columns: tuple[int, ...]  # of categories
    texts: Texts


def _read(A: Any, B: Any, block_size: int | None, categorical: Any) -> _Both:
    """Read both samples."""
    both, parts = [_Sample(categorical), _Sample(categorical)], []
    chosen = _categories_of_both(both, (A, B))
    texts: dict[float, str] = {}
    for name, sample, X, columns in zip("AB", both, (A, B), chosen, strict=True):
        sample.categorical_features = columns
        with _about(name):
            rows, own = read_coded(sample, X, reset=True, allow_missing=True)
        if len(rows) < FEWEST:
            raise ValueError(f"sample {name} has {len(rows)} rows: at least {FEWEST} are needed to compare")
        if block_size is not None and len(rows) < 4 * block_size:
            raise ValueError(
                f"sample {name} has {len(rows)} rows, fewer than four blocks of {block_size}: set a smaller block_size"
            )
        encoding = getattr(sample, "encoding_", None)
        parts.append(rows if encoding is None else rows[:, encoding.places])
        texts |= own
    order = _matched(*both)
    labels = np.repeat(np.array([1, 0], np.uint8), [len(part) for part in parts])
    rows = np.concatenate([parts[0], parts[1][:, order]])
    return _Both(rows, labels, feature_names(both[0]), tuple(chosen[0]), texts)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Say of which sample an error is."""
    try:
        yield
    except (TypeError, ValueError) as problem:
        raise type(problem)(f"sample {name}: {problem}") from problem


def _categories_of_both(both: Sequence[_Sample], tables: Sequence[Any]) -> list[list[int]]:
    """Return which columns of each sample are categories: the same, though frames may have them in another order.

    By type, those are that have a categorical type in either sample; otherwise those that are named for A.
    """
    is_by_name = all(hasattr(table, "columns") for table in tables)
    is_by_type = isinstance(both[0].categorical_features, str)
    found: list[list[int]] = []
    for name, sample, X in zip("AB", both, tables, strict=True):
        if not found or is_by_type or not is_by_name:
            with _about(name):
                found.append(list(categorical_columns(sample, X)))
    if not is_by_name:
        return found
    names = [[str(name) for name in table.columns] for table in tables]
    wanted = {own[k] for own, columns in zip(names, found, strict=False) for k in columns}
    return [[k for k, name in enumerate(own) if name in wanted] for own in names]


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
