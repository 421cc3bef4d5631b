"""Numbers and ranges as text.

What a text says about a number must hold as printed: a value that is called too high is printed larger than the end of
the usual range beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from polyaforest.kernels.arrays import Array

_SAME = 1e-9  # relative: values closer to a bound are not beyond it


def is_beyond(value: float, low: float, high: float) -> bool:
    """Return whether a value lies outside a range by more than rounding errors."""
    slack = _SAME * max(abs(value), high - low)
    return value < low - slack or value > high + slack


def are_counts(rows: Array) -> Array:
    """Return for each column whether all its values are whole and not negative; missing values may be any."""
    return np.asarray(((rows >= 0) & (rows == np.floor(rows)) | np.isnan(rows)).all(axis=0))


def whole_range(low: float, high: float) -> tuple[float, float]:
    """Return the whole numbers in a range of counts, or those next to it if it contains none; none is negative."""
    low, high = max(low, 0.0), max(high, 0.0)
    inner = math.ceil(low - _SAME), math.floor(high + _SAME)
    return (float(inner[0]), float(inner[1])) if inner[0] <= inner[1] else (math.floor(low), math.ceil(high))


def whole_band(low: float, middle: float, high: float) -> tuple[float, float, float]:
    """Return a range of counts and its middle as whole numbers; the middle stays within the range."""
    low, high = whole_range(low, high)
    return low, min(max(float(round(middle)), low), high), high


def scale_of(value: float, bounds: Iterable[float], scale: float) -> float:
    """Return a scale at which a value is printed differently from each of the bounds that it differs from."""
    gaps = [abs(value - bound) for bound in bounds if math.isfinite(bound) and bound != value]
    return min([scale, *(gap * 10**1.5 for gap in gaps)]) if math.isfinite(value) else scale


def number(value: float, scale: float) -> str:
    """Format a number to a few hundredths of `scale`, without trailing zeros."""
    scale = scale if scale > 0 else abs(value)
    if not math.isfinite(value) or scale == 0:
        return f"{value:g}"
    decimals = math.ceil(1.5 - math.log10(scale))
    if abs(value) >= 1e9 * scale or not 1e-6 < abs(value) < 1e9:
        return f"{value:.{max(3, min(decimals + math.ceil(math.log10(abs(value))), 17))}g}" if value else "0"
    decimals = max(decimals, 0)
    text = f"{round(value, decimals) + 0.0:,.{decimals}f}"  # adding 0.0 turns -0.0 into 0.0
    return text.rstrip("0").rstrip(".") if "." in text else text


def between(low: str, high: str) -> str:
    """Format a range of formatted numbers."""
    return low if low == high else f"{low} to {high}" if "-" in low + high else f"{low}–{high}"


def band(middle: str, low: str, high: str) -> str:
    """Format a formatted number with the range around it: "45 (12–80)"."""
    return middle if low == high else f"{middle} ({between(low, high)})"


def beside_band(value: float, low: float, middle: float, high: float) -> tuple[str, str]:
    """Format a value and the range that was expected: ("8,191", "about 45 (12–80)")."""
    scale = scale_of(value, (low, high), high - low)
    text, *ends = (number(one, scale) for one in (value, low, middle, high))
    return text, band(f"about {ends[1]}" if ends[0] != ends[2] else ends[1], ends[0], ends[2])
