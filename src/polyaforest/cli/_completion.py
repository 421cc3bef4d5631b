"""`polyaforest completion`: print the shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

# How to install the script, by shell.
_PLACES = {
    "bash": "polyaforest completion bash > ~/.local/share/bash-completion/completions/polyaforest",
    "zsh": 'polyaforest completion zsh > "${fpath[1]}/_polyaforest"',
    "fish": "polyaforest completion fish > ~/.config/fish/completions/polyaforest.fish",
}


_HELP = """Print the completion script for SHELL, and how to install it."""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(list(_PLACES)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Run `polyaforest completion`."""
    completion = get_completion_class(shell)
    assert completion is not None
    program = ctx.find_root()
    script = completion(program.command, {}, program.info_name or "polyaforest", "_POLYAFOREST_COMPLETE").source()
    click.echo(script)
    click.echo(f"To install it:  {_PLACES[shell]}", err=True)
