"""Compiled kernels, and everything that ends up in their machine code: arrays, boxes, random numbers, compilation.

In layers: geometry, then the cuts (`mondrian_tree`, `mondrian_process`) and, independent of them, the probability of
each side (`polya`), then walks over whole forests (`traversal`). Kernels import nothing from other packages, so that a
digest of these files tells whether cached machine code is current.
"""

import os
from pathlib import Path

_HERE = Path(__file__).parent


def source_states() -> dict[str, tuple[int, ...]]:
    """Return the state on disk, by path, of every source file of this package; empty if they cannot be read."""
    try:
        return {str(source): source_state(source) for source in sorted(_HERE.glob("*.py"))}
    except OSError:
        return {}


def source_state(source: str | Path) -> tuple[int, ...]:
    """Return a value that changes whenever a file is written or replaced, even if the clock is wrong."""
    stat = os.stat(source)
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


STATES_AT_IMPORT = source_states()  # taken before Python reads the sources, to detect a later upgrade
