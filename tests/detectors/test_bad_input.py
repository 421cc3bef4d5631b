"""Bad input raises an error that names the cell, and changes nothing."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from forests import TREE, made
from readers import READERS
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError

from polyaforest import BatchMPF, EpsilonPhi, StreamingMPF, Tree

ROWS = np.random.default_rng(0).normal(size=(20, 2))
ESTIMATORS = [StreamingMPF, BatchMPF]
NAMES = ["load", "latency"]


@pytest.fixture(params=ESTIMATORS)
def estimator(request):
    return request.param


def build(estimator, **parameters):
    shallow = {"max_depth": 3} if estimator is BatchMPF else {}
    return made(estimator, **{"n_estimators": 2, "random_state": 0, "missing": "error"} | shallow | parameters)


def methods(estimator):
    """Return all methods that read rows, with their other arguments."""
    return (
        READERS
        | {"fit": {}, "fit_predict": {}}
        | ({"partial_fit": {}, "delete_rows": {}} if estimator is BatchMPF else {})
    )


def with_value(value, row=3, column=1):
    X = ROWS[:10].astype(object)
    X[row, column] = value
    return X


BIG = 2**53 + 2
BAD = {
    "NaN": (with_value(np.nan).astype(float), "contains NaN: row 3, column 1 is missing"),
    "infinity": (with_value(np.inf).astype(float), "contains infinity: row 3, column 1 is inf"),
    "minus infinity": (with_value(-np.inf).astype(float), "contains infinity: row 3, column 1 is -inf"),
    "1e101": (with_value(1e101).astype(float), r"row 3, column 1 is 1e\+101: values must not exceed 1e\+100"),
    "several": (np.full((4, 2), np.nan), r"row 0, column 0 is missing \(8 such values in all\)"),
    "NaN in pandas": (pd.DataFrame(with_value(np.nan).astype(float), columns=NAMES), "row 3, column '?(latency|1)'?"),
    "a string": (with_value("high"), "row 3, column 1 is 'high', which is not a number"),
    "a string in pandas": (pd.DataFrame(with_value("high"), columns=NAMES), "row 3, column 'latency' is 'high'"),
    "a string in polars": (pl.DataFrame({"load": [1.0, 2.0], "latency": ["1", "low"]}), "row 1, column 'latency' is"),
    "an array of strings": (np.array([["1", "x"], ["2", "3"]]), "row 0, column 1 is 'x'"),
    "dicts": ([[{"a": 1}, 2.0], [{"a": 2}, 3.0]], "row 0, column 0 is {'a': 1}, which is not a number"),
    "a list of dicts": ([{"load": 1.0, "latency": 2.0}], r"(?i)array|number"),
    "complex numbers": (ROWS * 1j, "Complex data not supported"),
    "no rows": (np.empty((0, 2)), r"0 sample\(s\)"),
    "no columns": (np.empty((5, 0)), r"0 feature\(s\)"),
    "an empty list": ([], "1D array|0 sample"),
    "an empty pandas frame": (pd.DataFrame({"load": [], "latency": []}, dtype=float), r"0 sample\(s\)"),
    "one dimension": (ROWS[0], "1D array"),
    "three dimensions": (ROWS[None], "dim 3"),
    "a scalar": (3.0, "scalar array"),
    "None": (None, "(?i)array|none|number"),
    "a large integer": (np.array([[1, 2], [3, BIG]]), f"row 1, column 1 is the integer {BIG}"),
    "a large negative integer": (np.array([[1, 2], [-BIG, 4]]), f"row 1, column 0 is the integer -{BIG}"),
    "a large unsigned integer": (np.array([[1, 2], [3, 2**64 - 1]], np.uint64), f"row 1, column 1 .* {2**64 - 1}"),
    "a large integer in pandas": (
        pd.DataFrame({"load": [0.5, 1.0], "latency": [1, BIG]}),
        f"row 1, column 'latency' is the integer {BIG}",
    ),
    "a large integer in polars": (
        pl.DataFrame({"load": [0.5, 1.0], "latency": [1, BIG]}),
        f"row 1, column 'latency' is the integer {BIG}",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_every_method_rejects_bad_rows_naming_the_cell_and_changes_nothing(estimator, name):
    X, message = BAD[name]
    frames = isinstance(X, pd.DataFrame | pl.DataFrame)
    forest = build(estimator).fit(pd.DataFrame(ROWS, columns=NAMES) if frames else ROWS)
    before = pickle.dumps(forest)
    for method, arguments in methods(estimator).items():
        with pytest.raises((ValueError, TypeError), match=message):
            getattr(forest, method)(X, **arguments)
        assert pickle.dumps(forest) == before, method


def test_error_names_column_of_missing_value_in_frame(estimator):
    frame = pd.DataFrame(with_value(np.nan).astype(float), columns=NAMES)
    with pytest.raises(ValueError, match="row 3, column 'latency' is missing"):
        build(estimator).fit(pd.DataFrame(ROWS, columns=NAMES)).predict(frame)
    with pytest.raises(ValueError, match="row 3, column 'latency' is missing"):
        build(estimator).fit(frame)


def test_accepts_largest_exact_integers_and_floats(estimator):
    integers = np.array([[2**53, -(2**53)], [0, 1], [5, 7]])
    assert np.isfinite(build(estimator).fit(integers).score_samples(integers)).all()
    floats = np.array([[1e100, -1e100], [-1e100, 1e100], [0.0, 1e-100]])
    assert np.isfinite(build(estimator).fit(floats).score_samples(floats)).all()


@pytest.mark.parametrize("n_columns", [1, 3])
def test_every_method_but_fit_rejects_wrong_number_of_columns(estimator, n_columns):
    forest = build(estimator).fit(ROWS)
    before = pickle.dumps(forest)
    for method, arguments in methods(estimator).items():
        if method in ("fit", "fit_predict"):
            continue
        with pytest.raises(ValueError, match=f"X has {n_columns} features?, but .* expecting 2"):
            getattr(forest, method)(np.ones((4, n_columns)), **arguments)
    assert pickle.dumps(forest) == before


@pytest.mark.parametrize("X", [np.full((4, 3), np.nan), pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]})])
def test_failed_refit_leaves_forest_usable(estimator, X):
    forest = build(estimator).fit(ROWS)
    before = forest.score_samples(ROWS)
    with pytest.raises((ValueError, TypeError)):
        forest.fit(X)
    assert forest.n_features_in_ == 2
    assert not hasattr(forest, "feature_names_in_")
    np.testing.assert_array_equal(forest.score_samples(ROWS), before)


BAD_PARAMETERS = [
    {"n_estimators": 0},
    {"n_estimators": -1},
    {"n_estimators": 2.5},
    {"n_estimators": "many"},
    {"max_depth": -1},
    {"max_depth": 1.5},
    {"prior_strength": 0},
    {"prior_strength": -0.1},
    {"prior_strength": np.inf},
    {"prior_strength": np.nan},
    {"prior_strength": "weak"},
    {"lifetime": 0},
    {"lifetime": -1.0},
    {"lifetime": np.nan},
    {"lifetime": None},
    {"feature_weights": "uniform"},
    {"feature_weights": 3},
    {"score_type": "density"},
    {"score_type": None},
    {"contamination": 0.0},
    {"contamination": 0.6},
    {"contamination": "some"},
    {"domain": "world"},
    {"domain": 5},
    {"random_state": "seed"},
    {"random_state": -1},
    {"n_jobs": 1.5},
]


@pytest.mark.parametrize("parameters", BAD_PARAMETERS, ids=str)
def test_rejects_parameters_out_of_range_by_name_and_changes_nothing(estimator, parameters):
    (name,) = parameters
    forest = build(estimator).fit(ROWS)
    before = forest.score_samples(ROWS)
    learned = {key: value for key, value in vars(forest).items() if key.endswith("_")}
    given, good = (
        ({"tree": Tree(**parameters)}, {"tree": forest.tree})
        if name in TREE
        else (parameters, {name: getattr(forest, name)})
    )
    with pytest.raises(InvalidParameterError, match=f"'{name}' parameter"):
        forest.set_params(**given).fit(ROWS)
    assert {key: value for key, value in vars(forest).items() if key.endswith("_")} == learned
    np.testing.assert_array_equal(forest.set_params(**good).score_samples(ROWS), before)


@pytest.mark.parametrize("max_samples", [0, -5, 0.0, 1.5, np.nan, "all"])
def test_rejects_max_samples_out_of_range(max_samples):
    with pytest.raises(InvalidParameterError, match="'max_samples' parameter"):
        build(StreamingMPF, max_samples=max_samples).fit(ROWS)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ([[0.0, 0.0]], r"domain must have shape \(2, 2\).*got shape \(1, 2\)"),
        ([-9.0, 9.0], r"domain must have shape \(2, 2\).*got shape \(2,\)"),
        ([[-9.0] * 3, [9.0] * 3], r"domain must have shape \(2, 2\).*got shape \(2, 3\)"),
        ([[-9.0, 9.0], [9.0, -9.0]], r"domain of feature 1 is \[9, -9\]"),
        ([[-9.0, -np.inf], [9.0, 9.0]], r"domain of feature 1 is \[-inf, 9\]"),
        ([[np.nan, -9.0], [9.0, 9.0]], r"domain of feature 0 is \[nan, 9\]"),
        ([[-9.0, -9.0], [9.0, 1e101]], r"domain of feature 1 is \[-9, 1e\+101\]"),
    ],
)
def test_rejects_domain_that_is_not_a_box(estimator, domain, message):
    forest = build(estimator, domain=domain)
    with pytest.raises(ValueError, match=message):
        forest.fit(ROWS)
    assert not [name for name in vars(forest) if name.endswith("_")]


@pytest.mark.parametrize("domain", [[["a", "b"], ["c", "d"]], [[0.0, 1.0], [2.0]]])
def test_rejects_domain_that_is_not_a_numeric_matrix(estimator, domain):
    with pytest.raises(ValueError, match="domain"):
        build(estimator, domain=domain).fit(ROWS)


def test_trees_reject_rows_outside_given_domain():
    forest = build(StreamingMPF, domain=[[-9.0, -9.0], [9.0, 9.0]])
    with pytest.raises(ValueError, match=r"row 2, column 1 is 10, outside the domain \[-9, 9\]"):
        forest.fit([[0.0, 0.0], [1.0, 1.0], [0.0, 10.0]])
    assert not hasattr(forest, "forest_")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"each of the 2 features; got shape \(1,\)"),
        ([1.0, 2.0, 3.0], r"each of the 2 features; got shape \(3,\)"),
        ([[1.0, 2.0]], r"each of the 2 features; got shape \(1, 2\)"),
        ([1.0, -1.0], r"feature_weights\[1\] is -1"),
        ([np.nan, 1.0], r"feature_weights\[0\] is nan"),
        ([1.0, np.inf], r"feature_weights\[1\] is inf"),
        ([0.0, 0.0], "feature_weights are all zero"),
    ],
)
def test_rejects_invalid_feature_weights(estimator, weights, message):
    forest = build(estimator, feature_weights=weights)
    with pytest.raises(ValueError, match=message):
        forest.fit(ROWS)
    assert not [name for name in vars(forest) if name.endswith("_")]


@pytest.mark.parametrize("weights", [["heavy", "light"], [[1.0], [1.0, 2.0]]])
def test_rejects_non_numeric_feature_weights(estimator, weights):
    with pytest.raises(ValueError, match="feature_weights"):
        build(estimator, feature_weights=weights).fit(ROWS)


@pytest.mark.parametrize("lifetime", [-1.0, np.nan, 3.0, [], [1.0, -1.0], [[1.0]], [0.5, np.nan], np.inf])
def test_rejects_lifetime_beyond_that_of_the_forest(estimator, lifetime):
    forest = build(estimator, lifetime=2.0).fit(ROWS)
    with pytest.raises(ValueError, match="lifetime must be one or more times from 0 to 2"):
        forest.mass(ROWS, lifetime=lifetime)


def test_unfitted_forest_raises(estimator):
    unfitted = build(estimator)
    asked = {name: rest for name, rest in methods(estimator).items() if "fit" not in name}
    for method, arguments in asked.items():
        with pytest.raises(NotFittedError):
            getattr(unfitted, method)(ROWS, **arguments)


def test_rejects_merging_unfitted_forests():
    fitted, unfitted = build(BatchMPF).fit(ROWS), build(BatchMPF)
    for one, other in ((fitted, unfitted), (unfitted, fitted)):
        with pytest.raises(NotFittedError):
            one.merge(other)
    with pytest.raises(NotFittedError):
        _ = unfitted.n_points_


def test_parameters_are_keyword_only(estimator):
    with pytest.raises(TypeError):
        estimator(10)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([[1.0, 2.0], [3.0, 2**60 + 1]], id="list"),
        pytest.param(np.array([[1.0, 2.0], [3.0, 2**60 + 1]], dtype=object), id="objects"),
        pytest.param(np.array([[1.0, 2.0], [3.0, 10**30]], dtype=object), id="beyond 64 bits"),
        pytest.param(np.array([[1.0, 2.0], [3.0, np.int64(2**60 + 1)]], dtype=object), id="numpy integers as objects"),
    ],
)
def test_rejects_inexact_integers_in_any_container(estimator, rows):
    with pytest.raises(ValueError, match="row 1, column 1 is the integer"):
        estimator().fit(rows)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_rejects_dates_by_column_name(estimator, frame):
    dates = np.array(["2026-01-01", "2026-01-02"], "datetime64[us]")
    with pytest.raises(ValueError, match="column 'when' holds dates"):
        estimator().fit(frame({"load": [1.0, 2.0], "when": dates}))
    with pytest.raises(ValueError, match="holds dates"):
        estimator().fit(dates[:, None])


def test_rejects_duplicate_column_names(estimator):
    with pytest.raises(ValueError, match="column 'load' occurs more than once"):
        estimator().fit(pd.DataFrame(np.eye(2), columns=["load", "load"]))


def test_rejects_frame_without_columns(estimator):
    with pytest.raises(ValueError, match="no columns"):
        estimator().fit(pd.DataFrame())


@pytest.mark.parametrize("value", ["a", None, [0.5], np.nan, np.inf, -0.1, 1.1])
def test_shares_must_be_numbers_from_zero_to_one(estimator, value):
    forest = estimator(n_estimators=2).fit(np.eye(2))
    with pytest.raises(ValueError, match="epsilon must be a number from 0 to 1"):
        EpsilonPhi(value, 0.5)
    with pytest.raises(ValueError, match="phi must be a number from 0 to 1"):
        EpsilonPhi(0.5, value)
    with pytest.raises(ValueError, match="phi must be a number from 0 to 1"):
        forest.epsilon_level(np.eye(2), phi=value)
