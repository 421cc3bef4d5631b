"""Results as frames of the library of the rows, and as HTML in notebooks."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest

from polyaforest import BatchMPF, GroupedMPF, SeriesMPF, StreamingMPF
from polyaforest.forest.result_frames import FrameKind
from polyaforest.forest.thresholds import NOTHING

ROWS = np.random.default_rng(4).normal(size=(300, 2))
ROWS[7] = 90
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def forest():
    return StreamingMPF(n_estimators=10, random_state=0).fit(pd.DataFrame(ROWS, columns=["a", HOSTILE]))


def test_frame_is_of_the_library_of_the_rows(forest):
    frame = pd.DataFrame(ROWS, columns=["a", HOSTILE], index=[f"r{i}" for i in range(len(ROWS))])
    found = forest.detect(frame)
    table = found.to_frame()
    assert list(table.columns) == ["score", "p_value", "threshold", "is_anomaly", "severity"]
    assert list(table.index) == list(frame.index)
    assert table.loc["r7", "is_anomaly"]
    assert table.loc["r7", "severity"] >= 1
    assert table["severity"].notna().equals(table["is_anomaly"])
    np.testing.assert_array_equal(table["score"], found.scores)
    assert list(frame.join(table).columns) == ["a", HOSTILE, *table.columns]
    assert pickle.loads(pickle.dumps(found)).to_frame().equals(table)
    same = forest.detect(pl.DataFrame(frame)).to_frame()
    assert isinstance(same, pl.DataFrame)
    np.testing.assert_array_equal(same["score"], found.scores)
    unnamed = StreamingMPF(n_estimators=3, random_state=0).fit(ROWS)
    assert isinstance(unnamed.detect(ROWS).to_frame(), pd.DataFrame)


def test_every_detector_remembers_the_frame():
    frame = pl.DataFrame(ROWS, schema=["a", "b"])
    stream = StreamingMPF(n_estimators=3, random_state=0)
    detectors = [
        BatchMPF(n_estimators=3, random_state=0).fit(frame).detect(frame),
        stream.fit(frame).detect_then_learn(frame, explain=True),
        GroupedMPF(StreamingMPF(n_estimators=3, random_state=0))
        .fit(frame, groups=["g"] * 300)
        .detect(frame, groups=["g"] * 300),
        SeriesMPF(StreamingMPF(n_estimators=3, random_state=0), shingle=2).fit(frame).detect(frame),
        SeriesMPF(StreamingMPF(n_estimators=3, random_state=0), shingle=2).detect_then_learn(X=frame),
    ]
    for found in detectors:
        assert isinstance(found.to_frame(), pl.DataFrame)
        assert len(found) == 7  # still a tuple
        scores, *_ = found
        assert scores is found.scores


def test_frame_has_reasons_if_rows_are_explained(forest):
    frame = pd.DataFrame(ROWS, columns=["a", HOSTILE])
    stream = StreamingMPF(n_estimators=10, window=100, random_state=0).fit(frame.iloc[100:])
    found = stream.detect_then_learn(frame.iloc[5:10], explain=True)
    table = found.to_frame()
    assert list(table.index) == [5, 6, 7, 8, 9]
    assert "a 90 too high (usual about" in table.loc[7, "reason"]
    assert table.loc[6, "reason"] is None or not table.loc[6, "is_anomaly"]
    page = found._repr_html_()
    assert "stands out" in page or "stand out" in page
    assert HOSTILE not in page
    assert '<td style="text-align:left">7</td>' in page


def test_notebook_shows_the_worst_rows_first_and_says_how_many_more(forest):
    rows = pd.DataFrame(np.linspace(20, 90, 50)[:, None] * [1, 1], columns=["a", HOSTILE])
    page = forest.detect(rows)._repr_html_()
    assert "50 of 50 scored rows stand out." in page
    assert "30 more rows: see to_frame()." in page
    assert page.count("<tr>") == 21
    assert "0 of 0 scored rows" in NOTHING._repr_html_()
    assert len(NOTHING.to_frame()) == 0


def test_notebook_shows_sets_of_explanations_with_their_rows(forest):
    rows = pd.DataFrame(ROWS[:25], columns=["a", HOSTILE], index=[f"<b>{i}" for i in range(25)])
    page = forest.explain(rows)._repr_html_()
    assert page.count("<details") == 20
    assert "Row &lt;b&gt;7: Anomalous" in page
    assert "5 more" in page
    assert HOSTILE not in page
    assert "<details" not in forest.explain(rows.iloc[:1])._repr_html_()


def test_constants_do_not_remember_frames():
    NOTHING.like(pl.DataFrame({"a": [1]}))
    assert NOTHING._frame is None
    assert NOTHING.like(pl.DataFrame({"a": [1]}))._frame == FrameKind("polars")
