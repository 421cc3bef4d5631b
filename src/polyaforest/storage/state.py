"""Convert forests and their parameters to and from the contents of model files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from polyaforest.core.arrays import Array, Forest, Points
from polyaforest.core.categories import Codes
from polyaforest.core.score import EpsilonPhi
from polyaforest.retention import Reservoir, Window
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


def encode(value: Any) -> Any:
    """Encode a parameter for JSON.

    A random generator becomes None, since only a new fit would use it.
    """
    if value is None or isinstance(value, str | bool | np.random.RandomState):
        return None if isinstance(value, np.random.RandomState) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, timedelta | Window | Reservoir):
        return _encode_policy(value)
    if isinstance(value, EpsilonPhi):
        return {"epsilon_phi": [value.epsilon, value.phi]}
    return {"array": np.asarray(value, np.float64).tolist()}


def encode_columns(value: Any) -> Any:
    """Encode a choice of columns for JSON: names, positions or a mask; return text and None unchanged."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Codes):
        return {"codes": value.n}
    chosen = np.asarray(value)
    if chosen.dtype.kind == "b":
        return {"mask": chosen.tolist()}
    return {"columns": chosen.tolist()} if chosen.dtype.kind in "iu" else [str(name) for name in chosen.tolist()]


def _encode_policy(value: timedelta | Window | Reservoir) -> dict[str, Any]:
    """Encode a retention policy for JSON."""
    if isinstance(value, timedelta):
        return {"timedelta": value.total_seconds()}
    if isinstance(value, Window):
        return {"window": [value.n, value.duration]}
    return {"reservoir": [value.n, value.half_life, value.by_time]}


def decode(value: Any) -> Any:
    """Decode a parameter."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind not in _DECODERS:
        raise ValueError(f"unknown kind of parameter: {kind!r}")
    return _DECODERS[kind](content)


def _decode_reservoir(content: list[Any]) -> Reservoir:
    n, half_life, by_time = content
    return Reservoir(n, timedelta(seconds=half_life) if by_time else half_life)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "timedelta": lambda seconds: timedelta(seconds=seconds),
    "window": lambda content: Window(*content),
    "reservoir": _decode_reservoir,
    "epsilon_phi": lambda content: EpsilonPhi(*content),
    "array": lambda content: np.array(content, np.float64),
    "mask": list,
    "columns": list,
    "codes": Codes,
}


def pack_keys(keys: Sequence[int | str]) -> Array:
    """Pack keys into an array of bytes, since there may be too many for a header."""
    return np.frombuffer(json.dumps(keys).encode(), np.uint8)


def unpack_keys(stored: Array) -> list[int | str]:
    """Unpack keys."""
    keys = json.loads(stored.tobytes().decode())
    if not isinstance(keys, list) or any(type(key) not in (int, str) for key in keys):
        raise ValueError("keys must be a list of integers and strings")
    return keys
