"""`polyaforest explain`: why a model finds a row as strange as it does."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest.cli._models import Model
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Chunk, Table


_HELP = """Say why rows of FILE... are as strange, or as normal, as a model finds them.

Rows are numbered as in the reports of `detect` and `score`.

\b
Examples:
  polyaforest explain -m model.mpf today.csv --row 4211
  polyaforest explain -m model.mpf today.csv --row 4211 --json | jq .blamed
"""


@click.command(help=_HELP)
@options.model
@options.stream_key
@options.files
@click.option(
    "--row",
    "wanted",
    metavar="N",
    type=click.IntRange(min=1),
    multiple=True,
    required=True,
    help="The number of the row, from 1, the header not counted; may be repeated.",
)
@options.columns
@options.time
@options.format_
@options.strict
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row instead of words.")
@options.quiet
def command(model: str, files: tuple[str, ...], wanted: tuple[int, ...], **given: Any) -> None:
    """Run `polyaforest explain`."""
    from polyaforest.cli._models import Model

    as_json, quiet = given.pop("as_json"), given.pop("quiet")
    judge = Model(model, key=given.pop("stream"))
    numbers = list(dict.fromkeys(wanted))
    with closing(judge.open_table(files, **given)) as table:
        explanations = _explained(judge, table, numbers, quiet)
    for number in numbers:
        _print(number, explanations[number], as_json=as_json, is_alone=len(numbers) == 1)


def _explained(model: Model, table: Table, numbers: list[int], quiet: bool) -> dict[int, Explanation]:
    """The explanations of rows, by their numbers; nothing is read beyond the last of them."""
    import numpy as np

    found: dict[int, Explanation] = {}
    leading: list[Chunk] = []
    for chunk in table.chunks():
        places = np.flatnonzero(np.isin(chunk.numbers, numbers)).tolist()
        leading = [*leading, chunk] if model.is_series else [chunk]
        if places:
            found |= _explain_some(model, leading, len(chunk.numbers), places)
            _tell_what_is_missing(table, chunk, places, quiet)
        if len(found) == len(numbers):
            return found
    raise _no_such_row(table, next(number for number in numbers if number not in found))


def _explain_some(model: Model, chunks: list[Chunk], n_last: int, places: list[int]) -> dict[int, Explanation]:
    """The explanations of rows at `places` of the last of some chunks, by their numbers."""
    from polyaforest.cli._judging import gathered

    whole = gathered(chunks)
    shifted = [len(whole.numbers) - n_last + place for place in places]
    numbers = [int(whole.numbers[place]) for place in shifted]
    return dict(zip(numbers, model.explain(whole, shifted), strict=True))


def _tell_what_is_missing(table: Table, chunk: Chunk, places: list[int], quiet: bool) -> None:
    """Say which values were filled in."""
    import numpy as np

    from polyaforest.cli._report import listed

    for place in places:
        names = [table.columns.used[k] for k in np.flatnonzero(np.isnan(chunk.rows[place])).tolist()]
        if names:
            words = f"Row {chunk.numbers[place]:,} has no {listed(names)}: explained with what the model would expect."
            options.say(words, quiet)


def _no_such_row(table: Table, number: int) -> ValueError:
    """The error for a row that is not there, or could not be read."""
    for row in table.rejected:
        if row.number == number:
            return ValueError(f"row {number:,} cannot be read: {row.reason}")
    n_rows = table.n_rows + table.n_rejected
    if number <= n_rows:
        return ValueError(f"row {number:,} cannot be read: --strict says why")
    return ValueError(f"there is no row {number:,}: the input has {n_rows:,}")


def _print(number: int, explanation: Explanation, *, as_json: bool, is_alone: bool) -> None:
    """One explanation, to stdout."""
    from polyaforest.io._json import to_json

    if as_json:
        click.echo(to_json({"row": number, **explanation.to_dict()}).decode())
    else:
        head = "" if is_alone else click.style(f"Row {number:,}\n", bold=True)
        click.echo(f"{head}{explanation}" + ("" if is_alone else "\n"))
