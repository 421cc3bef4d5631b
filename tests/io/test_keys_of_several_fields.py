"""Keys of several fields, and fields that appear after the first record."""

import json

import pytest

from polyaforest.io.records import Record, RecordReader


def parse(reader, **fields):
    return reader.parse(Record("1", json.dumps(fields).encode()))


def test_values_of_several_fields_are_one_key():
    reader = RecordReader(key=["region", "host"])
    assert parse(reader, region="eu", host="web-1", cpu=1.0).key == "eu/web-1"
    assert reader.names == ["cpu"]
    again = RecordReader.of_state(json.loads(json.dumps(reader.state())))
    assert parse(again, region="eu", host=7, cpu=2.0).key == "eu/7"


def test_keys_of_several_fields_are_unambiguous():
    pairs = [("a/b", "c"), ("a", "b/c"), ("a\\", "b/c"), ("a\\/b", "c"), ("a", "b\\/c"), ("a/b\\", "c")]
    keys = [parse(RecordReader(key=["x", "y"]), x=x, y=y, n=1).key for x, y in pairs]
    assert len(set(keys)) == len(pairs)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"x": "a", "n": 1}, "key 'y' is missing"), ({"x": "a" * 3000, "y": "b" * 3000, "n": 1}, "longer than 4,096")],
)
def test_bad_keys_of_several_fields_are_invalid(fields, words):
    reader = RecordReader(key=["x", "y"])
    parse(reader, x="a", y="b", n=1)
    assert words in parse(reader, **fields)


def test_csv_headers_need_all_fields_of_the_key():
    reader = RecordReader("csv", key=["x", "y"], columns=["n"])
    assert reader.parse(Record("1", b"x,y,n")) is None
    assert reader.parse(Record("2", b"a,b,1")).key == "a/b"


def test_fields_that_appear_later_are_counted():
    reader = RecordReader()
    parse(reader, time=1, cpu=1.0, note="x", disk={"free": 1})
    assert reader.late == {}
    for _ in range(3):
        parse(reader, time=2, cpu=1.0, memory=5.0)
    parse(reader, time=3, cpu=1.0, note="y", disk={"free": 2})
    assert reader.late == {"memory": 3}
    for i in range(1000):
        parse(reader, time=4, cpu=1.0, **{f"f{i}": 1})
    assert len(reader.late) == 100
