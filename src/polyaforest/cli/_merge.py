"""`polyaforest merge`: merge models into one that counts the rows of all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest import BatchMPF


_HELP = """Merge MODELS into one, exactly as if it had counted the rows of all.

The models must have the same columns and cells: fit the first with --batch, the others with --batch --like FIRST. The
threshold is taken from the first.

\b
Example:
  polyaforest fit --batch monday.csv -m monday.mpf
  polyaforest fit --batch --like monday.mpf tuesday.csv -m tuesday.mpf
  polyaforest merge monday.mpf tuesday.mpf -o week.mpf
"""


@click.command(help=_HELP)
@click.argument("models", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="File for the merged model.")
def command(models: tuple[str, ...], out: str) -> None:
    """Run `polyaforest merge`."""
    if len(models) < 2:
        raise click.UsageError("Give at least two models.")
    seen: set[str] = set()
    for path in models:
        if os.path.realpath(path) in seen:
            raise click.UsageError(f"{path} is given twice: its rows would be counted twice.")
        seen.add(os.path.realpath(path))
    forests = [_load_batch(path) for path in models]
    merged, counts = forests[0], [forest.n_points_ for forest in forests]
    for path, forest in zip(models[1:], forests[1:], strict=True):
        _merge(merged, forest, models[0], path)
    merged.save(out, notes=shared_notes([forest.notes for forest in forests]))
    parts = " + ".join(f"{count:,}" for count in counts)
    options.echo(f"{out} holds the counts of {parts} = {merged.n_points_:,} rows.")


def _load_batch(path: str) -> BatchMPF:
    """Load a model; raise unless it is a BatchMPF."""
    from polyaforest import BatchMPF, load

    model = load(path)
    if not isinstance(model, BatchMPF):
        raise ValueError(
            f"{path} is a {type(model).__name__}, whose cells depend on its rows, so it cannot be merged. Fit models "
            "to merge with polyaforest fit --batch"
        )
    return model


def _merge(merged: BatchMPF, other: BatchMPF, first: str, path: str) -> None:
    """Add the counts of a model; raise if its cells differ."""
    try:
        merged.merge(other)
    except ValueError as problem:
        raise ValueError(
            f"{first} and {path}: {problem}. Fit the second again in the cells of the first: "
            f"polyaforest fit --batch --like {first} FILE -m {path}"
        ) from problem


def shared_notes(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the notes that are equal in all models."""
    first, *others = notes
    return {name: note for name, note in first.items() if all(name in them and them[name] == note for them in others)}
