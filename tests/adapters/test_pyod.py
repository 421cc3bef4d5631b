"""Both PyOD detectors. The first tests are PyOD's own checks, unchanged except for one."""

import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

pytest.importorskip("pyod")

from extras import import_without
from pyod.models.base import BaseDetector
from pyod.models.ecod import ECOD
from pyod.utils.data import generate_data
from pyod.utils.utility import standardizer

import polyaforest
from polyaforest.adapters.pyod import BatchMPF, StreamingMPF

pytestmark = pytest.mark.end_to_end

DETECTORS = [StreamingMPF, BatchMPF]
CONTAMINATION = 0.1
ROC_FLOOR = 0.8
N_TRAIN, N_TEST = 200, 100
X_TRAIN, X_TEST, Y_TRAIN, Y_TEST = generate_data(
    n_train=N_TRAIN, n_test=N_TEST, n_features=10, contamination=CONTAMINATION, random_state=42
)


@pytest.fixture(scope="module", params=DETECTORS)
def fitted(request):
    return request.param(contamination=CONTAMINATION, n_estimators=20, random_state=0).fit(X_TRAIN)


@pytest.fixture
def detector(fitted):
    """Like `fitted`, for tests that fit again."""
    return clone(fitted)


# ---- PyOD's checks ---------------------------------------------------------------------------------------------------


def test_fit_sets_scores_labels_and_threshold(fitted):
    assert isinstance(fitted, BaseDetector)
    assert fitted.decision_scores_.shape == fitted.labels_.shape == (N_TRAIN,)
    assert set(fitted.labels_) == {0, 1}
    assert fitted.labels_.sum() == CONTAMINATION * N_TRAIN
    np.testing.assert_array_equal(fitted.labels_, fitted.decision_scores_ > fitted.threshold_)


def test_scores_find_the_outliers(fitted):
    scores = fitted.decision_function(X_TEST)
    assert scores.shape == (N_TEST,)
    assert roc_auc_score(Y_TEST, scores) >= ROC_FLOOR
    assert roc_auc_score(Y_TRAIN, fitted.decision_scores_) >= ROC_FLOOR


def test_predicted_labels(fitted):
    labels = fitted.predict(X_TEST)
    assert labels.shape == Y_TEST.shape
    np.testing.assert_array_equal(labels, fitted.decision_function(X_TEST) > fitted.threshold_)
    np.testing.assert_array_equal(fitted.predict(X_TRAIN), fitted.labels_)
    np.testing.assert_array_equal(labels == 1, fitted.detector_.predict(X_TEST) == -1)


@pytest.mark.parametrize("arguments", [{}, {"method": "linear"}, {"method": "unify"}])
def test_predicted_probabilities(fitted, arguments):
    probabilities = fitted.predict_proba(X_TEST, **arguments)
    assert probabilities.shape == (N_TEST, 2)
    assert probabilities.min() >= 0
    assert probabilities.max() <= 1
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert roc_auc_score(Y_TEST, probabilities[:, 1]) >= ROC_FLOOR


def test_predict_proba_rejects_unknown_method(fitted):
    with pytest.raises(ValueError, match="something"):
        fitted.predict_proba(X_TEST, method="something")


@pytest.mark.parametrize("arguments", [{}, {"method": "linear"}, {"method": "unify"}])
def test_confidence(fitted, arguments):
    predict = fitted.predict_proba if arguments else fitted.predict
    answer, confidence = predict(X_TEST, **arguments, return_confidence=True)
    assert len(answer) == N_TEST
    assert confidence.shape == Y_TEST.shape
    assert confidence.min() >= 0
    assert confidence.max() <= 1
    np.testing.assert_array_equal(confidence, fitted.predict_confidence(X_TEST))


def test_rejection(fitted):
    labels, (expected_rate, most_rate, most_cost) = fitted.predict_with_rejection(X_TEST, return_stats=True, c_r=0.1)
    assert labels.shape == Y_TEST.shape
    assert set(labels) <= {-2, 0, 1}
    assert 0 <= expected_rate <= 1
    assert 0 <= most_rate <= 1
    assert most_cost >= 0
    np.testing.assert_array_equal(fitted.predict_with_rejection(X_TEST, c_r=0.1), labels)


def test_fit_predict(detector):
    with pytest.warns(FutureWarning, match="fit_predict is deprecated"):  # PyOD's own
        labels = detector.fit_predict(X_TRAIN)
    assert labels.shape == Y_TRAIN.shape
    np.testing.assert_array_equal(labels, detector.labels_)


@pytest.mark.filterwarnings("ignore:Function fit_predict_score is deprecated:FutureWarning")
def test_fit_predict_score(detector, capsys):
    for arguments in ({}, {"scoring": "roc_auc_score"}, {"scoring": "prc_n_score"}):
        assert detector.fit_predict_score(X_TEST, Y_TEST, **arguments) >= ROC_FLOOR
    assert "prc_n_score" in capsys.readouterr().out
    with pytest.raises(NotImplementedError):
        detector.fit_predict_score(X_TEST, Y_TEST, scoring="something")


@pytest.mark.parametrize("normalized", [False, True])
def test_ranks_follow_scores(fitted, normalized):
    ranks = fitted._predict_rank(X_TEST, normalized=normalized)
    assert (np.diff(ranks[np.argsort(fitted.decision_function(X_TEST))]) >= 0).all()
    assert ranks.min() >= 0
    assert ranks.max() <= (1 if normalized else N_TRAIN)


def test_ranks_are_within_tolerance_of_pyod(fitted):
    """PyOD allows ranks to be off by up to 3, or 4, for ties among rows between the same two fitted ones.

    All trees of a batch forest count all fitted rows, so these score lower than new ones, more of which tie above all
    of them. The rows that do not are within what PyOD allows.
    """
    scores, ranks = fitted.decision_function(X_TEST), fitted._predict_rank(X_TEST)
    if isinstance(fitted, BatchMPF):
        is_above_all = scores > fitted.decision_scores_.max()
        assert is_above_all.sum() >= Y_TEST.sum()
        scores, ranks = scores[~is_above_all], ranks[~is_above_all]
    assert np.abs(rankdata(ranks) - rankdata(scores)).max() <= 4


def test_cloning(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    assert not hasattr(again, "decision_scores_")
    np.testing.assert_array_equal(again.fit(X_TRAIN).decision_scores_, fitted.decision_scores_)


# ---- and some more ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["multiscale", "mass", "log_mass"])
def test_scores_are_negated_forest_scores(detector, score):
    detector.set_params(score_type=score).fit(X_TRAIN)
    wrapped = getattr(polyaforest, type(detector).__name__)
    forest = wrapped(n_estimators=20, score_type=score, random_state=0).fit(X_TRAIN)
    np.testing.assert_array_equal(detector.decision_function(X_TEST), -forest.score_samples(X_TEST))
    np.testing.assert_array_equal(detector.decision_scores_, -forest.score_samples(X_TRAIN))
    assert isinstance(detector.detector_, wrapped)
    assert detector.detector_.mass(X_TEST).shape == (N_TEST,)


@pytest.mark.parametrize("detector", DETECTORS)
def test_parameters_match_detector_except_pyod_ones(detector):
    def defaults(kind):
        return {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}

    ours, theirs = defaults(detector), defaults(getattr(polyaforest, detector.__name__))
    assert ours.pop("contamination") == 0.1
    del theirs["contamination"], theirs["false_alarm_rate"]
    assert ours == theirs


@pytest.mark.parametrize("contamination", [0.0, 0.6, -1])
@pytest.mark.parametrize("detector", DETECTORS)
def test_fit_rejects_contamination_outside_pyod_range(detector, contamination):
    with pytest.raises(ValueError, match=r"contamination must be in \(0, 0.5\]"):
        detector(contamination=contamination)


def test_contamination_accepts_thresholder(detector):
    class AboveThree:
        """What PyOD asks of a thresholder."""

        def fit(self, scores):
            self.labels_ = self.predict(scores)

        def predict(self, scores):
            self.thresh_ = 3.0
            return (np.asarray(scores) > 3.0).astype(int)

        eval = predict  # before PyOD 3

    detector.set_params(contamination=AboveThree()).fit(X_TRAIN)
    assert detector.threshold_ == 3.0
    np.testing.assert_array_equal(detector.labels_, detector.decision_scores_ > 3.0)
    np.testing.assert_array_equal(detector.predict(X_TEST), detector.decision_function(X_TEST) > 3.0)


def test_fit_rejects_bad_rows_and_keeps_state(detector):
    detector.fit(X_TRAIN)
    before = detector.decision_scores_, detector.threshold_
    with pytest.raises(ValueError, match="row 3, column 2 is inf"):
        detector.fit(np.where(np.arange(N_TRAIN * 10).reshape(N_TRAIN, 10) == 32, np.inf, X_TRAIN))
    with pytest.raises(ValueError, match="expecting 10 features"):
        detector.decision_function(X_TEST[:, :9])
    assert before == (detector.decision_scores_, detector.threshold_)


def test_unfitted_detector_raises(detector):
    for method in (detector.decision_function, detector.predict, detector.predict_proba):
        with pytest.raises(ValueError, match="not fitted yet"):
            method(X_TEST)


def test_fit_accepts_frame_and_warns_about_y(detector):
    frame = pd.DataFrame(X_TRAIN, columns=[f"f{k}" for k in range(10)])
    with pytest.warns(UserWarning, match="y should not be presented"):
        detector.fit(frame, Y_TRAIN)
    assert list(detector.detector_.feature_names_in_) == list(frame.columns)
    np.testing.assert_array_equal(detector.predict(frame), detector.labels_)


def test_pickled_detector_returns_same_scores(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.decision_function(X_TEST), fitted.decision_function(X_TEST))
    np.testing.assert_array_equal(again.predict(X_TEST), fitted.predict(X_TEST))


def test_random_state_is_reproducible(detector):
    scores = [clone(detector).set_params(random_state=seed).fit(X_TRAIN).decision_scores_ for seed in (1, 1, 2)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any()


def test_scores_combine_with_other_detectors(fitted):
    scores = np.column_stack([fitted.decision_scores_, ECOD().fit(X_TRAIN).decision_scores_])
    assert roc_auc_score(Y_TRAIN, standardizer(scores).mean(axis=1)) >= ROC_FLOOR


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("pyod", 'polyaforest.adapters.pyod needs pyod: pip install "polyaforest[pyod]"'),
        ("pyod.models.base", "import of pyod.models.base halted; None in sys.modules"),  # broken, not missing
    ],
)
def test_import_without_pyod_names_extra(absent, message):
    assert import_without(absent, "polyaforest.adapters.pyod") == f"ModuleNotFoundError {absent} {message}"


def test_weights_equal_repeated_rows(detector):
    weights = np.arange(len(X_TRAIN)) % 3
    one = clone(detector).fit(X_TRAIN, sample_weight=weights)
    other = clone(detector).fit(X_TRAIN.repeat(weights, axis=0))
    assert one.decision_scores_.shape == (len(X_TRAIN),)
    np.testing.assert_array_equal(one.decision_function(X_TRAIN), other.decision_function(X_TRAIN))
    assert one.threshold_ == other.threshold_
