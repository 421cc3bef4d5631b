"""What the adapters share: which way scores point elsewhere, and what to say when the other library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyaforest.core.arrays import Array


def anomaly_scores(scores: Array) -> Array:
    """Scores the way round that river and PyOD want them, higher for anomalies: the one place that turns the sign."""
    return 0.0 - scores  # not -scores, which makes -0.0 of 0.0


@contextmanager
def extra(library: str) -> Iterator[None]:
    """Say how to install `library` if the block finds that it is missing; anything else it lacks is its own affair."""
    try:
        yield
    except ModuleNotFoundError as problem:
        if problem.name != library:
            raise
        raise ModuleNotFoundError(
            f'polyaforest.adapters.{library} needs {library}: pip install "polyaforest[{library}]"', name=library
        ) from problem
