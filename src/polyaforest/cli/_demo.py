"""`polyaforest demo`: write an example file, and find the anomalies in it."""

from __future__ import annotations

import os
from importlib.util import find_spec

import click

from polyaforest.util.text import printable

NAME = "server-metrics.csv"
PICTURE = "server-metrics.png"


_HELP = """Write an example file, and find the anomalies in it.

The file is server-metrics.csv: a week of two web servers with five incidents. If matplotlib is installed, a plot is
drawn too.
"""


@click.command(help=_HELP)
@click.option(
    "--to", "folder", default=".", show_default=True, type=click.Path(file_okay=False), help="Directory for the files."
)
def command(folder: str) -> None:
    """Run `polyaforest demo`."""
    from polyaforest.cli import main

    path, picture = write_example(folder), _within(folder, PICTURE) if find_spec("matplotlib") else None
    args = ["detect", path, *([] if picture is None else ["--plot", picture])]
    click.echo(f"Wrote {printable(path)}. Now run, as with a file of your own:\n", err=True)
    click.echo(f"  $ polyaforest {printable(' '.join(args))}\n", err=True)
    main.main(args, prog_name="polyaforest", standalone_mode=False)
    click.echo(_farewell(path, picture), err=True)


def _within(folder: str, name: str) -> str:
    """Return the path of a file in a folder."""
    return os.path.normpath(os.path.join(folder, name))


def write_example(folder: str) -> str:
    """Write the example and return its path; raise if another file has that name."""
    from polyaforest.storage.modelfile import replacing

    path, text = _within(folder, NAME), example_text()
    os.makedirs(folder, exist_ok=True)
    present = _contents(path)
    if not text.startswith(present):  # an earlier version may have been killed while writing it
        raise ValueError(f"{path} exists and is not the example: choose another directory with --to")
    if present != text:
        with replacing(os.path.realpath(path)) as file:
            file.write(text.encode())
    return path


def _contents(path: str) -> str:
    """Return the text of a file, empty if it does not exist."""
    from polyaforest.storage.modelfile import check_regular_file

    check_regular_file(path)
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def example_text() -> str:
    """Return the example as CSV."""
    from polyaforest.datasets.demo import server_metrics

    columns = server_metrics()
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def _farewell(path: str, picture: str | None) -> str:
    """List the incidents, and suggest a next step."""
    from polyaforest.datasets.demo import INCIDENTS

    planted = [f"  {incident.start.replace('T', ' ')}  {incident.host}  {incident.what}" for incident in INCIDENTS]
    plot = [] if picture is None else [f"\nPlot: {printable(picture)}"]
    lines = [
        "\nFor comparison, the incidents in the example:",
        *planted,
        *plot,
        "\nNext, score each host separately, and write all rows with scores and reasons to a file:",
        f"  $ polyaforest detect {printable(path)} --by host --out scored.csv",
    ]
    return "\n".join(lines)
