"""Compare two samples: one distribution or two, how far apart, where, and which features contribute."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from polyaforest.kernels.arrays import Array
from polyaforest.tables.categories import Texts, code_of, encode
from polyaforest.tables.validation import NamedRows, categorical_columns, feature_names, read_coded, read_seed
from polyaforest.util.text import json_shown, label, width

MIN_ROWS = 10  # of a sample
_MAX_AXIS_ROWS = 100_000  # rows that define the axes
_MAX_TREE_ROWS = 20_000  # rows that trees are grown on
_MAX_FEATURES_SHOWN = 6
_MAX_CATEGORIES_SHOWN = 5  # in a condition
_MAX_CATEGORY_LENGTH = 40
_MIN_ODDS = 3.0  # lower odds favour neither side
_MAX_PLAIN_ODDS = 1e4  # of higher odds only the power of ten is shown
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # notebooks would typeset names with dollar signs as formulas


# ---- comparing -------------------------------------------------------------------------------------------------------


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

    Trees partition the rows of both samples without their labels. The counts of both samples below every node give a
    Bayes factor, and permutations of the labels give a p-value. Only the order of a feature's values matters, not its
    scale. Categories have no order, and a category that only one sample has is a category like any other. A missing
    value is a value of its own, so a change in how many are missing is a change too.

    Parameters
    ----------
    A, B : array-like of shape (n_rows, n_features)
        The samples, NaN where a value is missing. Frames are matched by column names, which must be the same.
    n_estimators : int, default=100
        Number of trees.
    max_depth : int, default=8
        Maximum depth of a tree.
    prior_strength : float, default=10
        Pseudo-points behind the share that goes left at the first cut; they grow with the square of the depth.
    n_permutations : int, default=199
        Number of permutations of the labels. The p-value is at least ``1 / (n_permutations + 1)``.
    block_size : int, optional
        For rows in order of time that depend on their neighbours: number of consecutive rows to permute together. The
        p-value and the intervals account for the dependence; the Bayes factor does not.
    alpha : float, default=0.01
        Highest p-value at which the samples count as different.
    least_effect : float, default=0.01
        Share of rows below which a difference does not matter.
    max_regions : int, default=5
        Maximum number of regions to report. None are searched unless the difference is significant.
    categorical_features : "from_dtype", array-like of str, int or bool, or None, default="from_dtype"
        Columns that are categories: those of a categorical type in either sample (not text), or names, positions in A
        or a mask; None for no column.
    random_state : int, RandomState or None, default=None
        Random seed.
    n_jobs : int or None, default=None
        Number of threads; the result does not depend on it.

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
    from polyaforest.drift import evidence as measure
    from polyaforest.drift.regions import find_regions

    rows, labels, names, columns, texts = _read(A, B, block_size, categorical_features)
    row_seed, tree_seed, permutation_seed, corner_seed = read_seed(random_state).spawn(4)
    rng = np.random.default_rng(permutation_seed)
    coded = measure.Coded(columns, texts, np.random.default_rng(corner_seed))
    grid = measure.Grid.of(rows, rows[_subsample(len(rows), _MAX_AXIS_ROWS, row_seed)], coded)
    tree_rows = _subsample(len(rows), _MAX_TREE_ROWS, row_seed)
    partitions = measure.grow_partitions(grid, tree_rows, n_estimators, max_depth, tree_seed, n_jobs)
    prior = measure.SplitPrior(float(prior_strength))
    permuted = measure.permute_labels(labels, n_permutations, block_size, rng)
    evidence = measure.weigh(partitions, labels, len(names), prior, permuted, n_jobs)
    halves = measure.split(labels, block_size, rng)
    scores = measure.log_density_ratios(partitions, halves, prior)
    n_regions = max_regions if evidence.p_value <= alpha else 0
    regions = find_regions(partitions, grid, rows, halves, names, n_regions)
    return Comparison(
        log_bayes_factor=evidence.log_bayes_factor,
        p_value=evidence.p_value,
        total_variation=measure.total_variation(scores, halves, [region.change for region in regions]),
        jensen_shannon=measure.jensen_shannon(scores, halves),
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


class _Samples(NamedTuple):
    """The rows of both samples."""

    rows: Array  # float64 (n, D), A's columns, categories as codes
    labels: Array  # uint8 (n,): 1 for A
    names: list[str]
    columns: tuple[int, ...]  # of categories
    texts: Texts


def _read(A: Any, B: Any, block_size: int | None, categorical: Any) -> _Samples:
    """Read both samples."""
    both, parts = [_Sample(categorical), _Sample(categorical)], []
    chosen = _categorical_columns(both, (A, B))
    texts: dict[float, str] = {}
    for name, sample, X, columns in zip("AB", both, (A, B), chosen, strict=True):
        sample.categorical_features = columns
        with _naming_sample(name):
            rows, own = read_coded(sample, X, reset=True, allow_missing=True)
        if len(rows) < MIN_ROWS:
            raise ValueError(f"sample {name} has {len(rows)} rows: at least {MIN_ROWS} are needed to compare")
        if block_size is not None and len(rows) < 4 * block_size:
            raise ValueError(
                f"sample {name} has {len(rows)} rows, fewer than four blocks of {block_size}: set a smaller block_size"
            )
        encoding = getattr(sample, "encoding_", None)
        parts.append(rows if encoding is None else rows[:, encoding.places])
        texts |= own
    order = _match_columns(*both)
    labels = np.repeat(np.array([1, 0], np.uint8), [len(part) for part in parts])
    rows = np.concatenate([parts[0], parts[1][:, order]])
    return _Samples(rows, labels, feature_names(both[0]), tuple(chosen[0]), texts)


@contextmanager
def _naming_sample(name: str) -> Iterator[None]:
    """Name the sample in the message of an error."""
    try:
        yield
    except (TypeError, ValueError) as problem:
        raise type(problem)(f"sample {name}: {problem}") from problem


def _categorical_columns(both: Sequence[_Sample], tables: Sequence[Any]) -> list[list[int]]:
    """Return which columns of each sample are categories; frames may have them in a different order.

    By type, a column is one if it has a categorical type in either sample; otherwise the choice for A holds for both.
    """
    is_by_name = all(hasattr(table, "columns") for table in tables)
    is_by_type = isinstance(both[0].categorical_features, str)
    found: list[list[int]] = []
    for name, sample, X in zip("AB", both, tables, strict=True):
        if not found or is_by_type or not is_by_name:
            with _naming_sample(name):
                found.append(list(categorical_columns(sample, X)))
    if not is_by_name:
        return found
    names = [[str(name) for name in table.columns] for table in tables]
    wanted = {own[k] for own, columns in zip(names, found, strict=False) for k in columns}
    return [[k for k, name in enumerate(own) if name in wanted] for own in names]


def _match_columns(a: _Sample, b: _Sample) -> list[int]:
    """Return the columns of B in the order of A's."""
    of_a, of_b = (getattr(sample, "feature_names_in_", None) for sample in (a, b))
    if (of_a is None) != (of_b is None):
        with_names, without = ("A", "B") if of_b is None else ("B", "A")
        raise ValueError(
            f"sample {with_names} has column names and sample {without} does not: pass two frames or two arrays"
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


def _subsample(n: int, most: int, seed: np.random.SeedSequence) -> Array:
    """Return the numbers of at most `most` of `n` rows, ascending."""
    from polyaforest.forest.draws import priorities

    numbers = np.arange(n)
    if n <= most:
        return numbers
    own = priorities(seed.generate_state(1, np.uint64), numbers)[0]
    return np.sort(np.argpartition(own, most)[:most])


# ---- results ---------------------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """A lower bound of a distance, estimated on held-out rows, and its 95 % interval."""

    value: float
    low: float
    high: float


class Share(NamedTuple):
    """The share of a sample's rows in a region, or how it changed, and its 95 % interval."""

    value: float
    low: float
    high: float


class Condition(NamedTuple):
    """A condition on one feature: ``low < value <= high``, or missing; for categories, one of some, or not."""

    feature: int  # its column
    name: str
    low: float
    high: float
    values: bool  # whether any value fulfils it
    missing: bool  # whether a missing value does
    categories: tuple[str, ...] | None = None  # those that are named, the clearest first; None for numbers
    others: bool = False  # whether the categories not named fulfil it instead

    @property
    def is_one_value(self) -> bool:
        """Whether it holds for a single value, `high`: no number lies between the bounds."""
        return self.values and math.isfinite(self.high) and math.nextafter(self.low, math.inf) == self.high

    def holds(self, column: Any) -> Array:
        """Return which values of the feature fulfil the condition."""
        if self.categories is None:
            return self.holds_coded(np.asarray(column, np.float64))
        return self.holds_coded(encode(column)[0])

    def holds_coded(self, column: Array) -> Array:
        """Return which values fulfil the condition, given categories by their codes."""
        is_missing: Array = np.isnan(column)
        is_in = is_missing if self.missing else np.zeros(len(column), np.bool_)
        if not self.values:
            return is_in
        if self.categories is None:
            return is_in | ((column > self.low) & (column <= self.high))  # False for NaN
        is_named = np.isin(column, [code_of(text) for text in self.categories])
        return np.asarray(is_in | (~is_missing & (is_named != self.others)))

    def __str__(self) -> str:
        name, has_low, has_high = label(self.name), math.isfinite(self.low), math.isfinite(self.high)
        if not self.values:
            return f"{name} is missing"
        if self.categories == () or (self.categories is None and not has_low and not has_high):
            return f"{name} is not missing"
        if self.categories is not None:
            words = f"{name} {_named(self.categories, self.others)}"
        elif self.is_one_value:
            words = f"{name} = {self.high:.15g}"
        elif has_low and has_high:
            words = f"{self.low:.15g} < {name} ≤ {self.high:.15g}"
        else:
            words = f"{name} > {self.low:.15g}" if has_low else f"{name} ≤ {self.high:.15g}"
        return f"({words} or missing)" if self.missing else words


def _named(categories: Sequence[str], others: bool) -> str:
    """Return a choice of categories: "= XK", "is one of DE, FR", "is not DE"."""
    named = ", ".join(map(category, categories[:_MAX_CATEGORIES_SHOWN]))
    n_more = len(categories) - _MAX_CATEGORIES_SHOWN
    if len(categories) == 1:
        return f"is not {named}" if others else f"= {named}"
    return f"is {'none' if others else 'one'} of {named}{f' and {n_more} more' if n_more > 0 else ''}"


def category(text: str) -> str:
    """Return a category for reports, in quotes unless its ends are clear.

    Examples
    --------
    >>> category("XK"), category(""), category("New York, NY"), category(" a ")
    ('XK', "''", "'New York, NY'", "' a '")
    """
    is_clear = text and text == text.strip() and not any(mark in text for mark in ",;:'\"=")
    shown = label(text, _MAX_CATEGORY_LENGTH)
    return shown if is_clear else f"'{shown}'"


class Region(NamedTuple):
    """A region whose share of the rows changed."""

    conditions: tuple[Condition, ...]  # all hold in it
    before: Share  # of A
    after: Share  # of B
    change: Share  # after - before; the interval is corrected for the number of regions found

    @property
    def place(self) -> str:
        """The conditions in words: "country = XK and latency > 90"."""
        return " and ".join(map(str, self.conditions))

    def holds(self, rows: Any) -> Array:
        """Return which rows fall in the region.

        Parameters
        ----------
        rows : array-like or frame of shape (n_rows, n_features)
            A table with the columns compared; frames are matched by name.
        """
        table = rows if hasattr(rows, "columns") or isinstance(rows, np.ndarray) else np.array(rows, dtype=object)
        is_in: Array = np.ones(len(table), np.bool_)
        for one in self.conditions:
            is_in = is_in & _holds(one, table)
        return is_in

    def __str__(self) -> str:
        return f"{self.place}: from {percent(self.before.value)} to {_with_interval(self.after)}"


def _holds(one: Condition, table: Any) -> Array:
    """Return which rows of a table fulfil a condition; match columns of a frame by name."""
    if not hasattr(table, "columns"):
        return one.holds(table[:, one.feature])
    names = [str(name) for name in table.columns]
    if one.name not in names:
        raise ValueError(f"the rows have no column {label(one.name)!r}, which the region has a condition on")
    k = names.index(one.name)
    if isinstance(table, NamedRows):
        is_coded = table.categories is not None and k in table.categories.columns
        return one.holds_coded(table.values[:, k]) if is_coded else one.holds(table.values[:, k])
    return one.holds(table.iloc[:, k] if hasattr(table, "iloc") else table[:, k])


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`: whether two samples have one distribution or two, how far apart they are, and where.

    Printed, it is a short report; in a notebook, a table.

    Attributes
    ----------
    log_bayes_factor : float
        Natural logarithm of the Bayes factor, two distributions against one: positive if the samples differ.
    p_value : float
        How often permuted labels give as much evidence; exact for any number of rows.
    total_variation : Bound
        The share of rows that moved, at the least.
    jensen_shannon : Bound
        The Jensen-Shannon divergence in bits, at the least.
    regions : list of Region
        Where the share of the rows changed, the clearest first.
    feature_bits : ndarray of shape (n_features,)
        What each feature adds to the evidence; the sum is the log Bayes factor in bits.
    names : list of str
        Names of the features.
    n_rows : (int, int)
        Number of rows of A and of B.
    n_permutations, block_size, alpha, least_effect
        As given to `compare`.
    samples : (str, str)
        Names of A and B in reports.
    """

    log_bayes_factor: float
    p_value: float
    total_variation: Bound
    jensen_shannon: Bound
    regions: list[Region]
    feature_bits: Array = field(repr=False)
    names: list[str] = field(repr=False)
    n_rows: tuple[int, int]
    n_permutations: int
    block_size: int | None
    alpha: float
    least_effect: float
    samples: tuple[str, str] = ("A", "B")

    @property
    def odds(self) -> float:
        """The odds of two distributions against one, if both are as likely beforehand."""
        return math.exp(min(self.log_bayes_factor, 709.0))

    @property
    def is_significant(self) -> bool:
        """Whether ``p_value <= alpha``."""
        return self.p_value <= self.alpha

    @property
    def is_small(self) -> bool:
        """Whether the difference found is surely less than `least_effect` of the rows."""
        return self.total_variation.high < self.least_effect and not any(
            max(abs(region.change.low), abs(region.change.high)) >= self.least_effect for region in self.regions
        )

    @property
    def is_changed(self) -> bool:
        """Whether the samples differ: significantly, and not surely by less than `least_effect`."""
        return self.is_significant and not self.is_small

    @property
    def verdict(self) -> str:
        """Whether the samples differ, by how much, and how sure that is."""
        sure = _p_value(self.p_value, self.n_permutations)
        if self.block_size is None:
            sure = f"{sure}; {odds_text(self.log_bayes_factor)}"
        moved = f"at least {_with_interval(self.total_variation)} of the rows moved"
        if not self.is_significant:
            return f"No change found ({sure})."
        if self.is_small:
            return f"Too small to matter: {moved}, less than {percent(self.least_effect)} ({sure})."
        return f"Changed: {moved} ({sure})."

    @property
    def subject(self) -> str:
        """What was compared."""
        both = (f"{label(name)} ({n:,} rows)" for name, n in zip(self.samples, self.n_rows, strict=True))
        n_features = len(self.names)
        return f"{' against '.join(both)}, {n_features} feature{'' if n_features == 1 else 's'}"

    def _feature_lines(self) -> list[tuple[str, str]]:
        """Return the features with the most bits of evidence, and the sum of the others."""
        bits = self.feature_bits.tolist()
        order = sorted(range(len(bits)), key=lambda k: -bits[k])
        n_shown = _MAX_FEATURES_SHOWN if len(order) > _MAX_FEATURES_SHOWN + 1 else len(order)
        lines, rest = [(label(self.names[k]), f"{bits[k]:+.1f}") for k in order[:n_shown]], order[n_shown:]
        return [*lines, (f"{len(rest)} others", f"{sum(bits[k] for k in rest):+.1f}")] if rest else lines

    def __str__(self) -> str:
        lines = [self.verdict, self.subject]
        if self.regions:
            lines += ["", "Where:", *(f"  {one}" for one in self.regions)]
        if self.is_significant:
            cells = self._feature_lines()
            widths = [max(width(line[c]) for line in cells) for c in (0, 1)]
            lines += ["", "Bits of evidence, by feature:"]
            lines += [f"  {name}{' ' * (widths[0] - width(name))}  {bits:>{widths[1]}}" for name, bits in cells]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as a fragment of HTML, names escaped."""
        parts = [f"<p><b>{html.escape(self.verdict)}</b><br>{html.escape(self.subject)}</p>"]
        if self.regions:
            cells = [(one.place, _with_interval(one.before), _with_interval(one.after)) for one in self.regions]
            parts.append(_table(("where", *map(label, self.samples)), cells))
        divergence = "{:.3g} [{:.3g}–{:.3g}]".format(*self.jensen_shannon)
        distances = [("rows that moved (total variation)", _with_interval(self.total_variation))]
        distances.append(("Jensen–Shannon divergence, bits", divergence))
        parts.append(_table(("distance", "at least"), distances))
        if self.is_significant:
            parts.append(_table(("feature", "bits of evidence"), self._feature_lines()))
        return f'<div class="{_NO_MATH}">{"".join(parts)}</div>'

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain Python values."""
        return {
            "changed": self.is_changed,
            "verdict": self.verdict,
            "p_value": self.p_value,
            "log_bayes_factor": self.log_bayes_factor,
            "total_variation": self.total_variation._asdict(),
            "jensen_shannon": self.jensen_shannon._asdict(),
            "regions": [_region_to_dict(one) for one in self.regions],
            "features": [
                {"name": name, "bits": bits} for name, bits in zip(self.names, self.feature_bits.tolist(), strict=True)
            ],
            "samples": [{"name": name, "rows": n} for name, n in zip(self.samples, self.n_rows, strict=True)],
            "n_permutations": self.n_permutations,
            "block_size": self.block_size,
            "alpha": self.alpha,
            "least_effect": self.least_effect,
        }

    def to_json(self, **options: Any) -> str:
        """Return `to_dict` as JSON text; `options` are those of `json.dumps`."""
        return json_shown(json.dumps(self.to_dict(), allow_nan=False, **{"ensure_ascii": False, **options}))


def _region_to_dict(region: Region) -> dict[str, Any]:
    """Return a region as plain values; infinite bounds are None."""
    conditions = [
        {
            "feature": one.name,
            "low": one.low if math.isfinite(one.low) else None,
            "high": one.high if math.isfinite(one.high) else None,
            "values": one.values,
            "missing": one.missing,
            **({} if one.categories is None else {"categories": list(one.categories), "others": one.others}),
        }
        for one in region.conditions
    ]
    shares = {name: getattr(region, name)._asdict() for name in ("before", "after", "change")}
    return {"words": str(region), "conditions": conditions, **shares}


# ---- numbers as text -------------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """Return a share in per cent, with two digits where they matter.

    Examples
    --------
    >>> percent(0.0021), percent(0.0634), percent(0.5), percent(0.00001), percent(0.0), percent(0.9996)
    ('0.21 %', '6.3 %', '50 %', '<0.01 %', '0 %', '99.96 %')
    """
    return f"{_amount(share)} %"


def _amount(share: float) -> str:
    if 0 < share < 5e-5:
        return "<0.01"
    if share > 0.99:
        return f"{100 * share:.2f}".rstrip("0").rstrip(".")
    digits = 2 if share < 0.00995 else 1 if share < 0.0995 else 0
    text = f"{100 * share:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _with_interval(one: Share | Bound) -> str:
    """Return a share with its interval: "6 % [5–7 %]"."""
    return f"{percent(one.value)} [{_amount(one.low)}–{_amount(one.high)} %]"


def odds_text(log_bayes_factor: float) -> str:
    """Return the evidence as odds, for the side that it favours.

    Examples
    --------
    >>> odds_text(21.0), odds_text(-2.0), odds_text(0.3)
    ('odds of 10^9 : 1 for two distributions', 'odds of 7.4 : 1 for one distribution', 'no evidence either way')
    """
    size = abs(log_bayes_factor)
    if size < math.log(_MIN_ODDS):
        return "no evidence either way"
    side = "two distributions" if log_bayes_factor > 0 else "one distribution"
    if size >= math.log(_MAX_PLAIN_ODDS):
        return f"odds of 10^{math.floor(size / math.log(10) + 1e-9)} : 1 for {side}"
    times = math.exp(size)
    return f"odds of {times:.2g} : 1 for {side}" if times < 99.5 else f"odds of {times:,.0f} : 1 for {side}"


def _p_value(value: float, n_permutations: int) -> str:
    """Return a p-value, or "p ≤" the smallest possible one."""
    least = 1 / (n_permutations + 1)
    return f"p ≤ {least:.2g}" if value <= least * (1 + 1e-9) else f"p = {value:.2g}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of HTML, every cell escaped."""
    head = "".join(f'<th style="text-align:left">{html.escape(cell)}</th>' for cell in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
