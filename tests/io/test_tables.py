"""Whatever is written as a table is read back, whatever the blocks, and nothing but bad input is ever raised."""

import csv
import gzip
import io
import json
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from polyaforest.io import _csv, tables
from polyaforest.io.results import Results
from polyaforest.io.tables import BadInput, gather, open_table

pytestmark = pytest.mark.property

finite = st.floats(-1e100, 1e100)  # beyond that nothing can be measured, and rows are left out
block_sizes = st.sampled_from([64, 777, 1 << 23])
missing = st.sampled_from(["", "NA", "nan", "NaN", "null", "NULL", "-", "None", "n/a", " "])


@st.composite
def tables_of_floats(draw):
    """Rows of floats and None, with the names of their columns."""
    names = ["cpu", "mem, free", 'so "called"', "té"][: draw(st.integers(1, 4))]
    cells = st.none() | finite
    return names, draw(st.lists(st.tuples(*[cells] * len(names)), min_size=1, max_size=30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


def with_blocks(n_bytes):
    return patch.object(tables, "BLOCK_BYTES", n_bytes)


def assert_read_back(path, names, rows, n_bytes=1 << 23, chunk_rows=7, **options):
    expected = np.array(rows, float)
    with with_blocks(n_bytes):
        table = open_table([str(path)], columns=names, chunk_rows=chunk_rows, **options)
        chunks = list(table.chunks())
    assert [len(chunk.rows) for chunk in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
    assert_array_equal(np.concatenate([chunk.rows for chunk in chunks]), expected)
    assert_array_equal(np.concatenate([chunk.numbers for chunk in chunks]), np.arange(1, len(rows) + 1))
    assert (table.n_rows, table.n_rejected) == (len(rows), 0)


@given(
    tables_of_floats(),
    st.sampled_from(",;\t|"),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\ufeff"]),
    st.booleans(),
    missing,
    block_sizes,
)
@settings(max_examples=examples(100))
def test_csv_is_read_back(folder, table, delimiter, quoting, line_end, mark, packed, gap, n_bytes):
    names, rows = table
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=line_end)
    writer.writerows([names, *([gap if cell is None else repr(cell) for cell in row] for row in rows)])
    content = (mark + text.getvalue()).encode()
    path = folder / "table.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    assert_read_back(path, names, rows, n_bytes)


@given(tables_of_floats(), st.sampled_from(["csv", "tsv", "jsonl", "parquet"]), st.integers(1, 9), block_sizes)
@settings(max_examples=examples(60))
def test_written_results_are_read_back(folder, table, format, n_rows, n_bytes):
    names, rows = table
    path = folder / f"results.{format}"
    with Results(str(path)) as results:
        for start in range(0, len(rows), n_rows):
            columns = zip(*rows[start : start + n_rows], strict=True)
            results.write(dict(zip(names, columns, strict=True)))
    assert_read_back(path, names, rows, n_bytes)


@given(tables_of_floats(), block_sizes)
@settings(max_examples=examples(30))
def test_json_of_the_standard_library_is_read_back(folder, table, n_bytes):
    names, rows = table
    path = folder / "table.jsonl"
    nan = float("nan")
    objects = [{n: nan if v is None else v for n, v in zip(names, row, strict=True)} for row in rows]
    path.write_text("\n".join(map(json.dumps, objects)))
    assert_read_back(path, names, rows, n_bytes)


@given(tables_of_floats(), st.sampled_from([pl.Float64, pl.String]))
@settings(max_examples=examples(30))
def test_parquet_is_read_back(folder, table, kind):
    names, rows = table
    path = folder / "table.parquet"
    columns = zip(names, zip(*rows, strict=True), strict=True)
    pl.DataFrame({n: pl.Series(v, dtype=pl.Float64).cast(kind) for n, v in columns}).write_parquet(path)
    assert_read_back(path, names, rows)


# ---- any bytes -------------------------------------------------------------------------------------------------------

PIECES = [
    b"1",
    b"-2.5",
    b"x",
    b'"',
    b'""',
    b",",
    b",",
    b"\n",
    b"\n",
    b"\r\n",
    b"\r",
    b"\0",
    b"\xc3\xa9",
    b"\xff",
    b"NA",
]
PIECES += [b"#", b'# 5" x\n', b"\n# y\n", b"sep=;\n", b"1.234,5;", b"93ms", b"$5", b"31.05.2024", b"5%"]
PIECES += [b"inf", b"1e400", b" ", b'"a,b"', b'"a\nb"', b"true", b'"7"', b"4,5,6\n", b"4,5,6\n", b"7,,k\n"]
lines_like_csv = st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join)


def outcome(path, n_bytes, **options):
    """All that comes of reading a file."""
    try:
        with with_blocks(n_bytes):
            table = open_table([str(path)], **options)
            chunk = gather(table.chunks())
    except BadInput as error:
        return str(error)
    return (
        chunk.rows.tolist().__repr__(),
        chunk.numbers.tolist(),
        chunk.keys,
        table.columns,
        table.n_rejected,
        table.rejected,
    )


STARTS = [b"a,b,key\n1,2,k\n", b"a,b,key\n", b"", b"# c\na,b,key\n1,2,k\n", b'#\na,b,key\n1,2,k\n# 5" x\n']


@given(lines_like_csv, st.sampled_from([9, 1 << 16]), st.sampled_from(STARTS))
@settings(max_examples=examples(300))
def test_result_does_not_depend_on_blocks(folder, content, longest_record, start):
    path = folder / "blocks.csv"
    path.write_bytes(start + content)
    options = {"columns": ["a", "b"], "key": "key"} if b"key" in start else {}
    with patch.object(_csv, "LONGEST_RECORD", longest_record):
        whole = outcome(path, 1 << 23, **options)
        assert outcome(path, 16, **options) == whole


@given(
    st.sampled_from([b"", b"a,b\n1,2\n", b'{"a": 1}\n', b"PAR1", b"\x1f\x8b\x08\0", b"\xef\xbb\xbf"]),
    st.binary(max_size=300) | lines_like_csv,
    st.sampled_from([None, "csv", "tsv", "jsonl", "parquet"]),
    block_sizes,
)
@example(start=b"", content=b"true", format=None, n_bytes=64)
@settings(max_examples=examples(300))
def test_any_bytes_give_a_table_or_bad_input(folder, start, content, format, n_bytes):
    path = folder / "bytes"
    path.write_bytes(start + content)
    outcome(path, n_bytes, format=format)
