"""The parts of an explanation: features with their bits, and the context window of a reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.util import numbers
from polyaforest.util.text import label

SIDES = ("low", "high")
MOST_LINES = 8  # features shown


class Attribution(NamedTuple):
    """A feature with a large contribution to the surprise of a row."""

    feature: int  # column index
    name: str
    value: Any  # a number, or the text of a category
    bits: float  # contribution to the surprise, beyond that of a typical point
    side: str  # "low" or "high"; for a category "new" (never seen), "rare" or "unusual"
    usual: tuple[Any, ...]  # the range of nine points in ten, or the most common categories
    expected: tuple[Any, ...] | None  # the nearest values that would be normal; None if there are none
    seen: str = ""  # for a category, its frequency: "seen in 1 of 2,048 rows with merchant = Grocer"
    median: float = math.nan  # of the points; of a reading, the median of its forecast
    is_count: bool = False  # whether all points have a whole number that is not negative

    @property
    def is_category(self) -> bool:
        """Whether the feature is categorical."""
        return self.side not in SIDES

    @property
    def direction(self) -> str:
        """What is unusual, in words: "too high" above the usual range, "too low" below, else "unusual".

        A count of 0 where there always were some is "none at all".
        """
        if self.is_category:
            return self.side
        if not numbers.is_beyond(self.value, *self.usual):
            return "unusual"
        return "none at all" if self.is_count and self.value == 0 else f"too {self.side}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; `seen` only for categories, `median` and `is_count` only for numbers."""
        unused = ("median", "is_count") if self.is_category else ("seen",)
        return {name: fact for name, fact in self._asdict().items() if name not in unused}


class ContextWindow(NamedTuple):
    """The steps of a time series up to the explained reading, oldest first.

    The last steps have a forecast, made from the readings before them; it is NaN at earlier steps.
    """

    channels: list[str]
    times: Array  # float64 (n_steps,), NaN if unknown
    readings: Array  # float64 (n_steps, n_channels)
    median: Array  # forecast, of the same shape
    low: Array  # nine readings in ten were expected between `low` and `high`
    high: Array
    bits: Array  # contribution of each step to the surprise, of the same shape
    usual: Array | None = None  # float64 (3, n_channels): nine readings in ten, and their median: low, median, high
    is_count: Array | None = None  # bool (n_channels,): whether all readings are whole and not negative

    def band(self, c: int) -> tuple[float, float, float]:
        """Return low, median and high expected of the newest reading of a channel; without a forecast, as usual."""
        ends = [float(part[-1, c]) for part in (self.low, self.median, self.high)]
        if math.isnan(ends[1]) and self.usual is not None:
            ends = self.usual[:, c].tolist()
        low, median, high = ends
        is_count = self.is_count is not None and bool(self.is_count[c])
        return numbers.whole_band(low, median, high) if is_count and low <= high else (low, median, high)


def read_features(features: Sequence[str | int] | None, names: list[str]) -> Array:
    """Return the column indices of features; all by default."""
    if features is None:
        return np.arange(len(names))
    if isinstance(features, str | int):
        raise ValueError(f"features must be a list of names or column indices; got {features!r}")
    return np.array([_column(feature, names) for feature in dict.fromkeys(features)], np.int64)


def _column(feature: str | int, names: list[str]) -> int:
    if isinstance(feature, str):
        if feature in names:
            return names.index(feature)
        close = get_close_matches(feature, names, 1)
        known = ", ".join(map(label, names[:MOST_LINES])) + (", ..." if len(names) > MOST_LINES else "")
        raise ValueError(
            f"there is no feature {feature!r}: {f'did you mean {close[0]!r}?' if close else f'features are {known}'}"
        )
    if not -len(names) <= feature < len(names):
        raise ValueError(f"feature {feature} is out of range for {len(names)} features")
    return range(len(names))[feature]
