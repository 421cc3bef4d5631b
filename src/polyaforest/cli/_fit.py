"""`polyaforest fit`: from a file to a model of what is normal in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest import BatchMPF
    from polyaforest.core.arrays import Array
    from polyaforest.io.tables import Chunk, Table

_ROOM = 0.1  # of the range of a column, left on either side of the domain for rows to come


@dataclass(frozen=True)
class Order:
    """What was asked for: the options by their names."""

    files: tuple[str, ...]
    columns: list[str] | None
    time: str | None
    key: str | None
    format: str | None
    strict: bool
    model: str
    kind: str | None
    window: int | None
    shingle: int | None
    like: str | None
    false_alarm_rate: float | None
    seed: int | None
    quiet: bool

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        for_streams = {"--window": self.window, "--shingle": self.shingle, "--key": self.key}
        of_the_other = {"--columns": self.columns, "--seed": self.seed, "--false-alarm-rate": self.false_alarm_rate}
        if self.kind == "batch":
            _refuse(for_streams, "is for streams, and --batch only counts rows.")
        if self.like is not None:
            _refuse(of_the_other, "is taken from the model given as --like: leave it out.")
            if self.kind != "batch":
                raise click.UsageError("--like is for models that count, to be merged: add --batch.")
        if self.window is not None and self.kind != "stream" and self.shingle is None:
            raise click.UsageError("--window is what a stream remembers: add --stream.")


def _refuse(given: dict[str, Any], why: str) -> None:
    """A usage error if any of these options is given."""
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} {why}")


class Made(NamedTuple):
    """A model, and what it was made of."""

    model: Any
    table: Table
    line: float | None = None  # score below which rows are flagged, of a table; a stream goes by what it holds


_HELP = """Learn what is normal in FILE... and keep it as a model, for `score`, `explain` and `watch`.

By default the model is of the table as a whole. With --stream it holds the last rows of the files (--window) and
can go on learning; with --batch it counts rows in fixed cells, and models of different files can be merged; with
--key it holds all rows by name, and can forget them.

\b
Examples:
  polyaforest fit last-month.csv -m model.mpf
  polyaforest fit customers.csv -m model.mpf --key customer
  polyaforest fit --batch --like monday.mpf tuesday.csv -m tuesday.mpf
"""


@click.command(help=_HELP)
@options.files
@options.model
@options.columns
@options.time
@options.key(options.KEY_OF_ROWS)
@options.format_
@options.strict
@options.batch
@options.stream
@options.window
@options.shingle
@click.option(
    "--like", metavar="MODEL", type=click.Path(), help="With --batch: count in the cells of that model, for `merge`."
)
@options.false_alarm_rate
@click.option("--seed", type=click.IntRange(min=0), help="Of all that is random. [default: 0]")
@options.quiet
def command(**given: Any) -> None:
    """Run `polyaforest fit`."""
    order = Order(**given)
    made = fit(order)
    columns = made.table.columns
    notes = {"columns": columns.used, "time": columns.time, "key": columns.key, "line": made.line}
    made.model.save(order.model, notes={name: note for name, note in notes.items() if note is not None})
    _tell(order, made)


def fit(order: Order) -> Made:
    """The model asked for."""
    from polyaforest.io.tables import open_table

    like = None if order.like is None else _counting(order.like)
    table = open_table(
        order.files,
        format=order.format,
        columns=order.columns if like is None else list(like.feature_names_in_),
        time=order.time,
        key=order.key,
        strict=order.strict,
    )
    with closing(table):
        chunks = options.counting(table, order.quiet)
        if like is not None:
            return _counted_like(like, table, chunks)
        if order.kind == "stream" or order.shingle is not None:
            return _followed(order, table, chunks)
        return _fitted(order, table, chunks)


def _counting(path: str) -> BatchMPF:
    """The model at a path, if another can count in its cells."""
    from polyaforest import BatchMPF, load

    model = load(path)
    is_fit = isinstance(model, BatchMPF) and not (model.domain is None or isinstance(model.domain, str))
    if not is_fit or not hasattr(model, "feature_names_in_"):
        raise ValueError(f"{path} has no cells that another model could count in: make it by polyaforest fit --batch")
    return model


def _counted_like(like: BatchMPF, table: Table, chunks: Iterator[Chunk]) -> Made:
    """The rows counted in the cells of another model, chunk by chunk."""
    from polyaforest import BatchMPF
    from polyaforest.cli._judging import frame

    model = BatchMPF(**like.get_params())
    for chunk in chunks:
        model.partial_fit(frame(chunk.rows, table.columns.used))
    return Made(model, table, like.notes.get("line"))


def _followed(order: Order, table: Table, chunks: Iterator[Chunk]) -> Made:
    """The rows learned one after another, chunk by chunk; such a model draws the line by what it holds."""
    from polyaforest.cli._judging import Rule, frame, lacking_at_first, new_forest, refuse_disorder
    from polyaforest.io.keys import point_keys

    window = order.window or options.WINDOW
    model = new_forest(Rule("stream", order.seed or 0, window, order.shingle, order.false_alarm_rate, n_jobs=None))
    latest = -inf
    for chunk in chunks:
        start = 0 if order.shingle else lacking_at_first(model, chunk.rows)
        if start == len(chunk.rows):
            continue
        n_before = model.n_seen_ if hasattr(model, "forest_") else 0
        keys = None if chunk.keys is None else point_keys(chunk.keys[start:], model.holds, n_before=n_before)
        times = None
        if order.shingle and chunk.times is not None:
            times = chunk.times
            refuse_disorder(times, chunk.numbers, latest)
            latest = float(times[-1])
        # judged too, so that the model knows from the start what scores to expect
        model.judge_then_learn(frame(chunk.rows[start:], table.columns.used), keys=keys, times=times)
    if not hasattr(model, "forest_"):
        raise ValueError("there is no complete row to begin with: every row lacks a value")
    return Made(model, table)


def _fitted(order: Order, table: Table, chunks: Iterator[Chunk]) -> Made:
    """The rows learned all at once."""
    from polyaforest.cli._judging import RATE, Rule, frame, gathered, new_forest
    from polyaforest.decision.thresholds import line_below_bulk
    from polyaforest.io.keys import point_keys

    whole = gathered(chunks)
    rows = frame(whole.rows, table.columns.used)
    seed, rate = order.seed or 0, order.false_alarm_rate
    if whole.keys is not None:
        model = new_forest(Rule("stream", seed, len(whole.rows), None, rate, n_jobs=None))
        return Made(model.fit(rows, keys=point_keys(whole.keys)), table)
    model = new_forest(Rule(order.kind, seed)).set_params(false_alarm_rate=rate)
    if order.kind == "batch":
        model.set_params(domain=_domain(whole.rows))
    model.fit(rows)
    line = line_below_bulk(model.score_samples(rows), RATE) if rate is None else None
    model.set_params(n_jobs=None)  # those who load it may have other threads
    return Made(model, table, line)


def _domain(rows: Array) -> list[list[float]]:
    """The box of the rows, with some room for others to come."""
    import numpy as np

    low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
    room = _ROOM * np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    return [(low - room).tolist(), (high + room).tolist()]


def _tell(order: Order, made: Made) -> None:
    """What was read, and what the model is."""
    from polyaforest.cli._report import count, reading_in_words

    for line in reading_in_words(made.table, order.files):
        options.say(line, order.quiet)
    model = made.model
    if type(model).__name__ == "BatchMPF":
        holds = f"has counted {count(model.n_points_, 'row')}"
    elif order.key is not None or order.kind == "stream" or order.shingle is not None:
        holds = f"holds {count(model.n_points_, 'point')}"
        holds += (
            f", which `forget` can take out by {order.key}" if order.key is not None else ", and can go on learning"
        )
    else:
        holds = f"has seen {count(made.table.n_rows, 'row')}"
    options.say(f"{order.model} {holds}.", order.quiet)
