"""Convert trees, points and keys to and from the contents of model files; report invalid contents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from polyaforest.kernels.arrays import Array, Forest, Points
from polyaforest.storage.modelfile import Arrays, ModelFileError, Place, name_of

Tuple = TypeVar("Tuple", Forest, Points)


# Errors that checking or using untrusted contents may raise.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def reporting_invalid_model(path: Place) -> Iterator[None]:
    """Raise errors about the contents of a file as `ModelFileError`."""
    try:
        yield
    except MALFORMED as problem:
        raise ModelFileError(f"{name_of(path)} does not contain a valid model: {problem!r}") from problem


@contextmanager
def reporting_invalid_pickle(detector: object) -> Iterator[None]:
    """Raise errors about the contents of a pickle as ValueError."""
    try:
        yield
    except MALFORMED as problem:
        raise ValueError(
            f"the pickle does not contain a valid {type(detector).__name__}: {problem}. Pickle it again, or load a "
            "saved model"
        ) from problem


def packed(name: str, parts: Forest | Points) -> Arrays:
    """Return the arrays of a tuple by name."""
    return {f"{name}/{field}": part for field, part in parts._asdict().items()}


def unpacked(name: str, arrays: Arrays, kind: type[Tuple]) -> Tuple:
    """Restore a tuple from its `packed` arrays."""
    known = {f"{name}/{field}": field for field in kind._fields}
    unknown = [field for field in arrays if field.startswith(f"{name}/") and field not in known]
    if unknown:
        raise ValueError(f"array {unknown[0]}: is not part of this format version")
    return kind(**{field: arrays[place] for place, field in known.items()})


def pack_keys(keys: Sequence[int | str]) -> Array:
    """Pack keys into an array of bytes, since there may be too many for a header."""
    return np.frombuffer(json.dumps(keys).encode(), np.uint8)


def unpack_keys(stored: Array) -> list[int | str]:
    """Unpack keys."""
    keys = json.loads(stored.tobytes().decode())
    if not isinstance(keys, list) or any(type(key) not in (int, str) for key in keys):
        raise ValueError("keys must be a list of integers and strings")
    return keys
