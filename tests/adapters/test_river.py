"""`StreamingMPF` and `DriftMonitor` as river models."""

import copy
import math
import pickle
import random
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest

pytest.importorskip("river")

from effort import FULL, PROFILE, mostly_slow
from extras import import_without
from river import anomaly, checks, compose, datasets, evaluate, metrics, preprocessing

import polyaforest
from polyaforest import EpsilonPhi, Reservoir, Tree, Window
from polyaforest.adapters.river import StreamingMPF
from polyaforest.forest.stream_checks import check_stream

pytestmark = pytest.mark.end_to_end

NAMES = ["amount", "balance", "count"]
MOST = 10_000 if PROFILE == FULL else 300  # rows for a check of river
ROWS = np.random.default_rng(0).normal([5.0, -100.0, 0.0], [1.0, 30.0, 0.01], size=(400, 3))
STREAM = [dict(zip(NAMES, row, strict=True)) for row in ROWS.tolist()]


def build(**parameters):
    return StreamingMPF(**{"n_estimators": 5, "seed": 0, "window": 64, "grace_period": 0} | parameters)


def learned(stream, **parameters):
    model = build(**parameters)
    for x in stream:
        model.learn_one(x)
    return model


def surprises(scores):
    """Convert scores between 0 and 1 to nats."""
    scores = np.asarray(scores)
    return scores / (1 - scores)


# ---- river's checks --------------------------------------------------------------------------------------------------


class CreditCard:
    """Replacement for river's data set of the same name and features, a download of 150 MB."""

    def take(self, n):
        rng, n = np.random.default_rng(0), min(n, MOST)
        names = ["Time", *(f"V{k}" for k in range(1, 29)), "Amount"]
        for i in range(n):
            is_fraud = i % 50 == 49
            values = rng.normal(scale=3.0 if is_fraud else 1.0, size=30)
            values[0], values[-1] = i // 2, 50 * abs(values[-1])
            yield dict(zip(names, values.tolist(), strict=True)), int(is_fraud)


class Upside(StreamingMPF):
    """A detector with inverted scores."""

    def score_one(self, x):
        return 1 - super().score_one(x)


@pytest.fixture
def at_hand(monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", CreditCard)


@pytest.mark.usefixtures("at_hand")
@pytest.mark.parametrize(
    "parameters", mostly_slow([{}, {"missing": 0.0, "window": Reservoir(32), "score_type": "log_mass"}])
)
def test_passes_river_checks(parameters):
    model = StreamingMPF(n_estimators=2, **parameters)
    names = {check.__name__ for check in checks.yield_checks(model)}
    assert {"check_emerging_features", "check_shuffle_features_no_impact", "check_roc_auc"} <= names
    assert not model._unit_test_skips()
    checks.check_estimator(model)


@pytest.mark.slow
@pytest.mark.usefixtures("at_hand")
def test_river_checks_can_fail():
    with pytest.raises(AssertionError):
        checks.check_estimator(Upside(n_estimators=2))


# ---- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["multiscale", "log_mass", "mass"])
def test_scores_are_bounded_negated_forest_scores(score):
    model = build(score_type=score)
    ours = []
    for x in STREAM:
        ours.append(model.score_one(x))
        model.learn_one(x)
    theirs = polyaforest.StreamingMPF(n_estimators=5, window=64, score_type=score, random_state=0).score_then_learn(
        ROWS
    )
    assert ours[0] == 0.0  # nothing was known yet
    if score == "mass":
        np.testing.assert_allclose(ours[1:], 1 - theirs[1:], rtol=1e-12)
    else:
        np.testing.assert_allclose(surprises(ours[1:]), -theirs[1:], rtol=1e-9)
    assert all(isinstance(value, float) and 0 <= value <= 1 for value in ours)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"score_type": "mass", "contamination": 0.05},
        {"contamination": 0.05},
        {"false_alarm_rate": 0.05},
        {"tree": Tree(max_depth=4), "score_type": EpsilonPhi(0.02, 0.6)},
    ],
)
def test_threshold_flags_same_rows_as_forest(parameters):
    model = learned(STREAM, window=200, **parameters)
    odd = [{**x, "amount": x["amount"] + 10 * (i % 2)} for i, x in enumerate(STREAM[:60])]
    rows = [[x[name] for name in model.features] for x in odd]
    is_anomaly = [model.score_one(x) > model.threshold for x in odd]
    assert {False, True} == set(is_anomaly)
    assert is_anomaly == (model.forest.predict(rows) == -1).tolist()


def test_no_score_exceeds_threshold_in_grace_period():
    model = build(grace_period=3)
    for x in STREAM[:3]:
        assert model.threshold == 1.0
        model.learn_one(x)


def test_more_anomalous_observation_scores_higher():
    model = learned(STREAM)
    scores = [model.score_one({**STREAM[0], "amount": 10.0**k}) for k in range(1, 8)]
    assert scores == sorted(set(scores))
    assert scores[-1] < 1


def test_impossible_observation_scores_1():
    assert (
        learned(STREAM, tree=Tree(domain="data"), score_type="log_mass").score_one({**STREAM[0], "amount": 1e6}) == 1.0
    )


@pytest.mark.parametrize("parameters", [{}, {"missing": 0.0}, {"window": Reservoir(20)}, {"score_type": "mass"}])
def test_score_then_learn_one_equals_separate_calls(parameters):
    rng = random.Random(0)
    in_two, in_one = build(**parameters), build(**parameters)
    for x in STREAM[:150]:
        some = {name: value for name, value in x.items() if rng.random() < 0.9}
        score = in_two.score_one(some)
        in_two.learn_one(some)
        assert in_one.score_then_learn_one(some) == pytest.approx(score, rel=1e-12, abs=1e-15)
    assert in_one.features == in_two.features
    np.testing.assert_array_equal(in_one.forest.points_, in_two.forest.points_)


def test_scores_are_0_in_grace_period():
    patient, hasty = build(grace_period=10), build()
    for i, x in enumerate(STREAM[:30]):
        scores = patient.score_one(x), hasty.score_one(x)
        assert scores[0] == (0.0 if i < 10 else scores[1])
        assert patient.score_then_learn_one(x) == pytest.approx(scores[0], rel=1e-12)
        hasty.learn_one(x)


def test_learn_many_equals_learn_one():
    frame = pd.DataFrame(STREAM[:200])
    gaps = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.05)
    wider = frame.assign(new=np.arange(200.0))
    for kind in (pd.DataFrame, pl.from_pandas):
        one, many = build(), build()
        for part in (frame[:50], frame[50:100][["count", "amount", "balance"]], gaps[100:150], wider[150:], frame[:0]):
            many.learn_many(kind(part))
            for x in part.to_dict("records"):
                one.learn_one(x)
        assert one.features == many.features == [*NAMES, "new"]
        assert [one.score_one(x) for x in STREAM] == [many.score_one(x) for x in STREAM]


# ---- features that come and go ---------------------------------------------------------------------------------------


def test_order_of_features_does_not_matter():
    mixed = [{"a": x["amount"], 7: x["balance"], ("b", 1): x["count"]} for x in STREAM[:100]]
    turned = [dict(reversed(x.items())) for x in mixed]
    one, other = learned(mixed), learned(turned)
    assert one.features == other.features
    assert [one.score_one(x) for x in mixed] == [other.score_one(x) for x in turned]


def test_numbered_features_are_sorted_by_number():
    assert learned([{k: float(k) for k in (10, 9, 0)}]).features == [0, 9, 10]


def two_kinds(n):
    """Observations near (0, 0) and near (10, 10), with an uninformative third feature."""
    rng = random.Random(0)
    for i in range(n):
        place = 10 * (i % 2)
        yield {"a": place + rng.gauss(0, 1), "b": place + rng.gauss(0, 1), "c": rng.gauss(0, 100)}


def test_missing_feature_is_imputed_from_nearest_point():
    model = learned(two_kinds(200), n_estimators=50)
    for place, elsewhere in ((0, 10), (10, 0)):
        partial = {"a": place, "c": 0.0}
        likely, unlikely = ({**partial, "b": b} for b in (place, elsewhere))
        assert model.score_one(partial) < (model.score_one(likely) + model.score_one(unlikely)) / 2
        model.learn_one(partial)
        filled = dict(zip(model.features, model.forest.points_[-1], strict=True))
        assert filled["a"] == place
        assert abs(filled["b"] - place) < 5


def test_missing_feature_does_not_hide_anomaly():
    model = learned(two_kinds(200), n_estimators=50)
    odd = model.score_one({"a": 100.0, "b": 0.0, "c": 0.0})
    assert model.score_one({"a": 100.0, "c": 0.0}) == pytest.approx(odd, abs=0.05)
    assert model.score_one({"c": 0.0}) < 0.7 < odd


@pytest.mark.parametrize("nothing", [None, math.nan, np.float64("nan")])
def test_none_and_nan_count_as_missing(nothing):
    model = learned(STREAM[:100])
    without = {name: value for name, value in STREAM[0].items() if name != "count"}
    assert model.score_one({**without, "count": nothing}) == model.score_one(without)
    assert learned([{"a": 1.0, "b": nothing}]).features == ["a"]


def test_missing_sets_value_of_missing_features():
    model = learned(STREAM[:100], missing=-7.0)
    assert model.score_one({"amount": 5.0}) == model.score_one({"amount": 5.0, "balance": -7.0, "count": -7.0})
    model.learn_one({"new": 1.0})
    assert model.features == [*NAMES, "new"]
    assert (model.forest.points_[:-1, 3] == -7.0).all()
    np.testing.assert_array_equal(model.forest.points_[-1], [-7.0, -7.0, -7.0, 1.0])
    model.learn_one({})
    np.testing.assert_array_equal(model.forest.points_[-1], [-7.0] * 4)


def test_empty_observation_is_not_learned():
    model = build()
    for x in ({}, {"a": None}):
        model.learn_one(x)
        assert model.score_one(x) == model.score_then_learn_one(x) == 0.0
    assert model.forest is None
    model = learned(STREAM[:10])
    model.learn_one({"amount": None})
    assert model.forest.n_seen_ == 10
    assert model.score_one({}) == model.score_then_learn_one({}) == 0.0


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"window": 10},
        {"window": Reservoir(16)},
        {"tree": Tree(feature_weights=None)},
        {"tree": Tree(domain="data")},
        {"tree": Tree(max_depth=4)},
    ],
)
def test_new_feature_becomes_column(parameters):
    model = learned(STREAM[:100], **parameters)
    before = model.forest.points_
    keys = model.forest.keys_
    known = model.score_one(STREAM[0])
    assert model.score_one({**STREAM[0], "new": 3.0}) == known  # nothing to compare it with

    model.learn_one({**STREAM[100], "new": 3.0, "also": 4.0})
    assert model.features == [*NAMES, "also", "new"]
    assert model.forest.n_seen_ == 101
    stayed = [key for key in model.forest.keys_ if key in keys]
    points = model.forest.points_
    np.testing.assert_array_equal(points[: len(stayed), :3], before[[keys.index(key) for key in stayed]])
    assert (points[:, 3:] == [4.0, 3.0]).all()
    check_stream(model.forest._stream)

    for x in STREAM[101:]:
        model.learn_one({**x, "new": x["count"], "also": 1.0})
        assert 0 <= model.score_one(x) <= 1
    check_stream(model.forest._stream)


def test_anomaly_in_new_feature_is_found():
    rng = random.Random(0)
    model = learned(STREAM[:100], n_estimators=50)
    for x in STREAM[100:]:
        model.learn_one({**x, "new": rng.gauss(1000, 1)})
    usual, odd = ({**STREAM[0], "new": value} for value in (1000.0, 1020.0))
    assert model.score_one(odd) > model.score_one(usual) + 0.1


def test_features_arriving_one_by_one_score_as_well():
    def stream():
        rng = random.Random(1)
        for i in range(600):
            yield {"abcde"[k]: rng.gauss(10 * k, k + 1) + (20 * (k + 1) if i % 40 == 39 else 0) for k in range(5)}

    def auc(features_at):
        model, metric = StreamingMPF(n_estimators=30, window=128, seed=0), metrics.RollingROCAUC(window_size=300)
        for i, x in enumerate(stream()):
            shown = {name: value for name, value in x.items() if name in features_at(i)}
            score = model.score_then_learn_one(shown)
            if i >= 300:
                metric.update(i % 40 == 39, score)
        return metric.get()

    assert auc(lambda i: "abcde") > 0.95
    assert auc(lambda i: "abcde"[: 1 + i // 40]) > 0.95


def test_summary_imputes_last_values_and_ignores_new_features():
    model = learned(STREAM[:300], window=None, tree=Tree(max_depth=5))
    last = STREAM[299]
    partial = {"amount": 5.0, "new": 1.0}
    assert model.score_one(partial) == model.score_one({**last, "amount": 5.0})
    model.learn_one(partial)
    assert model.features == NAMES
    assert model.forest.n_seen_ == 301


def test_summary_adds_new_features_during_warm_up():
    model = learned(STREAM[:200], window=None, tree=Tree(max_depth=5))
    for x in STREAM[200:]:
        model.learn_one({**x, "new": 1.0})
    assert model.features == [*NAMES, "new"]
    assert model.forest.n_seen_ == 400


def test_emptied_forest_accepts_new_features():
    model = learned(STREAM[:20])
    model.forest.delete(model.forest.keys_)
    model.learn_one({"amount": 1.0, "new": 2.0})
    assert model.features == [*NAMES, "new"]
    assert model.forest.n_points_ == 1
    assert model.score_one({"amount": 1.0, "new": 2.0}) < 0.5


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({**STREAM[0], "new": datetime(2020, 1, 1)}, "feature 'new' is datetime.*, which is not a number"),
        ({**STREAM[0], "new": math.inf}, r"feature 'new' is inf, beyond 1e\+100: cap or rescale it first"),
        ({**STREAM[0], "amount": -1e101}, r"feature 'amount' is -1e\+101, beyond"),
    ],
)
def test_error_names_feature_and_keeps_state(x, message):
    for model in (build(), learned(STREAM[:50])):
        before = pickle.dumps(model)
        for method in (model.learn_one, model.score_then_learn_one, model.score_one)[: 3 if model.forest else 1]:
            with pytest.raises(ValueError, match=message):
                method(x)
        assert pickle.dumps(model) == before


def test_rejects_text_in_numeric_feature():
    model = learned(STREAM[:50])
    before = pickle.dumps(model)
    for method in (model.learn_one, model.score_then_learn_one, model.score_one):
        with pytest.raises(ValueError, match="feature 'count' is 'many', which is not a number: encode it first"):
            method({**STREAM[0], "count": "many"})
    with pytest.raises(ValueError, match="feature 'count' is 'many'"):
        model.learn_many(pd.DataFrame([{**STREAM[0], "count": "many"}]))
    assert pickle.dumps(model) == before


# ---- categories ------------------------------------------------------------------------------------------------------

PAYMENTS = [
    {"country": "DE" if i % 3 else "FR", "amount": 10.0 + i % 7, "merchant": f"shop {i % 4}"} for i in range(400)
]


def test_strings_are_categories():
    model = build(n_estimators=20)
    for x in PAYMENTS:
        model.learn_one(x)
    assert model.forest.categories_ == {"country": ["DE", "FR"], "merchant": [f"shop {i}" for i in range(4)]}
    usual = model.score_one(PAYMENTS[-1])
    assert model.score_one({**PAYMENTS[-1], "country": "XK"}) > usual  # never seen
    assert model.score_one({**PAYMENTS[-1], "amount": 90.0}) > usual
    [explanation] = model.forest.explain(pd.DataFrame([{"amount": 12.0, "country": "XK", "merchant": "shop 1"}]))
    assert explanation.attributions[0].value == "XK"


def test_learn_many_accepts_text():
    one, many = build(n_estimators=5), build(n_estimators=5)
    for x in PAYMENTS:
        one.learn_one(x)
    frame = pd.DataFrame(PAYMENTS)
    many.learn_many(frame[:100])
    many.learn_many(frame[100:])
    assert [one.score_one(x) for x in PAYMENTS[:20]] == [many.score_one(x) for x in PAYMENTS[:20]]


def test_missing_category_is_imputed_from_nearest_point():
    model = build(n_estimators=5)
    for x in PAYMENTS:
        model.learn_one(x)
    gone = {"amount": 12.0, "merchant": "shop 1", "country": None}
    assert 0 < model.score_one(gone) < model.score_one({**gone, "country": "XK"})
    model.learn_one({"amount": 12.0})
    assert model.forest.n_points_ == 64


def test_new_categorical_feature_joins_numeric_stream():
    model = build(n_estimators=5)
    for x in PAYMENTS[:300]:
        model.learn_one({"amount": x["amount"]})
    for x in PAYMENTS[300:]:
        model.learn_one(x)
    assert model.features == ["amount", "country", "merchant"]
    assert model.forest.n_points_ == 64
    assert model.score_one({**PAYMENTS[-1], "merchant": "no shop"}) > model.score_one(PAYMENTS[-1])
    model.learn_one({**PAYMENTS[-1], "tax": 0.2})  # a number beside categories
    assert model.features[-1] == "tax"
    assert set(model.forest.categories_) == {"country", "merchant"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"tree": Tree(feature_weights=[1.0, 2.0])}, 'feature_weights must be "auto" or None'),
        ({"tree": Tree(domain=[[0.0], [1.0]])}, 'domain must be None or "data"'),
        ({"missing": math.inf}, "missing must be None or a finite number"),
        ({"missing": "zero"}, "missing must be None or a finite number"),
    ],
)
def test_rejects_parameters_by_column(parameters, message):
    with pytest.raises(ValueError, match=message):
        build(**parameters)


def test_invalid_parameters_leave_state_unchanged():
    model = build(n_estimators=0)
    with pytest.raises(ValueError, match="n_estimators"):
        model.learn_one(STREAM[0])
    assert model.forest is None
    assert model.features == []


def test_rejects_new_feature_when_memory_is_short(monkeypatch):
    model, unharmed = learned(STREAM[:50]), learned(STREAM[:50])
    with monkeypatch.context() as short:
        short.setattr("polyaforest.forest.grow.memory_limit", lambda: 1.0)
        with pytest.raises(MemoryError):
            model.learn_one({**STREAM[50], "new": 1.0})
    assert model.features == NAMES
    assert model.score_one(STREAM[60]) == unharmed.score_one(STREAM[60])


# ---- times -----------------------------------------------------------------------------------------------------------


def test_time_windows_use_t():
    start = datetime(2020, 1, 1)
    model = build(window=Window(timedelta(minutes=10)))
    for i, x in enumerate(STREAM[:30]):
        model.score_then_learn_one(x, t=start + timedelta(minutes=i))
    assert model.forest.n_points_ == 10
    model.learn_one({**STREAM[30], "new": 1.0}, t=start + timedelta(minutes=32))
    assert model.forest.n_points_ == 8
    for x in (STREAM[31], {**STREAM[31], "newer": 1.0}):
        before = pickle.dumps(model)
        with pytest.raises(ValueError, match="spans a duration"):
            model.learn_one(x)
        assert pickle.dumps(model) == before


# ---- the rest of the company -----------------------------------------------------------------------------------------


def labelled(n, seed=0):
    rng = random.Random(seed)
    for i in range(n):
        is_odd = i % 25 == 24
        yield {"a": rng.gauss(0, 1), "b": rng.gauss(50, 10) + 80 * is_odd, "c": rng.gauss(0, 1e-3)}, is_odd


@pytest.mark.filterwarnings("ignore:'scipy.integrate.trapz':DeprecationWarning")  # of river before 0.22
@pytest.mark.parametrize("scaler", mostly_slow([preprocessing.StandardScaler, preprocessing.MinMaxScaler]))
def test_pipeline_finds_anomalies_in_progressive_validation(scaler):
    model = scaler() | StreamingMPF(n_estimators=30, window=128, seed=0)
    # ROCAUC uses ten thresholds from 0 to 1: for scores on another scale it would be 0
    for metric, least in ((metrics.RollingROCAUC(window_size=1000), 0.9), (metrics.ROCAUC(), 0.8)):
        evaluate.progressive_val_score(labelled(1000), model.clone(), metric)
        assert metric.get() > least


def test_pipeline_adds_and_drops_features():
    model = compose.Discard("c") | preprocessing.OneHotEncoder() | build(missing=0.0)
    for i in range(100):
        x = {"colour": ["red", "green", "blue"][i % 3 if i > 50 else 0], "c": 0.0}
        assert 0 <= model.score_one(x) < 1
        model.learn_one(x)
    assert set(model["StreamingMPF"].features) == {"colour_red", "colour_green", "colour_blue"}


@pytest.mark.parametrize("is_protected", mostly_slow([True, False]))
def test_quantile_filter_flags_anomalies(is_protected):
    detector = StreamingMPF(n_estimators=30, window=128, seed=0)
    model = anomaly.QuantileFilter(detector, q=0.95, protect_anomaly_detector=is_protected)
    report = metrics.ClassificationReport()
    for i, (x, is_odd) in enumerate(labelled(900)):
        is_flagged = model.classify(model.score_one(x))
        model.learn_one(x)
        if i > 300:
            report.update(is_odd, is_flagged)
    confusion = report.cm
    assert confusion[True][True] / (confusion[True][True] + confusion[True][False]) > 0.9
    assert confusion[False][True] / (confusion[False][False] + confusion[False][True]) < 0.1
    assert (model.anomaly_detector.forest.n_seen_ < 900) == is_protected


def test_filter_in_pipeline_protects_next_step():
    detector = StreamingMPF(n_estimators=20, window=128, seed=0)
    model = anomaly.ThresholdFilter(detector, threshold=0.87) | preprocessing.StandardScaler()
    for x, _ in labelled(600):
        model.learn_one(x)
    scaler = model["StandardScaler"]
    assert 500 < scaler.counts["b"] < 600
    assert scaler.means["b"] == pytest.approx(50, abs=1.5)  # with the odd ones it would be 53


def test_seed_is_reproducible():
    def scores(seed):
        model = build(seed=seed)
        return [model.score_then_learn_one(x) for x in STREAM[:100]]

    assert scores(1) == scores(1)
    assert scores(1) != scores(2)
    assert scores(None) != scores(None)


def test_clone_is_unfitted_and_copy_continues():
    model = learned(STREAM[:100])
    model.learn_one({**STREAM[100], "new": 1.0})
    fresh = model.clone({"window": 32})
    assert (fresh.forest, fresh.features, fresh.window, fresh.seed) == (None, [], 32, 0)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        twin = copy.deepcopy(model)
        for x in STREAM[101:150]:
            assert again.score_then_learn_one(x) == twin.score_then_learn_one(x)
        assert again.features == model.features
        assert model.forest.n_seen_ == 101


@pytest.mark.parametrize(
    ("absent", "message"),
    mostly_slow(
        [
            ("river", 'polyaforest.adapters.river needs river: pip install "polyaforest[river]"'),
            ("river.base", "import of river.base halted; None in sys.modules"),  # broken, not missing
        ]
    ),
)
def test_import_without_river_names_extra(absent, message):
    assert import_without(absent, "polyaforest.adapters.river") == f"ModuleNotFoundError {absent} {message}"


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["learn_one", "score_then_learn_one"])
def test_weight_repeats_observation(method):
    weighted, repeated = build(), build()
    for i, x in enumerate(STREAM[:100] + [{**x, "new": 1.0} for x in STREAM[100:110]]):
        getattr(weighted, method)(x, w=i % 3)
        for _ in range(i % 3):
            getattr(repeated, method)(x)
    assert weighted.forest.to_bytes() == repeated.forest.to_bytes()
    assert weighted.score_one(STREAM[0]) == repeated.score_one(STREAM[0])


def test_fractional_weight_is_probability():
    model = build(window=None, tree=Tree(max_depth=2))
    for x in STREAM:
        model.learn_one(x, w=0.5)
    assert 140 < model.forest.n_seen_ < 260  # 200 by expectation, with a deviation of 10
    for w in (-1, math.nan, "much"):
        with pytest.raises(ValueError, match="weight"):
            model.learn_one(STREAM[0], w=w)


# ---- drift -----------------------------------------------------------------------------------------------------------


def test_drift_is_reported_once_for_numbers_and_dicts():
    from river import base

    from polyaforest.adapters.river import DriftMonitor

    values = np.append(np.random.default_rng(0).normal(size=300), np.random.default_rng(1).normal(6.0, size=200))
    plain, named = (DriftMonitor(reference=128, n_estimators=4, seed=0) for _ in range(2))
    assert isinstance(plain, base.DriftDetector)
    reported = []
    for i, value in enumerate(values.tolist()):
        plain.update(value)
        named.update({"x": value, "new": None})
        assert plain.drift_detected == named.drift_detected
        if plain.drift_detected:
            reported.append(i)
    assert len(reported) <= 2
    assert 300 < reported[0] < 312
    assert plain.monitor.n_seen_ == 500
    assert abs(named.monitor.n_seen_ - 500) == 0


def test_drift_monitor_clones_copies_and_rejects_text():
    from polyaforest.adapters.river import DriftMonitor

    monitor = DriftMonitor(reference=128, n_estimators=4, seed=0)
    for value in np.random.default_rng(0).normal(size=150).tolist():
        monitor.update({"a": value, "b": -value})
    monitor.update({"a": 1.0})  # b is missing
    assert pickle.loads(pickle.dumps(monitor)).monitor.to_bytes() == monitor.monitor.to_bytes()
    assert monitor.clone().monitor.n_seen_ == 0
    with pytest.raises(ValueError, match="is not a number"):
        monitor.update({"a": "warm", "b": 1.0})
