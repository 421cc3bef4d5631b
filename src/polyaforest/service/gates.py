"""Gates and maintenance windows: which flagged records count, and when records are flagged or learned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, time
from typing import NamedTuple
from zoneinfo import ZoneInfo

from polyaforest.explain import Explanation
from polyaforest.settings.stream import Gates, Maintenance, Mute
from polyaforest.util.numbers import is_beyond
from polyaforest.util.patterns import matches

__all__ = ["Departure", "KnownNormal", "MaintenanceWindows", "Mode", "departure", "why_muted", "why_outside"]


class Departure(NamedTuple):
    """The deviation of the field with the largest attribution from what was expected."""

    field: str
    value: float | str  # text of a category
    side: str  # "low" or "high"; for a category "new", "rare" or "unusual"
    expected: float | None = None  # the median; None for a category, as below
    low: float | None = None  # nine values in ten were expected between `low` and `high`
    high: float | None = None


class KnownNormal(NamedTuple):
    """An event labelled as normal: equal or smaller deviations of the same field are not flagged again."""

    key: str
    field: str
    side: str
    bits: float

    def covers(self, key: str, departed: Departure, bits: float) -> bool:
        """Return whether a flagged record deviates like the event, and no further."""
        return (key, departed.field, departed.side) == (self.key, self.field, self.side) and bits <= self.bits


def departure(explanation: Explanation, fields: Collection[str]) -> Departure | None:
    """Return the departure of a flagged record with these fields; None if the value of no field explains it."""
    own = next((one for one in explanation.readings if one.name in fields), None)
    if own is None:
        return None
    if own.is_category:
        return Departure(own.name, own.value, own.side)
    low, high = own.usual
    if explanation.context is not None and not is_beyond(own.value, low, high):
        return None  # the value is usual, its context window is not
    return Departure(own.name, own.value, own.side, min(max(own.median, low), high), low, high)


def why_muted(gates: Gates, mutes: Sequence[Mute], key: str, when: float, departed: Departure | None) -> str | None:
    """Return why a flagged record does not count, or None if it does."""
    for mute in mutes:
        is_field = mute.field is None or (departed is not None and departed.field == mute.field)
        is_key = (mute.key is None or mute.key == key) and (mute.pattern is None or matches(mute.pattern, key))
        if is_key and is_field and when < mute.ends:
            return f"muted{f': {mute.reason}' if mute.reason else ''}"
    if departed is None or departed.expected is None:
        return None
    if gates.direction not in ("both", departed.side):
        return f"only {gates.direction} values count"
    by = abs(float(departed.value) - departed.expected)
    if gates.smallest_absolute is not None and by < gates.smallest_absolute:
        return f"deviates by {by:.3g}, less than {gates.smallest_absolute:g}"
    if gates.smallest_relative is not None and by < gates.smallest_relative * abs(departed.expected):
        return f"deviates by {by:.3g}, less than {gates.smallest_relative:.0%} of the expected value"
    return None


def why_outside(gates: Gates, fields: Sequence[str], values: Sequence[float]) -> str | None:
    """Return which value is outside its valid range, or None."""
    for name, (low, high) in gates.valid.items():
        if name in fields:
            value = values[list(fields).index(name)]
            if (low is not None and value < low) or (high is not None and value > high):  # NaN is never outside
                return f"{name} is {value:g}, outside its valid range of {low:g} to {high:g}"
    return None


class Mode(NamedTuple):
    """Whether a record can be flagged, and whether it is learned."""

    is_checked: bool = True
    is_learned: bool = True


class MaintenanceWindows:
    """The maintenance windows of a stream; the first that contains a time decides."""

    def __init__(self, windows: Sequence[Maintenance]) -> None:
        self._windows = [(window, ZoneInfo(window.timezone)) for window in windows]

    def mode(self, when: float | None) -> Mode:
        """Return what to do with a record of a given time."""
        for window, zone in self._windows:
            if when is not None and _is_in(window, zone, when):
                return Mode(is_learned=False) if window.mode == "judge-only" else Mode(is_checked=False)
        return Mode()

    def __bool__(self) -> bool:
        return bool(self._windows)


def _is_in(window: Maintenance, zone: ZoneInfo, when: float) -> bool:
    """Return whether a time is in a window."""
    start, end = window.span
    if not start <= when < end:
        return False
    try:
        moment = datetime.fromtimestamp(when, zone)
    except (OverflowError, ValueError, OSError):
        return False
    is_day = not window.days or moment.weekday() in window.weekdays
    is_date = not window.dates or moment.date() in window.dates
    return is_day and is_date and _is_between(moment.time(), window.from_, window.to)


def _is_between(now: time, start: time | None, end: time | None) -> bool:
    """Return whether a time of day is between two others, also across midnight."""
    if start is None or end is None:
        return True
    return start <= now < end if start <= end else now >= start or now < end
