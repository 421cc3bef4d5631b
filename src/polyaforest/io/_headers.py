"""Detect whether the first line of a table is a header, and validate column names."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl

from ._cells import numbers
from ._conventions import column_names, seconds
from ._dates import looks_like_date
from ._notation import looks_written
from .errors import BadInput, in_words

__all__ = ["is_data", "names_of"]

# kinds of a cell and of the one below
_IN_HEADERS = {("text", "number"), ("text", "written"), ("text", "time"), ("written", "number"), ("time", "number")}


def is_data(cells: list[str], below: list[str]) -> bool:
    """Return whether the first line is data, not a header, given its cells and those of the line below.

    A line of data has numbers or times, and no text above a number. In a line that also has text, consecutive numbers
    (years, percentiles) are names, and so are numbers with a unit above numbers without.
    """
    kinds, others = ([_kind(cell) for cell in line] for line in (cells, below))
    if not {"number", "time", "written"} & set(kinds) or _IN_HEADERS & set(zip(kinds, others, strict=False)):
        return False
    values, _ = numbers(pl.Series(cells, dtype=pl.String))
    counted = [value for value, kind in zip(values, kinds, strict=True) if kind == "number"]
    counts_up = len(counted) > 1 and all(later - number == 1 for number, later in pairwise(counted))
    return not (counts_up and "text" in kinds)


def _kind(cell: str) -> str:
    """Return the kind of a cell: number, written (a number in a special notation), time, text or nothing."""
    values, unread = numbers(pl.Series([cell], dtype=pl.String))
    if not unread[0]:
        return "nothing" if np.isnan(values[0]) else "number"
    try:
        seconds(cell)
    except ValueError:
        if looks_like_date(cell):
            return "time"
        return "written" if looks_written(cell) else "text"
    return "time"


def names_of(cells: list[str], has_header: bool, where: str) -> list[str]:
    """Return the names of columns; raise BadInput on duplicates."""
    names = column_names(cells if has_header else [""] * len(cells))
    twice = [name for name, n_times in Counter(names).items() if n_times > 1]
    if twice:
        raise BadInput(f"{where} has duplicate column names: {in_words(twice)}. Rename them in the header.")
    return names
