"""Options shared by several commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import click

from polyaforest.cli._screen import CLEAR_LINE
from polyaforest.io.reading import DATES, DECIMALS, Reading
from polyaforest.settings.stream import WINDOW, StreamSettings, flat_settings, option_of
from polyaforest.settings.values import Flag, Setting, Values
from polyaforest.util.text import printable

if TYPE_CHECKING:
    from polyaforest.io.tables import Table, TableChunk

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def combine(*decorators: Decorator) -> Decorator:
    """Combine decorators into one; the first is the outermost."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def read_names(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[str] | None:
    """Split names at commas, for an option that may be repeated."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if texts and not names:
        raise click.BadParameter("give at least one name", ctx, option)
    return list(dict.fromkeys(names)) or None


class _SettingType(click.ParamType["Any"]):
    """The value of a setting of a stream."""

    def __init__(self, values: Values) -> None:
        self._values, self.name = values, values.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text of an option; errors name the allowed values."""
        try:
            return self._values.parse(value) if isinstance(value, str) else value
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def stream_options(*names: str) -> Decorator:
    """Return the options of settings of a stream, by name; each is passed under its name with underscores."""
    return combine(*(_stream_option(name, flat_settings(StreamSettings)[name]) for name in names))


def _stream_option(name: str, setting: Setting) -> Decorator:
    default, values = StreamSettings().plain()[name], setting.values
    words = setting.default or ("none" if default is None or default is False else str(default))
    help = setting.help if words == "none" else f"{setting.help}  [default: {words}]"
    option, passed = option_of(name), name.replace(".", "_")
    if isinstance(values, Flag):
        flags = option if default is False else f"{option}/{option_of(name, False)}"
        return click.option(flags, passed, is_flag=True, default=default, help=help)
    return click.option(
        option,
        passed,
        type=_SettingType(values),
        metavar=values.metavar,
        multiple=values.is_repeated,
        callback=_joined if values.is_repeated else None,
        help=help,
    )


def _joined(ctx: click.Context, option: click.Parameter, parts: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...] | None:
    """Return the values of a repeated option together."""
    joined = tuple(part for one in parts for part in one)
    twice = [part for place, part in enumerate(joined) if part in joined[:place]]
    if twice:
        raise click.BadParameter(f"{twice[0]!r} is listed twice", ctx, option)
    return joined or None


def stream_settings(given: dict[str, Any]) -> StreamSettings:
    """Return the settings of a stream from the values of `stream_options`; raise a usage error for contradictions."""
    passed = {name: given[name.replace(".", "_")] for name in flat_settings(StreamSettings)}
    settings = StreamSettings(**{name: value for name, value in passed.items() if value is not None})
    for words in settings.conflicts(option_of):
        raise click.UsageError(f"{words}.")
    return settings


class StreamCommand(click.Command):
    """A command whose options had other names in earlier versions; errors name the new ones."""

    _FORMER: ClassVar[dict[str, str]] = {
        "--snapshot-every": "--save-records",
        "--snapshot-seconds": "--save-every",
        "--memory": "--memory-mb",
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as problem:
            new = self._FORMER.get(problem.option_name)
            if new is None:
                raise
            raise click.UsageError(f"{problem.option_name} is now {new}.", ctx) from problem


files = click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())


def columns_option(default: str) -> Decorator:
    """Return the option --columns; `default` describes its default."""
    return click.option(
        "--columns",
        metavar="A,B,...",
        multiple=True,
        callback=read_names,
        help=f"Columns to use.  [default: {default}]",
    )


columns = columns_option("numbers, and text with few different values")
_categories = click.option(
    "--categories",
    metavar="A,B,...",
    multiple=True,
    callback=read_names,
    help="Columns to use as categories, even if numeric.  [default: text with few different values]",
)
_numbers_only = click.option("--numbers-only", is_flag=True, help="Ignore text columns.")
time = click.option(
    "--time",
    metavar="COLUMN",
    help="Timestamp column, or DATE,TIME for a column of dates and one of times of day.  [default: detected if "
    "unambiguous]",
)
id_ = click.option("--id", metavar="COLUMN", help="Column that identifies rows in the output.")
by = click.option(
    "--by",
    metavar="A,B,...",
    multiple=True,
    callback=read_names,
    help="Columns that partition the rows, such as a host: each partition is scored separately.",
)
ignore = click.option(
    "--ignore", metavar="A,B,...", multiple=True, callback=read_names, help="Columns to leave out, such as labels."
)
weight = click.option("--weight", metavar="COLUMN", help="Column of row weights: 2 counts the row twice, 0 ignores it.")
calibrate_by = click.option(
    "--calibrate-by",
    metavar="COLUMN",
    help="Column of groups, such as a country: p-values are calibrated by group, so all are flagged equally often.",
)
format_ = click.option(
    "--format",
    type=click.Choice(["csv", "tsv", "jsonl", "json", "parquet", "arrow", "orc", "log"]),
    help="Input format.  [default: detected from name and content]",
)


def categories(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select categories, passed as `categories`: () for none, None to detect them."""

    @wraps(command)
    def run(*args: Any, numbers_only: bool, categories: list[str] | None, **given: Any) -> Any:
        if numbers_only and categories:
            raise click.UsageError("--categories and --numbers-only are mutually exclusive.")
        return command(*args, **given, categories=() if numbers_only else categories)

    return combine(_categories, _numbers_only)(run)


def _read_mark(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Return a delimiter or a comment mark."""
    mark = {"tab": "\t", "\\t": "\t", "none": ""}.get(text, text) if text is not None else None
    if mark is not None and not (mark.isascii() and '"' not in mark and "\n" not in mark):
        raise click.BadParameter("must be ASCII, without quotes", ctx, option)
    if option.name == "delimiter" and mark is not None and len(mark) != 1:
        raise click.BadParameter("must be one character, or tab", ctx, option)
    return mark


def _read_missing(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the values that mean "no value"; () for "none", None if the option is not given."""
    values = read_names(ctx, option, texts)
    return None if values is None else () if values == ["none"] else tuple(values)


def reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe the notation of files, passed as `reading`."""
    names = [
        click.option("--decimal", type=click.Choice(list(DECIMALS)), help="Decimal separator.  [default: detected]"),
        click.option(
            "--dates", type=click.Choice(DATES), help="Order of dates such as 01/02/2024.  [default: detected]"
        ),
        click.option(
            "--plain",
            is_flag=True,
            help="Accept only plain numbers such as -1234.5e6: no units, currencies or thousands separators.",
        ),
        click.option(
            "--delimiter", metavar="CHAR", callback=_read_mark, help="Delimiter of CSV, or 'tab'.  [default: detected]"
        ),
        click.option(
            "--header/--no-header",
            default=None,
            help="Whether the first line holds the column names.  [default: detected]",
        ),
        click.option(
            "--comment",
            metavar="MARK",
            callback=_read_mark,
            help="Skip CSV lines that start with MARK; 'none' skips no lines.  [default: detected]",
        ),
        click.option("--sheet", metavar="SHEET", help="Sheet of a workbook, by name or number.  [default: the first]"),
        click.option("--query", metavar="SQL", help="Query to run, for databases."),
        click.option(
            "--missing-values",
            "missing",
            metavar="A,B,...",
            multiple=True,
            callback=_read_missing,
            help="Numbers and texts that mean 'no value', or 'none' to read all as values.  [default: isolated "
            "extremes that repeat, such as -200 or 9999]",
        ),
    ]

    @wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        chosen = {field.name: given.pop(field.name) for field in fields(Reading)}
        return command(*args, **given, reading=Reading(**chosen))

    return combine(*names)(run)


strict = click.option("--strict", is_flag=True, help="Stop at the first row that cannot be read.")
model = click.option(
    "-m", "--model", metavar="MODEL", required=True, type=click.Path(), help="Model file, such as model.mpf."
)
partition = click.option(
    "--by", metavar="VALUE", help="Partition whose model to use, if `watch --by` wrote the model file."
)
seed = click.option(
    "--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors to stderr.")
out = click.option(
    "--out",
    metavar="FILE",
    type=click.Path(),
    help="Write rows with scores and reasons to FILE (.csv, .tsv, .parquet or .jsonl; - for stdout).",
)
only_anomalies = click.option("--only-anomalies", is_flag=True, help="Write flagged rows only.")
spreadsheet_safe = click.option(
    "--spreadsheet-safe",
    is_flag=True,
    help="In CSV, prefix cells that a spreadsheet would evaluate as formulas with '.",
)


def min_severity(what: str) -> Decorator:
    """Return the option `--min-severity`, which limits `what`."""
    return click.option(
        "--min-severity",
        metavar="N",
        type=click.IntRange(1, 5),
        default=1,
        show_default=True,
        help=f"{what} of at least this severity, from 1 to 5; 5 is one normal row in a million.",
    )


fail_on_anomaly = click.option("--fail-on-anomaly", is_flag=True, help="Exit with status 1 if anything is flagged.")
shingle = click.option(
    "--shingle", metavar="N", type=click.IntRange(min=1), help="For time series: score N consecutive rows together."
)


def series(default: str) -> Decorator:
    """Return the option --series/--rows; `default` describes its default."""
    return click.option(
        "--series/--rows",
        "is_series",
        default=None,
        help="Whether rows are a time series, where each is scored together with the rows leading up to it, "
        f"or independent.  [default: {default}]",
    )


window = click.option(
    "--window", metavar="N", type=click.IntRange(min=2), help=f"Rows held in memory by --stream.  [default: {WINDOW}]"
)
false_alarm_rate = click.option(
    "--false-alarm-rate",
    metavar="RATE",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Flag rows with a p-value of at most RATE, which is about the share of normal rows flagged.",
)
epsilon = click.option(
    "--epsilon",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Flag rows whose leaf has a probability of at most SHARE ...",
)
phi = click.option(
    "--phi",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="... in at least SHARE of the trees.  [default: 0.8]",
)
batch = click.option("--batch", "kind", flag_value="batch", help="Count rows in fixed cells (BatchMPF).")
stream = click.option(
    "--stream",
    "kind",
    flag_value="stream",
    help="Read once, in bounded memory, and score each row against earlier ones.",
)


def flagging() -> Decorator:
    """Return the options of the threshold policy."""
    return combine(false_alarm_rate, epsilon, phi)


@dataclass(frozen=True)
class TableOptions:
    """The options that `detect` and `fit` share, by name."""

    files: tuple[str, ...]
    columns: list[str] | None
    categories: Sequence[str] | None
    time: str | None
    id: str | None
    weight: str | None
    format: str | None
    ignore: list[str] | None
    reading: Reading
    strict: bool
    kind: str | None
    window: int | None
    shingle: int | None
    is_series: bool | None
    false_alarm_rate: float | None
    epsilon: float | None
    phi: float | None
    quiet: bool

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        if self.false_alarm_rate is not None and self.epsilon is not None:
            raise click.UsageError("--false-alarm-rate and --epsilon are mutually exclusive.")
        if self.phi is not None and self.epsilon is None:
            raise click.UsageError("--phi needs --epsilon.")
        if self.is_stream and self.epsilon is not None:
            raise click.UsageError("--epsilon is for whole tables: omit --stream and --shingle.")
        if self.is_series is False and self.shingle is not None:
            raise click.UsageError("--shingle is for time series: omit --rows.")
        if self.is_series and self.epsilon is not None:
            raise click.UsageError("--epsilon is for independent rows: omit --series.")
        if self.is_series and self.kind == "batch":
            raise click.UsageError("--series needs the order of rows, which --batch ignores.")
        if self.weight is not None and (self.is_series or self.shingle is not None):
            raise click.UsageError("--weight is for independent rows: each reading of a time series counts once.")
        if self.window is not None and not self.is_stream:
            raise click.UsageError("--window is for streams: add --stream.")
        if self.categories and (self.is_series or self.shingle is not None):
            raise click.UsageError("--categories is for independent rows: a time series has numbers only.")

    @property
    def is_stream(self) -> bool:
        """Whether rows are scored and learned one after another."""
        return self.kind == "stream" or (self.kind is None and self.shingle is not None)

    def open_table(
        self,
        columns: list[str] | None,
        categories: Sequence[str] | None,
        key: Sequence[str] = (),
        group: str | None = None,
    ) -> Table:
        """Open the files as one table."""
        from polyaforest.io.tables import open_table

        return open_table(
            self.files,
            format=self.format,
            columns=columns,
            time=self.time,
            key=key,
            id=self.id,
            weight=self.weight,
            categories=() if self.is_series or self.shingle is not None else categories,
            group=group,
            ignore=self.ignore or (),
            strict=self.strict,
            reading=self.reading,
        )


def echo_input(table: Table, quiet: bool) -> None:
    """Print a summary of the input."""
    from polyaforest.cli._reports import input_lines

    for line in input_lines(table):
        echo(line, quiet)


def echo(words: str, quiet: bool = False) -> None:
    """Print a message to stderr."""
    if words and not quiet:
        with suppress(OSError):  # stderr was closed: continue
            click.echo(printable(words), err=True)


def with_progress(table: Table, quiet: bool = False) -> Iterator[TableChunk]:
    """Yield the chunks of a table, with a progress line on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield from table.chunks()
        return
    try:
        for chunk in table.chunks():
            click.echo(f"{CLEAR_LINE}{table.n_rows:,} rows read ", err=True, nl=False)
            yield chunk
    finally:
        click.echo(CLEAR_LINE, err=True, nl=False)
