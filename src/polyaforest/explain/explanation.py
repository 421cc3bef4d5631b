"""Explanations of the surprise of rows, in bits and in words.

`forest.explain(X)` gives `Explanations`, one `Explanation` per row. Surprise is -log2 of a probability, on average over
the trees; it is the sum of what each feature adds by being too low or too high, and of what a typical point gets.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.categories import Categories
from polyaforest.core.text import json_shown, label, width

if TYPE_CHECKING:
    from polyaforest.explain.context import CategoryCount, RegionCondition, Snapshot

__all__ = ["Attribution", "ContextWindow", "Explanation", "Explanations"]

_LEAST_BITS = 0.5  # a feature that adds less is not reported, nor is any for a row with no more beyond the typical
_LEAST_SHARE = 0.1  # nor one that adds less than this share of what the first does
_SURE_EXCESS = 1.0  # but a row with this excess has at least one feature reported
_MOST_ATTRIBUTIONS = 5
_OTHER_SIDE = 0.25  # a side with this share of a feature's bits bounds the region too
_MOST_LINES = 8  # features shown
_WIDTH = 96  # of lines of text
_BAR = 20  # width of the longest bar, in characters
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SIDES = ("low", "high")
_MOST_NAMED = 3  # categories named as usual, or as normal
_RARE = 0.05  # share of rows up to which a category is rare
_MANY_BITS = math.log2(1e6)
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # notebooks would typeset names with dollar signs as formulas


class Attribution(NamedTuple):
    """One feature with a large part in a row's surprise."""

    feature: int  # its column
    name: str
    value: Any  # a number, or the text of a category
    bits: float  # what it adds to the surprise of a typical point
    side: str  # "low" or "high"; of a category "new" if it is known from no row, else "rare" or "unusual"
    usual: tuple[Any, ...]  # the range of nine points in ten, or the most common categories
    expected: tuple[Any, ...] | None  # the nearest values that would have been normal; None if none would
    seen: str = ""  # of a category: how often it is known, "seen in 1 of 2,048 rows with merchant = Grocer"

    @property
    def is_category(self) -> bool:
        """Whether the feature is a column of categories."""
        return self.side not in _SIDES

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; `seen` for categories only."""
        facts = self._asdict()
        return facts if self.is_category else {name: fact for name, fact in facts.items() if name != "seen"}


class ContextWindow(NamedTuple):
    """The steps of a time series that lead to the reading explained, oldest first.

    What was expected of the last of them comes from the readings before; it is NaN at earlier ones.
    """

    channels: list[str]
    times: Array  # float64 (n_steps,), NaN if they are not known
    readings: Array  # float64 (n_steps, n_channels)
    mean: Array  # of the readings expected, likewise
    low: Array  # nine in ten were expected between `low` and `high`
    high: Array
    bits: Array  # what each step adds to the surprise, likewise


class _Words(NamedTuple):
    """The lookups that the words of an explanation need."""

    attributions: list[Attribution]
    conditions: list[RegionCondition]
    share: float
    share_interval: tuple[float, float]
    similar: list[tuple[int | str, Array]]
    usual: Array
    common: dict[int, list[str]]  # categories of each column of them, the most common first


@dataclass(eq=False)
class Explanation:
    """The explanation of one row.

    ``parts.sum() == surprise - typical``, and ``parts == low + high``, all in bits. Printed, it is a short report; in a
    notebook, a table.

    Attributes
    ----------
    values : ndarray of shape (n_features,)
        The row; NaN where a value is missing; of objects if some are the texts of categories.
    names : list of str
        The features.
    surprise, typical : float
        Bits of surprise: this row's, and a typical point's.
    low, high, parts : ndarray of shape (n_features,)
        What each feature adds by being low, by being high, and in all.
    is_anomaly : bool
        Whether the forest flags the row.
    p_value : float or None
        The share of normal points that are at least as anomalous, if calibrated.
    attributions : list of Attribution
        The features that matter most, the worst first.
    region : str
        The part of space the row is in, in words, and how many points live there.
    share, share_interval : float, (float, float)
        Those points as a share of all, and an interval that holds the true share with a probability of 90 %.
    similar : list of (key, values)
        The most similar normal points, if the forest keeps points.
    summary : str
        What is odd about the context window that leads to a reading of a time series; empty for other rows.
    context : ContextWindow or None
        That context window, beside what was expected; None for other rows.
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
    ask: Callable[[], Snapshot] | None = field(repr=False)  # the forest, for questions about the row
    summary: str = ""  # what is odd in one sentence, where the detector has one
    context: ContextWindow | None = field(default=None, repr=False)
    row: Array | None = field(default=None, repr=False)  # with codes of categories, and missing values filled in
    categories: Categories | None = field(default=None, repr=False)

    @property
    def parts(self) -> Array:
        """What each feature adds to the surprise of a typical point."""
        return self.low + self.high

    @property
    def attributions(self) -> list[Attribution]:
        """The features that matter most, the worst first."""
        return self._words.attributions

    @property
    def usual(self) -> Array:
        """The range of each feature in which nine points in ten lie, (2, n_features); NaN for categories."""
        return self._words.usual

    @property
    def share(self) -> float:
        """The share of all points that live in the region."""
        return self._words.share

    @property
    def share_interval(self) -> tuple[float, float]:
        """An interval that holds the true share with a probability of 90 %."""
        return self._words.share_interval

    @property
    def similar(self) -> list[tuple[int | str, Array]]:
        """The most similar normal points that the forest holds: their keys and values."""
        return self._words.similar

    @property
    def region(self) -> str:
        """The region in words: "cpu > 93.1 (usual 2–61): about 3 in 10,000 points fall here [1–9 in 10,000]"."""
        conditions = self._words.conditions
        if not conditions:
            return "no feature stands out"
        texts = [self._condition_in_words(k) for k in dict.fromkeys(condition.feature for condition in conditions)]
        return f"{' and '.join(texts)}: {_share_in_words(self.share, self.share_interval)}"

    def fold(self, n_steps: int) -> Array:
        """Return `parts` by time step for a row of `n_steps` consecutive steps: (n_steps, n_channels)."""
        folded: Array = _fold(self.parts[None], n_steps)[0]
        return folded

    def by_step(self) -> Array:
        """Return `parts` by time step for a context window of a time series, oldest first: (n_steps, n_channels).

        They add up to ``surprise - typical``. The bits of a feature go to the steps that take it away from what is
        usual, in proportion: those of a feature that is too high to the steps that raise it, those of one that is too
        low to the steps that lower it. Bits of the phase and the calendar go to the newest step.
        """
        if self.context is None:
            raise ValueError("only explanations of context windows have steps; for shingles see `fold`")
        return self.context.bits

    # ---- looking up -------------------------------------------------------------------------------------------------

    def materialise(self) -> Explanation:
        """Look up all words now, for a row of a stream that is to go on before they are read."""
        self._words  # noqa: B018 - looked up and kept
        return self

    @cached_property
    def _words(self) -> _Words:
        assert self.ask is not None
        snapshot, row = self.ask(), self.values if self.row is None else self.row
        columns = self._columns_to_report()
        seen = {k: snapshot.seen(row, k) for k in columns if self.is_category(k)}
        conditions = self._conditions(snapshot, row, columns, seen)
        share, interval = snapshot.share(conditions)
        expected = dict(zip(columns, snapshot.expected(row, columns), strict=True))
        common = {k: self._texts(snapshot.common(k).tolist()) for k in self._category_columns}
        attributions = [
            self._attribute_to_category(k, common[k], expected[k], seen[k])
            if self.is_category(k)
            else self._attribute_to_number(k, snapshot.usual[:, k], expected[k])
            for k in columns
        ]
        words = _Words(attributions, conditions, share, interval, snapshot.similar(row), snapshot.usual, common)
        self.ask = None  # there is nothing more to say
        return words

    def _conditions(
        self, snapshot: Snapshot, row: Array, columns: list[int], seen: dict[int, CategoryCount | None]
    ) -> list[RegionCondition]:
        """Return the conditions that bound the region of a row, in the order of the columns."""
        sides = []  # those with a substantial share of a feature's bits: both, if a value lies between others
        for k in columns:
            least = max(_OTHER_SIDE * max(self.low[k], self.high[k]), 1e-12)
            pair = () if self.is_category(k) else enumerate((self.low[k], self.high[k]))
            sides += [(k, side) for side, bits in pair if bits >= least]
        features = np.array([k for k, _ in sides], np.int64)
        found = snapshot.conditions(row, features, np.array([side for _, side in sides], np.int64))
        found += [snapshot.same(row, k) for k, known in seen.items() if known is not None]
        return sorted(found, key=lambda condition: columns.index(condition.feature))

    def _attribute_to_number(self, k: int, usual: Array, expected: tuple[float, ...] | None) -> Attribution:
        side = _SIDES[int(self.high[k] >= self.low[k])]
        ends = (float(usual[0]), float(usual[1]))
        return Attribution(k, self.names[k], float(self.values[k]), float(self.parts[k]), side, ends, expected)

    def _attribute_to_category(
        self, k: int, common: list[str], expected: tuple[float, ...] | None, seen: CategoryCount | None
    ) -> Attribution:
        side = "unusual" if seen is None or seen.n > _RARE * seen.n_rows else "rare"
        if seen is not None and seen.given is None and not seen.n:
            side = "new"
        normal = None if expected is None else tuple(self._texts(expected))
        usual = tuple(common[:_MOST_NAMED])
        words = "" if seen is None else self._seen_in_words(seen)
        return Attribution(k, self.names[k], self.values[k], float(self.parts[k]), side, usual, normal, words)

    def _seen_in_words(self, seen: CategoryCount) -> str:
        if seen.given is None:
            rows = f"{seen.n_rows:,} rows"
            if seen.n > _RARE * seen.n_rows:
                return f"common by itself, in {seen.n:,} of {rows}"
            return f"seen in {seen.n:,} of {rows}" if seen.n else f"never seen in {rows}"
        other = f"{self._name(seen.given)} = {self.format_value(seen.given, self.values[seen.given])}"
        return f"seen in {seen.n:,} of {seen.n_rows:,} rows with {other}"

    @property
    def _category_columns(self) -> tuple[int, ...]:
        return () if self.categories is None else self.categories.columns

    def is_category(self, k: int) -> bool:
        """Return whether feature `k` is a column of categories."""
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
        """Return a value of feature `k` in as few digits as tell it from its usual ones; a category as its text."""
        if self.is_category(k):
            return "missing" if value is None else label(value) or '""'
        return _number(float(value), float(self.usual[1, k] - self.usual[0, k]))

    def _listed(self, texts: Sequence[str]) -> str:
        """Return some categories, the first of many."""
        shown = [label(text) or '""' for text in texts[:_MOST_NAMED]]
        more = f" and {len(texts) - len(shown):,} more" if len(texts) > len(shown) else ""
        return ", ".join(shown) + more

    def _range(self, k: int, ends: tuple[float, float]) -> str:
        low, high = (self.format_value(k, end) for end in ends)
        return low if low == high else f"{low} to {high}" if "-" in low + high else f"{low}–{high}"

    def format_usual(self, k: int) -> str:
        """Return the usual range of feature `k`, or its most common categories."""
        if self.is_category(k):
            return self._listed(self._words.common[k])
        return self._range(k, (float(self.usual[0, k]), float(self.usual[1, k])))

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
        """The verdict, how unlikely such a row is, and the bits behind it."""
        word = "Anomalous" if self.is_anomaly else "Normal"
        chance = "" if self.p_value is None else f"; p = {self.p_value:.2g}"
        bits = f"{self.surprise:.1f} bits of surprise, {self.typical:.1f} are usual"
        return f"{word}: {_odds_in_words(self.surprise - self.typical)} ({bits}{chance})"

    def _lines(self) -> tuple[list[list[str]], list[float]]:
        """Return the cells of the features to show, and their bits."""
        by_feature = {attribution.feature: attribution for attribution in self.attributions}
        order = [
            *by_feature,
            *sorted(set(self.candidates.tolist()) - set(by_feature), key=lambda k: (-self.parts[k], k)),
        ]
        shown = order[:_MOST_LINES] if len(order) > _MOST_LINES + 1 else order
        lines = []
        for k in shown:
            attribution = by_feature.get(k)
            expected = self.format_expected(attribution) if attribution is not None and self.is_anomaly else ""
            cells = [self._name(k), self.format_value(k, self.values[k]), f"{self.parts[k]:+.1f}"]
            verdict = (
                "" if attribution is None else self.format_side(attribution) if self.is_anomaly else attribution.side
            )
            lines.append([*cells, verdict, self.format_usual(k), expected])
        bits = [float(self.parts[k]) for k in shown]
        rest = [k for k in range(len(self.names)) if k not in shown]
        if rest:
            others = float(self.parts[rest].sum())
            lines.append([f"{len(rest)} others" if len(rest) > 1 else "1 other", "", f"{others:+.1f}", "", "", ""])
            bits.append(others)
        return lines, bits

    @staticmethod
    def format_side(attribution: Attribution) -> str:
        """Return what is wrong with a value."""
        return attribution.side if attribution.is_category else f"too {attribution.side}"

    def format_expected(self, attribution: Attribution) -> str:
        """Return the values of a feature that would have been normal."""
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
        bars = [_bar(part / most) for part in bits]
        header = ["", "value", "bits", "", "", "usual", "would be normal" if any(line[-1] for line in lines) else ""]
        table = [header] + [[*cells[:3], bar, *cells[3:]] for cells, bar in zip(lines, bars, strict=True)]
        to_right = (False, True, True, False, False, False, False)
        sentences = [*wrap(self.verdict, _WIDTH), *wrap(self.summary, _WIDTH), *wrap(self.region, _WIDTH)]
        report = [*sentences, "", *_aligned(table, to_right)]
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
        """Return everything as plain Python values; None stands for what is not finite."""
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
                name: part if isinstance(part, list) else part.tolist() for name, part in self.context._asdict().items()
            }
        plain: dict[str, Any] = _finite(facts)
        return plain

    def to_json(self, **options: Any) -> str:
        """Return `to_dict` as JSON text; `options` are those of `json.dumps`."""
        return json_shown(json.dumps(self.to_dict(), allow_nan=False, **{"ensure_ascii": False, **options}))

    def __getstate__(self) -> dict[str, Any]:
        self.materialise()  # the forest stays behind
        return {**vars(self), "ask": None}


class Explanations(Sequence[Explanation]):
    """The explanations of some rows: arrays for all of them, and an `Explanation` for each.

    ``parts.sum(axis=1) == surprise - typical``, and ``parts == low + high``, all in bits.

    Attributes
    ----------
    values : ndarray of shape (n_rows, n_features)
        NaN where a value is missing; of objects if some are the texts of categories.
    names : list of str
    surprise : ndarray of shape (n_rows,)
    typical : float
    low, high, parts : ndarray of shape (n_rows, n_features)
    is_anomaly : ndarray of bool, shape (n_rows,)
    p_values : ndarray of shape (n_rows,) or None
    """

    def __init__(
        self,
        values: Array,
        whole: Array,
        names: list[str],
        charges: Array,
        base: float,
        typical: Array,
        candidates: Array,
        ask: Callable[[], Snapshot],
        index: Any = None,
        categories: Categories | None = None,
    ) -> None:
        self.values: Array = values if categories is None else categories.decoded(values)
        self.names, self._rows, self._categories = names, whole, categories
        self._is_given: Array = ~np.isnan(values)
        self.surprise: Array = base + charges.sum(axis=(1, 2))
        self.typical = float(base + typical.sum())
        self.low: Array = charges[:, 0] - typical[0]
        self.high: Array = charges[:, 1] - typical[1]
        self.is_anomaly: Array = np.zeros(len(values), np.bool_)
        self.p_values: Array | None = None
        self._candidates, self._ask, self._index = candidates, ask, index
        self._made: dict[int, Explanation] = {}

    @property
    def parts(self) -> Array:
        """What each feature adds to the surprise of a typical point, (n_rows, n_features)."""
        return self.low + self.high

    def judged(self, is_anomaly: Array, p_values: Array | None) -> Explanations:
        """Set the verdicts on the rows, and return these explanations."""
        self.is_anomaly, self.p_values = is_anomaly, p_values
        for i, explanation in self._made.items():
            explanation.is_anomaly, explanation.p_value = bool(is_anomaly[i]), self._p_value(i)
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
        """Return the explanation of a row, or those of several."""
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
                ask=self._ask,
                row=self._rows[i],
                categories=self._categories,
            )
        return self._made[i]

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def materialise(self) -> Explanations:
        """Look up all words now, for rows of a stream that is to go on before they are read."""
        for explanation in self:
            explanation.materialise()
        return self

    def fold(self, n_steps: int) -> Array:
        """Return `parts` by time step for rows of `n_steps` consecutive steps: (n_rows, n_steps, n_channels)."""
        return _fold(self.parts, n_steps)

    def __str__(self) -> str:
        return "\n\n".join(str(explanation) for explanation in self)

    def __repr__(self) -> str:
        return f"<{len(self)} explanations, {int(self.is_anomaly.sum())} of anomalies>"

    def _repr_html_(self) -> str:
        return "".join(explanation._repr_html_() for explanation in self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict of plain Python values per row."""
        return [explanation.to_dict() for explanation in self]

    def to_json(self, **options: Any) -> str:
        """Return a JSON list, one object per row; `options` are those of `json.dumps`."""
        return json_shown(json.dumps(self.to_dicts(), allow_nan=False, **{"ensure_ascii": False, **options}))

    def to_frame(self) -> Any:
        """Return a pandas frame, one line per row: surprise, typical surprise, verdict, bits of each feature."""
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
        return {**vars(self), "_ask": None}


def read_features(features: Sequence[str | int] | None, names: list[str]) -> Array:
    """Return the columns of the features named, or all of them."""
    if features is None:
        return np.arange(len(names))
    if isinstance(features, str | int):
        raise ValueError(f"features must be a list of names or column numbers, not the single {features!r}")
    return np.array([_column(feature, names) for feature in dict.fromkeys(features)], np.int64)


def _column(feature: str | int, names: list[str]) -> int:
    if isinstance(feature, str):
        if feature in names:
            return names.index(feature)
        close = get_close_matches(feature, names, 1)
        known = ", ".join(map(label, names[:_MOST_LINES])) + (", ..." if len(names) > _MOST_LINES else "")
        raise ValueError(
            f"there is no feature {feature!r}: {f'did you mean {close[0]!r}?' if close else f'there are {known}'}"
        )
    if not -len(names) <= feature < len(names):
        raise ValueError(f"feature {feature} is out of range for {len(names)} features")
    return range(len(names))[feature]


# ---- words -----------------------------------------------------------------------------------------------------------


def _fold(parts: Array, n_steps: int) -> Array:
    n_features = parts.shape[1]
    if n_steps < 1 or n_features % n_steps:
        raise ValueError(f"{n_features} features cannot be folded onto {n_steps} time steps of equally many channels")
    return parts.reshape(len(parts), n_steps, n_features // n_steps)


def _number(value: float, scale: float) -> str:
    """Return a number to a few hundredths of `scale`, without idle zeros."""
    scale = scale if scale > 0 else abs(value)
    if not math.isfinite(value) or scale == 0:
        return f"{value:g}"
    decimals = math.ceil(1.5 - math.log10(scale))
    if abs(value) >= 1e9 * scale or not 1e-6 < abs(value) < 1e9:
        return f"{value:.{max(3, min(decimals + math.ceil(math.log10(abs(value))), 17))}g}" if value else "0"
    decimals = max(decimals, 0)
    text = f"{round(value, decimals) + 0.0:.{decimals}f}"  # adding 0.0 makes a zero of a negative one
    return text.rstrip("0").rstrip(".") if "." in text else text


def _odds_in_words(bits: float) -> str:
    """Return how much less likely than a typical point a row with `bits` more is."""
    if bits < 1:
        return "as likely as a typical point"
    if bits >= _MANY_BITS:
        return "more than a million times less likely than a typical point"
    times = 2.0**bits
    rounded = round(times, 1 - math.floor(math.log10(times)))
    return f"about {rounded:,.0f} times less likely than a typical point"


def _share_in_words(share: float, interval: tuple[float, float]) -> str:
    """Return a share as "n in ten", a hundred, a thousand and so on."""
    whole = 10
    while share * whole < 0.95:
        whole *= 10
    low, high = (_count(end * whole) for end in interval)
    return f"about {_count(share * whole)} in {whole:,} points fall here [{low}–{high} in {whole:,}]"


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 0.95 or number < 0.05 else f"{number:.1f}"


def _bar(share: float) -> str:
    """Return a bar of block characters."""
    eighths = round(8 * _BAR * min(max(share, 0.0), 1.0)) if math.isfinite(share) else 8 * _BAR
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _aligned(table: list[list[str]], to_right: Sequence[bool]) -> list[str]:
    """Return the cells of a table in columns."""
    widths = [max(width(row[c]) for row in table) for c in range(len(to_right))]
    return [
        "  ".join(
            " " * (most - width(cell)) + cell if right else cell + " " * (most - width(cell))
            for cell, most, right in zip(row, widths, to_right, strict=True)
            if most
        ).rstrip()
        for row in table
    ]


def _finite(fact: Any) -> Any:
    """Return `fact` with None in place of numbers that are not finite."""
    if isinstance(fact, dict):
        return {name: _finite(part) for name, part in fact.items()}
    if isinstance(fact, list | tuple):
        return [_finite(part) for part in fact]
    return None if isinstance(fact, float) and not math.isfinite(fact) else fact
