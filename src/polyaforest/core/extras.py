"""Libraries that not every installation has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(module: str, *libraries: str, name: str | None = None) -> Iterator[None]:
    """Say how to install one of the `libraries` if importing it in the block fails; other import errors pass through.

    `name` is that of the extra of this package, by default that of the first library.
    """
    try:
        yield
    except ModuleNotFoundError as problem:
        if problem.name not in libraries:
            raise
        wanted = f'pip install "polyaforest[{name or libraries[0]}]"'
        raise ModuleNotFoundError(f"{module} needs {problem.name}: {wanted}", name=problem.name) from problem
