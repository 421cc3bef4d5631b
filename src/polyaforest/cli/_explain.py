"""`polyaforest explain`: explain the score of single rows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Table, TableChunk
    from polyaforest.judge.saved import SavedModel


_HELP = """Explain why a model finds rows of FILE... anomalous or normal.

Rows are numbered as in the output of `detect` and `score`.

\b
Examples:
  polyaforest explain -m model.mpf today.csv --row 4211
  polyaforest explain -m model.mpf today.csv --row 4211 --json | jq .attributions
"""


@click.command(help=_HELP)
@options.model
@options.partition
@options.files
@click.option(
    "--row",
    "wanted",
    metavar="N",
    type=click.IntRange(min=1),
    multiple=True,
    required=True,
    help="Row number, from 1, without the header; may be repeated.",
)
@options.columns_option("those of the model")
@options.time
@options.format_
@options.reading
@options.strict
@options.false_alarm_rate
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row.")
@options.quiet
def command(
    model: str,
    by: str | None,
    files: tuple[str, ...],
    wanted: tuple[int, ...],
    false_alarm_rate: float | None,
    as_json: bool,
    quiet: bool,
    **reading: Any,
) -> None:
    """Run `polyaforest explain`."""
    from polyaforest.cli._warmup import compile_first
    from polyaforest.judge.saved import SavedModel

    saved = SavedModel(model, by, false_alarm_rate)
    numbers = list(dict.fromkeys(wanted))
    with closing(saved.open_table(files, **reading)) as table:
        compile_first("table", quiet)
        explanations = _explained(saved, table, numbers, quiet)
    for number in numbers:
        _print(number, explanations[number], as_json=as_json, is_only=len(numbers) == 1)


def _explained(saved: SavedModel, table: Table, numbers: list[int], quiet: bool) -> dict[int, Explanation]:
    """Return explanations by row number; read no further than the last one."""
    import numpy as np

    from polyaforest.io.tables import gather

    found: dict[int, Explanation] = {}
    leading: list[TableChunk] = []
    for chunk in table.chunks():
        places = np.flatnonzero(np.isin(chunk.numbers, numbers))
        leading = [*leading, chunk] if saved.is_series else [chunk]
        if len(places):
            whole = gather(leading)
            shifted = (len(whole.numbers) - len(chunk.numbers) + places).tolist()
            found |= zip(chunk.numbers[places].tolist(), saved.explain(whole, shifted), strict=True)
            _report_imputed(table, chunk, places.tolist(), quiet)
        if len(found) == len(numbers):
            return found
    raise _no_such_row(table, next(number for number in numbers if number not in found))


def _report_imputed(table: Table, chunk: TableChunk, places: list[int], quiet: bool) -> None:
    """Report imputed values."""
    import numpy as np

    from polyaforest.util.text import listed

    for place in places:
        names = [table.columns.used[k] for k in np.flatnonzero(np.isnan(chunk.rows[place])).tolist()]
        if names:
            options.echo(f"Row {chunk.numbers[place]:,} has no {listed(names)}: explained with imputed values.", quiet)


def _no_such_row(table: Table, number: int) -> ValueError:
    """Return the error for a row that does not exist or cannot be read."""
    for row in table.rejected:
        if row.number == number:
            return ValueError(f"row {number:,} cannot be read: {row.reason}")
    n_rows = table.n_rows + table.n_rejected
    if number <= n_rows:
        return ValueError(f"row {number:,} cannot be read: add --strict to see why")
    return ValueError(f"there is no row {number:,}: the input has {n_rows:,} rows")


def _print(number: int, explanation: Explanation, *, as_json: bool, is_only: bool) -> None:
    """Print one explanation."""
    from polyaforest.io.json_values import to_json

    if as_json:
        click.echo(to_json({"row": number, **explanation.to_dict()}).decode())
    else:
        head = "" if is_only else click.style(f"Row {number:,}\n", bold=True)
        click.echo(f"{head}{explanation}" + ("" if is_only else "\n"))
