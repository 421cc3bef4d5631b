"""Words for people: what `detect` found, the worst first, and what was read and left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import click

from polyaforest.core.text import label, width

if TYPE_CHECKING:
    from polyaforest.explain import Blame, Explanation
    from polyaforest.io.tables import Columns, Rejected, Table

_MOST_NAMED = 8  # columns of a kind that are named
_MOST_BLAMED = 3  # features of a finding that are shown
_MOST_REJECTED = 3  # rows left out that are shown
_FIRST_DATE = 631_152_000.0  # 1990: times before that are a count of something, not dates
_LAST_DATE = 253_402_300_800.0  # the year 10000


class Finding(NamedTuple):
    """A row that stands out, or several in succession, of which it is the worst."""

    number: int  # of the row in the input, from 1
    score: float
    p_value: float | None = None
    time: float | None = None  # in seconds
    key: str | None = None
    id: str | None = None
    first: int | None = None  # row of an event of several rows, as is the last
    last: int | None = None
    start: float | None = None
    end: float | None = None
    n_flagged: int = 1
    explanation: Explanation | None = None
    missing: tuple[str, ...] = ()  # columns of which the row had no value


class Summary(NamedTuple):
    """How much was found."""

    n_rows: int  # judged
    n_flagged: int
    n_findings: int
    in_events: bool  # whether findings are events, of rows in succession
    expected: float | None  # share of ordinary rows that are flagged by chance
    is_share: bool = False  # whether that share of the rows is flagged whatever they are like
    key: str | None = None  # column of the keys, each judged by itself
    n_keys: int = 0


# ---- what was read ---------------------------------------------------------------------------------------------------


def reading_in_words(table: Table, paths: Sequence[str]) -> list[str]:
    """What was read, which columns are used and why the others are not, and which rows were left out."""
    columns = table.columns
    roles = [name for name in (columns.time, columns.key, columns.id) if name]
    n_columns = len({*columns.used, *columns.skipped, *roles})
    used = f"{listed(columns.used)} ({len(columns.used)} of {count(n_columns, 'column')})"
    lines = [f"Read {count(table.n_rows, 'row')} of {sources_in_words(paths)}, using {used}."]
    asides = [roles_in_words(columns), skipped_in_words(columns.skipped)]
    lines += [" ".join(filter(None, asides))] if any(asides) else []
    if table.n_rejected:
        lines.append(rejected_in_words(table.n_rejected, table.rejected))
    return lines


def sources_in_words(paths: Sequence[str]) -> str:
    """The files by their names, or how many they are."""
    names = ["standard input" if path == "-" else os.path.basename(path) for path in paths]
    return names[0] if len(names) == 1 else f"{len(names)} files"


def roles_in_words(columns: Columns) -> str:
    """The columns that are not numbers to judge by, but say when, whose and which."""
    roles = [(columns.time, "Times from"), (columns.key, "Keys from"), (columns.id, "Names from")]
    return " ".join(f"{role} {name}." for name, role in roles if name)


def skipped_in_words(skipped: dict[str, str]) -> str:
    """The columns left out, by the reason."""
    if not skipped:
        return ""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(name)
    parts = [f"{listed(names)} ({reason})" for reason, names in by_reason.items()]
    return f"Left out: {'; '.join(parts)}."


def rejected_in_words(n_rejected: int, rejected: Sequence[Rejected]) -> str:
    """The rows that could not be read, the first few with the reason."""
    shown = [f"row {row.number:,}: {row.reason}" for row in rejected[:_MOST_REJECTED]]
    more = ["..."] if n_rejected > len(shown) else []
    return f"{count(n_rejected, 'more row')} left out: {'; '.join(shown + more)}."


# ---- what was found --------------------------------------------------------------------------------------------------


def report(summary: Summary, findings: Sequence[Finding], *, is_written: bool = False) -> str:
    """All that was found, in words: a headline, then the findings that are given, the worst first."""
    usual = usual_in_words(findings)
    blocks = [f"{headline(summary)}\n{usual}" if usual else headline(summary)]
    width = len(str(len(findings)))
    blocks += [block(finding, f"{rank:>{width}}.") for rank, finding in enumerate(findings, 1)]
    n_more = summary.n_findings - len(findings)
    if findings and n_more > 0:
        what = count(n_more, "more event" if summary.in_events else "more row")
        blocks.append(f"{what}: --top N prints more{'' if is_written else ', --out FILE writes all'}.")
    return "\n\n".join(blocks)


def usual_in_words(findings: Sequence[Finding]) -> str:
    """What the bits of the findings are to be compared with."""
    typical = [finding.explanation.typical for finding in findings if finding.explanation is not None]
    if not typical:
        return ""
    low, high = f"{min(typical):.1f}", f"{max(typical):.1f}"
    bits = low if low == high else f"{low} to {high}"
    return f"A usual row has {bits} bits of surprise; each bit more is half as likely."


def headline(summary: Summary) -> str:
    """How many rows stand out, and how many would by chance."""
    rows = count(summary.n_rows, "row")
    each = f", judged separately per {label(summary.key)} ({summary.n_keys:,})" if summary.key else ""
    chance = chance_in_words(summary)
    if not summary.n_flagged:
        return click.style(f"Nothing stands out: 0 of {rows}{each}.", bold=True) + (f" {chance}" if chance else "")
    verb = "stands" if summary.n_flagged == 1 else "stand"
    events = f", in {count(summary.n_findings, 'event')}" if summary.in_events else ""
    words = click.style(f"{summary.n_flagged:,} of {rows} {verb} out{events}{each}.", bold=True)
    return f"{words} {chance}".rstrip()


def chance_in_words(summary: Summary) -> str:
    """How many rows would be flagged though nothing is wrong."""
    if summary.expected is None:
        return ""
    n = f"{summary.expected * summary.n_rows:,.0f}"
    if summary.is_share:
        return f"At this rate about {n} do, whatever they are like."
    return "By chance alone hardly any would." if n == "0" else f"By chance alone up to about {n} might."


def block(finding: Finding, rank: str) -> str:
    """A finding in a few lines: which row, when, how strange, and why."""
    where = click.style(place_in_words(finding), bold=True)
    lines = [f"{rank} {where}{strangeness_in_words(finding)}"]
    indent = " " * (len(rank) + 3)
    if finding.explanation is not None:
        lines += [indent + line for line in reasons(finding.explanation, finding.missing)]
    return "\n".join(lines)


def place_in_words(finding: Finding) -> str:
    """Which row or rows, when, and whose."""
    parts = [f"row {finding.number:,}"]
    if finding.n_flagged > 1 and finding.first is not None and finding.last is not None:
        parts = [f"rows {finding.first:,}–{finding.last:,}"]
    if finding.id and finding.n_flagged == 1:
        parts.append(label(finding.id))
    if finding.key is not None:
        parts.append(label(finding.key) or "(no key)")
    when = span_in_words(finding)
    return ", ".join([*parts, when] if when else parts)


def span_in_words(finding: Finding) -> str:
    """When it was, from and to if that took a while."""
    if finding.n_flagged > 1 and finding.start is not None and finding.end is not None:
        start, end = moment(finding.start), moment(finding.end)
        if start[:10] == end[:10] and len(start) > 10:
            end = end[11:]
        return f"{start} to {end}" if finding.start != finding.end else start
    return "" if finding.time is None else moment(finding.time)


def strangeness_in_words(finding: Finding) -> str:
    """How strange it is; of an event its worst row."""
    words = ""
    if finding.n_flagged > 1:
        name = f", {label(finding.id)}" if finding.id else ""
        words = f" ({finding.n_flagged:,} flagged, worst {finding.number:,}{name})"
    facts = [] if finding.explanation is None else [f"{finding.explanation.surprise:.1f} bits"]
    if finding.p_value is not None and isfinite(finding.p_value):
        facts.append(f"p = {finding.p_value:.2g}")
    return f"{words}: {', '.join(facts)}" if facts else words


def reasons(explanation: Explanation, missing: Sequence[str] = ()) -> list[str]:
    """The features to blame, one on each line, in columns."""
    blamed = explanation.blamed[:_MOST_BLAMED]
    lines = aligned([_cells(explanation, blame) for blame in blamed])
    if not blamed:
        lines = ["no value by itself: the combination is rare"]
    if missing:
        lines.append(f"missing: {listed(missing)}")
    return lines


def _cells(explanation: Explanation, blame: Blame) -> list[str]:
    """What is said of one feature."""
    k, expected = blame.feature, blame.expected
    is_told = expected is not None and not expected[0] <= blame.value <= expected[1]
    return [
        click.style(label(blame.name), fg="red"),
        explanation._number(k, blame.value),
        f"too {blame.side}",
        f"{blame.bits:+.1f} bits",
        f"usual {explanation._usual_in_words(k)}",
        f"would be normal: {explanation._expected_in_words(blame)}" if is_told else "",
    ]


def reason(explanation: Explanation, missing: Sequence[str] = ()) -> str:
    """The features to blame on one line: "latency_ms 912 (usual 20–80): +14.2 bits; cpu 97 (usual 5–60): +3.1 bits"."""
    parts = [
        f"{label(blame.name)} {explanation._number(blame.feature, blame.value)} "
        f"(usual {explanation._usual_in_words(blame.feature)}): {blame.bits:+.1f} bits"
        for blame in explanation.blamed
    ]
    parts = parts or ["no value by itself: the combination is rare"]
    return "; ".join([*parts, f"missing: {listed(missing)}"] if missing else parts)


# ---- small words -----------------------------------------------------------------------------------------------------


def count(n: int, what: str) -> str:
    """So many of something."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def listed(names: Iterable[str]) -> str:
    """Names with commas between, the rest counted if they are many."""
    names = list(map(label, names))
    more = f" and {len(names) - _MOST_NAMED:,} others" if len(names) > _MOST_NAMED + 1 else ""
    return ", ".join(names[:_MOST_NAMED] if more else names) + more


def moment(seconds: float) -> str:
    """A point in time, to the second if need be; a number that is no date as it is."""
    if not isfinite(seconds):
        return ""
    if not is_date(seconds):
        return f"{seconds:.12g}"
    when = datetime.fromtimestamp(seconds, UTC)
    if when.microsecond:
        return f"{when:%Y-%m-%d %H:%M:%S.%f}".rstrip("0")
    return f"{when:%Y-%m-%d %H:%M:%S}" if when.second else f"{when:%Y-%m-%d %H:%M}"


def stamp(seconds: float) -> str:
    """A point in time for machines, as ISO 8601 has it; a number that is no date as it is."""
    if not is_date(seconds):
        return f"{seconds:.17g}"
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def is_date(seconds: float) -> bool:
    """Whether a time is one of a calendar, rather than a count of something."""
    return _FIRST_DATE <= seconds < _LAST_DATE


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns, whatever their colours; numbers in the second to the right."""
    widths = [max(width(click.unstyle(cell)) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = []
        for k, (cell, most) in enumerate(zip(row, widths, strict=True)):
            room = " " * (most - width(click.unstyle(cell)))
            cells.append(room + cell if k in (1, 3) else cell + room)
        lines.append("  ".join(cells).rstrip())
    return lines
