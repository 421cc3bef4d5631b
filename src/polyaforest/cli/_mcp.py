"""`polyaforest mcp`: serve the tools of an agent by the Model Context Protocol."""

from __future__ import annotations

import click

from polyaforest.cli import _options as options

_HELP = """Serve tools for agents and notebooks by the Model Context Protocol (MCP).

An agent can find anomalies in files, explain rows and compare files; with a running service, also list and explain
events and read the history. Each tool answers with sentences that say why, and with the numbers behind them.

By default the server speaks over standard input and output, as programs that start it expect; with --http, over
streamable HTTP at http://127.0.0.1:PORT/mcp. Files are read only below --root. Nothing is changed unless
--allow-feedback is given.

\b
Examples:
  polyaforest mcp
  polyaforest mcp --url http://127.0.0.1:8420 --allow-feedback
  polyaforest mcp --http 8421 --root /srv/data
"""


@click.command("mcp", help=_HELP)
@click.option(
    "--root",
    metavar="FOLDER",
    default=".",
    show_default=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder below which files may be read.",
)
@click.option("--url", metavar="URL", help="Address of a running service.")
@click.option(
    "--token-file",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="File with a token of the service, otherwise read from POLYAFOREST_TOKEN.",
)
@click.option("--allow-feedback", is_flag=True, help="Let agents label events, which changes models; needs --url.")
@click.option(
    "--http", "port", metavar="PORT", type=click.IntRange(1, 65535), help="Serve streamable HTTP on this port."
)
@options.quiet
def command(
    root: str, url: str | None, token_file: str | None, allow_feedback: bool, port: int | None, quiet: bool
) -> None:
    """Run `polyaforest mcp`."""
    from pathlib import Path

    from polyaforest.cli._mcp_tools import new_server
    from polyaforest.client import Client

    if allow_feedback and url is None:
        raise click.UsageError("--allow-feedback lets agents label events of a service: add --url.")
    token = None if token_file is None else Path(token_file).read_text("utf-8").strip()
    server = new_server(root, None if url is None else Client(url, token), has_feedback=allow_feedback)
    if port is None:
        server.run("stdio")
    else:
        options.echo(f"Serving MCP at http://127.0.0.1:{port}/mcp. Stop with Ctrl-C.", quiet)
        server.run("streamable-http", host="127.0.0.1", port=port)
