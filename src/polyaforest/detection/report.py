"""Format reports as text: the input, then the findings, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import click

from polyaforest.util.text import label, width

if TYPE_CHECKING:
    from polyaforest.explain import Attribution, Explanation
    from polyaforest.io.reading import Interpretation
    from polyaforest.io.tables import Table

_MOST_NAMED = 8  # names to list
_MOST_ATTRIBUTIONS = 3  # features of a finding to show
_MOST_REJECTED = 3  # skipped rows to show
_FIRST_DATE = 631_152_000.0  # 1990: smaller numbers are not taken for dates
_LAST_DATE = 253_402_300_800.0  # the year 10000
_NO_SINGLE = "no single value: the combination is rare"


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


class RunSummary(NamedTuple):
    """Counts of a run."""

    n_rows: int  # scored
    n_flagged: int
    n_findings: int
    in_events: bool  # whether flagged rows are grouped
    expected: float | None  # share of normal rows expected to be flagged
    by: str | None = None  # partition column
    n_partitions: int = 0
    counts_alarms: bool = False  # whether `expected` is the share of rows at which an alarm begins


# ---- input -----------------------------------------------------------------------------------------------------------


def input_lines(table: Table) -> list[str]:
    """Describe the input: rows and columns used, and columns and rows skipped with the reasons."""
    columns = table.columns
    roles = [name for name in (columns.time, columns.key, columns.id, columns.weight, columns.group) if name]
    n_columns = len({*columns.used, *columns.skipped, *roles})
    used = f"{listed(columns.used)} ({len(columns.used)} of {count(n_columns, 'column')})"
    lines = [f"Read {count(table.n_rows, 'row')} of {format_sources(table.sources)}, using {used}."]
    parts = [
        (columns.time, "Times from"),
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


def report(summary: RunSummary, findings: Sequence[Finding], *, is_written: bool = False) -> str:
    """Format a report: a headline, then the findings."""
    usual = format_typical(findings)
    blocks = [f"{headline(summary)}\n{usual}" if usual else headline(summary)]
    width = len(str(len(findings)))
    blocks += [block(finding, f"{rank:>{width}}.") for rank, finding in enumerate(findings, 1)]
    n_more = summary.n_findings - len(findings)
    if findings and n_more > 0:
        what = count(n_more, "more event" if summary.in_events else "more row")
        blocks.append(f"{what}: --top N prints more{'' if is_written else ', --out FILE writes all'}.")
    return "\n\n".join(blocks)


def format_typical(findings: Sequence[Finding]) -> str:
    """Describe the surprise of a typical row, for comparison."""
    typical = [finding.explanation.typical for finding in findings if finding.explanation is not None]
    if not typical:
        return ""
    low, high = f"{min(typical):.1f}", f"{max(typical):.1f}"
    bits = low if low == high else f"{low} to {high}"
    return f"A typical row has {bits} bits of surprise; each additional bit halves the likelihood."


def headline(summary: RunSummary) -> str:
    """Describe how many rows are flagged, and how many to expect by chance."""
    rows = count(summary.n_rows, "row")
    each = f", scored separately by {label(summary.by)} ({count(summary.n_partitions, 'value')})" if summary.by else ""
    chance = format_chance(summary)
    if not summary.n_flagged:
        return click.style(f"Nothing stands out: 0 of {rows}{each}.", bold=True) + (f" {chance}" if chance else "")
    verb = "stands" if summary.n_flagged == 1 else "stand"
    events = f", in {count(summary.n_findings, 'event')}" if summary.in_events else ""
    words = click.style(f"{summary.n_flagged:,} of {rows} {verb} out{events}{each}.", bold=True)
    return f"{words} {chance}".rstrip()


def format_chance(summary: RunSummary) -> str:
    """Describe how many rows are expected to be flagged by chance."""
    if summary.expected is None:
        return ""
    n = f"{summary.expected * summary.n_rows:,.0f}"
    what = f"{n} event{'' if n == '1' else 's'}" if summary.counts_alarms else n
    if n == "0":
        return "Hardly any are expected by chance."
    return f"Up to about {what} {'is' if n == '1' else 'are'} expected by chance."


def block(finding: Finding, rank: str) -> str:
    """Format a finding as a few lines: which rows, when, how anomalous, and why."""
    lines = [f"{rank} {click.style(format_place(finding), bold=True)}{format_surprise(finding)}"]
    indent = " " * (len(rank) + 3)
    if finding.explanation is not None:
        lines += [indent + line for line in reasons(finding.explanation, finding.missing)]
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
        start, end = moment(finding.start), moment(finding.end)
        if start[:10] == end[:10] and len(start) > 10:
            end = end[11:]
        return f"{start} to {end}" if finding.start != finding.end else start
    return "" if finding.time is None else moment(finding.time)


def format_surprise(finding: Finding) -> str:
    """Format bits and p-value, for an event those of its worst row."""
    words = ""
    if finding.n_flagged > 1:
        name = f", {label(finding.id)}" if finding.id else ""
        words = f" ({finding.n_flagged:,} flagged, worst {finding.number:,}{name})"
    facts = [] if finding.explanation is None else [f"{finding.explanation.surprise:.1f} bits"]
    if finding.p_value is not None and isfinite(finding.p_value):
        facts.append(f"p = {finding.p_value:.2g}")
    return f"{words}: {', '.join(facts)}" if facts else words


def reasons(explanation: Explanation, missing: Sequence[str] = ()) -> list[str]:
    """Format the attributed features, one per line, in columns."""
    attributions = explanation.attributions[:_MOST_ATTRIBUTIONS]
    lines = aligned([_cells(explanation, attribution) for attribution in attributions])
    if not attributions:
        lines = [_NO_SINGLE]
    if explanation.summary:
        lines.insert(0, explanation.summary)
    if missing:
        lines.append(f"missing: {listed(missing)}")
    return lines


def _cells(explanation: Explanation, attribution: Attribution) -> list[str]:
    normal = explanation.format_expected(attribution)
    return [
        click.style(label(attribution.name), fg="red"),
        explanation.format_value(attribution.feature, attribution.value),
        explanation.format_side(attribution),
        f"{attribution.bits:+.1f} bits",
        attribution.seen or f"usual {explanation.format_usual(attribution.feature)}",
        f"would be normal: {normal}" if normal not in ("", "unchanged", "no value") else "",
    ]


def reason(explanation: Explanation, missing: Sequence[str] = ()) -> str:
    """Format the attributed features on one line, such as "latency_ms 912 (usual 20–80): +14.2 bits; cpu ..."."""
    parts = [
        f"{label(one.name)} {explanation.format_value(one.feature, one.value)} "
        f"({one.seen or f'usual {explanation.format_usual(one.feature)}'}): {one.bits:+.1f} bits"
        for one in explanation.attributions
    ]
    parts = parts or [_NO_SINGLE]
    if explanation.summary:
        parts.insert(0, explanation.summary)
    return "; ".join([*parts, f"missing: {listed(missing)}"] if missing else parts)


# ---- formatting ------------------------------------------------------------------------------------------------------


def count(n: int, what: str) -> str:
    """Format a number with its noun."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def listed(names: Iterable[str]) -> str:
    """Join names with commas; of many, the first ones and the number of others."""
    names = list(map(label, names))
    more = f" and {len(names) - _MOST_NAMED:,} others" if len(names) > _MOST_NAMED + 1 else ""
    return ", ".join(names[:_MOST_NAMED] if more else names) + more


def moment(seconds: float) -> str:
    """Format a time for people, to the second if needed; a number that is not a date stays a number."""
    if not isfinite(seconds):
        return ""
    if not is_date(seconds):
        return f"{seconds:.12g}"
    when = datetime.fromtimestamp(seconds, UTC)
    if when.microsecond:
        return f"{when:%Y-%m-%d %H:%M:%S.%f}".rstrip("0")
    return f"{when:%Y-%m-%d %H:%M:%S}" if when.second else f"{when:%Y-%m-%d %H:%M}"


def stamp(seconds: float) -> str:
    """Format a time in ISO 8601; a number that is not a date stays a number."""
    if not is_date(seconds):
        return f"{seconds:.17g}"
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def is_date(seconds: float) -> bool:
    """Return whether a time is a plausible date rather than a count."""
    return _FIRST_DATE <= seconds < _LAST_DATE


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
