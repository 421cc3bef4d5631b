"""Tables from files and pipes: columns used, invalid rows skipped, and errors for bad files."""

import gzip
import io
import os
import threading
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from polyaforest.io import _batches, _csv, _parquet, tables
from polyaforest.io.tables import BadInput, gather, open_table

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def written(tmp_path):
    """Write bytes, text or rows of cells to a file and return its path."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "\n".join(",".join(map(str, row)) for row in content) + "\n"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def piped(monkeypatch):
    """Replace standard input by a real pipe with these bytes, closed unless `stays_open`."""
    opened = []

    def feed(content, stays_open=False):
        reading, writing = os.pipe()
        stdin = open(reading)  # noqa: SIM115 - closed below
        sink = open(writing, "wb", buffering=0)  # noqa: SIM115 - closed below
        monkeypatch.setattr("sys.stdin", stdin)

        def work():
            with suppress(BrokenPipeError):
                sink.write(content)
            if not stays_open:
                sink.close()

        thread = threading.Thread(target=work)
        thread.start()
        opened.extend([stdin.close, thread.join, sink.close])

    yield feed
    for end in opened:
        end()


def everything(path, **options):
    """Return a table and all its rows."""
    table = open_table([path], **options)
    return table, gather(table.chunks())


# ---- columns ---------------------------------------------------------------------------------------------------------


def test_uses_numeric_columns_and_gives_reasons_for_others(written):
    names = "id,when,host,cpu,up,quoted,share,price,version,note,load"
    row = '{i},2024-05-{day},web{i},{cpu},{up},"{cpu}",{i}%,$5,3,,{i}e1'
    cpus = [5, 3, 8, 1, 9, 2, 7, 4, 6, 0, 5, 3]
    lines = [row.format(i=i, day=10 + i, cpu=cpu, up=str(cpu > 4).lower()) for i, cpu in enumerate(cpus)]
    lines[3] = lines[3].replace("3e1", "NA")
    table, chunk = everything(written("\n".join([names, *lines])))
    assert table.columns.used == ["cpu", "up", "quoted", "load"]
    assert table.columns.skipped == {
        "id": "row counter",
        "host": "text",
        "share": "row counter",
        "price": "constant 5",
        "version": "constant 3",
        "note": "empty",
    }
    assert table.columns.time == "when"
    assert_array_equal(chunk.rows[:, 0], cpus)
    assert_array_equal(chunk.rows[:, 1], np.array(cpus) > 4)
    assert_array_equal(chunk.rows[:, 2], cpus)
    assert np.isnan(chunk.rows[3, 3])
    assert chunk.times[1] - chunk.times[0] == 86_400


def test_uses_column_that_is_constant_only_in_sample(written, monkeypatch):
    monkeypatch.setattr(_batches, "_SAMPLE_ROWS", 100)
    path = written([["load", "errors"], *([i * i, 0] for i in range(150)), [3, 999]])
    table, chunk = everything(path)
    assert table.columns.used == ["load", "errors"]
    assert chunk.rows[-1].tolist() == [3, 999]


def test_named_columns_keep_their_order(written):
    path = written("a,b,c,d\n1,2,x,4\n1,3,y,5\n1,4,z,6\n")
    table, chunk = everything(path, columns=["d", "a"], key="c", id="b")
    assert (table.columns.used, table.columns.skipped) == (["d", "a"], {})
    assert_array_equal(chunk.rows, [[4, 1], [5, 1], [6, 1]])
    assert (chunk.keys, chunk.ids) == (["x", "y", "z"], ["2", "3", "4"])
    assert open_table([path], columns=["d"]).columns.skipped == {"a": "constant 1", "b": "not selected", "c": "text"}


@pytest.mark.parametrize("content", ["k,v\n007,1\n x ,2\nNA,3\n,4\n", 'k,v\n"007",1\n" x ",2\n"NA",3\n"",4\n'])
def test_keys_keep_their_text(written, content):
    _, chunk = everything(written(content), key="k", id="k")
    assert chunk.keys == chunk.ids == ["007", " x ", "NA", ""]


def test_numeric_file_has_no_header(written):
    table, chunk = everything(written("1,NA,3\n4,5,6\n7,8,8\n"))
    assert (table.has_header, table.columns.used) == (False, ["column_1", "column_2", "column_3"])
    assert_array_equal(chunk.rows, [[1, np.nan, 3], [4, 5, 6], [7, 8, 8]])
    assert open_table([written("a,,c\n1,2,3\n")], columns=["column_2"]).has_header


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_infers_delimiter_from_first_lines(written, delimiter):
    lines = ["a;x,y", "1;2", "3;4"] if delimiter == ";" else ["a;b;c,d", "1,2", "3,5"] if delimiter == "," else []
    content = "\n".join(lines) or f"a{delimiter}b, c\n1{delimiter}2\n3{delimiter}5\n"
    _, chunk = everything(written(content))
    assert chunk.rows[:, 1].tolist() in ([2, 4], [2, 5])


def test_empty_cells_are_missing_not_invalid(written):
    gaps = ["", "NA", "na", "NaN", "nan", "null", "NULL", "-", "None", "n/a", "N/A", '"NA"', " - "]
    table, chunk = everything(written([["a", "b"], *([gap, i * i] for i, gap in enumerate(gaps)), [1, 2], [3, 3]]))
    assert table.n_rejected == 0
    assert np.isnan(chunk.rows[: len(gaps), 0]).all()
    assert_array_equal(chunk.rows[:, 1], [*(np.arange(len(gaps)) ** 2), 2, 3])


# ---- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-31T12:00:00Z", NOON),
        ("2024-05-31 12:00:00", NOON),
        ("2024-05-31t12:00:00.250", NOON + 0.25),
        ("2024-05-31 12:00:00.123456789", NOON + 0.123456),
        ("2024/05/31 12:00:00", NOON),
        ("2024-05-31T14:00:00+02:00", NOON),
        ("2024-05-31 06:30:00.5-0530", NOON + 0.5),
        ("2024-05-31T12:00", NOON),
        ("2024-05-31", NOON - 43_200),
        ("2024/05/31", NOON - 43_200),
        (f"{NOON:.0f}", NOON),
        (f"{NOON:.2f}", NOON),
        (f"{NOON:.0f}000", NOON),
        (f"{NOON:.0f}000000", NOON),
        (f"{NOON:.0f}000000000", NOON),
    ],
)
def test_times_are_seconds_since_1970(written, text, seconds):
    path = written(f"t,x\n{text},1\nnever,2\n{text},3\n,4\n{text},5\n{text},6\n{text},7\n{text},8\n")
    table, chunk = everything(path, time="t")
    assert_array_equal(chunk.times, [seconds] * 6)
    assert chunk.rows[:, 0].tolist() == [1, 3, 5, 6, 7, 8]
    reasons = [(row.number, row.reason) for row in table.rejected]
    assert reasons == [
        (2, "column 't' is 'never', not a time"),
        (4, "column 't' is '', not a time"),
    ]


def test_infers_time_column_by_name_or_only_dates(written):
    assert open_table([written("x,Timestamp\n1,1700000000\n5,1700000060\n2,1700000120\n")]).columns.time == "Timestamp"
    assert open_table([written("time,x\n0.5,1\n1.5,3\n2.5,2\n")]).columns.time == "time"
    falling = open_table([written("time,x\n3.5,1\n1.5,3\n2.5,2\n")]).columns  # durations
    assert (falling.time, falling.used) == (None, ["time", "x"])
    assert open_table([written("born,x\n2024-05-31,1\n2024-06-01,3\n")]).columns.time == "born"
    two = open_table([written("born,died,x\n2024-05-31,2024-06-01,1\n2024-06-01,2024-06-02,3\n")]).columns
    assert (two.time, two.skipped) == (None, {"born": "times", "died": "times"})


# ---- bad rows --------------------------------------------------------------------------------------------------------

BAD = {
    b"1": "1 cell instead of 3",
    b"1,2": "2 cells instead of 3",
    b"1,2,x,4": "4 cells instead of 3",
    b"many,2,x": "column 'a' is 'many', not a number",
    b"1,12%,x": "column 'b' is '12%', not a number",
    b"1_000,2,x": "column 'a' is '1_000', not a number",
    b"inf,2,x": "column 'a' is not finite",
    b"1,-Infinity,x": "column 'b' is not finite",
    b"1,1e400,x": "column 'b' is not finite",
    b"1,2,\xff": "not UTF-8",
    b"1,2,\0": "contains NUL bytes",
    b'1,2,"x': "unbalanced quotes",
    b'1,2,"x"y': "unbalanced quotes",
    b"1,2\r,x": "invalid CSV",
    b"\x89PNG\r\x1a\0\xfe\xff": "contains NUL bytes",
}


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_skips_and_reports_invalid_row(written, bad):
    good = [b"%d,%d,ok" % (i * i, i % 3) for i in range(20)]
    content = b"\n".join([b"a,b,c", *good[:7], bad, *good[7:]])
    table, chunk = everything(written(content))
    assert [(row.number, row.reason[: len(BAD[bad])]) for row in table.rejected] == [(8, BAD[bad])]
    assert table.rejected[0].text.isprintable()
    assert (table.n_rows, table.n_rejected) == (20, 1)
    assert_array_equal(chunk.rows, [[i * i, i % 3] for i in range(20)])
    assert_array_equal(chunk.numbers, np.delete(np.arange(1, 22), 7))
    with pytest.raises(BadInput, match=r"^Row 8 cannot be read: .*\. Content: "):
        everything(written(content), strict=True)


def test_keeps_first_twenty_rejected_rows(written):
    rows = [[i * i, "bad" if i % 5 == 4 else i % 3] for i in range(500)]
    table, chunk = everything(written([["a", "b"], *rows]), chunk_rows=50)
    assert (table.n_rows, table.n_rejected, len(chunk.rows)) == (400, 100, 400)
    assert [row.number for row in table.rejected] == list(range(5, 105, 5))
    assert table.rejected[0].text == "16,bad"


def test_rejected_text_is_short_and_printable(written):
    table, _ = everything(written(b"a,b\n1,2\n3,\x1b[31m" + b"x" * 1000 + b"\n5,5\n6,6\n7,9\n"))
    [row] = table.rejected
    assert row.text.startswith("3,\\x1b[31mxxx")
    assert row.text.endswith("...")
    assert len(row.text) < 130


def test_quoted_cell_may_span_lines(written):
    table, chunk = everything(written('a,b\n1,"two\nlines, ""quoted"""\n2,x\n4,y\n'), key="b")
    assert chunk.keys == ['two\nlines, "quoted"', "x", "y"]
    assert (table.n_rejected, chunk.numbers.tolist()) == (0, [1, 2, 3])


def test_unclosed_quote_affects_its_row_only(written, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1 << 10)
    n_rows = 3 * _csv.LONGEST_RECORD // 8
    lines = [f"{i % 97},{i % 89}" for i in range(n_rows)]
    lines[5] = '5,"5'
    table, chunk = everything(written("\n".join(["a,b", *lines])))
    assert [(row.number, row.text) for row in table.rejected] == [(6, '5,"5')]
    assert len(chunk.rows) == n_rows - 1


def test_ignores_blank_lines_except_in_single_column(written):
    _, chunk = everything(written("\n\na,b\n1,2\n\n3,5\r\n\r\n\n"))
    assert_array_equal(chunk.rows, [[1, 2], [3, 5]])
    assert_array_equal(chunk.numbers, [1, 2])
    _, chunk = everything(written("a\n1\n\n3\n"))
    assert_array_equal(chunk.rows, [[1], [np.nan], [3]])


def test_column_may_change_number_type(written, monkeypatch):
    monkeypatch.setattr(_batches, "_SAMPLE_ROWS", 100)
    rows = [[i % 7, i * i] for i in range(300)] + [[2.5, "true"], ["NA", 1e100], ["text", 1], ["", "8 "]]
    table, chunk = everything(written([["a", "b"], *rows]))
    assert_array_equal(chunk.rows[-3:], [[2.5, 1], [np.nan, 1e100], [np.nan, 8]])
    assert [row.number for row in table.rejected] == [303]


# ---- bad files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty. It needs a header"),
        (b"\n\n", "is empty. It needs a header"),
        (b"a,b\n", "has a header but no rows"),
        (b"a,b\n1\n2\n", "has no valid row. Row 1: 1 cell instead of 2. Content: 1"),
        (b"a,b\nx,y\nz,w\n", "has no column to use: 'a' (text), 'b' (text). Select columns"),
        (b"a,b,a\n1,2,3\n", "has duplicate column names: 'a'. Rename them"),
        (b"\xff\xfea\0,\0b\0\n\0", "is UTF-16. Convert it first: iconv"),
        (bytes(range(256)) * 4, "looks like a binary file"),
        (b"PK\x03\x04rest", "is a zip archive. Unpack it first."),
        (b"gr\xf6\xdfe,b\n1,2\n", "is not UTF-8. Convert it first"),
        (b"a,b\r1,2\r3,4\r", "has carriage returns as line ends"),
        (b'a,"b\n1,2\n', "The first line of"),
        (b"PAR1 is all there is", "is not a valid Parquet file"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:-20], "is truncated"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:30] + b"junk" * 30, "gzip data"),
        (b'{"a": 1\n{"a": 2\n', "has no valid row. Row 1: invalid JSON"),
        (b'{"a": "x"}\n{"a": "y"}\n', "has no column to use: 'a' (text)"),
    ],
)
def test_error_for_bad_file_names_remedy(written, content, words):
    path = written(content)
    with pytest.raises(BadInput) as caught:
        everything(path)
    assert words in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rejects_invalid_arguments(written, tmp_path):
    path = written("host,cpu_user,mem\na,1,2\nb,2,3\nc,5,5\n")
    with pytest.raises(BadInput, match=r"has no column 'CPU_usr'. Did you mean 'cpu_user'"):
        open_table([path], columns=["CPU_usr"])
    with pytest.raises(BadInput, match=r"has no column 'zzz'. Its columns are 'host', 'cpu_user', 'mem'"):
        open_table([path], key="zzz")
    with pytest.raises(BadInput, match=r"Column 'host' of .* contains text, not numbers"):
        open_table([path], columns=["host"])
    with pytest.raises(BadInput, match=r"Column 'host' of .* contains text, not times. Use dates"):
        open_table([path], time="host")
    with pytest.raises(BadInput, match="Unknown format 'xml'"):
        open_table([path], format="xml")
    with pytest.raises(BadInput, match="does not exist"):
        open_table([path + "x"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="contains no tables"):
        open_table([str(tmp_path / "empty")])
    with pytest.raises(BadInput, match="is an empty JSON array"):
        open_table([written("[]", "table.json")])
    with pytest.raises(BadInput, match="not a table"):
        everything(written(b"a,b\n" + b"1" * (1 << 25)))


def test_raises_at_end_if_no_row_is_valid(written):
    with pytest.raises(BadInput, match=r"None of the 3 rows of .* is valid. Row 1: column 't' is ''"):
        everything(written("t,x,u\n,1,2024-05-31\n,2,2024-05-31\n2024-05-31,inf,x\n"), time="t", columns=["x"])


# ---- several files, pipes and other formats --------------------------------------------------------------------------


def test_reads_files_in_order(written):
    first = written("a,b\n1,2\nx,3\n3,5\n4,4\n5,5\n", "first.csv")
    second = written("b;a\n5;4\n7\n", "second.csv")
    third = written('{"b": 9, "a": 6}\n', "third.jsonl")
    table = open_table([first, second, third], chunk_rows=4)
    chunks = list(table.chunks())
    assert_array_equal(chunks[0].rows, [[1, 2], [3, 5], [4, 4], [5, 5]])
    assert_array_equal(chunks[1].rows, [[4, 5], [6, 9]])
    assert [number for chunk in chunks for number in chunk.numbers] == [1, 3, 4, 5, 6, 8]
    assert [(row.number, row.text) for row in table.rejected] == [(2, "x,3"), (7, "7")]
    assert table.rejected[1].reason == f"1 cell instead of 2 (in {second})"


def test_rejects_files_with_other_columns_early(written):
    first, second = written("a,b\n1,2\n3,5\n", "first.csv"), written("a,c\n5,4\n", "second.csv")
    with pytest.raises(BadInput, match=r"second.csv has no column 'b', which .*first.csv has"):
        open_table([first, second])


def test_reads_pipe_incrementally(piped):
    piped(b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(60_000)), stays_open=True)
    chunk = next(open_table(["-"], columns=["a", "b"], chunk_rows=1000).chunks())
    assert_array_equal(chunk.rows[:, 1], np.arange(1000.0) ** 2)


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"])
def test_infers_format_of_pipe(piped, form):
    frame = pl.DataFrame({"a": [1.5, 2.5, 1.0], "b": [3, 5, 4], "k": ["x", "y", "z"]})
    written = io.BytesIO()
    {"csv": frame.write_csv, "jso": frame.write_ndjson, "par": frame.write_parquet}[form[:3]](written)
    piped(gzip.compress(written.getvalue(), mtime=0) if form.endswith("gz") else written.getvalue())
    table, chunk = everything("-", key="k")
    assert table.columns.used == ["a", "b"]
    assert_array_equal(chunk.rows, [[1.5, 3], [2.5, 5], [1.0, 4]])
    assert chunk.keys == ["x", "y", "z"]


def test_standard_input_may_be_a_file(tmp_path, monkeypatch):
    pl.DataFrame({"a": [1.5, 2.5, 1.0]}).write_parquet(tmp_path / "table.parquet")
    with open(tmp_path / "table.parquet") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert_array_equal(everything("-")[1].rows, [[1.5], [2.5], [1.0]])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n1\n3\n")))
    assert_array_equal(everything("-")[1].rows, [[1], [3]])


def test_does_not_read_later_pipe_early(written, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("a,b\n3,4\n",))
    writer.start()
    chunk = gather(open_table([written("a,b\n1,2\n2,5\n"), str(tmp_path / "pipe")]).chunks())
    writer.join()
    assert_array_equal(chunk.rows, [[1, 2], [2, 5], [3, 4]])


def test_json_lines(written):
    lines = [
        '{"t": "2024-05-31T12:00:00Z", "host": "a", "cpu": {"user": 1, "idle": 2.5}, "up": true, "tags": [1]}',
        '{"t": "2024-05-31T12:01:00Z", "host": 7, "cpu": {"user": "4", "idle": null}, "up": false}',
        "",
        '{"t": "2024-05-31T12:02:00Z", "cpu": {"user": NaN, "idle": 1}}',
        '{"t": "2024-05-31T12:03:00Z", "cpu": {"user": [1], "idle": 1}}',
        '{"t": "2024-05-31T12:04:00Z", "cpu": {"user": 1e400, "idle": 1}}',
        '{"t": "2024-05-31T12:04:00Z", "other": 5}',
        "[1, 2]",
        '{"cpu": ',
        '{"cpu": "\\ud800"}',
    ]
    table, chunk = everything(written("\n".join(lines)), key="host")
    assert table.columns.used == ["cpu.user", "cpu.idle", "up"]
    assert table.columns.skipped == {"tags": "text, such as '[1]'", "other": "constant 5"}
    assert_array_equal(chunk.rows, [[1, 2.5, 1], [4, np.nan, 0], [np.nan, 1, np.nan]])
    assert_array_equal(chunk.times, NOON + np.array([0, 60, 120]))
    assert chunk.keys == ["a", "7", ""]
    reasons = {row.number: row.reason for row in table.rejected}
    assert reasons[4] == "column 'cpu.user' is '[1]', not a number"
    assert reasons[5] == "column 'cpu.user' is not finite"
    assert reasons[6] == "has none of the columns 'cpu.user', 'cpu.idle', 'up'"
    assert reasons[7] == "not a JSON object"
    assert reasons[8].startswith("invalid JSON: ")
    assert reasons[9].startswith("invalid JSON: ")


def test_uniform_and_mixed_json_lines_agree(written, monkeypatch):
    lines = [f'{{"a": {i * i}, "k": "x{i}", "on": {"true" if i % 3 else "false"}, "more": [1]}}' for i in range(50)]
    _, alike = everything(written("\n".join(lines)), key="k")
    table, mixed = everything(written("\n".join([*lines, '{"a": null, "on": "text"}', "", lines[0]])), key="k")
    assert_array_equal(alike.rows, [[i * i, i % 3 > 0] for i in range(50)])
    assert alike.keys == [f"x{i}" for i in range(50)]
    assert_array_equal(mixed.rows, np.vstack([alike.rows, alike.rows[:1]]))
    assert mixed.keys == [*alike.keys, "x0"]
    assert [row.number for row in table.rejected] == [51]


def test_reads_parquet_of_all_types(tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "_FEWEST_ROWS", 7)
    monkeypatch.setattr(_parquet, "_BATCH_CELLS", 1)
    n_rows = 30
    squares = [i * i for i in range(n_rows)]
    frame = pl.DataFrame(
        {
            "at": [datetime(2024, 5, 31, 12, i) for i in range(n_rows)],
            "day": [date(2024, 5, 1 + i) for i in range(n_rows)],
            "small": pl.Series([i % 5 for i in range(n_rows)], dtype=pl.UInt8),
            "exact": [(Decimal(i * i) / 4).quantize(Decimal("0.01")) for i in range(n_rows)],
            "yes": [i % 2 == 0 for i in range(n_rows)],
            "words": [str(i * i) for i in range(n_rows)],
            "float": [None, float("nan"), float("inf"), *map(float, squares[3:])],
            "kind": pl.Series(["a", "b", "c"] * 10, dtype=pl.Categorical),
            "many": [[i] for i in range(n_rows)],
        }
    )
    path = str(tmp_path / "table.parquet")
    frame.write_parquet(path)
    table, chunk = everything(path, time="at", key="kind")
    assert table.columns.used == ["small", "exact", "yes", "words", "float"]
    assert table.columns.skipped == {"day": "times", "many": "of type List(Int64)"}
    good = np.delete(np.arange(n_rows), 2)
    assert_array_equal(chunk.numbers, good + 1)
    assert_array_equal(chunk.times, NOON + 60.0 * good)
    squares = good**2.0
    floats = np.where(good < 2, np.nan, squares)
    assert_array_equal(chunk.rows, np.column_stack([good % 5, squares / 4, good % 2 == 0, squares, floats]))
    assert chunk.keys[:4] == ["a", "b", "a", "b"]
    [row] = table.rejected
    assert (row.number, row.reason) == (3, "column 'float' is not finite")
    assert "float=inf" in row.text
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "table.parquet").read_bytes()[:-30])
    with pytest.raises(BadInput, match="not a valid Parquet file"):
        open_table([str(tmp_path / "cut.parquet")])


# ---- edge cases ------------------------------------------------------------------------------------------------------


def read_text(tmp_path, name, text, **options):
    (tmp_path / name).write_text(text)
    table = open_table([str(tmp_path / name)], **options)
    return table, gather(table.chunks())


@pytest.mark.parametrize("bad", ["h1,1,2,99", "h1,1,2,99\nh1,1", "\nh1,1,2,99", "h1,1\nh1,2,3,4"])
def test_reports_rows_of_wrong_length_when_columns_are_skipped(tmp_path, bad):
    good = "".join(f"h{i % 3},{i}.5,{i * i % 7}\n" for i in range(40))
    table, whole = read_text(tmp_path, "a.csv", f"host,cpu,mem\n{good}{bad}\n{good}")
    assert len(whole.rows) == 80
    assert table.n_rejected == sum(bool(line) for line in bad.split("\n"))
    assert "cells instead of 3" in table.rejected[0].reason


def test_numeric_ids_keep_their_text_in_any_block(tmp_path):
    lines = [f'{{"uid": {9007199254740993 + i}, "k": {i % 2}, "cpu": {i}.5}}' for i in range(30)]
    lines[20] = '{"uid": 7, "k": null, "cpu": NaN}'
    _, whole = read_text(tmp_path, "a.jsonl", "\n".join(lines) + "\n", key="k", id="uid")
    assert whole.ids == [str(9007199254740993 + i) if i != 20 else "7" for i in range(30)]
    assert set(whole.keys) == {"0", "1", ""}


def test_value_beyond_largest_rejects_its_row_only(tmp_path):
    cells = "".join(f"{i},{i * 7 % 5}\n" for i in range(20)).replace("\n7,4", "\n1e308,4")
    table, whole = read_text(tmp_path, "a.csv", "a,b\n" + cells)
    assert len(whole.rows) == 19
    assert table.rejected[0].reason == "column 'a' is beyond 1e+100"


def test_reason_shows_cell_that_resembles_a_number(tmp_path):
    table, _ = read_text(
        tmp_path, "a.csv", "host;cpu;mem\n" + "".join(f"web-{i};{i},5y;{i * 3 % 7}\n" for i in range(9))
    )
    assert table.columns.skipped == {"host": "text", "cpu": "text, such as '0,5y'"}


def test_keys_of_any_type_become_text(tmp_path):
    frame = pl.DataFrame({"a": [1.5, 2.5, 4.0], "k": [[1], [2], [1]]})
    frame.write_parquet(tmp_path / "a.parquet")
    assert len(set(gather(open_table([str(tmp_path / "a.parquet")], key="k").chunks()).keys)) == 2
