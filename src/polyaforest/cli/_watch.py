"""`polyaforest watch`: score an endless stream, record by record."""

from __future__ import annotations

import os
import signal
import sys
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from polyaforest.cli import _options as options
from polyaforest.cli._screen import CLEAR_LINE
from polyaforest.settings.stream import Effect, StreamSettings, flat_settings, option_of
from polyaforest.util.system import HANGUP

if TYPE_CHECKING:
    from polyaforest.io.records import RecordReader
    from polyaforest.judge.models import Detector, Store
    from polyaforest.judge.watcher import Watcher

_STATUS_SECONDS = 1.0


_EXAMPLES = """\b
Examples:
  tail -F app.jsonl | polyaforest watch --only-anomalies
  polyaforest watch metrics.csv --follow --by host --model hosts.models
  polyaforest watch --from "redis://localhost:6379/0?stream=metrics" --model redis.models --out verdicts.jsonl
"""


_reading = options.combine(
    click.option(
        "--from",
        "address",
        metavar="URL",
        help="Read from redis://host:port/db?stream=NAME or kafka://host:port/TOPIC.",
    ),
    click.option("--follow", is_flag=True, help="Wait for lines appended to FILE, across log rotation, like tail -F."),
    options.stream_options("columns", "categories", "time", "by", "id", "weight", "format"),
)
_SCORING = (
    "window", "series", "shingle", "difference", "calendar", "timezone", "false_alarm_rate", "trees",
    "seed", "drift", "drift_alarms_every", "drift_reference", "merge",
)  # fmt: skip
_OF_START = _SCORING[:9]  # part of the model of --start-from
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
    options.stream_options("save_records", "save_every"),
    click.option(
        "--skip-seen",
        is_flag=True,
        help="Skip records that were already counted, for inputs that start over at every run.",
    ),
    options.stream_options("memory_mb"),
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


@click.command("watch", cls=options.StreamCommand, epilog=_EXAMPLES, help=_HELP)
@click.argument("file", default="-", metavar="[FILE]", type=click.Path())
@_reading
@options.stream_options(*_SCORING)
@_saving
@_writing
@options.fail_on_anomaly
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run `polyaforest watch`."""
    from polyaforest.cli._warmup import compile_first

    _check_options(ctx, given)
    settings = options.stream_settings(given)
    with ExitStack() as stack:
        is_stopped = stack.enter_context(_stop_signals())
        watcher = _watcher(given, settings, stack)
        compile_first("stream" if settings.drift is None else "drift", given["quiet"])
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
    given_here = [name for name in _OF_START if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given["start_from"] and given_here:
        option = option_of(given_here[0], given[given_here[0]] if given_here[0] == "series" else None)
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


def _watcher(given: dict[str, Any], settings: StreamSettings, stack: ExitStack) -> Watcher:
    """Open all files and return a watcher, resumed from the last save."""
    from polyaforest.io.outputs import FileLines, PipeLines
    from polyaforest.io.records import RecordReader
    from polyaforest.io.sources import canonical_name, open_source
    from polyaforest.judge.watcher import Cadence, Watcher

    where = given["address"] or given["file"]
    if given["out"] == "-" and sys.stdout is None:
        raise OSError("standard output is closed: write to a file with --out")
    out = PipeLines(sys.stdout.buffer) if given["out"] == "-" else FileLines(given["out"])
    quarantine = FileLines(given["quarantine"])
    template = _template(given, settings)
    reader = RecordReader(
        settings.format,
        columns=_columns(given, template),
        time=settings.time,
        key=settings.by,
        id=settings.id,
        categories=_categories(given, template),
        weight=settings.weight,
    )
    source = open_source(where, follow=given["follow"])
    stack.callback(source.close)
    store = stack.enter_context(_open_store(given, settings, template))
    saved = store.notes.get("settings", {})
    _change(given, settings, store, reader, template)
    watcher = Watcher(
        source,
        reader,
        store,
        out,
        quarantine,
        where=canonical_name(where),
        settings={**settings.plain(), "start_from": given["start_from"]},
        only_anomalies=given["only_anomalies"],
        # the models of an early version do not detect a time series
        finds_series=settings.finds_series and given["start_from"] is None and saved.get("is_series", "") is not None,
        drift=settings.monitor,
        writes_events=given["events"],
        merge=settings.merge,
        cadence=Cadence(settings.save_records, settings.save_every),
        notify=options.echo,  # losses are reported even with --quiet
    )
    stack.callback(watcher.close)
    watcher.resume(skip_seen=given["skip_seen"])
    return watcher


def _open_store(given: dict[str, Any], settings: StreamSettings, template: Detector) -> Store:
    """Open the models; apply the settings that do not change what they have learned."""
    from copy import deepcopy

    from polyaforest.judge import open_store
    from polyaforest.judge.changes import apply_settings
    from polyaforest.storage.model_store import NotAStoreError

    def applied(model: Detector) -> Detector:
        rate = _rate_of(template) if given["start_from"] is not None else settings.false_alarm_rate
        return apply_settings(model, replace(settings, false_alarm_rate=rate))

    try:
        return open_store(
            given["model"],
            lambda: deepcopy(template),
            change=applied,
            max_bytes=settings.memory_mb * 2**20,
            notify=options.echo,
        )
    except NotAStoreError as problem:
        raise NotAStoreError(f"{problem}; to start from a model made by `fit`, use --start-from") from problem


def _rate_of(detector: Detector) -> float | None:
    """Return the false alarm rate of a model."""
    forest: Any = getattr(detector, "estimator", detector)
    rate: float | None = None if forest is None else forest.false_alarm_rate
    return rate


def _change(
    given: dict[str, Any], settings: StreamSettings, store: Store, reader: RecordReader, template: Detector
) -> None:
    """Apply changed settings to existing models, relearn them, or raise `BadInput` if they do not fit."""
    from copy import deepcopy

    from polyaforest.io.errors import BadInput
    from polyaforest.judge.changes import find_changes, relearn_held
    from polyaforest.judge.loop import check_notes

    if not store.notes:
        return
    check_notes(store.notes, store.name)
    effects = {name: Effect(setting.effect) for name, setting in flat_settings(StreamSettings).items()}
    before, remedy = store.notes["settings"].get("start_from"), "use the same setting, or another --model"
    if before != given["start_from"]:
        was = f"--start-from was {_in_words(before)} when {given['model']} was started"
        raise BadInput(f"{was}, and is {_in_words(given['start_from'])} now: {remedy}")
    found = find_changes(store.notes, settings.plain(), reader, effects)
    for name, reason in found.refused.items():
        raise BadInput(f"{option_of(name)}: {reason}: {remedy}")
    changed = found.applied | found.relearned
    words = [f"{option_of(name)} {_in_words(now)} (was {_in_words(was)})" for name, (was, now) in changed.items()]
    for key in store.keys if found.relearned else ():
        try:
            store[key].detector = relearn_held(store[key].detector, deepcopy(template))
        except BadInput as problem:
            raise BadInput(f"{option_of(next(iter(found.relearned)))} cannot change: {problem}; {remedy}") from problem
    if words:
        learned = "; models relearned from the records they hold" if found.relearned else ""
        options.echo(f"Changed settings: {', '.join(words)}{learned}", given["quiet"])
    store.notes["reader"] = found.reader


def _columns(given: dict[str, Any], detector: Detector) -> Sequence[str] | None:
    """Return the columns to read: those of --start-from, if given."""
    from polyaforest.io.errors import BadInput

    names = getattr(detector, "feature_names_in_", None)
    if names is None:
        columns: tuple[str, ...] | None = given["columns"]
        return columns
    known = [str(name) for name in names]
    if given["columns"] not in (None, tuple(known)):
        raise BadInput(f"{given['start_from']} was fitted on the columns {', '.join(known)}: omit --columns")
    return known


def _categories(given: dict[str, Any], detector: Detector) -> Sequence[str]:
    """Return the fields that are categories: those of --start-from, if given."""
    from polyaforest.io.errors import BadInput
    from polyaforest.judge.saved import category_names

    known: Sequence[str] = category_names(detector) if given["start_from"] is not None else given["categories"] or ()
    if given["categories"] not in (None, tuple(known)):
        raise BadInput(
            f"{given['start_from']} was fitted with {', '.join(known) or 'no column'} as categories: omit --categories"
        )
    return known


def _template(given: dict[str, Any], settings: StreamSettings) -> Detector:
    """Return the model that every key starts from a copy of."""
    from polyaforest import SeriesMPF, StreamingMPF, load
    from polyaforest.io.errors import BadInput
    from polyaforest.judge.models import new_detector

    if given["start_from"] is not None:
        first = load(given["start_from"])
        if isinstance(first, SeriesMPF) and settings.weight is not None:
            raise BadInput(
                f"--weight is for independent records, but {given['start_from']} is a model of a time series"
            )
        if isinstance(first, SeriesMPF) or (isinstance(first, StreamingMPF) and not first.is_frozen_):
            return first
        raise BadInput(f"{given['start_from']} cannot learn from a stream: fit a model with `polyaforest fit --stream`")
    return new_detector(settings)


def _in_words(value: Any) -> str:
    """Format a setting as on the command line."""
    if value is None or value is False or value == []:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


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
        if number != HANGUP and sum(other != HANGUP for other in received) > 1:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:  # under nohup it is ignored
        numbers.append(HANGUP)
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
