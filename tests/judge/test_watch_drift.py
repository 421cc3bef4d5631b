"""`watch --drift` in real processes: reported changes, and recovery of a killed process."""

import json
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from waiting import until

from polyaforest.drift import DriftMonitor
from polyaforest.judge import read_model, read_notes

pytestmark = pytest.mark.end_to_end

CHANGE, N = 1800, 2600
BEGAN = datetime(2026, 3, 1, 14, 2, tzinfo=UTC).timestamp() - CHANGE  # a record every second: the change is at 14:02
SETTINGS = ["--time", "ts", "--columns", "latency,cache_hit", "--rows", "--trees", "5", "--window", "256", "--quiet"]
DRIFT = ["--drift", "relearn", "--drift-alarms-every", "1 day", "--drift-reference", "1024"]


def requests():
    """Requests, of which 0.2 % are slow and not cached, and 6 % from 14:02 on."""
    rng = np.random.default_rng(3)
    latency = rng.gamma(8.0, 4.0, size=N)
    hit = (rng.random(N) < 0.9).astype(int)
    numbers = np.arange(N)
    is_slow = np.where(numbers < CHANGE, numbers % 500 == 250, (numbers - CHANGE) % 17 == 3)
    latency[is_slow], hit[is_slow] = rng.uniform(95, 160, is_slow.sum()), 0
    return [
        json.dumps({"ts": BEGAN + i, "latency": round(float(latency[i]), 1), "cache_hit": int(hit[i])})
        for i in range(N)
    ]


@pytest.fixture(scope="module")
def lines():
    return requests()


def written(path):
    return [json.loads(text) for text in Path(path).read_text().splitlines()]


def test_watch_reports_a_change_in_words(tmp_path, cli, lines, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("requests.jsonl").write_text("\n".join(lines) + "\n")
    code, _, err = cli("watch", "requests.jsonl", *SETTINGS, *DRIFT, "--only-anomalies", "--out", "out", "--model", "m")
    assert code == 0, err
    reported = [line["drift"] for line in written("out") if "drift" in line]
    drift = next(one for one in reported if one["kind"] == "drift")
    assert drift["state"] == "begun"
    assert abs(drift["start"] - CHANGE) < 60
    assert drift["noticed"] < CHANGE + 400
    assert drift["log_odds"] > np.log(100)
    sentence = drift["summary"]
    assert sentence.startswith("Since 14:02 ")
    assert "the share of records with" in sentence
    assert "latency >" in sentence
    assert "has risen from" in sentence
    assert "this is a change (odds" in sentence
    assert sentence.endswith("not a burst; the model has started to relearn.")
    model = read_model("m", "")
    assert isinstance(model.companion, DriftMonitor)
    assert min(model.keys_) >= drift["start"]  # the window was cut at the change


def test_watch_names_categories_that_changed(tmp_path, cli, lines, monkeypatch):
    """The same requests with a country; from 14:02 on, some are from a new one."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    records = [json.loads(line) for line in lines]
    for i, record in enumerate(records):
        is_new = i >= CHANGE and rng.random() < 0.15
        record["country"] = "XK" if is_new else ["DE", "FR", "US", "IT"][rng.choice(4, p=[0.5, 0.3, 0.15, 0.05])]
    Path("requests.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    settings = ["--categories", "country", *SETTINGS[:2], "--columns", "latency", *SETTINGS[4:]]
    code, _, err = cli("watch", "requests.jsonl", *settings, *DRIFT, "--only-anomalies", "--out", "out", "--model", "m")
    assert code == 0, err
    reported = [line["drift"] for line in written("out") if "drift" in line]
    drift = next(one for one in reported if one["kind"] == "drift")
    assert abs(drift["start"] - CHANGE) < 60
    assert "the share of records with country = XK has risen from 0 % to " in drift["summary"]
    assert drift["summary"].endswith("the model has started to relearn.")
    model = read_model("m", "")
    assert model.companion.encoding_.columns == model.encoding_.columns == (1,)
    assert "XK" in model.categories_["country"]


def test_a_killed_process_continues_with_its_monitor(tmp_path, factory, lines):
    calm, command = tmp_path / "calm", ["requests.jsonl", "--follow", *SETTINGS, *DRIFT, "--out", "out", "--model", "m"]
    calm.mkdir()
    (calm / "requests.jsonl").write_text("\n".join(lines) + "\n")

    def n_committed(folder):
        try:
            return read_notes(folder / "m")[0]["counts"]["records"]
        except (OSError, ValueError, LookupError):  # before the first commit
            return 0

    def append(part):
        with open(tmp_path / "requests.jsonl", "a") as file:
            file.write("".join(f"{line}\n" for line in part))

    for turn, start in enumerate(range(0, 2500, 500)):  # killed while learning, reading, scoring, relearning, saving
        append(lines[start : start + 450])
        child = factory.start(tmp_path, *command, "--save-records", "50")
        until(lambda start=start: n_committed(tmp_path) == start + 450)
        append(lines[start + 450 : start + 500])
        time.sleep(0.04 * turn)
        os.kill(child, signal.SIGKILL)
        assert factory.wait() == -signal.SIGKILL
    append(lines[2500:])
    for folder in (tmp_path, calm):
        child = factory.start(folder, *command, "--save-records", "50")
        until(lambda folder=folder: n_committed(folder) == N)
        os.kill(child, signal.SIGTERM)
        assert factory.wait() == 0, (folder / "stderr").read_text()
    assert (tmp_path / "out").read_bytes() == (calm / "out").read_bytes()
    assert any("drift" in line for line in written(tmp_path / "out"))
    assert read_model(tmp_path / "m", "").to_bytes() == read_model(calm / "m", "").to_bytes()


def test_forget_removes_records_from_the_monitor(tmp_path, cli, lines, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = [json.dumps({**json.loads(line), "id": f"r{i}"}) for i, line in enumerate(lines[:1200])]
    Path("requests.jsonl").write_text("\n".join(named) + "\n")
    code, _, err = cli("watch", "requests.jsonl", *SETTINGS, *DRIFT, "--id", "id", "--out", "out", "--model", "m")
    assert code == 0, err
    assert read_model("m", "").companion.holds("r1150")
    code, _, err = cli("forget", "-m", "m", "--id", "r1150")
    assert code == 0, err
    model = read_model("m", "")
    assert not model.holds("r1150")
    assert not model.companion.holds("r1150")


def test_watch_rejects_contradicting_options_and_stops_monitors_without_drift(tmp_path, cli, lines, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("requests.jsonl").write_text("\n".join(lines[:300]) + "\n")
    code, _, err = cli("watch", "requests.jsonl", "--drift", "report", "--drift-alarms-every", "1 day")
    assert code == 2
    assert "needs --time" in err
    code, _, err = cli("watch", "requests.jsonl", "--drift", "report", "--drift-alarms-every", "soon")
    assert code == 2
    assert "is not a duration" in err
    code, _, err = cli("watch", "requests.jsonl", *SETTINGS, *DRIFT, "--out", "out", "--model", "m")
    assert code == 0, err
    with Path("requests.jsonl").open("a") as log:
        log.write("\n".join(lines[300:310]) + "\n")
    code, _, err = cli("watch", "requests.jsonl", *SETTINGS, "--out", "out", "--model", "m")
    assert code == 0
    assert read_model("m", "").companion is None
