"""Both detectors as citizens of scikit-learn."""

import inspect
import pickle

import numpy as np
import pytest
from readers import READERS
from sklearn.base import clone, is_outlier_detector
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from polyaforest import BatchMPF, StreamingMPF

ESTIMATORS = [StreamingMPF, BatchMPF]

_NAME_TAKEN = (
    "the check calls the optional method `score` of every estimator that has an attribute of that name; here `score` "
    "is the constructor parameter that names the functional behind `score_samples`, a string"
)
EXPECTED_FAILURES = {
    "check_fit_score_takes_y": _NAME_TAKEN,
    "check_n_features_in_after_fitting": _NAME_TAKEN,
    "check_pipeline_consistency": _NAME_TAKEN,
}
ROWS = np.random.default_rng(0).normal(size=(200, 3))
LABELS = np.arange(200) % 20 == 0
ROWS[LABELS] += 6


@pytest.fixture(params=ESTIMATORS)
def forest(request):
    return request.param(n_estimators=8, random_state=0)


@pytest.fixture(scope="module", params=ESTIMATORS)
def check_results(request):
    return check_estimator(
        request.param(n_estimators=5), expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None
    )


def test_check_estimator_passes(check_results):
    failed = {result["check_name"]: result["exception"] for result in check_results if result["status"] == "failed"}
    assert not failed
    assert sum(result["status"] == "passed" for result in check_results) > 30


def test_expected_failures_still_fail_and_for_the_reason_given(check_results):
    """Once one passes, its line in EXPECTED_FAILURES must go."""
    reasons = {result["check_name"]: result["exception"] for result in check_results if result["status"] == "xfail"}
    assert set(reasons) == set(EXPECTED_FAILURES)
    for exception in reasons.values():
        assert isinstance(exception, TypeError)
        assert "callable" in str(exception)


# ---- by hand, what the three checks would have tested ----------------------------------------------------------------


def test_methods_that_learn_take_y_and_ignore_it(forest):
    for name in ("fit", "fit_predict", "partial_fit"):
        if hasattr(forest, name):
            assert list(inspect.signature(getattr(forest, name)).parameters)[:2] == ["X", "y"]
            getattr(clone(forest), name)(ROWS, LABELS)
    with_y, without = clone(forest).fit(ROWS, LABELS), clone(forest).fit(ROWS)
    np.testing.assert_array_equal(with_y.score_samples(ROWS), without.score_samples(ROWS))


@pytest.mark.parametrize("method", READERS)
def test_every_method_refuses_a_wrong_number_of_features(forest, method):
    assert not hasattr(forest, "n_features_in_")
    forest.fit(ROWS)
    assert forest.n_features_in_ == 3
    name = type(forest).__name__
    message = f"X has 1 features, but {name} is expecting 3 features as input"
    with pytest.raises(ValueError, match=message):
        getattr(forest, method)(ROWS[:, [1]], **READERS[method])


@pytest.mark.parametrize("method", ["score_samples", "decision_function", "predict"])
def test_a_pipeline_says_what_the_bare_estimator_says(forest, method):
    alone = make_pipeline(clone(forest)).fit(ROWS)
    np.testing.assert_array_equal(getattr(alone, method)(ROWS), getattr(clone(forest).fit(ROWS), method)(ROWS))

    scaled = StandardScaler().fit_transform(ROWS)
    after_scaling = make_pipeline(StandardScaler(), clone(forest)).fit(ROWS)
    np.testing.assert_array_equal(getattr(after_scaling, method)(ROWS), getattr(forest.fit(scaled), method)(scaled))


# ---- the rest of the company -----------------------------------------------------------------------------------------


def test_it_is_an_outlier_detector_with_parameters_that_survive_cloning(forest):
    assert is_outlier_detector(forest)
    parameters = forest.set_params(score="mass", contamination=0.1).get_params()
    assert clone(forest).get_params() == parameters
    assert set(parameters) == set(inspect.signature(type(forest)).parameters)


def test_grid_search_chooses_by_a_given_scorer(forest):
    def auc(fitted, X, y):
        return roc_auc_score(y, -fitted.decision_function(X))

    grid = {"score": ["multiscale", "mass", "log_mass"], "prior_strength": [0.001, 0.1]}
    search = GridSearchCV(forest, grid, scoring=auc, cv=3, error_score="raise").fit(ROWS, LABELS)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"]) > 0.9
    refitted = clone(forest).set_params(**search.best_params_).fit(ROWS)
    np.testing.assert_array_equal(search.decision_function(ROWS), refitted.decision_function(ROWS))


def test_a_pickled_pipeline_says_the_same(forest):
    pipeline = make_pipeline(StandardScaler(), forest).fit(ROWS)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.score_samples(ROWS), pipeline.score_samples(ROWS))
    np.testing.assert_array_equal(again.predict(ROWS), pipeline.predict(ROWS))


def test_frames_from_a_transformer_keep_their_names(forest):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS, columns=["a", "b", "c"])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), forest).fit(frame)
    assert list(pipeline[-1].feature_names_in_) == ["a", "b", "c"]
    assert np.isfinite(pipeline.score_samples(frame)).all()
