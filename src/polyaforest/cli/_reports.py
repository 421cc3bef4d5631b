"""Format reports as text: the input, then the findings, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, NamedTuple

import click

from polyaforest.forest.grades import severity
from polyaforest.forest.severity import certainty
from polyaforest.util.dates import moment
from polyaforest.util.numbers import beside_band
from polyaforest.util.text import count, label, listed, width

if TYPE_CHECKING:
    from polyaforest.explain import Attribution, Explanation
    from polyaforest.io.reading import Interpretation
    from polyaforest.io.tables import Table

_MOST_ATTRIBUTIONS = 3  # features of a finding to show
_MOST_REJECTED = 3  # skipped rows to show
_LEAST_P = 1e-12  # smaller p-values are not claimed
_NO_SINGLE = "no single value: the combination is rare"
# why rows have no verdict
TOO_EARLY = "the first readings of a series, with too few readings before them"
AFTER_GAP = "readings soon after a gap or a missing value"
TOO_SMALL = "rows of partitions with too few rows"
LEARNED_ONLY = "the first rows of a stream, which are learned only"


class Finding(NamedTuple):
    """A flagged row, or the worst row of an event."""

    number: int  # row of the input, from 1
    score: float
    p_value: float | None = None
    time: float | None = None  # in seconds
    partition: str | None = None
    id: str | None = None
    first: int | None = None  # first and last row of the event
    last: int | None = None
    start: float | None = None
    end: float | None = None
    n_flagged: int = 1
    explanation: Explanation | None = None
    missing: tuple[str, ...] = ()  # columns without a value
    bits: float = nan  # of the tail

    @property
    def severity(self) -> int | None:
        """The grade from 1 to 5; None if the tail is unknown."""
        return severity(self.bits)


class RunSummary(NamedTuple):
    """Counts of a run."""

    n_rows: int  # with a verdict
    n_flagged: int
    n_findings: int
    in_events: bool  # whether flagged rows are grouped
    expected: float | None  # share of normal rows expected to be flagged
    by: str | None = None  # partition column
    n_partitions: int = 0
    counts_alarms: bool = False  # whether `expected` is the share of rows at which an alarm begins
    unscored: Mapping[str, int] = {}
    certainties: Mapping[str, int] = {}
    n_hidden: int = 0  # findings below the least severity
    min_severity: int = 1


# ---- input -----------------------------------------------------------------------------------------------------------


def input_lines(table: Table) -> list[str]:
    """Describe the input: rows and columns used, and columns and rows skipped with the reasons."""
    columns = table.columns
    keys = columns.keys or (columns.key,)
    roles = [
        name for name in (columns.time, columns.time_of_day, *keys, columns.id, columns.weight, columns.group) if name
    ]
    n_columns = len({*columns.used, *columns.skipped, *roles})
    used = f"{listed(columns.used)} ({len(columns.used)} of {count(n_columns, 'column')})"
    lines = [f"Read {count(table.n_rows, 'row')} of {format_sources(table.sources)}, using {used}."]
    parts = [
        (" and ".join(filter(None, (columns.time, columns.time_of_day))), "Times from"),
        (columns.key, "Partitions by"),
        (columns.id, "Row ids from"),
        (columns.weight, "Weights from"),
        (columns.group, "Calibrated by"),
    ]
    asides = [f"{role} {name}." for name, role in parts if name]
    asides += [format_skipped(columns.skipped)] if columns.skipped else []
    lines += [" ".join(asides)] if asides else []
    if table.interpretations:
        lines.append(format_interpretations(table.interpretations))
    if table.n_blank:
        lines.append(f"Left out {count(table.n_blank, 'row')} without any value.")
    if table.n_rejected:
        shown = [f"row {row.number:,}: {row.reason}" for row in table.rejected[:_MOST_REJECTED]]
        more = ["..."] if table.n_rejected > len(shown) else []
        lines.append(f"Skipped {count(table.n_rejected, 'invalid row')}: {'; '.join(shown + more)}.")
    return lines


def format_interpretations(interpretations: Sequence[Interpretation]) -> str:
    """Describe how the files were interpreted, and the options that override it."""
    parts = [
        f"{listed(columns)} {words}".replace(" :", ":") if columns else label(words)
        for words, _, columns in interpretations
    ]
    options = dict.fromkeys(option for _, options, _ in interpretations for option in options)
    return f"Interpreted: {'; '.join(parts)}. Override with {', '.join(options)}."


def format_sources(names: Sequence[str]) -> str:
    """Return the name of the input, or the number of inputs."""
    return names[0] if len(names) == 1 else f"{len(names)} files"


def format_skipped(skipped: dict[str, str]) -> str:
    """List the skipped columns by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(name)
    parts = [f"{listed(names)} ({reason})" for reason, names in by_reason.items()]
    return f"Skipped: {'; '.join(parts)}."


# ---- findings --------------------------------------------------------------------------------------------------------


def report(
    summary: RunSummary, findings: Sequence[Finding], *, is_written: bool = False, is_verbose: bool = False
) -> str:
    """Format a report: a headline, then the findings, the most severe first."""
    head = [headline(summary), format_unscored(summary), format_legend(findings)]
    blocks = ["\n".join(filter(None, head))]
    width, n = len(str(len(findings))), summary.n_rows
    blocks += [block(finding, f"{rank:>{width}}.", n, is_verbose) for rank, finding in enumerate(findings, 1)]
    n_more = summary.n_findings - len(findings)
    if findings and n_more > 0:
        what = count(n_more, "more event" if summary.in_events else "more row")
        blocks.append(f"{what}: --top N prints more{'' if is_written else ', --out FILE writes all'}.")
    return "\n\n".join(blocks)


def format_legend(findings: Sequence[Finding]) -> str:
    """Describe the surprise of a typical row, for comparison, and the model behind small p-values."""
    typical = [finding.explanation.typical for finding in findings if finding.explanation is not None]
    if not typical:
        return ""
    low, high = f"{min(typical):.1f}", f"{max(typical):.1f}"
    bits = low if low == high else f"{low} to {high}"
    words = f"A typical row has {bits} bits of surprise; each additional bit halves the likelihood."
    is_extrapolated = any(_is_extrapolated(finding) for finding in findings)
    return words + (" p ≈ extrapolates the tail of the scores." if is_extrapolated else "")


def headline(summary: RunSummary) -> str:
    """Describe how many rows are flagged, how sure the findings are, and how many to expect by chance."""
    rows = count(summary.n_rows, "scored row" if summary.unscored else "row")
    each = f", scored separately by {label(summary.by)} ({count(summary.n_partitions, 'value')})" if summary.by else ""
    chance = format_chance(summary)
    if not summary.n_flagged:
        return click.style(f"Nothing stands out: 0 of {rows}{each}.", bold=True) + (f" {chance}" if chance else "")
    verb = "stands" if summary.n_flagged == 1 else "stand"
    events = f", in {count(summary.n_findings + summary.n_hidden, 'event')}" if summary.in_events else ""
    sure = format_certainties(summary)
    words = click.style(f"{summary.n_flagged:,} of {rows} {verb} out{events}{sure}{each}.", bold=True)
    return " ".join(filter(None, (words, format_hidden(summary), chance)))


def format_hidden(summary: RunSummary) -> str:
    """Describe how many findings are left out because of their severity."""
    if not summary.n_hidden:
        return ""
    what = count(summary.n_hidden, "event" if summary.in_events else "row")
    return f"{what} below severity {summary.min_severity} {'is' if summary.n_hidden == 1 else 'are'} not shown."


def format_certainties(summary: RunSummary) -> str:
    """Describe how many findings are certain, likely and borderline: " (2 certain, 5 borderline)"."""
    parts = [f"{n:,} {name}" for name, n in summary.certainties.items() if n]
    return f" ({', '.join(parts)})" if parts else ""


def format_chance(summary: RunSummary) -> str:
    """Describe how many rows are expected to be flagged by chance; where certainty is known, these are borderline."""
    if summary.expected is None:
        return ""
    n = f"{summary.expected * summary.n_rows:,.0f}"
    kind = "borderline " if summary.certainties else ""
    noun = "event" if summary.counts_alarms else "row" if kind else ""
    what = f"{n} {kind}{noun}{'s' if noun and n != '1' else ''}".rstrip()
    if n == "0":
        return "Hardly any are expected by chance."
    return f"Up to about {what} {'is' if n == '1' else 'are'} expected by chance."


def format_unscored(summary: RunSummary) -> str:
    """Describe how many rows have no verdict, and why."""
    if not summary.unscored:
        return ""
    n, is_one = sum(summary.unscored.values()), len(summary.unscored) == 1
    parts = [why if is_one else f"{why} ({own:,})" for why, own in summary.unscored.items()]
    verb = "has" if n == 1 else "have"
    return f"{n:,} of {count(n + summary.n_rows, 'row')} {verb} no verdict: {'; '.join(parts)}."


def block(finding: Finding, rank: str, n_rows: int = 1, is_verbose: bool = False) -> str:
    """Format a finding of `n_rows` rows as a few lines: which rows, when, how severe, and why."""
    lines = [f"{rank} {click.style(format_place(finding), bold=True)}{format_surprise(finding, n_rows)}"]
    indent = " " * (len(rank) + 3)
    if finding.explanation is not None:
        lines += [indent + line for line in reasons(finding.explanation, finding.missing, is_verbose)]
    return "\n".join(lines)


def format_place(finding: Finding) -> str:
    """Format which rows, of which partition, and when."""
    parts = [f"row {finding.number:,}"]
    if finding.n_flagged > 1 and finding.first is not None and finding.last is not None:
        parts = [f"rows {finding.first:,}–{finding.last:,}"]
    if finding.id and finding.n_flagged == 1:
        parts.append(label(finding.id))
    if finding.partition is not None:
        parts.append(label(finding.partition) or "(empty)")
    when = format_span(finding)
    return ", ".join([*parts, when] if when else parts)


def format_span(finding: Finding) -> str:
    """Format the time of a finding, or its start and end."""
    if finding.n_flagged > 1 and finding.start is not None and finding.end is not None:
        start, end = moment(finding.start), _beside(moment(finding.end), finding.start)
        return f"{start} to {end}" if finding.start != finding.end else start
    return "" if finding.time is None else moment(finding.time)


def _beside(when: str, start: float | None) -> str:
    """Omit the date of a time on the day of `start`."""
    before = "" if start is None else moment(start)
    return when[11:] if before[:10] == when[:10] and len(before) > 10 else when


def format_surprise(finding: Finding, n_rows: int = 1) -> str:
    """Format severity, bits and p-value, for an event those of its worst row."""
    words = ""
    if finding.n_flagged > 1:
        name = f", {label(finding.id)}" if finding.id else ""
        when = "" if finding.time is None else f" at {_beside(moment(finding.time), finding.start)}"
        words = f" ({finding.n_flagged:,} flagged, worst {finding.number:,}{name}{when})"
    grade = finding.severity
    facts = [] if grade is None else [f"severity {grade} ({certainty(finding.bits, n_rows)})"]
    facts += [] if finding.explanation is None else [f"{finding.explanation.surprise:.1f} bits"]
    facts += [format_p_value(finding)] if finding.p_value is not None and isfinite(finding.p_value) else []
    return f"{words}: {', '.join(facts)}" if facts else words


def format_p_value(finding: Finding) -> str:
    """Format the p-value of a finding; below those that can be counted, by the model of the tail."""
    if not _is_extrapolated(finding):
        return f"p = {finding.p_value:.2g}"
    return f"p ≈ {max(2.0**-finding.bits, _LEAST_P):.1g}"


def _is_extrapolated(finding: Finding) -> bool:
    return finding.p_value is not None and 2.0**-finding.bits < 0.99 * finding.p_value  # NaN is not


def reasons(explanation: Explanation, missing: Sequence[str] = (), is_verbose: bool = False) -> list[str]:
    """Format what was read and what was expected, by column; with `is_verbose`, also by feature of a time series."""
    lines = [explanation.summary] if explanation.summary else []
    columns = explanation.readings[:_MOST_ATTRIBUTIONS]
    if explanation.context is not None:
        if len(columns) > 1 or not lines:
            lines += aligned([_reading_cells(reading) for reading in columns])
        columns = explanation.attributions[:_MOST_ATTRIBUTIONS] if is_verbose else []
    elif not columns:
        lines.append(_NO_SINGLE)
    lines += aligned([_cells(explanation, attribution) for attribution in columns])
    if missing:
        lines.append(f"missing: {listed(missing)}")
    return lines


def _reading_cells(reading: Attribution) -> list[str]:
    value, expected = beside_band(reading.value, reading.usual[0], reading.median, reading.usual[1])
    name = click.style(label(reading.name), fg="red")
    return [name, value, reading.direction, f"{reading.bits:+.1f} bits", f"expected {expected}"]


def _cells(explanation: Explanation, attribution: Attribution) -> list[str]:
    normal = explanation.format_expected(attribution)
    return [
        click.style(label(attribution.name), fg="red"),
        explanation.format_value(attribution.feature, attribution.value),
        attribution.direction,
        f"{attribution.bits:+.1f} bits",
        attribution.seen or f"usual {explanation.format_typical(attribution.feature)}",
        f"would be normal: {normal}" if normal not in ("", "unchanged", "no value") else "",
    ]


def reason(explanation: Explanation, missing: Sequence[str] = ()) -> str:
    """Format the attributed columns on one line, such as "latency_ms 912 (usual about 45 (20–80)): +14.2 bits; …"."""
    parts = [_reason(explanation, one) for one in explanation.readings] or [_NO_SINGLE]
    if explanation.summary:
        parts = [explanation.summary, *parts] if len(parts) > 1 else [explanation.summary]
    return "; ".join([*parts, f"missing: {listed(missing)}"] if missing else parts)


def _reason(explanation: Explanation, one: Attribution) -> str:
    if explanation.context is not None:
        name, value, direction, bits, expected = _reading_cells(one)
        return f"{click.unstyle(name)} {value} {direction} ({expected}): {bits}"
    usual = one.seen or f"usual {explanation.format_typical(one.feature)}"
    value = explanation.format_value(one.feature, one.value)
    return f"{label(one.name)} {value} {one.direction} ({usual}): {one.bits:+.1f} bits"


# ---- formatting ------------------------------------------------------------------------------------------------------


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Align cells in columns, ignoring colours; values and bits to the right."""
    widths = [max(width(click.unstyle(cell)) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = []
        for k, (cell, most) in enumerate(zip(row, widths, strict=True)):
            room = " " * (most - width(click.unstyle(cell)))
            cells.append(room + cell if k in (1, 3) else cell + room)
        lines.append("  ".join(cells).rstrip())
    return lines
