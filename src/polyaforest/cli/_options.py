"""Options that several commands have, under the same name and with the same meaning."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli._screen import CLEAR_LINE
from polyaforest.core.text import printable

if TYPE_CHECKING:
    from polyaforest.io.tables import Chunk, Table

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

KEY_OF_STREAMS = "Judge the rows of each value of this column by themselves: one host, one customer at a time."
KEY_OF_ROWS = "Name each row by this column, so that `forget` can take it out again. Rows may share a name."
WINDOW = 1024  # points that a stream holds unless told otherwise


def together(*decorators: Decorator) -> Decorator:
    """Several decorators as one, the first the outermost."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _read_names(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[str] | None:
    """Names separated by commas, of an option that may be repeated."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if texts and not names:
        raise click.BadParameter("give at least one name", ctx, option)
    return list(dict.fromkeys(names)) or None


files = click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
columns = click.option(
    "--columns",
    metavar="A,B,...",
    multiple=True,
    callback=_read_names,
    help="Use these columns, not all that are numbers.",
)
time = click.option("--time", metavar="COLUMN", help="The column that says when; found by itself if it is plain.")
id_ = click.option("--id", metavar="COLUMN", help="The column that names rows in what is printed and written.")
format_ = click.option(
    "--format", type=click.Choice(["csv", "tsv", "parquet", "jsonl"]), help="Of the input, if its name does not tell."
)
strict = click.option("--strict", is_flag=True, help="Stop at the first row that cannot be read.")
model = click.option(
    "-m", "--model", metavar="MODEL", required=True, type=click.Path(), help="The model file, such as model.mpf."
)
stream_key = click.option(
    "--key", "stream", metavar="STREAM", help="Which stream, of a file that `watch --key` keeps models in."
)
seed = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all that is random.")
quiet = click.option("-q", "--quiet", is_flag=True, help="No words on stderr but errors.")
out = click.option(
    "--out",
    metavar="FILE",
    type=click.Path(),
    help="Write the rows, with scores and reasons: .csv, .tsv, .parquet, .jsonl, or - for stdout.",
)
only_anomalies = click.option("--only-anomalies", is_flag=True, help="Write the flagged rows only.")
spreadsheet_safe = click.option(
    "--spreadsheet-safe",
    is_flag=True,
    help="Put ' before text in CSV that a spreadsheet would run as a formula. Without it, text is exact.",
)
fail_on_anomaly = click.option("--fail-on-anomaly", is_flag=True, help="Exit with 1 if any row is flagged.")
shingle = click.option(
    "--shingle", metavar="N", type=click.IntRange(min=1), help="For time series: judge N rows in a row together."
)
window = click.option(
    "--window", metavar="N", type=click.IntRange(min=2), help=f"Rows that a stream remembers. [default: {WINDOW}]"
)
false_alarm_rate = click.option(
    "--false-alarm-rate",
    metavar="RATE",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Flag rows with a p-value of at most RATE: about that share of normal rows.",
)
epsilon = click.option(
    "--epsilon",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Flag rows whose leaf holds at most this share of the probability ...",
)
phi = click.option(
    "--phi",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="... in at least this share of the trees. [default: 0.8]",
)
batch = click.option("--batch", "kind", flag_value="batch", help="Count rows in fixed partitions (BatchMPF).")
stream = click.option(
    "--stream", "kind", flag_value="stream", help="One pass in order, in little memory: each row by those before it."
)


def key(words: str) -> Decorator:
    """`--key`, which means one thing for streams and another for rows."""
    return click.option("--key", metavar="COLUMN", help=words)


def reading(key_words: str | None = None) -> Decorator:
    """The files to read, and what is said about their columns."""
    about_keys = [] if key_words is None else [key(key_words)]
    return together(files, columns, time, *about_keys, id_, format_, strict)


def flagging() -> Decorator:
    """Where to draw the line."""
    return together(false_alarm_rate, epsilon, phi)


def refuse_two(**given: Any) -> None:
    """A usage error if more than one of these options is given."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise click.UsageError(f"{' and '.join(names)} contradict each other: give one of them.")


def say(words: str, quiet: bool = False) -> None:
    """A line of words for the person at the terminal."""
    if words and not quiet:
        with suppress(OSError):  # nobody reads them any more, which is no reason to stop
            click.echo(printable(words), err=True)


def counting(table: Table, quiet: bool = False) -> Iterator[Chunk]:
    """The chunks of a table, with a count of the rows read so far if somebody is there to see it."""
    if quiet or not sys.stderr.isatty():
        yield from table.chunks()
        return
    try:
        for chunk in table.chunks():
            click.echo(f"{CLEAR_LINE}{table.n_rows:,} rows read ", err=True, nl=False)
            yield chunk
    finally:
        click.echo(CLEAR_LINE, err=True, nl=False)
