"""Model files of all format versions, as written by their releases, are still readable."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from golden import make
from golden.make import RECORDS, STORES, answers, watch

import polyaforest
from polyaforest.detectors import loads
from polyaforest.judge import read_model, read_notes

KEPT = sorted((Path(__file__).parents[1] / "golden").glob("*.models"))
BLOCKS = sorted((Path(__file__).parents[1] / "golden").glob("*.block"))
FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.mpf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_old_file_loads_with_same_results(path):
    said = answers(polyaforest.load(path))
    for name, expected in json.loads(path.with_suffix(".json").read_text("utf-8")).items():
        assert said[name] == (expected if name == "keys" else pytest.approx(expected, rel=1e-9)), name


@pytest.mark.parametrize("path", BLOCKS, ids=lambda path: path.name)
def test_old_block_loads_with_same_results(path):
    said = answers(loads(path.read_bytes()))
    for name, expected in json.loads(path.with_suffix(".json").read_text("utf-8")).items():
        assert said[name] == (expected if name == "keys" else pytest.approx(expected, rel=1e-9, nan_ok=True)), name


def test_every_version_has_a_block_of_every_kind():
    assert {path.stem for path in BLOCKS} == {
        f"block-{version}-{name}" for name, (first, last) in make.BLOCKS.items() for version in range(first, last + 1)
    }


def test_every_version_has_a_file_of_every_kind():
    assert {path.stem for path in FILES} == {
        f"{version}-{name}" for name, (first, last) in make.FILES.items() for version in range(first, last + 1)
    }


@pytest.mark.parametrize("name", make.MODELS)
def test_model_is_saved_in_oldest_possible_version(name, tmp_path):
    """Older releases can read models without newer fields."""
    model = make.MODELS[name]()
    model.save(tmp_path / "model")
    header = json.loads(np.load(tmp_path / "model")["header.json"].tobytes())
    assert header["version"] == make.FILES[name][1]
    assert int.from_bytes(model.to_bytes()[4:6], "little") == make.BLOCKS[name][1]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_old_store_resumes_with_same_results(tmp_path, path, programs):
    name, store = path.stem.split("-")[2], Path(shutil.copy(path, tmp_path))
    expected = json.loads(path.with_suffix(".json").read_text("utf-8"))
    lines = watch(store, name, RECORDS[40:], programs.run)
    assert len(lines) == len(expected) == 20
    for line, before in zip(lines, expected, strict=True):
        assert line == {**before, "score": pytest.approx(before["score"], rel=1e-9)}
    notes, keys = read_notes(store)
    assert notes["counts"] == {"records": 60, "bad": 0, "anomalies": 0}
    assert sum(read_model(store, key).n_seen_ for key in keys) == 60


def test_every_version_has_a_store_of_every_kind():
    assert {path.stem for path in KEPT} == {
        f"store-{version}-{name}" for version in range(make.STORE_VERSION + 1) for name in STORES
    }
