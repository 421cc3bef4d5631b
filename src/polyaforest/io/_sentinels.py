"""Find numbers that mean "no value", such as -200 or 9999: isolated extremes that repeat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Missing", "find_sentinels", "parse_missing"]

Floats = NDArray[np.float64]

_FEWEST = 3  # rows with the number
_FEWEST_AROUND = 20  # other values of the column, and rows
_FEWEST_DISTINCT = 8  # of the other values; codes and grades have fewer
_FAR = 2.0  # distance from the other values, in widths of their central nine tenths
_CODES = re.compile(r"-?(99+(\.9+)?|9+\.9+|777+(\.7+)?|888+(\.8+)?|999\.25)|-9")  # -999.25: logs of wells
_LIMITS = (32767.0, 65535.0, 2147483647.0, 4294967295.0)  # of integer types
_HUGE = 1e20
_LONE = (-1.0, -9.0, -99.0, -999.0)  # beside numbers of which none is negative
_MOST = 3  # sentinels of a column


class Missing(NamedTuple):
    """Values that count as missing.

    Attributes
    ----------
    numbers : tuple of float
    texts : tuple of str
        In lower case.
    """

    numbers: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()


def parse_missing(values: tuple[str, ...]) -> Missing:
    """Split the values of an option into numbers and texts."""
    numbers, texts = [], []
    for value in values:
        try:
            numbers.append(float(value))
        except ValueError:
            texts.append(value.strip().lower())
    return Missing(tuple(numbers), tuple(texts))


def find_sentinels(columns: Mapping[str, Floats]) -> dict[str, tuple[float, ...]]:
    """Return the sentinels of each column that has any.

    A number that is clearly a sentinel in one column is one in the others too, if it is their isolated extreme.
    """
    sorted_columns = {
        name: np.unique(values[~np.isnan(values)], return_counts=True) for name, values in columns.items()
    }
    found = {name: own for name, counts in sorted_columns.items() if (own := _sentinels(*counts))}
    known = sorted({value for own in found.values() for value in own})
    for name, (values, counts) in sorted_columns.items():
        weak = () if name in found else tuple(value for value in known if _is_weak_sentinel(value, values, counts))
        if weak:
            found[name] = weak
    return found


def _sentinels(values: Floats, counts: NDArray[np.int64]) -> tuple[float, ...]:
    """Return the sentinels of a column, outermost first: behind one, there may be another."""
    found: list[float] = []
    while len(found) < _MOST and (value := _sentinel(values, counts)) is not None:
        found.append(value)
        values, counts = values[values != value], counts[values != value]
    return tuple(found)


def _sentinel(values: Floats, counts: NDArray[np.int64]) -> float | None:
    """Return the sentinel of a column, given its distinct values in ascending order and how often each occurs."""
    if len(values) <= _FEWEST_DISTINCT or counts.sum() < _FEWEST_AROUND + _FEWEST:
        return None
    for at in (0, len(values) - 1):
        value, rest, own = float(values[at]), np.delete(values, at), np.delete(counts, at)
        if counts[at] < _FEWEST or own.sum() < _FEWEST_AROUND:
            continue
        if _is_code(value) and _gap(value, rest) > _FAR * _spread(rest, own):
            return value
        if value in _LONE and _is_lone(int(counts[at]), rest, own):
            return value
    return None


def _is_code(value: float) -> bool:
    """Return whether a number is one that people choose for missing values."""
    if _CODES.fullmatch(f"{value:.10g}") or abs(value) in _LIMITS or abs(value) >= _HUGE:
        return True
    return value <= -100 and value % 100 == 0


def _is_lone(count: int, rest: Floats, own: NDArray[np.int64]) -> bool:
    """Return whether a number is the only negative one among many, and more frequent than the next ones."""
    is_alone = rest[0] >= 0 and rest[-1] >= 2 * _FEWEST_DISTINCT
    return bool(is_alone and len(rest) >= 2 * _FEWEST_DISTINCT and count > 2 * own[:3].max())


def _is_weak_sentinel(value: float, values: Floats, counts: NDArray[np.int64]) -> bool:
    """Return whether a sentinel of another column is an isolated, repeated extreme of this one."""
    at = int(np.searchsorted(values, value))
    if at not in (0, len(values) - 1) or values[at] != value or len(values) <= 2 or counts[at] < _FEWEST:
        return False
    rest, own = np.delete(values, at), np.delete(counts, at)
    is_only_negative = value < 0 <= rest[0]
    return is_only_negative or _gap(value, rest) > _spread(rest, own)


def _gap(value: float, rest: Floats) -> float:
    """Return the distance of a number from the nearest of the others."""
    return float(np.abs(rest - value).min())


def _spread(values: Floats, counts: NDArray[np.int64]) -> float:
    """Return the width of the central nine tenths of the rows."""
    ranks = np.cumsum(counts)
    low, high = values[np.searchsorted(ranks, [0.05 * ranks[-1], 0.95 * ranks[-1]])]
    return float(high - low)
