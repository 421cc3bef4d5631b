"""The ONNX graph of a model scores as the library does."""

import numpy as np
import pandas as pd
import pytest
from effort import mostly_slow

from polyaforest import BatchMPF, StreamingMPF, Tree

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

KINDS = [
    (StreamingMPF, "margins"),
    (BatchMPF, "log_mass"),
    (StreamingMPF, "typicality"),
    (BatchMPF, "typicality"),
    (BatchMPF, "mass"),
]


def run(model, rows):
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(["score", "is_anomaly"], {"X": rows})


def rows_to_fit():
    rows = np.random.default_rng(0).normal(size=(800, 4))
    rows[:, -1] = np.round(rows[:, -1])
    return rows


def rows_to_score():
    rows = np.random.default_rng(1).normal(size=(3000, 4)) * 2
    rows[:100] = rows_to_fit()[:100]
    rows[100:200] *= 1e6
    return rows


@pytest.mark.parametrize(("kind", "score"), mostly_slow(KINDS, 0, 1))
def test_the_runtime_scores_as_the_library(kind, score):
    detector = kind(n_estimators=20, score_type=score, random_state=0).fit(rows_to_fit())
    rows = rows_to_score()
    scores, verdicts = run(detector.export("onnx"), rows)
    expected = detector.detect(rows)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-9, atol=1e-9)
    assert verdicts.tolist() == expected.is_anomaly.tolist()
    assert verdicts.any()


@pytest.mark.parametrize("detector", [StreamingMPF(n_estimators=2), BatchMPF(n_estimators=2, tree=Tree(max_depth=1))])
def test_trees_of_few_nodes(detector):
    detector.set_params(random_state=0).fit(np.array([[3.0], [3.0], [3.0]]))
    rows = np.array([[3.0], [4.0], [-1e9]])
    np.testing.assert_allclose(run(detector.export("onnx"), rows)[0], detector.score_samples(rows), rtol=1e-9)


def test_rows_with_missing_values_have_no_score():
    rows = rows_to_score()[:5]
    rows[2, 1] = np.nan
    scores, verdicts = run(StreamingMPF(n_estimators=3, random_state=0).fit(rows_to_fit()).export("onnx"), rows)
    assert np.isnan(scores).tolist() == [False, False, True, False, False]
    assert not verdicts[2]


def test_exports_explain_what_onnx_cannot_express():
    with pytest.raises(ValueError, match="ONNX cannot express score_type='multiscale'"):
        BatchMPF(n_estimators=1, score_type="multiscale").fit(rows_to_fit()).export("onnx")
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "kind": pd.Categorical(["a", "b", "a"])})
    with pytest.raises(ValueError, match="no operator for categories such as column 'kind'"):
        BatchMPF(n_estimators=1).fit(table).export("onnx")
