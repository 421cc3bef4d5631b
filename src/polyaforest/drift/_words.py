"""The words of a comparison: shares, odds, conditions and regions.

Names of columns and categories are whatever somebody wrote: see `label`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyaforest.core.text import label, width

if TYPE_CHECKING:
    from polyaforest.drift._comparison import Bound, Condition, Region, Share

_MOST_NAMED = 5  # categories in a condition
_LONGEST = 40  # characters of a category
_EVEN = 3.0  # odds up to which the evidence is for neither side
_PLAIN_ODDS = 1e4  # above which only the power of ten is told


def percent(share: float) -> str:
    """Return a share in per cent, with two digits where they matter.

    Examples
    --------
    >>> percent(0.0021), percent(0.0634), percent(0.5), percent(0.00001), percent(0.0), percent(0.9996)
    ('0.21 %', '6.3 %', '50 %', '<0.01 %', '0 %', '99.96 %')
    """
    return f"{_amount(share)} %"


def _amount(share: float) -> str:
    if 0 < share < 5e-5:
        return "<0.01"
    if share > 0.99:
        return f"{100 * share:.2f}".rstrip("0").rstrip(".")
    digits = 2 if share < 0.00995 else 1 if share < 0.0995 else 0
    text = f"{100 * share:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def interval(low: float, high: float) -> str:
    """Return an interval of shares: "[5–7 %]"."""
    return f"[{_amount(low)}–{_amount(high)} %]"


def number(value: float) -> str:
    """Return a bound in the digits it has."""
    return f"{value:.15g}"


def condition(one: Condition) -> str:
    """Return a condition: "errors > 4", "2 < cpu ≤ 7", "cache_hit = 0", "latency is missing", "country = XK"."""
    name = label(one.name)
    if not one.values:
        return f"{name} is missing"
    if one.categories is not None:
        return _choice(name, one)
    bounds = [math.isfinite(end) for end in (one.low, one.high)]
    if not any(bounds):
        return f"{name} is not missing"
    words = f"{name} > {number(one.low)}" if bounds[0] else f"{name} ≤ {number(one.high)}"
    if one.is_one_value:
        words = f"{name} = {number(one.high)}"
    elif all(bounds):
        words = f"{number(one.low)} < {name} ≤ {number(one.high)}"
    return f"({words} or missing)" if one.missing else words


def _choice(name: str, one: Condition) -> str:
    """Return a condition on categories: "country = XK", "country is one of DE, FR", "country is not DE"."""
    assert one.categories is not None
    known = [category(text) for text in one.categories[:_MOST_NAMED]]
    n_more = len(one.categories) - len(known)
    named = f"{', '.join(known)}{f' and {n_more} more' if n_more else ''}"
    if not known:
        return f"{name} is not missing"
    if one.others:
        words = f"{name} is not {named}" if len(known) == 1 else f"{name} is none of {named}"
    else:
        words = f"{name} = {named}" if len(known) == 1 else f"{name} is one of {named}"
    return f"({words} or missing)" if one.missing else words


def category(text: str) -> str:
    """Return a category for reports, in quotes where it would not be seen where it begins and ends.

    Examples
    --------
    >>> category("XK"), category(""), category("New York, NY"), category(" a ")
    ('XK', "''", "'New York, NY'", "' a '")
    """
    is_clear = text and text == text.strip() and not any(mark in text for mark in ",;:'\"=")
    return label(text, _LONGEST) if is_clear else f"'{label(text, _LONGEST)}'"


def place(region: Region) -> str:
    """Return the conditions of a region: "errors > 4 and latency > 90"."""
    return " and ".join(map(condition, region.conditions))


def region(one: Region) -> str:
    """Return a region and how its share changed: "errors > 4: from 0.2 % to 6 % [5–7 %]"."""
    return f"{place(one)}: from {percent(one.before.value)} to {share(one.after)}"


def share(one: Share | Bound) -> str:
    """Return a share with its interval: "6 % [5–7 %]"."""
    return f"{percent(one.value)} {interval(one.low, one.high)}"


def odds(log_bayes_factor: float) -> str:
    """Return the evidence as odds, for the side that it favours.

    Examples
    --------
    >>> odds(21.0), odds(-2.0), odds(0.3)
    ('odds of 10^9 : 1 for two distributions', 'odds of 7.4 : 1 for one distribution', 'no evidence either way')
    """
    size = abs(log_bayes_factor)
    if size < math.log(_EVEN):
        return "no evidence either way"
    side = "two distributions" if log_bayes_factor > 0 else "one distribution"
    if size >= math.log(_PLAIN_ODDS):
        return f"odds of 10^{math.floor(size / math.log(10) + 1e-9)} : 1 for {side}"
    times = math.exp(size)
    return f"odds of {times:.2g} : 1 for {side}" if times < 99.5 else f"odds of {times:,.0f} : 1 for {side}"


def p_value(value: float, n_permutations: int) -> str:
    """Return a p-value; the smallest possible one is told as such."""
    least = 1 / (n_permutations + 1)
    return f"p ≤ {least:.2g}" if value <= least * (1 + 1e-9) else f"p = {value:.2g}"


def feature_lines(names: Sequence[str], bits: Sequence[float], most: int) -> list[tuple[str, str]]:
    """Return the features that carry the most bits, and what the others add up to."""
    order = sorted(range(len(names)), key=lambda k: -bits[k])
    shown = order[:most] if len(order) > most + 1 else order
    lines = [(label(names[k]), f"{bits[k]:+.1f}") for k in shown]
    rest = order[len(shown) :]
    return [*lines, (f"{len(rest)} others", f"{sum(bits[k] for k in rest):+.1f}")] if rest else lines


def aligned(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of a name and a number, indented and in columns."""
    most = [max(width(line[c]) for line in lines) for c in (0, 1)]
    return [f"  {name}{' ' * (most[0] - width(name))}  {amount:>{most[1]}}" for name, amount in lines]
