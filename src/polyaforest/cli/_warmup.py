"""`polyaforest warmup`: compile everything for this machine, ahead of the first use."""

from __future__ import annotations

import sys

import click

from polyaforest.cli import _options as options

_HELP = """Compile for this machine what polyaforest computes with, on all cores.

Otherwise the first command, or the first call of a method, compiles what it needs. Run it when an image is built, or
before workers start. The result is kept in the package, or where NUMBA_CACHE_DIR points.
"""


@click.command(help=_HELP)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at a time; as many as there are cores by default.")
@options.quiet
def command(jobs: int | None, quiet: bool) -> None:
    """Run `polyaforest warmup`."""
    from polyaforest.forest import warmup

    groups = warmup.cold("everything")
    if not groups:
        options.say("Everything is compiled for this machine.", quiet)
        return
    _compile(groups, jobs, quiet)
    options.say("Compiled.", quiet)


def compile_first(purpose: str, quiet: bool) -> None:
    """Compile what a command needs, unless it is compiled already or there is one core alone."""
    from joblib import cpu_count

    from polyaforest.forest import warmup

    groups = warmup.cold(purpose)
    if len(groups) > 1 and cpu_count() > 1:
        _compile(groups, None, quiet)


def _compile(groups: list[str], jobs: int | None, quiet: bool) -> None:
    from polyaforest.forest import warmup

    options.say(
        f"Compiling for this machine, once: about {warmup.expected_seconds(groups, jobs):.0f} seconds ...", quiet
    )
    hidden = quiet or not sys.stderr.isatty()
    with click.progressbar(length=100, file=sys.stderr, hidden=hidden) as bar:
        for share in warmup.compile_all(groups, jobs):
            bar.update(round(100 * share) - bar.pos)
