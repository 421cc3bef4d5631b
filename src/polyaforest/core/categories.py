"""Categories as numbers: the code of a category is a hash of its text, the same everywhere and for every tree.

A code is a corner of a cube of `QUESTIONS` yes/no questions, an exact integer below 2**52 in a float. So rows of
numbers and categories are one matrix, and no dictionary is needed to learn or score them; texts are kept for words.
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

from polyaforest.core.arrays import QUESTIONS, Array

UNKNOWN = "(unknown category)"  # shown for a category whose text is not kept
LONGEST_KEPT = 1000  # characters of a category whose text is saved
_MANY = 4096  # texts that may be held, needed or not

Texts = Mapping[float, str]  # from codes


@dataclass(frozen=True)
class Codes:
    """The parameter `categorical_features` of tables whose last `n` columns hold codes already, without texts."""

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


ABSENT = _code_of(b"\xff")  # of no text: where a missing category counts as one more category


def canonical(value: Any) -> str | None:
    """Return the text of a category; None for a missing one.

    A number has the same text whatever its type, so that a column of integers stays the same column where gaps have
    turned it into floats.

    Raises
    ------
    ValueError
        If it can be no category.

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
    """Return whether a value stands for none: None, NaN, NaT, NA of pandas, or masked."""
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    return isinstance(value, Real | date | np.generic) and bool(value != value)  # noqa: PLR0124


class _Codes(dict[Any, float]):
    """Codes by text, worked out when first asked for."""

    def __missing__(self, text: str | None) -> float:
        code = self[text] = np.nan if text is None else code_of(text)
        return code


def encode(values: Iterable[Any]) -> tuple[Array, dict[float, str]]:
    """Return the codes of categories, NaN where they are missing, and the text of each code.

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
    """Which columns of a table are categories, and the texts of those that are held.

    Rows have the numeric columns first, then those of categories, each in the order of the table.

    Parameters
    ----------
    columns : tuple of int
        Where they are in the table, ascending.
    n_features : int
        Columns of the table in all.
    texts : mapping of codes to texts
    n_kept : int
        How many of them there were when those of rows no longer held were last dropped.
    """

    columns: tuple[int, ...]
    n_features: int
    texts: Texts = field(default_factory=dict)
    n_kept: int = 0

    @cached_property
    def order(self) -> Array:
        """The place in the table of each column of rows, (D,)."""
        numeric = [k for k in range(self.n_features) if k not in set(self.columns)]
        return np.array([*numeric, *self.columns], np.intp)

    @cached_property
    def places(self) -> Array:
        """The place in rows of each column of the table, (D,)."""
        return np.argsort(self.order)

    @property
    def n_numeric(self) -> int:
        """The number of numeric columns."""
        return self.n_features - len(self.columns)

    @property
    def mask(self) -> Array:
        """Whether each column of the table is one of categories, (D,)."""
        return np.isin(np.arange(self.n_features), self.columns)

    def with_texts(self, texts: Texts) -> Categories:
        """Return the same columns, with more texts."""
        if all(code in self.texts for code in texts):
            return self
        return replace(self, texts={**self.texts, **texts})

    def widened(self, n: int, *, are_last: bool) -> Categories:
        """Return what it is with `n` more columns of numbers: the last of the table, unless the categories are."""
        columns = tuple(k + n for k in self.columns) if are_last else self.columns
        return replace(self, columns=columns, n_features=self.n_features + n)

    @property
    def is_crowded(self) -> bool:
        """Whether it is time to drop the texts of rows that are no longer held."""
        return len(self.texts) > max(_MANY, 2 * self.n_kept)

    def kept(self, rows: Array | None) -> Categories:
        """Return the same columns, with the texts of these rows only, (n, D)."""
        codes = np.empty(0) if rows is None else np.unique(rows[:, self.n_numeric :])
        texts = {code: self.texts[code] for code in codes[~np.isnan(codes)].tolist() if code in self.texts}
        return replace(self, texts=texts, n_kept=len(texts))

    # ---- files ------------------------------------------------------------------------------------------------------

    def pack_texts(self) -> Array:
        """Return the texts as bytes, without those that are too long to be words; codes follow from them."""
        texts = sorted(text for text in self.texts.values() if len(text) <= LONGEST_KEPT)
        return np.frombuffer(json.dumps(texts).encode(), np.uint8)

    @classmethod
    def of_state(cls, columns: Sequence[int], n_features: int, stored: Array) -> Categories:
        """Return the categories in a file, given the bytes of their texts; raise unless they can be such."""
        if not columns or list(columns) != sorted(set(columns)) or columns[-1] >= n_features:
            raise ValueError(f"its columns of categories are {list(columns)[:8]}, of {n_features}")
        texts = json.loads(stored.tobytes().decode())
        is_right = isinstance(texts, list) and all(type(text) is str and len(text) <= LONGEST_KEPT for text in texts)
        if not is_right:
            raise ValueError(f"its texts of categories must be a list of strings of at most {LONGEST_KEPT} characters")
        known = {code_of(text): text for text in texts}
        return cls(tuple(columns), n_features, known, len(known))

    # ---- words ------------------------------------------------------------------------------------------------------

    def shown(self, rows: Array) -> Array:
        """Return rows, (n, D), as the table has them: its order of columns, and texts for codes, None for missing."""
        return self.decoded(rows[:, self.places])

    def decoded(self, values: Array) -> Array:
        """Return rows in the order of the table, (n, D), with texts for codes."""
        given = values.astype(object)
        for k in self.columns:
            given[:, k] = [self.text_of(code) for code in values[:, k].tolist()]
        return given

    def text_of(self, code: float) -> str | None:
        """Return the text of a code, None for a missing one."""
        return None if np.isnan(code) else self.texts.get(float(code), UNKNOWN)


def read_categorical(
    given: Any, names: Sequence[str] | None, n_features: int, by_dtype: Callable[[], Sequence[int]]
) -> tuple[int, ...]:
    """Return the places of categorical columns that the parameter `categorical_features` stands for.

    `by_dtype` says which columns have a categorical type.
    """
    if given is None or isinstance(given, Codes):
        return () if given is None else tuple(range(n_features - given.n, n_features))
    if isinstance(given, str):
        if given == "from_dtype":
            return tuple(sorted(by_dtype()))
        raise ValueError(f"categorical_features must be a list of names, not the single {given!r}: pass [{given!r}]")
    chosen = np.asarray(given)
    if chosen.ndim != 1:
        raise ValueError(f"categorical_features must be one-dimensional; got shape {chosen.shape}")
    if not chosen.size:
        return ()
    if chosen.dtype.kind == "b":
        if len(chosen) != n_features:
            raise ValueError(f"categorical_features is a mask of {len(chosen)} columns, but there are {n_features}")
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
        raise ValueError(f"categorical_features has column {k}, but there are {n_features} columns, from 0")
    return k % n_features


def _place_of_name(name: str, names: Sequence[str] | None) -> int:
    if names is None:
        raise ValueError("categorical_features has names, but the columns have none: pass column numbers or a mask")
    if name not in names:
        near = get_close_matches(name, names, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, names[:8]))}"
        raise ValueError(f"categorical_features has the column {name!r}, which X does not have: {remedy}")
    return list(names).index(name)
