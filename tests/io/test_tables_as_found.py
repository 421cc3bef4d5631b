"""Files as people have them: what `detect` understands of each, in the sentence that it prints."""

import io
import json
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from polyaforest.cli._reports import input_lines
from polyaforest.io import _batches
from polyaforest.io.tables import BadInput, Reading, gather, open_table

N = 400
START = datetime(2004, 3, 10, 18)
rng = np.random.default_rng(29)
LEVELS = rng.normal(20, 3, N).round(2).tolist()
OTHERS = rng.normal(0, 1, N).round(2).tolist()


def csv_of(delimiter=",", **columns):
    """Return a table as CSV."""
    rows = zip(*columns.values(), strict=True)
    lines = [delimiter.join(columns), *(delimiter.join(map(str, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def hourly(form, n=N, step=timedelta(hours=1)):
    return [f"{START + step * i:{form}}" for i in range(n)]


def months(form, n=N):
    return [f"{datetime(1833 + i // 12, i % 12 + 1, 1):{form}}" for i in range(n)]


def chosen(*shares):
    """Return texts in the given shares, in random order."""
    texts, weights = zip(*shares, strict=True)
    return rng.choice(texts, N, p=weights).tolist()


def sometimes(values, value, share):
    return [value if hit else other for other, hit in zip(values, rng.random(N) < share, strict=True)]


def web_log(*, combined):
    tail = ' "http://example.com/" "Mozilla/5.0 (X11; Linux) v{}"' if combined else ""
    line = '10.0.0.{} - - [{:%d/%b/%Y:%H:%M:%S} +0000] "GET /page/{}?q={} HTTP/1.1" {} {}' + tail
    return "".join(
        line.format(i % 7, START + timedelta(seconds=i * i), i % 5, i, 404 if i % 40 == 7 else 200, 900 + i % 90, i % 3)
        + "\n"
        for i in range(N)
    )


def prose():
    return "".join(
        f"2024-05-01 12:{i // 60:02d}:{i % 60:02d},123 INFO started job {i}{', took 5 ms' * (i % 3 > 0)}, done\n"
        for i in range(N)
    )


EPOCH = [1_700_000_000_000 + 60_000 * i for i in range(N)]
DATES, CLOCK = hourly("%d/%m/%Y"), hourly("%H.%M.%S")
OCEAN = chosen(("<1H OCEAN", 0.6), ("INLAND", 0.2), ("NEAR BAY", 0.1), ("NEAR OCEAN", 0.08), ("ISLAND", 0.02))
AGES = chosen(("18-25", 0.5), ("26-35", 0.3), ("36+", 0.2))
USED = "Read 400 rows of table, using level, other"

# name: (content, lines of the input that must be printed)
FILES = {
    **{
        f"epoch in {name}": (
            csv_of(**{name: EPOCH, "level": LEVELS, "other": OTHERS}),
            [f"{USED} (2 of 3 columns).", f"Times from {name}."],
        )
        for name in (
            *("timestamp_millis", "timestamp_ms", "time_ms", "epoch", "epoch_ms", "unix_time", "date_ms"),
            *("created", "event.time", "unixReviewTime", "dteday"),
        )
    },
    **{
        f"months as {first}": (
            csv_of(Month=months(form), level=LEVELS, other=OTHERS),
            [f"{USED} (2 of 3 columns).", "Times from Month."],
        )
        for form, first in (
            ("%Y-%m", "1833-01"),
            ("%Y/%m", "1833/01"),
            ("%m/%Y", "01/1833"),
            ("%YM%m", "1833M01"),
            ("%b %Y", "Jan 1833"),
        )
    },
    **{
        f"calendar numbers in {name}": (
            csv_of(**{name: values, "level": LEVELS, "other": OTHERS}),
            [f"{USED} (2 of 3 columns).", f"Times from {name}."],
        )
        for name, values in (
            ("day", [f"{START + timedelta(days=i):%Y%m%d}" for i in range(N)]),
            ("ts", hourly("%Y%m%d%H%M%S")),
            ("yyyymm", months("%Y%m")),
            ("Year", range(1624, 1624 + N)),
        )
    },
    "years of rows that are not in order": (
        csv_of(Year=[1990 + i % 30 for i in range(N)], level=LEVELS, other=OTHERS),
        ["Read 400 rows of table, using Year, level, other (3 of 3 columns)."],
    ),
    "a counter that begins late": (
        csv_of(n=range(1_500_000_000, 1_500_000_000 + N), level=LEVELS, other=OTHERS),
        [f"{USED} (2 of 3 columns).", "Skipped: n (row counter)."],
    ),
    "zeros and ones": (
        csv_of(level=LEVELS, other=OTHERS, is_new=chosen(("1", 0.02), ("0", 0.98))),
        ["Interpreted: is_new as categories. Override with --categories, --numbers-only."],
    ),
    "zeros and ones in time": (
        csv_of(time=EPOCH, level=LEVELS, other=OTHERS, is_on=chosen(("1", 0.5), ("0", 0.5))),
        ["Read 400 rows of table, using level, other, is_on (3 of 4 columns).", "Times from time."],
    ),
    "addresses": (
        csv_of(level=LEVELS, other=OTHERS, ip=[f"10.0.{i % 8}.{i % 10}" for i in range(N)]),
        ["Interpreted: ip as categories. Override with --categories, --numbers-only."],
    ),
    "a date and a time": (
        csv_of(";", Date=DATES, Time=CLOCK, level=LEVELS, other=OTHERS),
        [
            f"{USED} (2 of 4 columns).",
            "Times from Date and Time.",
            "Interpreted: Date, Time: 10/03/2004 and 18.00.00 as 2004-03-10 18:00:00 (day-first). "
            "Override with --dates, --time.",
        ],
    ),
    "dates as in headers of mails": (
        csv_of(";", sent=hourly("%a, %d %b %Y %H:%M:%S GMT"), level=LEVELS, other=OTHERS),
        [f"{USED} (2 of 3 columns).", "Times from sent."],
    ),
    "a date and an evening": (
        csv_of(";", day=hourly("%Y-%m-%d"), start_time=hourly("%I:%M %p"), level=LEVELS, other=OTHERS),
        [
            "Times from day and start_time.",
            "Interpreted: day, start_time: 2004-03-10 and 06:00 PM as 2004-03-10 18:00:00. Override with --time.",
        ],
    ),
    "levels that begin like numbers": (
        csv_of(level=LEVELS, other=OTHERS, ocean=OCEAN, age=AGES),
        [
            "Read 400 rows of table, using level, other, ocean, age (4 of 4 columns).",
            "Interpreted: ocean, age as categories. Override with --categories, --numbers-only.",
        ],
    ),
    "booleans": (
        csv_of(level=LEVELS, other=OTHERS, is_new=chosen(("True", 0.1), ("False", 0.9))),
        ["Interpreted: is_new as categories. Override with --categories, --numbers-only."],
    ),
    "numeric ids": (
        csv_of(
            fips=rng.permutation(N) * 97 + 1001,
            GEOID=rng.permutation(N) + 48001,
            CustomerID=rng.integers(1, 300, N),
            level=LEVELS,
            other=OTHERS,
        ),
        [
            f"{USED} (2 of 5 columns).",
            "Skipped: fips, GEOID (identifier); CustomerID (identifier, ",
        ],
    ),
    "codes": (
        csv_of(status=chosen((200, 0.9), (404, 0.08), (500, 0.02)), level=LEVELS, other=OTHERS),
        ["Interpreted: status as categories."],
    ),
    "sentinels": (
        csv_of(level=sometimes(LEVELS, -200, 0.2), other=sometimes(OTHERS, 9999, 0.02), plain=LEVELS[::-1]),
        ["Interpreted: level: -200 as missing; other: 9999 as missing. Override with --missing-values."],
    ),
    "a sentinel of one column in others": (
        csv_of(level=sometimes(LEVELS, -200, 0.2), large=sometimes(rng.integers(2, 1500, N).tolist(), -200, 0.1)),
        ["Interpreted: level, large: -200 as missing. Override with --missing-values."],
    ),
    "several sentinels": (
        csv_of(level=sometimes(sometimes(LEVELS, -9999, 0.05), -8888, 0.05), other=OTHERS),
        ["Interpreted: level: -9999 and -8888 as missing. Override with --missing-values."],
    ),
    "ages, or -9": (
        csv_of(age=sometimes(rng.integers(0, 90, N).tolist(), -9, 0.1), other=OTHERS),
        ["Interpreted: age: -9 as missing. Override with --missing-values."],
    ),
    "days since, or -1": (
        csv_of(days=sometimes(rng.integers(1, 400, N).tolist(), -1, 0.6), other=OTHERS),
        ["Interpreted: days: -1 as missing. Override with --missing-values."],
    ),
    "unnamed empty columns and rows": (
        csv_of(level=LEVELS, other=OTHERS).replace("\n", ",,,\n") + ",,,,\n" * 30,
        [
            f"{USED} (2 of 5 columns).",
            "Skipped: column_3, column_4, column_5 (empty).",
            "Left out 30 rows without any value.",
        ],
    ),
    "notes in unnamed columns": (
        csv_of(level=LEVELS, other=OTHERS, **{"": ["see"] * 3 + ["check", "check"] + [""] * (N - 5)}),
        ["Skipped: column_3 (unnamed, hardly filled)."],
    ),
    "the index of a frame": (
        csv_of(**{"": rng.permutation(N), "level": LEVELS, "other": OTHERS}),
        [f"{USED} (2 of 3 columns).", "Skipped: column_1 (identifier)."],
    ),
    "months as names of columns": (
        csv_of(country=chosen(("DE", 0.5), ("FR", 0.5)), **{"2000-01": LEVELS, "2000-02": OTHERS}),
        ["Read 400 rows of table, using country, 2000-01, 2000-02 (3 of 3 columns)."],
    ),
    "a combined log": (
        web_log(combined=True),
        [
            "Read 400 rows of table, using host, path, status, bytes, agent (5 of 10 columns).",
            "Interpreted: lines as requests to a web server (combined log format); "
            "host, path, status, agent as categories. Override with --format, --categories, --numbers-only.",
        ],
    ),
    "a common log": (
        web_log(combined=False),
        [
            "Read 400 rows of table, using host, path, status, bytes (4 of 8 columns).",
            "Interpreted: lines as requests to a web server (common log format); ",
        ],
    ),
    "a log in JSON": (
        "".join(
            json.dumps({"time": time, "level": kind, "msg": f"job {i}", "http": {"ms": level}}) + "\n"
            for i, (time, kind, level) in enumerate(
                zip(hourly("%Y-%m-%dT%H:%M:%SZ"), chosen(("info", 0.9), ("error", 0.1)), LEVELS, strict=True)
            )
        ),
        [
            "Read 400 rows of table, using level, http.ms (2 of 4 columns).",
            "Times from time. Skipped: msg (text, all different).",
        ],
    ),
    "a JSON array": (
        json.dumps([{"level": a, "other": b} for a, b in zip(LEVELS, OTHERS, strict=True)], indent=1),
        [f"{USED} (2 of 2 columns)."],
    ),
    "a JSON array in an object": (
        json.dumps({"n": N, "data": [{"level": a, "other": b} for a, b in zip(LEVELS, OTHERS, strict=True)]}, indent=1),
        [f"{USED} (2 of 2 columns).", "Interpreted: array 'data' as the table. Override with --format."],
    ),
    "a log in JSON with a banner": (
        "starting up, please wait\n"
        + "".join(json.dumps({"level": a, "other": b}) + "\n" for a, b in zip(LEVELS, OTHERS, strict=True)),
        [f"{USED} (2 of 2 columns).", "Skipped 1 invalid row: row 1: invalid JSON"],
    ),
    "rows in JSON under their names": (
        json.dumps([["level", "other"], *zip(LEVELS, OTHERS, strict=True)]),
        [f"{USED} (2 of 2 columns)."],
    ),
    "names and rows in JSON": (
        json.dumps({"columns": ["level", "other"], "data": list(zip(LEVELS, OTHERS, strict=True))}, indent=1),
        [f"{USED} (2 of 2 columns).", "Interpreted: arrays 'columns' and 'data' as the table. Override with --format."],
    ),
    "a JSON array in objects": (
        json.dumps(
            {"data": {"n": N, "items": [{"level": a, "other": b} for a, b in zip(LEVELS, OTHERS, strict=True)]}},
            indent=1,
        ),
        [f"{USED} (2 of 2 columns).", "Interpreted: array 'data.items' as the table. Override with --format."],
    ),
    "columns in JSON": (
        json.dumps({"level": dict(enumerate(LEVELS)), "other": dict(enumerate(OTHERS))}, indent=1),
        [f"{USED} (2 of 2 columns).", "Interpreted: values by column as the table. Override with --format."],
    ),
}


@pytest.fixture
def saved(tmp_path):
    """Write a file and return its path."""

    def save(content, name="table"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return save


def everything(path, **options):
    """Return a table and all its rows, with categories."""
    table = open_table([path], **{"categories": None, **options})
    return table, gather(table.chunks())


@pytest.mark.parametrize(("content", "said"), FILES.values(), ids=FILES)
def test_reports_its_interpretation(saved, content, said):
    table, chunk = everything(saved(content))
    lines = input_lines(table)
    assert (table.n_rows, table.n_rejected) == (N, any("Skipped 1 invalid row" in words for words in said))
    for words in said:
        assert any(line.startswith(words) for line in lines), lines
    assert chunk.rows.shape == (N, len(table.columns.used))


def test_joins_dates_with_times_of_day(saved):
    path = saved(csv_of(";", Date=DATES, Time=CLOCK, level=LEVELS, other=OTHERS))
    _, chunk = everything(path)
    assert chunk.times.tolist() == [1078941600.0 + 3600 * i for i in range(N)]  # 2004-03-10 18:00
    _, chunk = everything(path, time="Date,Time")
    assert chunk.times[1] - chunk.times[0] == 3600
    table, chunk = everything(path, time="Date")
    assert (chunk.times % 86_400 == 0).all()
    assert table.columns.times == "Date"
    assert table.columns.skipped["Time"] == "times of day"
    with pytest.raises(BadInput, match=r"Column 'level' of .* contains .*, not times of day such as"):
        everything(path, time="Date,level")


def test_row_with_invalid_time_of_day_is_named(saved):
    path = saved(csv_of(";", Date=DATES, Time=["25.00.00", *CLOCK[1:]], level=LEVELS, other=OTHERS))
    table, _ = everything(path)
    assert [row.reason for row in table.rejected] == ["column 'Time' is '25.00.00', not a time"]


def test_months_are_times(saved):
    _, chunk = everything(
        saved(csv_of(t=["2000-01", "2000/02", "03/2000", "2000-Q2"] * 5, x=[3, 1, 2, 5] * 5)), time="t"
    )
    assert chunk.times[:4].astype("M8[s]").astype(str).tolist() == [
        f"2000-0{month}-01T00:00:00" for month in (1, 2, 3, 4)
    ]


def test_sentinels_are_missing(saved):
    content = csv_of(level=sometimes(LEVELS, -200, 0.2), other=OTHERS)
    path = saved(content)
    table, chunk = everything(path)
    is_missing = np.array([line.startswith("-200,") for line in content.splitlines()[1:]])
    assert np.isnan(chunk.rows[:, 0]).tolist() == is_missing.tolist()
    assert table.sentinels == {"level": (-200.0,)}
    _, chunk = everything(path, reading=Reading(missing=()))
    assert chunk.rows[:, 0].min() == -200
    table, chunk = everything(path, reading=Reading(missing=("-200", "19.5")))
    assert table.interpretations == []
    assert np.isnan(chunk.rows[:, 0]).sum() >= is_missing.sum()
    _, chunk = everything(path, sentinels={"other": [OTHERS[0]]})  # as a model knows them
    assert chunk.rows[:, 0].min() == -200
    assert np.isnan(chunk.rows[0, 1])


NO_SENTINELS = {
    "a lone extreme": [9999.0, *LEVELS[1:]],
    "zeros far below": sometimes(LEVELS, 0, 0.02),
    "a frequent top score": sometimes(rng.integers(0, 100, N).tolist(), 99, 0.1),
    "signs": rng.choice([-1, 0, 1], N).tolist(),
    "a rare pair of prices": [5000.0] * 5 + LEVELS[5:],
    "logs of shares": sometimes(rng.uniform(0, 60, N).round(1).tolist(), 100, 0.1),
    "a rare minus among signed values": sometimes(OTHERS, -9, 0.02)[:-8] + [-8.5, -7.0, -6.0, 5.0] * 2,
    "negative values": rng.normal(-150, 40, N).round(-1).tolist(),
}


@pytest.mark.parametrize("values", NO_SENTINELS.values(), ids=NO_SENTINELS)
def test_keeps_values_that_are_no_sentinels(saved, values):
    table, chunk = everything(saved(csv_of(x=values, other=OTHERS)))
    assert table.sentinels == {}
    assert np.array_equal(chunk.rows[:, 0], values)


def test_texts_that_mean_no_value(saved):
    values = sometimes(LEVELS, "unknown", 0.1)
    path = saved(csv_of(level=values, kind=chosen(("a", 0.5), ("b", 0.4), ("unknown", 0.1)), other=OTHERS))
    table, chunk = everything(path, reading=Reading(missing=("Unknown",)))
    assert (table.n_rows, table.n_rejected) == (N, 0)
    assert np.isnan(chunk.rows).any(axis=0).tolist() == [True, True, False]
    assert set(chunk.texts.values()) == {"a", "b"}


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.jsonl", "table.parquet"])
def test_decides_from_rows_across_the_file(tmp_path, monkeypatch, name):
    monkeypatch.setattr(_batches, "_SAMPLE_ROWS", 100)
    n = 30_000
    late = [None] * 5000 + [0.5, 1.5] * ((n - 5000) // 2)
    frame = pl.DataFrame(
        {"x": np.arange(n) * 7919 % 1009, "late": late, "never": pl.Series([None] * n, dtype=pl.String)}
    )
    path = tmp_path / name
    if name.endswith("parquet"):
        frame.write_parquet(path)
    elif name.endswith("jsonl"):
        frame.write_ndjson(path)
    else:
        import gzip

        text = frame.write_csv()
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if name.endswith("gz") else text.encode())
    table, chunk = everything(str(path))
    assert table.columns.used == ["x", "late"]
    assert table.columns.skipped["never"].startswith("empty in")
    assert (np.isnan(chunk.rows[:, 1]).sum(), table.n_rows) == (5000, n)
    assert np.array_equal(chunk.rows[:, 0], frame["x"])


def test_refuses_text_that_is_not_a_table(saved):
    with pytest.raises(
        BadInput, match=r"does not read as a table: \d+ of its first 400 rows are invalid\. Row 2: 4 cells"
    ):
        everything(saved(prose()))
    late = csv_of(level=LEVELS, other=OTHERS) * 50 + "no, table, here\n" * 40_000
    table = open_table([saved(late)])
    with pytest.raises(BadInput, match="does not read as a table"):
        gather(table.chunks())


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_text_in_another_encoding_says_how_to_convert_it(saved, share):
    content = csv_of(level=LEVELS, town=sometimes(["Bonn"] * N, "Köln", share))
    with pytest.raises(BadInput, match=r"not UTF-8\. Content: .* Convert the file first, for example: iconv"):
        everything(saved(content.encode("latin1")))


def test_a_few_bad_rows_do_not_make_a_table_unreadable(saved):
    lines = csv_of(level=LEVELS, other=OTHERS).splitlines()
    lines[10:70] = ["broken"] * 60
    table, _ = everything(saved("\n".join(lines)))
    assert (table.n_rows, table.n_rejected) == (N - 60, 60)


def test_line_of_log_that_does_not_parse_is_named(saved):
    table, _ = everything(saved(web_log(combined=True) + "java.lang.NullPointerException\n"))
    [bad] = table.rejected
    assert (bad.number, bad.reason) == (401, "not a request in the common log format")


def written(form):
    """Return a table in a binary format."""
    frame = pl.DataFrame({"level": LEVELS, "other": OTHERS, "is_new": [x > 1 for x in OTHERS]})
    file = io.BytesIO()
    if form == "orc":
        orc = pytest.importorskip("pyarrow.orc")
        orc.write_table(frame.to_arrow(), file)
    elif form == "parquet":
        frame.write_parquet(file)
    elif form == "arrows":
        frame.write_ipc_stream(file)
    else:
        frame.write_ipc(file)
    return file.getvalue()


@pytest.mark.parametrize("form", ["arrow", "arrows", "feather", "orc", "parquet"])
def test_reads_binary_formats(saved, form):
    table, chunk = everything(saved(written(form), f"table.{form}"))
    assert table.columns.used == ["level", "other", "is_new"]
    assert table.columns.categories == ["is_new"]
    assert np.array_equal(chunk.rows[:, 0], LEVELS)
    assert len(chunk.texts) == 2
    with pytest.raises(BadInput, match="is not a valid"):
        everything(saved(written(form)[:60] + bytes(100), f"broken.{form}"))


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_codes_are_the_same_in_files_that_write_them_otherwise(tmp_path, form):
    flags = (rng.random(N) < 0.2).astype(int)
    texts = []
    for kind in (pl.Int64, pl.Float64):
        frame = pl.DataFrame({"level": LEVELS, "is_new": flags, "status": 200 + flags}).with_columns(
            pl.col("is_new", "status").cast(kind)
        )
        path = tmp_path / f"{kind}.{form}"
        getattr(frame, {"csv": "write_csv", "parquet": "write_parquet", "jsonl": "write_ndjson"}[form])(path)
        table, chunk = everything(str(path))
        assert table.columns.categories == ["is_new", "status"]
        texts.append([chunk.texts[code] for code in chunk.rows[:, 1:].ravel().tolist()])
    assert texts[0] == texts[1] == [str(value) for flag in flags.tolist() for value in (flag, 200 + flag)]


def test_calendar_numbers_are_days(saved):
    days = [f"{START + timedelta(days=i):%Y%m%d}" for i in range(N)]
    _, chunk = everything(saved(csv_of(day=[*days[:-1], "20051332"], level=LEVELS)), time="day")
    assert chunk.times[:2].astype("M8[s]").astype(str).tolist() == ["2004-03-10T00:00:00", "2004-03-11T00:00:00"]
    months_of = saved(
        json.dumps([{"month": 200000 + i % 12 + 1 + i // 12 * 100, "x": x} for i, x in enumerate(LEVELS)])
    )
    table, chunk = everything(months_of)
    assert table.columns.time == "month"
    assert str(chunk.times[[13]].astype("M8[s]")[0]) == "2001-02-01T00:00:00"


def test_logs_that_are_no_tables_say_which_can_be_read(saved):
    lines = "".join(f"May  1 12:00:{i % 60:02d} host sshd[{i}]: Failed password for user {i * 7}\n" for i in range(N))
    with pytest.raises(BadInput, match=r"no column to use: .* Of logs, those of web servers and of JSON objects can"):
        everything(saved(lines))


def test_text_that_begins_like_orc_is_csv(saved):
    table, _ = everything(saved(csv_of(ORCHARD=LEVELS, other=OTHERS)))
    assert table.columns.used == ["ORCHARD", "other"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2", "is not valid JSON"),
        ("[]", "is an empty JSON array"),
        ('{\n"a": [{"x": 1}], "b": [{"x": 2}]}', "holds several arrays of objects: 'a', 'b'"),
        ('{\n"a": {"b": 1}, "c": 2}', "holds no array of objects"),
    ],
)
def test_bad_json_documents(saved, content, words):
    with pytest.raises(BadInput, match=words):
        everything(saved(content, "table.json"))


def test_ignores_columns(saved):
    path = saved(csv_of(level=LEVELS, other=OTHERS, label=chosen(("ok", 0.9), ("bad", 0.1))))
    table, _ = everything(path, ignore=["label"])
    assert table.columns.used == ["level", "other"]
    assert table.columns.skipped == {"label": "ignored"}
    with pytest.raises(BadInput, match=r"has no column 'lable'\. Did you mean 'label'"):
        everything(path, ignore=["lable"])
    with pytest.raises(BadInput, match="Column 'label' is both chosen and ignored"):
        everything(path, ignore=["label"], id="label")


def test_partitions_by_several_columns(saved):
    path = saved(csv_of(host=["a", "b"] * (N // 2), disk=[1, 1, 2, 2] * (N // 4), level=LEVELS, other=OTHERS))
    table, chunk = everything(path, key=["host", "disk"])
    assert table.columns.key == "host, disk"
    assert table.columns.used == ["level", "other"]
    assert chunk.keys[:4] == ["a, 1", "b, 1", "a, 2", "b, 2"]
