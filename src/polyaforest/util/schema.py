"""Schemas of model headers: the required keys, and the type and range of each value.

A checksum proves that a file is complete, not that it is harmless. So every value of a header is validated before use,
and unknown keys are rejected; a release that adds keys raises the format version. Relations between values, and to the
arrays, are checked where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

Rule: TypeAlias = Callable[[Any, str], None]  # takes a value and its path in the header; raises ValueError

MOST_COPIES = 2**31  # sum of the weights in one call: copies are visited one by one
MOST_COUNTED = 2**62  # rows; sums of two such counts still fit into 64 bits
_LONE = re.compile("[\ud800-\udfff]")
_MOST_TEXT = 60  # characters of an invalid value in a message


# ---- rules -----------------------------------------------------------------------------------------------------------


def anything(value: Any, place: str) -> None:
    """Accept every value."""


def flag(value: Any, place: str) -> None:
    """Accept true and false."""
    _require(type(value) is bool, value, place, "true or false")


def path(value: Any, place: str) -> None:
    """Accept strings, also with surrogate escapes for file names that are not Unicode."""
    _require(isinstance(value, str), value, place, "a string")


def text(value: Any, place: str) -> None:
    """Accept strings without lone surrogates, which cannot be encoded."""
    _require(isinstance(value, str) and not _LONE.search(value), value, place, "a valid Unicode string")


def number(value: Any, place: str) -> None:
    """Accept finite numbers, not booleans."""
    _require(type(value) in (int, float), value, place, "a number")


def nothing(value: Any, place: str) -> None:
    """Accept null."""
    _require(value is None, value, place, "null")


def whole(least: int = 0, most: int | None = MOST_COUNTED) -> Rule:
    """Accept integers in a range, not booleans."""
    wanted = f"an integer of at least {least:,}" if most is None else f"an integer from {least:,} to {most:,}"

    def check(value: Any, place: str) -> None:
        is_right = type(value) is int and value >= least and (most is None or value <= most)
        _require(is_right, value, place, wanted)

    return check


def one_of(*words: str) -> Rule:
    """Accept only the given strings."""

    def check(value: Any, place: str) -> None:
        _require(isinstance(value, str) and value in words, value, place, f"one of {', '.join(words)}")

    return check


def either(*rules: Rule) -> Rule:
    """Accept values that at least one rule accepts."""

    def check(value: Any, place: str) -> None:
        problems = []
        for rule in rules:
            try:
                return rule(value, place)
            except ValueError as problem:
                problems.append(problem)
        raise problems[-1]  # from the most specific rule, which comes last

    return check


def listed(*rules: Rule) -> Rule:
    """Accept lists with one value per rule."""

    def check(value: Any, place: str) -> None:
        is_right = isinstance(value, list) and len(value) == len(rules)
        _require(is_right, value, place, f"a list of {len(rules)} values")
        for i, (rule, part) in enumerate(zip(rules, value, strict=True)):
            rule(part, f"{place}[{i}]")

    return check


def many(rule: Rule) -> Rule:
    """Accept lists of any length whose values all satisfy one rule."""

    def check(value: Any, place: str) -> None:
        _require(isinstance(value, list), value, place, "a list")
        for i, part in enumerate(value):
            rule(part, f"{place}[{i}]")

    return check


def record(rules: Mapping[str, Rule], optional: Collection[str] = ()) -> Rule:
    """Accept objects with exactly these keys, except that the `optional` ones may be absent."""

    def check(value: Any, place: str) -> None:
        _require(isinstance(value, dict), value, place, "an object")
        unknown = [key for key in value if key not in rules]
        if unknown:
            raise ValueError(f"{place}: key {_shown(unknown[0])} is not part of this format version")
        missing = [key for key in rules if key not in value and key not in optional]
        if missing:
            raise ValueError(f"{place}: key {missing[0]!r} is missing")
        for key, part in value.items():
            rules[key](part, f"{place}.{key}" if place else key)

    return check


def _require(is_right: bool, value: Any, place: str, wanted: str) -> None:
    if not is_right:
        raise ValueError(f"{place}: {_shown(value)} is not {wanted}")


def _shown(value: Any) -> str:
    """Return the repr of an invalid value, truncated if long."""
    shown = repr(value)
    return shown if len(shown) <= _MOST_TEXT else f"{shown[:_MOST_TEXT]}..."


# ---- values that several headers share -------------------------------------------------------------------------------


def mapping(value: Any, place: str) -> None:
    """Accept any object."""
    _require(isinstance(value, dict), value, place, "an object")


def names(value: Any, place: str) -> None:
    """Accept lists of distinct strings."""
    many(text)(value, place)
    if len(set(value)) < len(value):
        raise ValueError(f"{place}: a name occurs more than once")


def _numbers(value: Any, place: str) -> None:
    """Accept numbers and nested lists of them."""
    (many(_numbers) if isinstance(value, list) else number)(value, place)


n_features = whole(1, 2**31 - 1)  # nodes store their feature in 32 bits

_n_points = whole(1, None)
_window = record({"window": listed(either(nothing, _n_points), either(nothing, number))})
_reservoir = record({"reservoir": listed(_n_points, either(nothing, number), flag)})
policy = either(nothing, _window, _reservoir)

# A parameter as `_state.encode` writes it. The detector checks its range.
parameter = either(
    nothing,
    flag,
    text,
    number,
    many(text),
    _window,
    _reservoir,
    record({"float": one_of("inf", "-inf", "nan")}),
    record({"timedelta": number}),
    record({"epsilon_phi": many(number)}),
    record({"array": _numbers}),
    record({"mask": many(flag)}),
    record({"columns": many(whole(-(2**31), 2**31))}),
    record({"codes": whole(0, 2**31)}),
)


def parameters(of: Collection[str]) -> Rule:
    """Accept parameters of these names; an absent one has its default."""
    return record(dict.fromkeys(of, parameter), optional=of)
