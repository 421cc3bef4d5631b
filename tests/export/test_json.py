"""The JSON of a model scores as the library does, in pure Python and in JavaScript."""

import json
import math
import shutil
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
from effort import mostly_slow

from polyaforest import BatchMPF, EpsilonPhi, StreamingMPF, Tree
from polyaforest.export.scorer import Scorer, code_of
from polyaforest.tables.categories import canonical
from polyaforest.tables.categories import code_of as library_code_of

SCRIPTS = files("polyaforest.export")
SCORES = ("margins", "typicality", "multiscale", "mass", "log_mass", EpsilonPhi(0.01))
KINDS = [(StreamingMPF, score) for score in SCORES] + [(BatchMPF, score) for score in SCORES[1:]]
MISSING = ("impute", "marginalise")
RUN_JAVASCRIPT = """
import {{ readFileSync }} from "node:fs";
import {{ Scorer }} from {script};
const [model, rows] = JSON.parse(readFileSync(0, "utf8"));
const scorer = new Scorer(model);
console.log(JSON.stringify(rows.map((row) => scorer.detect(row))));
"""


def numbers(seed, n=80):
    """Rows near the ones to fit, equal to some of them, and far beyond."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 3)) * 2
    rows[:20] = fitted()[:20]
    rows[20:40] *= 1e6
    rows[40:45] *= 1e90
    return rows


def fitted():
    rows = np.random.default_rng(0).normal(size=(600, 3))
    rows[:, 2] = np.round(rows[:, 2])
    return rows


def with_gaps(rows, seed=1):
    rows = rows.copy()
    rows[np.random.default_rng(seed).random(rows.shape) < 0.3] = np.nan
    rows[-1] = np.nan
    return rows


def mixed(rows):
    """A frame whose second column has categories, known and unknown, and whose last two have pairs to avoid."""
    texts = [None if math.isnan(v) else f"é{v:.0f}" if abs(v) < 3 else f"new {v:.3g}" for v in rows[:, 1]]
    kinds = [None if math.isnan(v) else "low" if v < 0 else "high" for v in rows[:, 2]]
    return pd.DataFrame(
        {"a": rows[:, 0], "b": pd.Categorical(texts), "c": rows[:, 2], "d": pd.Categorical(kinds, ["low", "high"])}
    )


def as_json_rows(table):
    values = table.to_numpy(object) if hasattr(table, "to_numpy") else table.astype(object)
    return [[None if pd.isna(value) else value for value in row] for row in values]


def are_equal(ours, theirs):
    return np.allclose(np.asarray(ours, float), np.asarray(theirs, float), rtol=1e-9, atol=1e-9, equal_nan=True)


def in_javascript(model, rows):
    """Scores, p-values and verdicts by the script of the package, run by Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    program = RUN_JAVASCRIPT.format(script=json.dumps(str(SCRIPTS / "scorer.js")))
    command = [node, "--input-type=module", "--eval", program]
    given = json.dumps([json.loads(model), rows])
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [(found["score"], found["pValue"], found["isAnomaly"]) for found in json.loads(ended.stdout)]


def check(detector, table, found):
    """Compare results with those of the library."""
    ours = detector.detect(table)
    scores, p_values, verdicts = zip(*found, strict=True)
    assert are_equal(ours.scores, [-np.inf if score is None else score for score in scores])
    assert are_equal(ours.p_values, [np.nan if p_value is None else p_value for p_value in p_values])
    assert ours.is_anomaly.tolist() == list(verdicts)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize(("kind", "score"), mostly_slow(KINDS, 0, 2, 3, 8))
@pytest.mark.parametrize("as_table", mostly_slow([np.asarray, mixed], 1))
def test_both_scorers_agree_with_the_library(kind, score, missing, as_table):
    tree = Tree(max_depth=6) if kind is BatchMPF else None
    settings = {"n_estimators": 4, "tree": tree, "score_type": score, "missing": missing, "random_state": 0}
    detector = kind(**settings).fit(as_table(fitted()))
    model, table = detector.export("json"), as_table(with_gaps(numbers(2)))
    scorer, rows = Scorer(json.loads(model)), as_json_rows(table)
    check(detector, table, [scorer.detect(row) for row in rows])
    check(detector, table, in_javascript(model, rows))


@pytest.mark.parametrize("kind", [StreamingMPF, pytest.param(BatchMPF, marks=pytest.mark.slow)])
def test_thousands_of_rows_agree(kind):
    detector = kind(n_estimators=8, random_state=1).fit(mixed(fitted()))
    table = mixed(numbers(3, 3000))
    model, rows = detector.export("json"), as_json_rows(table)
    check(detector, table, in_javascript(model, rows))
    scorer = Scorer(json.loads(model))
    check(detector, table, [scorer.detect(row) for row in rows])


def test_rare_pairs_cost_the_same():
    rng = np.random.default_rng(5)
    country = rng.choice(["DE", "US", "JP"], 4000)
    table = pd.DataFrame(
        {
            "country": country,
            "currency": pd.Series(country).map({"DE": "EUR", "US": "USD", "JP": "JPY"}),
            "x": rng.normal(size=4000),
        }
    ).astype({"country": "category", "currency": "category"})
    detector = StreamingMPF(n_estimators=4, window=4000, random_state=0).fit(table)
    model = detector.export("json")
    assert json.loads(model)["pairs"]["cells"]
    odd = pd.concat([table[:50], table[:50].assign(currency="USD")]).astype(table.dtypes.to_dict())
    check(detector, odd, [Scorer(json.loads(model)).detect(row) for row in as_json_rows(odd)])
    check(detector, odd, in_javascript(model, as_json_rows(odd)))


def test_late_columns_agree():
    rows = fitted()[:60]
    rows[:50, 1] = rows[:, 2] = np.nan
    detector = StreamingMPF(n_estimators=2, window=60, random_state=0).partial_fit(rows)
    table = numbers(4, 60)
    model = detector.export("json")
    assert json.loads(model)["replaced"] == [[2, 0.0], [1, None]]
    check(detector, table, [Scorer(json.loads(model)).detect(row) for row in as_json_rows(table)])


@pytest.mark.parametrize(
    "make",
    [lambda: StreamingMPF(window=None, tree=Tree(max_depth=5), n_estimators=3), lambda: BatchMPF(n_estimators=3)],
)
def test_models_of_few_rows_and_constant_columns_agree(make):
    rows = np.column_stack([np.arange(40.0) % 3, np.full(40, 7.0)])
    detector = make().set_params(random_state=0).fit(rows)
    table = np.vstack([rows[:5], [[1.0, 8.0], [-5.0, 7.0], [1e99, -1e99], [1e-120, 7.0]]])
    scorer = Scorer(json.loads(detector.export("json")))
    check(detector, table, [scorer.detect(row) for row in as_json_rows(table)])


def test_rows_may_be_objects_by_column():
    detector = StreamingMPF(n_estimators=3, random_state=0).fit(mixed(fitted()))
    model = detector.export("json")
    rows = [{"a": 1.0, "b": "é1", "c": -1.0, "d": "low", "other": 3}, {"c": 0.0}]
    ordered = [[1.0, "é1", -1.0, "low"], [None, None, 0.0, None]]
    scorer = Scorer(json.loads(model))
    assert [scorer.detect(row) for row in rows] == [scorer.detect(row) for row in ordered]
    assert in_javascript(model, rows) == in_javascript(model, ordered)


def test_categories_have_the_codes_of_the_library():
    values = ["DE", "", "é中😀", "x" * 128, "y" * 300, 7, 7.0, 7.5, True, 1e22, 1e-7, 0.0000123, -0.25]
    expected = [library_code_of(canonical(value)) for value in values]
    assert [code_of(value) for value in values] == expected
    node = shutil.which("node")
    if node is not None:
        program = f"import {{ codeOf }} from {json.dumps(str(SCRIPTS / 'codes.js'))};"
        program += f"console.log(JSON.stringify({json.dumps(values)}.map(codeOf)))"
        command = [node, "--input-type=module", "--eval", program]
        assert json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == expected


def test_the_scorer_runs_alone(tmp_path):
    detector = BatchMPF(n_estimators=3, random_state=0).fit(fitted())
    (tmp_path / "scorer.py").write_text((SCRIPTS / "scorer.py").read_text("utf-8"), "utf-8")
    (tmp_path / "model.json").write_text(detector.export("json"), "utf-8")
    command = [sys.executable, "-I", "-S", "scorer.py", "model.json"]
    ended = subprocess.run(command, cwd=tmp_path, input="[0, 1, 2]\n", capture_output=True, text=True, check=True)
    assert are_equal(json.loads(ended.stdout)[0], detector.score_samples([[0, 1, 2]])[0])


@pytest.mark.parametrize("name", ["scorer.py", "scorer.js"])
def test_scorers_are_short(name):
    assert len((SCRIPTS / name).read_text("utf-8").splitlines()) < 200


def test_scorers_reject_what_the_library_rejects():
    strict = StreamingMPF(n_estimators=3, missing="error", random_state=0).fit(fitted())
    scorer = Scorer(json.loads(strict.export("json")))
    for row, words in [([1, None, 2], "missing values"), ([1, 2], "3 columns"), ([1, 1e101, 2], "too large")]:
        with pytest.raises(ValueError, match=words):
            scorer.detect(row)
    with pytest.raises(ValueError, match="version 1"):
        Scorer({"format": "polyaforest", "version": 2})


def test_exports_explain_what_they_cannot_do():
    with pytest.raises(ValueError, match="format must be one of 'json'"):
        BatchMPF(n_estimators=2).fit(fitted()).export("pmml")
    empty = StreamingMPF(n_estimators=2, window=5).fit(fitted()[:5])
    empty.delete(list(empty.keys_))
    with pytest.raises(ValueError, match="holds no points"):
        empty.export("json")
    young = fitted()[:40]
    young[:30, 1] = np.nan
    late = StreamingMPF(n_estimators=2, window=40, missing="marginalise").partial_fit(young)
    with pytest.raises(ValueError, match="column 'x1' had its first value recently"):
        late.export("json")


def test_a_private_release_exports_no_rows():
    release = BatchMPF(n_estimators=3, tree=Tree(domain=[[-9] * 3, [9] * 3]), random_state=0).fit(fitted()).release(1.0)
    model = json.loads(release.export("json"))
    assert model["donors"] is None
    assert model["calibration"] == []
    assert model["threshold"] is None
