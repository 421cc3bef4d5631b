"""`polyaforest backup`: save the models and histories of a running service."""

from __future__ import annotations

import click

from polyaforest.cli import _options as options

_HELP = """Save the models and histories of a running service in FILE, a tar archive.

The service keeps scoring. Both files of each stream are copied right after a save, so that they match. The token of an
admin is read from --token-file, or from the environment variable POLYAFOREST_TOKEN. To restore FILE: polyaforest
restore.

\b
Examples:
  polyaforest backup monday.tar
  polyaforest backup monday.tar --url https://anomalies.example.com --token-file admin-token
"""


@click.command("backup", help=_HELP)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.option(
    "--url", metavar="URL", default="http://127.0.0.1:8420", show_default=True, help="Address of the service."
)
@click.option("--token-file", metavar="PATH", type=click.Path(dir_okay=False), help="File with the token of an admin.")
@options.quiet
def command(file: str, url: str, token_file: str | None, quiet: bool) -> None:
    """Run `polyaforest backup`."""
    import os
    from http.client import HTTPException
    from pathlib import Path

    from polyaforest.client import ApiError, Client
    from polyaforest.io.errors import BadInput

    token = None if token_file is None else Path(token_file).read_text("utf-8").strip()
    try:
        with Client(url, token, timeout=600) as client:
            client.backup(file)
    except (ApiError, HTTPException) as problem:
        raise BadInput(f"{url}: {problem}") from None
    options.echo(f"Saved {file}: {os.path.getsize(file):,} bytes.", quiet)
