"""Options that describe how a file is written, and interpretations inferred without them.

Imports nothing heavy, so that `--help` stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DATES", "DECIMALS", "Interpretation", "Reading"]

DECIMALS = {"point": ".", "comma": ","}
DATES = ("day-first", "month-first")


@dataclass(frozen=True)
class Reading:
    """How files are written; None means inferred.

    Parameters
    ----------
    decimal : {"point", "comma"}, optional
        Decimal separator of numbers in text; the other one then separates thousands.
    dates : {"day-first", "month-first"}, optional
        Order of day and month in dates such as 01/02/2024.
    plain : bool
        Whether to accept only numbers such as -1234.5e6, without units, signs or separators.
    delimiter : str, optional
        Delimiter of CSV.
    header : bool, optional
        Whether the first line of CSV, or the first row of a sheet, has the names of the columns.
    comment : str, optional
        Prefix of comment lines in CSV; "" for no comments.
    sheet : str, optional
        Sheet of a workbook, by name or by number from 1.
    query : str, optional
        SQL query whose result is the table, for databases.
    missing : sequence of str, optional
        Numbers and texts that mean "no value", besides empty cells and words such as NA; () for none. By default,
        isolated extremes that repeat, such as -200 or 9999.
    """

    decimal: str | None = None
    dates: str | None = None
    plain: bool = False
    delimiter: str | None = None
    header: bool | None = None
    comment: str | None = None
    sheet: str | None = None
    query: str | None = None
    missing: tuple[str, ...] | None = None


class Interpretation(NamedTuple):
    """An inference about how a file is written, for the report.

    Attributes
    ----------
    words : str
    options : tuple of str
        Options that override it.
    columns : tuple of str
        Columns it concerns; empty for the whole file.
    """

    words: str
    options: tuple[str, ...]
    columns: tuple[str, ...] = ()
