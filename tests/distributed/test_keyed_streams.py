"""Keyed streams: models in memory, and rows with ids."""

import csv
import io

import numpy as np
import pytest
from list_source import ListSource

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.forest.point_store import PointStore
from polyaforest.io.outputs import FileLines
from polyaforest.io.records import RecordReader
from polyaforest.io.tables import TableChunk, TableColumns
from polyaforest.judge import open_store
from polyaforest.judge.table import DetectorSettings, StreamDetector
from polyaforest.judge.watcher import Watcher

ROWS = np.random.default_rng(0).normal(size=(60, 2))


def test_detect_keeps_models_of_partitions_in_memory():
    keys = [f"web-{i % 5}" for i in range(len(ROWS))]
    with StreamDetector(TableColumns(["a", "b"]), DetectorSettings("stream", window=20, n_jobs=None)) as detector:
        detector.detect(TableChunk(ROWS, np.arange(len(ROWS)), None, keys, None))
        assert detector._models.n_in_memory == 5


def test_watch_finds_ids_without_listing_keys(tmp_path, monkeypatch):
    def fail(self):
        raise AssertionError("all keys were listed")

    monkeypatch.setattr(PointStore, "held_keys", property(fail))
    records = [b'{"id": "u%d", "a": %f}' % (i % 7, row[0]) for i, row in enumerate(ROWS)]
    out, bad = FileLines(str(tmp_path / "out")), FileLines(str(tmp_path / "bad"))
    with open_store(None, lambda: StreamingMPF(n_estimators=2, window=20, random_state=0)) as store:
        loop = Watcher(ListSource(records, at_once=4), RecordReader(id="id"), store, out, bad)
        loop.run()
        loop.close()
        assert store[""].detector.n_seen_ == len(ROWS)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("make", [StreamingMPF, SeriesMPF])
def test_holds_returns_whether_key_is_held(make):
    forest = StreamingMPF(n_estimators=2, window=8, random_state=0)
    model = forest if make is StreamingMPF else SeriesMPF(forest, shingle=2)
    assert not model.holds("r0")
    model.partial_fit(ROWS, keys=[f"r{i}" for i in range(len(ROWS))])
    assert all(model.holds(key) for key in model.keys_)
    assert not model.holds("r0")
    model.delete("r58")
    assert not model.holds("r58")


@pytest.mark.parametrize("name", ["row", "score", "p_value", "is_anomaly"])
def test_score_distinguishes_ids_from_output_columns(tmp_path, cli, name):
    data, model = tmp_path / "a.csv", tmp_path / "m.mpf"
    rows = "".join(f"u{i},{a:.3f},{b:.3f}\n" for i, (a, b) in enumerate(ROWS))
    data.write_text(f"{name},a,b\n{rows}")
    assert cli("fit", data, "-m", model, "--columns", "a,b", "-q")[0] == 0
    code, out, _ = cli("score", "-m", model, data, "--id", name, "-q")
    assert code == 0
    lines = list(csv.DictReader(io.StringIO(out)))
    assert lines[3][f"{name}_"] == "u3"
    assert float(lines[3]["score"]) < 0
    assert lines[3]["row"] == "4"
