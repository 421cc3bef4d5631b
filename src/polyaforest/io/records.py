"""Parse live records into rows of numbers: lines of JSON or CSV, or fields that a source has already parsed.

An invalid record never stops the stream: parsing returns a reason instead of a row.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Self

from polyaforest.io._conventions import (
    MISSING,
    NO_CATEGORY,
    TRUTH,
    UTF8_BOM,
    column_names,
    is_part_of_time,
    looks_like_time,
    seconds,
)
from polyaforest.io.errors import in_words
from polyaforest.io.json_values import flattened, parse_object
from polyaforest.tables.categories import canonical, code_of
from polyaforest.tables.rows import RowLayout, StreamRow

__all__ = ["LARGEST_WEIGHT", "LONGEST_KEY", "LONGEST_LINE", "Record", "RecordReader"]

LONGEST_LINE = 1 << 20  # bytes
LONGEST_KEY = 4096  # characters of a key or id, which programs send in URLs
LARGEST_WEIGHT = 10_000  # of a record; its copies are learned one by one, while other records wait
_MOST_LATE = 100  # ignored fields to name
MOST_COLUMNS = 10_000  # bounds the memory that a first record can request

_FORMATS = ("auto", "jsonl", "csv")
_DELIMITERS = ",\t;|"
_WITH_DECIMAL_COMMAS = ";"  # the delimiter that allows decimal commas
_WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*", re.ASCII)
_NUMBERS = frozenset({int, float, bool})
_WORDS: dict[type, str] = {list: "a list", dict: "an object"}


class Record(NamedTuple):
    """A record of a source: its position, unique within the source, and its line or its fields."""

    position: str
    data: bytes | dict[str, Any]

    @property
    def text(self) -> str:
        """The record as text, at most a thousand characters."""
        if isinstance(self.data, bytes):
            return self.data[:1000].decode("utf-8", "backslashreplace")
        return str({name: _text(value) if isinstance(value, bytes) else value for name, value in self.data.items()})[
            :1000
        ]


class _BadRecordError(ValueError):
    """An invalid record; the message is the reason."""


class RecordReader:
    """Parse a stream of records.

    The first valid record determines what is not configured: the format, the time (a field with a name like "timestamp"
    that contains a time), and the columns (all numeric and boolean fields but time, its parts, key, id and weight).
    Fields of nested objects have dotted names ("cpu.user"). Missing fields and nulls are NaN; other fields are ignored.

    CSV begins with a header, or has numbers only, and then columns are named "column_1" and so on. A repeated header,
    as in a new log file, may reorder the columns; while it lacks a used column, records are invalid. With semicolons as
    delimiter, numbers may have a decimal comma, but no thousands separators.

    Parameters
    ----------
    format : {"auto", "jsonl", "csv"}, default="auto"
        Format of lines; ignored for records that are already parsed into fields.
    columns : sequence of str, optional
        Fields to use, in this order. Text in them is parsed as a number, also in JSON.
    time, id : str, optional
        Fields with the timestamp and the identifier of the record.
    key : str or sequence of str, optional
        Field with the key of the record. The values of several fields are joined by "/"; in each, slashes
        and backslashes are escaped by a backslash.
    categories : sequence of str, optional
        Fields to use as categories, after or among the columns; other text fields are ignored.
    weight : str, optional
        Field with the number of times that a record counts, a whole number.

    Attributes
    ----------
    names : list of str
        The columns, once known.
    time : str or None
        The timestamp field, once known.
    skipped : dict
        Other fields of the first valid record, each with the reason.
    late : dict
        Fields that have appeared since and are ignored, each with the number of records (a nested object counts as one
        field).

    Examples
    --------
    >>> reader = RecordReader()
    >>> reader.parse(Record("1", b'{"ts": "1970-01-01T00:01:00Z", "host": "a", "cpu": {"user": 7, "idle": 93}}'))
    StreamRow(values=[7.0, 93.0], time=60.0, key=None, id=None, texts={}, place=0, position='', weight=1)
    >>> reader.names
    ['cpu.user', 'cpu.idle']
    >>> reader.parse(Record("2", b'{"ts": 61, "cpu": {"user": "high"}}'))
    "'cpu.user' is text: high"
    """

    def __init__(
        self,
        format: str = "auto",
        *,
        columns: Sequence[str] | None = None,
        time: str | None = None,
        key: str | Sequence[str] | None = None,
        id: str | None = None,
        categories: Sequence[str] = (),
        weight: str | None = None,
    ) -> None:
        if format not in _FORMATS:
            raise ValueError(f"format must be one of {', '.join(_FORMATS)}; got {format!r}")
        self.format = format
        self.names = [] if columns is None else list(columns)
        self.time, self.key, self.id, self.weight = time, _one_or_more(key), id, weight
        self.categories = list(categories)
        self.skipped: dict[str, str] = {}
        self.late: dict[str, int] = {}
        self._named = columns is not None
        self._is_inferred = False  # whether a first record has determined what is not configured
        self._header: list[str] = []
        self._delimiter = ","
        self._prepare()

    def parse(self, record: Record) -> StreamRow | str | None:
        """Return the row of a record, or why it is invalid; None for a header or a blank line."""
        data = record.data
        try:
            if not isinstance(data, bytes):
                return self._of_fields(data)
            if len(data) > LONGEST_LINE:
                return f"line longer than {LONGEST_LINE:,} bytes"
            return self._of_line(data)
        except _BadRecordError as reason:
            return str(reason)

    def state(self) -> dict[str, Any]:
        """Return the state of the reader as a JSON-serialisable value."""
        return {
            "format": self.format,
            "names": list(self.names),
            "time": self.time,
            "key": list(self.key) if isinstance(self.key, tuple) else self.key,
            "id": self.id,
            "skipped": dict(self.skipped),
            "named": self._named,
            "settled": self._is_inferred,
            "header": list(self._header),
            "delimiter": self._delimiter,
            **({"categories": list(self.categories)} if self.categories else {}),
            **({"weight": self.weight} if self.weight is not None else {}),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Create a reader from its `state`."""
        reader = cls()
        reader._restore(state)
        return reader

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`."""
        self.format, self.names, self.skipped = state["format"], list(state["names"]), dict(state["skipped"])
        self.time, self.key, self.id = state["time"], _one_or_more(state["key"]), state["id"]
        self._named, self._is_inferred = state["named"], state["settled"]
        self._header, self._delimiter = list(state["header"]), state["delimiter"]
        self.categories = list(state.get("categories", []))  # absent from states of earlier versions, as is the weight
        self.weight = state.get("weight")
        self._prepare()

    def _prepare(self) -> None:
        """Cache the lookups that every record needs."""
        self.names += [name for name in self.categories if self.names and name not in self.names]
        names = self._numeric = [name for name in self.names if name not in self.categories]
        self._coded = [(k, name) for k, name in enumerate(self.names) if name in self.categories]
        self._values_of: Callable[[Mapping[str, Any]], Sequence[Any]] = (
            itemgetter(*names) if len(names) > 1 else lambda fields: [fields[name] for name in names]
        )
        self._keys = () if self.key is None else (self.key,) if isinstance(self.key, str) else self.key
        needed = dict.fromkeys(name for name in (*self.names, self.time, *self._keys, self.weight) if name is not None)
        roles = [*needed, *([] if self.id is None else [self.id]), *self.skipped]
        self._known = {name for path in roles for name in (path, path.partition(".")[0])}
        self._gone = [name for name in needed if name not in self._header]

    # Rows

    def _row(self, fields: Mapping[str, Any], of_text: bool) -> StreamRow:
        """Return the row of a record's fields; with `of_text`, parse numbers in text."""
        try:
            values = self._values_of(fields)
        except KeyError:
            values = [_found(fields, name) for name in self._numeric]
        numbers, texts = self._numbers(values, of_text), dict[float, str]()
        for k, name in self._coded:
            text = _category(name, _found(fields, name))
            numbers.insert(k, math.nan if text is None else code_of(text))
            texts |= {} if text is None else {numbers[k]: text}
        return StreamRow(
            numbers,
            None if self.time is None else _moment(self.time, _found(fields, self.time)),
            self._key_of(fields),
            None if self.id is None else _label(self.id, _found(fields, self.id), needed=False),
            texts,
            weight=1 if self.weight is None else _weight(self.weight, _found(fields, self.weight), of_text),
        )

    def _key_of(self, fields: Mapping[str, Any]) -> str | None:
        """Return the key of a record; the values of several fields are joined unambiguously."""
        if isinstance(self.key, str):
            return _label(self.key, _found(fields, self.key), needed=True)
        if self.key is None:
            return None
        parts = [str(_label(name, _found(fields, name), needed=True)) for name in self._keys]
        key = "/".join(part.replace("\\", "\\\\").replace("/", "\\/") for part in parts)
        if len(key) > LONGEST_KEY:
            raise _BadRecordError(f"key {in_words(self._keys)} is longer than {LONGEST_KEY:,} characters")
        return key

    @property
    def layout(self) -> RowLayout:
        """The columns of rows, once known."""
        return RowLayout(self.names, tuple(k for k, _ in self._coded), self.time is not None)

    def _numbers(self, values: Sequence[Any], of_text: bool) -> list[float]:
        """Convert values to numbers: all at once if possible, else one by one."""
        if _NUMBERS.issuperset(map(type, values)):
            if math.isfinite(sum(values)):
                return list(map(float, values))
        elif of_text:
            numbers = _all_numbers(values)
            if numbers is not None and math.isfinite(sum(numbers)):
                return numbers
        return [_number(name, value, of_text) for name, value in zip(self._numeric, values, strict=True)]

    def _first_row(self, fields: Mapping[str, Any], of_text: bool, format: str) -> StreamRow:
        """Return the row of a record's fields; the first valid record determines what is not configured."""
        if self._is_inferred:
            self._note_late(fields)
            return self._row(fields, of_text)
        before = self.state()
        try:
            self._infer(dict(flattened(fields)), of_text)
            row = self._row(fields, of_text)
        except ValueError as problem:
            self._restore(before)
            raise _BadRecordError(str(problem)) from None
        self.format, self._is_inferred = format, True
        return row

    def _note_late(self, fields: Mapping[str, Any]) -> None:
        """Count fields that the first record lacked."""
        if fields.keys() <= self._known:
            return
        for name in fields.keys() - self._known:
            if name in self.late or len(self.late) < _MOST_LATE:
                self.late[name] = self.late.get(name, 0) + 1

    def _infer(self, fields: dict[str, Any], of_text: bool) -> None:
        """Choose the timestamp and the columns from a record."""
        if self._named and not any(name in fields for name in self.names):
            raise _BadRecordError(f"has none of the columns {in_words(self.names)}; its fields are {in_words(fields)}")
        if self.time is None:
            used = (*self._keys, self.id, self.weight, *self.names, *self.categories)
            free = (name for name in fields if name not in used)
            self.time = next((name for name in free if looks_like_time(name, fields[name])), None)
        kinds = {name: _kind(value, of_text) for name, value in fields.items()}
        if not self._named:
            kinds |= self._repeated_times(fields)
            roles = (self.time, *self._keys, self.id, self.weight)
            self.names = [name for name, kind in kinds.items() if kind == "a number" and name not in roles]
            self.names = [name for name in self.names if name not in self.categories] + self.categories
        if not self.names:
            raise _BadRecordError("no numeric field")
        if len(self.names) > MOST_COLUMNS:
            raise _BadRecordError(
                f"too many numeric columns: {len(self.names):,}; at most {MOST_COLUMNS:,} are supported"
            )
        used = (*self.names, self.time, *self._keys, self.id, self.weight)
        others = {name: kind for name, kind in kinds.items() if name not in used}
        self.skipped = {name: "not selected" if kind == "a number" else kind for name, kind in others.items()}
        self._prepare()

    def _repeated_times(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """Return the fields that repeat the time of a record, or its year, month or day, with what they hold."""
        try:
            when = seconds(fields.get(self.time or ""))
        except ValueError:
            return {}
        others = {name: value for name, value in fields.items() if name != self.time}
        repeated = {name: "part of the time" for name, value in others.items() if is_part_of_time(name, value, when)}
        return repeated | {name: "another time" for name, value in others.items() if looks_like_time(name, value)}

    def _of_fields(self, fields: dict[str, Any]) -> StreamRow:
        """Return the row of parsed fields; a single field that contains a JSON object is parsed as that object."""
        texts = {name: _text(value) if isinstance(value, bytes) else value for name, value in fields.items()}
        if len(texts) == 1:
            [text] = texts.values()
            if isinstance(text, str) and text.lstrip().startswith("{"):
                return self._first_row(_json_object(text.encode()), self._named, self.format)
        return self._first_row(texts, True, self.format)

    # Lines

    def _of_line(self, line: bytes) -> StreamRow | None:
        """Return the row of a line; None for a header or a blank line."""
        if self.format == "csv":
            return self._of_csv(line)
        if self._is_inferred:
            if not line or line.isspace():
                return None
            return self._first_row(_json_object(line), self._named, self.format)
        line = line.removeprefix(UTF8_BOM).strip()
        if self.format == "jsonl" or line.startswith(b"{"):
            return self._first_row(_json_object(line), self._named, "jsonl") if line else None
        return self._of_csv(line)

    def _of_csv(self, line: bytes) -> StreamRow | None:
        """Return the row of a CSV line; None for a header or a blank line."""
        text = _decoded(line.removeprefix(UTF8_BOM)).rstrip("\r")
        if not text or text.isspace():
            return None
        if not self._header:
            return self._first_of_csv(text)
        cells = _cells(text, self._delimiter)
        try:
            return self._of_cells(cells)
        except _BadRecordError:
            if self._is_header(cells):
                self._use_header(cells)
                return None
            if not self._is_inferred and self._can_be_header(text):
                self._first_of_csv(text)  # the first line may not have been a header
            raise

    def _of_cells(self, cells: list[str]) -> StreamRow:
        """Return the row of cells in the order of the header."""
        if self._gone:
            raise _BadRecordError(f"header lacks the column {in_words(self._gone)}")
        if len(cells) != len(self._header):
            raise _BadRecordError(f"{len(cells)} fields instead of {len(self._header)} as in the header")
        fields = dict(zip(self._header, cells, strict=True))
        if self._delimiter == _WITH_DECIMAL_COMMAS:
            texts = (self.time, *self._keys, self.id, *self.categories)
            fields = {name: cell if name in texts else _with_point(cell) for name, cell in fields.items()}
        return self._first_row(fields, True, "csv")

    def _first_of_csv(self, text: str) -> StreamRow | None:
        """Use a line as the header; a line of numbers is a row of a file without a header."""
        delimiter = max(_DELIMITERS, key=text.count)
        cells = _cells(text, delimiter)
        if all(_kind(cell, True) == "a number" for cell in cells):
            self._use_header([""] * len(cells), delimiter)
            try:
                return self._of_cells(cells)
            except _BadRecordError:
                self._use_header([])
                raise
        if not self._can_be_header(text):
            raise _BadRecordError("not a JSON object" if self.format == "auto" else "no header precedes it")
        self._use_header(cells, delimiter)
        return None

    def _can_be_header(self, text: str) -> bool:
        """Return whether a line can be the first header."""
        cells = _cells(text, max(_DELIMITERS, key=text.count))
        return all(cell.isprintable() and _kind(cell, True) in {"text", "empty"} for cell in cells)

    def _is_header(self, cells: list[str]) -> bool:
        """Return whether cells repeat the header, possibly with reordered or changed columns."""
        names = column_names(cells)
        if names == self._header:
            return True
        if len(set(names)) < len(names) or any(_kind(cell, True) != "text" for cell in cells):
            return False
        kept = [name for name in self._header if name in names]
        return bool(kept) and (2 * len(kept) >= len(self._header) or set(self.names) <= set(names))

    def _use_header(self, cells: list[str], delimiter: str | None = None) -> None:
        """Use this order of columns from now on."""
        names = column_names(cells)
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise _BadRecordError(f"duplicate columns in the header: {in_words(twice)}")
        self._header, self._delimiter = names, delimiter or self._delimiter
        self._prepare()


def _one_or_more(names: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return a name, or several as a tuple."""
    return names if names is None or isinstance(names, str) else tuple(names)


def _json_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object."""
    text = text.removeprefix(UTF8_BOM)
    try:
        return parse_object(text)
    except ValueError as error:
        _decoded(text)
        raise _BadRecordError(str(error)) from None


def _decoded(line: bytes) -> str:
    """Return a line as text."""
    try:
        return line.decode()
    except UnicodeDecodeError as problem:
        raise _BadRecordError(f"byte {problem.start + 1} is not UTF-8") from None


def _cells(text: str, delimiter: str) -> list[str]:
    """Return the fields of a CSV line."""
    try:
        return next(csv.reader((text,), delimiter=delimiter, strict=True))
    except csv.Error as problem:
        raise _BadRecordError(f"invalid CSV: {problem}") from None


def _with_point(cell: str) -> str:
    """Replace the decimal comma of a number by a point; return other text unchanged."""
    return cell.replace(",", ".") if "," in cell and _WITH_COMMA.fullmatch(cell) else cell


def _found(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field, or a nested field by its dotted name; None if it is missing."""
    if name in fields:
        return fields[name]
    place = name.find(".")
    while place >= 0:
        inner = fields.get(name[:place])
        if isinstance(inner, dict):
            value = _found(inner, name[place + 1 :])
            if value is not None:
                return value
        place = name.find(".", place + 1)
    return None


def _kind(value: Any, of_text: bool) -> str:
    """Describe the content of a field."""
    if value is None:
        return "empty"
    if not isinstance(value, str):
        return "a number" if type(value) in _NUMBERS else _WORDS.get(type(value), "not UTF-8")
    if of_text and _number_in(value) is not None:
        return "a number"
    return "empty" if of_text and value.strip().lower() in MISSING else "text"


def _number(name: str, value: Any, of_text: bool) -> float:
    """Return the number in a field, NaN if missing; raise `_BadRecordError` for anything else."""
    if value is None:
        return math.nan
    number = value if type(value) in _NUMBERS else None
    if of_text and isinstance(value, str):
        number = _number_in(value)
        if number is None and value.strip().lower() in MISSING:
            return math.nan
    if number is None:
        raise _BadRecordError(f"{_quoted(name)} is {_kind(value, of_text)}: {_shortened(value)}")
    if not math.isfinite(number):
        raise _BadRecordError(f"{_quoted(name)} is not finite: {_shortened(value)}")
    return float(number)


def _weight(name: str, value: Any, of_text: bool) -> int:
    """Return the number of times that a record counts."""
    number = _number(name, value, of_text)
    if math.isnan(number):
        raise _BadRecordError(f"weight {_quoted(name)} is missing")
    if not (0 <= number <= LARGEST_WEIGHT and number.is_integer()):
        raise _BadRecordError(
            f"weight {_quoted(name)} is {_shortened(value)}: it must be a whole number from 0 to {LARGEST_WEIGHT:,}"
        )
    return int(number)


def _category(name: str, value: Any) -> str | None:
    """Return the text of a category, None if it is missing."""
    try:
        text = canonical(value)
    except ValueError:
        raise _BadRecordError(f"{_quoted(name)} is {_kind(value, False)}: {_shortened(value)}") from None
    text = None if text is None else text.strip(" \t")
    return None if text is None or text.lower() in NO_CATEGORY else text


def _all_numbers(texts: Sequence[Any]) -> list[float] | None:
    """Convert all texts to numbers at once; None if some must be parsed one by one."""
    try:
        return None if "_" in "".join(texts) else list(map(float, texts))
    except (TypeError, ValueError):
        return None


def _number_in(text: str) -> float | None:
    """Parse a number in text; None for other text."""
    try:
        number = float(text)
    except ValueError:
        return TRUTH.get(text.strip().lower())
    return None if "_" in text else number


def _moment(name: str, value: Any) -> float:
    """Return the time in a field in seconds."""
    if value is None or value == "":
        raise _BadRecordError(f"time {_quoted(name)} is missing")
    try:
        return seconds(value)
    except ValueError:
        raise _BadRecordError(f"{_quoted(name)} is not a time: {_shortened(value)}") from None


def _label(name: str, value: Any, needed: bool) -> str | None:
    """Return the text of a key or identifier."""
    if isinstance(value, str) and len(value) > LONGEST_KEY:
        raise _BadRecordError(f"{_quoted(name)} is longer than {LONGEST_KEY:,} characters: {_shortened(value)}")
    if isinstance(value, str) and value:
        return value
    if type(value) is float and abs(value) >= 1 << 63:
        raise _BadRecordError(f"{_quoted(name)} is too large for a numeric key or id: write it as text")
    if type(value) in _NUMBERS:
        return str(value)
    if value is None or value == "":
        if needed:
            raise _BadRecordError(f"key {_quoted(name)} is missing")
        return None
    raise _BadRecordError(f"{_quoted(name)} is {_kind(value, False)}: {_shortened(value)}")


def _text(value: bytes) -> str | bytes:
    """Decode UTF-8; return other bytes unchanged."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _quoted(name: str) -> str:
    """Return a name in quotes."""
    return in_words([name])


def _shortened(value: Any) -> str:
    """Return the beginning of a value, for a message."""
    try:
        text = str(value)
    except RecursionError:  # nested too deeply
        text = "…"
    return text if len(text) <= 40 else f"{text[:39]}…"
