"""`polyaforest warmup`: compile the kernels before the first use."""

from __future__ import annotations

import os
import sys
from collections import deque

import click

from polyaforest.cli import _options as options

_HELP = """Compile all kernels for this machine, on all cores.

Otherwise the first command, or the first call of a method, compiles what it needs. Run it when you build an image, or
before workers start. Compiled kernels are saved in the user's cache directory, or in POLYAFOREST_CACHE_DIR.

With --portable, they also run on other processors of the same kind (x86-64-v3: most since 2013; any 64-bit ARM). Set
POLYAFOREST_CPU=portable where polyaforest runs, so that it finds them.
"""


@click.command(help=_HELP)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), help="Number of processes.  [default: number of cores]"
)
@click.option("--portable", is_flag=True, help="Compile for any processor of this kind, not only this one.")
@options.quiet
def command(jobs: int | None, portable: bool, quiet: bool) -> None:
    """Run `polyaforest warmup`."""
    if portable:
        os.environ["POLYAFOREST_CPU"] = "portable"  # the processes that compile inherit it
    from polyaforest.forest import warmup
    from polyaforest.kernels.cache import select_cpu

    groups = warmup.cold("everything")
    if groups:
        _compile(groups, jobs, quiet)
    options.echo(f"All kernels are compiled for this machine ({select_cpu()}).", quiet)


def compile_first(purpose: str, quiet: bool) -> None:
    """Compile what a command needs, if anything is missing and there are several cores."""
    from joblib import cpu_count

    from polyaforest.forest import warmup

    groups = warmup.cold(purpose)
    if len(groups) > 1 and cpu_count() > 1:
        _compile(groups, None, quiet)


def _compile(groups: list[str], jobs: int | None, quiet: bool) -> None:
    from polyaforest.forest import warmup

    options.echo(
        f"Compiling for this machine, once: about {warmup.expected_seconds(groups, jobs):.0f} seconds ...", quiet
    )
    shares = warmup.compile_all(groups, jobs)
    if quiet or not sys.stderr.isatty():  # click 8.1 would print an empty line
        deque(shares, maxlen=0)
        return
    with click.progressbar(length=100, file=sys.stderr) as bar:
        for share in shares:
            bar.update(round(100 * share) - bar.pos)
