"""Categories as numbers: the code of a category is a hash of its text, the same everywhere and for every tree.

A code is a corner of a cube of `QUESTIONS` yes/no questions: an integer below 2**52, exact as a float. So numbers and
categories share one matrix, and neither learning nor scoring needs a dictionary; texts are kept for display.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from functools import cached_property
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any

import numpy as np

from polyaforest.kernels.arrays import QUESTIONS, Array

UNKNOWN = "(unknown category)"  # shown for a category whose text is not kept
LONGEST_KEPT = 1000  # characters of the longest text that is saved
_MANY = 4096  # texts below which unused ones are not dropped

Texts = Mapping[float, str]  # from codes


@dataclass(frozen=True)
class Codes:
    """A value of `categorical_features`: the last `n` columns already hold codes, without texts."""

    n: int


def code_of(text: str) -> float:
    """Return the code of a category: 52 bits of a hash of its text.

    Examples
    --------
    >>> code_of("DE") == code_of("DE"), code_of("DE") == code_of("de"), code_of("DE") < 2**52
    (True, False, True)
    """
    return _code_of(text.encode("utf-8", "surrogatepass"))


def _code_of(data: bytes) -> float:
    return float(int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> (64 - QUESTIONS))


ABSENT = _code_of(b"\xff")  # the code of missing, where it counts as a category of its own; no text has this code


def canonical(value: Any) -> str | None:
    """Return the text of a category; None if it is missing.

    Equal numbers have the same text whatever their type: missing values may turn a column of integers into floats.

    Raises
    ------
    ValueError
        If the value cannot be a category.

    Examples
    --------
    >>> canonical("DE"), canonical(7), canonical(7.0), canonical(True), canonical(float("nan"))
    ('DE', '7', '7', 'True', None)
    """
    if isinstance(value, str):
        return str(value)
    if _is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        return str(int(number)) if number == number // 1 else repr(number)
    if isinstance(value, date | np.datetime64):
        return value.isoformat() if isinstance(value, date) else str(value)
    raise ValueError(f"a category must be text, a number, a bool or a date, not a {type(value).__name__}")


def _is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, NaT, pandas' NA, or masked."""
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    return isinstance(value, Real | date | np.generic) and bool(value != value)  # noqa: PLR0124


class _Codes(dict[Any, float]):
    """Codes by text, computed on first use."""

    def __missing__(self, text: str | None) -> float:
        code = self[text] = np.nan if text is None else code_of(text)
        return code


def encode(values: Iterable[Any]) -> tuple[Array, dict[float, str]]:
    """Return the codes of categories, NaN where missing, and the text of each code.

    Examples
    --------
    >>> codes, texts = encode(["DE", None, "FR", "DE"])
    >>> [texts.get(code) for code in codes]
    ['DE', None, 'FR', 'DE']
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        distinct, places = np.unique(values, return_inverse=True)
        codes, texts = encode(distinct.tolist())
        return codes[places], texts
    given = values.tolist() if isinstance(values, np.ndarray) else values
    known = _Codes()
    codes = np.array([known[value if type(value) is str else canonical(value)] for value in given], np.float64)
    return codes, {code: text for text, code in known.items() if text is not None}


@dataclass(frozen=True, eq=False)
class Categories:
    """The categorical columns of a table, and the texts of their categories.

    Rows have the numeric columns first, then the categorical ones, each in the order of the table.

    Parameters
    ----------
    columns : tuple of int
        Positions of the categorical columns in the table, ascending.
    n_features : int
        Number of columns of the table.
    texts : mapping of codes to texts
    n_kept : int
        Number of texts after unused ones were last dropped.
    """

    columns: tuple[int, ...]
    n_features: int
    texts: Texts = field(default_factory=dict)
    n_kept: int = 0

    @cached_property
    def order(self) -> Array:
        """The position in the table of each column of rows, (D,)."""
        numeric = [k for k in range(self.n_features) if k not in set(self.columns)]
        return np.array([*numeric, *self.columns], np.intp)

    @cached_property
    def places(self) -> Array:
        """The position in rows of each column of the table, (D,)."""
        return np.argsort(self.order)

    @property
    def n_numeric(self) -> int:
        """The number of numeric columns."""
        return self.n_features - len(self.columns)

    @property
    def mask(self) -> Array:
        """Which columns of the table are categorical, (D,)."""
        return np.isin(np.arange(self.n_features), self.columns)

    def with_texts(self, texts: Texts) -> Categories:
        """Return the same columns, with more texts."""
        if all(code in self.texts for code in texts):
            return self
        return replace(self, texts={**self.texts, **texts})

    def widened(self, n: int, *, are_last: bool) -> Categories:
        """Return a copy with `n` more numeric columns: last in the table, unless the categorical columns are last."""
        columns = tuple(k + n for k in self.columns) if are_last else self.columns
        return replace(self, columns=columns, n_features=self.n_features + n)

    @property
    def is_crowded(self) -> bool:
        """Whether there are enough texts to drop the unused ones."""
        return len(self.texts) > max(_MANY, 2 * self.n_kept)

    def kept(self, rows: Array | None) -> Categories:
        """Return a copy with only the texts that occur in these rows, (n, D)."""
        codes = np.empty(0) if rows is None else np.unique(rows[:, self.n_numeric :])
        texts = {code: self.texts[code] for code in codes[~np.isnan(codes)].tolist() if code in self.texts}
        return replace(self, texts=texts, n_kept=len(texts))

    # ---- files ------------------------------------------------------------------------------------------------------

    def pack_texts(self) -> Array:
        """Return the texts as bytes, without overlong ones; their codes can be computed again."""
        texts = sorted(text for text in self.texts.values() if len(text) <= LONGEST_KEPT)
        return np.frombuffer(json.dumps(texts).encode(), np.uint8)

    @classmethod
    def of_state(cls, columns: Sequence[int], n_features: int, stored: Array) -> Categories:
        """Return the categories of a file, given the bytes of their texts; raise ValueError if invalid."""
        if not columns or list(columns) != sorted(set(columns)) or columns[-1] >= n_features:
            raise ValueError(f"invalid categorical columns {list(columns)[:8]} of a table with {n_features} columns")
        texts = json.loads(stored.tobytes().decode())
        is_right = isinstance(texts, list) and all(type(text) is str and len(text) <= LONGEST_KEPT for text in texts)
        if not is_right:
            raise ValueError(f"texts of categories must be a list of strings of at most {LONGEST_KEPT} characters")
        known = {code_of(text): text for text in texts}
        return cls(tuple(columns), n_features, known, len(known))

    # ---- words ------------------------------------------------------------------------------------------------------

    def shown(self, rows: Array) -> Array:
        """Return rows, (n, D), in the column order of the table, with texts for codes and None for missing."""
        return self.decoded(rows[:, self.places])

    def decoded(self, values: Array) -> Array:
        """Return rows in the order of the table, (n, D), with texts for codes."""
        given = values.astype(object)
        for k in self.columns:
            given[:, k] = [self.text_of(code) for code in values[:, k].tolist()]
        return given

    def text_of(self, code: float) -> str | None:
        """Return the text of a code; None if it is missing."""
        return None if np.isnan(code) else self.texts.get(float(code), UNKNOWN)


def read_categorical(
    given: Any, names: Sequence[str] | None, n_features: int, by_dtype: Callable[[], Sequence[int]]
) -> tuple[int, ...]:
    """Validate the parameter `categorical_features` and return the positions of the categorical columns.

    `by_dtype` returns the columns of categorical type.
    """
    if given is None or isinstance(given, Codes):
        return () if given is None else tuple(range(n_features - given.n, n_features))
    if isinstance(given, str):
        if given == "from_dtype":
            return tuple(sorted(by_dtype()))
        raise ValueError(f"categorical_features must be a list of names, not the string {given!r}: pass [{given!r}]")
    chosen = np.asarray(given)
    if chosen.ndim != 1:
        raise ValueError(f"categorical_features must be one-dimensional; got shape {chosen.shape}")
    if not chosen.size:
        return ()
    if chosen.dtype.kind == "b":
        if len(chosen) != n_features:
            raise ValueError(f"categorical_features is a mask of {len(chosen)} columns, but X has {n_features}")
        return tuple(np.flatnonzero(chosen).tolist())
    if chosen.dtype.kind in "iu":
        return tuple(sorted({_place(int(k), n_features) for k in chosen}))
    if all(isinstance(name, str) for name in chosen.tolist()):
        return tuple(sorted({_place_of_name(name, names) for name in chosen.tolist()}))
    raise ValueError(
        'categorical_features must be None, "from_dtype", or a list of names, column numbers or bools; '
        f"got values of type {type(chosen.tolist()[0]).__name__}"
    )


def _place(k: int, n_features: int) -> int:
    if not -n_features <= k < n_features:
        raise ValueError(f"categorical_features contains column {k}, but X has columns 0 to {n_features - 1}")
    return k % n_features


def _place_of_name(name: str, names: Sequence[str] | None) -> int:
    if names is None:
        raise ValueError("categorical_features contains names, but X has none: pass column numbers or a mask")
    if name not in names:
        near = get_close_matches(name, names, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(map(repr, names[:8]))}"
        raise ValueError(f"categorical_features contains {name!r}, which is not a column of X: {remedy}")
    return list(names).index(name)
