"""Infer how the numbers of a column are written: decimal separator, thousands separator, signs and units.

A column has one notation, proven by cells that can be read in one way only: "12,5" has a decimal comma, "1,234,567"
does not. Cells that contradict the notation are not numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import glimpse
from ._conventions import MISSING
from ._units import SIGNS, UnitFamily, family_of
from .reading import DECIMALS, Reading

__all__ = ["ENOUGH", "MixedNotation", "Notation", "infer_notations", "looks_written"]

ENOUGH = 0.75  # share of cells that makes a column numeric, or a column of times
_OTHER = {".": ",", ",": "."}
# Spaces and apostrophes come in several shapes.
_CLASSES = {".": r"\.", ",": ",", " ": "[ \u00a0\u2009\u202f]", "'": "['’]"}
_ANY_CORE = "(?:[0-9](?:[0-9.,'’ \u00a0\u2009\u202f]*[0-9])?|[.,][0-9]+)"
_SIGN_BEFORE = r"[^0-9\s.,'’()+\-−][^0-9\s,'’()+\-−]{0,3}"
_SIGN_AFTER = r"[^0-9\s.,'’()+\-−][^\s()]{0,9}"
_PARTS = ("open", "minus", "before", "inner_minus", "core", "exponent", "after", "close")
_BETWEEN = "\n"  # separates the signs before and after a number, which never contain it
_ADDRESS = r"^[0-9]{1,3}(?:\.[0-9]{1,3}){3}$"  # an IP address, not a number grouped by three


class Notation(NamedTuple):
    """How numbers are written.

    Attributes
    ----------
    decimal : str
        "." or ",".
    thousands : str or None
        Separator of groups of three digits: ".", ",", " " or "'".
    family : UnitFamily or None
        Units that may precede or follow the number.
    is_guess : bool
        Whether the cells can also be read with the other decimal separator.
    """

    decimal: str
    thousands: str | None
    family: UnitFamily | None
    is_guess: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Options that override it."""
        by_decimal = self.decimal == "," or self.thousands == ","
        return ("--decimal",) * by_decimal + ("--plain",) * (self.family is not None or not by_decimal)

    @property
    def words(self) -> str:
        """The notation, for messages about cells that contradict it."""
        parts = ["decimal comma"] if self.decimal == "," else []
        parts += [f"'{self.thousands}' between thousands"] if self.thousands else []
        parts += [f"unit like {self.family.base or 'k'}"] if self.family else []
        return f" with {' and '.join(parts)}" if parts else ""

    def values(self, cells: pl.Series) -> NDArray[np.float64]:
        """Parse stripped text; NaN where a cell contradicts the notation."""
        if self.family is not None:
            return self._split_values(cells)
        simple = cells if self.decimal == "." else cells.str.replace(",", ".", literal=True)
        cast = simple.cast(pl.Float64, strict=False)  # ten times as fast as splitting cells
        values: NDArray[np.float64] = cast.fill_null(np.nan).to_numpy().copy()
        is_simple = np.isfinite(values)
        if self.decimal == ",":
            is_simple &= ~cells.str.contains(".", literal=True).fill_null(False).to_numpy()
        others = np.flatnonzero(~is_simple)
        values[others] = self._split_values(cells.gather(others))
        return values

    def _split_values(self, cells: pl.Series) -> NDArray[np.float64]:
        """Parse text by splitting each cell into its parts."""
        parts = _parts(cells, _core(self.decimal, self.thousands))
        digits = parts["core"]
        if self.thousands:
            digits = digits.str.replace_all(_CLASSES[self.thousands], "")
        if self.decimal == ",":
            digits = digits.str.replace(",", ".", literal=True)
        values = (digits + parts["exponent"]).cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()
        values = _scaled(values, _factors(parts, self.family, values == 0))
        is_negative = (parts["minus"] + parts["inner_minus"] + parts["open"]).str.contains("[-−(]")
        return np.asarray(np.where(is_negative.fill_null(False).to_numpy(), -values, values))


class MixedNotation(NamedTuple):
    """Examples of the two notations in a column that mixes them."""

    one: str
    other: str


def _core(decimal: str, thousands: str | None) -> str:
    """Return the pattern of digits in a notation."""
    whole = "[0-9]+"
    if thousands:
        whole = f"(?:[1-9][0-9]{{0,2}}(?:{_CLASSES[thousands]}[0-9]{{3}})+|{whole})"
    point = _CLASSES[decimal]
    return f"(?:{whole}(?:{point}[0-9]+)?|{point}[0-9]+)"


@lru_cache(32)
def _pattern(core: str) -> str:
    """Return the pattern of a number with signs; `_PARTS` names its groups."""
    return rf"^(\()?([+\-−])?\s*({_SIGN_BEFORE})?\s*([+\-−])?\s*({core})([eE][+\-]?[0-9]+)?\s*({_SIGN_AFTER})?(\))?$"


def _parts(cells: pl.Series, core: str) -> pl.DataFrame:
    """Split numbers in text into parts; empty text for missing parts, null where a cell is not a number."""
    found = cells.str.extract_groups(_pattern(core)).struct.unnest()
    found.columns = list(_PARTS)
    is_number = (
        pl.col("core").is_not_null()
        & (pl.col("open").is_null() == pl.col("close").is_null())
        & ~(pl.col("minus").is_not_null() & pl.col("inner_minus").is_not_null())
        & ~((pl.col("minus").is_not_null() | pl.col("inner_minus").is_not_null()) & pl.col("open").is_not_null())
        & ~(pl.col("before").is_not_null() & pl.col("after").is_not_null())
    )
    return found.select(pl.when(is_number).then(pl.col(name).fill_null("")) for name in _PARTS)


def _factors(parts: pl.DataFrame, family: UnitFamily | None, is_zero: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the factor of each number's unit; NaN if the unit is of another family."""
    signs = parts.select(pl.col("before") + _BETWEEN + pl.col("after")).to_series()
    kinds = signs.drop_nulls().unique().to_list()
    by_kind = [_factor(kind.partition(_BETWEEN), family) for kind in kinds]
    if not kinds:
        return np.full(len(parts), np.nan)
    factors = signs.replace_strict(kinds, by_kind, default=None, return_dtype=pl.Float64).fill_null(np.nan).to_numpy()
    is_bare = (signs == _BETWEEN).fill_null(False).to_numpy()
    return np.where(is_bare & is_zero, 1.0, factors)  # zero needs no unit


def _scaled(values: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply by factors; divide where 1 / factor is an integer, so that 93 ms is 0.093 s to the last bit."""
    parts = np.maximum(np.rint(1 / factors), 1.0)
    is_part = (factors < 1) & (np.abs(parts * factors - 1) < 1e-12)
    with np.errstate(over="ignore"):  # 1e308 kB is not finite, which the caller reports
        return np.where(is_part, values / parts, values * factors)


def _factor(signs: tuple[str, str, str], family: UnitFamily | None) -> float | None:
    """Return the factor of a number with signs before and after it."""
    before, _, after = signs
    if family is None:
        return None if before or after else 1.0
    return None if before and not family.precedes else family.factor(before + after)


class _Evidence:
    """Evidence that the cells of a column give for its notation."""

    def __init__(self, cells: pl.Series, decimals: str = ".,") -> None:
        self.cells = cells
        parts = _parts(cells, _ANY_CORE)
        counts = parts.drop_nulls().group_by("before", "after").len().iter_rows()
        self.family = family_of({(bool(before), before + after): n for before, after, n in counts if before or after})
        is_zero = (~parts["core"].str.contains("[1-9]")).fill_null(False).to_numpy()
        self._has_signs = ~np.isnan(_factors(parts, self.family, is_zero))
        self._cores = parts["core"]
        self._decimals = decimals
        read = {decimal: self._read(decimal) for decimal in decimals}
        self.is_read = {decimal: marks for decimal, (marks, _) in read.items()}
        self._thousands = {decimal: thousands for decimal, (_, thousands) in read.items()}
        self.n_read = {decimal: int(marks.sum()) for decimal, marks in self.is_read.items()}

    def _read(self, decimal: str) -> tuple[NDArray[np.bool_], str | None]:
        """Return which cells can be read with a decimal separator, and the thousands separator that this needs."""
        best, chosen = self._matches(decimal, None), None
        for thousands in (_OTHER[decimal], " ", "'"):
            marks = self._matches(decimal, thousands)
            if marks.sum() > best.sum():
                best, chosen = marks, thousands
        return best, chosen

    def _matches(self, decimal: str, thousands: str | None) -> NDArray[np.bool_]:
        """Return which cells match a notation."""
        matches = self._cores.str.contains(f"^{_core(decimal, thousands)}$").fill_null(False).to_numpy()
        return np.asarray(matches & self._has_signs)

    def only(self, decimal: str) -> NDArray[np.bool_]:
        """Return which cells can be read with this decimal separator only."""
        return self.is_read[decimal] & ~self.is_read[_OTHER[decimal]]

    @property
    def proven(self) -> str | None:
        """The decimal separator that most cells prove, or None."""
        if len(self._decimals) == 1:
            return self._decimals
        best = max(self._decimals, key=self.n_read.__getitem__)
        if self.n_read[best] == self.n_read[_OTHER[best]] or self.mixed:
            return None
        return best

    @property
    def mixed(self) -> MixedNotation | None:
        """Examples of cells that contradict each other, if too many do, or None."""
        if len(self._decimals) == 1 or np.logical_or(*self.is_read.values()).sum() < ENOUGH * len(self.cells):
            return None
        points, commas = self.only("."), self.only(",")
        if not points.any() and not commas.any():
            points, commas = (self._cores.str.contains(mark, literal=True).fill_null(False).to_numpy() for mark in ".,")
            points, commas = points & self._has_signs, commas & self._has_signs  # 1.234 and 5,678
        n_points, n_commas = int(points.sum()), int(commas.sum())
        if max(n_points, n_commas) >= ENOUGH * (n_points + n_commas):
            return None
        return MixedNotation(*(str(self.cells[int(np.flatnonzero(marks)[0])]) for marks in (points, commas)))

    def is_enough(self, decimal: str) -> bool:
        """Return whether enough cells can be read with a decimal separator."""
        return self.n_read[decimal] > 0 and self.n_read[decimal] >= ENOUGH * len(self.cells)

    def notation(self, of_file: str | None, delimiter: str | None) -> Notation | None:
        """Return the notation; None if cells are plain numbers, or not numbers.

        Parameters
        ----------
        of_file : str or None
            The decimal separator of the file's other columns, if they agree on one.
        delimiter : str or None
            The delimiter of CSV: a semicolon suggests decimal commas.
        """
        decimal = self.proven
        is_guess = decimal is None and bool(self._cores.str.contains("[.,]").any())
        if decimal is None:
            has_commas = bool(self._cores.str.contains(",", literal=True).any())
            decimal = of_file or ("," if delimiter == ";" and has_commas else ".")
        if not self.is_enough(decimal):
            return None
        thousands = self._thousands[decimal]
        if thousands is None and self.proven:
            thousands = _OTHER[decimal]  # its only remaining use
        if decimal == "." and self.family is None and self._thousands["."] is None and not self._has_special_signs:
            return None
        return Notation(decimal, thousands, self.family, is_guess and of_file is None)

    @property
    def _has_special_signs(self) -> bool:
        """Whether any number has a special minus sign, a space after its sign, or parentheses."""
        is_special = self.cells.str.contains(r"^\(|−|[+-]\s").fill_null(False).to_numpy()
        return bool((is_special & self._has_signs).any())


def infer_notations(
    columns: Mapping[str, pl.Series], unread: Mapping[str, NDArray[np.bool_]], delimiter: str | None, reading: Reading
) -> dict[str, Notation | MixedNotation]:
    """Infer the notations of text columns whose numbers are not plain.

    Parameters
    ----------
    columns : mapping
        The first cells of each text column.
    unread : mapping
        For each column, True where a cell is not a plain number.
    delimiter : str or None
        The delimiter of CSV.
    reading : Reading
        The user's options.
    """
    if reading.plain:
        return {}
    decimals = DECIMALS[reading.decimal] if reading.decimal else ".,"
    is_plain = {name: not marks.any() for name, marks in unread.items()}
    doubtful = [name for name in columns if decimals == "," or not is_plain[name]]
    evidence = {name: _Evidence(cells, decimals) for name in doubtful if (cells := _written(columns[name])) is not None}
    evidence = {name: found for name, found in evidence.items() if found.mixed or any(map(found.is_enough, decimals))}
    if len(decimals) == 2 and evidence:
        for name in (name for name in columns if is_plain[name]):  # dots in them may separate thousands
            cells = _written(columns[name])
            if cells is not None and cells.str.contains(".", literal=True).any():
                evidence[name] = _Evidence(cells)
    proven = {found.proven for found in evidence.values()} - {None}
    of_file = proven.pop() if len(proven) == 1 else None
    notations: dict[str, Notation | MixedNotation | None] = {
        name: (None if is_plain[name] and not reading.decimal else found.mixed) or found.notation(of_file, delimiter)
        for name, found in evidence.items()
    }
    return {name: notation for name, notation in notations.items() if notation}


def _written(cells: pl.Series) -> pl.Series | None:
    """Return stripped cells that are not missing; None if no cell resembles a number, or most are IP addresses."""
    text = cells.drop_nulls().str.strip_chars(" \t")
    text = text.filter(~text.str.to_lowercase().is_in([*MISSING, "nan"]))
    few = glimpse(text)
    parts = _parts(few, _ANY_CORE)
    if not (parts["before"] + parts["after"]).is_in(list(SIGNS)).any() or few.str.contains(_ADDRESS).mean() > 0.5:
        return None
    return text


def looks_written(cell: str) -> bool:
    """Return whether a cell that is not a plain number is a number in another notation.

    Examples
    --------
    >>> looks_written("1.234,50"), looks_written("93ms"), looks_written("web-1"), looks_written("10.0.0.1")
    (True, True, False, False)
    """
    match = re.match(_pattern(_ANY_CORE), cell.strip())
    if not match or (match[3] or "") + (match[7] or "") not in SIGNS:
        return False
    cells = _written(pl.Series([cell], dtype=pl.String))
    return cells is not None and any(_Evidence(cells).n_read.values())
