"""The detectors as citizens of scikit-learn."""

import inspect
import pickle

import numpy as np
import pytest
from effort import mostly_slow
from readers import READERS
from sklearn import config_context
from sklearn.base import clone, is_outlier_detector
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from polyaforest import BatchMPF, EpsilonPhi, SeriesMPF, StreamingMPF, Tree

pytestmark = pytest.mark.end_to_end

ESTIMATORS = [StreamingMPF, BatchMPF]
ROWS = np.random.default_rng(0).normal(size=(200, 3))
LABELS = np.arange(200) % 20 == 0
ROWS[LABELS] += 6

# With contamination="auto" clean data has no anomalies; checks of scikit-learn want some of it flagged.
SMALL = {"n_estimators": 3, "contamination": 0.1, "random_state": 0}
# The check compares weights with repeated rows in another order. A batch of counts does not mind; other trees draw by
# the numbers of the rows, as IsolationForest does. That weights are repeated rows: tests/detectors/test_weights.py
IN_ORDER = {"check_sample_weight_equivalence_on_dense_data": "rows in another order are another draw"}
CHECKED = {
    "stream": (StreamingMPF(**SMALL), IN_ORDER),
    "batch": (BatchMPF(**SMALL), {}),
    "marginal": (StreamingMPF(**SMALL, missing="marginalise"), IN_ORDER),
    "window": (StreamingMPF(**SMALL, window=300, tree=Tree(max_depth=8)), IN_ORDER),
    "series": (SeriesMPF(StreamingMPF(**SMALL), shingle=1), {"check_fit1d": "a line of readings is a series"}),
}


@pytest.fixture(params=ESTIMATORS)
def forest(request):
    return request.param(n_estimators=8, random_state=0)


@pytest.mark.parametrize("name", mostly_slow(CHECKED))
def test_check_estimator_passes(name):
    estimator, exceptions = CHECKED[name]
    results = check_estimator(estimator, expected_failed_checks=exceptions, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == set(exceptions)
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.parametrize("make", [StreamingMPF, BatchMPF, lambda **given: SeriesMPF(StreamingMPF(**given))])
def test_reading_methods_do_not_change_attributes(make):
    detector = make(n_estimators=4, random_state=0).fit(ROWS)
    parts = dict(vars(detector))
    detector.detect(ROWS)
    detector.p_value(ROWS)
    detector.explain(ROWS[:50], **({"rows": [40]} if isinstance(detector, SeriesMPF) else {}))
    assert parts.keys() == vars(detector).keys()
    assert all(part is parts[name] for name, part in vars(detector).items())


def test_learning_methods_accept_and_ignore_y(forest):
    for name in ("fit", "fit_predict", "partial_fit"):
        if hasattr(forest, name):
            assert list(inspect.signature(getattr(forest, name)).parameters)[:2] == ["X", "y"]
            getattr(clone(forest), name)(ROWS, LABELS)
    with_y, without = clone(forest).fit(ROWS, LABELS), clone(forest).fit(ROWS)
    np.testing.assert_array_equal(with_y.score_samples(ROWS), without.score_samples(ROWS))


@pytest.mark.parametrize("method", READERS)
def test_all_methods_reject_wrong_number_of_features(forest, method):
    assert not hasattr(forest, "n_features_in_")
    forest.fit(ROWS)
    assert forest.n_features_in_ == 3
    name = type(forest).__name__
    message = f"X has 1 features, but {name} is expecting 3 features as input"
    with pytest.raises(ValueError, match=message):
        getattr(forest, method)(ROWS[:, [1]], **READERS[method])


@pytest.mark.parametrize("method", ["score_samples", "decision_function", "predict"])
def test_pipeline_matches_estimator(forest, method):
    alone = make_pipeline(clone(forest)).fit(ROWS)
    np.testing.assert_array_equal(getattr(alone, method)(ROWS), getattr(clone(forest).fit(ROWS), method)(ROWS))

    scaled = StandardScaler().fit_transform(ROWS)
    after_scaling = make_pipeline(StandardScaler(), clone(forest)).fit(ROWS)
    np.testing.assert_array_equal(getattr(after_scaling, method)(ROWS), getattr(forest.fit(scaled), method)(scaled))


# ---- metadata routing ------------------------------------------------------------------------------------------------

WEIGHTS = np.arange(200) % 3


def test_pipeline_passes_weights_to_named_step(forest):
    fitted = make_pipeline(StandardScaler(), forest).fit(
        ROWS, **{f"{type(forest).__name__.lower()}__sample_weight": WEIGHTS}
    )
    scaled = StandardScaler().fit_transform(ROWS)
    expected = clone(forest).fit(scaled, sample_weight=WEIGHTS)
    np.testing.assert_array_equal(fitted.score_samples(ROWS), expected.score_samples(scaled))


def test_weights_are_routed_on_request(forest):
    scaled = StandardScaler().fit(ROWS, sample_weight=WEIGHTS).transform(ROWS)
    expected = clone(forest).fit(scaled, sample_weight=WEIGHTS)
    with config_context(enable_metadata_routing=True):
        asking = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=True), clone(forest).set_fit_request(sample_weight=True)
        )
        np.testing.assert_array_equal(asking.fit(ROWS, sample_weight=WEIGHTS).predict(ROWS), expected.predict(scaled))
        declining = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=True), clone(forest).set_fit_request(sample_weight=False)
        )
        without = declining.fit(ROWS, sample_weight=WEIGHTS).score_samples(ROWS)
        np.testing.assert_array_equal(without, clone(forest).fit(scaled).score_samples(scaled))
        assert (without != expected.score_samples(scaled)).any()
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            make_pipeline(clone(forest)).fit(ROWS, sample_weight=WEIGHTS)
        assert clone(forest).set_partial_fit_request(sample_weight=True) is not None


# ---- the rest of the company -----------------------------------------------------------------------------------------


def test_detectors_are_outlier_detectors_and_clone_parameters(forest):
    assert is_outlier_detector(forest)
    parameters = forest.set_params(score_type="mass", contamination=0.1).get_params()
    assert clone(forest).get_params() == parameters
    assert set(parameters) == set(inspect.signature(type(forest)).parameters)


def test_tree_parameters_are_nested_in_forest(forest):
    forest.set_params(tree=Tree(max_depth=3)).set_params(tree__max_depth=4, tree__prior_strength=0.1)
    parameters = forest.get_params()
    assert (parameters["tree__max_depth"], parameters["tree__prior_strength"]) == (4, 0.1)
    twin = clone(forest)
    assert twin.tree is not forest.tree
    assert twin.get_params(deep=True).keys() == parameters.keys()
    assert twin.fit(ROWS).get_params()["tree__max_depth"] == 4
    series = SeriesMPF(StreamingMPF(tree=Tree(max_depth=3)))
    assert clone(series).set_params(estimator__tree__max_depth=5).get_params()["estimator__tree__max_depth"] == 5
    assert series.estimator.tree.max_depth == 3


def test_changed_tree_parameters_apply_at_next_fit(forest):
    forest.set_params(tree=Tree(max_depth=2)).fit(ROWS)
    shallow = forest.forest_.size.max()
    forest.set_params(tree__max_depth=6).fit(ROWS)
    assert shallow <= 7 < forest.forest_.size.max()
    for wrong in ({"tree__max_depth": -1}, {"tree__prior_strength": 0.0}):
        with pytest.raises(ValueError, match="parameter of Tree must be"):
            clone(forest).set_params(**wrong).fit(ROWS)


def test_score_with_parameters_survives_cloning(forest):
    forest.set_params(score_type=EpsilonPhi(0.01, 0.5), tree=Tree(max_depth=6))
    assert clone(forest).score_type == forest.score_type
    np.testing.assert_array_equal(clone(forest).fit(ROWS).predict(ROWS), forest.fit(ROWS).predict(ROWS))


@pytest.mark.parametrize(
    "detector",
    [
        BatchMPF(),
        StreamingMPF(tree=Tree(max_depth=3), score_type=EpsilonPhi(0.01, 0.5)),
        SeriesMPF(StreamingMPF(tree=Tree(lifetime=2.0)), shingle=4),
    ],
)
def test_repr_shows_diagram_in_notebooks_and_changed_parameters_in_terminals(detector):
    page = detector._repr_html_()
    assert type(detector).__name__ in page
    assert "<style>" in page
    assert repr(clone(detector)) == repr(detector)
    for name, value in detector.get_params().items():
        if isinstance(value, Tree):
            assert name.rpartition("__")[2] == "tree"
            assert repr(value) in " ".join(repr(detector).split())
    fitted = clone(detector).fit(ROWS)
    assert "fitted" in fitted._repr_html_()


def test_grid_search_uses_given_scorer(forest):
    def auc(fitted, X, y):
        return roc_auc_score(y, -fitted.decision_function(X))

    grid = {"score_type": ["multiscale", "mass", "log_mass"], "tree__prior_strength": [0.001, 0.1]}
    forest.set_params(tree=Tree())
    search = GridSearchCV(forest, grid, scoring=auc, cv=3, error_score="raise").fit(ROWS, LABELS)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"]) > 0.9
    refitted = clone(forest).set_params(**search.best_params_).fit(ROWS)
    np.testing.assert_array_equal(search.decision_function(ROWS), refitted.decision_function(ROWS))


def test_pickled_pipeline_gives_same_results(forest):
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
