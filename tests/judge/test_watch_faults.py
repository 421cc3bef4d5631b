"""A failure on one record or key affects no others, and does not occur again after a restart."""

import json

import numpy as np
import pytest
from list_source import ListSource

from polyaforest import StreamingMPF
from polyaforest.io.outputs import FileLines
from polyaforest.io.records import RecordReader
from polyaforest.judge import open_store
from polyaforest.judge.watcher import Cadence, Watcher

pytestmark = pytest.mark.fault

ROWS = np.random.default_rng(3).normal(size=(120, 2)).tolist()


def run_watch(programs, folder, records, *options):
    """Run `polyaforest watch` as a process; return its lines, the quarantine and the completed process."""
    given = "".join(json.dumps(record) + "\n" for record in records)
    arguments = ["watch", "--trees", "5", "--quarantine", "bad.jsonl", *options]
    done = programs.run(*arguments, text=given, cwd=folder)
    bad = folder / "bad.jsonl"
    aside = [json.loads(line) for line in bad.read_text().splitlines()] if bad.exists() else []
    return [json.loads(line) for line in done.stdout.splitlines()], aside, done


@pytest.mark.parametrize("value", [1e-310, 5e-324, 1e-308])
def test_tiny_values_do_not_stop_the_stream(programs, tmp_path, value):
    lines, aside, done = run_watch(programs, tmp_path, [{"a": 0}, {"a": value}, {"a": 1}], "--model", "m.db")
    assert done.returncode == 0, done.stderr
    assert len(lines) == 3
    assert all(line["score"] is not None for line in lines)
    assert not aside


def test_values_out_of_range_lose_only_their_record(programs, tmp_path):
    values = np.geomspace(1e-300, 1e299, 600).tolist()
    records = [{"a": value, "host": host} for value in values for host in ("x", "y")]
    lines, aside, done = run_watch(programs, tmp_path, records, "--by", "host")
    assert done.returncode == 0, done.stderr
    assert len(lines) == 2 * sum(value <= 1e100 for value in values)
    assert len(lines) + len(aside) == len(records)
    assert all(line["score"] is not None for line in lines)
    assert "values must not exceed 1e+100" in aside[0]["reason"]


# ---- injected defects ------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts():
    return [json.dumps({"host": f"web-{i % 2}", "cpu": a, "disk": b}).encode() for i, (a, b) in enumerate(ROWS)]


def watch(folder, records, at_once, said=None, model="models.db"):
    """Watch records to their end; return the lines, the quarantine and the learned counts."""
    folder.mkdir(exist_ok=True)
    make = lambda: StreamingMPF(n_estimators=5, window=40, random_state=1)  # noqa: E731 - short
    out, bad = FileLines(str(folder / "out")), FileLines(str(folder / "bad"))
    with open_store(folder / model, make) as store:
        tell = said.append if said is not None else lambda words: None
        loop = Watcher(
            ListSource(records, at_once=at_once),
            RecordReader(key="host"),
            store,
            out,
            bad,
            cadence=Cadence(records=10),
            notify=tell,
        )
        loop.resume()
        loop.run()
        loop.close()
        learned = {key: store[key].detector.n_seen_ for key in store.keys}
    return *(_read(folder / name) for name in ("out", "bad")), learned


def _read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def failing(records, is_fault, after):
    """Return a `detect_then_learn` that fails on some records, before or after learning them."""
    judge = StreamingMPF.detect_then_learn

    def fail(detector, rows, **labels):
        if not hasattr(rows, "values") or not any(is_fault(row) for row in rows.values.tolist()):
            return judge(detector, rows, **labels)
        if after:
            judge(detector, rows, **labels)
        raise ZeroDivisionError("a defect")

    return fail


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_record_that_a_model_fails_on_is_quarantined_and_others_continue(tmp_path, hosts, monkeypatch, after, at_once):
    clean, _, _ = watch(tmp_path / "clean", hosts, at_once)
    said = []
    monkeypatch.setattr(StreamingMPF, "detect_then_learn", failing(hosts, lambda row: row == ROWS[60], after))
    lines, aside, learned = watch(tmp_path / "faulty", hosts, at_once, said)
    assert [line["position"] for line in aside] == ["60"]
    assert "ZeroDivisionError: a defect" in aside[0]["reason"]
    assert not after or "'web-0'" in said[-1]
    others = [line for line in clean if line["key"] == "web-1"]
    assert [line for line in lines if line["key"] == "web-1"] == others  # unaffected
    assert len(lines) == len(hosts) - 1
    assert learned["web-1"] == 60
    assert learned["web-0"] == 59 if not after else 29 <= learned["web-0"] <= 59  # from where it was last saved
    again, _, _ = watch(tmp_path / "faulty", hosts, at_once)
    assert again == lines  # a restart has nothing left to do


def test_model_that_fails_on_every_record_starts_over(tmp_path, hosts, monkeypatch):
    watch(tmp_path, hosts[:60], 100)
    failures = iter(range(3))

    def is_fault(row):
        return row in ROWS[60::2] and next(failures, None) is not None

    said = []
    monkeypatch.setattr(StreamingMPF, "detect_then_learn", failing(hosts, is_fault, after=True))
    _, aside, learned = watch(tmp_path, hosts, 1, said)
    assert [line["position"] for line in aside] == ["60", "62", "64"]
    assert "starts over" in said[-1]
    assert learned == {"web-0": 27, "web-1": 60}
