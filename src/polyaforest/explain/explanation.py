"""Explanations of scores, in bits and as text.

`forest.explain(X)` returns `Explanations`, with one `Explanation` per row. The surprise of a row is -log2 of a
probability, averaged over trees: the surprise of a typical point plus the bits of each feature, for being low or high.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from polyaforest.explain import words
from polyaforest.explain.parts import MOST_LINES, SIDES, Attribution, ContextWindow
from polyaforest.kernels.arrays import Array
from polyaforest.tables.categories import Categories
from polyaforest.util import numbers
from polyaforest.util.text import json_shown, label

if TYPE_CHECKING:
    from polyaforest.explain.context import CategoryCount, RegionCondition, Snapshot

__all__ = ["Explanation", "Explanations"]

_LEAST_BITS = 0.5  # features with fewer bits are not reported, and rows with a smaller excess report no feature
_LEAST_SHARE = 0.1  # features with a smaller share of the largest attribution are not reported
_SURE_EXCESS = 1.0  # rows with this excess report at least one feature
_MOST_ATTRIBUTIONS = 5
_OTHER_SIDE = 0.25  # a side with this share of a feature's bits also bounds the region
_MOST_ROWS = 20  # shown in a notebook
_WIDTH = 96  # characters per line of text
_MOST_NAMED = 3  # categories listed as usual or as normal
_RARE = 0.05  # a category in at most this share of rows is rare
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # notebooks would typeset names with dollar signs as formulas


class _Words(NamedTuple):
    """The values that the text of an explanation is made from."""

    attributions: list[Attribution]
    conditions: list[RegionCondition]
    share: float
    share_interval: tuple[float, float]
    similar: list[tuple[int | str, Array]]
    usual: Array
    medians: Array  # of each feature
    common: dict[int, list[str]]  # categories of each categorical column, most common first


@dataclass(eq=False)
class Explanation:
    """Explanation of the score of one row.

    ``print(explanation)`` shows a short report; notebooks show a table. All numbers are bits:
    ``parts == low + high`` and ``parts.sum() == surprise - typical``.

    Attributes
    ----------
    values : ndarray of shape (n_features,)
        The row; NaN where a value is missing. Of dtype object if it contains texts of categories.
    names : list of str
        Names of the features.
    surprise, typical : float
        Surprise of the row, and of a typical point.
    low, high, parts : ndarray of shape (n_features,)
        Contribution of each feature for being low, for being high, and in total, beyond that of a typical point.
    is_anomaly : bool
        Whether the row is flagged.
    p_value : float or None
        The p-value of the row, if the detector is calibrated.
    attributions : list of Attribution
        The features with the largest contributions, largest first; at most 5.
    region : str
        Description of the region that contains the row, and of the share of points in it.
    share, share_interval : float, (float, float)
        The share of points in the region, and its 90 % credible interval.
    similar : list of (key, values)
        The most similar normal points, if the forest holds points.
    summary : str
        What is unusual about the context window of a time series; for other rows the pair of values that rarely occurs,
        such as "currency = USD with country = DE: 2 of 2,031 rows". Empty if there is none.
    context : ContextWindow or None
        That context window and its forecast; None for other rows.
    """

    values: Array
    names: list[str]
    surprise: float
    typical: float
    low: Array
    high: Array
    is_anomaly: bool
    p_value: float | None
    candidates: Array = field(repr=False)  # the columns that may be reported
    snapshot: Snapshot | None = field(repr=False)  # the forest, until the text is computed
    summary: str = ""
    context: ContextWindow | None = field(default=None, repr=False)
    row: Array | None = field(default=None, repr=False)  # the row with codes of categories, imputed
    categories: Categories | None = field(default=None, repr=False)

    @property
    def parts(self) -> Array:
        """Contribution of each feature to the surprise, beyond that of a typical point."""
        return self.low + self.high

    @property
    def attributions(self) -> list[Attribution]:
        """The features with the largest contributions, largest first."""
        return self._words.attributions

    @property
    def readings(self) -> list[Attribution]:
        """The attributions by column of the table, largest first.

        For a context window, these are the channels with their newest reading, `usual` and `median` of the forecast,
        and the bits of all steps. For other rows they are `attributions`.
        """
        context = self.context
        if context is None:
            return self.attributions
        bits = context.bits.sum(axis=0)
        order = np.argsort(-bits, kind="stable")[:_MOST_ATTRIBUTIONS]
        shown = [int(c) for c in order if bits[c] >= max(_LEAST_BITS, _LEAST_SHARE * bits[order[0]])]
        return [self._reading(context, c, float(bits[c])) for c in shown or order[:1].tolist()]

    @staticmethod
    def _reading(context: ContextWindow, c: int, bits: float) -> Attribution:
        value, (low, median, high) = float(context.readings[-1, c]), context.band(c)
        side = SIDES[int(value > median)]
        is_count = context.is_count is not None and bool(context.is_count[c])
        return Attribution(c, context.channels[c], value, bits, side, (low, high), None, "", median, is_count)

    @property
    def usual(self) -> Array:
        """The range of nine points in ten for each feature, (2, n_features); NaN for categories."""
        return self._words.usual

    @property
    def share(self) -> float:
        """The share of points in the region."""
        return self._words.share

    @property
    def share_interval(self) -> tuple[float, float]:
        """The 90 % credible interval of the share."""
        return self._words.share_interval

    @property
    def similar(self) -> list[tuple[int | str, Array]]:
        """Keys and values of the most similar normal points that the forest holds."""
        return self._words.similar

    @property
    def region(self) -> str:
        """The region as text: "cpu > 93.1 (usual 2–61): about 3 in 10,000 points fall here [1–9 in 10,000]"."""
        conditions = self._words.conditions
        if not conditions:
            return "no feature stands out"
        texts = [self._condition_in_words(k) for k in dict.fromkeys(condition.feature for condition in conditions)]
        return f"{' and '.join(texts)}: {words.share_of_points(self.share, self.share_interval)}"

    def fold(self, n_steps: int) -> Array:
        """Return `parts` by time step, if the row consists of `n_steps` consecutive steps: (n_steps, n_channels)."""
        folded: Array = _fold(self.parts[None], n_steps)[0]
        return folded

    def by_step(self) -> Array:
        """Return `parts` by time step of a context window, oldest first: (n_steps, n_channels).

        They add up to ``surprise - typical``. The bits of a high feature are shared among the steps that raise it, in
        proportion; the bits of a low feature among the steps that lower it. Bits of the phase and of the calendar go
        to the newest step.
        """
        if self.context is None:
            raise ValueError("by_step needs the explanation of a context window; for shingles see `fold`")
        return self.context.bits

    # ---- looking up -------------------------------------------------------------------------------------------------

    def describe_pair(self) -> None:
        """Set the summary if a pair of values is rare."""
        pair = None if self.snapshot is None or self.row is None else self.snapshot.rarest_pair(self.row)
        if pair is None:
            return
        name, given = self._name(pair.first), f"{self._name(pair.second)} = {self._text_of(pair.second)}"
        if self.is_category(pair.first):
            what = f"{name} = {self._text_of(pair.first)}"
        else:
            ends = (numbers.number(end, abs(end)) for end in (pair.low, pair.high))
            low, high = (end if math.isfinite(bound) else "" for end, bound in zip(ends, pair[2:4], strict=True))
            what = f"{name} {f'{low}–{high}' if low and high else f'up to {high}' if high else f'above {low}'}"
        self.summary = f"{what} with {given}: {pair.n:,} of {pair.n_rows:,} rows"

    def _text_of(self, k: int) -> str:
        """Return the category of the row in column `k`, which may be imputed."""
        assert self.row is not None
        return label(self._texts([float(self.row[k])])[0]) or '""'

    def materialise(self) -> Explanation:
        """Compute the text now, and release the copy of the forest that it needs."""
        self._words  # noqa: B018 - computed and cached
        return self

    @cached_property
    def _words(self) -> _Words:
        assert self.snapshot is not None
        snapshot, row = self.snapshot, self.values if self.row is None else self.row
        columns = self._columns_to_report()
        seen = {k: snapshot.seen(row, k) for k in columns if self.is_category(k)}
        conditions = self._conditions(snapshot, row, columns, seen)
        share, interval = snapshot.share(conditions)
        expected = dict(zip(columns, snapshot.expected(row, columns), strict=True))
        common = {k: self._texts(snapshot.common(k).tolist()) for k in self._category_columns}
        attributions = [
            self._attribute_to_category(k, common[k], expected[k], seen[k])
            if self.is_category(k)
            else self._attribute_to_number(k, snapshot, expected[k])
            for k in columns
        ]
        bands = np.array([snapshot.band(k) for k in range(len(self.names))]).T
        similar = snapshot.similar(row)
        found = _Words(attributions, conditions, share, interval, similar, bands[[0, 2]], bands[1], common)
        self.snapshot = None  # release the forest
        return found

    def _conditions(
        self, snapshot: Snapshot, row: Array, columns: list[int], seen: dict[int, CategoryCount | None]
    ) -> list[RegionCondition]:
        """Return the conditions that bound the region of a row, in the order of the columns."""
        sides = []  # sides with a substantial share of the bits: both, if a value lies between clusters
        for k in columns:
            least = max(_OTHER_SIDE * max(self.low[k], self.high[k]), 1e-12)
            pair = () if self.is_category(k) else enumerate((self.low[k], self.high[k]))
            sides += [(k, side) for side, bits in pair if bits >= least]
        features = np.array([k for k, _ in sides], np.int64)
        found = snapshot.conditions(row, features, np.array([side for _, side in sides], np.int64))
        found += [snapshot.same(row, k) for k, known in seen.items() if known is not None]
        return sorted(found, key=lambda condition: columns.index(condition.feature))

    def _attribute_to_number(self, k: int, snapshot: Snapshot, expected: tuple[float, ...] | None) -> Attribution:
        value, (low, median, high) = float(self.values[k]), snapshot.band(k)
        side = SIDES[int(self.high[k] >= self.low[k])]
        if numbers.is_beyond(value, low, high):
            side = SIDES[int(value > high)]
        elif value != median:
            side = SIDES[int(value > median)]
        is_count = snapshot.is_count(k)
        return Attribution(
            k, self.names[k], value, float(self.parts[k]), side, (low, high), expected, "", median, is_count
        )

    def _attribute_to_category(
        self, k: int, common: list[str], expected: tuple[float, ...] | None, seen: CategoryCount | None
    ) -> Attribution:
        side = "unusual" if seen is None or seen.n > _RARE * seen.n_rows else "rare"
        if seen is not None and seen.given is None and not seen.n:
            side = "new"
        normal = None if expected is None else tuple(self._texts(expected))
        usual = tuple(common[:_MOST_NAMED])
        frequency = "" if seen is None else self._seen_in_words(seen)
        return Attribution(k, self.names[k], self.values[k], float(self.parts[k]), side, usual, normal, frequency)

    def _seen_in_words(self, seen: CategoryCount) -> str:
        if seen.given is None:
            rows = f"{seen.n_rows:,} rows"
            if seen.n > _RARE * seen.n_rows:
                return f"common on its own, in {seen.n:,} of {rows}"
            return f"seen in {seen.n:,} of {rows}" if seen.n else f"never seen in {rows}"
        other = f"{self._name(seen.given)} = {self.format_value(seen.given, self.values[seen.given])}"
        return f"seen in {seen.n:,} of {seen.n_rows:,} rows with {other}"

    @property
    def _category_columns(self) -> tuple[int, ...]:
        return () if self.categories is None else self.categories.columns

    def is_category(self, k: int) -> bool:
        """Return whether feature `k` is categorical."""
        return k in self._category_columns

    def _texts(self, codes: Sequence[float]) -> list[str]:
        """Return the texts of categories."""
        return [] if self.categories is None else [str(self.categories.text_of(code)) for code in codes]

    def _columns_to_report(self) -> list[int]:
        attribution = self.parts[self.candidates]
        worst_first = np.argsort(-attribution, kind="stable")[:_MOST_ATTRIBUTIONS]
        if not len(worst_first) or self.surprise - self.typical < _LEAST_BITS:
            return []
        largest = attribution[worst_first[0]]
        is_reported = (attribution >= _LEAST_BITS) & (attribution >= _LEAST_SHARE * largest)
        is_reported[worst_first[0]] |= largest > 0 and self.surprise - self.typical >= _SURE_EXCESS
        return [int(self.candidates[k]) for k in worst_first if is_reported[k]]

    # ---- words ------------------------------------------------------------------------------------------------------

    def _name(self, k: int) -> str:
        """Return the printable name of feature `k`."""
        return label(self.names[k])

    def format_value(self, k: int, value: Any) -> str:
        """Format a value of feature `k` with as many digits as its usual range needs; a category as its text."""
        if self.is_category(k):
            return "missing" if value is None else label(value) or '""'
        return numbers.number(float(value), self._scale(k))

    def _scale(self, k: int) -> float:
        """Return the scale at which feature `k` is printed: its usual range, or less if its value is near a bound."""
        bounds = [*self.usual[:, k].tolist(), *self._bounds.get(k, ())]
        return numbers.scale_of(float(self.values[k]), bounds, float(self.usual[1, k] - self.usual[0, k]))

    @cached_property
    def _bounds(self) -> dict[int, tuple[float, ...]]:
        """Ends of the normal ranges of the reported features."""
        return {one.feature: one.expected or () for one in self.attributions if not one.is_category}

    def _listed(self, texts: Sequence[str]) -> str:
        """List categories, shortened."""
        shown = [label(text) or '""' for text in texts[:_MOST_NAMED]]
        more = f" and {len(texts) - len(shown):,} more" if len(texts) > len(shown) else ""
        return ", ".join(shown) + more

    def _range(self, k: int, ends: tuple[float, float]) -> str:
        low, high = (self.format_value(k, end) for end in ends)
        return numbers.between(low, high)

    def format_usual(self, k: int) -> str:
        """Format the usual range of feature `k`, or its most common categories."""
        if self.is_category(k):
            return self._listed(self._words.common[k])
        return self._range(k, (float(self.usual[0, k]), float(self.usual[1, k])))

    def format_typical(self, k: int) -> str:
        """Format the median and the usual range of feature `k`: "about 45 (12–80)"; of a category, the most common."""
        if self.is_category(k):
            return self.format_usual(k)
        low, high, median = (self.format_value(k, end) for end in (*self.usual[:, k], self._words.medians[k]))
        return numbers.band(f"about {median}" if median not in (low, high) else median, low, high)

    def _condition_in_words(self, k: int) -> str:
        if self.is_category(k):
            [seen] = [attribution.seen for attribution in self.attributions if attribution.feature == k]
            return f"{self._name(k)} = {self.format_value(k, self.values[k])} ({seen})"
        bounds = {c.side: self.format_value(k, c.bound) for c in self._words.conditions if c.feature == k}
        usual = f"(usual {self.format_usual(k)})"
        if len(bounds) == 2:
            return f"{bounds[1]} < {self._name(k)} ≤ {bounds[0]} {usual}"
        ((side, bound),) = bounds.items()
        return f"{self._name(k)} {'≤>'[side]} {bound} {usual}"

    @property
    def verdict(self) -> str:
        """The verdict as text, with the odds and the bits."""
        word = "Anomalous" if self.is_anomaly else "Normal"
        chance = "" if self.p_value is None else f"; p = {self.p_value:.2g}"
        bits = f"{self.surprise:.1f} bits of surprise, {self.typical:.1f} are usual"
        return f"{word}: {words.odds(self.surprise - self.typical)} ({bits}{chance})"

    def _lines(self) -> tuple[list[list[str]], list[float]]:
        """Return the cells of the features to show, and their bits."""
        by_feature = {attribution.feature: attribution for attribution in self.attributions}
        order = [
            *by_feature,
            *sorted(set(self.candidates.tolist()) - set(by_feature), key=lambda k: (-self.parts[k], k)),
        ]
        shown = order[:MOST_LINES] if len(order) > MOST_LINES + 1 else order
        lines = []
        for k in shown:
            attribution = by_feature.get(k)
            expected = self.format_expected(attribution) if attribution is not None and self.is_anomaly else ""
            cells = [self._name(k), self.format_value(k, self.values[k]), f"{self.parts[k]:+.1f}"]
            verdict = "" if attribution is None else attribution.direction if self.is_anomaly else attribution.side
            lines.append([*cells, verdict, self.format_usual(k), expected])
        bits = [float(self.parts[k]) for k in shown]
        rest = [k for k in range(len(self.names)) if k not in shown]
        if rest:
            others = float(self.parts[rest].sum())
            lines.append([f"{len(rest)} others" if len(rest) > 1 else "1 other", "", f"{others:+.1f}", "", "", ""])
            bits.append(others)
        return lines, bits

    def format_expected(self, attribution: Attribution) -> str:
        """Format the values of a feature that would be normal."""
        if attribution.expected is None:
            return "no value"
        if attribution.is_category:
            return "unchanged" if attribution.value in attribution.expected else self._listed(attribution.expected)
        low, high = attribution.expected
        return (
            "unchanged" if low <= attribution.value <= high else self._range(attribution.feature, attribution.expected)
        )

    def __str__(self) -> str:
        lines, bits = self._lines()
        most = max([*bits, 1e-300])
        bars = [words.bar(part / most) for part in bits]
        header = ["", "value", "bits", "", "", "usual", "would be normal" if any(line[-1] for line in lines) else ""]
        table = [header] + [[*cells[:3], bar, *cells[3:]] for cells, bar in zip(lines, bars, strict=True)]
        to_right = (False, True, True, False, False, False, False)
        sentences = [*wrap(self.verdict, _WIDTH), *wrap(self.summary, _WIDTH), *wrap(self.region, _WIDTH)]
        report = [*sentences, "", *words.aligned(table, to_right)]
        if self.similar:
            report += ["", "Most similar normal points:"]
            report += [f"  {label(str(key))}: {self._values_in_words(values)}" for key, values in self.similar]
        return "\n".join(report)

    def _values_in_words(self, values: Array) -> str:
        columns = [attribution.feature for attribution in self.attributions] or self.candidates[
            :_MOST_ATTRIBUTIONS
        ].tolist()
        return ", ".join(f"{self._name(k)} {self.format_value(k, values[k])}" for k in columns)

    def _repr_html_(self) -> str:
        lines, bits = self._lines()
        most = max([*bits, 1e-300])
        rows = []
        for cells, part in zip(lines, bits, strict=True):
            width = 0 if not most > 0 else round(100 * min(max(part / most, 0), 1)) if math.isfinite(part) else 100
            bar = f'<div style="background:#d55e00;height:0.8em;width:{width}%"></div>'
            name, value, amount, side, usual, expected = (html.escape(cell) for cell in cells)
            columns = [name, value, amount, f'<div style="width:10em">{bar}</div>', side, usual, expected]
            rows.append("<tr>" + "".join(f'<td style="text-align:left">{column}</td>' for column in columns) + "</tr>")
        heads = "".join(
            f'<th style="text-align:left">{head}</th>'
            for head in ("", "value", "bits", "", "", "usual", "would be normal")
        )
        region = html.escape(self.region)
        summary = f"{html.escape(self.summary)}<br>" if self.summary else ""
        similar = "".join(
            f"<li>{html.escape(label(str(key)))}: {html.escape(self._values_in_words(values))}</li>"
            for key, values in self.similar
        )
        return (
            f'<div class="{_NO_MATH}"><p><b>{html.escape(self.verdict)}</b><br>{summary}{region}</p>'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            + (f"<p>Most similar normal points:</p><ul>{similar}</ul>" if similar else "")
            + "</div>"
        )

    # ---- for machines -----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as plain Python values; None for numbers that are not finite."""
        features = [
            {"name": name, "value": value, "low": low, "high": high, "bits": low + high}
            for name, value, low, high in zip(
                self.names, self.values.tolist(), self.low.tolist(), self.high.tolist(), strict=True
            )
        ]
        facts: dict[str, Any] = {
            "surprise": self.surprise,
            "typical": self.typical,
            "is_anomaly": self.is_anomaly,
            "p_value": self.p_value,
            "region": self.region,
            "share": self.share,
            "share_interval": list(self.share_interval),
            "attributions": [attribution.to_dict() for attribution in self.attributions],
            "features": features,
            "similar": [{"key": key, "values": values.tolist()} for key, values in self.similar],
        }
        if self.summary:
            facts["summary"] = self.summary
        if self.context is not None:
            facts["context"] = {
                name: part.tolist() if isinstance(part, np.ndarray) else part
                for name, part in self.context._asdict().items()
            }
        plain: dict[str, Any] = _finite(facts)
        return plain

    def to_json(self, **options: Any) -> str:
        """Return `to_dict` as JSON; `options` are passed to `json.dumps`."""
        return json_shown(json.dumps(self.to_dict(), allow_nan=False, **{"ensure_ascii": False, **options}))

    def __getstate__(self) -> dict[str, Any]:
        self.materialise()  # the forest is not pickled
        return {**vars(self), "snapshot": None}


class Explanations(Sequence[Explanation]):
    """Explanations of several rows: a sequence of `Explanation`, with their numbers as arrays.

    All numbers are bits: ``parts == low + high`` and ``parts.sum(axis=1) == surprise - typical``.

    Attributes
    ----------
    values : ndarray of shape (n_rows, n_features)
        The rows; NaN where a value is missing. Of dtype object if they contain texts of categories.
    names : list of str
        Names of the features.
    surprise : ndarray of shape (n_rows,)
        Surprise of each row.
    typical : float
        Surprise of a typical point.
    low, high, parts : ndarray of shape (n_rows, n_features)
        Contribution of each feature for being low, for being high, and in total, beyond that of a typical point.
    is_anomaly : ndarray of bool, shape (n_rows,)
        Whether each row is flagged.
    p_values : ndarray of shape (n_rows,) or None
        P-values, if the detector is calibrated.
    """

    def __init__(
        self,
        values: Array,
        whole: Array,
        names: list[str],
        attributions: Array,
        base: float,
        typical: Array,
        candidates: Array,
        snapshot: Snapshot,
        index: Any = None,
        categories: Categories | None = None,
    ) -> None:
        self.values: Array = values if categories is None else categories.decoded(values)
        self.names, self._rows, self._categories = names, whole, categories
        self._is_given: Array = ~np.isnan(values)
        self.surprise: Array = base + attributions.sum(axis=(1, 2))
        self.typical = float(base + typical.sum())
        self.low: Array = attributions[:, 0] - typical[0]
        self.high: Array = attributions[:, 1] - typical[1]
        self.is_anomaly: Array = np.zeros(len(values), np.bool_)
        self.p_values: Array | None = None
        self._candidates, self._index = candidates, index
        self._snapshot = snapshot if len(values) else None  # until each row has its explanation
        self._made: dict[int, Explanation] = {}

    @property
    def parts(self) -> Array:
        """Contribution of each feature to the surprise, beyond that of a typical point, (n_rows, n_features)."""
        return self.low + self.high

    def set_verdicts(self, is_anomaly: Array, p_values: Array | None) -> Explanations:
        """Set the verdicts of the rows, and return these explanations."""
        self.is_anomaly, self.p_values = is_anomaly, p_values
        for i, explanation in self._made.items():
            explanation.is_anomaly, explanation.p_value = bool(is_anomaly[i]), self._p_value(i)
        return self

    def count_in(self, rows: Array) -> Explanations:
        """Count in these rows, (n, D), how often categories occur, not in the sample that the detector holds."""
        if self._snapshot is not None and not self._made:
            self._snapshot = self._snapshot.counting_in(rows)
        return self

    def _p_value(self, i: int) -> float | None:
        return None if self.p_values is None else float(self.p_values[i])

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, i: int) -> Explanation: ...
    @overload
    def __getitem__(self, i: slice) -> list[Explanation]: ...
    def __getitem__(self, i: int | slice) -> Explanation | list[Explanation]:
        """Return the explanation of a row, or a list of them for a slice."""
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        if i not in self._made:
            self._made[i] = Explanation(
                values=self.values[i],
                names=self.names,
                surprise=float(self.surprise[i]),
                typical=self.typical,
                low=self.low[i],
                high=self.high[i],
                is_anomaly=bool(self.is_anomaly[i]),
                p_value=self._p_value(i),
                candidates=self._candidates[self._is_given[i, self._candidates]],
                snapshot=self._snapshot,
                row=self._rows[i],
                categories=self._categories,
            )
            self._made[i].describe_pair()
            if len(self._made) == len(self):
                self._snapshot = None  # release the forest
        return self._made[i]

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def materialise(self) -> Explanations:
        """Compute all texts now, and release the copy of the forest that they need."""
        for explanation in self:
            explanation.materialise()
        return self

    def fold(self, n_steps: int) -> Array:
        """Return `parts` by time step, if rows are `n_steps` consecutive steps: (n_rows, n_steps, n_channels)."""
        return _fold(self.parts, n_steps)

    def __str__(self) -> str:
        return "\n\n".join(str(explanation) for explanation in self)

    def __repr__(self) -> str:
        return f"<{len(self)} explanations, {int(self.is_anomaly.sum())} of anomalies>"

    def _repr_html_(self) -> str:
        if len(self) == 1:
            return self[0]._repr_html_()
        index = range(len(self)) if self._index is None else self._index
        parts = [
            f"<details{' open' * (i == 0)}><summary>Row {html.escape(label(str(index[i])))}: "
            f"{html.escape(explanation.verdict)}</summary>{explanation._repr_html_()}</details>"
            for i, explanation in enumerate(self[:_MOST_ROWS])
        ]
        n_more = len(self) - len(parts)
        more = f"<p>{n_more:,} more: index these explanations, or see to_frame().</p>" if n_more > 0 else ""
        return f'<div class="{_NO_MATH}">{"".join(parts)}{more}</div>'

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return `Explanation.to_dict` of each row."""
        return [explanation.to_dict() for explanation in self]

    def to_json(self, **options: Any) -> str:
        """Return a JSON list with one object per row; `options` are passed to `json.dumps`."""
        return json_shown(json.dumps(self.to_dicts(), allow_nan=False, **{"ensure_ascii": False, **options}))

    def to_frame(self) -> Any:
        """Return a pandas frame with surprise, typical surprise, verdict and bits of each feature per row."""
        try:
            pd = import_module("pandas")
        except ImportError as problem:
            raise ImportError("to_frame needs pandas: pip install pandas, or use to_dicts()") from problem
        frame = pd.DataFrame({"surprise": self.surprise, "typical": self.typical, "is_anomaly": self.is_anomaly})
        if self.p_values is not None:
            frame["p_value"] = self.p_values
        bits = pd.DataFrame(self.parts, columns=[f"bits: {name}" for name in self.names])
        whole = pd.concat([frame, bits], axis=1)
        return whole if self._index is None else whole.set_axis(self._index, axis=0)

    def __getstate__(self) -> dict[str, Any]:
        self.materialise()
        return dict(vars(self))


def _fold(parts: Array, n_steps: int) -> Array:
    n_features = parts.shape[1]
    if n_steps < 1 or n_features % n_steps:
        raise ValueError(f"{n_features} features cannot be divided into {n_steps} time steps")
    return parts.reshape(len(parts), n_steps, n_features // n_steps)


def _finite(fact: Any) -> Any:
    """Return `fact` with None in place of numbers that are not finite."""
    if isinstance(fact, dict):
        return {name: _finite(part) for name, part in fact.items()}
    if isinstance(fact, list | tuple):
        return [_finite(part) for part in fact]
    return None if isinstance(fact, float) and not math.isfinite(fact) else fact
