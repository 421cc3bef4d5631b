"""`polyaforest warmup`: compile everything for this machine, ahead of the first use."""

from __future__ import annotations

import os
import sys
from collections import deque

import click

from polyaforest.cli import _options as options

_HELP = """Compile for this machine what polyaforest computes with, on all cores.

Otherwise the first command, or the first call of a method, compiles what it needs. Run it when an image is built, or
before workers start. The result is kept in the user's cache directory, or in the one that POLYAFOREST_CACHE_DIR names.

With --portable, the result also serves machines with other processors of the same kind (x86-64-v3: most since 2013; any
64-bit ARM). Set POLYAFOREST_CPU=portable where polyaforest runs, so that it looks for this result.
"""


@click.command(help=_HELP)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at a time; as many as there are cores by default.")
@click.option("--portable", is_flag=True, help="Compile for any processor of this kind, not only for this one.")
@options.quiet
def command(jobs: int | None, portable: bool, quiet: bool) -> None:
    """Run `polyaforest warmup`."""
    if portable:
        os.environ["POLYAFOREST_CPU"] = "portable"  # the processes that compile inherit it
    from polyaforest.core.kernel_cache import select_cpu
    from polyaforest.forest import warmup

    groups = warmup.cold("everything")
    if groups:
        _compile(groups, jobs, quiet)
    options.say(f"Everything is compiled for this machine ({select_cpu()}).", quiet)


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
    shares = warmup.compile_all(groups, jobs)
    if quiet or not sys.stderr.isatty():  # click 8.1 would print an empty line
        deque(shares, maxlen=0)
        return
    with click.progressbar(length=100, file=sys.stderr) as bar:
        for share in shares:
            bar.update(round(100 * share) - bar.pos)
