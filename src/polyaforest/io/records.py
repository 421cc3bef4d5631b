"""Live records made into rows of numbers: lines of JSON or CSV as they come, or fields that a source has taken apart.

A record that cannot be used never stops the stream: it gets a reason in words instead.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Self

import orjson

from polyaforest.io._errors import in_words
from polyaforest.io._json import flattened
from polyaforest.io._times import looks_like_time, seconds

__all__ = ["LONGEST_LINE", "Record", "RecordReader", "Row"]

LONGEST_LINE = 1 << 20  # bytes
MOST_COLUMNS = 10_000  # of a record, so that no first one asks for more memory than there is

_FORMATS = ("auto", "jsonl", "csv")
_DELIMITERS = ",\t;|"
_MISSING_WORDS = frozenset({"", "-", "na", "n/a", "none", "null"})  # "nan" is not among them: live, it is a fault
_TRUTH = {"true": 1.0, "false": 0.0}
_NUMBERS = frozenset({int, float, bool})
_WORDS: dict[type, str] = {list: "a list", dict: "an object"}
_UTF8_MARK = b"\xef\xbb\xbf"


class Record(NamedTuple):
    """What a source hands out: the place of a record, unique within the source, and its line or its fields."""

    position: str
    data: bytes | dict[str, Any]

    @property
    def text(self) -> str:
        """The record for people to read, at most a thousand characters of it."""
        if isinstance(self.data, bytes):
            return self.data[:1000].decode("utf-8", "backslashreplace")
        return str({name: _text(value) if isinstance(value, bytes) else value for name, value in self.data.items()})[
            :1000
        ]


class Row(NamedTuple):
    """A record as numbers: NaN where a field is missing; its time in seconds since 1970, its key and id if asked."""

    values: list[float]
    time: float | None
    key: str | None
    id: str | None


class _BadRecordError(ValueError):
    """Raised within the reader for a record that cannot be used; the message is the reason."""


class RecordReader:
    """Reads one record after the other.

    The first good record settles what is not given: the format, the time (a field with a name like "timestamp" and
    what looks like a time in it), and the columns (all fields that are numbers or booleans, without time, key and id).
    Fields of nested objects have names with dots ("cpu.user"). Missing fields and nulls are NaN, other fields ignored.

    Lines of CSV begin with a header, or are all numbers, in which case columns are called "column_1" and so on. A
    header that comes again, as at the start of a new log file, may have its columns in another order; where it lacks
    one that is used, records are bad until it is back.

    Parameters
    ----------
    format : {"auto", "jsonl", "csv"}, default="auto"
        What lines hold. Records that are fields already do not need it.
    columns : sequence of str, optional
        The fields to use, in this order. Named here, text that reads as a number counts as one in JSON, too.
    time, key, id : str, optional
        The fields that hold the time, the name of the stream that a record belongs to, and the record's own name.

    Attributes
    ----------
    names : list of str
        The columns, once they are known.
    time : str or None
        The field of the time, once it is known.
    skipped : dict
        The other fields of the first good record, each with the reason in words.

    Examples
    --------
    >>> reader = RecordReader()
    >>> reader.parse(Record("1", b'{"ts": "1970-01-01T00:01:00Z", "host": "a", "cpu": {"user": 7, "idle": 93}}'))
    Row(values=[7.0, 93.0], time=60.0, key=None, id=None)
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
        key: str | None = None,
        id: str | None = None,
    ) -> None:
        if format not in _FORMATS:
            raise ValueError(f"format must be one of {', '.join(_FORMATS)}; got {format!r}")
        self.format = format
        self.names = [] if columns is None else list(columns)
        self.time, self.key, self.id = time, key, id
        self.skipped: dict[str, str] = {}
        self._named = columns is not None
        self._settled = False
        self._header: list[str] = []
        self._delimiter = ","
        self._prepare()

    def parse(self, record: Record) -> Row | str | None:
        """The row that a record holds, or the reason why it is bad; None for a header and for a blank line."""
        data = record.data
        try:
            if not isinstance(data, bytes):
                return self._of_fields(data)
            if len(data) > LONGEST_LINE:
                return f"the line is longer than {LONGEST_LINE:,} bytes"
            return self._of_line(data)
        except _BadRecordError as reason:
            return str(reason)

    def state(self) -> dict[str, Any]:
        """All that the reader has learned, as a value that JSON can hold."""
        return {
            "format": self.format,
            "names": list(self.names),
            "time": self.time,
            "key": self.key,
            "id": self.id,
            "skipped": dict(self.skipped),
            "named": self._named,
            "settled": self._settled,
            "header": list(self._header),
            "delimiter": self._delimiter,
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """The reader that had this `state`."""
        reader = cls()
        reader._restore(state)
        return reader

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Be what the reader was that had this `state`."""
        self.format, self.names, self.skipped = state["format"], list(state["names"]), dict(state["skipped"])
        self.time, self.key, self.id = state["time"], state["key"], state["id"]
        self._named, self._settled = state["named"], state["settled"]
        self._header, self._delimiter = list(state["header"]), state["delimiter"]
        self._prepare()

    def _prepare(self) -> None:
        """Make ready what every record needs."""
        names = list(self.names)
        self._values_of: Callable[[Mapping[str, Any]], Sequence[Any]] = (
            itemgetter(*names) if len(names) > 1 else lambda fields: [fields[name] for name in names]
        )
        needed = dict.fromkeys([*names, *(name for name in (self.time, self.key) if name is not None)])
        self._gone = [name for name in needed if name not in self._header]

    # Rows

    def _row(self, fields: Mapping[str, Any], of_text: bool) -> Row:
        """The row of fields by name; `of_text` says whether text that reads as a number counts as one."""
        try:
            values = self._values_of(fields)
        except KeyError:
            values = [_found(fields, name) for name in self.names]
        return Row(
            self._numbers(values, of_text),
            None if self.time is None else _moment(self.time, _found(fields, self.time)),
            None if self.key is None else _label(self.key, _found(fields, self.key), needed=True),
            None if self.id is None else _label(self.id, _found(fields, self.id), needed=False),
        )

    def _numbers(self, values: Sequence[Any], of_text: bool) -> list[float]:
        """The values of the columns as numbers: all at once as a rule, one by one where some are not what they seem."""
        if _NUMBERS.issuperset(map(type, values)):
            if math.isfinite(sum(values)):
                return list(map(float, values))
        elif of_text:
            numbers = _all_numbers(values)
            if numbers is not None and math.isfinite(sum(numbers)):
                return numbers
        return [_number(name, value, of_text) for name, value in zip(self.names, values, strict=True)]

    def _settling_row(self, fields: Mapping[str, Any], of_text: bool, format: str) -> Row:
        """The row of fields by name; the first good one settles what is still open."""
        if self._settled:
            return self._row(fields, of_text)
        before = self.state()
        try:
            self._settle(_flat(fields), of_text)
            row = self._row(fields, of_text)
        except _BadRecordError:
            self._restore(before)
            raise
        self.format, self._settled = format, True
        return row

    def _settle(self, fields: dict[str, Any], of_text: bool) -> None:
        """Choose the time and the columns by what is in a record."""
        if self._named and not any(name in fields for name in self.names):
            raise _BadRecordError(f"it has none of the columns {in_words(self.names)}, but {in_words(fields)}")
        if self.time is None:
            free = (name for name in fields if name not in (self.key, self.id, *self.names))
            self.time = next((name for name in free if looks_like_time(name, fields[name])), None)
        kinds = {name: _kind(value, of_text) for name, value in fields.items()}
        if not self._named:
            roles = (self.time, self.key, self.id)
            self.names = [name for name, kind in kinds.items() if kind == "a number" and name not in roles]
        if not self.names:
            raise _BadRecordError("no field is a number")
        if len(self.names) > MOST_COLUMNS:
            raise _BadRecordError(
                f"it has {len(self.names):,} columns of numbers, and at most {MOST_COLUMNS:,} can be used"
            )
        others = {name: kind for name, kind in kinds.items() if name not in (*self.names, self.time, self.key, self.id)}
        self.skipped = {name: "not asked for" if kind == "a number" else kind for name, kind in others.items()}
        self._prepare()

    def _of_fields(self, fields: dict[str, Any]) -> Row:
        """The row of fields that a source has taken apart; one field that holds a JSON object stands for that."""
        texts = {name: _text(value) if isinstance(value, bytes) else value for name, value in fields.items()}
        if len(texts) == 1:
            [text] = texts.values()
            if isinstance(text, str) and text.lstrip().startswith("{"):
                return self._settling_row(_json_object(text.encode()), self._named, self.format)
        return self._settling_row(texts, True, self.format)

    # Lines

    def _of_line(self, line: bytes) -> Row | None:
        """The row of a line; None for a header and for a blank line."""
        if self.format == "csv":
            return self._of_csv(line)
        if self._settled:
            return self._row(_json_object(line), self._named) if not line.isspace() and line else None
        line = line.removeprefix(_UTF8_MARK).strip()
        if self.format == "jsonl" or line.startswith(b"{"):
            return self._settling_row(_json_object(line), self._named, "jsonl") if line else None
        return self._of_csv(line)

    def _of_csv(self, line: bytes) -> Row | None:
        """The row of a line of CSV; None for a header and for a blank line."""
        text = _decoded(line.removeprefix(_UTF8_MARK)).rstrip("\r")
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
            if not self._settled and self._can_be_header(text):
                self._first_of_csv(text)  # what was taken for the header may have been something else
            raise

    def _of_cells(self, cells: list[str]) -> Row:
        """The row of cells in the order of the header."""
        if self._gone:
            raise _BadRecordError(f"the header has no column {in_words(self._gone)}")
        if len(cells) != len(self._header):
            raise _BadRecordError(f"it has {len(cells)} fields where the header has {len(self._header)}")
        return self._settling_row(dict(zip(self._header, cells, strict=True)), True, "csv")

    def _first_of_csv(self, text: str) -> Row | None:
        """Take a line for the header; a line of nothing but numbers has none above it and is a row already."""
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
            raise _BadRecordError("it is no JSON object" if self.format == "auto" else "there was no header before it")
        self._use_header(cells, delimiter)
        return None

    def _can_be_header(self, text: str) -> bool:
        """Whether a line may be the first header."""
        cells = _cells(text, max(_DELIMITERS, key=text.count))
        return all(cell.isprintable() and _kind(cell, True) in {"text", "empty"} for cell in cells)

    def _is_header(self, cells: list[str]) -> bool:
        """Whether cells are the header once more, with its columns as they were, reordered, or changed."""
        names = _column_names(cells)
        if names == self._header:
            return True
        if len(set(names)) < len(names) or any(_kind(cell, True) != "text" for cell in cells):
            return False
        kept = [name for name in self._header if name in names]
        return bool(kept) and (2 * len(kept) >= len(self._header) or set(self.names) <= set(names))

    def _use_header(self, cells: list[str], delimiter: str | None = None) -> None:
        """From now on, columns are in this order."""
        names = _column_names(cells)
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise _BadRecordError(f"the header has more than one column {in_words(twice)}")
        self._header, self._delimiter = names, delimiter or self._delimiter
        self._prepare()


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields, those of objects within under names with dots."""
    try:
        return dict(flattened(fields))
    except ValueError as problem:
        raise _BadRecordError(str(problem)) from None


def _json_object(text: bytes) -> dict[str, Any]:
    """The object that a text in JSON is."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        fields = _lenient_json(text, str(problem))
    if type(fields) is not dict:
        raise _BadRecordError("it is JSON, but no object")
    return fields


def _lenient_json(text: bytes, problem: str) -> Any:
    """JSON that also has NaN, Infinity or numbers beyond all bounds, which is bad only where they are used."""
    whole = _decoded(text.removeprefix(_UTF8_MARK))
    if "\\u" in whole:  # it may be half a character, which cannot be written out again
        raise _BadRecordError(f"it is no JSON: {problem}")
    try:
        return json.loads(whole, parse_int=_integer)
    except (ValueError, RecursionError):
        raise _BadRecordError(f"it is no JSON: {problem}") from None


def _integer(digits: str) -> int | float:
    """A whole number, rounded where it is very long."""
    return int(digits) if len(digits) < 20 else float(digits)


def _decoded(line: bytes) -> str:
    """A line as text."""
    try:
        return line.decode()
    except UnicodeDecodeError as problem:
        raise _BadRecordError(f"byte {problem.start + 1} is not UTF-8") from None


def _cells(text: str, delimiter: str) -> list[str]:
    """The fields of a line of CSV."""
    try:
        return next(csv.reader((text,), delimiter=delimiter, strict=True))
    except csv.Error as problem:
        raise _BadRecordError(f"it is no CSV: {problem}") from None


def _column_names(cells: list[str]) -> list[str]:
    """The names in a header; by their place where they are empty."""
    return [cell.strip() or f"column_{place}" for place, cell in enumerate(cells, 1)]


def _found(fields: Mapping[str, Any], name: str) -> Any:
    """A field, also of an object within, by its name with dots; None if it is not there."""
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
    """What is in a field, in words."""
    if value is None:
        return "empty"
    if not isinstance(value, str):
        return "a number" if type(value) in _NUMBERS else _WORDS.get(type(value), "not UTF-8")
    if of_text and _number_in(value) is not None:
        return "a number"
    return "empty" if of_text and value.strip().lower() in _MISSING_WORDS else "text"


def _number(name: str, value: Any, of_text: bool) -> float:
    """The number in a field, NaN if there is none; raise for anything else."""
    if value is None:
        return math.nan
    number = value if type(value) in _NUMBERS else None
    if of_text and isinstance(value, str):
        number = _number_in(value)
        if number is None and value.strip().lower() in _MISSING_WORDS:
            return math.nan
    if number is None:
        raise _BadRecordError(f"{_quoted(name)} is {_kind(value, of_text)}: {_shortened(value)}")
    if not math.isfinite(number):
        raise _BadRecordError(f"{_quoted(name)} is not finite: {_shortened(value)}")
    return float(number)


def _all_numbers(texts: Sequence[Any]) -> list[float] | None:
    """All texts as numbers at once, or None where some need a closer look."""
    try:
        return None if "_" in "".join(texts) else list(map(float, texts))
    except (TypeError, ValueError):
        return None


def _number_in(text: str) -> float | None:
    """The number that a text reads as, or None."""
    try:
        number = float(text)
    except ValueError:
        return _TRUTH.get(text.strip().lower())
    return None if "_" in text else number


def _moment(name: str, value: Any) -> float:
    """The seconds of the time in a field."""
    if value is None or value == "":
        raise _BadRecordError(f"the time {_quoted(name)} is missing")
    try:
        return seconds(value)
    except ValueError:
        raise _BadRecordError(f"{_quoted(name)} is no time: {_shortened(value)}") from None


def _label(name: str, value: Any, needed: bool) -> str | None:
    """The text of a field that names something."""
    if isinstance(value, str) and value:
        return value
    if type(value) is float and abs(value) >= 1 << 63:
        raise _BadRecordError(f"{_quoted(name)} is too long a number to name anything: write it as text")
    if type(value) in _NUMBERS:
        return str(value)
    if value is None or value == "":
        if needed:
            raise _BadRecordError(f"the key {_quoted(name)} is missing")
        return None
    raise _BadRecordError(f"{_quoted(name)} is {_kind(value, False)}: {_shortened(value)}")


def _text(value: bytes) -> str | bytes:
    """Bytes as text, or as they are if they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _quoted(name: str) -> str:
    """A name between quotes."""
    return in_words([name])


def _shortened(value: Any) -> str:
    """The beginning of a value, for a message."""
    try:
        text = str(value)
    except RecursionError:  # deeper than anybody reads
        text = "…"
    return text if len(text) <= 40 else f"{text[:39]}…"
