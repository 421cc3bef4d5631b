"""Foundations of all other packages: arrays, random numbers, compilation, locks, validation."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def source_states() -> dict[str, tuple[int, ...]]:
    """Return the state on disk, by path, of every source file of the kernels; empty if they cannot be read.

    Kernels import only this package and each other.
    """
    try:
        sources = [file for name in ("core", "kernels") for file in sorted((_PACKAGE / name).glob("*.py"))]
        return {str(source): source_state(source) for source in sources}
    except OSError:
        return {}


def source_state(source: str | Path) -> tuple[int, ...]:
    """Return a value that changes whenever a file is written or replaced, even if the clock is wrong."""
    stat = os.stat(source)
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


STATES_AT_IMPORT = source_states()  # taken before Python reads the sources, to detect a later upgrade
