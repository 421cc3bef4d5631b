"""All methods, commands and adapters flag the same rows."""

import copy
import json
import pickle

import numpy as np
import polars as pl
import pytest
from effort import mostly_slow
from sklearn.base import clone

from polyaforest import BatchMPF, EpsilonPhi, SeriesMPF, StreamingMPF, Tree, load
from polyaforest.tables.validation import NamedRows

pytestmark = pytest.mark.end_to_end

NAMES = ["a", "b", "c"]
N_KNOWN = 270
SMALL = {"n_estimators": 8, "random_state": 3}
LEAVES = {"max_samples": None, "tree": Tree(max_depth=10)}
SUMMARY = {"window": None, "tree": Tree(max_depth=8)}
POLICIES = {
    "auto": {},
    "contamination": {"contamination": 0.05},
    "false alarm rate": {"false_alarm_rate": 0.04},
    "epsilon, phi": {"score_type": EpsilonPhi(0.01, 0.5)},
}


def table() -> np.ndarray:
    """Return rows to learn, then rows of which some are anomalous, and some of these known."""
    rng = np.random.default_rng(0)
    rows = rng.normal([50.0, 20.0, 5.0], [5.0, 2.0, 1.0], size=(N_KNOWN + 40, 3))
    rows[[7, 90, 91, 250, 280, 281, 300]] += [40.0, 0.0, 9.0]
    return rows.round(3)


def detectors():
    """Yield every class with every threshold policy and every score."""
    for name, policy in POLICIES.items():
        leaves = LEAVES if "score_type" in policy else {}
        yield f"batch, {name}", BatchMPF(**SMALL, **policy)
        yield f"table, {name}", StreamingMPF(**SMALL, **leaves, **policy)
        yield f"window, {name}", StreamingMPF(window=150, **SMALL, **leaves, **policy)
        yield f"summary, {name}", StreamingMPF(**SMALL, **SUMMARY, **policy)
        yield f"series, {name}", SeriesMPF(StreamingMPF(window=300, **SMALL, **leaves, **policy), shingle=2)
    for score in ("mass", "log_mass", "multiscale"):
        yield f"table, {score}", StreamingMPF(score_type=score, contamination=0.05, **SMALL)
        yield f"batch, {score}", BatchMPF(score_type=score, contamination=0.05, **SMALL)
    for name, policy in POLICIES.items():
        if "score_type" not in policy:  # context windows are not scored by leaves
            yield f"context windows, {name}", SeriesMPF(StreamingMPF(**SMALL, **policy), short_memory=False)
    yield (
        "context windows, log_mass",
        SeriesMPF(StreamingMPF(score_type="log_mass", contamination=0.05, **SMALL), short_memory=False),
    )


def forests_of(detector):
    """Return the forests of a detector."""
    return list(detector.estimators_.values()) if isinstance(detector, SeriesMPF) else [detector]


def is_of_contexts(detector):
    return isinstance(detector, SeriesMPF) and detector.shingle == "auto"


ALL = [pytest.param(detector, id=name) for name, detector in detectors()]
STREAMS = [pytest.param(detector, id=name) for name, detector in detectors() if not isinstance(detector, BatchMPF)]
ROWS = table()
KNOWN, EVERY = NamedRows(ROWS[:N_KNOWN], NAMES), NamedRows(ROWS, NAMES)


def assert_same(found, other):
    """Assert that two results agree to the last bit."""
    for name in ("scores", "p_values", "is_anomaly", "thresholds"):
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name), err_msg=name)


def assert_one_verdict(detector, rows):
    """Assert that all methods of a detector agree on rows; return the result."""
    found = detector.detect(rows)
    np.testing.assert_array_equal(detector.score_samples(rows), found.scores)
    np.testing.assert_array_equal(detector.predict(rows), np.where(found.is_anomaly, -1, 1))
    np.testing.assert_array_equal(detector.decision_function(rows) < 0, found.is_anomaly)
    np.testing.assert_array_equal(found.scores < detector.offset_, found.is_anomaly)
    judged = np.flatnonzero(~np.isnan(found.scores))
    np.testing.assert_array_equal(found.thresholds[judged], np.full(len(judged), detector.offset_))
    forest = forests_of(detector)[0]
    if isinstance(forest.score_type, EpsilonPhi):
        assert np.isnan(found.p_values).all()
        np.testing.assert_array_equal(found.scores[judged] <= forest.score_type.epsilon, found.is_anomaly[judged])
    else:
        np.testing.assert_array_equal(detector.p_value(rows), found.p_values)
        if forest.false_alarm_rate is not None:
            np.testing.assert_array_equal(found.p_values[judged] <= forest.false_alarm_rate, found.is_anomaly[judged])
    is_series = isinstance(detector, SeriesMPF)
    explained = detector.explain(rows, rows=judged) if is_series else detector.explain(rows)
    np.testing.assert_array_equal([one.is_anomaly for one in explained], found.is_anomaly[judged])
    if not is_of_contexts(detector):  # each row is explained by its most anomalous view
        np.testing.assert_array_equal(explained.is_anomaly, found.is_anomaly[judged])
        if explained.p_values is not None:
            np.testing.assert_array_equal(explained.p_values, found.p_values[judged])
    elif not isinstance(forest.score_type, EpsilonPhi):
        np.testing.assert_array_equal([one.p_value for one in explained], found.p_values[judged])
    return found


# ---- in Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detector", mostly_slow(ALL, *range(0, len(ALL), 2)))
def test_all_methods_copies_and_files_agree(detector, tmp_path):
    detector = clone(detector).fit(KNOWN)
    found = assert_one_verdict(detector, EVERY)
    assert 0 < found.is_anomaly.sum() < len(ROWS)  # otherwise the comparison is vacuous
    detector.save(tmp_path / "model.mpf")
    unasked = clone(detector).fit(KNOWN)  # its threshold is not computed yet
    unasked.save(tmp_path / "unasked.mpf")
    others = [load(tmp_path / "model.mpf"), load(tmp_path / "unasked.mpf"), copy.deepcopy(unasked)]
    for other in [*others, pickle.loads(pickle.dumps(unasked))]:
        assert_same(assert_one_verdict(other, EVERY), found)
    if not isinstance(detector, SeriesMPF):  # scores depend on earlier rows
        for i in (7, 100, 280):
            assert bool(detector.detect(EVERY[i : i + 1]).is_anomaly[0]) == found.is_anomaly[i]
        np.testing.assert_array_equal(clone(detector).fit_predict(KNOWN), clone(detector).fit(KNOWN).predict(KNOWN))


@pytest.mark.parametrize("missing", ["batch", "table"])
def test_all_methods_agree_on_rows_with_missing_values(missing):
    rows = ROWS.copy()
    rows[[7, 30, 280], [1, 2, 1]] = np.nan
    kind = BatchMPF if missing == "batch" else StreamingMPF
    detector = kind(missing="marginalise", contamination=0.05, **SMALL).fit(NamedRows(rows[:N_KNOWN], NAMES))
    assert assert_one_verdict(detector, NamedRows(rows, NAMES)).is_anomaly[280]


@pytest.mark.parametrize("detector", mostly_slow(STREAMS, *range(0, len(STREAMS), 2)))
@pytest.mark.parametrize("first", mostly_slow([0, 260], 1))
def test_stream_flags_the_rows_that_predict_flags_before_learning(detector, first):
    if not first and is_of_contexts(detector):
        pytest.skip("contexts are still warming up at the end of these rows")
    alone, at_once, explained = (clone(detector) for _ in range(3))
    if first:
        for one in (alone, at_once, explained):
            one.fit(EVERY[:first])
    parts = []
    for i in range(first, len(EVERY)):
        row = EVERY[i : i + 1]
        ahead = alone.detect(row) if hasattr(alone, "n_features_in_") and (i > first or is_of_contexts(alone)) else None
        verdict = alone.predict(row) if ahead is not None else None
        parts.append(alone.detect_then_learn(row))
        if ahead is not None:
            assert bool(ahead.is_anomaly[0]) == bool(parts[-1].is_anomaly[0]) == (verdict[0] == -1)
            if not np.isnan(ahead.scores[0]):  # the first shingle of a series has no score
                np.testing.assert_allclose(ahead.scores, parts[-1].scores, rtol=1e-12)
                np.testing.assert_array_equal(ahead.p_values, parts[-1].p_values)
    whole = at_once.detect_then_learn(EVERY[first:])
    assert_same(whole, type(whole).joined(parts))
    reasons = explained.detect_then_learn(EVERY[first:], explain=True)
    assert_same(reasons, whole)
    assert sorted(reasons.explanations) == np.flatnonzero(whole.is_anomaly).tolist()
    assert all(one.is_anomaly for one in reasons.explanations.values())
    assert whole.is_anomaly.any()
    assert_same(alone.detect(EVERY), at_once.detect(EVERY))
    assert_one_verdict(at_once, EVERY)


@pytest.mark.parametrize("kind", [BatchMPF, StreamingMPF])
def test_changed_policy_recomputes_threshold(kind, tmp_path):
    first = kind(**SMALL).fit(KNOWN)
    first.predict(KNOWN)
    other = kind(false_alarm_rate=0.04, **SMALL).fit(KNOWN)
    first.save(tmp_path / "model.mpf")
    for detector in (first, load(tmp_path / "model.mpf")):
        detector.set_params(contamination="auto", false_alarm_rate=0.04)
        assert_same(assert_one_verdict(detector, EVERY), other.detect(EVERY))


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Write all rows to a file, of two alternating hosts."""
    place = tmp_path_factory.mktemp("files") / "all.csv"
    hosts = pl.Series("host", ["web-1", "web-2"] * (len(ROWS) // 2))
    pl.DataFrame(ROWS, schema=NAMES).with_columns(hosts).write_csv(place)
    return place


def scored(cli, *args):
    """Return the output columns of `score` or `detect`, as arrays."""
    code, out, err = cli(*args, "--out", "-", "-q")
    assert (code, err) == (0, "")
    written = pl.read_csv(out.encode(), infer_schema_length=None)
    numbers = [written[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("score", "p_value")]
    return *numbers, written["is_anomaly"].to_numpy(), written


def assert_written(written, found):
    for column, expected in zip(written[:3], found[:3], strict=True):
        np.testing.assert_array_equal(column, expected)


def assert_explained(cli, model, path, found, *args):
    """Assert that `explain` agrees on some rows, flagged or not."""
    rows = [i for i in (7, 100, 250, 280, 300) if not np.isnan(found.scores[i])]
    wanted = [word for i in rows for word in ("--row", i + 1)]
    code, out, _ = cli("explain", "-m", model, path, "--json", *wanted, *args)
    assert code == 0
    for i, line in zip(rows, out.splitlines(), strict=True):
        facts = json.loads(line)
        assert facts["is_anomaly"] == found.is_anomaly[i]
        assert facts["p_value"] is None if np.isnan(found.p_values[i]) else facts["p_value"] == found.p_values[i]


@pytest.mark.parametrize("detector", mostly_slow(ALL, 0, 6, 12, 13, 19, 20, 26))
def test_score_uses_a_model_saved_from_python(cli, path, tmp_path, detector):
    detector = clone(detector).fit(KNOWN)
    detector.save(tmp_path / "model.mpf")
    found = detector.detect(EVERY)
    assert_written(scored(cli, "score", "-m", tmp_path / "model.mpf", path), found)
    assert_explained(cli, tmp_path / "model.mpf", path, found)


FITS = [[], ["--batch"], ["--id", "host"], ["--stream", "--window", "200"], ["--shingle", "2"], ["--series"]]
RATES = [[], ["--false-alarm-rate", "0.04"], ["--epsilon", "0.01", "--phi", "0.5"]]
# the first always, the others as slow tests: the policies are compared in Python above
SOME_RATES = mostly_slow([pytest.param(rate, id=" ".join(rate)) for rate in RATES])


@pytest.mark.parametrize("rate", SOME_RATES)
@pytest.mark.parametrize("kind", FITS, ids=" ".join)
def test_fit_score_and_explain_agree_with_the_saved_detector(cli, path, tmp_path, kind, rate):
    if "--epsilon" in rate and {"--stream", "--shingle", "--series"} & {*kind}:
        pytest.skip("(epsilon, phi)-anomalies are those of a table")
    model = tmp_path / "model.mpf"
    assert cli("fit", path, "-m", model, "--columns", "a,b,c", *kind, *rate)[0] == 0
    found = assert_one_verdict(load(model), EVERY)
    written = scored(cli, "score", "-m", model, path)
    assert_written(written, found)
    assert_explained(cli, model, path, found)
    if kind in ([], ["--batch"]):
        again = scored(cli, "detect", path, "--columns", "a,b,c", *kind, *rate)
        if not kind:
            assert_written(again, found)
    out = cli("score", "-m", model, path, "--only-anomalies", "-q")[1]
    assert pl.read_csv(out.encode())["row"].to_list() == (np.flatnonzero(found.is_anomaly) + 1).tolist()


@pytest.mark.parametrize("kind", mostly_slow(FITS, 1, 3, 5), ids=" ".join)
def test_false_alarm_rate_option_equals_the_policy_of_the_detector(cli, path, tmp_path, kind):
    model, rate = tmp_path / "model.mpf", ["--false-alarm-rate", "0.04"]
    assert cli("fit", path, "-m", model, "--columns", "a,b,c", *kind)[0] == 0
    detector = load(model)
    if isinstance(detector, SeriesMPF):
        detector.flag_at_rate(0.04)
    for forest in forests_of(detector):
        forest.set_params(contamination="auto", false_alarm_rate=0.04)
    found = assert_one_verdict(detector, EVERY)
    assert_written(scored(cli, "score", "-m", model, path, *rate), found)
    assert_explained(cli, model, path, found, *rate)
    code, _, err = cli("score", "-m", model, path, "--false-alarm-rate", "1e-6")
    assert code == 3
    assert "needs at least 999,999 calibration scores" in err


@pytest.mark.parametrize("kind", [[], ["--batch"], ["--series"]], ids=" ".join)
@pytest.mark.parametrize("rate", SOME_RATES)
@pytest.mark.parametrize("by", [[], ["--by", "host"]], ids=" ".join)
def test_detect_equals_the_detector_fitted_on_the_table(cli, path, kind, rate, by):
    policy = {"--false-alarm-rate": {"false_alarm_rate": 0.04}, "--epsilon": {"score_type": EpsilonPhi(0.01, 0.5)}}
    given = {"random_state": 0, **(policy[rate[0]] if rate else {})}
    leaves = LEAVES if "--epsilon" in rate else {}
    if kind == ["--series"] and leaves:
        pytest.skip("contexts are not scored by leaves")
    detector = BatchMPF(**given) if kind == ["--batch"] else StreamingMPF(**leaves, **given)
    written = scored(cli, "detect", path, "--columns", "a,b,c", *kind, *rate, *by)
    for part in (slice(0, None, 2), slice(1, None, 2)) if by else (slice(None),):
        rows = NamedRows(ROWS[part], NAMES)
        if kind == ["--series"]:
            found = SeriesMPF(clone(detector)).fit(rows).detect(rows, standalone=True)
        else:
            found = assert_one_verdict(clone(detector).fit(rows), rows)
        assert_written([column[part] for column in written[:3]], found)
    flags, reasons = written[2], written[3]["reason"].fill_null("").to_numpy()
    np.testing.assert_array_equal(reasons != "", flags)
    out = cli("detect", path, "--columns", "a,b,c", *kind, *rate, *by)[1]
    n_scored = (~np.isnan(written[0])).sum()
    rows = f"{n_scored} scored rows" if n_scored < len(ROWS) else f"{n_scored} rows"
    assert f"{flags.sum()} of {rows}" in out.splitlines()[0]


@pytest.mark.parametrize("args", [[], ["--shingle", "2"]], ids=" ".join)
@pytest.mark.parametrize("rate", RATES[:2], ids=" ".join)
def test_stream_detect_and_watch_equal_detect_then_learn(cli, path, tmp_path, args, rate):
    forest = StreamingMPF(window=150, random_state=0, false_alarm_rate=0.04 if rate else None)
    found = (SeriesMPF(forest, shingle=2) if args else forest).detect_then_learn(EVERY)
    options = [path, "--columns", "a,b,c", "--window", "150", *args, *rate]
    written = scored(cli, "detect", "--stream", *options)
    assert_written(written, found)
    np.testing.assert_array_equal(written[3]["reason"].fill_null("").to_numpy() != "", written[2])
    assert cli("watch", *options, "--out", tmp_path / "out.jsonl", "--quiet")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    columns = [[line[name] for line in lines] for name in ("score", "p_value", "is_anomaly")]
    assert_written([np.array(column, float) for column in columns], found)  # None becomes NaN


# ---- adapters and plots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BatchMPF", "StreamingMPF"])
def test_pyod_flags_what_the_detector_flags(name):
    pyod = pytest.importorskip("polyaforest.adapters.pyod")
    adapted = getattr(pyod, name)(contamination=0.05, **SMALL).fit(ROWS[:N_KNOWN])
    detector = {"BatchMPF": BatchMPF, "StreamingMPF": StreamingMPF}[name](contamination=0.05, **SMALL)
    detector.fit(ROWS[:N_KNOWN])
    np.testing.assert_array_equal(adapted.labels_ == 1, detector.predict(ROWS[:N_KNOWN]) == -1)
    np.testing.assert_array_equal(adapted.predict(ROWS) == 1, detector.predict(ROWS) == -1)


def test_river_flags_what_the_detector_flags():
    river = pytest.importorskip("polyaforest.adapters.river")
    adapted = river.StreamingMPF(n_estimators=8, seed=3, window=150)
    for i, row in enumerate(ROWS):
        x = dict(zip(NAMES, row.tolist(), strict=True))
        if i >= 250:
            assert (adapted.score_one(x) > adapted.threshold) == (adapted.forest.predict(row[None])[0] == -1)
        adapted.learn_one(x)


def test_plots_draw_the_threshold_of_the_detector():
    pytest.importorskip("matplotlib")
    from polyaforest.plots import density, trace

    detector = StreamingMPF(**SMALL).fit(ROWS[:N_KNOWN, :2])
    rows = ROWS[:, :2]
    drawn = density(detector, kind="score", X=rows)
    assert drawn.threshold is not None
    assert drawn.threshold.levels.tolist() == [detector.offset_]
    shown = trace(detector.score_samples(rows), threshold=detector.offset_)
    flagged = ~np.isnan(np.asarray(shown.flagged[0].get_ydata(), float))
    np.testing.assert_array_equal(np.flatnonzero(flagged), np.flatnonzero(detector.predict(rows) == -1))
