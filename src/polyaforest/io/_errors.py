"""The one error that stands for input that cannot be used, and how to name what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from polyaforest.core.text import printable

__all__ = ["BadInput", "in_words", "unknown_column"]

_MOST_NAMED = 8


class BadInput(ValueError):  # noqa: N818 - it is the input's fault, and reads so where it is caught
    """Input that cannot be used, or a place that cannot be written to; the message says what to do about it."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it names columns and files, and quotes what is in them


def in_words(names: Iterable[str]) -> str:
    """Names in quotes with commas between, the rest counted where there are many."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > _MOST_NAMED:
        return f"{', '.join(quoted[:_MOST_NAMED])} and {len(quoted) - _MOST_NAMED} more"
    return ", ".join(quoted)


def unknown_column(name: str, names: Iterable[str], where: str) -> BadInput:
    """The error for a column that is not there, with the names that come close, or else all of them."""
    known = list(names)
    folded = {other.casefold(): other for other in known}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3)]
    remedy = f"Did you mean {in_words(close)}?" if close else f"It has {in_words(known)}."
    return BadInput(f"{where} has no column '{name}'. {remedy}")
