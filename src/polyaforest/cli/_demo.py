"""`polyaforest demo`: an example file, and the anomalies in it."""

from __future__ import annotations

import os

import click

from polyaforest.core.text import printable

NAME = "server-metrics.csv"
PICTURE = "server-metrics.png"


_HELP = """Write an example file and find the anomalies in it: a week of two web servers, on which five things go wrong.

The file is server-metrics.csv. If matplotlib is installed, a picture is drawn beside it.
"""


@click.command(help=_HELP)
@click.option(
    "--to", "folder", default=".", show_default=True, type=click.Path(file_okay=False), help="Where to write the files."
)
def command(folder: str) -> None:
    """Run `polyaforest demo`."""
    from polyaforest.cli import main

    path, picture = write_example(folder), _within(folder, PICTURE) if _can_draw() else None
    args = ["detect", path, *([] if picture is None else ["--plot", picture])]
    click.echo(f"Wrote {printable(path)}. Now, as you would with a file of your own:\n", err=True)
    click.echo(f"  $ polyaforest {printable(' '.join(args))}\n", err=True)
    main.main(args, prog_name="polyaforest", standalone_mode=False)
    click.echo(_farewell(path, picture), err=True)


def _within(folder: str, name: str) -> str:
    """The path of a file, as people would write it."""
    return os.path.normpath(os.path.join(folder, name))


def write_example(folder: str) -> str:
    """Write the file, unless something else has its name, and say where it is."""
    from polyaforest.persistence.modelfile import refuse_irregular

    path = _within(folder, NAME)
    text = example_text()
    os.makedirs(folder, exist_ok=True)
    try:
        with open(path, "x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        refuse_irregular(path)
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            if file.read() != text:
                raise ValueError(
                    f"{path} is there already and is not the example: choose another place by --to"
                ) from None
    return path


def example_text() -> str:
    """The example as a CSV file has it."""
    from polyaforest.io.sample import server_metrics

    columns = server_metrics()
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def _can_draw() -> bool:
    """Whether pictures can be drawn here."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def _farewell(path: str, picture: str | None) -> str:
    """What really happened, what to look at, and what to try next."""
    from polyaforest.io.sample import INCIDENTS

    told = [f"  {incident.start.replace('T', ' ')}  {incident.host}  {incident.what}" for incident in INCIDENTS]
    seen = [] if picture is None else [f"\nThe same in a picture: {printable(picture)}"]
    lines = [
        "\nWhat was planted, for you to compare:",
        *told,
        *seen,
        "\nTo try next: each host by itself, and all rows with their scores and reasons in a file:",
        f"  $ polyaforest detect {printable(path)} --key host --out scored.csv",
    ]
    return "\n".join(lines)
