"""The error for unusable input, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from polyaforest.util.text import printable

__all__ = ["BadInput", "in_words", "unknown_column"]

_MOST_NAMED = 8


class BadInput(ValueError):  # noqa: N818 - reads better where it is caught
    """Unusable input, or an output that cannot be written; the message says how to fix it."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it quotes names and contents of files


def in_words(names: Iterable[str]) -> str:
    """Return quoted names separated by commas; of many, the first and how many more."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > _MOST_NAMED:
        return f"{', '.join(quoted[:_MOST_NAMED])} and {len(quoted) - _MOST_NAMED} more"
    return ", ".join(quoted)


def unknown_column(name: str, names: Iterable[str], where: str) -> BadInput:
    """Return the error for an unknown column, with similar names, or else all names."""
    known = list(names)
    folded = {other.casefold(): other for other in known}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3)]
    remedy = f"Did you mean {in_words(close)}?" if close else f"Its columns are {in_words(known)}."
    return BadInput(f"{where} has no column '{name}'. {remedy}")
