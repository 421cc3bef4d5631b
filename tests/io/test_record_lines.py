"""Whatever comes down the line, a reader gives a row or a reason, and lines are whole however they are torn."""

import json
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest.io.records import LONGEST_LINE, Record, RecordReader
from polyaforest.io.sources._lines import Lines
from polyaforest.tables.rows import StreamRow

pytestmark = pytest.mark.property

NAMES = st.sampled_from(["a", "b", "a.b", "ts", "host", "é", ""])
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70) | st.booleans()
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**25), 10**25) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)
PYTHON_JSON = OBJECTS.map(lambda fields: json.dumps(fields).encode())
CSV = st.lists(st.sampled_from(["a", "b", "ts", "1", "2.5", "", "nan", '"', "x_1", "1_0", "\x00", "\r", "é"])).map(
    lambda cells: ",".join(cells).encode()
)
LINES = st.binary(max_size=40) | PYTHON_JSON | CSV
RECORDS = LINES | st.dictionaries(NAMES, st.binary(max_size=6) | st.just(b'{"a": 1}'), max_size=3)
READERS = st.fixed_dictionaries(
    {"format": st.sampled_from(["auto", "jsonl", "csv"])},
    optional={
        "columns": st.lists(NAMES, min_size=1, max_size=2, unique=True),
        "time": st.just("ts"),
        "key": st.just("host"),
        "id": NAMES,
    },
)


@given(READERS, st.lists(RECORDS, max_size=12), st.integers(0, 12))
def test_any_record_gives_row_or_reason_and_restart_changes_nothing(options, datas, stop):
    reader, other = RecordReader(**options), RecordReader(**options)
    for place, data in enumerate(datas):
        if place == stop:
            other = RecordReader.of_state(orjson.loads(orjson.dumps(other.state())))
        inferred = reader.names, reader.time, reader.format
        result = reader.parse(Record(str(place), data))
        assert repr(other.parse(Record(str(place), data))) == repr(result)
        if isinstance(result, StreamRow):
            assert len(result.values) == len(reader.names) > 0
            assert not any(map(math.isinf, result.values))
            assert all(type(value) is float for value in result.values)
            assert (result.time is None) == (reader.time is None)
            assert (result.key is None) == (reader.key is None)
            orjson.dumps(list(result))  # can be written out again
        else:
            assert result is None or (isinstance(result, str) and result)
            assert inferred == (reader.names, reader.time, reader.format)
        if "columns" in options:
            assert reader.names == options["columns"]


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1), NUMBERS, min_size=1))
def test_numbers_survive_round_trip(fields):
    row = RecordReader(columns=list(fields)).parse(Record("1", json.dumps(fields).encode()))
    assert isinstance(row, StreamRow), row
    assert row.values == [float(value) for value in fields.values()]


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_reassembled_from_any_pieces(lines, data):
    whole = b"\n".join(lines)
    torn = Lines()
    while whole:
        cut = data.draw(st.integers(1, len(whole)))
        torn.feed(whole[:cut])
        whole = whole[cut:]
    torn.finish()
    expected = lines[:-1] if lines and not lines[-1] else lines
    assert [line for line, _ in torn.ready] == expected
    assert sum(size for _, size in torn.ready) == len(b"\n".join(lines))


@given(st.integers(-2, 3), st.integers(50_000, 3_000_000), st.booleans())
def test_overlong_line_is_truncated(over, step, has_newline):
    long = b"x" * (LONGEST_LINE + over) + b"\n" * has_newline
    lines = Lines()
    for start in range(0, len(long), step):
        lines.feed(long[start : start + step])
    lines.finish()
    [(line, size)] = lines.ready
    assert len(line) == min(LONGEST_LINE + over, LONGEST_LINE + 1)
    assert size == len(long)
