"""Sign of scores and import errors, common to all adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyaforest.core.arrays import Array


def anomaly_scores(scores: Array) -> Array:
    """Return scores as in river and PyOD, higher for anomalies."""
    return 0.0 - scores  # not -scores, which turns 0.0 into -0.0


@contextmanager
def extra(library: str) -> Iterator[None]:
    """Say how to install `library` if importing it in the block fails; other import errors pass through."""
    try:
        yield
    except ModuleNotFoundError as problem:
        if problem.name != library:
            raise
        raise ModuleNotFoundError(
            f'polyaforest.adapters.{library} needs {library}: pip install "polyaforest[{library}]"', name=library
        ) from problem
