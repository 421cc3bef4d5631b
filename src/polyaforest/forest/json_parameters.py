"""Encode the parameters of detectors for the headers of model files."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from numbers import Integral, Real
from typing import Any

import numpy as np

from polyaforest.forest.retention import Reservoir, Window
from polyaforest.forest.score_types import EpsilonPhi
from polyaforest.tables.categories import Codes


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
