"""`polyaforest export` writes what other programs score with."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from polyaforest import BatchMPF, SeriesMPF

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def detector():
    return BatchMPF(n_estimators=3, random_state=0).fit(np.random.default_rng(0).normal(size=(200, 2)))


def test_the_command_writes_the_model_and_its_scorer(cli, tmp_path, detector):
    detector.save(tmp_path / "model.mpf")
    code, _, err = cli("export", tmp_path / "model.mpf", "--to", tmp_path / "model.json", "--scorer", "python")
    assert code == 0, err
    assert (tmp_path / "model.json").read_text("utf-8") == detector.export("json")
    ended = subprocess.run(
        [sys.executable, "scorer.py", "model.json"],
        cwd=tmp_path,
        input="[0.5, 9]",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ended.stdout)[0] == pytest.approx(detector.score_samples([[0.5, 9]])[0], abs=1e-9)
    assert cli("export", tmp_path / "model.mpf", "--to", tmp_path / "model.json", "--scorer", "javascript")[0] == 0
    assert {path.name for path in tmp_path.glob("*.js")} == {"scorer.js", "codes.js"}


def test_the_command_writes_sql(cli, tmp_path, detector):
    detector.save(tmp_path / "model.mpf")
    code, _, err = cli(
        "export",
        tmp_path / "model.mpf",
        "--to",
        tmp_path / "m.sql",
        "--dialect",
        "sqlite",
        "--table",
        "pay",
        "--key",
        "n",
    )
    assert code == 0, err
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE pay (n INTEGER, x0 REAL, x1 REAL)")
        connection.execute("INSERT INTO pay VALUES (7, 0.5, 9)")
        connection.executescript((tmp_path / "m.sql").read_text("utf-8"))
        ((n, score),) = connection.execute("SELECT n, score FROM polyaforest_scores").fetchall()
    assert n == 7
    assert score == pytest.approx(detector.score_samples([[0.5, 9]])[0], abs=1e-9)


def test_the_command_explains_what_it_cannot_write(cli, tmp_path, detector):
    detector.save(tmp_path / "model.mpf")
    code, _, err = cli("export", tmp_path / "model.mpf", "--to", tmp_path / "model.xml")
    assert code == 2
    assert "does not end in one of .json" in err
    for option in (["--scorer", "python"], ["--key", "n"]):
        ending = "sql" if option[0] == "--scorer" else "json"
        code, _, err = cli("export", tmp_path / "model.mpf", "--to", tmp_path / f"model.{ending}", *option)
        assert code == 2
        assert f"{option[0]} is for models in" in err
    SeriesMPF().fit(np.arange(300.0)[:, None] % 7).save(tmp_path / "series.mpf")
    code, _, err = cli("export", tmp_path / "series.mpf", "--to", tmp_path / "series.json")
    assert code == 3
    assert "is a SeriesMPF: only a StreamingMPF or a BatchMPF can be exported" in err
    assert not (tmp_path / "series.json").exists()
