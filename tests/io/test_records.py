"""Parsing of live records: values, reasons for invalid records, and what the first valid record determines."""

import math
import pickle

import orjson
import pytest

from polyaforest.io._conventions import seconds
from polyaforest.io.records import LONGEST_LINE, Record, RecordReader
from polyaforest.tables.rows import StreamRow


def parse(reader, *lines):
    return [reader.parse(Record(str(place), line)) for place, line in enumerate(lines, 1)]


def same(row, values, **others):
    expected = StreamRow(values, **({"time": None, "key": None, "id": None} | others))
    return repr(row) == repr(expected)  # NaN is not equal to itself


def test_first_record_determines_format_time_and_columns():
    reader = RecordReader(key="host", id="request")
    line = b'{"@timestamp": "2024-05-01T00:00:00Z", "host": "a", "request": 7, "cpu": {"user": 1, "io": {"wait": 2.5}},'
    line += b' "up": true, "tags": ["x"], "zone": "eu", "count": "12"}'
    [row] = parse(reader, line)
    assert same(row, [1.0, 2.5, 1.0], time=1714521600.0, key="a", id="7")
    assert reader.names == ["cpu.user", "cpu.io.wait", "up"]
    assert (reader.format, reader.time) == ("jsonl", "@timestamp")
    assert reader.skipped == {"tags": "a list", "zone": "text", "count": "text"}


def test_fields_that_repeat_the_time_are_no_columns():
    reader = RecordReader()
    rows = parse(
        reader,
        b"year,month,day,hour,time_hour,epoch_ms,temp,day_rate",
        b"2013,1,31,20,2013-02-01T01:00:00Z,1359680400000,39.02,1",
    )
    assert same(rows[1], [20.0, 39.02, 1.0], time=1359680400.0)
    assert (reader.time, reader.names) == ("time_hour", ["hour", "temp", "day_rate"])
    assert reader.skipped == {**dict.fromkeys(["year", "month", "day"], "part of the time"), "epoch_ms": "another time"}
    other = RecordReader()  # the same names, but not the same time
    parse(other, b'{"time": "2013-02-01", "year": 1998, "day": 17, "x": 2}')
    assert other.names == ["year", "day", "x"]
    chosen = RecordReader(columns=["month"])
    assert same(parse(chosen, b'{"time": "2013-02-01", "month": 2}')[0], [2.0], time=1359676800.0)


def test_missing_fields_and_nulls_are_nan_and_other_fields_ignored():
    rows = parse(RecordReader(), b'{"a": 1, "b": 2}', b'{"b": null, "c": "new", "a": 3}', b'{"x": 1}')
    assert same(rows[1], [3.0, math.nan])
    assert same(rows[2], [math.nan, math.nan])


def test_named_columns_keep_their_order_and_parse_text():
    reader = RecordReader(columns=["b", "a.x", "dotted.name"])
    [row] = parse(reader, b'{"a": {"x": "4"}, "b": "true", "c": 5, "dotted.name": " 1e3 "}')
    assert same(row, [1.0, 4.0, 1000.0])
    assert reader.names == ["b", "a.x", "dotted.name"]
    assert reader.skipped == {"c": "not selected"}


def test_reports_fields_of_first_record_without_named_columns():
    [reason] = parse(RecordReader(columns=["cpu"]), b'{"CPU": 1}')
    assert "'cpu'" in reason
    assert "'CPU'" in reason


GOOD = b'{"ts": 1700000000, "host": "a", "a": 1.5, "b": 2}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"junk", "invalid JSON"),
        (b'{"a": 1', "invalid JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"3", "not a JSON object"),
        (b'{"ts": 1, "host": "a", "a": "high", "b": 2}', "'a' is text: high"),
        (b'{"ts": 1, "host": "a", "a": "1.5", "b": 2}', "'a' is text: 1.5"),
        (b'{"ts": 1, "host": "a", "a": [1], "b": 2}', "'a' is a list"),
        (b'{"ts": 1, "host": "a", "a": {"x": 1}, "b": 2}', "'a' is an object"),
        (b'{"ts": 1, "host": "a", "a": NaN, "b": 2}', "'a' is not finite: nan"),
        (b'{"ts": 1, "host": "a", "a": 1, "b": -Infinity}', "'b' is not finite: -inf"),
        (b'{"ts": 1, "host": "a", "a": 1, "b": 1e400}', "'b' is not finite: inf"),
        (b'{"ts": 1, "host": "a", "a": 1' + b"0" * 400 + b', "b": 1}', "'a' is not finite: inf"),
        (b'{"ts": 1, "host": "\xff", "a": 1, "b": 1}', "byte 20 is not UTF-8"),
        (b'{"ts": 1, "host": "\\ud800", "a": 1, "b": 1}', "invalid JSON"),
        (b"\x00\xfe\x80" * 20, "not UTF-8"),
        (b'{"ts": "noon", "host": "a", "a": 1, "b": 1}', "'ts' is not a time: noon"),
        (b'{"ts": true, "host": "a", "a": 1, "b": 1}', "'ts' is not a time: True"),
        (b'{"host": "a", "a": 1, "b": 1}', "time 'ts' is missing"),
        (b'{"ts": 1, "a": 1, "b": 1}', "key 'host' is missing"),
        (b'{"ts": 1, "host": "", "a": 1, "b": 1}', "key 'host' is missing"),
        (b'{"ts": 1, "host": ["a"], "a": 1, "b": 1}', "'host' is a list"),
        (b'{"pad": "' + b"x" * LONGEST_LINE + b'", "ts": 1, "host": "a", "a": 1, "b": 1}', "longer than 1,048,576"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"a":' * 100_000, "invalid JSON"),
    ],
)
def test_invalid_record_has_reason_and_does_not_affect_the_next(line, reason):
    good, bad, again = parse(RecordReader(key="host"), GOOD, line, GOOD)
    assert reason in bad
    assert good == again == StreamRow([1.5, 2.0], 1700000000.0, "a", None)


def test_unused_fields_may_contain_anything():
    reader = RecordReader(columns=["a"])
    assert same(parse(reader, b'{"a": 1, "b": NaN, "c": [1e999, {}]}')[0], [1.0])


def test_ignores_blank_lines():
    for format in ("auto", "jsonl", "csv"):
        reader = RecordReader(format)
        assert parse(reader, b"", b" \r", b"\t") == [None] * 3
    assert parse(RecordReader(), GOOD, b"", b"  ")[1:] == [None, None]


def test_skips_byte_order_mark():
    assert same(parse(RecordReader(), b'\xef\xbb\xbf{"a": 1}')[0], [1.0])
    assert same(parse(RecordReader(), b"\xef\xbb\xbfa,b", b"1,2")[1], [1.0, 2.0])


def test_csv_parses_header_missing_values_quotes_and_booleans():
    reader = RecordReader(key="name")
    rows = parse(
        reader,
        b"time,name,a,b,note\r",
        b'2024-05-01 00:00:00,"x, y",1,true,hi\r',
        b"1714521601000,z,NA,,",
        b"1,z,1_0,0,",
    )
    assert rows[0] is None
    assert same(rows[1], [1.0, 1.0], time=1714521600.0, key="x, y")
    assert same(rows[2], [math.nan, math.nan], time=1714521601.0, key="z")
    assert rows[3] == "'a' is text: 1_0"
    assert (reader.format, reader.names, reader.skipped) == ("csv", ["a", "b"], {"note": "text"})


@pytest.mark.parametrize("delimiter", [b"\t", b";", b"|"])
def test_csv_infers_delimiter(delimiter):
    rows = parse(RecordReader(), delimiter.join([b"a", b"b"]), delimiter.join([b"1", b"2"]))
    assert same(rows[1], [1.0, 2.0])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1,2,3", "3 fields instead of 2"),
        (b"1", "1 fields instead of 2"),
        (b'1,"2', "invalid CSV"),
        (b"1,x", "'b' is text: x"),
        (b"1,nan", "'b' is not finite: nan"),
        (b"1,1e400", "'b' is not finite: 1e400"),
        (b"1,\xff", "byte 3 is not UTF-8"),
        (b"x,y", "'a' is text: x"),
        (b"b,n/a", "'a' is text: b"),
    ],
)
def test_invalid_csv_line_has_reason(line, reason):
    _, good, bad, after = parse(RecordReader(), b"a,b", b"1,2", line, b"3,4")
    assert same(good, [1.0, 2.0])
    assert reason in bad
    assert same(after, [3.0, 4.0])


def test_parses_decimal_commas_with_semicolon_delimiter():
    reader = RecordReader(key="shop", id="number")
    rows = parse(
        reader, b"shop;number;price;count", b"1,5;2,5;-3,25;7", b"1,5;x; 12,5 ;1.5", b"1,5;x;1.234,5;7", b"1;x;,5;7"
    )
    assert rows[0] is None
    assert same(rows[1], [-3.25, 7.0], key="1,5", id="2,5")
    assert same(rows[2], [12.5, 1.5], key="1,5", id="x")
    assert rows[3:] == ["'price' is text: 1.234,5", "'price' is text: ,5"]
    reader = RecordReader()
    assert same(parse(reader, b"a,b", b'"1,5",2')[1], [2.0])
    assert reader.skipped == {"a": "text"}


def test_repeated_header_may_reorder_columns():
    reader = RecordReader(time="t")
    lines = [b"t,a,b", b"1,2,3", b"t,a,b", b"b,t,new,a", b"3,1,x,2", b"t,b", b"1,3", b"t,a,b", b"1,2,3"]
    rows = parse(reader, *lines)
    assert [row is None for row in rows] == [line.startswith((b"t", b"b")) for line in lines]
    assert rows[1] == rows[4] == rows[8] == StreamRow([2.0, 3.0], 1.0, None, None)
    assert rows[6] == "header lacks the column 'a'"


def test_numeric_csv_needs_no_header():
    reader = RecordReader()
    assert same(parse(reader, b"1,2")[0], [1.0, 2.0])
    assert reader.names == ["column_1", "column_2"]
    assert "lacks the column 'cpu'" in parse(RecordReader(columns=["cpu"]), b"1,2")[0]


def test_header_with_duplicate_columns_is_invalid():
    assert "duplicate columns in the header: 'a'" in parse(RecordReader(), b"a,a")[0]


def test_text_before_first_record_does_not_determine_format():
    reader = RecordReader()
    first, row = parse(reader, b"Starting up, please wait", b'{"a": 1}')
    assert first is None  # it might have been a header
    assert same(row, [1.0])
    *_, row = parse(RecordReader(), b"Starting up, please wait", b"12 items found", b"a,b", b"1,2")
    assert same(row, [1.0, 2.0])


def test_consecutive_text_rows_are_invalid_not_headers():
    _, *reasons = parse(RecordReader(), b"name,city", b"ann,rome", b"bob,oslo")
    assert reasons == ["no numeric field"] * 2


def test_parses_numbers_in_fields_of_a_source():
    reader = RecordReader(key="host")
    fields = {"host": b"007", "ts": b"1700000000000", "a": b"1.5", "b": b"x", "c": b"\xff"}
    assert same(parse(reader, fields)[0], [1.5], time=1.7e9, key="007")
    assert reader.names == ["a"]
    assert parse(reader, fields | {"a": b"\xff"})[0].startswith("'a' is not UTF-8")
    assert parse(reader, fields | {"a": b"inf"})[0] == "'a' is not finite: inf"
    assert parse(reader, fields | {"host": b"\xff"})[0].startswith("'host' is not UTF-8")
    assert same(parse(reader, {"host": b"1", "ts": b"1"})[0], [math.nan], time=1.0, key="1")


@pytest.mark.parametrize("name", ["data", "json", "anything"])
def test_single_field_with_json_object_is_parsed(name):
    reader = RecordReader()
    assert same(parse(reader, {name: b' {"a": 1, "b": "2"}'})[0], [1.0])
    assert "invalid JSON" in parse(reader, {name: b'{"a": '})[0]


def test_reader_continues_from_its_state():
    for lines in ([b"t,a,b", b"1,2,3", b"b,a,t", b"3,2,1"], [GOOD, b'{"ts": 5, "a": 1, "b": 7}'], [b"x;y", b"1;2"]):
        whole = parse(RecordReader(time="t" if b"t" in lines[0][:1] else None), *lines)
        for stop in range(len(lines)):
            reader = RecordReader(time="t" if b"t" in lines[0][:1] else None)
            first = parse(reader, *lines[:stop])
            state = orjson.loads(orjson.dumps(reader.state()))
            assert first + parse(RecordReader.of_state(state), *lines[stop:]) == whole


def test_record_has_readable_text():
    assert Record("1", b"a\xff").text == "a\\xff"
    assert Record("1", {"a": b"1", "b": b"\xff"}).text == "{'a': '1', 'b': b'\\xff'}"
    assert len(Record("1", b"x" * 10_000).text) == 1000
    assert pickle.loads(pickle.dumps(Record("1", b"a"))) == Record("1", b"a")


def test_rejects_unknown_format():
    with pytest.raises(ValueError, match="one of auto, jsonl, csv; got 'xml'"):
        RecordReader("xml")


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2024-05-01", 1714521600.0),
        ("2024-05-01T02:00:00.250+02:00", 1714521600.25),
        ("2024-05-01T00:00:00,5Z", 1714521600.5),
        (1714521600, 1714521600.0),
        (1714521600250, 1714521600.25),
        (1714521600250000, 1714521600.25),
        ("1714521600250000000", 1714521600.25),
        (-5, -5.0),
    ],
)
def test_times_are_iso_or_numbers_since_1970(moment, expected):
    assert seconds(moment) == expected


@pytest.mark.parametrize("moment", ["", "noon", "2024-13-01", math.nan, math.inf, "1e400", None, True, [1]])
def test_rejects_invalid_times(moment):
    with pytest.raises(ValueError, match="not a time"):
        seconds(moment)


def test_deeply_nested_line_is_invalid_and_nothing_else():
    reader = RecordReader("jsonl", columns=["x"])
    deep = b'{"x": ' + b"[" * 1010 + b"]" * 1010 + b"}"
    assert "list" in reader.parse(Record("1", deep))


@pytest.mark.parametrize("key", ["1234567890123456789", "18446744073709551617"])
def test_key_is_exact_or_record_is_invalid(key):
    reader = RecordReader("jsonl", columns=["x"], key="k")
    for other in ("1", "NaN"):
        row = reader.parse(Record("1", f'{{"x": 1, "k": {key}, "y": {other}}}'.encode()))
        assert "too large for a numeric key" in row if isinstance(row, str) else row.key == key


def test_infers_times_under_compound_names():
    reader = RecordReader()
    [row] = parse(reader, b'{"humidity": 1, "time_hour": "2013-01-01T10:00:00Z", "temp": 39.0}')
    assert (reader.time, reader.names) == ("time_hour", ["humidity", "temp"])
    assert row.time == 1357034400.0
    reader = RecordReader()
    parse(reader, b'{"time_ms": 35.5, "epoch_ms": 1357034400000, "temp": 39.0}')
    assert (reader.time, reader.names) == ("epoch_ms", ["time_ms", "temp"])
