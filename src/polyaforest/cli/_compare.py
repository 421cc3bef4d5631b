"""`polyaforest compare`: report whether two files have the same distribution, how far apart they are, and where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest.drift import Comparison
    from polyaforest.io.reading import Reading
    from polyaforest.io.tables import Table
    from polyaforest.tables.validation import NamedRows


@dataclass(frozen=True)
class CompareOptions:
    """The options, by name."""

    before: str
    after: str
    columns: list[str] | None
    categories: Sequence[str] | None
    time: str | None
    format: str | None
    ignore: list[str] | None
    reading: Reading
    strict: bool
    alpha: float
    least_effect: float
    block_size: int | None
    permutations: int
    seed: int
    as_json: bool
    html: str | None
    quiet: bool

    def __post_init__(self) -> None:
        """Reject combinations that cannot work."""
        if self.before == self.after == "-":
            raise click.UsageError("Only one of the files can be standard input.")
        if self.html == "-":
            raise click.UsageError("--html needs a file name.")
        if self.alpha * (self.permutations + 1) < 1:
            least = round(1 / self.alpha) - 1
            raise click.UsageError(f"--alpha {self.alpha:g} needs at least --permutations {least}.")

    @property
    def paths(self) -> tuple[str, str]:
        """Both files."""
        return self.before, self.after

    def open_table(self, path: str, columns: Sequence[str] | None, categories: Sequence[str] | None) -> Table:
        """Open one of the files."""
        from polyaforest.io.tables import open_table

        return open_table(
            [path],
            format=self.format,
            columns=columns,
            categories=categories,
            time=self.time,
            ignore=self.ignore or (),
            strict=self.strict,
            reading=self.reading,
        )


_HELP = """Report whether the rows of AFTER have the same distribution as those of BEFORE: how far apart they are, where
they differ, and which columns contribute.

Files are read as by `detect`, and columns matched by name. Columns of numbers are compared, and text with few different
values, as categories. A missing value is a value of its own. Times, ids and free text are skipped, and listed.

Exits with status 1, as diff does, if the rows have changed: the difference is significant (--alpha) and may be as large
as --least-effect. With many rows any difference is significant; then its size decides.

\b
Examples:
  polyaforest compare last-release.parquet this-release.parquet
  polyaforest compare monday.csv tuesday.csv --least-effect 0.05 --html report.html
  polyaforest compare --block-size 288 last-week.csv this-week.csv
  polyaforest compare before.csv after.csv --json | jq .regions
"""


@click.command(help=_HELP)
@click.argument("before", metavar="BEFORE", type=click.Path())
@click.argument("after", metavar="AFTER", type=click.Path())
@options.columns
@options.ignore
@options.categories
@options.time
@options.format_
@options.reading
@options.strict
@click.option(
    "--alpha",
    metavar="RATE",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    help="Rate at which files of the same distribution may count as changed.",
)
@click.option(
    "--least-effect",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Share of rows below which a difference does not matter.",
)
@click.option(
    "--block-size",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of consecutive rows that depend on each other, for rows in order of time.",
)
@click.option(
    "--permutations",
    metavar="N",
    type=click.IntRange(min=1),
    default=199,
    show_default=True,
    help="Number of random permutations of the rows between both files, for the p-value.",
)
@options.seed
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--html", metavar="FILE", type=click.Path(), help="Write a report with a chart to FILE, one HTML page.")
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run `polyaforest compare`."""
    chosen = CompareOptions(**given)
    if chosen.html:
        _check_place(chosen)
    lines: list[str] = []
    result = compare_files(chosen, lines)
    if chosen.html:
        from polyaforest.cli._comparison_page import comparison_page
        from polyaforest.cli._page import command_line, write_page

        write_page(chosen.html, comparison_page(result, lines, command_line(ctx)))
    _print(chosen, result)
    if result.is_changed:
        ctx.exit(1)


def _check_place(chosen: CompareOptions) -> None:
    """Check that the report can be written, before reading anything."""
    from polyaforest.cli._page import check_page_place
    from polyaforest.plots.canvas import matplotlib

    assert chosen.html is not None
    check_page_place(chosen.html, chosen.paths)
    matplotlib()


def compare_files(chosen: CompareOptions, lines: list[str] | None = None) -> Comparison:
    """Read both files and compare their rows; append what was read to `lines`."""
    from polyaforest.cli._reports import input_lines
    from polyaforest.cli._warmup import compile_first
    from polyaforest.drift import compare

    tables = _open_both(chosen)
    with closing(tables[0]), closing(tables[1]):
        rows = [_read(table, chosen.quiet) for table in tables]
        if lines is not None:
            lines += [line for table in tables for line in input_lines(table)]
    compile_first("comparison", chosen.quiet)
    result: Comparison = compare(
        *rows,
        alpha=chosen.alpha,
        least_effect=chosen.least_effect,
        block_size=chosen.block_size,
        n_permutations=chosen.permutations,
        random_state=chosen.seed,
        n_jobs=-1,
    )
    named = [table.sources[0] if len(table.sources) == 1 else f"{len(table.sources)} files" for table in tables]
    return replace(result, samples=(named[0], named[1]))


def _open_both(chosen: CompareOptions) -> list[Table]:
    """Open both files with the same columns: those used in either file.

    Otherwise a column that is constant in one file, or a different constant in each, would be skipped.
    """
    from polyaforest.io.errors import BadInput

    tables = [chosen.open_table(path, chosen.columns, chosen.categories) for path in chosen.paths]
    try:
        _check_columns_match(tables)
        times = {table.columns.time for table in tables}
        constant = _changed_constants(tables)
        used = dict.fromkeys(name for table in tables for name in (*table.columns.used, *constant))
        wanted = [name for name in used if name not in times]
        of_text = {name for table in tables for name in table.columns.categories}
        of_text |= {name for name, is_text in constant.items() if is_text}
        for at, table in enumerate(tables):
            if set(table.columns.used) != set(wanted):
                if chosen.paths[at] == "-":
                    raise BadInput("Standard input can be read only once: select the columns with --columns.")
                table.close()
                again = chosen.open_table(chosen.paths[at], wanted, [name for name in wanted if name in of_text])
                tables[at] = _with_first_notes(again, table)
    except BaseException:
        for table in tables:
            table.close()
        raise
    return tables


def _check_columns_match(tables: Sequence[Table]) -> None:
    """Raise BadInput if a column is not in both files, or holds text in one and numbers in the other."""
    from polyaforest.io.errors import BadInput

    for one, other in (tables, tables[::-1]):
        known = {*other.columns.used, *other.columns.skipped, *filter(None, [other.columns.time])}
        lacking = [name for name in one.columns.used if name not in known]
        if lacking:
            raise BadInput(
                f"{other.sources[0]} has no column '{lacking[0]}', which {one.sources[0]} has. "
                "Select the columns to compare with --columns."
            )
        mixed = [name for name in one.columns.categories if name in other.columns.numeric]
        if mixed:
            raise BadInput(
                f"Column '{mixed[0]}' holds text in {one.sources[0]}, and numbers in {other.sources[0]}. "
                f"Compare it as categories with --categories {mixed[0]}, or leave it out with --columns."
            )


def _changed_constants(tables: Sequence[Table]) -> dict[str, bool]:
    """Return columns that are a different constant in each file, and whether they are text."""
    before, after = (table.columns.skipped for table in tables)
    both = [name for name, reason in before.items() if reason.startswith("constant ") and name in after]
    changed = [name for name in both if after[name].startswith("constant ") and after[name] != before[name]]
    return {name: any(reasons[name].startswith("constant '") for reasons in (before, after)) for name in changed}


def _with_first_notes(again: Table, first: Table) -> Table:
    """Return a reopened table with the notes about its columns from when it was opened first."""
    from polyaforest.io.reading import Interpretation

    skipped = {name: first.columns.skipped.get(name, reason) for name, reason in again.columns.skipped.items()}
    again.columns = replace(again.columns, skipped=skipped)
    if again.columns.categories:
        known = Interpretation("as categories", ("--categories", "--numbers-only"), tuple(again.columns.categories))
        again.interpretations = [known, *again.interpretations]
    return again


def _read(table: Table, quiet: bool) -> NamedRows:
    """Return the rows of a file, and report what was read."""
    from polyaforest.io.tables import gather

    rows = gather(options.with_progress(table, quiet)).named(table.columns)
    options.echo_input(table, quiet)
    return rows


def _print(chosen: CompareOptions, result: Comparison) -> None:
    """Print the result."""
    if chosen.as_json:
        click.echo(result.to_json(indent=2))
        return
    first, _, rest = str(result).partition("\n")
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style(first, bold=True)}\n{rest}", color=color)
