"""`polyaforest fit`: learn what is normal in a file, and save it as a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options
from polyaforest.settings.stream import WINDOW

if TYPE_CHECKING:
    from polyaforest import BatchMPF
    from polyaforest.io.tables import Table, TableChunk
    from polyaforest.judge.table import DetectorSettings
    from polyaforest.kernels.arrays import Array

_MARGIN = 0.1  # of the range of a column, added to either side of the domain for later rows


@dataclass(frozen=True)
class FitOptions(options.TableOptions):
    """The options, by name."""

    model: str
    like: str | None
    seed: int | None

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        if self.kind == "batch":
            self._reject("window", "shingle", "id", why="does not work with --batch, which holds no rows.")
        if self.like is not None:
            self._reject(
                "columns",
                "categories",
                "seed",
                "false_alarm_rate",
                "epsilon",
                "phi",
                why="is taken from the model of --like: omit it.",
            )
            if self.kind != "batch":
                raise click.UsageError("--like is for models to merge: add --batch.")
        super().__post_init__()

    def _reject(self, *names: str, why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} {why}")

    def settings(self, window: int | None = None, n_jobs: int | None = None) -> DetectorSettings:
        """Return the settings of the detector."""
        from polyaforest.judge.table import DetectorSettings

        return DetectorSettings(
            kind=self.kind,
            seed=self.seed or 0,
            window=window,
            shingle=self.shingle,
            is_series=bool(self.is_series),
            false_alarm_rate=self.false_alarm_rate,
            epsilon=self.epsilon,
            phi=self.phi,
            n_jobs=n_jobs,
        )


_HELP = """Learn what is normal in FILE... and save it as a model, for `score`, `explain` and `watch`.

By default the model holds a uniform sample of the rows. With --stream it holds the last rows (--window). With --id it
holds all rows by id, so that `forget` can delete them. With --batch it counts rows in fixed cells, so that `merge` can
add up models of different files.

\b
Examples:
  polyaforest fit last-month.csv -m model.mpf
  polyaforest fit customers.csv -m model.mpf --id customer
  polyaforest fit --batch --like monday.mpf tuesday.csv -m tuesday.mpf
"""


@click.command(help=_HELP)
@options.files
@options.model
@options.columns
@options.ignore
@options.categories
@options.time
@click.option(
    "--id", metavar="COLUMN", help="Column that identifies rows, so that `forget` can delete them. Ids may repeat."
)
@options.weight
@options.format_
@options.reading
@options.strict
@options.batch
@options.stream
@options.window
@options.series("rows")
@options.shingle
@click.option(
    "--like",
    metavar="MODEL",
    type=click.Path(),
    help="With --batch: use the cells of MODEL, so that `merge` can add both up.",
)
@options.flagging()
@click.option("--seed", metavar="N", type=click.IntRange(min=0), help="Random seed.  [default: 0]")
@options.quiet
def command(**given: Any) -> None:
    """Run `polyaforest fit`."""
    chosen = FitOptions(**given)
    model, table = fit(chosen)
    notes: dict[str, Any] = {"columns": table.columns.used, "time": table.columns.times, "id": table.columns.id}
    notes["missing"] = {name: list(values) for name, values in table.sentinels.items()} or None
    if chosen.kind == "batch":
        notes["domain"] = "rows"  # derived from the data, so a private release must not use it
    model.save(chosen.model, notes={name: note for name, note in notes.items() if note is not None})
    _print(chosen, model, table)


def fit(chosen: FitOptions) -> tuple[Any, Table]:
    """Return the fitted model and the table it was fitted on."""
    like = None if chosen.like is None else _template(chosen.like)
    columns, categories = (chosen.columns, chosen.categories) if like is None else _columns_of(like)
    with closing(chosen.open_table(columns, categories)) as table:
        chunks = options.with_progress(table, chosen.quiet)
        if like is not None:
            return _fit_like(like, table, chunks), table
        return (_fit_stream if chosen.is_stream else _fit_table)(chosen, table, chunks), table


def _columns_of(model: Any) -> tuple[list[str], list[str]]:
    """Return the columns and the categories of a model."""
    from polyaforest.judge.saved import category_names

    return list(model.feature_names_in_), category_names(model)


def _template(path: str) -> BatchMPF:
    """Load the model of --like; raise if it has no fixed cells."""
    from polyaforest import BatchMPF, load

    model = load(path)
    domain = getattr(getattr(model, "tree", None), "domain", None)
    has_cells = isinstance(model, BatchMPF) and domain is not None and not isinstance(domain, str)
    if not has_cells or not hasattr(model, "feature_names_in_"):
        raise ValueError(f"{path} has no fixed cells: fit it with polyaforest fit --batch")
    return model


def _fit_like(like: BatchMPF, table: Table, chunks: Iterator[TableChunk]) -> Any:
    """Count rows in the cells of another model, chunk by chunk."""
    from sklearn.base import clone

    model = clone(like)
    for chunk in chunks:
        model.partial_fit(chunk.named(table.columns), sample_weight=chunk.weights)
    return model


def _fit_stream(chosen: FitOptions, table: Table, chunks: Iterator[TableChunk]) -> Any:
    """Learn rows one after another, chunk by chunk."""
    from polyaforest.forest.point_store import point_keys
    from polyaforest.judge.table import times_of

    model = chosen.settings(chosen.window or WINDOW).new_detector()
    for chunk in chunks:
        keys = None
        if chunk.ids is not None:
            keys = point_keys(chunk.ids, model.holds, n_before=model.n_seen_ if model.is_fitted else 0)
        weights = {} if chunk.weights is None else {"sample_weight": chunk.weights}
        # score too, so that the model has calibration scores from the start
        model.detect_then_learn(chunk.named(table.columns), keys=keys, times=times_of(model, chunk), **weights)
    return model


def _fit_table(chosen: FitOptions, table: Table, chunks: Iterator[TableChunk]) -> Any:
    """Learn all rows at once."""
    import numpy as np

    from polyaforest import Tree
    from polyaforest.forest.point_store import point_keys
    from polyaforest.io.tables import gather
    from polyaforest.judge.table import times_of

    whole = gather(chunks)
    rows, keys = whole.named(table.columns), None if whole.ids is None else point_keys(whole.ids)
    if chosen.is_series:
        series = chosen.settings(None if keys is None else len(rows)).new_detector()
        return series.fit(rows, keys=keys, times=times_of(series, whole))
    weights = whole.weights
    if keys is not None:
        n_points = len(rows) if weights is None else max(int(np.ceil(weights).sum()), 2)
        return chosen.settings(n_points).new_detector().fit(rows, keys=keys, sample_weight=weights)
    model = chosen.settings(n_jobs=-1).new_detector()
    if chosen.kind == "batch":
        numbers = [k for k, name in enumerate(table.columns.used) if name not in table.columns.categories]
        model.set_params(tree=Tree(domain=_domain(whole.rows[:, numbers])))
    return model.fit(rows, sample_weight=weights).set_params(n_jobs=None)  # it may be loaded on another machine


def _domain(rows: Array) -> list[list[float]]:
    """Return the bounding box of the rows, with a margin for later ones."""
    import numpy as np

    low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
    margin = _MARGIN * np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    return [(low - margin).tolist(), (high + margin).tolist()]


def _print(chosen: FitOptions, model: Any, table: Table) -> None:
    """Print a summary of the input and of the model."""
    from polyaforest.util.text import count

    options.echo_input(table, chosen.quiet)
    if chosen.kind == "batch":
        holds = f"counts {count(model.n_points_, 'row')}"
    else:
        forgets = "" if chosen.id is None else f"; `forget` can delete them by {chosen.id}"
        holds = f"holds {count(model.n_points_, 'point')} of {count(table.n_rows, 'row')}{forgets}"
    options.echo(f"{chosen.model} {holds}.", chosen.quiet)
