"""`detect`, `fit`, `score` and `explain` from end to end."""

import json
import re
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from effort import mostly_slow
from sklearn.base import clone

import polyaforest
from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.cli import _detect
from polyaforest.cli._demo import write_example
from polyaforest.datasets.demo import INCIDENTS, server_metrics

pytestmark = pytest.mark.end_to_end

METRICS = ["requests", "cpu", "memory", "latency_ms", "errors"]
CAUSES = {
    "high latency": "latency_ms",
    "no requests": "latency_ms",
    "request spike": "errors",
    "memory": "memory",
    "high CPU": "cpu",
}


@pytest.fixture(scope="module")
def metrics() -> pl.DataFrame:
    return pl.DataFrame(server_metrics())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, metrics) -> Path:
    """A folder with the metrics of servers, a quiet file, and one with all kinds of bad rows."""
    place = tmp_path_factory.mktemp("files")
    metrics.write_csv(place / "metrics.csv")
    quiet = pl.DataFrame(np.random.default_rng(0).uniform(size=(300, 2)), schema=["a", "b"])
    quiet.write_csv(place / "quiet.csv")
    lines = (place / "metrics.csv").read_text().splitlines()
    lines[1] = lines[1].rsplit(",", 1)[0] + ","  # no errors in row 1
    lines[17] = "torn"
    lines[30] = lines[30].replace("web-2,", "web-2,oops")
    cells = lines[2217].split(",")  # in the rush
    lines[2217] = ",".join([*cells[:3], "", *cells[4:]])
    (place / "holes.csv").write_text("\n".join(lines) + "\n")
    return place


@pytest.fixture(scope="module")
def rush(metrics) -> range:
    """The numbers of the rows of the rush of requests."""
    start = int((metrics["timestamp"] == f"{INCIDENTS[2].start}Z").arg_max())
    return range(start + 1, start + 10)


def mixed(metrics: pl.DataFrame) -> pl.DataFrame:
    """The columns that are used by default."""
    return metrics.select(pl.col("host").cast(pl.Categorical), pl.col(METRICS).cast(pl.Float64))


# ---- detect ----------------------------------------------------------------------------------------------------------


def test_detect_finds_all_incidents_without_options(cli, folder):
    code, out, err = cli("detect", folder / "metrics.csv")
    assert code == 0
    assert out.startswith(
        "22 of 4,032 rows stand out, in 7 events (1 certain, 2 likely, 4 borderline). "
        "Up to about 4 borderline rows are expected by chance.\n"
    )
    blocks = out.split("\n\n")[1 : 1 + len(INCIDENTS)]
    for incident in INCIDENTS:
        start = incident.start.replace("T", " ")[:16]
        (block,) = [block for block in blocks if f", {start} to " in block]
        (attributions,) = [name for begin, name in CAUSES.items() if incident.what.startswith(begin)]
        assert f"({incident.n_readings} flagged, worst " in block
        assert block.splitlines()[1].split()[0] == attributions
    assert err.splitlines() == [
        "Read 4,032 rows of metrics.csv, using host, requests, cpu, memory, latency_ms, errors (6 of 7 columns).",
        "Times from timestamp.",
        "Interpreted: host as categories. Override with --categories, --numbers-only.",
    ]
    code, out, err = cli("detect", folder / "metrics.csv", "--numbers-only")
    assert out.startswith("20 of 4,032 rows stand out, in 5 events (")
    assert err.splitlines()[1:] == ["Times from timestamp. Skipped: host (text)."]


@pytest.mark.parametrize(
    "args", mostly_slow([["--batch"], ["--stream"], ["--shingle", "4"], ["--epsilon", "0.002"], []], 0, 1)
)
def test_every_kind_of_detector_finds_the_rush_by_host(cli, folder, rush, args):
    code, out, _ = cli("detect", folder / "metrics.csv", "--by", "host", "--top", "2", *args)
    assert code == 0
    assert "scored separately by host (2 values)" in out
    heads = [line for line in out.splitlines() if line[:3] in ("1. ", "2. ")]
    numbers = [int(head.split("rows ")[1].split("–")[0].replace(",", "")) for head in heads]
    assert any(number in rush and "web-1" in head for number, head in zip(numbers, heads, strict=True))


def test_detect_reports_no_findings_and_exits_with_0(cli, folder):
    code, out, _ = cli("detect", folder / "quiet.csv", "--fail-on-anomaly")
    assert (code, out) == (0, "Nothing stands out: 0 of 300 rows. Hardly any are expected by chance.\n")


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet"])
def test_other_formats_give_the_same_report(cli, folder, metrics, kind):
    path = folder / f"metrics.{kind}"
    writers = {"tsv": lambda: metrics.write_csv(path, separator="\t"), "jsonl": lambda: metrics.write_ndjson(path)}
    writers.get(kind, lambda: metrics.write_parquet(path))()
    assert cli("detect", path, "-q") == cli("detect", folder / "metrics.csv", "-q")


def test_bad_rows_are_skipped_and_missing_values_accepted(cli, folder, rush):
    code, out, err = cli("detect", folder / "holes.csv", "--top", "1")
    assert code == 0
    assert "of 4,030 rows" in out
    assert f"1. rows {rush[0]:,}–{rush[-1]:,}" in out
    assert "Skipped 2 invalid rows: row 17: " in err
    assert "row 30: column 'requests' is 'oops" in err
    code, out, err = cli("detect", folder / "holes.csv", "--stream", "--out", "-", "--only-anomalies", "-q")
    assert (code, err) == (0, "")
    row = next(line for line in out.splitlines() if line.startswith("2217,"))
    assert "missing: cpu" in row
    code, out, err = cli("detect", folder / "holes.csv", "--strict")
    assert (code, out) == (3, "")
    assert err.startswith("Error: Row 17 ")


def test_output_has_every_row_with_score_and_reason(cli, folder, metrics):
    args = ["detect", folder / "metrics.csv", "--id", "host", "-q"]
    assert cli(*args, "--out", folder / "all.parquet", "--fail-on-anomaly")[0] == 1
    written = pl.read_parquet(folder / "all.parquet")
    assert written.columns == [
        "row",
        "timestamp",
        "host",
        *METRICS,
        "score",
        "p_value",
        "is_anomaly",
        "severity",
        "attributions",
        "reason",
    ]
    assert written["row"].to_list() == list(range(1, 4033))
    assert written.select("timestamp", "host").equals(metrics.select("timestamp", "host"))
    np.testing.assert_array_equal(written.select(METRICS).to_numpy(), metrics.select(METRICS).to_numpy())
    forest = StreamingMPF(random_state=0).fit(metrics.select(METRICS).cast(pl.Float64))
    scores = forest.score_samples(metrics.select(METRICS).cast(pl.Float64))
    np.testing.assert_array_equal(written["score"].to_numpy(), scores)
    flagged = written.filter(pl.col("is_anomaly"))
    assert len(flagged) == 20
    assert flagged["score"].max() < written.filter(~pl.col("is_anomaly"))["score"].min()
    assert (flagged["attributions"].list.len() > 0).all()
    assert (
        flagged["reason"]
        .str.contains(r"^\w+ [\d.,]+ (too high|too low|none at all|unusual) \(usual .+\): \+\d+\.\d bits")
        .all()
    )
    assert (written.filter(~pl.col("is_anomaly"))["reason"].fill_null("") == "").all()
    cli(*args, "--out", folder / "some.jsonl", "--only-anomalies")
    some = [json.loads(line) for line in (folder / "some.jsonl").read_text().splitlines()]
    assert [one["row"] for one in some] == flagged["row"].to_list()
    assert [one["score"] for one in some] == flagged["score"].to_list()


def test_false_alarm_rate_flags_about_that_share_of_normal_rows(cli, folder):
    _, out, _ = cli("detect", folder / "metrics.csv", "--false-alarm-rate", "0.01")
    flagged = int(out.split(" of ")[0])
    assert 15 <= flagged <= 65  # about one normal row in a hundred, give or take a third, and the incidents
    code, out, err = cli("detect", folder / "quiet.csv", "--false-alarm-rate", "0.001")
    assert (code, out) == (3, "")
    assert "at least 1,000 are needed for a false alarm rate of 0.001" in err


def test_stream_results_equal_the_detector_for_any_chunk_size(cli, folder, metrics, monkeypatch):
    monkeypatch.setattr(_detect, "_ROWS_OF_STREAM", 700)
    path = folder / "stream.parquet"
    _, out, _ = cli("detect", folder / "metrics.csv", "--stream", "--window", "300", "--seed", "5", "--out", path)
    written = pl.read_parquet(path)
    judged = StreamingMPF(window=300, random_state=5).detect_then_learn(mixed(metrics))
    assert written.select("host").equals(metrics.select("host"))
    np.testing.assert_array_equal(written["score"].to_numpy(), judged.scores)
    np.testing.assert_array_equal(written["p_value"].to_numpy(), judged.p_values)
    np.testing.assert_array_equal(written["is_anomaly"].to_numpy(), judged.is_anomaly)
    assert f"{judged.is_anomaly.sum()} of 3,932 scored rows stand out" in out
    assert "100 of 4,032 rows have no verdict: the first rows of a stream, which are learned only.\n" in out


def test_partitions_of_a_stream_are_scored_separately(cli, folder, metrics):
    path, metrics = folder / "keyed.parquet", metrics[2000:3000]  # the rush of requests is among them
    metrics.write_csv(folder / "some.csv")
    cli("detect", folder / "some.csv", "--shingle", "5", "--by", "host", "--out", path, "-q")
    written = pl.read_parquet(path)
    for host in ("web-1", "web-2"):
        rows = metrics.filter(pl.col("host") == host)
        times = rows["timestamp"].str.to_datetime(time_zone="UTC").dt.epoch("s").to_numpy().astype(np.float64)
        detector = SeriesMPF(StreamingMPF(window=1024, random_state=0), shingle=5)
        judged = detector.detect_then_learn(rows.select(METRICS).to_numpy().astype(np.float64), times=times)
        mine = written.filter(pl.col("host") == host)
        np.testing.assert_array_equal(mine["score"].fill_null(np.nan).to_numpy(), judged.scores)
        np.testing.assert_array_equal(mine["is_anomaly"].to_numpy(), judged.is_anomaly)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--epsilon", "0.1", "--false-alarm-rate", "0.1"], 2, "mutually exclusive"),
        (["--phi", "0.5"], 2, "--phi needs --epsilon"),
        (["--stream", "--epsilon", "0.1"], 2, "for whole tables"),
        (["--batch", "--shingle", "3"], 2, "which --batch ignores"),
        (["--window", "100"], 2, "add --stream"),
        (["--only-anomalies"], 2, "add --out FILE"),
        (["--plot", "-"], 2, "needs a file name"),
        (["--columns", ","], 2, "at least one name"),
        (["--plot", "nowhere/picture.png"], 3, "there is no directory nowhere"),
        (["--out", "all.xls"], 3, "Use the extension .csv"),
        (["--plot", "picture.txt"], 3, "must end in .pdf, .png or .svg"),
        (["--out", "nowhere/at/all.csv"], 3, "nowhere/at does not exist"),
        (["--columns", "cpu,latency"], 3, "Did you mean 'latency_ms'?"),
        (["--by", "timestamp", "--columns", "cpu", "--stream"], 3, "--id"),
        (["--by", "absent"], 3, "has no column 'absent'"),
    ],
)
def test_invalid_options_are_reported_in_a_sentence(cli, folder, args, code, words):
    done, out, err = cli("detect", folder / "quiet.csv" if args[0] == "--window" else folder / "metrics.csv", *args)
    assert (done, out) == (code, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err


def test_input_is_not_overwritten(cli, folder):
    before = (folder / "quiet.csv").read_bytes()
    assert cli("detect", folder / "quiet.csv", "--out", folder / "quiet.csv")[0] == 3
    assert (folder / "quiet.csv").read_bytes() == before


def test_readings_of_a_series_must_be_in_order(cli, folder, metrics):
    metrics.reverse().write_csv(folder / "backwards.csv")
    code, out, err = cli("detect", folder / "backwards.csv", "--shingle", "3")
    assert (code, out) == (3, "")
    assert "row 3 is from 2026-03-08 23:50, but the row before it is from 2026-03-08 23:55" in err
    assert cli("detect", folder / "backwards.csv", "-q")[1].count("flagged, worst") == 5  # a table is sorted


# ---- series ----------------------------------------------------------------------------------------------------------

HOUR = timedelta(hours=1)
SAID = "Scored as a time series: times are evenly spaced, neighbouring rows similar. Override with --rows."


def daily(n, event=None, seed=0):
    """Return a table with a daily period; the rise after the reading `event` is missing."""
    load = 20 + 10 * np.sin(2 * np.pi * np.arange(n) / 24) + np.random.default_rng(seed).normal(size=n)
    if event is not None:
        load[event : event + 24] = np.minimum(load[event : event + 24], 20)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return pl.DataFrame({"time": [(start + i * HOUR).isoformat() for i in range(n)], "load": load.round(3)})


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> Path:
    """Write files of one series, of several, and of independent rows with times."""
    place = tmp_path_factory.mktemp("series")
    daily(2000, 1500).write_csv(place / "one.csv")
    hosts = {"a": daily(2000, 1500), "b": daily(1800, seed=1), "c": daily(25, seed=2)}
    pl.concat([part.with_columns(host=pl.lit(name)) for name, part in hosts.items()]).write_csv(place / "hosts.csv")
    noise = np.random.default_rng(3).normal(size=(2000, 2))
    noise[700] = 9.0
    daily(2000).select("time").with_columns(a=noise[:, 0], b=noise[:, 1]).write_csv(place / "rows.csv")
    return place


def flagged_rows(cli, *args):
    """Return the numbers of the rows that a command flags, and its messages."""
    code, out, err = cli(*args, "--out", "-", "--only-anomalies")
    assert code == 0
    return pl.read_csv(out.encode())["row"].to_numpy() - 1, err


def test_evenly_spaced_similar_rows_are_scored_as_a_series(cli, series):
    rows, err = flagged_rows(cli, "detect", series / "one.csv")
    assert SAID in err
    assert ((rows >= 1500) & (rows < 1540)).any()
    assert (rows < 1500).sum() < 8  # false alarms, one or two in a thousand
    alone, err = flagged_rows(cli, "detect", series / "one.csv", "--series")
    assert SAID not in err  # it was requested
    assert alone.tolist() == rows.tolist()
    code, out, err = cli("detect", series / "one.csv", "-q")
    assert (code, err) == (0, "")
    assert "load" in out


def test_rows_are_scored_independently_on_request_or_without_order(cli, series):
    rows, err = flagged_rows(cli, "detect", series / "one.csv", "--rows")
    assert "time series" not in err
    assert not ((rows >= 1500) & (rows < 1524)).any()  # no single reading is unusual
    rows, err = flagged_rows(cli, "detect", series / "rows.csv")
    assert "time series" not in err
    assert 700 in rows
    assert_same_as_rows = flagged_rows(cli, "detect", series / "rows.csv", "--rows")[0]
    assert rows.tolist() == assert_same_as_rows.tolist()
    for args in (["--batch"], ["--epsilon", "0.001"], ["--stream"]):
        assert "time series" not in cli("detect", series / "one.csv", *args)[2]


def test_several_series_are_scored_separately(cli, series):
    rows, err = flagged_rows(cli, "detect", series / "hosts.csv", "--by", "host")
    assert SAID in err
    assert "Too few rows to score 1 value of host: c (25)." in err
    assert ((rows >= 1500) & (rows < 1540)).any()
    assert ((rows >= 2000) & (rows < 3800)).sum() < 8
    code, _, err = cli("detect", series / "hosts.csv", "--series")
    assert code == 3
    assert "rows of a time series must be in order of time" in err


@pytest.mark.parametrize("args", [[], ["--by", "host"]], ids=str)
def test_wide_series_without_a_context_window_is_scored_as_rows_or_skipped(cli, series, tmp_path, args):
    """Use segments of 50 readings with gaps of half a day, of more columns than the short memory takes."""
    table = daily(2000).with_columns(**{f"load{k}": daily(2000, seed=k)["load"] for k in range(3)})
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [(start + (i + 12 * (i // 50)) * HOUR).isoformat() for i in range(2000)]
    torn = table.with_columns(time=pl.Series(times), host=pl.lit("torn"))
    torn.write_csv(tmp_path / "torn.csv")
    code, _, err = cli("detect", tmp_path / "torn.csv", *args)
    assert code == 0
    assert "time series" not in err
    code, _, err = cli("detect", tmp_path / "torn.csv", "--series")
    assert code == 3
    assert "no context window of 96 unbroken readings" in err
    both = pl.concat([table.with_columns(host=pl.lit("whole")), torn[:200]])
    both.write_csv(tmp_path / "both.csv")
    code, _, err = cli("detect", tmp_path / "both.csv", "--by", "host")
    assert code == 0
    assert "Too few rows to score 1 value of host: torn (200)." in err


def test_torn_series_is_judged_by_its_last_readings(cli, tmp_path):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [(start + (i + 12 * (i // 50)) * HOUR).isoformat() for i in range(600)]
    torn = daily(600).with_columns(time=pl.Series(times))
    torn[320, "load"] = 90.0
    torn.write_csv(tmp_path / "torn.csv")
    rows, err = flagged_rows(cli, "detect", tmp_path / "torn.csv")
    assert SAID in err
    assert 320 in rows
    assert len(rows) <= 3


@pytest.mark.parametrize("command", ["detect", "fit"])
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--series", "--batch"], "--series needs the order of rows, which --batch ignores"),
        (["--series", "--epsilon", "0.01"], "--epsilon is for independent rows: omit --series"),
        (["--rows", "--shingle", "3"], "--shingle is for time series: omit --rows"),
    ],
)
def test_options_that_contradict_a_series_are_rejected(cli, series, tmp_path, command, args, words):
    model = ["-m", tmp_path / "model.mpf"] if command == "fit" else []
    code, _, err = cli(command, series / "one.csv", *model, *args)
    assert code == 2
    assert words in err
    assert not (tmp_path / "model.mpf").exists()


def test_series_is_fitted_scored_explained_and_described(cli, series, tmp_path):
    model, known = tmp_path / "model.mpf", tmp_path / "known.csv"
    daily(1400).write_csv(known)
    code, _, err = cli("fit", known, "--series", "-m", model)
    assert code == 0
    assert "holds 1,305 points of 1,400 rows" in err
    fitted = polyaforest.load(model)
    assert isinstance(fitted, SeriesMPF)
    assert (fitted.shingle, fitted.periods_, fitted.every_, fitted.notes["time"]) == ("auto", (24,), 3600.0, "time")
    later = tmp_path / "later.csv"
    daily(2000, 1500)[1400:].write_csv(later)
    rows, _ = flagged_rows(cli, "score", "-m", model, later)
    assert ((rows >= 100) & (rows < 140)).any()
    assert not (rows < 100).any()
    code, out, _ = cli("explain", "-m", model, later, "--row", int(rows[0]) + 1)
    assert code == 0
    assert out.startswith("Anomalous")
    assert "load" in out
    code, out, _ = cli("info", model)
    assert code == 0
    assert "SeriesMPF" in out
    assert "1,305 held of 1,400 seen" in out


def test_fitted_series_forgets_readings_by_id(cli, tmp_path):
    model, known = tmp_path / "model.mpf", tmp_path / "known.csv"
    daily(400).with_columns(order=pl.Series([f"o-{i}" for i in range(400)])).write_csv(known)
    assert cli("fit", known, "--series", "--id", "order", "-m", model)[0] == 0
    assert cli("forget", "-m", model, "--id", "o-300")[0] == 0
    assert not polyaforest.load(model).holds("o-300")
    assert polyaforest.load(model).holds("o-200")


# ---- plots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", mostly_slow([[], ["--by", "host", "--shingle", "3", "--top", "0"]]))
def test_plot_is_drawn(cli, folder, monkeypatch, args):
    from polyaforest.cli import _picture

    monkeypatch.setattr(_picture, "_MOST_ROWS", 500)  # so that rows are sampled
    path = folder / "picture.svg"
    assert cli("detect", folder / "metrics.csv", "--plot", path, *args)[0] == 0
    assert path.read_text().startswith("<?xml")
    assert cli("detect", folder / "quiet.csv", "--plot", path)[0] == 0  # no finding to explain


@pytest.mark.parametrize("args", mostly_slow([[], ["--stream", "--series"]]))
def test_plot_of_a_series_shows_expected_values(cli, tmp_path, args):
    steps = np.arange(900)
    load = 50 + 30 * np.sin(2 * np.pi * steps / 48) + np.random.default_rng(0).normal(0, 2, 900)
    load[800:815] = 50 + np.random.default_rng(1).normal(0, 2, 15)
    table = pl.DataFrame(
        {"time": [f"2024-01-{1 + i // 48:02} {i % 48 // 2:02}:{i % 2 * 30:02}" for i in steps], "load": load}
    )
    table.write_csv(tmp_path / "load.csv")
    path = tmp_path / "picture.svg"
    code, out, _ = cli("detect", tmp_path / "load.csv", "--plot", path, *args)
    assert code == 0
    drawn = path.read_text()
    assert out.count("bits") > 0
    assert ("the band shows what was expected" in drawn) == (
        not args
    )  # text is drawn as shapes, with the words as comments
    assert "1. 2024-01-17" in drawn
    assert "load" in drawn


def test_plot_without_matplotlib_is_rejected_before_reading(cli, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = cli("detect", folder / "metrics.csv", "--plot", "picture.png")
    assert (code, out) == (3, "")
    assert err == 'Error: polyaforest.plots needs matplotlib: pip install "polyaforest[plots]"\n'


# ---- fit, score, explain ---------------------------------------------------------------------------------------------


def test_model_scores_equal_detect_for_any_order_of_columns(cli, folder, metrics):
    model = folder / "model.mpf"
    code, out, err = cli("fit", folder / "metrics.csv", "-m", model)
    assert (code, out) == (0, "")
    assert err.endswith("model.mpf holds 2,048 points of 4,032 rows.\n")
    shuffled = metrics.select("errors", "host", "cpu", "latency_ms", "requests", "timestamp", "memory")
    shuffled.write_csv(folder / "shuffled.csv")
    cli("detect", folder / "metrics.csv", "--out", folder / "judged.parquet", "-q")
    judged = pl.read_parquet(folder / "judged.parquet")
    code, out, err = cli("score", "-m", model, folder / "shuffled.csv", "--id", "host")
    scored = pl.read_csv(out.encode())
    assert (code, scored.columns) == (0, ["row", "timestamp", "host", "score", "p_value", "is_anomaly", "severity"])
    assert err.endswith("22 rows flagged.\n")
    for name in ("row", "score", "is_anomaly"):
        np.testing.assert_array_equal(scored[name].to_numpy(), judged[name].to_numpy())
    forest = polyaforest.load(model)
    rows = mixed(metrics)
    np.testing.assert_array_equal(scored["p_value"].to_numpy(), forest.p_value(rows))
    code, out, _ = cli("score", "-m", model, folder / "metrics.csv", "--false-alarm-rate", "0.01", "--only-anomalies")
    assert pl.read_csv(out.encode())["row"].to_list() == (np.flatnonzero(forest.p_value(rows) <= 0.01) + 1).tolist()
    assert cli("score", "-m", model, folder / "metrics.csv", "-q", "--fail-on-anomaly")[0] == 1


def test_score_names_a_missing_column(cli, folder, metrics):
    model = folder / "lacks.mpf"
    cli("fit", folder / "metrics.csv", "-m", model, "--columns", "cpu,memory")
    metrics.select("cpu", pl.col("memory").alias("mem")).write_csv(folder / "renamed.csv")
    for command in (["score"], ["explain", "--row", "1"]):
        code, out, err = cli(*command, "-m", model, folder / "renamed.csv")
        assert (code, out) == (3, "")
        assert "renamed.csv has no column 'memory'. Did you mean 'mem'?" in err
    StreamingMPF(n_estimators=5, random_state=0).fit(np.eye(9)).save(folder / "nameless.mpf")
    code, _, err = cli("score", "-m", folder / "nameless.mpf", folder / "metrics.csv")
    assert code == 3
    assert "9 unnamed columns, but there are 5 here" in err
    assert cli("score", "-m", folder / "missing.mpf", folder / "metrics.csv")[0] == 3


def test_explain_prints_text_and_json(cli, folder, rush):
    model, row = folder / "explain.mpf", rush[-1]
    cli("fit", folder / "metrics.csv", "-m", model)
    code, out, err = cli("explain", "-m", model, folder / "holes.csv", "--row", row)
    assert code == 0
    assert out.startswith("Anomalous: more than a million times less likely than a typical point")
    assert err == f"Row {row:,} has no cpu: explained with imputed values.\n"
    code, out, err = cli("explain", "-m", model, folder / "metrics.csv", "--row", row, "--row", "100", "--json")
    facts = [json.loads(line) for line in out.splitlines()]
    assert [(fact["row"], fact["is_anomaly"]) for fact in facts] == [(row, True), (100, False)]
    assert facts[0]["attributions"][0]["name"] == "errors"
    for number, words in ((4033, "there is no row 4,033: the input has 4,032 rows"), (17, "row 17 cannot be read: ")):
        code, out, err = cli("explain", "-m", model, folder / "holes.csv", "--row", number)
        assert (code, out) == (3, "")
        assert words in err


def test_merge_equals_counting_all_rows_in_one_model(cli, folder, metrics):
    for name, part in (("a", metrics[:2000]), ("b", metrics[2000:])):
        part.write_csv(folder / f"{name}.csv")
    cli("fit", "--batch", folder / "a.csv", "-m", folder / "a.mpf")
    code, _, err = cli("fit", "--batch", "--like", folder / "a.mpf", folder / "b.csv", "-m", folder / "b.mpf")
    assert (code, err.splitlines()[-1]) == (0, f"{folder / 'b.mpf'} counts 2,032 rows.")
    assert cli("merge", folder / "a.mpf", folder / "b.mpf", "-o", folder / "ab.mpf")[0] == 0
    a, merged = (polyaforest.load(folder / f"{name}.mpf") for name in ("a", "ab"))
    whole = clone(a).fit(mixed(metrics))
    np.testing.assert_array_equal(merged.forest_.counts, whole.forest_.counts)
    code, out, _ = cli("score", "-m", folder / "ab.mpf", folder / "metrics.csv", "--only-anomalies")
    scored = pl.read_csv(out.encode())
    assert (scored["score"] < a.offset_).all()
    assert 15 <= len(scored) < 60


def test_stream_is_fitted_in_chunks_and_holds_rows_by_id(cli, folder, metrics):
    model = folder / "stream.mpf"
    cli("fit", "--stream", "--window", "500", folder / "holes.csv", "-m", model, "-q")
    assert (polyaforest.load(model).n_points_, polyaforest.load(model).n_seen_) == (
        500,
        4030,
    )  # except a row without values
    err = cli("fit", folder / "metrics.csv", "-m", model, "--id", "host")[2]
    assert err.endswith("stream.mpf holds 4,032 points of 4,032 rows; `forget` can delete them by host.\n")
    assert cli("forget", "-m", model, "--id", "web-2")[0] == 0
    held = polyaforest.load(model)
    np.testing.assert_array_equal(held.points_, metrics.filter(pl.col("host") == "web-1").select(METRICS).to_numpy())
    assert cli("score", "-m", model, folder / "metrics.csv", "-q", "--fail-on-anomaly")[0] == 1


def test_series_model_scores_earlier_rows_as_if_they_came_next(cli, folder, rush):
    model = folder / "series.mpf"
    code, _, err = cli("fit", folder / "metrics.csv", "-m", model, "--shingle", "4", "--columns", "errors,cpu")
    assert (code, err.splitlines()[-1]) == (0, f"{model} holds 1,024 points of 4,032 rows.")
    code, out, _ = cli("score", "-m", model, folder / "metrics.csv", "--only-anomalies")
    flagged = pl.read_csv(out.encode())
    assert code == 0
    assert set(rush[::2]) <= set(flagged["row"])
    code, out, _ = cli("explain", "-m", model, folder / "metrics.csv", "--row", rush[-1])
    assert code == 0
    assert "errors[-2]" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--batch", "--id", "host"], "--id does not work with --batch"),
        (["--like", "x.mpf"], "add --batch"),
        (["--batch", "--like", "x.mpf", "--seed", "1"], "--seed is taken from the model of --like"),
        (["--window", "9"], "add --stream"),
        (["--stream", "--epsilon", "0.1"], "for whole tables"),
        (["--phi", "0.1"], "--phi needs --epsilon"),
    ],
)
def test_fit_rejects_options_that_contradict_each_other(cli, folder, args, words):
    code, out, err = cli("fit", folder / "quiet.csv", "-m", folder / "never.mpf", *args)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    assert not (folder / "never.mpf").exists()


# ---- as a process ----------------------------------------------------------------------------------------------------


def test_colours_are_printed_on_terminals_or_on_request(programs, folder, tmp_path):
    args = ["detect", folder / "metrics.csv", "--top", "1"]
    code, coloured = programs.run_on_terminal(*args, err=tmp_path / "stderr")
    assert code == 0
    assert "\x1b[1m22 of 4,032 rows stand out" in coloured
    assert "\x1b[31merrors" in coloured
    code, plain = programs.run_on_terminal(*args, err=tmp_path / "stderr", env={"NO_COLOR": "1"})
    assert code == 0
    assert "22 of 4,032 rows stand out" in plain
    assert "\x1b[1m22 of" not in plain
    assert "\x1b" not in (tmp_path / "stderr").read_text()


def test_detect_reads_a_pipe_and_writes_to_a_pipe_that_closes(programs, folder, tmp_path):
    with programs.piped("detect", "-", "--stream", "--out", "-", "-q", cwd=tmp_path) as (process, stdin, stdout):
        writer = threading.Thread(target=write_all, args=(stdin, (folder / "metrics.csv").read_bytes()))
        writer.start()
        header = stdout.readline()
        stdout.close()
        assert programs.wait(process) == 0
        writer.join()
    assert header.startswith(b"row,timestamp,host,requests,")
    assert (tmp_path / "stderr").read_text() == ""


def write_all(pipe, text):
    with pipe, suppress(BrokenPipeError):  # detect may stop reading early
        while text:
            text = text[pipe.write(text) :]


# ---- the page --------------------------------------------------------------------------------------------------------

CONSOLE = re.compile(
    r"^```console\n\$ polyaforest (?P<args>.*?)(?: \| head -n (?P<head>\d+))?\n(?P<shown>.*?)^```$", re.M | re.S
)
FILE = re.compile(r'^```text title="(?P<name>[\w.-]+)"\n(?P<text>.*?)^```$', re.M | re.S)


def test_docs_page_shows_the_actual_output(cli, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "detect.md").read_text("utf-8")
    write_example(str(tmp_path))
    for file in FILE.finditer(page):
        (tmp_path / file["name"]).write_text(file["text"], "utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = list(CONSOLE.finditer(page))
    assert len(blocks) == page.count("```console") > 5
    for block in blocks:
        code, out, err = cli(*block["args"].split())
        said = err + "".join(out.splitlines(keepends=True)[: int(block["head"] or 1000)])
        assert (code, rounded(said)) == (0, rounded(block["shown"]))


def rounded(text: str) -> str:
    """Round long numbers, whose last digits may differ between machines."""
    return re.sub(r"-?\d+\.\d{9,}", lambda found: f"{float(found[0]):.6g}", text)


def test_counts_rare_pairs_in_all_rows(tmp_path, cli):
    """The forest holds a sample of the rows, in which the counts would be others."""
    rng = np.random.default_rng(7)
    country = rng.choice(["DE", "US", "FR", "GB"], 6000, p=[0.35, 0.35, 0.2, 0.1])
    currency = np.where(country == "US", "USD", np.where(country == "GB", "GBP", "EUR")).astype(object)
    currency[np.flatnonzero(country == "DE")[[5, 900]]] = "USD"
    pl.DataFrame({"amount": rng.uniform(1, 90, 6000), "country": country, "currency": currency.tolist()}).write_csv(
        tmp_path / "payments.csv"
    )
    _, out, _ = cli("detect", str(tmp_path / "payments.csv"))
    assert out.count(f"currency = USD with country = DE: 2 of {(country == 'DE').sum():,} rows") == 2
    assert f"seen in 2 of {(country == 'US').sum() + 2:,} rows with currency = USD" in out
