"""`polyaforest score`: the rows of a file by a model that stays as it is."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from polyaforest.cli._models import Model, Verdicts
    from polyaforest.io.results import Results
    from polyaforest.io.tables import Chunk, Columns, Table


_HELP = """Score the rows of FILE... by a model, which learns nothing from them.

Writes for each row its number, its score (higher is more normal), its p-value (the share of what the model knows
that is as strange) and whether it is an anomaly. Columns are found by the names that the model has for them.

\b
Examples:
  polyaforest score -m model.mpf today.csv
  polyaforest score -m model.mpf today.csv --only-anomalies --out odd.jsonl --id request
"""


@click.command(help=_HELP)
@options.model
@options.stream_key
@options.files
@options.columns
@options.time
@options.id_
@options.format_
@options.strict
@options.flagging()
@click.option(
    "--out",
    metavar="FILE",
    default="-",
    show_default=True,
    type=click.Path(),
    help="Where to write: .csv, .tsv, .parquet, .jsonl, or - for stdout.",
)
@options.only_anomalies
@options.spreadsheet_safe
@options.quiet
@options.fail_on_anomaly
@click.pass_context
def command(ctx: click.Context, /, model: str, files: tuple[str, ...], **given: Any) -> None:
    """Run `polyaforest score`."""
    out, quiet = given.pop("out"), given.pop("quiet")
    fails, only_anomalies, is_safe = map(given.pop, ("fail_on_anomaly", "only_anomalies", "spreadsheet_safe"))
    wishes = _wishes(given.pop("false_alarm_rate"), given.pop("epsilon"), given.pop("phi"))
    from polyaforest.io.results import open_results

    place = open_results(out, spreadsheet_safe=is_safe)
    n_flagged = _score(model, files, wishes, given, place, only_anomalies=only_anomalies, quiet=quiet)
    if n_flagged and fails:
        ctx.exit(1)


def _wishes(rate: float | None, epsilon: float | None, phi: float | None) -> Any:
    """Which rows to flag."""
    from polyaforest.cli._models import Wishes

    options.refuse_two(false_alarm_rate=rate, epsilon=epsilon)
    if phi is not None and epsilon is None:
        raise click.UsageError("--phi needs --epsilon.")
    return Wishes(rate, epsilon, 0.8 if phi is None else phi)


def _score(
    path: str,
    files: tuple[str, ...],
    wishes: Any,
    reading: dict[str, Any],
    place: Results,
    *,
    only_anomalies: bool,
    quiet: bool,
) -> int:
    """Read, judge and write chunk by chunk; the number of rows flagged."""
    from polyaforest.cli._models import Model
    from polyaforest.cli._report import count, reading_in_words

    model = Model(path, wishes, reading.pop("stream"))
    n_flagged = 0
    with closing(model.open_table(files, **reading)) as table, place as results:
        for chunk in _chunks(model, table, quiet):
            verdicts = model.judge(chunk)
            n_flagged += int(verdicts.is_anomaly.sum())
            results.write(_written(chunk, verdicts, table.columns, only_anomalies=only_anomalies))
    for line in [*reading_in_words(table, files), f"{count(n_flagged, 'row')} flagged."]:
        options.say(line, quiet)
    return n_flagged


def _chunks(model: Model, table: Table, quiet: bool) -> Iterable[Chunk]:
    """The rows in chunks; those of a series all at once, since each is judged by those before it."""
    from polyaforest.cli._judging import gathered

    chunks = options.counting(table, quiet)
    return [gathered(chunks)] if model.is_series else chunks


def _written(chunk: Chunk, verdicts: Verdicts, columns: Columns, *, only_anomalies: bool) -> dict[str, Any]:
    """What is to be written of rows."""
    import numpy as np

    from polyaforest.cli._findings import apart
    from polyaforest.cli._judging import chosen_of
    from polyaforest.cli._report import stamp

    places = np.flatnonzero(verdicts.is_anomaly) if only_anomalies else np.arange(len(verdicts.scores))
    chunk = chosen_of(chunk, places)
    p_values = np.full(len(verdicts.scores), np.nan) if verdicts.p_values is None else verdicts.p_values
    facts = {"score": verdicts.scores, "p_value": p_values, "is_anomaly": verdicts.is_anomaly}
    written: dict[str, Any] = {"row": chunk.numbers}
    if columns.time and chunk.times is not None:
        written[apart(columns.time, facts)] = [stamp(time) for time in chunk.times.tolist()]
    if columns.id and chunk.ids is not None:
        written[apart(columns.id, facts)] = chunk.ids
    return {**written, **{name: values[places] for name, values in facts.items()}}
