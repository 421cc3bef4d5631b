"""The settings of a stream: one schema behind the options of `watch` and the configuration of `serve`."""

import json
from datetime import timedelta

import click
import numpy as np
import pytest

from polyaforest.cli import main as program
from polyaforest.detectors import SeriesMPF, StreamingMPF
from polyaforest.judge import read_model, read_notes
from polyaforest.service.changes import KINDS
from polyaforest.service.config import StreamConfig, parse_config, to_toml
from polyaforest.settings.stream import StreamSettings, flat_settings, option_of, part_of
from polyaforest.settings.values import Flag

SETTINGS = flat_settings(StreamSettings)
# a value of each setting that differs from its default, and as text of its option; a test fails if one is missing
VALUES = {
    "format": ("csv", "csv"),
    "columns": (["cpu", "load"], "cpu,load"),
    "categories": (["zone"], "zone"),
    "time": ("at", "at"),
    "by": ("host", "host"),
    "id": ("number", "number"),
    "weight": ("hits", "hits"),
    "window": ("6h", "6h"),
    "series": (False, None),
    "shingle": (3, "3"),
    "difference": (True, None),
    "calendar": (["time of day"], "time of day"),
    "timezone": ("Europe/Berlin", "Europe/Berlin"),
    "false_alarm_rate": (0.01, "0.01"),
    "drift": ("relearn", "relearn"),
    "drift_alarms_every": ("12h", "12h"),
    "drift_reference": (256, "256"),
    "trees": (7, "7"),
    "seed": (3, "3"),
    "merge": (4, "4"),
    "save_records": (50, "50"),
    "save_every": ("1m", "1m"),
    "memory_mb": (64, "64"),
}
# a value that is not allowed, and what the error names
BAD = {
    "format": ("xml", "'auto', 'jsonl' or 'csv'"),
    "drift": ("ignore", "'report', 'relearn' or 'keep'"),
    "calendar": ("month", "'day of month' or 'public holidays DE'"),
    "timezone": ("Mars/Base", "Mars/Base"),
    "window": (1, "a number of records, at least 2, or a duration"),
    "drift_alarms_every": ("soon", "is not a duration"),
    "shingle": (0, "greater than or equal to 1"),
    "false_alarm_rate": (2, "greater than 0 and less than 1"),
    "drift_reference": (1, "greater than or equal to 128"),
    "trees": (0, "greater than or equal to 1 and less than or equal to 10000"),
    "seed": (-1, "greater than or equal to 0"),
    "merge": (0, "greater than or equal to 1"),
    "save_records": (0, "greater than or equal to 1"),
    "save_every": ("fast", "is not a duration"),
    "memory_mb": (0, "greater than or equal to 1"),
}


def of_watch(*arguments):
    """Return the values of the options of `watch`."""
    command = program.get_command(None, "watch")
    parent = click.Context(program, **program.context_settings)
    return command.make_context("watch", ["log", *arguments], parent).params


def of_service(name, value):
    """Return the configuration of a stream with one setting."""
    table, _, key = name.rpartition(".")
    tables = {table: {key: value}} if table else {key: value}
    return parse_config(to_toml({"streams": {"web": {"time": "at", **tables}}})).streams["web"]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_an_option_of_watch_and_a_key_of_serve(name):
    value, text = VALUES[name]
    setting = SETTINGS[name]
    option = option_of(name, value) if isinstance(setting.values, Flag) else option_of(name)
    found = of_watch(*([option] if text is None else [option, text]))[name.replace(".", "_")]
    configured = of_service(name, value)
    assert found == setting.check(value)
    assert found == part_of(configured, name)
    assert found != part_of(StreamSettings(), name)
    assert setting.check(setting.plain(found)) == found  # values round trip
    assert json.loads(json.dumps(configured.settings))[name] == setting.plain(found)
    assert configured.with_settings({name: setting.plain(found)}) == configured
    assert setting.help
    assert setting.effect == KINDS[name]


def test_values_and_bad_values_are_tested_for_every_setting():
    assert set(VALUES) == set(SETTINGS)
    of_text = {"columns", "categories", "time", "by", "id", "weight"}
    flags = {name for name, setting in SETTINGS.items() if isinstance(setting.values, Flag)}
    assert set(BAD) == set(SETTINGS) - of_text - flags


@pytest.mark.parametrize("name", BAD)
def test_bad_values_name_the_setting_and_the_allowed_values_in_both(name, cli):
    value, words = BAD[name]
    code, _, error = cli("watch", "log", f"{option_of(name)}={value}")
    assert code == 2
    assert option_of(name) in error
    assert words in error
    with pytest.raises(ValueError, match=rf"streams.web.{name}: ") as problem:
        of_service(name, [value] if name == "calendar" else value)
    assert words in str(problem.value)


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        (["--rows", "--shingle", "3"], {"series": False, "shingle": 3}, ("omit --rows", "omit `series = false`")),
        (
            ["--series", "--difference"],
            {"series": True, "difference": True},
            ("--series already", "`series = true` al"),
        ),
        (["--window", "6h"], {"window": "6h"}, ("a --window of time needs --time", "a `window` of time needs `time`")),
        (
            ["--series", "--categories", "zone"],
            {"series": True, "categories": ["zone"]},
            ("--categories is for independent records", "`categories` is for independent records"),
        ),
        (
            ["--series", "--weight", "hits"],
            {"series": True, "weight": "hits"},
            ("--weight is for independent records", "`weight` is for independent records"),
        ),
        (
            ["--drift", "report", "--weight", "hits"],
            {"drift": "report", "weight": "hits"},
            ("omit --weight", "omit `weight`"),
        ),
        (
            ["--columns", "a,b", "--weight", "b"],
            {"columns": ["a", "b"], "weight": "b"},
            ("--weight names 'b', which is already used", "`weight` names 'b', which is already used"),
        ),
        (
            ["--drift", "keep", "--drift-alarms-every", "1d"],
            {"drift": "keep", "drift_alarms_every": "1d"},
            ("a --drift-alarms-every of time needs --time", "a `drift_alarms_every` of time needs `time`"),
        ),
    ],
)
def test_contradictions_are_rejected_in_the_words_of_each_side(cli, options, settings, words):
    code, _, error = cli("watch", "log", *options)
    assert code == 2
    assert words[0] in error
    with pytest.raises(ValueError, match="web") as problem:
        parse_config(to_toml({"streams": {"web": settings}}))
    assert words[1] in str(problem.value)


@pytest.mark.parametrize(
    ("former", "new"),
    [("--snapshot-every", "--save-records"), ("--snapshot-seconds", "--save-every"), ("--memory", "--memory-mb")],
)
def test_former_options_name_the_new_ones(cli, former, new):
    code, _, error = cli("watch", "log", former, "5")
    assert code == 2
    assert f"{former} is now {new}." in error


# ---- changed options of watch ----------------------------------------------------------------------------------------


def watch(cli, folder, *arguments):
    """Watch a file; return the messages."""
    code, _, error = cli(
        "watch",
        folder / "log",
        "--model",
        folder / "m",
        "--out",
        folder / "out",
        "--time",
        "at",
        "--trees",
        "5",
        *arguments,
    )
    assert code == 0, error
    return error


def write(folder, n, start=0):
    with (folder / "log").open("a") as log:
        for i, row in enumerate(np.random.default_rng(start).normal(size=(n, 2)).tolist(), start):
            log.write(json.dumps({"at": i, "id": f"r{i}", "cpu": row[0], "disk": row[1]}) + "\n")


def test_watch_applies_a_changed_threshold(cli, tmp_path):
    write(tmp_path, 600)
    assert "Changed" not in watch(cli, tmp_path, "--rows", "--false-alarm-rate", "0.002")
    before = read_model(tmp_path / "m", "")
    n_flagged = read_notes(tmp_path / "m")[0]["counts"]["anomalies"]
    write(tmp_path, 400, 600)
    error = watch(cli, tmp_path, "--rows", "--false-alarm-rate", "0.2")
    assert "Changed settings: --false-alarm-rate 0.2 (was 0.002)" in error
    after = read_model(tmp_path / "m", "")
    assert (before.false_alarm_rate, after.false_alarm_rate) == (0.002, 0.2)
    assert after.n_seen_ == 1000  # the model was kept
    notes = read_notes(tmp_path / "m")[0]
    assert 40 < notes["counts"]["anomalies"] - n_flagged < 160
    assert notes["settings"]["false_alarm_rate"] == 0.2
    assert "Changed" not in watch(cli, tmp_path, "--rows", "--false-alarm-rate", "0.2")


def test_watch_relearns_from_the_records_it_holds(cli, tmp_path):
    write(tmp_path, 600)
    watch(cli, tmp_path, "--rows", "--id", "id", "--window", "400")
    error = watch(cli, tmp_path, "--rows", "--id", "id", "--window", "300", "--seed", "4")
    assert "--window 300 (was 400), --seed 4 (was 0); models relearned from the records they hold" in error
    model = read_model(tmp_path / "m", "")
    assert (model.window, model.random_state, model.n_points_, model.n_seen_) == (300, 4, 300, 400)
    assert model.keys_[-1] == "r599"
    assert read_notes(tmp_path / "m")[0]["counts"]["records"] == 600
    write(tmp_path, 10, 600)
    watch(cli, tmp_path, "--rows", "--id", "id", "--window", "300", "--seed", "4")
    assert read_model(tmp_path / "m", "").keys_[-1] == "r609"


def test_watch_relearns_categories(cli, tmp_path):
    rows = [{"at": i, "cpu": i % 7, "zone": "ab"[i % 2]} for i in range(300)]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watch(cli, tmp_path, "--rows", "--categories", "zone")
    watch(cli, tmp_path, "--rows", "--categories", "zone", "--seed", "1")
    model = read_model(tmp_path / "m", "")
    assert isinstance(model, StreamingMPF)
    assert model.points_[-1].tolist() == [299 % 7, "b"]
    assert model.random_state == 1


def test_watch_does_not_relearn_a_time_series(cli, tmp_path):
    write(tmp_path, 50)
    watch(cli, tmp_path, "--shingle", "2")
    assert isinstance(read_model(tmp_path / "m", ""), SeriesMPF)
    before = (tmp_path / "m").read_bytes()
    code, _, error = cli(
        "watch", tmp_path / "log", "--model", tmp_path / "m", "--time", "at", "--trees", "5", "--shingle", "3"
    )
    assert code == 3
    assert "--shingle cannot change: a model of a time series does not hold its records" in error
    assert "use the same setting, or another --model" in error
    assert (tmp_path / "m").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--columns", "cpu"], "--columns: the models have the columns 'cpu', 'disk', not 'cpu'"),
        (["--time", "cpu"], "--time: stored records have their times in 'at', but time is now 'cpu'"),
        (["--by", "id"], "--by: all records share their models, but by is now 'id'"),
        (["--categories", "id"], "--categories: the models have the categories none, not 'id'"),
        (["--id", "cpu"], "--id: the field 'cpu' is a column of the models"),
    ],
)
def test_watch_refuses_settings_that_do_not_fit_the_models(cli, tmp_path, options, words):
    write(tmp_path, 50)
    watch(cli, tmp_path)
    code, _, error = cli("watch", tmp_path / "log", "--model", tmp_path / "m", "--time", "at", "--trees", "5", *options)
    assert code == 3
    assert words in error
    assert "use the same setting, or another --model" in error


def test_watch_accepts_options_that_name_what_was_detected(cli, tmp_path):
    rows = [{"at": 1.7e9 + i, "cpu": i % 7} for i in range(20)]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watch(cli, tmp_path)
    assert "--columns cpu (was not given)" in watch(cli, tmp_path, "--columns", "cpu")


def test_stores_of_earlier_versions_keep_their_settings(cli, tmp_path):
    """They call `series` "is_series" and `by` "key", and round durations."""
    import sqlite3
    from contextlib import closing

    write(tmp_path, 50)
    watch(cli, tmp_path, "--window", "1234567s")
    with closing(sqlite3.connect(tmp_path / "m")) as file, file:
        notes = json.loads(file.execute("SELECT text FROM notes").fetchone()[0])
        kept = ("columns", "time", "id", "format", "shingle", "difference", "calendar", "trees", "seed")
        former = {"is_series": "auto", "key": None, "window": "1.23457e+06s", "drift": None, "start_from": None}
        notes["settings"] = {name: notes["settings"][name] for name in kept} | former
        file.execute("UPDATE notes SET text = ?", (json.dumps(notes).encode(),))
    assert "Changed" not in watch(cli, tmp_path, "--window", "1234567s")
    assert read_notes(tmp_path / "m")[0]["settings"]["window"] == "1234567s"
    assert timedelta(seconds=1234567) == StreamConfig(time="at", window="1234567s").window
