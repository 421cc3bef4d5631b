"""What a user may say about how a file is written, and what was understood without a word.

Imports nothing heavy, so that help answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DATES", "DECIMALS", "Reading", "Understood"]

DECIMALS = {"point": ".", "comma": ","}
DATES = ("day-first", "month-first")


@dataclass(frozen=True)
class Reading:
    """How files are written; whatever is None is inferred.

    Parameters
    ----------
    decimal : {"point", "comma"}, optional
        Decimal separator of numbers in text; the other one then separates thousands.
    dates : {"day-first", "month-first"}, optional
        Order of dates such as 01/02/2024.
    plain : bool
        Whether only numbers such as -1234.5e6 count as numbers: no units, signs or separators.
    delimiter : str, optional
        Delimiter of CSV.
    header : bool, optional
        Whether the first line of CSV, or the first row of a sheet, has the names of the columns.
    comment : str, optional
        Beginning of lines of CSV that are comments; "" if there are none.
    sheet : str, optional
        Sheet of a workbook, by name or by number from 1.
    query : str, optional
        SQL query whose result is the table, for databases.
    """

    decimal: str | None = None
    dates: str | None = None
    plain: bool = False
    delimiter: str | None = None
    header: bool | None = None
    comment: str | None = None
    sheet: str | None = None
    query: str | None = None


class Understood(NamedTuple):
    """Something that was inferred, for the report.

    Attributes
    ----------
    words : str
    options : tuple of str
        The options that overrule it.
    columns : tuple of str
        The columns that it is about; empty for the whole file.
    """

    words: str
    options: tuple[str, ...]
    columns: tuple[str, ...] = ()
