"""Optional dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(module: str, *libraries: str, name: str | None = None) -> Iterator[None]:
    """Explain how to install `libraries` if the block fails to import one; other import errors propagate.

    `name` is the extra of this package, by default the first library.
    """
    try:
        yield
    except ModuleNotFoundError as problem:
        if problem.name not in libraries:
            raise
        wanted = f'pip install "polyaforest[{name or libraries[0]}]"'
        raise ModuleNotFoundError(f"{module} needs {problem.name}: {wanted}", name=problem.name) from problem
