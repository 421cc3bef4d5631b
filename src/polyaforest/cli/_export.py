"""`polyaforest export`: write a model in a format that other programs score with."""

from __future__ import annotations

import os
from typing import Any

import click

from polyaforest.cli import _options as options

_HELP = """Write MODEL in a format that other programs score with, without polyaforest.

The ending of the file chooses the format: .json for the scorers in Python and JavaScript, which --scorer writes beside
it; .sql for a script that creates tables and a view of scores in a database; .onnx for a graph (extra onnx).

\b
Examples:
  polyaforest export model.mpf --to model.json
  polyaforest export model.mpf --to model.json --scorer javascript
  polyaforest export model.mpf --to model.sql --dialect sqlite --table payments --key payment_id
"""
_SCORERS = {"python": ["scorer.py"], "javascript": ["scorer.js", "codes.js"]}


@click.command(help=_HELP)
@click.argument("model", type=click.Path())
@click.option("--to", "out", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="File to write.")
@click.option(
    "--scorer", type=click.Choice(list(_SCORERS)), help="Also write the program that scores with .json, beside it."
)
@click.option(
    "--dialect", type=click.Choice(["postgresql", "sqlite", "duckdb"]), help="Database of .sql: postgresql by default."
)
@click.option("--table", metavar="NAME", help="Table to score with .sql.  [default: rows]")
@click.option("--key", metavar="COLUMN", help="Unique column of that table.  [default: id]")
@click.option("--prefix", metavar="NAME", help="Start of the names that .sql creates.  [default: polyaforest]")
@options.partition
@options.quiet
def command(model: str, out: str, scorer: str | None, by: str | None, quiet: bool, **of_sql: str | None) -> None:
    """Run `polyaforest export`."""
    from polyaforest.export import FORMATS
    from polyaforest.judge.saved import read_detector
    from polyaforest.storage.modelfile import replacing
    from polyaforest.util.text import count

    name = os.path.splitext(out)[1].removeprefix(".").lower()
    if name not in FORMATS:
        raise click.UsageError(f"{out} does not end in one of {', '.join(f'.{known}' for known in FORMATS)}.")
    if scorer is not None and name != "json":
        raise click.UsageError("--scorer is for models in .json.")
    given = {option: value for option, value in of_sql.items() if value is not None}
    if given and name != "sql":
        raise click.UsageError(f"--{next(iter(given))} is for models in .sql.")
    exported = _exported(model, read_detector(model, by), name, given)
    data = exported if isinstance(exported, bytes) else exported.encode()
    with replacing(out) as file:
        file.write(data)
    written = [out, *_write_scorer(scorer, os.path.dirname(out))]
    options.echo(f"Wrote {', '.join(written)} ({count(len(data), 'byte')}).", quiet)


def _exported(path: str, detector: Any, name: str, given: dict[str, str]) -> str | bytes:
    """Return the export of a detector; raise ValueError if detectors of its kind have none."""
    if not hasattr(detector, "export"):
        raise ValueError(f"{path} is a {type(detector).__name__}: only a StreamingMPF or a BatchMPF can be exported")
    exported: str | bytes = detector.export(name, **given)
    return exported


def _write_scorer(scorer: str | None, folder: str) -> list[str]:
    """Write the files of a scorer to a folder; return their paths."""
    from importlib.resources import files

    from polyaforest.storage.modelfile import replacing

    paths = []
    for name in _SCORERS[scorer] if scorer is not None else []:
        paths.append(os.path.join(folder, name))
        with replacing(paths[-1]) as file:
            file.write((files("polyaforest.export") / name).read_bytes())
    return paths
