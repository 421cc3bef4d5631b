"""A column of the sample of a table: whether it holds numbers, truth values, codes, times or text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import shortened
from ._cells import Clock, calendar_seconds, category_texts, numbers, seconds_of_day
from ._conventions import MISSING, TRUTH
from ._names import is_id_name, is_month_name, is_year_name
from ._notation import ENOUGH, MixedNotation, Notation

__all__ = ["MOST_LEVELS", "NEARLY", "ROWS_OF_CATEGORY", "SampleColumn"]

ROWS_OF_CATEGORY = 4  # on average; in a column with fewer, text identifies rows
MOST_LEVELS = 50  # distinct texts or ids; more need a closer look before they are categories
NEARLY = re.compile(r"^\W?\s*\d")  # start of a cell that may be meant as a number
_LONGEST_NUMERAL = 15  # digits
_FEWEST_DATES, _FEWEST_BITS = 10, 20  # cells
_DATES = 0.95  # share of valid dates that makes numbers such as 20120301 dates
_FEW_WORDS = 0.05  # share of cells up to which words among numbers count as invalid cells


def _is_numeric(dtype: pl.DataType) -> bool:
    """Return whether a type is numeric or boolean."""
    return dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)


class SampleColumn:
    """A column of the sample, parsed as numbers and as times."""

    def __init__(self, cells: pl.Series, notation: Notation | None = None) -> None:
        self.cells = cells
        self.notation = notation
        self.mixed: MixedNotation | None = None
        self.is_moment = cells.dtype in (pl.Date, pl.Datetime)
        self.is_other = not (self.is_moment or cells.dtype == pl.String or _is_numeric(cells.dtype))
        unreadable = self.is_moment or self.is_other
        as_text = pl.Series([""] * len(cells)) if unreadable else cells
        self.values, self.unread = numbers(as_text, notation)
        self.n_read = int(np.count_nonzero(~np.isnan(self.values)))
        self.n_unread = len(cells) if unreadable else int(np.count_nonzero(self.unread))

    @property
    def is_numeric(self) -> bool:
        """Whether at least `ENOUGH` of the non-missing cells are numbers."""
        return self.n_read > 0 and self.n_read >= ENOUGH * (self.n_read + self.n_unread)

    @property
    def is_number(self) -> bool:
        """Whether cells are quantities, not numerals of one length such as postcodes, truth values or codes."""
        return self.is_numeric and not (self.is_numerals or self.has_words or self.is_flag or self.is_code)

    @cached_property
    def is_flag(self) -> bool:
        """Whether cells are true or false."""
        if self.cells.dtype == pl.Boolean:
            return self.n_read > 0
        if self.cells.dtype != pl.String or self.notation is not None or not self.n_read:
            return False
        is_truth = np.isin(self.values, list(TRUTH.values()))
        if not is_truth[~np.isnan(self.values)].all():
            return False
        return bool(category_texts(self.cells).drop_nulls().str.to_lowercase().is_in([*TRUTH, *MISSING]).all())

    @cached_property
    def is_id(self) -> bool:
        """Whether cells are whole numbers that identify something, by the name of the column."""
        if not is_id_name(self.cells.name) or self.notation is not None or not self.is_numeric:
            return False
        finite = self.values[np.isfinite(self.values)]
        return bool(len(finite) and (finite % 1 == 0).all())

    @cached_property
    def is_bit(self) -> bool:
        """Whether cells are the numbers 0 and 1: truth values."""
        if self.notation is not None or self.n_read < _FEWEST_BITS or self.n_unread or self.n_distinct != 2:
            return False
        return set(np.unique(self.values[~np.isnan(self.values)]).tolist()) == {0.0, 1.0}

    @cached_property
    def is_calendar(self) -> bool:
        """Whether cells are days such as 20120301, months such as 201203, or years that rise from row to row."""
        values = self.values[~np.isnan(self.values)]
        if not self.is_plain or self.n_unread or len(values) < _FEWEST_DATES or not np.ptp(values):
            return False
        dates = values[~np.isnan(calendar_seconds(values))]
        if len(dates) < _DATES * len(values) or np.ptp(np.log10(dates).astype(int)):
            return False
        if dates[0] < 10_000:
            return is_year_name(self.cells.name) and bool((np.diff(values) > 0).all())
        return dates[0] >= 10_000_000 or is_month_name(self.cells.name)

    @property
    def is_code(self) -> bool:
        """Whether cells are numbers that identify one of a few kinds, such as the status codes of a protocol."""
        return self.is_id and self.n_distinct <= min(MOST_LEVELS, self.n_read // ROWS_OF_CATEGORY)

    @cached_property
    def n_distinct(self) -> int:
        """Number of distinct numbers."""
        return len(np.unique(self.values[~np.isnan(self.values)]))

    @property
    def is_row_name(self) -> bool:
        """Whether all cells are different whole numbers."""
        return self.n_read == len(self.values) == self.n_distinct and bool((self.values % 1 == 0).all())

    @cached_property
    def has_words(self) -> bool:
        """Whether many cells are words and few cells are distinct, as in codes of places."""
        n = self.n_read + self.n_unread
        if self.cells.dtype != pl.String or self.n_unread <= _FEW_WORDS * n:
            return False
        words = self.cells.filter(pl.Series(self.unread))
        return bool(self.cells.n_unique() * ROWS_OF_CATEGORY <= n and not words.str.contains(NEARLY.pattern).any())

    @cached_property
    def is_numerals(self) -> bool:
        """Whether all cells have the same number of digits, and some have leading zeros."""
        if self.cells.dtype != pl.String or self.notation is not None or not self.is_numeric:
            return False
        text = category_texts(self.cells).drop_nulls()
        is_alike = len(text) and text.str.contains(r"^\d{2,}$").all() and text.str.len_chars().n_unique() == 1
        return bool(is_alike and text.str.starts_with("0").any() and text.str.len_chars()[0] <= _LONGEST_NUMERAL)

    @property
    def is_text(self) -> bool:
        """Whether cells are text that can be categories."""
        if self.is_moment or self.is_other or self.mixed or self.is_number or not (self.n_read or self.n_unread):
            return False
        return not self.is_times

    @property
    def is_plain(self) -> bool:
        """Whether cells are plain numbers without a unit, as numeric timestamps are."""
        return self.is_numeric and self.notation is None

    @cached_property
    def is_times(self) -> bool:
        """Whether at least `ENOUGH` of the non-missing cells are dates."""
        if self.is_moment or self.is_calendar:
            return True
        if self.is_other or self.is_numeric or not self.n_unread:
            return False
        return bool(np.count_nonzero(~np.isnan(self._dates)) >= ENOUGH * (self.n_read + self.n_unread))

    @cached_property
    def _dates(self) -> NDArray[np.float64]:
        """The cells that are not numbers, as seconds since 1970."""
        if self.is_calendar:
            return calendar_seconds(self.values)
        words = self.cells if self.is_moment else self.cells.filter(pl.Series(self.unread))
        return Clock.of_dates(words).seconds(words)

    @property
    def has_only_days(self) -> bool:
        """Whether all dates are without a time of day."""
        return bool((self._dates[~np.isnan(self._dates)] % 86_400 == 0).all())

    @cached_property
    def is_time_of_day(self) -> bool:
        """Whether at least `ENOUGH` of the non-missing cells are times of day."""
        n = self.n_read + self.n_unread if self.cells.dtype == pl.String else len(self.cells) - self.cells.null_count()
        return bool(n and np.count_nonzero(~np.isnan(seconds_of_day(self.cells))) >= ENOUGH * n)

    @property
    def example(self) -> str:
        """A cell that looks like a number but does not parse, for messages."""
        words = self.cells.filter(pl.Series(self.unread)).head(1).to_list()
        return f", such as '{shortened(str(words[0]))}'" if words and NEARLY.match(str(words[0])) else ""

    def written(self, without: Sequence[float] = ()) -> str:
        """Return an example of a number and its value."""
        assert self.notation is not None
        family = self.notation.family
        read = pl.DataFrame({"cell": self.cells, "value": self.values}).filter(~pl.col("value").is_nan())
        others = read.filter(~pl.col("value").is_in(list(without)))
        read = (others if len(others) else read).head(1000)
        [cell, value] = read.sort(pl.col("cell").str.len_chars(), descending=True, maintain_order=True).row(0)
        unit = f" {family.base}" if family and family.base else ""
        return f": {shortened(cell.strip())} as {value:.15g}{unit}{' (ambiguous)' * self.notation.is_guess}"

    @property
    def what(self) -> str:
        """Content of a column that is not numeric."""
        if self.is_other:
            return f"values of type {self.cells.dtype}"
        if not self.n_read and not self.n_unread:
            return "nothing"
        return "times" if self.is_times else "times of day" if self.is_time_of_day else "text"
