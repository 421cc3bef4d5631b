"""`polyaforest merge`: several models into one, as if all rows had been counted there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest import BatchMPF


_HELP = """Merge MODELS that counted different rows into one, exactly as if it had counted them all.

The models must be of the same columns and the same cells: fit the first with --batch, the others with --batch
--like and the first.

\b
Example:
  polyaforest fit --batch monday.csv -m monday.mpf
  polyaforest fit --batch --like monday.mpf tuesday.csv -m tuesday.mpf
  polyaforest merge monday.mpf tuesday.mpf -o week.mpf
"""


@click.command(help=_HELP)
@click.argument("models", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="Where to write the merged model.")
def command(models: tuple[str, ...], out: str) -> None:
    """Run `polyaforest merge`."""
    if len(models) < 2:
        raise click.UsageError("Give two models or more.")
    _refuse_the_same_twice(models)
    forests = [_counting(path) for path in models]
    merged, counts = forests[0], [forest.n_points_ for forest in forests]
    for path, forest in zip(models[1:], forests[1:], strict=True):
        _merge(merged, forest, models[0], path)
    merged.save(out, notes=shared_notes([forest.notes for forest in forests]))
    parts = " + ".join(f"{count:,}" for count in counts)
    options.say(f"{out} holds the counts of {parts} = {merged.n_points_:,} rows.")


def _refuse_the_same_twice(models: Sequence[str]) -> None:
    """Raise if a file would be counted twice."""
    seen: dict[str, str] = {}
    for path in models:
        real = os.path.realpath(path)
        if real in seen:
            raise click.UsageError(f"{path} is given twice: its rows would be counted twice.")
        seen[real] = path


def _counting(path: str) -> BatchMPF:
    """The model at a path, if it is one that counts rows in fixed cells."""
    from polyaforest import BatchMPF, load

    model = load(path)
    if not isinstance(model, BatchMPF):
        raise ValueError(
            f"{path} is a {type(model).__name__}, whose trees follow its rows, and cannot be merged. Models to be "
            "merged are made by: polyaforest fit --batch"
        )
    return model


def _merge(merged: BatchMPF, other: BatchMPF, first: str, path: str) -> None:
    """Add the counts of a model to those before, or say what keeps them apart."""
    try:
        merged.merge(other)
    except ValueError as problem:
        raise ValueError(
            f"{first} and {path}: {problem}. Fit the second again on its own rows, in the cells of the first: "
            f"polyaforest fit --batch --like {first} FILE -m {path}"
        ) from problem


def shared_notes(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the notes of all models agree on."""
    first, *others = notes
    return {name: note for name, note in first.items() if all(name in them and them[name] == note for them in others)}
