"""Durations as text."""

from __future__ import annotations

import re
from datetime import timedelta

from polyaforest.util.text import label

__all__ = ["format_duration", "parse_duration"]

_SECONDS = {"second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "m": 60, "hour": 3600, "h": 3600, "day": 86400,
            "d": 86400, "week": 604800, "w": 604800}  # fmt: skip
_TEXT = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?) *([a-z]+?)s?", re.IGNORECASE)
_SHORTEST, _LONGEST = 1e-3, 1e13  # seconds; `timedelta` holds both


def parse_duration(text: str) -> float:
    """Return the seconds of a duration.

    Examples
    --------
    >>> parse_duration("30 days"), parse_duration("90s"), parse_duration("1.5 h")
    (2592000.0, 90.0, 5400.0)
    """
    found = _TEXT.fullmatch(text.strip())
    unit = None if found is None else _SECONDS.get(found[2].lower())
    if found is None or unit is None:
        raise ValueError(f'{label(text)!r} is not a duration such as "30 days", 90s, 30m, 6h or 7d')
    seconds = float(found[1]) * unit
    bound = min(max(seconds, _SHORTEST), _LONGEST)
    if seconds != bound:
        words = "longer" if seconds > bound else "shorter"
        raise ValueError(f"the duration {label(text)!r} is {words} than {bound:g} seconds")
    return seconds


def format_duration(duration: timedelta) -> str:
    """Return a duration as `parse_duration` reads it.

    Examples
    --------
    >>> format_duration(timedelta(days=30))
    '2592000s'
    """
    return f"{duration.total_seconds():.15g}s"
