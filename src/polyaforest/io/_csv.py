"""Read CSV and TSV: parse blocks with polars, and blocks that polars rejects line by line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import NOT_UTF8, BlockReader, Rejected, RowBatch, TableSample, sample_of, shortened
from ._headers import is_data, names_of
from .blocks import BLOCK_BYTES, OpenedInput, after_last_line
from .errors import BadInput
from .reading import Interpretation, Reading

__all__ = ["CsvReader"]

Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.intp]

LONGEST_RECORD = 1 << 16  # bytes; a quote that is not closed within them is a typo
_QUOTE, _NEWLINE = ord('"'), ord("\n")
_ALL_BYTES = np.arange(256)
_DELIMITERS = ",;\t|"
_COMMENT = b"#"
_SEPARATOR_LINE = re.compile(rb'"?sep=([\t !#-~])"?\r?\n', re.IGNORECASE)
_SNIFFED_BYTES, _SNIFFED_LINES = 1 << 14, 20  # to infer the delimiter from


# ---- records ---------------------------------------------------------------------------------------------------------


def after_last_record(buffer: bytearray, n_bytes: int, comment: bytes = b"") -> int:
    """Return the length of the complete records in the first `n_bytes`; quoted cells may span lines, comments not."""
    end = after_last_line(buffer, n_bytes)
    if buffer.find(b'"', 0, end) < 0:
        return end
    characters = np.frombuffer(buffer, np.uint8, end)
    if not _quoted_newlines(characters, _quotes(characters)):
        return end
    lengths = [len(record) for record in records(bytes(buffer[:end]), comment, is_last=False)]
    return sum(lengths) + len(lengths)


def records(block: bytes, comment: bytes = b"", *, is_last: bool = True) -> list[bytes]:
    """Split a block into records without line ends; quotes in lines that begin with `comment` have no meaning.

    A quote that is never closed ends with its line, so that it cannot swallow the rest of the file. If more data may
    follow (`is_last` is False), the result stops before a record with an open quote.
    """
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found, at = [], 0
    while at < len(lines):
        n_lines = 1 if comment and lines[at].startswith(comment) else _lines_in_record(lines, at)
        if n_lines == 0 and not is_last:
            break
        n_lines = max(n_lines, 1)
        found.append(b"\n".join(lines[at : at + n_lines]) if n_lines > 1 else lines[at])
        at += n_lines
    return found


def _lines_in_record(lines: list[bytes], first: int) -> int:
    """Return the number of lines of a record: 1 if its quote stays open too long, 0 if the lines end first."""
    if lines[first].count(b'"') % 2 == 0:
        return 1
    length = len(lines[first]) + 1
    for at in range(first + 1, len(lines)):
        length += len(lines[at]) + 1
        if length > LONGEST_RECORD:
            return 1
        if lines[at].count(b'"') % 2:
            return at + 1 - first
    return 1 if length > LONGEST_RECORD else 0


def _quoted_newlines(characters: Bytes, quotes: Places) -> bool:
    """Return whether a line ends within quotes."""
    newlines = np.flatnonzero(characters == _NEWLINE)
    return bool((np.searchsorted(quotes, newlines) & 1).any())


def _quotes(characters: Bytes) -> Places:
    """Return the positions of quotes."""
    return np.flatnonzero(characters == _QUOTE)


# ---- fast path -------------------------------------------------------------------------------------------------------


def _is_plain(block: bytes) -> bool:
    """Return whether a block is UTF-8 with regular line ends, which polars can parse."""
    if b"\0" in block or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
        return False
    return block.isascii() or _decoded(block) is not None


def _decoded(text: bytes) -> str | None:
    """Return bytes as text, or None if they are not UTF-8."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_well_quoted(block: bytes, delimiter: bytes) -> bool:
    """Return whether all quotes enclose whole cells on one line."""
    characters = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    quotes = _quotes(characters)
    if len(quotes) % 2 or _quoted_newlines(characters, quotes):
        return False
    opens, closes = quotes[0::2], quotes[1::2]
    may_be_before = np.isin(_ALL_BYTES, [_QUOTE, _NEWLINE, ord(delimiter)])
    may_be_after = may_be_before | (ord("\r") == _ALL_BYTES)
    # index -1, before the first character, is the last one: a newline
    return bool(may_be_before[characters[opens - 1]].all() and may_be_after[characters[closes + 1]].all())


def _delimiters(characters: Bytes, delimiter: bytes) -> Places:
    """Return the positions of delimiters outside quotes."""
    places = np.flatnonzero(characters == ord(delimiter))
    quotes = _quotes(characters)
    return places[np.searchsorted(quotes, places) % 2 == 0] if len(quotes) else places


def _n_delimiters(line: bytes, delimiter: bytes) -> int:
    """Return the number of delimiters outside quotes."""
    return len(_delimiters(np.frombuffer(line, np.uint8), delimiter))


def _is_even(block: bytes, delimiter: bytes, n_cells: int) -> bool:
    """Return whether every line has `n_cells` cells; no line may end within quotes."""
    characters = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    ends, places = np.flatnonzero(characters == _NEWLINE), _delimiters(characters, delimiter)
    if len(places) != (n_cells - 1) * len(ends):
        return False
    if n_cells == 1:
        return True
    rows = places.reshape(len(ends), n_cells - 1)
    return bool((rows[:, -1] < ends).all() and (rows[1:, 0] > ends[:-1]).all())


class CsvReader(BlockReader):
    """Read CSV and TSV files."""

    fixed = True

    def __init__(
        self,
        opened: OpenedInput,
        delimiter: str | None = None,
        block_bytes: int = BLOCK_BYTES,
        reading: Reading | None = None,
    ) -> None:
        super().__init__(opened, self._after_last_record, block_bytes)
        reading = reading or Reading()
        start = _preamble(opened.peek(_SNIFFED_BYTES), delimiter, reading)
        opened.read(start.n_bytes)
        self._comment = start.comment
        self.delimiter = start.delimiter
        first = self._first_block()
        line = b"" if start.header else self._first_line(first)
        cells = self._header_cells(start.header or line)
        below = self._cells_below(first[len(line) :])
        is_header = not is_data(cells, below) if reading.header is None else reading.header
        self.has_header = bool(start.header) or is_header
        self.names = names_of(cells, self.has_header, self.name)
        self._held = [first[len(line) :] if self.has_header else first]
        self.interpretations += start.interpretations
        if not self.has_header and reading.header is None:
            self.interpretations.append(Interpretation("first line as data (no header)", ("--header",)))
        self._with_words: set[str] = set()  # columns with words such as NA or true, not numbers to polars

    def _after_last_record(self, buffer: bytearray, n_bytes: int) -> int:
        return after_last_record(buffer, n_bytes, self._comment)

    # -- the header

    def _first_block(self) -> bytes:
        """Return the first non-blank block, without leading blank lines."""
        for block in self._blocks:
            if stripped := re.sub(rb"\A(?:\r?\n)+", b"", block):
                return stripped
        raise BadInput(f"{self.name} is empty. It needs a header and rows of numbers.")

    def _first_line(self, block: bytes) -> bytes:
        """Return the first record with its line end; raise BadInput if it is not text."""
        record = records(block)[0]
        line = block[: len(record) + 1]
        start = np.frombuffer(line[:4096], np.uint8)
        is_control = (start < 32) & ~np.isin(start, [9, 10, 13])  # hardly any in text
        if b"\0" in line or is_control.mean() > 0.1:
            raise BadInput(
                f"{self.name} looks like a binary file of an unknown format. Supported are CSV, TSV, JSON, "
                "Parquet, Arrow, ORC, SQLite and Excel."
            )
        if b"\r" in record.rstrip(b"\r"):
            raise BadInput(f"{self.name} has carriage returns as line ends. Convert it first: tr '\\r' '\\n' < FILE")
        if _decoded(line) is None:
            raise BadInput(f"{self.name} is not UTF-8. Convert it first, for example: iconv -f LATIN1 -t UTF-8 FILE")
        return line

    def _header_cells(self, line: bytes) -> list[str]:
        """Return the cells of the first line."""
        cells = self._cells(line.rstrip(b"\r\n"))
        if isinstance(cells, str):
            raise BadInput(f"The first line of {self.name} cannot be parsed: {cells}. Content: {shortened(line)}")
        return cells

    def _cells_below(self, rest: bytes) -> list[str]:
        """Return the cells of the second line; [] if there is no such line, or it cannot be parsed."""
        below = self._without_comments(rest[:LONGEST_RECORD])[:1]
        cells = self._cells(below[0].rstrip(b"\r\n")) if below else []
        return [] if isinstance(cells, str) else cells

    # -- rows

    def _without_comments(self, block: bytes) -> list[bytes]:
        """Return the records of a block except comments."""
        found = records(block, self._comment)
        return [record for record in found if not record.startswith(self._comment)] if self._comment else found

    def sample(self) -> TableSample:
        """Return rows from across the file, with every cell as text."""
        sample = self._with_later_rows(sample_of(self._first_batches(None), len(self.names)))
        as_numbers = sample.frame.select(pl.all().cast(pl.Float64, strict=False).is_null() & pl.all().is_not_null())
        self._with_words = {column.name for column in as_numbers if column.any()}
        return sample

    def _parse(self, block: bytes, wanted: Mapping[str, Any] | None, number: int) -> RowBatch:
        wanted = {name: kind or pl.String for name, kind in (wanted or dict.fromkeys(self.names)).items()}
        if self._comment and (block.startswith(self._comment) or b"\n" + self._comment in block):
            block = b"".join(record + b"\n" for record in self._without_comments(block))
        batch = self._parse_block(block, wanted, number)
        return batch or self._parse_records(list(self._rows(records(block))), wanted, number)

    def _rows(self, found: list[bytes]) -> Iterator[bytes]:
        """Return the records that are rows; blank lines are rows only in a table of one column."""
        return iter(found) if len(self.names) == 1 else (record for record in found if record.strip(b"\r"))

    def _parse_block(self, block: bytes, wanted: Mapping[str, Any], number: int) -> RowBatch | None:
        """Parse a block with polars; return None if polars rejects it."""
        delimiter = self.delimiter.encode()
        quoted = b'"' in block
        if not block or not _is_plain(block) or (quoted and not _is_well_quoted(block, delimiter)):
            return None
        frame = self._read_csv(block, {**wanted, **dict.fromkeys(self._with_words & wanted.keys(), pl.String)}, quoted)
        if frame is None:
            frame = self._read_csv(block, dict.fromkeys(wanted, pl.String), quoted)
        if frame is None or not self._are_complete(frame, block):
            return None
        return RowBatch(frame, np.arange(number, number + len(frame)), [], lambda at: shortened(block.split(b"\n")[at]))

    def _are_complete(self, frame: pl.DataFrame, block: bytes) -> bool:
        """Return whether every row has the right number of cells.

        Polars pads short rows, and rejects long ones only if it reads all columns.
        """
        if len(frame.columns) == len(self.names) and not frame[self.names[-1]].null_count():
            return True
        return _is_even(block, self.delimiter.encode(), len(self.names))

    def _read_csv(self, block: bytes, wanted: Mapping[str, Any], quoted: bool) -> pl.DataFrame | None:
        """Return the wanted columns of a block, or None if polars rejects it."""
        places = {f"column_{at}": name for at, name in enumerate(self.names, 1)}
        schema = {place: wanted.get(name, pl.String) for place, name in places.items()}
        try:
            frame = pl.read_csv(
                block,
                has_header=False,
                separator=self.delimiter,
                quote_char='"' if quoted else None,
                schema=schema,
                columns=[place for place, name in places.items() if name in wanted],
            )
        except pl.exceptions.PolarsError:
            return None
        return frame.rename({place: places[place] for place in frame.columns})

    def _parse_records(self, rows: list[bytes], wanted: Mapping[str, Any], number: int) -> RowBatch:
        """Parse records one by one, with every cell as text."""
        good: list[list[str]] = []
        places: list[int] = []
        faults = []
        for at, record in enumerate(rows):
            cells = self._cells(record)
            if isinstance(cells, str):
                faults.append(Rejected(number + at, cells, shortened(record)))
            elif len(cells) != len(self.names):
                words = f"{len(cells)} cell{'s'[: len(cells) != 1]} instead of {len(self.names)}"
                faults.append(Rejected(number + at, words, shortened(record)))
            else:
                good.append(cells)
                places.append(at)
        columns = zip(self.names, zip(*good, strict=True), strict=True) if good else ((name, ()) for name in self.names)
        frame = pl.DataFrame({name: pl.Series(cells, dtype=pl.String) for name, cells in columns if name in wanted})
        return RowBatch(frame, number + np.array(places, np.int64), faults, lambda at: shortened(rows[places[at]]))

    def _cells(self, record: bytes) -> list[str] | str:
        """Return the cells of a record, or why it cannot be parsed."""
        if b"\0" in record:
            return "contains NUL bytes"
        text = _decoded(record)
        if text is None:
            return NOT_UTF8
        try:
            return next(csv.reader((text.removesuffix("\r"),), delimiter=self.delimiter, strict=True), [""]) or [""]
        except csv.Error as error:
            return "unbalanced quotes" if '"' in text else f"invalid CSV: {error}"


class _Preamble(NamedTuple):
    """The lines before the table, and what they determine.

    Attributes
    ----------
    n_bytes : int
        Length of these lines.
    delimiter : str
    comment : bytes
        Prefix of comment lines; empty for no comments.
    header : bytes
        The header, if it is the last comment.
    interpretations : list of Interpretation
    """

    n_bytes: int
    delimiter: str
    comment: bytes
    header: bytes
    interpretations: list[Interpretation]


def _preamble(start: bytes, delimiter: str | None, reading: Reading) -> _Preamble:
    """Infer the delimiter, and parse the lines before the table: a ``sep=;`` line of spreadsheets, and comments.

    Lines with # are comments if the file begins with one. The last comment is the header if it has as many cells as
    the rows.
    """
    interpretations = []
    mark = _COMMENT if reading.comment is None else reading.comment.encode()
    separator = _SEPARATOR_LINE.match(start)
    n_bytes = separator.end() if separator else 0
    if separator and delimiter is None:
        delimiter = separator[1].decode("ascii")
        interpretations.append(Interpretation(f"{delimiter!r} as the delimiter", ("--delimiter",)))
    comments = re.compile(rb"(?:[ \t\r]*\n|%s[^\n]*\n)*" % re.escape(mark)).match(start, n_bytes) if mark else None
    lines = [line for line in comments[0].split(b"\n") if line.startswith(mark)] if comments else []
    rest = start[comments.end() if comments else n_bytes :]
    if not comments or not lines or not rest:  # without rows, lines with # may be data, such as tags
        mark = b"" if reading.comment is None else mark
        return _Preamble(n_bytes, delimiter or _likely_delimiter(start[n_bytes:]), mark, b"", interpretations)
    delimiter = delimiter or _likely_delimiter(rest)
    if reading.comment is None:
        interpretations.append(Interpretation(f"lines with {mark.decode()} as comments", ("--comment",)))
    header = lines[-1].removeprefix(mark).strip()
    if reading.header is False or not _is_header_above(header, rest, delimiter):
        header = b""
    return _Preamble(comments.end(), delimiter, mark, header, interpretations)


def _is_header_above(line: bytes, rest: bytes, delimiter: str) -> bool:
    """Return whether a comment is the header of the rows below it."""
    rows = [record.rstrip(b"\r") for record in records(rest)[:2]]
    count = _n_delimiters(line, delimiter.encode())
    if not count or any(_n_delimiters(row, delimiter.encode()) != count for row in rows[:1]):
        return False
    texts = [_decoded(part) for part in (line, *rows)]
    if None in texts:
        return False
    header, *below = (next(csv.reader((text or "",), delimiter=delimiter), [""]) for text in texts)
    return not is_data(header, below[0]) and is_data(below[0], below[-1])


def _likely_delimiter(start: bytes) -> str:
    """Return the delimiter whose count is most consistent over the first lines; on ties, the most frequent one."""
    lines = [line for line in records(start) if line.strip()]
    first, others = lines[:1], lines[1:_SNIFFED_LINES]
    if len(lines) <= _SNIFFED_LINES and not start.endswith(b"\n"):
        others = others[:-1]  # it may be truncated

    def likeness(delimiter: str) -> tuple[int, int]:
        [count] = [_n_delimiters(line, delimiter.encode()) for line in first] or [0]
        return sum(_n_delimiters(line, delimiter.encode()) == count > 0 for line in others), count

    return max(_DELIMITERS, key=likeness)
