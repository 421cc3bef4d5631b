"""What a comparison of two samples has found, for people and machines."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.categories import code_of, encode
from polyaforest.core.text import json_shown, label
from polyaforest.core.validation import NamedRows
from polyaforest.drift import _words as words

_MOST_FEATURES = 6  # shown in reports
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # notebooks would typeset names with dollar signs as formulas


class Bound(NamedTuple):
    """A lower bound of a distance, estimated on rows that were not learned from, and its interval of 95 %."""

    value: float
    low: float
    high: float


class Share(NamedTuple):
    """The share of a sample's rows in a region, or how it changed, and its interval of 95 %."""

    value: float
    low: float
    high: float


class Condition(NamedTuple):
    """A condition on one feature: ``low < value <= high``, or missing; of categories, one of some, or none of them."""

    feature: int  # its column
    name: str
    low: float
    high: float
    values: bool  # whether any value fulfils it
    missing: bool  # whether a missing value does
    categories: tuple[str, ...] | None = None  # those that are named, the clearest first; None for numbers
    others: bool = False  # whether it is the categories not named that fulfil it

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
            return is_in | ((column > self.low) & (column <= self.high))  # which NaN is not
        is_named = np.isin(column, [code_of(text) for text in self.categories])
        return np.asarray(is_in | (~is_missing & (is_named != self.others)))

    def __str__(self) -> str:
        return words.condition(self)


class Region(NamedTuple):
    """A region whose share of the rows changed."""

    conditions: tuple[Condition, ...]  # which all hold in it
    before: Share  # of A
    after: Share  # of B
    change: Share  # after - before; the interval allows for the number of regions found

    @property
    def place(self) -> str:
        """The conditions in words: "country = XK and latency > 90"."""
        return words.place(self)

    def holds(self, rows: Any) -> Array:
        """Return which rows lie in the region.

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
        return words.region(self)


def holds(conditions: Sequence[Condition], rows: Array) -> Array:
    """Return which rows fulfil all conditions, given categories by their codes."""
    is_in: Array = np.ones(len(rows), np.bool_)
    for one in conditions:
        is_in = is_in & one.holds_coded(rows[:, one.feature])
    return is_in


def _holds(one: Condition, table: Any) -> Array:
    """Return which rows of a table fulfil a condition; those of a frame by the name of the column."""
    if not hasattr(table, "columns"):
        return one.holds(table[:, one.feature])
    names = [str(name) for name in table.columns]
    if one.name not in names:
        raise ValueError(f"the rows have no column {label(one.name)!r}, on which the region has a condition")
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
        How often labels dealt at random give as much evidence; exact for any number of rows.
    total_variation : Bound
        The share of rows that moved, at the least.
    jensen_shannon : Bound
        The Jensen-Shannon divergence in bits, at the least.
    regions : list of Region
        Where the share of the rows changed, the clearest first.
    feature_bits : ndarray of shape (n_features,)
        What each feature adds to the evidence; the sum is the log Bayes factor in bits.
    names : list of str
        The features.
    n_rows : (int, int)
        The rows of A and of B.
    n_permutations, block_size, alpha, least_effect
        As given to `compare`.
    samples : (str, str)
        What A and B are called in reports.
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
        """Whether chance is ruled out: ``p_value <= alpha``."""
        return self.p_value <= self.alpha

    @property
    def is_small(self) -> bool:
        """Whether what was found to differ is surely less than `least_effect` of the rows."""
        return self.total_variation.high < self.least_effect and not any(
            max(abs(region.change.low), abs(region.change.high)) >= self.least_effect for region in self.regions
        )

    @property
    def is_changed(self) -> bool:
        """Whether the samples differ: by more than chance, and not surely by less than `least_effect`."""
        return self.is_significant and not self.is_small

    # ---- words ------------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """Whether the samples differ, by how much, and how sure that is."""
        sure = [words.p_value(self.p_value, self.n_permutations)]
        if self.block_size is None:
            sure.append(words.odds(self.log_bayes_factor))
        moved = f"at least {words.share(self.total_variation)} of the rows moved"
        if not self.is_significant:
            return f"No change found ({'; '.join(sure)})."
        if self.is_small:
            return f"Too small to matter: {moved}, less than {words.percent(self.least_effect)} ({'; '.join(sure)})."
        return f"Changed: {moved} ({'; '.join(sure)})."

    @property
    def subject(self) -> str:
        """What was compared."""
        both = (f"{label(name)} ({n:,} rows)" for name, n in zip(self.samples, self.n_rows, strict=True))
        n_features = len(self.names)
        return f"{' against '.join(both)}, {n_features} feature{'' if n_features == 1 else 's'}"

    def __str__(self) -> str:
        lines = [self.verdict, self.subject]
        if self.regions:
            lines += ["", "Where:", *(f"  {one}" for one in self.regions)]
        if self.is_significant:
            cells = words.feature_lines(self.names, self.feature_bits.tolist(), _MOST_FEATURES)
            lines += ["", "Bits of evidence, by feature:", *words.aligned(cells)]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as a fragment of HTML, names escaped."""
        parts = [f"<p><b>{html.escape(self.verdict)}</b><br>{html.escape(self.subject)}</p>"]
        if self.regions:
            cells = [(one.place, words.share(one.before), words.share(one.after)) for one in self.regions]
            parts.append(_table(("where", *map(label, self.samples)), cells))
        divergence = "{:.3g} [{:.3g}–{:.3g}]".format(*self.jensen_shannon)
        distances = [("rows that moved (total variation)", words.share(self.total_variation))]
        distances.append(("Jensen–Shannon divergence, bits", divergence))
        parts.append(_table(("distance", "at least"), distances))
        if self.is_significant:
            lines = words.feature_lines(self.names, self.feature_bits.tolist(), _MOST_FEATURES)
            parts.append(_table(("feature", "bits of evidence"), lines))
        return f'<div class="{_NO_MATH}">{"".join(parts)}</div>'

    def _repr_html_(self) -> str:
        return self.to_html()

    # ---- for machines -----------------------------------------------------------------------------------------------

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
    """Return a region as plain values; bounds that are infinite are None."""
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


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of HTML, every cell escaped."""
    head = "".join(f'<th style="text-align:left">{html.escape(cell)}</th>' for cell in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
