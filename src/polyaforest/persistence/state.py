"""Conversion of forests and their parameters to and from the contents of model files."""

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
from polyaforest.persistence.modelfile import Arrays, ModelFileError, Place, name_of
from polyaforest.retention import Reservoir, Window

Tuple = TypeVar("Tuple", Forest, Points)


# What checking or using contents of an unknown author may raise.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def refusing(path: Place) -> Iterator[None]:
    """Report invalid contents of a file as a `ModelFileError`."""
    try:
        yield
    except MALFORMED as problem:
        raise ModelFileError(f"{name_of(path)} does not hold a whole model: {problem!r}") from problem


@contextmanager
def refusing_pickle(detector: object) -> Iterator[None]:
    """Report invalid contents of an unpickled detector."""
    try:
        yield
    except MALFORMED as problem:
        raise ValueError(
            f"the pickle does not hold a whole {type(detector).__name__}: {problem}. Pickle it again, or load a saved "
            "model"
        ) from problem


def packed(name: str, parts: Forest | Points) -> Arrays:
    """Return the arrays of a tuple, each under its own name."""
    return {f"{name}/{field}": part for field, part in parts._asdict().items()}


def unpacked(name: str, arrays: Arrays, kind: type[Tuple]) -> Tuple:
    """Return the tuple whose arrays were `packed`."""
    known = {f"{name}/{field}": field for field in kind._fields}
    unknown = [field for field in arrays if field.startswith(f"{name}/") and field not in known]
    if unknown:
        raise ValueError(f"array {unknown[0]}: is not part of this format version")
    return kind(**{field: arrays[place] for place, field in known.items()})


def encode(value: Any) -> Any:
    """Return a parameter as JSON can hold it.

    None replaces a generator, which only a new fit would use.
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
    """Return a choice of columns as JSON can hold it: names, places or a mask; text and None as they are."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Codes):
        return {"codes": value.n}
    chosen = np.asarray(value)
    if chosen.dtype.kind == "b":
        return {"mask": chosen.tolist()}
    return {"columns": chosen.tolist()} if chosen.dtype.kind in "iu" else [str(name) for name in chosen.tolist()]


def _encode_policy(value: timedelta | Window | Reservoir) -> dict[str, Any]:
    """Return a retention policy as JSON can hold it."""
    if isinstance(value, timedelta):
        return {"timedelta": value.total_seconds()}
    if isinstance(value, Window):
        return {"window": [value.n, value.duration]}
    return {"reservoir": [value.n, value.half_life, value.by_time]}


def decode(value: Any) -> Any:
    """Return the parameter that was encoded."""
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
    """Return keys as bytes: there may be too many for a header."""
    return np.frombuffer(json.dumps(keys).encode(), np.uint8)


def unpack_keys(stored: Array) -> list[int | str]:
    """Return the keys that were packed."""
    keys = json.loads(stored.tobytes().decode())
    if not isinstance(keys, list) or any(type(key) not in (int, str) for key in keys):
        raise ValueError("keys must be a list of integers and strings")
    return keys
