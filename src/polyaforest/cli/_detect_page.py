"""The report of `detect` as one HTML page: what was read and how, the findings with their reasons, and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from polyaforest.cli import _charts as charts
from polyaforest.cli._page import escaped, page, table
from polyaforest.cli._reports import (
    Finding,
    RunSummary,
    format_p_value,
    format_place,
    format_span,
    format_unscored,
    headline,
    reasons,
)
from polyaforest.forest.grades import GRADES
from polyaforest.forest.severity import certainty
from polyaforest.io.tables import TableChunk, TableColumns, gather
from polyaforest.kernels.arrays import Array
from polyaforest.util.dates import moment
from polyaforest.util.numbers import between, number
from polyaforest.util.text import count, label, listed

if TYPE_CHECKING:
    from polyaforest.explain import Attribution, Explanation
    from polyaforest.io.tables import Table
    from polyaforest.judge.table import Detected

__all__ = ["Profile", "Run", "detect_page"]

_MOST_ROWS = 200_000  # of which the distributions are drawn
_MOST_REASONS, _MOST_PICTURES = 5, 3
_MOST_COLUMNS = 200  # described
_MOST_NAMED = 4  # levels of a column in its description
_ODDS = ("1 normal row in 100 or so", "1 in 1,000", "1 in 10,000", "1 in 100,000", "1 in a million")

_WORDS = {
    "stands out": "The row is rarer than the rows that were compared with it lead one to expect. Whether that is an "
    "error, a rare event or a new kind of row is for you to say.",
    "severity": "How rare: 1 is the least, 2 means as rare as 1 normal row in 1,000, 3 as 1 in 10,000, 4 as 1 in "
    "100,000, 5 as 1 in a million.",
    "certain, likely, borderline": "How sure it is that the row is more than the rarest of so many normal rows: among "
    "all rows, at most 0.01 normal ones (certain) or 0.5 (likely) would be expected to look as unusual.",
    "bits": "The surprise of a row; each additional bit halves the likelihood. The bits of the columns say where the "
    "surprise comes from, and add up to the surprise beyond that of a typical row.",
    "p": "The probability that a normal row looks at least as unusual. p ≈ extrapolates the tail of the scores.",
    "usual": "The middle of the column, and in brackets the range of nine values in ten.",
    "expected": "In a time series: what the readings before this one lead to expect, and the range of nine in ten.",
    "would be normal": "The nearest values that would not have been flagged, with the other values unchanged.",
    "pictures": "Of numbers, how the column is distributed, with the usual range shaded and this value marked; of "
    "categories, how often each occurs; of a time series, the readings that lead up to this one, with the band that "
    "was expected.",
}


class Profile:
    """The rows behind the pictures: all rows of small tables, of large ones a sample."""

    def __init__(self, columns: TableColumns) -> None:
        self.columns = columns
        self._share = 1.0
        self._parts: list[TableChunk] = []
        self._whole: TableChunk | None = None

    def add(self, found: Detected) -> Detected:
        """Add rows, and return them."""
        self._parts.append(_thinned(found.chunk, self._share))
        while sum(len(part.numbers) for part in self._parts) > _MOST_ROWS:
            self._share /= 2
            self._parts = [_thinned(part, self._share) for part in self._parts]
        return found

    @property
    def is_sample(self) -> bool:
        """Whether rows were left out."""
        return self._share < 1

    @property
    def rows(self) -> TableChunk:
        """The rows."""
        if self._whole is None:
            self._whole = gather(self._parts)
        return self._whole

    def values(self, name: str, partition: str | None = None) -> Array:
        """Return the values of a column, of one partition or all."""
        values = self.rows.rows[:, self.columns.used.index(name)]
        return values if partition is None else values[self._is_in(partition)]

    def levels(self, name: str, partition: str | None = None, within: tuple[str, str] | None = None) -> Counter[str]:
        """Count the levels of a column, in one partition or all, in rows with a level of another column or all."""
        codes, texts = self.values(name), self.rows.texts
        is_wanted = ~np.isnan(codes)
        if partition is not None:
            is_wanted &= self._is_in(partition)
        if within is not None:
            other, level = within
            known = [code for code, text in texts.items() if text == level]
            is_wanted &= np.isin(self.values(other), known)
        found, counts = np.unique(codes[is_wanted], return_counts=True)
        return Counter({texts.get(code, "?"): n for code, n in zip(found.tolist(), counts.tolist(), strict=True)})

    def _is_in(self, partition: str) -> Array:
        keys = self.rows.keys
        assert keys is not None
        return np.array([key == partition for key in keys], np.bool_)


def _thinned(chunk: TableChunk, share: float) -> TableChunk:
    """Return a share of the rows, by a hash of their numbers."""
    if share == 1:
        return chunk
    hashes = (chunk.numbers.astype(np.uint64) * np.uint64(2_654_435_761)) % np.uint64(2**32)
    return chunk.select(np.flatnonzero(hashes < share * 2**32))


@dataclass
class Run:
    """What a run of `detect` did, for its report."""

    table: Table
    profile: Profile
    command: str
    seed: int
    notes: list[str] = field(default_factory=list)  # such as why rows were scored as a time series

    @property
    def columns(self) -> TableColumns:
        """The columns and their roles."""
        return self.table.columns


def detect_page(run: Run, summary: RunSummary, findings: Sequence[Finding], input_lines: Sequence[str]) -> str:
    """Return the page."""
    source = run.table.sources[0] if len(run.table.sources) == 1 else f"{len(run.table.sources)} files"
    title = f"Anomalies in {label(source)}"
    parts = [
        f'<p class="lead">{_plain(headline(summary))}</p>',
        f"<p>{_plain(format_unscored(summary))}</p>" if summary.unscored else "",
        _tiles(findings, summary),
        _findings(run, summary, findings),
        "<h2>What was read, and how</h2>",
        "".join(f"<p>{escaped(line)}</p>" for line in [*input_lines, *run.notes]),
        _columns(run),
        "<h2>How to read this page</h2><dl>",
        "".join(f"<dt>{escaped(word)}</dt><dd>{escaped(words)}</dd>" for word, words in _WORDS.items()),
        "</dl><h2>Repeat it</h2>",
        f"<p>The same file and seed give the same findings.</p><pre>{escaped(run.command)}</pre>",
    ]
    sampled = f", pictures from {count(len(run.profile.rows.numbers), 'row')}" if run.profile.is_sample else ""
    return page(title, "".join(parts), f"seed {run.seed}{sampled}.")


def _plain(text: str) -> str:
    return escaped(click.unstyle(text))


def _tiles(findings: Sequence[Finding], summary: RunSummary) -> str:
    """Return how many findings there are of each severity, the most severe first."""
    grades = Counter(finding.severity for finding in findings)
    if not findings or set(grades) == {None}:
        return ""
    noun = "event" if summary.in_events else "row"
    tiles = [
        f'<li class="t{grade}"><b>{grades[grade]:,}</b>severity {grade}<br>'
        f'<span class="muted">as rare as {_ODDS[grade - 1]}</span></li>'
        for grade in reversed(GRADES)
        if grades[grade]
    ]
    shown = f" of the {len(findings):,} worst" if summary.n_findings > len(findings) else ""
    return f'<ul class="tiles" aria-label="{noun}s{shown} by severity">{"".join(tiles)}</ul>'


# ---- findings --------------------------------------------------------------------------------------------------------


class _Head(NamedTuple):
    """A column of the table of findings."""

    name: str
    cell: str  # HTML
    key: str  # to sort by
    is_number: bool = False


def _findings(run: Run, summary: RunSummary, findings: Sequence[Finding]) -> str:
    """Return the table of findings, each with its reasons and pictures, and where they are."""
    if not findings:
        return ""
    rows = [_finding(run, summary, rank, finding) for rank, finding in enumerate(findings, 1)]
    heads = "".join(
        f'<th class="{"number" * head.is_number}"><button type="button">{escaped(head.name)}</button></th>'
        for head in _heads(run, summary, 1, findings[0])
    )
    n_more = summary.n_findings - len(findings)
    more = f"<p>{count(n_more, 'more finding')}: repeat with --out FILE for all.</p>" if n_more > 0 else ""
    what = "events" if summary.in_events else "rows"
    return (
        f"<h2>The {what} that stand out, the worst first</h2>{_where(run, findings)}"
        f'<table class="findings"><thead><tr>{heads}</tr></thead>{"".join(rows)}</table>{more}'
    )


def _heads(run: Run, summary: RunSummary, rank: int, finding: Finding) -> list[_Head]:
    """Return the cells of the first line of a finding."""
    grade, columns = finding.severity, run.columns
    first = finding.number if finding.first is None else finding.first
    rows = (
        f"{first:,}–{finding.last:,}" if finding.n_flagged > 1 and finding.last is not None else f"{finding.number:,}"
    )
    heads = [_Head("#", str(rank), str(rank), True), _Head("row", escaped(rows), str(first))]
    if columns.time is not None:
        heads.append(_Head("time", escaped(format_span(finding)), str(finding.time)))
    for name, value in ((columns.key, finding.partition), (columns.id, finding.id)):
        if name is not None:
            heads.append(_Head(label(name), escaped(label(value or "")), value or ""))
    if grade is not None:
        sure = certainty(finding.bits, summary.n_rows)
        heads.append(_Head("severity", f'<span class="grade g{grade}">{grade}</span> {sure}', str(finding.bits)))
    surprise = "" if finding.explanation is None else f"{finding.explanation.surprise:.1f}"
    heads.append(_Head("bits", surprise, surprise or "0", True))
    p = format_p_value(finding) if finding.p_value is not None and isfinite(finding.p_value) else ""
    heads.append(_Head("p", p.removeprefix("p = ").removeprefix("p "), str(finding.p_value), True))
    return heads


def _finding(run: Run, summary: RunSummary, rank: int, finding: Finding) -> str:
    """Return a finding: a line of facts, then its reasons and pictures."""
    heads = _heads(run, summary, rank, finding)
    cells = "".join(
        f'<td data-name="{escaped(head.name)}" data-key="{escaped(head.key)}" class="{"number" * head.is_number}">'
        f"{head.cell}</td>"
        for head in heads
    )
    why = "" if finding.explanation is None else _why(run, finding, finding.explanation)
    worst = ""
    if finding.n_flagged > 1:
        worst = f'<p class="muted">{finding.n_flagged:,} rows flagged; the worst is row {finding.number:,}:</p>'
    return (
        f'<tbody><tr class="head">{cells}</tr><tr class="why"><td></td>'
        f'<td colspan="{len(heads) - 1}">{worst}{why}</td></tr></tbody>'
    )


def _why(run: Run, finding: Finding, explanation: Explanation) -> str:
    """Return the reasons and the pictures of a finding."""
    shown = explanation.readings[:_MOST_REASONS]
    summary = f"<p>{escaped(explanation.summary)}</p>" if explanation.summary else ""
    if not shown:
        summary += "".join(f"<p>{_plain(line)}</p>" for line in reasons(explanation)[bool(explanation.summary) :])
    rows = [_reason(explanation, one) for one in shown]
    heads = ["column", "value", "", "bits", "expected" if explanation.context else "usual", "would be normal"]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    why = table(heads, rows, "reasons") if rows else ""
    missing = f"<p>Without a value: {escaped(listed(finding.missing))}.</p>" if finding.missing else ""
    drawn = [(one, _picture(run, finding, explanation, one)) for one in shown[:_MOST_PICTURES]]
    figures = "".join(
        f"<figure>{picture}<figcaption>{words}</figcaption></figure>" for _, (picture, words) in drawn if picture
    )
    return f'{summary}{why}{missing}<div class="pictures">{figures}</div>'


def _reason(explanation: Explanation, one: Attribution) -> list[str]:
    """Return a reason as the cells of a table."""
    if explanation.context is not None:
        low, high = one.usual
        scale = high - low
        value, normal = number(one.value, scale), ""
        usual = f"about {number(one.median, scale)} ({between(number(low, scale), number(high, scale))})"
    else:
        value = explanation.format_value(one.feature, one.value)
        usual = one.seen or explanation.format_typical(one.feature)
        normal = explanation.format_expected(one)
        normal = normal if normal not in ("unchanged", "no value") else ""
    texts = [escaped(text) for text in (value, one.direction, f"{one.bits:+.1f}", usual, normal)]
    spans = [f'<span class="number">{texts[0]}</span>', texts[1], f'<span class="number">{texts[2]}</span>', *texts[3:]]
    return [f'<span class="name">{escaped(label(one.name))}</span>', *spans]


def _picture(run: Run, finding: Finding, explanation: Explanation, one: Attribution) -> tuple[str, str]:
    """Return the picture of a reason, and its caption; empty if there is none."""
    name, profile, context = one.name, run.profile, explanation.context
    if context is not None:
        c = context.channels.index(name)
        readings, median, low, high = (
            part[:, c] for part in (context.readings, context.median, context.low, context.high)
        )
        words = f"{escaped(label(name))}: the readings up to this one, and the band that was expected"
        return charts.series(readings, median, low, high, name), words
    if name not in run.columns.used:  # a step of a shingle
        name = name.rpartition("[")[0]
        if name not in run.columns.used:
            return "", ""
    n = len(profile.values(name, finding.partition))
    whose = "" if finding.partition is None else f" of {escaped(label(finding.partition))}"
    among = f"{n:,} rows{whose}"
    if not one.is_category:
        values = profile.values(name, finding.partition)
        return charts.distribution(
            values, float(one.value), one.usual, name
        ), f"{escaped(label(name))}, {among}; shaded: the usual range"
    within = _partner(run, explanation, one)
    counts = profile.levels(name, finding.partition, within)
    if within is not None:
        other, level = (escaped(label(text)) for text in within)
        among = f"{counts.total():,} rows{whose} with {other} = {level}"
    return charts.levels(list(counts.items()), str(one.value), name), f"{escaped(label(name))}, {among}"


def _partner(run: Run, explanation: Explanation, one: Attribution) -> tuple[str, str] | None:
    """Return the column and level with which a category is rare, if its reason names one."""
    for name, value in zip(explanation.names, explanation.values.tolist(), strict=True):
        if name in run.columns.categories and name != one.name and f"{label(name)} = {label(str(value))}" in one.seen:
            return name, str(value)
    return None


def _where(run: Run, findings: Sequence[Finding]) -> str:
    """Return where the findings are, over time or by row."""
    times, has_times = run.profile.rows.times, run.columns.time is not None
    if has_times and times is not None and len(times):
        span = float(times.min()), float(times.max())
        ends = [moment(end) for end in span]
    else:
        span = 1.0, float(max(run.table.n_rows, 2))
        ends = [f"row {end:,.0f}" for end in span]
    dots = []
    for finding in findings:
        at = finding.time if run.columns.time is not None and finding.time is not None else float(finding.number)
        dots.append((at, finding.severity, f"{format_place(finding)}"))
    words = f"from {ends[0]} to {ends[1]}; higher is more severe"
    return f'{charts.places(dots, span)}<p class="muted">{escaped(words)}</p>'


# ---- columns ---------------------------------------------------------------------------------------------------------


def _columns(run: Run) -> str:
    """Return what each column holds and how it was used."""
    columns = run.columns
    roles = [
        (columns.time, "times", _described_times(run)),
        (columns.time_of_day, "times of day", "joined with the dates"),
        *((name, "partitions", "each value is scored by itself") for name in columns.keys),
        (columns.id, "row ids", ""),
        (columns.weight, "weights", ""),
        (columns.group, "groups", "p-values are calibrated by group"),
    ]
    rows = [(name, kind, words) for name, kind, words in roles if name and name not in columns.used]
    for name in columns.used:
        is_category = name in columns.categories
        rows.append((name, "categories" if is_category else "numbers", _described(run, name, is_category)))
    rows += [(name, "not used", reason) for name, reason in columns.skipped.items()]
    cells = [[f"<b>{escaped(label(name))}</b>", kind, escaped(words)] for name, kind, words in rows[:_MOST_COLUMNS]]
    more = f"<p>{count(len(rows) - len(cells), 'more column')}.</p>" if len(rows) > len(cells) else ""
    return f'<div class="wide">{table(("column", "used as", "what it holds"), cells)}</div>{more}'


def _described(run: Run, name: str, is_category: bool) -> str:
    """Describe a column that is used."""
    values = run.profile.values(name)
    known = values[~np.isnan(values)]
    share = 1 - len(known) / len(values) if len(values) else 0.0
    missing = f"; {max(share, 0.001):.1%} missing" if share else ""
    if not len(known):
        return "no values"
    if is_category:
        levels = run.profile.levels(name).most_common()
        named = ", ".join(f"{label(text, 30)} {n / len(known):.1%}" for text, n in levels[:_MOST_NAMED])
        return f"{count(len(levels), 'level')}: {named}{', …' * (len(levels) > _MOST_NAMED)}{missing}"
    low, first, middle, last, high = (float(one) for one in np.quantile(known, [0, 0.05, 0.5, 0.95, 1]))
    scale = last - first or high - low
    texts = [number(one, scale) for one in (first, last, middle, low, high)]
    return f"nine in ten {between(*texts[:2])}, median {texts[2]}; all {between(*texts[3:])}{missing}"


def _described_times(run: Run) -> str:
    times = run.profile.rows.times
    return "" if times is None or not len(times) else f"{moment(float(times.min()))} to {moment(float(times.max()))}"
