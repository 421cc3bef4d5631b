"""Tables from compressed files, patterns, directories, workbooks and databases."""

import bz2
import gzip
import lzma
import re
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import quote

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from servers import postgres_server

from polyaforest.cli._reports import format_interpretations, format_sources
from polyaforest.io import _database, tables
from polyaforest.io.tables import BadInput, Reading, gather, open_table

LINES = "a,b\n" + "".join(f"{i * i},{i % 7}\n" for i in range(500))
VALUES = [[i * i, i % 7] for i in range(500)]


def everything(*paths, **options):
    """Return a table and all its rows."""
    reading = {name: options.pop(name) for name in list(options) if name in Reading.__dataclass_fields__}
    table = open_table([str(path) for path in paths], reading=Reading(**reading), **options)
    return table, gather(table.chunks())


def said(table):
    return format_interpretations(table.interpretations) if table.interpretations else ""


# ---- compressed files ------------------------------------------------------------------------------------------------


def zstd_compressed(data):
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


PACKINGS = {"gz": gzip.compress, "zst": zstd_compressed, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("block_bytes", [64, 1 << 23])
def test_reads_compressed_files(tmp_path, monkeypatch, packing, block_bytes):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block_bytes)
    path = tmp_path / f"table.csv.{packing}"
    path.write_bytes(PACKINGS[packing](LINES.encode()))
    assert_array_equal(everything(path)[1].rows, VALUES)
    path = tmp_path / f"table.tsv.{packing}"
    path.write_bytes(PACKINGS[packing](LINES.replace(",", "\t").encode()))
    assert_array_equal(everything(path)[1].rows, VALUES)
    path = tmp_path / f"table.parquet.{packing}"
    pl.DataFrame({"a": [1.0, 2.5]}).write_parquet(tmp_path / "plain.parquet")
    path.write_bytes(PACKINGS[packing]((tmp_path / "plain.parquet").read_bytes()))
    assert_array_equal(everything(path)[1].rows, [[1.0], [2.5]])


@pytest.mark.parametrize("packing", PACKINGS)
def test_reports_damaged_and_truncated_data(tmp_path, packing):
    path = tmp_path / "table"
    numbers = np.random.default_rng(0).integers(0, 10**9, size=(20_000, 2))
    packed = PACKINGS[packing]("\n".join(["a,b", *(f"{a},{b}" for a, b in numbers.tolist())]).encode())
    for content in (packed[: len(packed) // 2], packed[:2000] + b"\0" * 500 + packed[2500:]):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"table .*(truncated|damaged|cannot be read)") as caught:
            everything(path)
        assert "\n" not in str(caught.value)


def test_zstd_without_library_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "table.csv.zst"
    path.write_bytes(zstd_compressed(LINES.encode()))
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(BadInput, match=r"is compressed with zstd. Install .*polyaforest\[zstd\]"):
        everything(path)


# ---- patterns and directories ----------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """A directory of partitions as in data lakes, with metadata that programs leave there."""
    for day in (2, 1):
        folder = tmp_path / "lake" / f"day={day}"
        folder.mkdir(parents=True)
        frame = pl.DataFrame({"b": [day * 10.0, 7.0], "a": [day, 5]})
        (frame if day == 1 else frame.select("a", "b")).write_parquet(folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
        (folder / ".part-0.parquet.crc").touch()
        (folder / "_temporary.parquet").touch()
    (tmp_path / "lake" / "_logs").mkdir()
    (tmp_path / "lake" / "_logs" / "x.parquet").touch()
    return tmp_path / "lake"


def test_expands_directories_and_patterns(parts):
    rows = [[10, 1], [7, 5], [20, 2], [7, 5]]
    for argument in (parts, parts / "*" / "part-*.parquet", parts / "**" / "part*.parquet"):
        table, chunk = everything(argument, columns=["b", "a"])
        assert_array_equal(chunk.rows, rows)
        assert format_sources(table.sources) == "2 files"
    table, _ = everything(parts / "day=1")
    assert table.sources == ["part-0.parquet"]


def test_rejects_directories_without_one_table(parts, tmp_path):
    (parts / "notes.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"several formats: 'CSV', 'Parquet'. Pass a pattern, such as '.*lake/\*.csv'"):
        everything(parts)
    with pytest.raises(BadInput, match=r"No file matches .*\*.tsv. Check the pattern"):
        everything(parts / "*.tsv")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n5,3\n"))
    (tmp_path / "more" / "b.csv").write_text("b,a\n3,4\n")
    (tmp_path / "more" / "c.csv").write_text("b,c\n3,4\n")
    with pytest.raises(BadInput, match=r"c.csv has no column 'a', which .*a.csv.gz has"):
        everything(tmp_path / "more")
    (tmp_path / "more" / "c.csv").unlink()
    assert_array_equal(everything(tmp_path / "more")[1].rows, [[1, 2], [5, 3], [4, 3]])


def test_existing_file_is_not_a_pattern(tmp_path):
    (tmp_path / "a[1]*.csv").write_text("x,y\n1,2\n3,5\n")
    (tmp_path / "a1.csv").write_text("x,y\n9,9\n")
    assert_array_equal(everything(tmp_path / "a[1]*.csv")[1].rows, [[1, 2], [3, 5]])


# ---- workbooks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def workbook(tmp_path):
    """Write sheets of rows to a workbook and return its path."""
    xlsxwriter = pytest.importorskip("xlsxwriter")
    pytest.importorskip("fastexcel")

    def write(**sheets):
        path = tmp_path / "book.xlsx"
        with xlsxwriter.Workbook(path, {"default_date_format": "dd/mm/yy hh:mm"}) as book:
            for name, rows in sheets.items():
                sheet = book.add_worksheet(name)
                for at, row in enumerate(rows):
                    sheet.write_row(at + 1, 1, row)  # not in the corner
        return path

    return write


def test_reads_sheet_of_workbook(workbook):
    noon = datetime(2024, 5, 31, 12)
    head = ["when", "host", "load", "amount", "latency", "on"]
    rows = [
        [noon.replace(day=1 + i), f"web-{i}", i * i / 4, f"1.23{i},50", f"{7 * i % 5}ms", i % 3 == 0] for i in range(9)
    ]
    rows[4][2] = None
    rows[5][2] = "oops"
    path = workbook(Data=[head, *rows[:3], [], *rows[3:]], Notes=[["x"], [1], [2]])
    table, chunk = everything(path, key="host")
    assert table.columns.used == ["load", "amount", "latency", "on"]
    assert table.columns.time == "when"
    kept = [i for i in range(9) if i != 5]
    assert_array_equal(chunk.rows[:, 0], [np.nan if i == 4 else i * i / 4 for i in kept])
    assert_array_equal(chunk.rows[:, 1], [1230 + i + 0.5 for i in kept])
    assert chunk.times.tolist() == [noon.replace(day=1 + i, tzinfo=UTC).timestamp() for i in kept]
    assert [row.number for row in table.rejected] == [6]
    assert table.rejected[0].reason == "column 'load' is 'oops', not a number"
    assert re.match(
        r"Interpreted: sheet 'Data' \(first of 2\) as the table; amount: 1\.230,50 as 1230\.5; latency: \S+ as \S+ s",
        said(table),
    )
    for sheet in ("Notes", "2"):
        assert_array_equal(everything(path, sheet=sheet)[1].rows, [[1], [2]])


def test_workbook_without_header_or_content(workbook, tmp_path):
    table, chunk = everything(workbook(A=[[1.5, 2], [2.5, 7], [4, 1]]))
    assert (table.has_header, len(chunk.rows), table.columns.used) == (False, 3, ["column_1", "column_2"])
    assert said(table) == "Interpreted: first row as data (no header). Override with --header."
    with pytest.raises(BadInput, match="has an empty sheet"):
        everything(workbook(A=[]))
    with pytest.raises(BadInput, match=r"has no sheet 'C'. Its sheets are 'A', 'B'"):
        everything(workbook(A=[], B=[["x"], [1]]), sheet="C")
    with pytest.raises(BadInput, match="duplicate column names: 'x'"):
        everything(workbook(A=[["x", "x"], [1, 2]]))
    (tmp_path / "cut.xlsx").write_bytes(workbook(A=[["x"], [1]]).read_bytes()[:-300])
    with pytest.raises(BadInput, match="is not a valid workbook"):
        everything(tmp_path / "cut.xlsx")
    (tmp_path / "a.csv").write_text(LINES)
    with pytest.raises(BadInput, match=r"is not a workbook\. Use --sheet"):
        everything(tmp_path / "a.csv", sheet="A")


def test_escapes_names_in_workbooks(workbook):
    table, _ = everything(workbook(**{"\u202eevil": [["\x1b[31mx\n", "y"], ["1,5", 2], ["2,5", 7]], "other": []}))
    assert said(table).isprintable()
    assert table.columns.used[0].startswith("\x1b[31mx") or "x" in table.columns.used[0]


def test_workbook_without_library_names_the_extra(workbook, monkeypatch):
    path = workbook(A=[["x"], [1], [3]])
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(BadInput, match=r"is an Excel workbook. Install .*polyaforest\[excel\]"):
        everything(path)


# ---- SQLite ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "data ?#%.sqlite"  # characters that an address would have to escape
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE "load ""7""" (id INTEGER, host TEXT, cpu REAL, at TEXT, price TEXT, anything)')
        rows = [(2**53 + i, f"web-{i % 3}", i * i % 7 + 0.5, f"2024-05-{i + 1:02}", f"{i},5", i) for i in range(25)]
        rows[3] = (*rows[3][:2], None, *rows[3][3:])
        rows[7] = (*rows[7][:5], "text")
        rows[9] = (*rows[9][:5], b"\xff\0")
        connection.executemany('INSERT INTO "load ""7""" VALUES (?, ?, ?, ?, ?, ?)', rows)
        connection.commit()
    return path


@pytest.mark.parametrize("n_rows", [7, 1 << 16])
def test_reads_sqlite_file(database, monkeypatch, n_rows):
    monkeypatch.setattr(_database, "_MOST_ROWS", n_rows)
    monkeypatch.setattr(_database, "_FEWEST_ROWS", 1)
    table, chunk = everything(database, columns=["price", "cpu"], id="id", key="host")
    assert_array_equal(chunk.rows[:, 0], np.arange(25) + 0.5)
    assert np.isnan(chunk.rows[3, 1])
    assert chunk.ids == [str(2**53 + i) for i in range(25)]
    assert chunk.times[1] - chunk.times[0] == 86_400
    assert said(table).startswith("""Interpreted: table 'load "7"' (the only one); price: """)
    table, chunk = everything(database, query='SELECT cpu, anything FROM "load ""7""" WHERE host = \'web-1\'')
    assert table.columns.used == ["cpu", "anything"]
    assert table.interpretations == []
    assert [row.reason for row in table.rejected] == ["column 'anything' is 'text', not a number"]
    assert len(chunk.rows) == 7


def test_sqlite_rejects_invalid_queries(database, tmp_path):
    with pytest.raises(BadInput, match=r"the query failed \(no such column: nowhere\). Check --query"):
        everything(database, query='SELECT nowhere FROM "load ""7"""')
    before = database.read_bytes()
    for query in ('DELETE FROM "load ""7"""', "CREATE TABLE x (a)", "PRAGMA query_only"):
        with pytest.raises(BadInput):
            everything(database, query=query)
    with pytest.raises(BadInput, match="the query failed"):
        everything(database, query='SELECT 1; DROP TABLE "load ""7"""')
    assert database.read_bytes() == before
    with closing(sqlite3.connect(tmp_path / "two.db")) as connection:
        connection.executescript("CREATE TABLE a (x); CREATE TABLE b (x);")
    with pytest.raises(BadInput, match=r"has the tables 'a', 'b'. Pass a query, such as --query 'SELECT \* FROM a'"):
        everything(tmp_path / "two.db")
    with pytest.raises(BadInput, match="has a header but no rows"):
        everything(tmp_path / "two.db", query="SELECT * FROM a")
    (tmp_path / "cut.db").write_bytes(before[:2000])
    with pytest.raises(BadInput, match="the query failed"):
        everything(tmp_path / "cut.db")
    (tmp_path / "a.csv").write_text(LINES)
    with pytest.raises(BadInput, match=r"is not a database\. Use --query with"):
        everything(tmp_path / "a.csv", query="SELECT 1")


def test_reads_sqlite_address(database, tmp_path):
    assert len(everything(f"sqlite:///{database}", columns=["cpu"])[1].rows) == 25
    with pytest.raises(BadInput, match="does not exist"):
        everything(f"sqlite:///{tmp_path / 'none.db'}", query="SELECT 1")
    assert not (tmp_path / "none.db").exists()


def test_reads_compressed_database(database, tmp_path):
    (tmp_path / "a.db.gz").write_bytes(gzip.compress(database.read_bytes()))
    assert len(everything(tmp_path / "a.db.gz", columns=["cpu"])[1].rows) == 25


# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


ORDERS = """
    CREATE TABLE orders AS SELECT i AS id, timestamptz '2024-05-31 12:00+02' + i * interval '1 hour' AS at,
        'shop-' || i % 3 AS shop, (i * i % 89)::numeric(12, 2) / 4 AS amount, i % 7 = 0 AS rush,
        to_char(i % 50, 'FM90') || ',5 €' AS price, i % 11 * interval '1 second' AS wait, date '2024-01-01' + i AS day,
        CASE WHEN i % 10 = 0 THEN NULL ELSE i % 13 END AS gaps, ARRAY[i] AS many
    FROM generate_series(0, 9999) AS i
"""


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("sqlalchemy")
    psycopg = pytest.importorskip("psycopg")
    with postgres_server() as running:
        with psycopg.connect(running.address()) as connection:
            connection.execute(ORDERS)
            connection.execute("CREATE FUNCTION spoil() RETURNS int LANGUAGE sql AS 'DELETE FROM orders RETURNING 1'")
        yield running


def test_reads_query_from_postgresql(server, monkeypatch):
    monkeypatch.setattr(_database, "_MOST_ROWS", 1000)
    query = "SELECT * FROM orders WHERE shop LIKE 'shop-%' AND '12:30' > '1' ORDER BY id"
    table, chunk = everything(server.address(), query=query, id="id", time="at", key="shop")
    assert table.columns.used == ["amount", "rush", "price", "wait", "gaps"]
    assert set(table.columns.skipped) == {"day", "many"}
    i = np.arange(10_000)
    gaps = np.where(i % 10 == 0, np.nan, i % 13)
    assert_array_equal(chunk.rows, np.column_stack([i * i % 89 / 4, i % 7 == 0, i % 50 + 0.5, i % 11, gaps]))
    assert chunk.ids[:2] == ["0", "1"]
    assert chunk.keys[:3] == ["shop-0", "shop-1", "shop-2"]
    assert chunk.times[0] == datetime(2024, 5, 31, 10, tzinfo=UTC).timestamp()
    assert table.sources == ["postgresql database"]
    assert re.search(r"price: \S.* as [\d.]+ €", said(table))


def test_postgresql_rejects_invalid_queries(server):
    for query, words in (
        ("SELECT nowhere FROM orders", 'column "nowhere" does not exist'),
        ("DELETE FROM orders", "postgresql database"),
        ("SELECT setval('s', 1)", "does not exist"),
        ("SELECT 1 AS a, 2 AS a", "duplicate column names: 'a'"),
    ):
        with pytest.raises(BadInput) as caught:
            everything(server.address(), query=query)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="read-only transaction"):
        everything(server.address(), query="SELECT spoil() AS a")
    with pytest.raises(BadInput, match=r"Pass a query for the postgresql database, such as --query"):
        everything(server.address())
    assert (
        everything(server.address(), query="SELECT count(*) AS n, 1.5 AS x FROM orders", columns=["n"])[1].rows
        == 10_000
    )


def test_messages_hide_secrets(server, cli):
    secrets = ["s3cr@t/w?rd", server.PASSWORD]
    addresses = [
        server.address(password=secrets[0]),
        server.address(user="absent", password=secrets[0]),
        server.address().replace("postgresql://", "postgres://").replace(str(server.port), "1"),
        f"postgresql://tester:{secrets[0]}@127.0.0.1:{server.port}/postgres",
        f"postgresql://127.0.0.1:{server.port}/postgres?user=x&password={quote(secrets[0], safe='')}",
        f"postgresql://127.0.0.1:{server.port}/postgres?nonsense={quote(secrets[0], safe='')}&sslpassword=hidden",
        f"oddbase://u:{quote(secrets[0], safe='')}@host/db",
        f"http://u:{quote(secrets[0], safe='')}@host/db",
    ]
    for address in addresses:
        code, out, err = cli("detect", address, "--query", "SELECT 1 AS a")
        assert (code, out) == (3, "")
        assert err.startswith("Error: ")
        for secret in (*secrets, "s3cr", "hidden"):
            assert secret not in err
            assert quote(secret, safe="") not in err


def test_database_without_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(BadInput, match=r"To read a postgresql database, install SQLAlchemy: .*polyaforest\[sql\]"):
        everything("postgresql://me:secret@localhost/x", query="SELECT 1")
