"""`polyaforest watch`: score an endless stream, record by record."""

from __future__ import annotations

import os
import signal
import sys
import time as clock
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from polyaforest.cli import _options as options
from polyaforest.cli._screen import CLEAR_LINE
from polyaforest.util.durations import parse_duration

if TYPE_CHECKING:
    from polyaforest.judge.models import Detector
    from polyaforest.live.watcher import Watcher

_CALENDAR = ["time of day", "day of week"]
_STATUS_SECONDS = 1.0
_OPEN = "auto"  # the setting of models that detect whether their records are a time series


_EXAMPLES = """\b
Examples:
  tail -F app.jsonl | polyaforest watch --only-anomalies
  polyaforest watch metrics.csv --follow --by host --model hosts.models
  polyaforest watch --from "redis://localhost:6379/0?stream=metrics" --model redis.models --out verdicts.jsonl
"""


def _read_window(ctx: click.Context, option: click.Parameter, text: str) -> int | timedelta:
    """Return a number of records, or a duration."""
    found = _read_count(ctx, option, text, least=2)
    return found if isinstance(found, int) else timedelta(seconds=found)


def _read_every(ctx: click.Context, option: click.Parameter, text: str) -> int | str:
    """Return a number of records, or a valid duration as text."""
    found = _read_count(ctx, option, text, least=1)
    return found if isinstance(found, int) else text


def _read_count(ctx: click.Context, option: click.Parameter, text: str, least: int) -> int | float:
    """Return a number of records, or the seconds of a duration as float."""
    if text.isdecimal() and int(text) >= least:
        return int(text)
    try:
        return parse_duration(text)
    except ValueError as problem:
        advice = f"Give a duration, or a number of records, at least {least}."
        raise click.BadParameter(f"{problem}. {advice}", ctx, option) from problem


_reading = options.combine(
    click.option(
        "--from",
        "address",
        metavar="URL",
        help="Read from redis://host:port/db?stream=NAME or kafka://host:port/TOPIC.",
    ),
    click.option("--follow", is_flag=True, help="Wait for lines appended to FILE, across log rotation, like tail -F."),
    options.columns_option("numeric fields of the first record"),
    click.option(
        "--categories",
        metavar="A,B,...",
        multiple=True,
        callback=options.read_names,
        help="Fields to use as categories.  [default: those of --start-from, or none]",
    ),
    options.time,
    options.by,
    click.option("--id", metavar="COLUMN", help="Column that identifies records, so that `forget` can delete them."),
    click.option("--format", type=click.Choice(["auto", "jsonl", "csv"]), default="auto", help="Format of the lines."),
)
_scoring = options.combine(
    click.option(
        "--window",
        callback=_read_window,
        metavar="N|TIME",
        default=str(options.WINDOW),
        show_default=True,
        help="Records that each model holds: a number, or a duration such as 30m, 6h or 7d.",
    ),
    options.series("detected from the first 512 records of each key, if they have times"),
    options.shingle,
    click.option("--difference", is_flag=True, help="Score the changes between records instead of the values."),
    click.option(
        "--calendar",
        type=click.Choice(_CALENDAR),
        multiple=True,
        help="Learn what is normal by time of day or day of week.",
    ),
    options.false_alarm_rate,
    click.option(
        "--drift",
        type=click.Choice(["report", "relearn", "keep"]),
        help="Write a line when the distribution of a key's records changes. Then leave its model alone (report), "
        "relearn it from the change on (relearn), or make it forget the records since the change (keep).",
    ),
    click.option(
        "--drift-alarms-every",
        metavar="N|TIME",
        callback=_read_every,
        default="100000",
        show_default=True,
        help="Expected time between false alarms of --drift: a number of records, or a duration such as 12h or "
        "'30 days'.",
    ),
    click.option(
        "--drift-reference",
        metavar="N",
        type=click.IntRange(min=128),
        default=1024,
        show_default=True,
        help="First records of each key, with which --drift compares later ones.",
    ),
    click.option(
        "--trees", type=click.IntRange(min=1), default=100, show_default=True, help="Trees per model. Fewer are faster."
    ),
    options.seed,
)
_saving = options.combine(
    click.option(
        "-m", "--model", metavar="MODEL", type=click.Path(), help="Save models to this file, and resume from it."
    ),
    click.option(
        "--start-from",
        metavar="MODEL",
        type=click.Path(exists=True),
        help="Start every model as a copy of this one, written by `fit`.",
    ),
    click.option(
        "--snapshot-every",
        metavar="N",
        type=click.IntRange(min=1),
        default=10_000,
        show_default=True,
        help="Save after this number of records ...",
    ),
    click.option(
        "--snapshot-seconds",
        metavar="S",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        help="... or after this many seconds if there are new records.",
    ),
    click.option(
        "--skip-seen",
        is_flag=True,
        help="Skip records that were already counted, for inputs that start over at every run.",
    ),
    click.option(
        "--memory",
        metavar="MB",
        type=click.IntRange(min=1),
        default=1024,
        show_default=True,
        help="Memory for models. The least recently used are moved to disk.",
    ),
)
_writing = options.combine(
    click.option("--only-anomalies", is_flag=True, help="Write lines for flagged records only."),
    click.option(
        "--events",
        is_flag=True,
        help="Write a line when an event begins and when it ends, instead of one per record.",
    ),
    click.option(
        "--out", metavar="FILE", default="-", type=click.Path(), help="Append the lines to this file instead of stdout."
    ),
    click.option(
        "--quarantine",
        metavar="FILE",
        default="quarantine.jsonl",
        show_default=True,
        type=click.Path(),
        help="File for invalid records, with the reason.",
    ),
)


_HELP = """Find anomalies in an endless stream, record by record.

Records are lines of JSON or CSV from standard input or FILE, or messages from Redis or Kafka. Each record is scored
against earlier ones and then learned. For each, a line of JSON goes to stdout, with its score, its p-value and, if it
is flagged, the reasons. Invalid records go to a quarantine file and never stop the stream.

With --model, the models and the position in the source are saved at intervals. After a crash or Ctrl-C, the same
command resumes from there: no record is lost or counted twice.
"""


@click.command("watch", epilog=_EXAMPLES, help=_HELP)
@click.argument("file", default="-", metavar="[FILE]", type=click.Path())
@_reading
@_scoring
@_saving
@_writing
@options.fail_on_anomaly
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run `polyaforest watch`."""
    from polyaforest.cli._warmup import compile_first

    _check_options(ctx, given)
    with ExitStack() as stack:
        is_stopped = stack.enter_context(_stop_signals())
        watcher = _watcher(given, stack)
        compile_first("stream" if given["drift"] is None else "drift", given["quiet"])
        _report_start(watcher, given)
        n_before = watcher.counts.anomalies
        with _status_line(watcher, given["quiet"]) as show:
            watcher.run(is_stopped, show)
    counts = watcher.counts
    where = f" (see {given['quarantine']})" if counts.bad else ""
    records = "1 record" if counts.records == 1 else f"{counts.records:,} records"
    options.echo(f"{records}, {counts.anomalies:,} flagged, {counts.bad:,} bad{where}", given["quiet"])
    if given["fail_on_anomaly"] and counts.anomalies > n_before:
        ctx.exit(1)


def _check_options(ctx: click.Context, given: dict[str, Any]) -> None:
    """Raise a usage error for options that contradict each other."""
    if given["address"] is not None and given["file"] != "-":
        raise click.UsageError(f"FILE and --from are mutually exclusive: read {given['file']} or {given['address']}.")
    if given["follow"] and (given["address"] is not None or given["file"] == "-"):
        raise click.UsageError("--follow needs a FILE: other sources never end.")
    if given["categories"] and (given["is_series"] or given["shingle"] or given["difference"] or given["calendar"]):
        raise click.UsageError("--categories is for independent records: a time series has numbers only.")
    if given["calendar"] and given["time"] is None:
        raise click.UsageError("--calendar needs --time, the column with the timestamps.")
    if isinstance(given["window"], timedelta) and given["time"] is None:
        raise click.UsageError("a --window of time needs --time, the column with the timestamps.")
    if isinstance(given["drift_alarms_every"], str) and given["drift"] is not None and given["time"] is None:
        raise click.UsageError("a --drift-alarms-every of time needs --time, the column with the timestamps.")
    if given["is_series"] and (given["shingle"] or given["difference"]):
        raise click.UsageError(
            "--series already includes consecutive records and their changes: omit --shingle and --difference."
        )
    if given["is_series"] is False and (given["shingle"] or given["difference"] or given["calendar"]):
        raise click.UsageError("--shingle, --difference and --calendar are for time series: omit --rows.")
    settings = ("window", "is_series", "shingle", "difference", "calendar", "false_alarm_rate", "trees", "seed")
    given_here = [name for name in settings if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given["start_from"] and given_here:
        option = "--series" if given_here[0] == "is_series" else f"--{given_here[0].replace('_', '-')}"
        raise click.UsageError(f"{option} is part of the model of --start-from: give it to `fit` instead.")
    _check_distinct_files(given)


def _check_distinct_files(given: dict[str, Any]) -> None:
    """Raise a usage error if two files would be the same."""
    taken: dict[str, str] = {}
    for name in ("file", "model", "start_from", "out", "quarantine"):
        if given[name] in (None, "-"):
            continue
        option = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
        other = taken.setdefault(os.path.realpath(given[name]), option)
        if other != option:
            raise click.UsageError(f"{other} and {option} are the same file, {given[name]}: use different files.")


def _watcher(given: dict[str, Any], stack: ExitStack) -> Watcher:
    """Open all files and return a watcher, resumed from the last save."""
    from copy import deepcopy

    from polyaforest.io.records import RecordReader
    from polyaforest.io.sources import canonical_name, open_source
    from polyaforest.judge import open_store
    from polyaforest.live.outputs import FileLines, PipeLines
    from polyaforest.live.watcher import Cadence, Watcher
    from polyaforest.storage.model_store import NotAStoreError

    where = given["address"] or given["file"]
    if given["out"] == "-" and sys.stdout is None:
        raise OSError("standard output is closed: write to a file with --out")
    out = PipeLines(sys.stdout.buffer) if given["out"] == "-" else FileLines(given["out"])
    quarantine = FileLines(given["quarantine"])
    template = _template(given)
    reader = RecordReader(
        given["format"],
        columns=_columns(given, template),
        time=given["time"],
        key=given["by"],
        id=given["id"],
        categories=_categories(given, template),
    )
    source = open_source(where, follow=given["follow"])
    stack.callback(source.close)
    max_bytes = given["memory"] * 2**20
    try:
        store = stack.enter_context(
            open_store(given["model"], lambda: deepcopy(template), max_bytes=max_bytes, notify=options.echo)
        )
    except NotAStoreError as problem:
        raise NotAStoreError(f"{problem}; to start from a model made by `fit`, use --start-from") from problem
    settings = _settings(given)
    _check_same_settings(store.notes.get("settings"), settings, given["model"])
    watcher = Watcher(
        source,
        reader,
        store,
        out,
        quarantine,
        where=canonical_name(where),
        settings=settings,
        only_anomalies=given["only_anomalies"],
        finds_series=_finds_series(given, store.notes.get("settings")),
        drift=_drift(given),
        writes_events=given["events"],
        cadence=Cadence(given["snapshot_every"], given["snapshot_seconds"]),
        notify=options.echo,  # losses are reported even with --quiet
    )
    stack.callback(watcher.close)
    watcher.resume(skip_seen=given["skip_seen"])
    return watcher


def _drift(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of the drift monitors, None without --drift."""
    if given["drift"] is None:
        return None
    return {
        "on_drift": given["drift"],
        "false_alarms_every": given["drift_alarms_every"],
        "reference": given["drift_reference"],
        "random_state": given["seed"],
    }


def _finds_series(given: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Return whether models detect a time series; `before` holds the settings of an existing store."""
    is_open = given["is_series"] is None and not (given["shingle"] or given["difference"] or given["calendar"])
    return is_open and given["start_from"] is None and (before is None or before.get("is_series") == _OPEN)


def _columns(given: dict[str, Any], detector: Detector) -> list[str] | None:
    """Return the columns to read: those of --start-from, if given."""
    from polyaforest.io.errors import BadInput

    names = getattr(detector, "feature_names_in_", None)
    if names is None:
        columns: list[str] | None = given["columns"]
        return columns
    known = [str(name) for name in names]
    if given["columns"] not in (None, known):
        raise BadInput(f"{given['start_from']} was fitted on the columns {', '.join(known)}: omit --columns")
    return known


def _categories(given: dict[str, Any], detector: Detector) -> list[str]:
    """Return the fields that are categories: those of --start-from, if given."""
    from polyaforest.detection.pipeline import category_names
    from polyaforest.io.errors import BadInput

    known = category_names(detector) if given["start_from"] is not None else given["categories"] or []
    if given["categories"] not in (None, known):
        raise BadInput(
            f"{given['start_from']} was fitted with {', '.join(known) or 'no column'} as categories: omit --categories"
        )
    return known


def _template(given: dict[str, Any]) -> Detector:
    """Return the model that every key starts from a copy of."""
    from polyaforest import SeriesMPF, StreamingMPF, load
    from polyaforest.io.errors import BadInput
    from polyaforest.judge.models import new_detector

    if given["start_from"] is not None:
        first = load(given["start_from"])
        if isinstance(first, SeriesMPF) or (isinstance(first, StreamingMPF) and not first.is_frozen_):
            return first
        raise BadInput(f"{given['start_from']} cannot learn from a stream: fit a model with `polyaforest fit --stream`")
    names = ("trees", "window", "false_alarm_rate", "seed", "is_series", "shingle", "difference", "calendar")
    return new_detector(**{name: given[name] for name in names})


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that models and parsing depend on, JSON-compatible."""
    reading, scoring = (
        ("columns", "categories", "time", "by", "id", "format"),
        ("is_series", "shingle", "difference", "false_alarm_rate"),
    )
    names = (*reading, *scoring, "trees", "seed", "start_from", "drift")
    window = given["window"]
    span = f"{window.total_seconds():g}s" if isinstance(window, timedelta) else window
    found = {"is_series": _OPEN} if _finds_series(given, None) else {}
    if given["drift"] is not None:
        found |= {name: given[name] for name in ("drift_alarms_every", "drift_reference")}
    return {name: given[name] for name in names} | {"window": span, "calendar": list(given["calendar"])} | found


def _check_same_settings(before: dict[str, Any] | None, now: dict[str, Any], model: str) -> None:
    """Raise if the settings differ from those the models started with."""
    from polyaforest.io.errors import BadInput

    if before is None:
        return
    known = {"by": before.get("key"), **before}  # stores of earlier versions call it "key"
    for name, value in now.items():
        before_and_now = [known.get(name), value]
        if before_and_now in (
            [None, _OPEN],
            [_OPEN, None],
        ):  # another option differs, or the store is of an earlier version
            continue
        if known.get(name) != value:
            option = "--series" if name == "is_series" else f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{option} was {_in_words(known.get(name))} when {model} was started, and is {_in_words(value)} now: "
                "use the same setting, or another --model"
            )


def _in_words(value: Any) -> str:
    """Format a setting as on the command line."""
    return (
        "not given" if value in (None, False, [], _OPEN) else ",".join(value) if isinstance(value, list) else str(value)
    )


def _report_start(watcher: Watcher, given: dict[str, Any]) -> None:
    from polyaforest.io.sources import canonical_name

    counts, notes = watcher.counts, watcher.resumed_from
    if not counts.records:
        return
    options.echo(f"Resuming after {counts.records:,} records, {counts.anomalies:,} of them flagged", given["quiet"])
    before, now = notes["where"], canonical_name(given["address"] or given["file"])
    if before != now:
        options.echo(f"The source was {before} before: reading {now} from its beginning", given["quiet"])
    elif not (watcher.source.can_replay or given["skip_seen"] or notes["is_end"]):
        options.echo("This input cannot be read again: records after the last save are lost", given["quiet"])


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to stop, after Ctrl-C, SIGTERM or SIGHUP; a second signal raises at once.

    A closing terminal may send SIGHUP and SIGTERM together, so SIGHUP is never the second signal.
    """
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        if number != signal.SIGHUP and len(received) - received.count(signal.SIGHUP) > 1:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it is ignored
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _status_line(watcher: Watcher, quiet: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that shows progress once a second, if stderr is a terminal."""
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
    """Replace the line on the terminal."""
    with suppress(OSError):  # the terminal was closed: continue, so that everything is saved
        click.echo(f"{CLEAR_LINE}{words}", err=True, nl=False)
