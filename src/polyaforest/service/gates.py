"""Gates and maintenance windows: which flagged records count, and when records are flagged or learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from math import isfinite
from typing import NamedTuple
from zoneinfo import ZoneInfo

from polyaforest.explain import Explanation
from polyaforest.service.blocks import Band
from polyaforest.settings.stream import Gates, Maintenance, Mute

__all__ = ["Departure", "KnownNormal", "MaintenanceWindows", "Mode", "departure", "why_muted", "why_outside"]


class Departure(NamedTuple):
    """The deviation of the field with the largest attribution from its expected range."""

    field: str
    value: float
    expected: float  # nearest expected value
    side: str  # "low" or "high"


class KnownNormal(NamedTuple):
    """An event labelled as normal: equal or smaller deviations of the same field are not flagged again."""

    key: str
    field: str
    side: str
    bits: float

    def covers(self, key: str, departed: Departure, bits: float) -> bool:
        """Return whether a flagged record deviates like the event, and no further."""
        return (key, departed.field, departed.side) == (self.key, self.field, self.side) and bits <= self.bits


def departure(
    explanation: Explanation,
    attributions: Mapping[str, float],
    fields: Sequence[str],
    values: Sequence[float],
    band: Band | None,
) -> Departure | None:
    """Return the departure of a flagged record; None if no field explains it.

    Parameters
    ----------
    explanation : Explanation
        Explanation of the record.
    attributions : mapping of str to float
        Bits by field, summed over all steps of a series.
    fields, values
        Names and values of the record.
    band : Band or None
        Expected range of each field, if known.
    """
    known = {name: bits for name, bits in attributions.items() if name in fields}
    if not known:
        return None
    name = max(known, key=lambda field: known[field])
    place = list(fields).index(name)
    value = values[place]
    own = next((one for one in explanation.attributions if one.name == name), None)
    if own is not None:
        low, high = own.usual if own.expected is None else own.expected
        return Departure(name, value, min(max(value, low), high), own.side)
    if band is None or not isfinite(band.middle[place]):
        return None
    expected = min(max(value, band.low[place]), band.high[place])
    if expected == value:  # the value is usual, its context window is not
        expected = band.middle[place]
    return Departure(name, value, expected, "high" if value >= band.middle[place] else "low")


def why_muted(gates: Gates, mutes: Sequence[Mute], key: str, when: float, departed: Departure | None) -> str | None:
    """Return why a flagged record does not count, or None if it does."""
    for mute in mutes:
        is_field = mute.field is None or (departed is not None and departed.field == mute.field)
        if (mute.key is None or mute.key == key) and is_field and when < mute.ends:
            return f"muted{f': {mute.reason}' if mute.reason else ''}"
    if departed is None:
        return None
    if gates.direction not in ("both", departed.side):
        return f"only {gates.direction} values count"
    by = abs(departed.value - departed.expected)
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
