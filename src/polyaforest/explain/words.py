"""Odds, shares, bars and tables of explanations as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyaforest.util.text import width

_BAR = 20  # width of the longest bar, in characters
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MANY_BITS = math.log2(1e6)


def odds(bits: float) -> str:
    """Describe how much less likely than a typical point a row with `bits` more is."""
    if bits < 1:
        return "as likely as a typical point"
    if bits >= _MANY_BITS:
        return "more than a million times less likely than a typical point"
    times = 2.0**bits
    rounded = round(times, 1 - math.floor(math.log10(times)))
    return f"about {rounded:,.0f} times less likely than a typical point"


def share_of_points(share: float, interval: tuple[float, float]) -> str:
    """Describe a share and its interval: "about 3 in 1,000 points fall here [1–5 in 1,000]"."""
    whole = 10
    while share * whole < 0.95:
        whole *= 10
    low, high = (_count(end * whole) for end in interval)
    return f"about {_count(share * whole)} in {whole:,} points fall here [{low}–{high} in {whole:,}]"


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 0.95 or number < 0.05 else f"{number:.1f}"


def bar(share: float) -> str:
    """Return a bar of block characters."""
    eighths = round(8 * _BAR * min(max(share, 0.0), 1.0)) if math.isfinite(share) else 8 * _BAR
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def aligned(table: list[list[str]], to_right: Sequence[bool]) -> list[str]:
    """Return the lines of a table with aligned columns; empty columns are omitted."""
    widths = [max(width(row[c]) for row in table) for c in range(len(to_right))]
    return [
        "  ".join(
            " " * (most - width(cell)) + cell if right else cell + " " * (most - width(cell))
            for cell, most, right in zip(row, widths, to_right, strict=True)
            if most
        ).rstrip()
        for row in table
    ]
