"""CSV and its relatives: whole blocks through polars, and the blocks that it refuses line by line."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import Batch, Rejected, Sample, sample_of, shortened
from ._blocks import BLOCK_BYTES, Opened, after_last_line, blocks
from ._cells import numbers
from ._errors import BadInput, in_words
from ._times import seconds

__all__ = ["CsvReader"]

Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.intp]

LONGEST_RECORD = 1 << 16  # a quote that is not closed within so many bytes is a slip of the pen
_QUOTE, _NEWLINE = ord('"'), ord("\n")
_ALL_BYTES = np.arange(256)
_DELIMITERS = ",;\t|"
_SNIFFED_BYTES, _SNIFFED_LINES = 1 << 14, 20  # what the delimiter is told from


# ---- records ---------------------------------------------------------------------------------------------------------


def after_last_record(buffer: bytearray, n_bytes: int) -> int:
    """How many of so many bytes are whole records: lines, and the lines that a quoted cell spans."""
    end = after_last_line(buffer, n_bytes)
    if buffer.find(b'"', 0, end) < 0:
        return end
    characters = np.frombuffer(buffer, np.uint8, end)
    if not _quoted_newlines(characters, _quotes(characters)):
        return end
    lengths = [len(record) for record in records(bytes(buffer[:end]), is_last=False)]
    return sum(lengths) + len(lengths)


def records(block: bytes, *, is_last: bool = True) -> list[bytes]:
    """The records of a block, without the ends of their lines.

    A quote that is never closed stays on its own line, so that it cannot swallow the rest of the file. Where more
    may follow (`is_last` is False), an open quote is not known to be one of these and ends what is given.
    """
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found, at = [], 0
    while at < len(lines):
        n_lines = _lines_in_record(lines, at)
        if n_lines == 0 and not is_last:
            break
        n_lines = max(n_lines, 1)
        found.append(b"\n".join(lines[at : at + n_lines]) if n_lines > 1 else lines[at])
        at += n_lines
    return found


def _lines_in_record(lines: list[bytes], first: int) -> int:
    """How many lines a record has: 1 too if its quote is not closed in good time, 0 if the lines end before that."""
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
    """Whether a line ends within quotes."""
    newlines = np.flatnonzero(characters == _NEWLINE)
    return bool((np.searchsorted(quotes, newlines) & 1).any())


def _quotes(characters: Bytes) -> Places:
    """Where the quotes are."""
    return np.flatnonzero(characters == _QUOTE)


# ---- the quick way ---------------------------------------------------------------------------------------------------


def _is_plain(block: bytes) -> bool:
    """Whether a block is text of whole lines that can be parsed without looking at each of them."""
    if b"\0" in block or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
        return False
    return block.isascii() or _decoded(block) is not None


def _decoded(text: bytes) -> str | None:
    """Bytes as text, or None if they are not UTF-8."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_well_quoted(block: bytes, delimiter: bytes) -> bool:
    """Whether all quotes enclose whole cells on one line."""
    characters = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    quotes = _quotes(characters)
    if len(quotes) % 2 or _quoted_newlines(characters, quotes):
        return False
    opens, closes = quotes[0::2], quotes[1::2]
    may_be_before = np.isin(_ALL_BYTES, [_QUOTE, _NEWLINE, ord(delimiter)])
    may_be_after = may_be_before | (ord("\r") == _ALL_BYTES)
    # before the first character is, so to say, the last one, which ends a line just as well
    return bool(may_be_before[characters[opens - 1]].all() and may_be_after[characters[closes + 1]].all())


def _delimiters(characters: Bytes, delimiter: bytes) -> Places:
    """Where delimiters stand outside of quotes."""
    places = np.flatnonzero(characters == ord(delimiter))
    quotes = _quotes(characters)
    return places[np.searchsorted(quotes, places) % 2 == 0] if len(quotes) else places


def _n_delimiters(line: bytes, delimiter: bytes) -> int:
    """How many delimiters stand outside of quotes."""
    return len(_delimiters(np.frombuffer(line, np.uint8), delimiter))


def _is_even(block: bytes, delimiter: bytes, n_cells: int) -> bool:
    """Whether every line has so many cells; no line may end within quotes."""
    characters = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    ends, places = np.flatnonzero(characters == _NEWLINE), _delimiters(characters, delimiter)
    if len(places) != (n_cells - 1) * len(ends):
        return False
    if n_cells == 1:
        return True
    rows = places.reshape(len(ends), n_cells - 1)
    return bool((rows[:, -1] < ends).all() and (rows[1:, 0] > ends[:-1]).all())


class CsvReader:
    """A file of lines with a delimiter between cells."""

    fixed = True

    def __init__(self, opened: Opened, delimiter: str | None = None, block_bytes: int = BLOCK_BYTES) -> None:
        self.name = opened.name
        self.is_file = opened.is_file
        self._opened = opened
        likely = _likely_delimiter(opened.peek(_SNIFFED_BYTES))
        self._blocks = blocks(opened, after_last_record, block_bytes)
        first = self._first_block()
        line = self._first_line(first)
        self._delimiter = delimiter or likely
        cells = self._header_cells(line)
        self.has_header = not _is_data(cells, self._cells_below(first[len(line) :]))
        self.names = _names(cells, self.has_header, self.name)
        self._held = [first[len(line) :] if self.has_header else first]
        self._wordy: set[str] = set()  # columns that polars would not read as numbers, for words such as NA or true

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    # -- the header

    def _first_block(self) -> bytes:
        """The first block that is not blank, without the blank lines at its start."""
        for block in self._blocks:
            if stripped := re.sub(rb"\A(?:\r?\n)+", b"", block):
                return stripped
        raise BadInput(f"{self.name} is empty. It needs a line of column names and rows of numbers below it.")

    def _first_line(self, block: bytes) -> bytes:
        """The first record with the end of its line; raise if it is not text."""
        record = records(block)[0]
        line = block[: len(record) + 1]
        if b"\0" in line or _control_share(line) > 0.1:
            raise BadInput(f"{self.name} is not text: it looks like a binary file. Give CSV, TSV, JSONL or Parquet.")
        if b"\r" in record.rstrip(b"\r"):
            raise BadInput(f"{self.name} has line ends of old Macs. Convert it first: tr '\\r' '\\n' < FILE")
        if _decoded(line) is None:
            raise BadInput(f"{self.name} is not UTF-8 text. Convert it first, such as: iconv -f LATIN1 -t UTF-8 FILE")
        return line

    def _header_cells(self, line: bytes) -> list[str]:
        """The cells of the first line."""
        cells = self._cells(line.rstrip(b"\r\n"))
        if isinstance(cells, str):
            raise BadInput(f"The first line of {self.name} cannot be read: {cells}. It reads: {shortened(line)}")
        return cells

    def _cells_below(self, rest: bytes) -> list[str]:
        """The cells of the line after the first one; none if there is none, or if it cannot be read."""
        below = records(rest[:LONGEST_RECORD])[:1]
        cells = self._cells(below[0].rstrip(b"\r\n")) if below else []
        return [] if isinstance(cells, str) else cells

    # -- rows

    def sample(self) -> Sample:
        """The first rows, with every cell as text."""
        wanted = dict.fromkeys(self.names, pl.String)
        sample = sample_of(self._batches(self._blocks_ahead(), wanted), len(self.names))
        as_numbers = sample.frame.select(pl.all().cast(pl.Float64, strict=False).is_null() & pl.all().is_not_null())
        self._wordy = {column.name for column in as_numbers if column.any()}
        return sample

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[Batch]:
        """All rows, block by block."""
        held, self._held = self._held, []
        return self._batches(chain(held, self._blocks), wanted)

    def _blocks_ahead(self) -> Iterator[bytes]:
        """The blocks from the first one, which are kept to be read again."""
        yield from self._held
        for block in self._blocks:
            self._held.append(block)
            yield block

    def _batches(self, blocks: Iterable[bytes], wanted: Mapping[str, Any]) -> Iterator[Batch]:
        """The rows of some blocks, from the first."""
        number = 1
        for block in blocks:
            batch = self._quickly(block, wanted, number)
            if batch is None:
                batch = self._carefully(list(self._rows(records(block))), wanted, number)
            number += batch.n_rows
            yield batch

    def _rows(self, found: list[bytes]) -> Iterator[bytes]:
        """The records that are rows: blank lines are none, unless a blank is all that a row has."""
        return iter(found) if len(self.names) == 1 else (record for record in found if record.strip(b"\r"))

    def _quickly(self, block: bytes, wanted: Mapping[str, Any], number: int) -> Batch | None:
        """A block through polars, or None if that would not do."""
        delimiter = self._delimiter.encode()
        quoted = b'"' in block
        if not block or not _is_plain(block) or (quoted and not _is_well_quoted(block, delimiter)):
            return None
        frame = self._parsed(block, {**wanted, **dict.fromkeys(self._wordy & wanted.keys(), pl.String)}, quoted)
        if frame is None:
            frame = self._parsed(block, dict.fromkeys(wanted, pl.String), quoted)
        if frame is None or not self._are_whole(frame, block):
            return None
        return Batch(frame, np.arange(number, number + len(frame)), [], lambda at: shortened(block.split(b"\n")[at]))

    def _are_whole(self, frame: pl.DataFrame, block: bytes) -> bool:
        """Whether no row was short or long.

        Polars fills up those that are too short, and refuses those that are too long only if it is to read all cells.
        """
        if len(frame.columns) == len(self.names) and not frame[self.names[-1]].null_count():
            return True
        return _is_even(block, self._delimiter.encode(), len(self.names))

    def _parsed(self, block: bytes, wanted: Mapping[str, Any], quoted: bool) -> pl.DataFrame | None:
        """The wanted columns of a block, or None if a cell or a row is not as expected."""
        places = {f"column_{at}": name for at, name in enumerate(self.names, 1)}
        schema = {place: wanted.get(name, pl.String) for place, name in places.items()}
        try:
            frame = pl.read_csv(
                block,
                has_header=False,
                separator=self._delimiter,
                quote_char='"' if quoted else None,
                schema=schema,
                columns=[place for place, name in places.items() if name in wanted],
            )
        except pl.exceptions.PolarsError:
            return None
        return frame.rename({place: places[place] for place in frame.columns})

    def _carefully(self, rows: list[bytes], wanted: Mapping[str, Any], number: int) -> Batch:
        """Records taken apart one by one, with every cell as text."""
        good: list[list[str]] = []
        places: list[int] = []
        faults = []
        for at, record in enumerate(rows):
            cells = self._cells(record)
            if isinstance(cells, str):
                faults.append(Rejected(number + at, cells, shortened(record)))
            elif len(cells) != len(self.names):
                faults.append(Rejected(number + at, self._ragged(len(cells)), shortened(record)))
            else:
                good.append(cells)
                places.append(at)
        columns = zip(self.names, zip(*good, strict=True), strict=True) if good else ((name, ()) for name in self.names)
        frame = pl.DataFrame({name: pl.Series(cells, dtype=pl.String) for name, cells in columns if name in wanted})
        return Batch(frame, number + np.array(places, np.int64), faults, lambda at: shortened(rows[places[at]]))

    def _cells(self, record: bytes) -> list[str] | str:
        """The cells of a record, or what is wrong with it."""
        if b"\0" in record:
            return "it holds NUL bytes, as binary data does"
        text = _decoded(record)
        if text is None:
            return "it is not UTF-8 text"
        try:
            return next(csv.reader((text.removesuffix("\r"),), delimiter=self._delimiter, strict=True), [""]) or [""]
        except csv.Error as error:
            return "its quotes do not match" if '"' in text else f"it is not CSV ({error})"

    def _ragged(self, n_cells: int) -> str:
        """What is wrong with a row of that many cells."""
        return f"it has {n_cells} cell{'s'[: n_cells != 1]} instead of {len(self.names)}"


def _control_share(line: bytes) -> float:
    """The share of control characters, of which text has next to none."""
    start = np.frombuffer(line[:4096], np.uint8)
    return float(np.mean((start < 32) & ~np.isin(start, [9, 10, 13])))


def _likely_delimiter(start: bytes) -> str:
    """The delimiter that most of the first lines have as often as the very first has, and that it has most of."""
    lines = [line for line in records(start) if line.strip()]
    first, others = lines[:1], lines[1:_SNIFFED_LINES]
    if len(lines) <= _SNIFFED_LINES and not start.endswith(b"\n"):
        others = others[:-1]  # it may be cut

    def likeness(delimiter: str) -> tuple[int, int]:
        [count] = [_n_delimiters(line, delimiter.encode()) for line in first] or [0]
        return sum(_n_delimiters(line, delimiter.encode()) == count > 0 for line in others), count

    return max(_DELIMITERS, key=likeness)


def _is_data(cells: list[str], below: list[str]) -> bool:
    """Return whether a first line is a row already, to go by it and the line below.

    A row has numbers or times, and a text in it does not stand above a number. Where it has texts too, numbers that
    count up one by one (years, percentiles) are names.
    """
    kinds, others = ([_kind(cell) for cell in line] for line in (cells, below))
    if not {"number", "time"} & set(kinds) or ("text", "number") in zip(kinds, others, strict=False):
        return False
    counted = [float(cell) for cell, kind in zip(cells, kinds, strict=True) if kind == "number"]
    counts_up = len(counted) > 1 and all(later - number == 1 for number, later in pairwise(counted))
    return not (counts_up and "text" in kinds)


def _kind(cell: str) -> str:
    """Return what is in a cell: a number, a time, a text, or nothing."""
    values, unread = numbers(pl.Series([cell], dtype=pl.String))
    if not unread[0]:
        return "nothing" if np.isnan(values[0]) else "number"
    try:
        seconds(cell)
    except ValueError:
        return "text"
    return "time"


def _names(cells: list[str], has_header: bool, where: str) -> list[str]:
    """The names of columns; raise if two are the same."""
    if not has_header:
        return [f"column_{at}" for at in range(1, len(cells) + 1)]
    names = [cell.strip() or f"column_{at}" for at, cell in enumerate(cells, 1)]
    twice = [name for name, n_times in Counter(names).items() if n_times > 1]
    if twice:
        raise BadInput(f"{where} has more than one column named {in_words(twice)}. Rename them in its first line.")
    return names
