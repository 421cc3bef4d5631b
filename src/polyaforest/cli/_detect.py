"""`polyaforest detect`: find and explain the anomalies in a file."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import click

from polyaforest.cli import _options as options
from polyaforest.settings.stream import WINDOW

if TYPE_CHECKING:
    from polyaforest.cli._detect_page import Run
    from polyaforest.cli._findings import Findings
    from polyaforest.cli._picture import Picture
    from polyaforest.io.tables import Table, TableChunk
    from polyaforest.judge.table import Detected, DetectorSettings

_ROWS_OF_STREAM = 4_096  # scored at a time without partitions: those up to the last flagged one are learned twice
_MANY = 5_000_000  # rows in memory that deserve a warning
_MOST_ON_PAGE = 100  # findings in the report
_MOST_REASONS = 10_000  # rows of a table that are explained in the output


@dataclass(frozen=True)
class DetectOptions(options.TableOptions):
    """The options, by name."""

    by: list[str] | None
    calibrate_by: str | None
    seed: int
    top: int
    min_severity: int
    is_verbose: bool
    out: str | None
    only_anomalies: bool
    spreadsheet_safe: bool
    plot: str | None
    html: str | None
    fail_on_anomaly: bool

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        super().__post_init__()
        if self.kind == "batch" and self.shingle is not None:
            raise click.UsageError("--shingle needs the order of rows, which --batch ignores.")
        if self.calibrate_by is not None:
            for name, why in (
                ("is_stream", "--stream and --shingle"),
                ("is_series", "--series"),
                ("epsilon", "--epsilon"),
            ):
                if getattr(self, name):
                    raise click.UsageError(f"--calibrate-by is for the p-values of whole tables: omit {why}.")
            if self.weight is not None:
                raise click.UsageError("--calibrate-by and --weight are mutually exclusive.")
        if self.epsilon is not None and self.min_severity > 1:
            raise click.UsageError("--min-severity needs p-values, which --epsilon does not give: omit one of the two.")
        for name in ("plot", "html"):
            if getattr(self, name) == "-":
                raise click.UsageError(f"--{name} needs a file name.")
        for name in ("only_anomalies", "spreadsheet_safe"):
            if getattr(self, name) and self.out is None:
                raise click.UsageError(f"--{name.replace('_', '-')} applies to the rows written: add --out FILE.")

    def settings(self) -> DetectorSettings:
        """Return the settings of the detector."""
        from polyaforest.judge.table import DetectorSettings

        return DetectorSettings(
            kind="stream" if self.is_stream else self.kind,
            seed=self.seed,
            window=(self.window or WINDOW) if self.is_stream else None,
            shingle=self.shingle,
            is_series=self.is_series
            or (False if self.is_stream or self.weight or self.calibrate_by else self.is_series),
            false_alarm_rate=self.false_alarm_rate,
            epsilon=self.epsilon,
            phi=self.phi,
            n_jobs=1 if self.is_stream and self.by else -1,  # chunks of a partition are too small for threads
        )


_HELP = """Find the anomalous rows of FILE... and explain them, the most anomalous first.

FILE is CSV, TSV, JSON, Parquet, Arrow, ORC, Excel, SQLite or the log of a web server, optionally compressed; a pattern
or a directory; a database address such as postgresql://host/name, with --query; or - for standard input. The notation
of numbers and dates is detected and printed. All numeric columns are used, and text columns with few different values,
such as countries; ids and free text are ignored.

Each row is compared with all others or, with --stream, with earlier ones. If times are evenly spaced and neighbouring
rows similar, the input is a time series: each row is then scored together with the rows leading up to it.

\b
Examples:
  polyaforest detect server-metrics.csv
  polyaforest detect server-metrics.csv --by host --out scored.csv --plot scored.png
  polyaforest detect export.xlsx --ignore label --missing-values -1,unknown
  polyaforest detect "postgresql://me@localhost/sales" --query "SELECT * FROM orders"
  polyaforest detect --shingle 12 --columns latency_ms server-metrics.csv
  zcat huge.csv.gz | polyaforest detect --stream --only-anomalies --out anomalies.jsonl -
"""


@click.command(help=_HELP)
@options.files
@options.columns
@options.ignore
@options.categories
@options.time
@options.by
@options.id_
@options.weight
@options.calibrate_by
@options.format_
@options.reading
@options.strict
@options.batch
@options.stream
@options.window
@options.series("detected from times and values")
@options.shingle
@options.flagging()
@options.seed
@click.option(
    "--top", metavar="N", type=click.IntRange(min=0), default=10, show_default=True, help="Number of findings to print."
)
@options.min_severity("Print and count only findings")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Also print the features of a time series.")
@options.out
@options.only_anomalies
@options.spreadsheet_safe
@click.option("--plot", metavar="FILE", type=click.Path(), help="Plot the findings to FILE (.png, .svg or .pdf).")
@click.option("--html", metavar="FILE", type=click.Path(), help="Write a report with pictures to FILE, one HTML page.")
@options.quiet
@options.fail_on_anomaly
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run `polyaforest detect`."""
    from polyaforest.cli._page import command_line

    chosen = DetectOptions(**given)
    check_places(chosen)
    if detect(chosen, command_line(ctx) if chosen.html else "") and chosen.fail_on_anomaly:
        ctx.exit(1)


def check_places(chosen: DetectOptions) -> None:
    """Raise if an output cannot be written, before reading anything."""
    from polyaforest.io.paths import expand_paths

    inputs = [os.path.realpath(file) for file in expand_paths(chosen.files) if file != "-"]
    for path in filter(None, (chosen.out, chosen.plot, chosen.html)):
        if os.path.realpath(path) in inputs:
            raise ValueError(f"{path} is also the input: write to another file")
    if chosen.out:
        from polyaforest.io.results import Results

        Results(chosen.out, spreadsheet_safe=chosen.spreadsheet_safe)
    if chosen.plot:
        from polyaforest.cli._picture import check_place

        check_place(chosen.plot)
    if chosen.html:
        from polyaforest.cli._page import check_page_place

        check_page_place(chosen.html, inputs)


def detect(chosen: DetectOptions, command: str = "") -> int:
    """Read, detect, explain, write and print; return the number of findings."""
    from polyaforest.cli._findings import Findings
    from polyaforest.cli._warmup import compile_first

    table = chosen.open_table(chosen.columns, chosen.categories, chosen.by or (), chosen.calibrate_by)
    top = max(chosen.top, 1) if chosen.html is None else max(chosen.top, _MOST_ON_PAGE)
    found = Findings(table.columns, chosen.settings(), top=top, min_severity=chosen.min_severity)
    seen = _Seen.of(chosen, table, command)
    with closing(table):
        compile_first("stream" if chosen.is_stream else chosen.kind or "table", chosen.quiet)
        (_detect_in_stream if chosen.is_stream else _detect_in_table)(chosen, table, found, seen)
    _print(chosen, found)
    seen.write(chosen, found)
    return found.n_findings


@dataclass
class _Seen:
    """Rows kept for the plot and for the report, if these are wanted."""

    picture: Picture | None = None
    run: Run | None = None

    @classmethod
    def of(cls, chosen: DetectOptions, table: Table, command: str) -> Self:
        """Return what the options ask for."""
        from polyaforest.cli._detect_page import Profile, Run
        from polyaforest.cli._picture import Picture

        run = Run(table, Profile(table.columns), command, chosen.seed) if chosen.html else None
        return cls(Picture(table.columns) if chosen.plot else None, run)

    def add(self, found: Detected) -> Detected:
        """Add rows, and return them."""
        if self.picture is not None:
            self.picture.add(found)
        if self.run is not None:
            self.run.profile.add(found)
        return found

    def note(self, words: str, quiet: bool) -> None:
        """Print how the rows were scored, and keep it for the report."""
        options.echo(words, quiet)
        if self.run is not None:
            self.run.notes.append(words)

    def write(self, chosen: DetectOptions, found: Findings) -> None:
        """Write the plot and the report."""
        from polyaforest.cli._reports import input_lines

        if self.picture is not None and chosen.plot:
            self.picture.draw(chosen.plot, found.findings()[: max(chosen.top, 1)])
        if self.run is not None and chosen.html:
            from polyaforest.cli._detect_page import detect_page
            from polyaforest.cli._page import write_page

            lines = input_lines(self.run.table)
            write_page(chosen.html, detect_page(self.run, found.summary(), found.findings(), lines))


def _detect_in_table(chosen: DetectOptions, table: Table, found: Findings, seen: _Seen) -> None:
    """Score a table as a whole."""
    import numpy as np

    from polyaforest.io.tables import gather
    from polyaforest.judge.table import TableDetector
    from polyaforest.util.text import count, listed

    whole = gather(options.with_progress(table, chosen.quiet))
    options.echo_input(table, chosen.quiet)
    if len(whole.rows) > _MANY:
        options.echo("All rows are held in memory; use --stream to need less.", chosen.quiet)
    detector = TableDetector(whole, table.columns, chosen.settings())
    detected = detector.detect()
    found.settings = detector.settings
    if detector.settings.is_series and not chosen.is_series:
        ignored = table.columns.categories
        without = f" Ignored: {listed(ignored)}, since a time series has numbers only." if ignored else ""
        words = "Scored as a time series: times are evenly spaced, neighbouring rows similar. Override with --rows."
        seen.note(words + without, chosen.quiet)
    if detector.too_small:
        names = listed(f"{name} ({n:,})" for name, n in detector.too_small.items())
        n_values = count(len(detector.too_small), "value")
        seen.note(f"Too few rows to score {n_values} of {table.columns.key}: {names}.", chosen.quiet)
    found.too_small = detector.too_small
    found.add(seen.add(detected))
    found.close()
    found.explain(detector.explain, whole.numbers)
    if seen.picture is not None:
        seen.picture.expect = lambda numbers: detector.expect(np.searchsorted(whole.numbers, numbers), detected)
    if chosen.out:
        worst = detector.explain(detected.worst(_MOST_REASONS))
        _write(chosen, found, [detected._replace(explanations=worst)])


def _detect_in_stream(chosen: DetectOptions, table: Table, found: Findings, seen: _Seen) -> None:
    """Score rows while they are read, in bounded memory."""
    from polyaforest.judge.table import StreamDetector

    chunks = _with_partitions_checked(options.with_progress(table, chosen.quiet))
    if chosen.by is None:
        chunks = (piece for chunk in chunks for piece in chunk.pieces(_ROWS_OF_STREAM))
    with StreamDetector(table.columns, chosen.settings()) as detector:
        parts: Iterator[Detected] = (found.add(detector.detect(chunk)) for chunk in chunks)
        parts = map(seen.add, parts)
        if chosen.out:
            _write(chosen, found, parts)
        else:
            deque(parts, maxlen=0)
    found.close()
    options.echo_input(table, chosen.quiet)


def _with_partitions_checked(chunks: Iterable[TableChunk]) -> Iterator[TableChunk]:
    """Yield the chunks; raise if the partitions of the first have too few rows."""
    from polyaforest.judge.table import check_partitions

    for number, chunk in enumerate(chunks):
        if number == 0:
            check_partitions(chunk.keys)
        yield chunk


def _write(chosen: DetectOptions, found: Findings, parts: Iterable[Detected]) -> None:
    """Write all rows, or only flagged ones, with their results."""
    from polyaforest.io.results import Results

    assert chosen.out is not None
    with Results(chosen.out, spreadsheet_safe=chosen.spreadsheet_safe) as results:
        for part in parts:
            results.write(found.to_columns(part.flagged() if chosen.only_anomalies else part))


def _print(chosen: DetectOptions, found: Findings) -> None:
    """Print the report, to stderr if the rows go to stdout."""
    from polyaforest.cli._reports import report

    to_stderr = chosen.out == "-"
    if to_stderr and chosen.quiet:
        return
    color = False if os.environ.get("NO_COLOR") else None
    findings = found.findings()[: chosen.top]
    text = report(found.summary(), findings, is_written=chosen.out is not None, is_verbose=chosen.is_verbose)
    click.echo(text, err=to_stderr, color=color)
