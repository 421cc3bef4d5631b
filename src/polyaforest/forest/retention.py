"""Retention policies of streams: which points stay in the forest.

Every point gets a rank on arrival. The forest holds the points of highest rank above a floor that never decreases, at
most `n` of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from numbers import Integral, Real
from typing import TypeAlias

import numpy as np

from polyaforest.kernels.arrays import Array

Span: TypeAlias = timedelta | np.timedelta64

_LN2 = math.log(2.0)
_LEAST_SPAN = 1e-300  # one over it is finite


@dataclass(frozen=True)
class Window:
    """Sliding window: the last `n` points, the points of the last `duration`, or both.

    A window of `n` points follows the order of arrival. A time-based window follows the times of the points: its clock
    is the latest time so far, and a point is dropped once its time is `duration` or more behind. A late point within
    the window is learned, and dropped by its time; a point older than the window is scored but not learned. The clock
    advances only when points arrive.

    Parameters
    ----------
    n : int, optional
        Maximum number of points. A `timedelta` here is the duration.
    duration : timedelta or float, optional
        A float is in the units of numeric times, or in seconds if times are dates.

    Examples
    --------
    >>> from datetime import timedelta
    >>> Window(256)
    Window(256)
    >>> Window(timedelta(hours=1))
    Window(duration=3600.0)
    >>> Window(1000, duration=60.0)
    Window(1000, duration=60.0)
    """

    n: int | None = None
    duration: float | None = None

    def __init__(self, n: int | Span | None = None, duration: Span | float | None = None) -> None:
        if isinstance(n, timedelta | np.timedelta64):
            if duration is not None:
                raise TypeError("Window got two durations: pass a number of points first, or only the duration")
            n, duration = None, n
        if n is None and duration is None:
            raise TypeError("Window requires a number of points, a duration, or both")
        object.__setattr__(self, "n", None if n is None else _count("Window", n))
        object.__setattr__(self, "duration", None if duration is None else _span("duration", duration))

    @property
    def needs_times(self) -> bool:
        """Whether every point needs a time."""
        return self.duration is not None

    @property
    def is_random(self) -> bool:
        """Whether ranks are random."""
        return False

    @property
    def is_uniform(self) -> bool:
        """Whether every point is equally likely to be held."""
        return False

    def ranks(self, arrivals: Array, times: Array, draws: Array) -> Array:
        """Return the ranks of points: their times, or else their arrival numbers."""
        return times if self.needs_times else arrivals.astype(np.float64)

    def floor(self, clock: float) -> float:
        """Return the rank at or below which points are dropped."""
        return -math.inf if self.duration is None else clock - self.duration

    def __repr__(self) -> str:
        parts = [] if self.n is None else [str(self.n)]
        return f"Window({', '.join(parts + ([] if self.duration is None else [f'duration={self.duration}']))})"


@dataclass(frozen=True)
class Reservoir:
    """Random sample of `n` points: uniform over all arrivals, or with a `half_life`, biased towards recent points.

    Every point draws a random rank, and the points of highest rank are kept: a uniform sample. With a half-life, a
    point is half as likely to be kept as a point that arrived a half-life later.

    After a deletion, the free slot goes only to a point that ranks above all points rejected so far; giving it to the
    next arrival would favour that point. Points that arrive after a deletion still have a slight advantage over
    earlier points, by a factor of about 1 + 1 / n.

    Parameters
    ----------
    n : int
        Maximum number of points.
    half_life : int, float or timedelta, optional
        In arrivals; a `timedelta` refers to the times of the points.

    Examples
    --------
    >>> Reservoir(256)
    Reservoir(256)
    >>> Reservoir(256, half_life=1000)
    Reservoir(256, half_life=1000.0)
    """

    n: int
    half_life: float | None = None
    by_time: bool = field(default=False, init=False)

    def __init__(self, n: int, half_life: Span | float | None = None) -> None:
        object.__setattr__(self, "n", _count("Reservoir", n))
        object.__setattr__(self, "half_life", None if half_life is None else _span("half_life", half_life))
        object.__setattr__(self, "by_time", isinstance(half_life, timedelta | np.timedelta64))

    @property
    def needs_times(self) -> bool:
        """Whether every point needs a time."""
        return self.by_time

    @property
    def is_random(self) -> bool:
        """Whether ranks are random."""
        return True

    @property
    def is_uniform(self) -> bool:
        """Whether every point is equally likely to be held."""
        return self.half_life is None

    def ranks(self, arrivals: Array, times: Array, draws: Array) -> Array:
        """Return the ranks of points, given a draw from Exp(1) for each (forward decay of Cormode et al., 2009)."""
        chance: Array = -np.log(draws)
        if self.half_life is None:
            return chance
        age: Array = times if self.by_time else arrivals
        return chance + age * (_LN2 / self.half_life)

    def floor(self, clock: float) -> float:
        """Return the rank at or below which points are dropped: -inf, so none are."""
        return -math.inf

    def __repr__(self) -> str:
        if self.half_life is None:
            return f"Reservoir({self.n})"
        half_life = timedelta(seconds=self.half_life) if self.by_time else self.half_life
        return f"Reservoir({self.n}, half_life={half_life!r})"


Policy: TypeAlias = Window | Reservoir


def as_policy(window: Policy | Span | int) -> Policy:
    """Return a policy; a number of points or a duration is shorthand for a window."""
    return window if isinstance(window, Window | Reservoir) else Window(window)


def _count(name: str, n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(
            f"{name} requires a positive integer number of points; got {n!r} (pass a duration as duration=)"
        )
    return int(n)


def _span(name: str, value: Span | float) -> float:
    """Return a positive duration as a number."""
    if isinstance(value, np.timedelta64):
        value = float(value / np.timedelta64(1, "s"))
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, Real) or not _LEAST_SPAN <= float(number) < math.inf:
        raise ValueError(f"{name} must be a positive number or timedelta; got {value!r}")
    return float(number)
