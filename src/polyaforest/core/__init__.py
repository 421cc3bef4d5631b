"""What every other package builds on: arrays, random numbers, compilation, locks, checks of input."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def source_states() -> dict[str, tuple[int, ...]]:
    """Return the state on disk of every source that kernels are compiled from, by path; empty without such files.

    Kernels import this package and each other, and nothing else of polyaforest.
    """
    try:
        sources = [file for name in ("core", "kernels") for file in sorted((_PACKAGE / name).glob("*.py"))]
        return {str(source): source_state(source) for source in sources}
    except OSError:
        return {}


def source_state(source: str | Path) -> tuple[int, ...]:
    """Return what changes whenever a file is written or replaced, whatever the clock says."""
    stat = os.stat(source)
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


STATES_AT_IMPORT = source_states()  # taken before Python reads the sources, so that an upgrade since then shows
