"""`polyaforest detect`: from a file to the rows that stand out, and why."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest.cli._findings import Findings
    from polyaforest.cli._judging import Judged, Rule
    from polyaforest.cli._picture import Sketch
    from polyaforest.io.tables import Table

_ROWS_OF_STREAM = 4_096  # judged at a time if there are no keys: up to the last flagged, all are learned twice
_LEAST_OF_STREAM = 100  # rows, of each key
_MANY = 5_000_000  # rows from which on a table in memory is worth a warning
_MOST_REASONS = 10_000  # rows of a table that are explained in what is written


@dataclass(frozen=True)
class Order:
    """What was asked for: the options by their names."""

    files: tuple[str, ...]
    columns: list[str] | None
    time: str | None
    key: str | None
    id: str | None
    format: str | None
    strict: bool
    kind: str | None
    window: int | None
    shingle: int | None
    false_alarm_rate: float | None
    epsilon: float | None
    phi: float | None
    seed: int
    top: int
    out: str | None
    only_anomalies: bool
    spreadsheet_safe: bool
    plot: str | None
    quiet: bool
    fail_on_anomaly: bool

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        options.refuse_two(false_alarm_rate=self.false_alarm_rate, epsilon=self.epsilon)
        if self.kind == "batch" and self.shingle is not None:
            raise click.UsageError("--shingle judges rows in their order, which --batch does not look at.")
        if self.is_stream and self.epsilon is not None:
            raise click.UsageError("--epsilon goes by the leaves of a whole table: leave --stream and --shingle out.")
        if self.phi is not None and self.epsilon is None:
            raise click.UsageError("--phi needs --epsilon.")
        if self.window is not None and not self.is_stream:
            raise click.UsageError("--window is what a stream remembers: add --stream.")
        if self.plot == "-":
            raise click.UsageError("--plot needs the name of a file.")
        if self.only_anomalies and self.out is None:
            raise click.UsageError("--only-anomalies says which rows to write: add --out FILE.")
        if self.spreadsheet_safe and self.out is None:
            raise click.UsageError("--spreadsheet-safe says how to write rows: add --out FILE.")

    @property
    def is_stream(self) -> bool:
        """Whether rows are judged one after another."""
        return self.kind == "stream" or (self.kind is None and self.shingle is not None)

    def rule(self) -> Rule:
        """Which rows are flagged, and by what kind of forest."""
        from polyaforest.cli._judging import Rule

        return Rule(
            kind="stream" if self.is_stream else self.kind,
            seed=self.seed,
            window=self.window or options.WINDOW,
            shingle=self.shingle,
            false_alarm_rate=self.false_alarm_rate,
            epsilon=self.epsilon,
            phi=0.8 if self.phi is None else self.phi,
            n_jobs=1 if self.is_stream and self.key else -1,  # chunks of a key are too small to be shared out
        )


_HELP = """Find the rows of FILE... that stand out, the worst first, and say why.

Reads CSV, TSV, Parquet and JSON lines; - is standard input. All columns that hold numbers are used, and what is
left out is said. Every row is judged by all others; with --stream only by those before it.

\b
Examples:
  polyaforest detect server-metrics.csv
  polyaforest detect server-metrics.csv --key host --out judged.csv --plot judged.png
  polyaforest detect --shingle 12 --columns latency_ms server-metrics.csv
  zcat huge.csv.gz | polyaforest detect --stream --only-anomalies --out anomalies.jsonl -
"""


@click.command(help=_HELP)
@options.reading(options.KEY_OF_STREAMS)
@options.batch
@options.stream
@options.window
@options.shingle
@options.flagging()
@options.seed
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Findings to print at most.")
@options.out
@options.only_anomalies
@options.spreadsheet_safe
@click.option("--plot", metavar="FILE", type=click.Path(), help="Draw what was found: .png, .svg or .pdf.")
@options.quiet
@options.fail_on_anomaly
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run `polyaforest detect`."""
    order = Order(**given)
    check_places(order)
    if detect(order) and order.fail_on_anomaly:
        ctx.exit(1)


def check_places(order: Order) -> None:
    """Refuse results that could not be written before anything is read."""
    inputs = [os.path.realpath(file) for file in order.files if file != "-"]
    for path in filter(None, (order.out, order.plot)):
        if os.path.realpath(path) in inputs:
            raise ValueError(f"{path} is also the input: write to another file")
    if order.out:
        from polyaforest.io.results import open_results

        open_results(order.out, spreadsheet_safe=order.spreadsheet_safe)
    if order.plot:
        from polyaforest.cli._picture import check_place

        check_place(order.plot)


def detect(order: Order) -> int:
    """Read, judge, write and print; the number of rows flagged."""
    from polyaforest.cli._findings import Findings
    from polyaforest.io.tables import open_table

    table = open_table(
        order.files,
        format=order.format,
        columns=order.columns,
        time=order.time,
        key=order.key,
        id=order.id,
        strict=order.strict,
    )
    found = Findings(table.columns, order.rule(), top=max(order.top, 1))
    sketch = _sketch(order, table)
    with closing(table):
        (_detect_in_stream if order.is_stream else _detect_in_table)(order, table, found, sketch)
    _print(order, found)
    if sketch is not None and order.plot:
        sketch.draw(order.plot, found.findings())
    return found.n_flagged


def _sketch(order: Order, table: Table) -> Sketch | None:
    """What will be drawn, if anything."""
    if order.plot is None:
        return None
    from polyaforest.cli._picture import Sketch

    return Sketch(table.columns)


def _detect_in_table(order: Order, table: Table, found: Findings, sketch: Sketch | None) -> None:
    """Judge a table as a whole."""
    from polyaforest.cli._judging import TableJudge, gathered, worst_places

    whole = gathered(options.counting(table, order.quiet))
    _tell_what_was_read(order, table)
    if len(whole.rows) > _MANY:
        options.say("That is a lot to hold in memory at once; --stream judges as it reads.", order.quiet)
    judge = TableJudge(whole, table.columns.used, order.rule())
    judged = judge.judge()
    if judge.too_small:
        options.say(_too_small_in_words(order, judge.too_small), order.quiet)
    found.add(judged if sketch is None else sketch.add(judged))
    found.close()
    found.explain(judge.explain, whole.numbers)
    if order.out:
        worst = worst_places(judged, _MOST_REASONS)
        _write(order, found, [judged._replace(explanations=judge.explain(worst))])


def _detect_in_stream(order: Order, table: Table, found: Findings, sketch: Sketch | None) -> None:
    """Judge rows as they are read, in bounded memory."""
    from polyaforest.cli._judging import StreamJudge, pieces_of, with_keys_that_come_again

    chunks = with_keys_that_come_again(options.counting(table, order.quiet))
    if order.key is None:
        chunks = pieces_of(chunks, _ROWS_OF_STREAM)
    with StreamJudge(table.columns.used, order.rule()) as judge:
        parts: Iterator[Judged] = (found.add(judge.judge(chunk)) for chunk in chunks)
        if sketch is not None:
            parts = map(sketch.add, parts)
        if order.out:
            _write(order, found, parts)
        else:
            deque(parts, maxlen=0)
    found.close()
    _tell_what_was_read(order, table)
    if found.n_rows <= _LEAST_OF_STREAM * max(found.n_keys, 1):
        options.say(f"A stream is not judged before its first {_LEAST_OF_STREAM} rows have come.", order.quiet)


def _tell_what_was_read(order: Order, table: Table) -> None:
    from polyaforest.cli._report import reading_in_words

    for line in reading_in_words(table, order.files):
        options.say(line, order.quiet)


def _too_small_in_words(order: Order, too_small: dict[str, int]) -> str:
    from polyaforest.cli._report import count, listed

    names = listed(f"{key} ({n:,})" for key, n in too_small.items())
    return f"Not judged, for too few rows: {count(len(too_small), 'value')} of {order.key}: {names}."


def _write(order: Order, found: Findings, parts: Iterable[Judged]) -> None:
    """Write every row, or only those flagged, with what was found about it."""
    from polyaforest.cli._judging import flagged_of
    from polyaforest.io.results import open_results

    assert order.out is not None
    with open_results(order.out, spreadsheet_safe=order.spreadsheet_safe) as results:
        for part in parts:
            results.write(found.written(flagged_of(part) if order.only_anomalies else part))


def _print(order: Order, found: Findings) -> None:
    """The report, to stdout unless the results are already there."""
    from polyaforest.cli._report import report

    to_stderr = order.out == "-"
    if to_stderr and order.quiet:
        return
    color = False if os.environ.get("NO_COLOR") else None
    words = report(found.summary(), found.findings()[: order.top], is_written=order.out is not None)
    click.echo(words, err=to_stderr, color=color)
