"""Numbers and dates as people write them: how they are interpreted and reported, and which are invalid."""

import gzip
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from polyaforest.cli._reports import format_interpretations
from polyaforest.io import _batches, tables
from polyaforest.io.tables import BadInput, Reading, gather, open_table


@pytest.fixture
def written(tmp_path):
    """Write a table and return its path."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def everything(path, **options):
    """Return a table and all its rows."""
    reading = {name: options.pop(name) for name in list(options) if name in Reading.__dataclass_fields__}
    table = open_table([path], reading=Reading(**reading), **options)
    return table, gather(table.chunks())


def column(cells, name="x", delimiter=";"):
    """Return a table of a column x with these cells, beside a column of plain numbers."""
    return "\n".join([f"{name}{delimiter}n", *(f"{cell}{delimiter}{i * i % 7}" for i, cell in enumerate(cells))]) + "\n"


def said(table):
    return format_interpretations(table.interpretations) if table.interpretations else ""


# ---- numbers ---------------------------------------------------------------------------------------------------------

NUMBERS = {
    "decimal comma": (["1.234,50", "12,5", "7", "-0,25"], [1234.5, 12.5, 7, -0.25]),
    "thousands commas": (["1,234.50", "12.5", "7", "1,234,567"], [1234.5, 12.5, 7, 1234567]),
    "thousands dots alone": (["1.234.567", "1.234", "999"], [1234567, 1234, 999]),
    "spaces": (["1 234,5", "12\u00a0345\u202f678", "7,25"], [1234.5, 12345678, 7.25]),
    "apostrophes": (["1'234.5", "12’345", "7.25"], [1234.5, 12345, 7.25]),
    "exponents": (["1,5e3", "2,5E-1", "1"], [1500, 0.25, 1]),
    "percent": (["12.5%", "7 %", "0", "5‰"], [12.5, 7, 0, 0.5]),
    "dollars": (["$5", "-$1,234.50", "($7)", "8", "$-2.5"], [5, -1234.5, -7, 8, -2.5]),
    "euros": (["1.234,50 €", "3,20 €", "EUR 7", "-2 €"], [1234.5, 3.2, 7, -2]),
    "kronor": (["1 234,50 kr", "3,20 kr", "7 kr"], [1234.5, 3.2, 7]),
    "times": (["93ms", "1.2s", "2 min", "1h", "0"], [0.093, 1.2, 120, 3600, 0]),
    "bytes": (["1.2GB", "300 MB", "2KiB", "5B"], [1.2e9, 3e8, 2048, 5]),
    "rates": (["10 Mbit/s", "1Gbps", "5 kbit/s"], [1e7, 1e9, 5e3]),
    "multiples": (["1.2K", "3M", "512"], [1200, 3e6, 512]),
    "metres": (["5m", "2km", "30cm"], [5, 2000, 0.3]),
    "minutes": (["5m", "2h", "30s"], [300, 7200, 30]),
    "minus signs": (["−5", "−1.5", "3"], [-5, -1.5, 3]),
    "gaps": (["1,5", "NA", "-", "2,5", "null", "nan"], [1.5, np.nan, np.nan, 2.5, np.nan, np.nan]),
}


@pytest.mark.parametrize(("cells", "values"), NUMBERS.values(), ids=NUMBERS)
def test_parses_number_notations(written, cells, values):
    table, chunk = everything(written(column(cells)), columns=["x"])
    assert table.rejected == []
    assert_allclose(chunk.rows[:, 0], values, rtol=1e-15)
    assert len(table.interpretations) == 1


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_parses_notations_in_all_formats(tmp_path, format):
    import polars as pl

    frame = pl.DataFrame({"x": ["1.234,50", None, "12,5", "oops", "3,5"], "n": [1.5, 2.5, 4.5, 3.5, 1.0]})
    path = str(tmp_path / f"table.{format}")
    frame.write_parquet(path) if format == "parquet" else frame.write_ndjson(path)
    table, chunk = everything(path)
    assert_array_equal(chunk.rows, [[1234.5, 1.5], [np.nan, 2.5], [12.5, 4.5], [3.5, 1.0]])
    [bad] = table.rejected
    assert (bad.number, bad.reason) == (
        4,
        "column 'x' is 'oops', not a number with decimal comma and '.' between thousands",
    )


PLAIN = {
    "three decimals stay decimals": ["1.234", "2.345", "0.5"],
    "nothing but three decimals": ["1.234", "5.678", "123.456"],
    "exponents": ["1e5", "2.5e-3", "7"],
}


@pytest.mark.parametrize("cells", PLAIN.values(), ids=PLAIN)
def test_plain_numbers_are_unchanged(written, cells):
    table, chunk = everything(written(column(cells)), columns=["x"])
    assert_array_equal(chunk.rows[:, 0], list(map(float, cells)))
    assert table.interpretations == []


def test_dots_separate_thousands_in_file_with_decimal_commas(written):
    lines = ["price;size", "3,5;1.234", "12,25;999", "7,1;12.500"]
    table, chunk = everything(written("\n".join(lines)))
    assert_array_equal(chunk.rows, [[3.5, 1234], [12.25, 999], [7.1, 12500]])
    assert said(table) == "Interpreted: price, size: 12,25 as 12.25. Override with --decimal."
    lines = [
        "price;size;share",
        "3,5;1.234;0.5",
        "12,25;999;0.25",
        "7,1;12.500;0.125",
    ]  # mixed separators
    _, chunk = everything(written("\n".join(lines)))
    assert_array_equal(chunk.rows, [[3.5, 1.234, 0.5], [12.25, 999, 0.25], [7.1, 12.5, 0.125]])


@pytest.mark.parametrize(
    ("delimiter", "values", "decimal"),
    [(";", [1.234, 5.678], "point"), ("\t", [1234, 5678], "comma"), ("|", [1234, 5678], "comma")],
)
def test_reports_ambiguous_numbers_and_option_overrides(written, delimiter, values, decimal):
    path = written(column(["1,234", "5,678"], delimiter=delimiter))
    table, chunk = everything(path, columns=["x"])
    assert chunk.rows[:, 0].tolist() == values
    assert f"x: 1,234 as {values[0]:g} (ambiguous). Override with --decimal." in said(table)
    table, chunk = everything(path, columns=["x"], decimal=decimal)
    assert chunk.rows[:, 0].tolist() == ([1234, 5678] if decimal == "point" else [1.234, 5.678])
    assert "ambiguous" not in said(table)


def test_quoted_comma_separates_thousands_in_comma_csv(written):
    table, chunk = everything(written('x,n\n"1,234",1\n"5,678",3\n12,2\n'))
    assert_array_equal(chunk.rows, [[1234, 1], [5678, 3], [12, 2]])
    assert "ambiguous" in said(table)


@pytest.mark.parametrize(
    ("cells", "one", "other"),
    [(["12.5", "12,5", "7.25", "7,25"], "12.5", "12,5"), (["1.234", "5,678"], "1.234", "5,678")],
)
def test_rejects_column_of_mixed_notations(written, cells, one, other):
    path = written(column(cells))
    table, _ = everything(path)
    assert table.columns.skipped["x"] == f"numbers written in two ways, such as '{one}' and '{other}'; see --decimal"
    with pytest.raises(BadInput, match=r"Column 'x' of .* contains numbers written in two ways"):
        everything(path, columns=["x"])
    table, chunk = everything(path, columns=["x"], decimal="point")
    assert len(chunk.rows) + table.n_rejected == len(cells)


def test_later_cells_that_contradict_notation_are_invalid(written, monkeypatch):
    monkeypatch.setattr(_batches, "_SAMPLE_ROWS", 100)
    cells = [f"{i},5" for i in range(150)] + ["1.234,5", "12.5", "5 €", "1,2,3", "93ms", "1.23", "1_0,5", "(5", "--5,0"]
    table, chunk = everything(written(column(cells)), columns=["x"])
    assert chunk.rows[-1, 0] == 1234.5
    assert [row.number for row in table.rejected] == list(range(152, 160))
    assert all(row.reason.startswith("column 'x' is '") for row in table.rejected)


def test_missing_or_foreign_unit_is_invalid(written):
    cells = ["93ms", "2s", "5", "3kg", "0", "1min", "7ms", "8ms", "1ms", "2 ms", "12 s", "1 h"]
    table, _ = everything(written(column(cells)), columns=["x"])
    assert [(row.number, row.reason) for row in table.rejected] == [
        (3, "column 'x' is '5', not a number with unit like s"),
        (4, "column 'x' is '3kg', not a number with unit like s"),
    ]
    assert re.match(r"Interpreted: x: \d+ ?\w+ as [\d.]+ s\.", said(table))
    table, _ = everything(written(column(["$5", "€6", "$7", "€8"])))  # no currency has enough cells
    assert table.columns.skipped["x"] == "text, such as '$5'"


def test_text_that_is_no_number_stays_text(written):
    hosts = column([f"10.0.100.{100 + i}" for i in range(9)], "ip")
    assert everything(written(hosts))[0].columns.skipped == {"ip": "text, such as '10.0.100.100'"}
    for cells in (
        ["web-1", "web-2"],
        ["3rd", "4th", "5th"],
        ["1.2.3", "1.2.4"],
        ["12:30", "12:45"],
        ["5 of 7", "6 of 7"],
    ):
        table, _ = everything(written(column(cells)))
        assert table.columns.used == ["n"]
        assert table.interpretations == []


def test_infinite_numbers_are_invalid_in_any_notation(written):
    table, chunk = everything(written(column(["1,5e999", "2,5", "3,5", "4,5", "1,5e99"])), columns=["x"])
    assert chunk.rows[:, 0].tolist() == [2.5, 3.5, 4.5, 1.5e99]
    assert table.rejected[0].reason == "column 'x' is not finite"
    with pytest.raises(BadInput, match=r"None of the 2 rows .* column 'x' is not finite"):
        everything(written(column(["1,5e999", "2,5e999"])), columns=["x"])


def test_plain_option_accepts_plain_numbers_only(written):
    table, _ = everything(written(column(["93ms", "94ms"])), plain=True)
    assert table.columns.skipped == {"x": "text, such as '93ms'"}
    assert table.interpretations == []


def test_report_escapes_names_and_cells(written):
    name = "\x1b[31mevil\u202e"
    table, _ = everything(written(f"{name};n\n1,5;1\n2,5;3\n7,25;2\n"))
    assert said(table).isprintable()
    assert "\\x1b[31mevil" in said(table)


def test_report_groups_columns_by_notation(written):
    table, _ = everything(written("a;b;c\n1,5;2,5;9ms\n2,5;7,5;1ms\n8,25;3,125;7ms\n"))
    assert said(table) == "Interpreted: a, b: 8,25 as 8.25; c: 9ms as 0.009 s. Override with --decimal, --plain."


# ---- dates -----------------------------------------------------------------------------------------------------------


def day(*parts):
    return datetime(*parts, tzinfo=UTC).timestamp()


DATES = {
    "31.05.2024": day(2024, 5, 31),
    "31/05/2024 15:30": day(2024, 5, 31, 15, 30),
    "5/31/2024": day(2024, 5, 31),
    "5/31/24 3:30 PM": day(2024, 5, 31, 15, 30),
    "5/31/24 12:05:01.5 am": day(2024, 5, 31, 0, 5, 1) + 0.5,
    "31-05-2024 00:00:07": day(2024, 5, 31, 0, 0, 7),
    "31 May 2024": day(2024, 5, 31),
    "May 31, 2024 12:00": day(2024, 5, 31, 12),
    "31-Sept-2023": np.nan,
    "30-Sep-1969": day(1969, 9, 30),
    "31/May/2024:12:00:00 +0200": day(2024, 5, 31, 10),
    "31.12.69": day(1969, 12, 31),
    "31.12.68": day(2068, 12, 31),
    "29/02/2024": day(2024, 2, 29),
}


@pytest.mark.parametrize("text", [text for text, seconds in DATES.items() if not np.isnan(seconds)])
def test_parses_dates_in_either_order(written, text):
    table, chunk = everything(written(f"when;x\n{text};1\n{text};3\n{text};2\n"))
    assert table.columns.time == "when"
    assert chunk.times.tolist() == [DATES[text]] * 3
    assert "ambiguous" not in said(table)


def test_day_above_twelve_determines_order(written):
    table, chunk = everything(written("when;x\n01/02/2024;1\n02/02/2024;3\n13/02/2024;2\n30/02/2024;5\n2024-02-14;7\n"))
    assert chunk.times.tolist() == [day(2024, 2, 1), day(2024, 2, 2), day(2024, 2, 13), day(2024, 2, 14)]
    assert said(table) == "Interpreted: when: 01/02/2024 as 2024-02-01 (day-first). Override with --dates."
    assert table.rejected[0].reason == "column 'when' is '30/02/2024', not a time"
    table, chunk = everything(written("when;x\n01/02/2024;1\n02/02/2024;3\n02/13/2024;2\n"))
    assert chunk.times.tolist() == [day(2024, 1, 2), day(2024, 2, 2), day(2024, 2, 13)]
    assert "month-first" in said(table)


def test_reports_ambiguous_dates_and_option_overrides(written):
    path = written("when;x\n01/02/2024;1\n03/04/2024;3\n05/06/2024;2\n")
    table, chunk = everything(path)
    assert said(table) == "Interpreted: when: 01/02/2024 as 2024-02-01 (day-first, ambiguous). Override with --dates."
    assert chunk.times[0] == day(2024, 2, 1)
    table, chunk = everything(path, dates="month-first")
    assert chunk.times[0] == day(2024, 1, 2)
    assert "ambiguous" not in said(table)
    table, chunk = everything(written("when;x\n1/2/2024 3:00 PM;1\n3/4/2024 1:00 AM;3\n"))
    assert chunk.times[0] == day(2024, 1, 2, 15)
    assert "1/2/2024 3:00 PM as 2024-01-02 (month-first, ambiguous)" in said(table)


# ---- lines before the table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;\r"])
def test_sep_line_determines_delimiter(written, first):
    table, chunk = everything(written(f"{first}\na,1;b\n1,5;2\n2,5;7\n"))
    assert table.columns.used == ["a,1", "b"]
    assert_array_equal(chunk.rows, [[1.5, 2], [2.5, 7]])
    assert "';' as the delimiter" in said(table)
    assert "--delimiter" in said(table)


def test_skips_comments_before_and_between_rows(written):
    text = "# written by hand\n#\n\na,b\n1,2\n# a note, with a comma\n3,5\n#9,9\n4,4\n"
    table, chunk = everything(written(text))
    assert_array_equal(chunk.rows, [[1, 2], [3, 5], [4, 4]])
    assert_array_equal(chunk.numbers, [1, 2, 3])
    assert said(table) == "Interpreted: lines with # as comments. Override with --comment."
    table, chunk = everything(written("% of all\na,b\n1,2\n%\n3,5\n"), comment="%")
    assert_array_equal(chunk.rows, [[1, 2], [3, 5]])
    assert table.interpretations == []


def test_reads_header_from_comment(written):
    table, chunk = everything(written("# instrument 7\n# time x\n#t;temp;note\n1;2,5;a\n2;3,5;b\n4;7,25;c\n"))
    assert table.has_header
    assert (table.columns.used, table.columns.time) == (["temp"], "t")
    table, chunk = everything(written("#id,x\n5,1\n3,2\n9,7\n"))
    assert table.columns.used == ["id", "x"]
    assert len(chunk.rows) == 3


def test_tags_are_not_comments(written):
    table, chunk = everything(written("tag,n\n#a,1\n#b,3\n#c,2\n"), key="tag")
    assert chunk.keys == ["#a", "#b", "#c"]
    table, chunk = everything(written("#tag,n\n#a,1\n#b,3\n"), comment="")
    assert table.columns.used == ["n"]
    table, chunk = everything(written("#tag,n\n#a,1\n#b,3\n"))
    assert len(chunk.rows) == 2


def test_mark_in_quoted_cell_is_not_a_comment(written):
    _, chunk = everything(written('# c\na,b\n1,"two\n# lines"\n3,x\n4,y\n'), key="b")
    assert chunk.keys == ["two\n# lines", "x", "y"]


def test_quotes_in_comments_do_not_hide_rows(written):
    rows = "".join(f'{i},"x{i}"\n' for i in range(50))
    for n_bytes in (64, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "BLOCK_BYTES", n_bytes)
            _, chunk = everything(written(f'# 5" pipes\na,b\n{rows}# 6" pipes\n{rows}#"\n{rows}'), key="b")
        assert len(chunk.rows) == 150


HEADERLESS = {
    "European": ("31.05.2024;web-1;1,5\n01.06.2024;web-2;2,5\n02.06.2024;web-1;7,25\n", 3),
    "units": ("web-1,93ms\nweb-2,7ms\nweb-3,12ms\n", 3),
    "American": ("5/31/2024,web,$1.50\n6/1/2024,web,$2.50\n6/2/2024,web,$7.00\n", 3),
    "names with units": ("host,5%,95%\nweb-1,2.0,3.0\nweb-2,2.5,3.5\nweb-1,7,1\n", 3),
    "a year for a name": ("date;2024\n31.05.2024;1,5\n01.06.2024;2,5\n02.06.2024;3,25\n", 3),
}


@pytest.mark.parametrize("case", HEADERLESS)
def test_detects_header_above_notations(written, case):
    text, n_rows = HEADERLESS[case]
    table, chunk = everything(written(text))
    assert table.has_header == (case in ("names with units", "a year for a name"))
    assert len(chunk.rows) == n_rows
    assert ("first line as data (no header)" in said(table)) == (not table.has_header)


def test_header_option_overrides_detection(written):
    path = written("1,2\n3,5\n4,7\n")
    table, chunk = everything(path)
    assert (table.has_header, len(chunk.rows)) == (False, 3)
    table, chunk = everything(path, header=True)
    assert (table.columns.used, len(chunk.rows)) == (["1", "2"], 2)
    table, chunk = everything(written("a,b\n1,2\n3,5\n4,4\n5,5\n"), header=False)
    assert (table.columns.used, table.n_rejected, table.interpretations) == (["column_1", "column_2"], 1, [])


def test_delimiter_option_overrides_sep_line(written):
    for name in ("table.csv", "table.tsv"):
        assert everything(written("a:b,c\n1:2\n3:5\n", name), delimiter=":")[0].columns.used == ["a", "b,c"]
    table, _ = everything(written("sep=,\na:b,c\n1:2\n3:5\n"), delimiter=":")
    assert table.columns.used == ["a", "b,c"]


def test_reads_files_with_other_column_order_and_compression(tmp_path, written):
    first = written("a;b\n1,5;7ms\n2,5;9ms\n3,5;1s\n", "first.csv")
    (tmp_path / "second.csv.gz").write_bytes(gzip.compress(b'b,a\n3ms,"4,5"\n8,"5,5"\n'))
    table = open_table([first, str(tmp_path / "second.csv.gz")])
    chunk = gather(table.chunks())
    assert_allclose(chunk.rows, [[1.5, 0.007], [2.5, 0.009], [3.5, 1], [4.5, 0.003]])
    assert [row.number for row in table.rejected] == [5]
