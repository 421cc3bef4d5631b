"""`polyaforest restore`: restore a backup into a data folder."""

from __future__ import annotations

import click

from polyaforest.cli import _options as options

_HELP = """Restore the models and histories in FILE, which `polyaforest backup` has saved.

The data folder must have no files of these streams, and no service may use it. If FILE is damaged, nothing is restored.

\b
Examples:
  polyaforest restore monday.tar
  polyaforest restore monday.tar --data /var/lib/polyaforest
"""


@click.command("restore", help=_HELP)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.option(
    "--data",
    metavar="FOLDER",
    default="polyaforest-data",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Data folder of the service.",
)
@options.quiet
def command(file: str, data: str, quiet: bool) -> None:
    """Run `polyaforest restore`."""
    from polyaforest.cli._serve import check_extra
    from polyaforest.util.text import count

    check_extra()
    from polyaforest.service.backup import restore

    names = restore(file, data)
    options.echo(f"Restored {count(len(names), 'stream')} into {data}: {', '.join(names)}.", quiet)
