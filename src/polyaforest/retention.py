"""What a stream holds on to: policies that say which points stay in the forest and which leave it.

All policies are one idea. Every point has a rank when it arrives, and the forest holds the points of highest rank: at
most so many, and none at or below a floor that only ever rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from numbers import Integral, Real
from typing import TypeAlias

import numpy as np

from polyaforest.core.arrays import Array

Span: TypeAlias = timedelta | np.timedelta64

_LN2 = math.log(2.0)
_LEAST_SPAN = 1e-300  # one over it is finite


@dataclass(frozen=True)
class Window:
    """The latest points: the last `n`, those of the last `duration`, or both.

    A window of `n` points goes by the order of arrival. A window in time goes by the points' own times: its clock is
    the latest time seen so far, and a point leaves once its time is `duration` or more behind. So a point that comes
    late, but within the window, is learned and leaves in its turn by its time; one that comes too late for the window
    is scored, but not learned. The clock moves when points arrive, not while nothing happens.

    Parameters
    ----------
    n : int, optional
        Most points to hold. A `timedelta` in its place is taken as the duration.
    duration : timedelta or float, optional
        A float is in the units of numeric times, seconds where times are dates.

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
                raise TypeError("Window got two durations: give a number of points first, or the duration alone")
            n, duration = None, n
        if n is None and duration is None:
            raise TypeError("Window needs a number of points, a duration, or both")
        object.__setattr__(self, "n", None if n is None else _count("Window", n))
        object.__setattr__(self, "duration", None if duration is None else _span("duration", duration))

    @property
    def needs_times(self) -> bool:
        """Whether every point must come with its time."""
        return self.duration is not None

    @property
    def is_random(self) -> bool:
        """Whether ranks take a random draw."""
        return False

    def ranks(self, arrivals: Array, times: Array, draws: Array) -> Array:
        """The ranks of points: their times, or else the order of their arrival."""
        return times if self.needs_times else arrivals.astype(np.float64)

    def floor(self, clock: float) -> float:
        """The rank at which points have had their time."""
        return -math.inf if self.duration is None else clock - self.duration

    def __repr__(self) -> str:
        parts = [] if self.n is None else [str(self.n)]
        return f"Window({', '.join(parts + ([] if self.duration is None else [f'duration={self.duration}']))})"


@dataclass(frozen=True)
class Reservoir:
    """A random sample of `n` points: of all that have come, or with a `half_life`, mostly of the recent ones.

    Every point draws a random rank and those of highest rank are held. So the points held are a sample of all, each as
    likely as any other; with a half-life, a point is half as likely to be drawn as one that came so much later.

    A place that a deletion leaves free is not filled with whatever comes next, which would favour it: only with points
    that rank above all that were ever turned away. Points that come after a deletion still have a slight advantage over
    those before, by a factor of about 1 + 1 / n.

    Parameters
    ----------
    n : int
        Most points to hold.
    half_life : int, float or timedelta, optional
        In arrivals; or with a `timedelta`, by the points' own times.

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
        """Whether every point must come with its time."""
        return self.by_time

    @property
    def is_random(self) -> bool:
        """Whether ranks take a random draw."""
        return True

    def ranks(self, arrivals: Array, times: Array, draws: Array) -> Array:
        """The ranks of points, given a draw from Exp(1) for each (forward decay of Cormode et al., 2009)."""
        chance: Array = -np.log(draws)
        if self.half_life is None:
            return chance
        age: Array = times if self.by_time else arrivals
        return chance + age * (_LN2 / self.half_life)

    def floor(self, clock: float) -> float:
        """The rank at which points have had their time: none."""
        return -math.inf

    def __repr__(self) -> str:
        if self.half_life is None:
            return f"Reservoir({self.n})"
        half_life = timedelta(seconds=self.half_life) if self.by_time else self.half_life
        return f"Reservoir({self.n}, half_life={half_life!r})"


Policy: TypeAlias = Window | Reservoir


def as_policy(window: Policy | Span | int) -> Policy:
    """A window that was given in short: a number of points, or a length of time."""
    return window if isinstance(window, Window | Reservoir) else Window(window)


def _count(name: str, n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(
            f"{name} holds a whole number of points, at least 1; got {n!r} (a length of time goes in duration=)"
        )
    return int(n)


def _span(name: str, value: Span | float) -> float:
    """A positive length of time as a number."""
    if isinstance(value, np.timedelta64):
        value = float(value / np.timedelta64(1, "s"))
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, Real) or not _LEAST_SPAN <= float(number) < math.inf:
        raise ValueError(f"{name} must be a positive number or timedelta; got {value!r}")
    return float(number)
