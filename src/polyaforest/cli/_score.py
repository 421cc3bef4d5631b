"""`polyaforest score`: score the rows of a file with a model, without learning them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from polyaforest.cli import _options as options

_HELP = """Score the rows of FILE... with a model, without changing it.

Writes the number of each row, its score (higher is more normal), its p-value and whether it is flagged. Columns are
matched by name.

\b
Examples:
  polyaforest score -m model.mpf today.csv
  polyaforest score -m model.mpf today.csv --only-anomalies --out anomalies.jsonl --id request
"""


@click.command(help=_HELP)
@options.model
@options.partition
@options.files
@options.columns_option("those of the model")
@options.time
@options.id_
@options.format_
@options.reading
@options.strict
@options.false_alarm_rate
@click.option(
    "--out",
    metavar="FILE",
    default="-",
    show_default=True,
    type=click.Path(),
    help="File to write: .csv, .tsv, .parquet or .jsonl; - for stdout.",
)
@options.only_anomalies
@options.spreadsheet_safe
@options.quiet
@options.fail_on_anomaly
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    by: str | None,
    files: tuple[str, ...],
    false_alarm_rate: float | None,
    out: str,
    only_anomalies: bool,
    spreadsheet_safe: bool,
    quiet: bool,
    fail_on_anomaly: bool,
    **reading: Any,
) -> None:
    """Run `polyaforest score`."""
    from polyaforest.cli._findings import result_columns
    from polyaforest.cli._warmup import compile_first
    from polyaforest.io.results import Results
    from polyaforest.io.tables import gather
    from polyaforest.judge.saved import SavedModel
    from polyaforest.util.text import count

    results = Results(out, spreadsheet_safe=spreadsheet_safe)
    saved = SavedModel(model, by, false_alarm_rate)
    n_flagged = 0
    compile_first("table", quiet)
    with closing(saved.open_table(files, **reading)) as table, results:
        chunks = options.with_progress(table, quiet)
        for chunk in [gather(chunks)] if saved.is_series else chunks:  # each row of a series depends on earlier ones
            found = saved.detect(chunk)
            n_flagged += int(found.is_anomaly.sum())
            results.write(result_columns(found.flagged() if only_anomalies else found, table.columns))
    options.echo_input(table, quiet)
    options.echo(f"{count(n_flagged, 'row')} flagged.", quiet)
    if n_flagged and fail_on_anomaly:
        ctx.exit(1)
