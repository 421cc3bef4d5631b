"""The command line in one process: lazy imports, exit codes, and the smaller commands."""

import json
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import polars as pl
import pytest
from click.shell_completion import BashComplete

import polyaforest
from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Tree, datasets
from polyaforest.cli import COMMANDS, main
from polyaforest.cli._datasets import SIZES
from polyaforest.cli._demo import write_example
from polyaforest.cli._merge import shared_notes
from polyaforest.datasets.demo import HOSTS, INCIDENTS, server_metrics
from polyaforest.judge import open_store, read_model, read_notes

GOLDEN = Path(__file__).parents[1] / "golden"
BOX = [[-9.0, -9.0], [9.0, 9.0]]


@pytest.fixture
def bench(monkeypatch):
    """Replace the function of `polyaforest bench`."""

    def put(function):
        module = SimpleNamespace(command=click.command()(click.pass_context(function)))
        monkeypatch.setitem(sys.modules, "polyaforest.cli._bench", module)

    return put


@pytest.fixture
def rows():
    return np.random.default_rng(3).normal(size=(60, 2))


# ---- the package -----------------------------------------------------------------------------------------------------


def test_every_public_name_exists_and_is_listed():
    for name in polyaforest.__all__:
        assert getattr(polyaforest, name).__name__ == name
        assert name in dir(polyaforest)
    assert [name for name in dir(polyaforest) if name.startswith("_") or not hasattr(polyaforest, name)] == [
        "__version__"
    ]
    assert {"Any", "import_module", "TYPE_CHECKING"}.isdisjoint(dir(polyaforest))
    assert polyaforest.forest.thresholds.__name__ == "polyaforest.forest.thresholds"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        polyaforest.nothing  # noqa: B018


def test_load_returns_every_kind_of_detector(tmp_path, rows):
    series = SeriesMPF(StreamingMPF(n_estimators=2, window=20, random_state=0), shingle=2)
    for detector in (BatchMPF(n_estimators=2, random_state=0), StreamingMPF(n_estimators=2, random_state=0), series):
        detector.fit(rows).save(tmp_path / "model.mpf", notes={"unit": 1})
        with open(tmp_path / "model.mpf", "rb") as file:
            loaded = polyaforest.load(file)
        assert (type(loaded), loaded.notes) == (type(detector), {"unit": 1})
        np.testing.assert_array_equal(loaded.score_samples(rows), detector.score_samples(rows))


# ---- exit codes ------------------------------------------------------------------------------------------------------


def test_help_and_version_are_printed(cli):
    code, out, err = cli("--help")
    assert (code, err) == (0, "")
    assert all(re.search(rf"^  {name} +{re.escape(words)}$", out, re.M) for name, words in COMMANDS.items())
    assert cli("-V") == (0, f"polyaforest {polyaforest.__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_has_a_module(cli, name):
    code, out, err = cli(name, "-h")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: polyaforest {name} ")


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        (["dtect"], "Did you mean detect"),
        (["qqq"], "No such command 'qqq'.\n"),
        ([__file__], f"polyaforest detect {__file__}"),
        (["info", "--jsn", "x"], "--json"),
        (["info"], "MODEL"),
    ],
)
def test_wrong_usage_exits_with_2_and_gives_advice(cli, args, advice):
    code, out, err = cli(*args)
    assert (code, out) == (2, "")
    assert advice in err


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (ValueError("column 'a' is not there"), 3, "Error: column 'a' is not there\n"),
        (ValueError(), 3, "Error: ValueError\n"),
        (polyaforest.ModelFileError("it is damaged"), 3, "Error: it is damaged\n"),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), 3, "Error: a.csv: No such file or directory\n"),
        (ModuleNotFoundError("needs redis: pip install"), 3, "Error: needs redis: pip install\n"),
        (click.ClickException("not so"), 3, "Error: not so\n"),
        (click.FileError("a.csv", "gone"), 3, "Error: Could not open file 'a.csv': gone\n"),
        (
            ModuleNotFoundError("none", name="polyaforest.x"),
            70,
            "Error: this is a bug in polyaforest (ModuleNotFound",
        ),
        (KeyError("x"), 70, "Error: this is a bug in polyaforest (KeyError: 'x'); set POLYAFOREST_TRACEBACK=1"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_errors_print_one_line_and_set_the_exit_code(cli, bench, problem, code, said):
    def fail(ctx):
        raise problem

    bench(fail)
    ended, out, err = cli("bench")
    assert (ended, out) == (code, "")
    assert err.startswith(said)
    assert "Traceback" not in err


def test_traceback_is_printed_on_request(cli, bench, monkeypatch):
    monkeypatch.setenv("POLYAFOREST_TRACEBACK", "1")
    bench(lambda ctx: 1 / 0)
    code, _, err = cli("bench")
    assert code == 70
    assert "Traceback" in err
    assert "ZeroDivisionError" in err


def test_command_sets_exit_code_by_exit_but_not_by_return_value(cli, bench):
    bench(lambda ctx: ctx.exit(1))
    assert cli("bench") == (1, "", "")
    bench(lambda ctx: [1])
    assert cli("bench") == (0, "", "")


def test_warnings_are_printed_on_one_line(capfd, bench, cli):
    def warn(ctx):
        sys.stderr.write(warnings.formatwarning("take care", UserWarning, "file.py", 3))

    bench(warn)
    assert cli("bench") == (0, "", "Warning: take care\n")


# ---- info ------------------------------------------------------------------------------------------------------------


def saved(detector, path, **notes):
    detector.save(path, notes=notes)
    return path


def test_info_describes_every_kind_of_model(cli, tmp_path, rows):
    table = pl.DataFrame({"load": rows[:, 0], "heat": rows[:, 1]})
    forests = {
        "60 held of 60 seen": StreamingMPF(n_estimators=3, random_state=0).fit(table),
        "40 held of 60 seen": StreamingMPF(n_estimators=3, window=40, random_state=0).fit(table),
        "60 counted": StreamingMPF(n_estimators=3, window=None, tree=Tree(max_depth=4), random_state=0).fit(table),
        "counts rows in fixed cells": BatchMPF(n_estimators=3, random_state=0).fit(table),
        "shingle=4": SeriesMPF(StreamingMPF(n_estimators=3, window=40, random_state=0), shingle=4).fit(table),
    }
    for words, forest in forests.items():
        code, out, err = cli("info", saved(forest, tmp_path / "model.mpf", position="17-0"))
        assert (code, err) == (0, "")
        out = " ".join(out.split())
        for fact in (words, "columns 2: load, heat", "trees 3", "note position: 17-0", "format version 3"):
            assert fact in out


def test_info_prints_json(cli, tmp_path, rows):
    forest = StreamingMPF(n_estimators=3, window=40, random_state=0, tree=Tree(feature_weights=[1.0, 2.0])).fit(rows)
    path = saved(forest, tmp_path / "model.mpf", position=[1, {"a": None}])
    facts = json.loads(cli("info", "--json", path)[1])
    assert facts == {
        "file": str(path),
        "bytes": path.stat().st_size,
        "format_version": 3,
        "detector": "StreamingMPF",
        "kind": "stream",
        "columns": ["x0", "x1"],
        "n_trees": 3,
        "n_points": 40,
        "n_seen": 60,
        "privacy_epsilon": None,
        "threshold": forest.offset_,
        "settings": {"n_estimators": 3, "window": 40, "random_state": 0, "tree__feature_weights": [1.0, 2.0]},
        "notes": {"position": [1, {"a": None}]},
    }
    facts = json.loads(cli("info", "--json", GOLDEN / "1-table.mpf")[1])
    assert (facts["format_version"], facts["kind"]) == (1, "table")


def test_info_shows_the_threshold(cli, tmp_path, rows):
    forest = StreamingMPF(n_estimators=3, random_state=0).fit(rows)
    assert f"score below {forest.offset_:.4g} are" in cli("info", saved(forest, tmp_path / "a.mpf"))[1]
    assert "\n  threshold" not in cli("info", saved(forest.fit(rows[:1]), tmp_path / "b.mpf"))[1]


@pytest.fixture
def store(tmp_path, rows):
    """A model store."""
    path = tmp_path / "hosts.models"
    with open_store(path, lambda: StreamingMPF(n_estimators=2, window=16, random_state=0)) as models:
        for key in ("web-1", "web-2"):
            models[key].detector.partial_fit(rows)
        models.commit({"position": 120})
    return path


def test_info_describes_models_by_partition(cli, store, tmp_path, rows):
    code, out, _ = cli("info", store)
    assert code == 0
    assert "models 2: web-1, web-2 note position: 120" in " ".join(out.split())
    assert "16 held of 60 seen" in cli("info", store, "--by", "web-2")[1]
    code, _, err = cli("info", store, "--by", "web-3")
    assert (code, err) == (3, f"Error: {store} has no model of 'web-3'. Did you mean 'web-2'?\n")
    one = saved(StreamingMPF(n_estimators=2, random_state=0).fit(rows), tmp_path / "model.mpf")
    assert cli("info", one, "--by", "web-1")[0] == 3


def test_info_rejects_other_files(cli, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    code, out, err = cli("info", tmp_path / "a.csv")
    assert (code, out) == (3, "")
    assert "is not a polyaforest model" in err
    assert cli("info", tmp_path / "none.mpf")[::2] == (3, f"Error: {tmp_path}/none.mpf: No such file or directory\n")


# ---- merge -----------------------------------------------------------------------------------------------------------


def counted(path, rows, **options):
    forest = BatchMPF(**{"n_estimators": 3, "tree": Tree(domain=BOX), "random_state": 0, **options}).fit(rows)
    return saved(forest, path, columns=["a", "b"], source=path.name)


def test_merged_model_equals_the_model_of_all_rows(cli, tmp_path, rows):
    parts = [counted(tmp_path / f"{i}.mpf", part) for i, part in enumerate((rows[:10], rows[10:30], rows[30:]))]
    code, out, err = cli("merge", *parts, "-o", tmp_path / "all.mpf")
    assert (code, out) == (0, "")
    assert "10 + 20 + 30 = 60 rows" in err
    merged = polyaforest.load(tmp_path / "all.mpf")
    whole = BatchMPF(n_estimators=3, tree=Tree(domain=BOX), random_state=0).fit(rows)
    np.testing.assert_array_equal(merged.score_samples(rows), whole.score_samples(rows))
    assert merged.notes == {"columns": ["a", "b"]}  # notes that differ are dropped


def test_merge_rejects_models_that_differ(cli, tmp_path, rows):
    first, other = counted(tmp_path / "a.mpf", rows), counted(tmp_path / "b.mpf", rows, random_state=1)
    code, _, err = cli("merge", first, other, "-o", tmp_path / "c.mpf")
    assert code == 3
    assert f"{first} and {other}: forests cut their domain differently" in err
    assert f"polyaforest fit --batch --like {first} FILE -m {other}" in err
    tree = saved(StreamingMPF(n_estimators=2, random_state=0).fit(rows), tmp_path / "d.mpf")
    code, _, err = cli("merge", first, tree, "-o", tmp_path / "c.mpf")
    assert code == 3
    assert f"{tree} is a StreamingMPF" in err
    assert "polyaforest fit --batch" in err
    (tmp_path / "link.mpf").symlink_to(first)
    assert cli("merge", first, tmp_path / "link.mpf", "-o", tmp_path / "c.mpf")[0] == 2
    assert cli("merge", first, "-o", tmp_path / "c.mpf")[0] == 2
    assert not (tmp_path / "c.mpf").exists()


def test_shared_notes_are_those_equal_in_all_models():
    assert shared_notes([{"a": 1, "b": None, "c": 3}, {"a": 1, "b": None}, {"a": 1, "b": None, "c": 3}]) == {
        "a": 1,
        "b": None,
    }


# ---- forget ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path, rows):
    """A stream in which two points share an id and one has none."""
    forest = StreamingMPF(n_estimators=2, window=100, random_state=0)
    forest.partial_fit(rows[:3], keys=["ann", "bob", "ann\x1f2"]).partial_fit(rows[3:])
    return saved(forest, tmp_path / "model.mpf", columns=["a", "b"])


def test_forget_deletes_all_rows_with_an_id_as_if_never_learned(cli, model, rows):
    code, out, err = cli("forget", "-m", model, "--id", "ann", "--id", "4")
    assert (code, out, err) == (0, "", f"Deleted 3 rows; {model} holds 57 points.\n")
    forest = polyaforest.load(model)
    assert forest.keys_ == ["bob", 3, *range(5, 60)]
    assert forest.notes == {"columns": ["a", "b"]}
    np.testing.assert_array_equal(forest.points_, np.delete(rows, [0, 2, 4], axis=0))


def test_forget_reads_ids_from_a_file_and_writes_another_model(cli, model, tmp_path):
    before = model.read_bytes()
    (tmp_path / "keys.txt").write_text("bob\r\n\nabsent\n7\n")
    other = tmp_path / "other.mpf"
    code, _, err = cli(
        "forget", "-m", model, "--ids-from", tmp_path / "keys.txt", "--id", "bob", "--out", other, "--missing-ok"
    )
    assert (code, err) == (0, f"Deleted 2 rows; {other} holds 58 points.\nNot held: 'absent'.\n")
    assert model.read_bytes() == before
    assert len(polyaforest.load(other).keys_) == 58


def test_forget_changes_nothing_when_an_id_is_not_held(cli, model, tmp_path, rows):
    before = model.read_bytes()
    code, _, err = cli("forget", "-m", model, "--id", "ann", "--id", "ann\x1f2")
    assert code == 3
    assert "holds no row named 'ann\\x1f2': nothing was changed" in err
    assert cli("forget", "-m", model)[0] == 2
    assert cli("forget", "-m", model, "--ids-from", tmp_path / "none.txt")[0] == 3
    assert model.read_bytes() == before
    counts = counted(tmp_path / "counts.mpf", rows)
    code, _, err = cli("forget", "-m", counts, "--id", "1")
    assert code == 3
    assert "polyaforest fit --id COLUMN" in err


def test_forget_deletes_every_shingle_with_a_reading(cli, tmp_path, rows):
    series = SeriesMPF(StreamingMPF(n_estimators=2, window=100, random_state=0), shingle=3)
    series.partial_fit(rows, keys=[f"k{i}" for i in range(60)])
    path = saved(series, tmp_path / "series.mpf")
    assert cli("forget", "-m", path, "--id", "k7") == (0, "", f"Deleted 1 row; {path} holds 55 points.\n")
    assert "k7" not in polyaforest.load(path).keys_
    held = polyaforest.load(path).estimator_.points_
    assert not np.isin(held, rows[7]).any()


def test_forget_deletes_models_of_whole_partitions(cli, store, tmp_path):
    code, _, err = cli("forget", "-m", store, "--by", "web-1", "--by", "web-9", "--all")
    assert code == 3
    assert "holds no partition named 'web-9': nothing was changed" in err
    assert cli("forget", "-m", store, "--by", "web-1", "--all", "--out", tmp_path / "x.mpf")[0] == 2
    assert cli("forget", "-m", store, "--by", "web-1", "--all", "--id", "50")[0] == 2
    assert cli("forget", "-m", store, "--by", "web-1")[0] == 2
    assert cli("forget", "-m", store, "--all")[0] == 2
    assert read_notes(store)[1] == ["web-1", "web-2"]
    code, _, err = cli("forget", "-m", store, "--by", "web-1", "--all")
    assert (code, err) == (0, f"Deleted 1 partition; {store} holds 1 partition.\n")
    assert read_notes(store) == ({"position": 120}, ["web-2"])
    code, _, err = cli("forget", "-m", store, "--by", "web-2", "--by", "web-9", "--all", "--missing-ok")
    assert (code, err) == (0, f"Deleted 1 partition; {store} holds 0 partitions.\nNot held: 'web-9'.\n")


def test_forget_deletes_rows_in_all_or_chosen_partitions(cli, store, model):
    def keys():
        return [read_model(store, key).keys_ for key in ("web-1", "web-2")]

    before = keys()
    code, _, err = cli("forget", "-m", store, "--id", "50", "--id", "absent")
    assert code == 3
    assert "holds no row named 'absent': nothing was changed" in err
    assert keys() == before
    code, _, err = cli("forget", "-m", store, "--id", "50", "--id", "absent", "--missing-ok")
    assert (code, err) == (0, f"Deleted 2 rows; {store} holds 2 partitions.\nNot held: 'absent'.\n")
    left = [*range(44, 50), *range(51, 60)]
    assert keys() == [left, left]
    code, _, err = cli("forget", "-m", store, "--id", "51", "--by", "web-2")
    assert (code, err) == (0, f"Deleted 1 row; {store} holds 2 partitions.\n")
    assert keys() == [left, [key for key in left if key != 51]]
    assert read_notes(store)[0] == {"position": 120}
    assert cli("forget", "-m", model, "--by", "web-1", "--all")[0] == 2


# ---- demo ------------------------------------------------------------------------------------------------------------


def test_example_is_a_quiet_week_with_incidents():
    columns = pl.DataFrame(server_metrics()).with_columns(pl.col("timestamp").str.to_datetime(time_zone="UTC"))
    assert columns.equals(pl.DataFrame(server_metrics()).with_columns(columns["timestamp"]))
    assert columns.columns == ["timestamp", "host", "requests", "cpu", "memory", "latency_ms", "errors"]
    assert (len(columns), columns["timestamp"].is_sorted()) == (2 * 2016, True)
    assert columns["host"].unique().sort().to_list() == [*HOSTS]
    numbers = columns.select(pl.exclude("timestamp", "host"))
    assert numbers.null_count().sum_horizontal().item() == 0
    assert numbers.min_horizontal().min() >= 0
    assert columns["cpu"].max() <= 100
    assert columns["memory"].max() <= 100
    assert sum(incident.n_readings for incident in INCIDENTS) == 20


def test_demo_does_not_overwrite_other_files(tmp_path):
    path = write_example(str(tmp_path / "new"))
    assert write_example(str(tmp_path / "new")) == path  # the example itself may exist
    (tmp_path / "server-metrics.csv").write_text("mine\n")
    with pytest.raises(ValueError, match="exists and is not the example"):
        write_example(str(tmp_path))
    assert (tmp_path / "server-metrics.csv").read_text() == "mine\n"


# ---- datasets --------------------------------------------------------------------------------------------------------


def test_datasets_lists_sizes(cli):
    code, out, err = cli("datasets")
    assert (code, err) == (0, "")
    assert re.search(r"^http +567,498 +3 +2,211$", out, re.M)
    for name in (*datasets.TABLES, *datasets.ALTERNATIVES, *datasets.SERIES, *datasets.TOYS):
        assert re.search(rf"^{name} +[\d,]+ +\d+ +[\d,]+$", out, re.M)


@pytest.mark.parametrize("name", SIZES)
def test_listed_sizes_match_the_data(name):
    try:
        if name in datasets.SERIES:
            series = datasets.load_series(name, download=False)
            size = (len(series.value), 1, series.label.sum())
        else:
            table = datasets.load(name, download=False)
            size = (*table.X.shape, table.y.sum())
    except (FileNotFoundError, NotADirectoryError):
        pytest.skip("the data are not on this machine")
    assert size == SIZES[name]


def test_datasets_exports_a_table(cli, tmp_path):
    toy, out = datasets.load("moons"), tmp_path / "moons.parquet"
    assert cli("datasets", "moons", "--labels", "--out", out) == (0, "", f"Wrote moons to {out}: 500 rows.\n")
    written = pl.read_parquet(out)
    assert written.columns == ["x1", "x2", "label"]
    np.testing.assert_array_equal(written.select("x1", "x2").to_numpy(), toy.X)
    np.testing.assert_array_equal(written["label"].to_numpy(), toy.y)
    code, _, err = cli("datasets", "moon")
    assert code == 3
    assert "did you mean 'moons'" in err


def test_datasets_exports_a_series_with_times(cli, tmp_path):
    (tmp_path / "nab").mkdir()
    series = {"t": [0, 300], "value": [1.5, 2.0], "label": [0, 1]}
    np.savez(tmp_path / "nab" / "nyc.npz", **{name: np.array(values) for name, values in series.items()})
    out = tmp_path / "nyc.csv"
    assert cli("datasets", "nyc", "--labels", "--data-dir", tmp_path, "--no-download", "--out", out)[0] == 0
    assert out.read_text() == "timestamp,value,label\n1970-01-01T00:00:00Z,1.5,0\n1970-01-01T00:05:00Z,2.0,1\n"


# ---- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_script_to_stdout_and_advice_to_stderr(cli, shell):
    code, out, err = cli("completion", shell)
    assert code == 0
    assert f"_POLYAFOREST_COMPLETE={shell}_complete" in out
    assert f"polyaforest completion {shell} >" in err


def test_completion_completes_commands_and_options():
    completion = BashComplete(main, {}, "polyaforest", "_POLYAFOREST_COMPLETE")
    assert [item.value for item in completion.get_completions([], "de")] == ["detect", "demo"]
    assert [item.value for item in completion.get_completions(["forget"], "--mis")] == ["--missing-ok"]
