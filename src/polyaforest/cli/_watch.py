"""`polyaforest watch`: an endless stream, judged record by record."""

from __future__ import annotations

import os
import re
import signal
import sys
import time as clock
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import click
from click.core import ParameterSource

from polyaforest.cli import _options as options
from polyaforest.cli._screen import CLEAR_LINE

if TYPE_CHECKING:
    from polyaforest.live.judging import Detector
    from polyaforest.live.watcher import Watcher

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_CALENDAR = ["time of day", "day of week"]
_STATUS_SECONDS = 1.0


_EXAMPLES = """\b
Examples:
  tail -F app.jsonl | polyaforest watch --only-anomalies
  polyaforest watch metrics.csv --follow --model web.stock --key host
  polyaforest watch --from "redis://localhost:6379/0?stream=metrics" --model m.stock --out verdicts.jsonl
"""


def _read_window(ctx: click.Context, option: click.Parameter, text: str) -> int | timedelta:
    """A number of records, or a span of time such as 30m."""
    if text.isdecimal() and int(text) >= 2:
        return int(text)
    span = _SPAN.fullmatch(text)
    if span is None or not float(span[1]):
        wanted = "a number of records, at least 2, or a time such as 90s, 30m, 6h or 7d"
        raise click.BadParameter(f"{text!r} is not {wanted}", ctx, option)
    return timedelta(**{_UNITS[span[2]]: float(span[1])})


_reading = options.together(
    click.option(
        "--from", "address", metavar="URL", help="Read redis://host:port/db?stream=NAME or kafka://host:port/TOPIC."
    ),
    click.option("--follow", is_flag=True, help="Wait for what is added to FILE, across rotation, as tail -F does."),
    options.columns,
    options.time,
    options.key(options.KEY_OF_STREAMS),
    click.option("--id", metavar="FIELD", help="The field that names records, by which they can be forgotten again."),
    click.option("--format", type=click.Choice(["auto", "jsonl", "csv"]), default="auto", help="What lines hold."),
)
_judging = options.together(
    click.option(
        "--window",
        callback=_read_window,
        metavar="N|TIME",
        default=str(options.WINDOW),
        show_default=True,
        help="What each stream remembers: so many records, or those of the last 30m, 6h, 7d.",
    ),
    options.shingle,
    click.option("--difference", is_flag=True, help="Judge changes from record to record instead of levels."),
    click.option("--calendar", type=click.Choice(_CALENDAR), multiple=True, help="What is usual depends on it, too."),
    options.false_alarm_rate,
    click.option(
        "--trees", type=click.IntRange(min=1), default=100, show_default=True, help="Per stream: fewer are faster."
    ),
    options.seed,
)
_saving = options.together(
    click.option("-m", "--model", metavar="MODEL", type=click.Path(), help="Save models here, and go on from them."),
    click.option(
        "--start-from",
        metavar="MODEL",
        type=click.Path(exists=True),
        help="Begin every stream as a copy of this model, made by `fit --stream`.",
    ),
    click.option(
        "--snapshot-every",
        metavar="N",
        type=click.IntRange(min=1),
        default=10_000,
        show_default=True,
        help="Save after so many records ...",
    ),
    click.option(
        "--snapshot-seconds",
        metavar="S",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        help="... or after so many seconds, if any have come.",
    ),
    click.option(
        "--skip-seen", is_flag=True, help="The input begins anew at every start: pass over what was counted before."
    ),
    click.option(
        "--memory",
        metavar="MB",
        type=click.IntRange(min=1),
        default=1024,
        show_default=True,
        help="For models; those not used for longest wait on disk.",
    ),
)
_writing = options.together(
    click.option("--only-anomalies", is_flag=True, help="No lines for records that are not flagged."),
    click.option("--events", is_flag=True, help="A line for each event once it has ended, none for single records."),
    click.option(
        "--out", metavar="FILE", default="-", type=click.Path(), help="Add the lines to this file, not to stdout."
    ),
    click.option(
        "--quarantine",
        metavar="FILE",
        default="quarantine.jsonl",
        show_default=True,
        type=click.Path(),
        help="Where bad records go, with the reason.",
    ),
)


_HELP = """Judge an endless stream, record by record.

Lines of JSON or CSV come from standard input, from FILE, or from Redis or Kafka. Each record is judged by those
before it and then learned; for each, a line of JSON with its score, p-value and, if it is flagged, the reasons goes
to stdout. Records that cannot be read go to a quarantine file and never stop the stream.

With --model everything is saved now and then, together with the place in the source: after a crash, or Ctrl-C, the
same command goes on where it was, with nothing lost or counted twice.
"""


@click.command("watch", epilog=_EXAMPLES, help=_HELP)
@click.argument("file", default="-", metavar="[FILE]", type=click.Path())
@_reading
@_judging
@_saving
@_writing
@options.fail_on_anomaly
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run `polyaforest watch`."""
    _refuse_contradictions(ctx, given)
    with ExitStack() as stack:
        is_stopped = stack.enter_context(_until_asked_to_stop())
        watcher = _watcher(given, stack)
        _say_where_it_begins(watcher, given)
        n_before = watcher.counts.anomalies
        with _status_line(watcher, given["quiet"]) as show:
            watcher.run(is_stopped, show)
    counts = watcher.counts
    where = f" (see {given['quarantine']})" if counts.bad else ""
    records = "1 record" if counts.records == 1 else f"{counts.records:,} records"
    options.say(f"{records}, {counts.anomalies:,} flagged, {counts.bad:,} bad{where}", given["quiet"])
    if given["fail_on_anomaly"] and counts.anomalies > n_before:
        ctx.exit(1)


def _refuse_contradictions(ctx: click.Context, given: dict[str, Any]) -> None:
    """A usage error for options that do not go together."""
    if given["address"] is not None and given["file"] != "-":
        raise click.UsageError(f"FILE and --from contradict each other: read {given['file']}, or {given['address']}.")
    if given["follow"] and (given["address"] is not None or given["file"] == "-"):
        raise click.UsageError("--follow needs a FILE to follow; other sources go on by themselves.")
    if given["calendar"] and given["time"] is None:
        raise click.UsageError("--calendar needs --time, the field that says when.")
    if isinstance(given["window"], timedelta) and given["time"] is None:
        raise click.UsageError("a --window in time needs --time, the field that says when.")
    settings = ("window", "shingle", "difference", "calendar", "false_alarm_rate", "trees", "seed")
    told = [name for name in settings if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given["start_from"] and told:
        option = f"--{told[0].replace('_', '-')}"
        raise click.UsageError(f"--start-from brings its own settings: leave {option} to `fit`.")
    _refuse_one_file_for_two_things(given)


def _refuse_one_file_for_two_things(given: dict[str, Any]) -> None:
    """A usage error if verdicts would be written into the data or the model."""
    taken: dict[str, str] = {}
    for name in ("file", "model", "start_from", "out", "quarantine"):
        if given[name] in (None, "-"):
            continue
        option = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
        other = taken.setdefault(os.path.realpath(given[name]), option)
        if other != option:
            raise click.UsageError(f"{other} and {option} are the same file, {given[name]}: give each its own.")


def _is_series(given: dict[str, Any]) -> bool:
    return bool(given["shingle"] or given["difference"] or given["calendar"])


def _watcher(given: dict[str, Any], stack: ExitStack) -> Watcher:
    """Everything opened and connected, and gone back to where it was."""
    from polyaforest.io.records import RecordReader
    from polyaforest.io.sources import open_source
    from polyaforest.live.model_store import Stock
    from polyaforest.live.outputs import FileLines, PipeLines
    from polyaforest.live.watcher import Cadence, Watcher

    where = given["address"] or given["file"]
    out = PipeLines(_stdout()) if given["out"] == "-" else FileLines(given["out"])
    quarantine = FileLines(given["quarantine"])
    make = _maker(given)
    reader = RecordReader(
        given["format"], columns=_columns(given, make()), **{name: given[name] for name in ("time", "key", "id")}
    )
    source = open_source(where, follow=given["follow"])
    stack.callback(source.close)
    stock = stack.enter_context(Stock(given["model"], make, given["memory"] * 2**20, tell=options.say))
    settings = _settings(given)
    _refuse_other_settings(stock.notes.get("settings"), settings, given["model"])
    merge = None
    if given["events"]:
        merge = given["shingle"] or 10
    watcher = Watcher(
        source,
        reader,
        stock,
        out,
        quarantine,
        where=_known_again(where),
        settings=settings,
        only_anomalies=given["only_anomalies"],
        merge=merge,
        cadence=Cadence(given["snapshot_every"], given["snapshot_seconds"]),
        tell=options.say,  # what was lost or set aside is said even to those who want no progress messages
    )
    stack.callback(watcher.close)
    watcher.resume(skip_seen=given["skip_seen"])
    return watcher


def _stdout() -> IO[bytes]:
    """Where lines go unless told otherwise."""
    if sys.stdout is None:
        raise OSError("standard output is closed: give --out a file to write to")
    return sys.stdout.buffer


def _known_again(where: str) -> str:
    """The name of a source in the model file: the same for every way to write it, and without passwords."""
    if "://" not in where:
        return where if where == "-" else os.path.realpath(where)
    parts = urlsplit(where)
    settings = [pair for pair in parse_qsl(parts.query) if "password" not in pair[0] and "secret" not in pair[0]]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host, query=urlencode(settings)))


def _columns(given: dict[str, Any], detector: Detector) -> list[str] | None:
    """The columns to read: those of the model to start from, if there is one."""
    from polyaforest.io.tables import BadInput

    names = getattr(detector, "feature_names_in_", None)
    if names is None:
        columns: list[str] | None = given["columns"]
        return columns
    known = [str(name) for name in names]
    if given["columns"] not in (None, known):
        raise BadInput(f"{given['start_from']} was made of the columns {', '.join(known)}: omit --columns")
    return known


def _maker(given: dict[str, Any]) -> Callable[[], Detector]:
    """What makes the model of a new stream."""
    from copy import deepcopy

    from polyaforest import StreamingMPF, load
    from polyaforest.io.tables import BadInput
    from polyaforest.timeseries import SeriesMPF

    if given["start_from"] is not None:
        first: Any = load(given["start_from"])
        if not hasattr(first, "judge_then_learn") or getattr(first, "window", "") == "auto":
            raise BadInput(f"{given['start_from']} does not follow a stream: make it by `polyaforest fit --stream`")
        return lambda: deepcopy(first)
    forest = StreamingMPF(
        n_estimators=given["trees"],
        window=given["window"],
        false_alarm_rate=given["false_alarm_rate"],
        missing="marginalise",
        random_state=given["seed"],
    )
    if _is_series(given):
        series = SeriesMPF(
            forest, shingle=given["shingle"] or 1, difference=given["difference"], calendar=given["calendar"]
        )
        return lambda: deepcopy(series)
    return lambda: deepcopy(forest)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """What the models and the reading of records depend on, as JSON holds it."""
    reading, judging = ("columns", "time", "key", "id", "format"), ("shingle", "difference", "false_alarm_rate")
    names = (*reading, *judging, "trees", "seed", "start_from")
    window = given["window"]
    span = f"{window.total_seconds():g}s" if isinstance(window, timedelta) else window
    return {name: given[name] for name in names} | {"window": span, "calendar": list(given["calendar"])}


def _refuse_other_settings(before: dict[str, Any] | None, now: dict[str, Any], model: str) -> None:
    """Raise if models would go on by other settings than they began with."""
    from polyaforest.io.tables import BadInput

    for name, value in now.items():
        if before is not None and before.get(name) != value:
            option = f"--{name.replace('_', '-')}"
            changed = (
                f"{option} was {_in_words(before.get(name))} when {model} was begun, and is {_in_words(value)} now"
            )
            raise BadInput(f"{changed}: go on as before, or name a new --model")


def _in_words(value: Any) -> str:
    """A setting as it is given on the command line."""
    return "not given" if value in (None, False, []) else ",".join(value) if isinstance(value, list) else str(value)


def _say_where_it_begins(watcher: Watcher, given: dict[str, Any]) -> None:
    counts, notes = watcher.counts, watcher.begun_after
    if not counts.records:
        return
    options.say(f"Resuming after {counts.records:,} records, {counts.anomalies:,} of them flagged", given["quiet"])
    before, now = notes["where"], _known_again(given["address"] or given["file"])
    if before != now:
        options.say(f"until now they came from {before}; {now} is read from its beginning", given["quiet"])
    elif not (watcher.source.can_replay or given["skip_seen"] or notes["is_end"]):
        options.say("this input cannot be read again: what came since the last save is lost", given["quiet"])


@contextmanager
def _until_asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C, SIGTERM or SIGHUP has come: the first is obeyed after the batch, a second at once.

    A terminal that is closed may well send SIGHUP and SIGTERM together: that is not a second request.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        if number != signal.SIGHUP and len(came) - came.count(signal.SIGHUP) > 1:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _status_line(watcher: Watcher, quiet: bool) -> Iterator[Callable[[], None]]:
    """A line about how it goes, once a second, if somebody is there to see it."""
    is_shown = sys.stderr is not None and sys.stderr.isatty() and not quiet
    shown_at, records = clock.monotonic(), watcher.counts.records

    def show() -> None:
        nonlocal shown_at, records
        now = clock.monotonic()
        if is_shown and now - shown_at >= _STATUS_SECONDS:
            counts, pace = watcher.counts, (watcher.counts.records - records) / (now - shown_at)
            _show(f"{counts.records:,} records ({pace:,.0f}/s), {counts.anomalies:,} flagged, {counts.bad:,} bad")
            shown_at, records = now, counts.records

    try:
        yield show
    finally:
        if is_shown:
            _show("")


def _show(words: str) -> None:
    """Put words in the place of the line that is on the terminal."""
    with suppress(OSError):  # the terminal was closed, which must not keep anything from being saved
        click.echo(f"{CLEAR_LINE}{words}", err=True, nl=False)
