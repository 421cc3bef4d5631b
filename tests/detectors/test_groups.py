"""Verdicts calibrated within groups: where groups come from, small ones, files, the command line, refusals."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

import polyaforest
from polyaforest import BatchMPF, EpsilonPhi, GroupedMPF, StreamingMPF, Tree
from polyaforest.detectors import loads
from polyaforest.storage.codec import pack, unpack

RNG = np.random.default_rng(0)
COUNTRY = np.repeat(["DE", "LU", "MT"], [900, 200, 20])
ROWS = RNG.normal(size=(1120, 2)) + np.array([[0.0], [6.0], [-6.0]]).repeat([900, 200, 20], axis=0)
FRAME = pd.DataFrame(ROWS, columns=["a", "b"]).assign(country=COUNTRY)


def build(kind=StreamingMPF, **given):
    return GroupedMPF(kind(n_estimators=10, false_alarm_rate=0.05, random_state=0), **given)


@pytest.fixture(scope="module", params=[StreamingMPF, BatchMPF])
def fitted(request):
    return build(request.param).fit(ROWS, groups=COUNTRY)


def test_groups_may_be_array_column_name_or_column_index(fitted):
    kind = type(fitted.estimator_)
    expected = fitted.detect(ROWS, groups=COUNTRY)
    for X, by in ((FRAME, "country"), (FRAME, 2), (pl.from_pandas(FRAME), "country"), (FRAME.to_numpy(), 2)):
        found = build(kind, calibrate_by=by).fit(X).detect(X)
        assert_array_equal(found.p_values, expected.p_values)
        assert_array_equal(found.is_anomaly, expected.is_anomaly)


def test_column_of_groups_may_be_feature():
    coded = FRAME.assign(country=FRAME["country"].map({"DE": 0, "LU": 1, "MT": 2}))
    without, with_it = (build(calibrate_by="country", is_feature=flag).fit(coded) for flag in (False, True))
    assert without.groups_ == with_it.groups_ == [0.0, 1.0]
    assert (without.n_features_in_, with_it.n_features_in_) == (2, 3)
    assert (without.score_samples(coded) != with_it.score_samples(coded)).any()


def test_all_methods_agree(fitted):
    found = fitted.detect(ROWS, groups=COUNTRY)
    assert_array_equal(fitted.predict(ROWS, groups=COUNTRY) == -1, found.is_anomaly)
    assert_array_equal(fitted.decision_function(ROWS, groups=COUNTRY) < 0, found.is_anomaly)
    assert_array_equal(fitted.p_value(ROWS, groups=COUNTRY) <= 0.05, found.is_anomaly)
    assert_array_equal(fitted.score_samples(ROWS), fitted.estimator_.score_samples(ROWS))
    assert set(np.unique(fitted.predict_fdr(ROWS, groups=COUNTRY))) <= {-1, 1}
    for label, offset in fitted.offsets_.items():
        assert set(found.thresholds[label == COUNTRY]) == {offset}
    assert set(found.thresholds[COUNTRY == "MT"]) == {fitted.offset_}
    explained = fitted.explain(ROWS[:3], groups=COUNTRY[:3])
    assert [one.p_value for one in explained] == found.p_values[:3].tolist()


def test_small_unknown_and_missing_groups_share_calibration():
    forest = build(min_group=100).fit(ROWS, groups=COUNTRY)
    assert forest.groups_ == ["DE", "LU"]
    labels = ["MT", "XK", None, np.nan]
    assert len(set(forest.p_value(np.zeros((4, 2)), groups=labels).tolist())) == 1
    # 20 scores are too few to share: they are compared with those of all rows
    assert_array_equal(forest.p_value(ROWS[-20:], groups=["MT"] * 20), forest.estimator_.p_value(ROWS[-20:]))
    several = build(min_group=100).fit(ROWS, groups=np.where(np.arange(1120) % 4 == 0, COUNTRY, ""))
    assert set(several.groups_) == {"", "DE"}
    pooled = build(min_group=60).fit(ROWS, groups=np.where(COUNTRY == "DE", "DE", np.arange(1120) % 10))
    assert pooled.groups_ == ["DE"]
    assert pooled.p_value(ROWS[900:1100], groups=["1"] * 200).mean() > 0.4  # by the 220 rows of small groups
    rare = GroupedMPF(StreamingMPF(n_estimators=5, false_alarm_rate=0.004, random_state=0)).fit(ROWS, groups=COUNTRY)
    assert rare.groups_ == ["DE"]  # 200 scores do not show a rate of 0.004


def test_saved_detector_keeps_groups(fitted, tmp_path, cli):
    fitted.save(tmp_path / "grouped.mpf", notes={"a": 1})
    for again in (
        polyaforest.load(tmp_path / "grouped.mpf"),
        loads(fitted.to_bytes()),
        GroupedMPF.load(tmp_path / "grouped.mpf"),
    ):
        assert again.groups_ == fitted.groups_
        assert_array_equal(again.p_value(ROWS, groups=COUNTRY), fitted.p_value(ROWS, groups=COUNTRY))
        assert again.get_params(deep=False).keys() == fitted.get_params(deep=False).keys()
    code, said, _ = cli("info", tmp_path / "grouped.mpf")
    assert code == 0
    assert "calibrated within groups" in said


def test_invalid_groups_in_files_are_rejected(fitted):
    header, arrays = unpack(fitted.to_bytes())
    for change in (
        {"groups/lengths": np.array([1, 2])},
        {"groups/scores": arrays["groups/scores"][::-1].copy()},
        {"groups/rest": np.array([np.nan])},
        {"groups/more": np.zeros(1)},
    ):
        with pytest.raises(polyaforest.ModelFileError):
            loads(pack(header, {**arrays, **change}, is_compact=False))
    for labels in ({"0": "DE", "1": "DE"}, {"0": None, "1": "LU"}, {"0": "DE"}):
        with pytest.raises(polyaforest.ModelFileError):
            loads(pack({**header, "labels": labels}, arrays, is_compact=False))


def test_invalid_groups_are_rejected():
    for given, X, groups, message in (
        ({}, ROWS, None, "pass groups=, one for each row"),
        ({}, ROWS, COUNTRY[:5], "there are 5 groups for 1120 rows"),
        ({}, ROWS, "DE", "groups must be one label for each"),
        ({"calibrate_by": "country"}, FRAME, COUNTRY, "the groups are in column 'country' of X"),
        ({"calibrate_by": "land"}, FRAME, None, "calibrate_by='land' is not a column of X: it has 'a'"),
        ({"calibrate_by": "land"}, ROWS, None, "it has no column names"),
        ({"calibrate_by": 9}, ROWS, None, "calibrate_by=9 is not a column of X"),
        ({"min_group": 0}, ROWS, COUNTRY, "min_group"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**given).fit(X, groups=groups)
    with pytest.raises(ValueError, match="EpsilonPhi has a fixed threshold"):
        GroupedMPF(StreamingMPF(score_type=EpsilonPhi(0.01))).fit(ROWS, groups=COUNTRY)
    with pytest.raises(ValueError, match="holds no points"):
        GroupedMPF(StreamingMPF(window=None, tree=Tree(max_depth=4))).fit(ROWS, groups=COUNTRY)
    unfitted = clone(build())
    with pytest.raises(Exception, match="not fitted"):
        unfitted.detect(ROWS, groups=COUNTRY)


def test_failed_fit_changes_nothing():
    forest = build().fit(ROWS, groups=COUNTRY)
    before = forest.to_bytes()
    with pytest.raises(ValueError, match="groups for"):
        forest.fit(ROWS, groups=COUNTRY[:3])
    assert forest.to_bytes() == before


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--batch"]])
def test_detect_flags_no_group_more_often(cli, tmp_path, options):
    path, out = tmp_path / "people.csv", tmp_path / "out.jsonl"
    FRAME.to_csv(path, index=False)
    given = ("detect", path, "--false-alarm-rate", 0.05, "--out", out, *options)
    shares = []
    for more in ((), ("--calibrate-by", "country")):
        code, _, said = cli(*given, "--columns", "a,b", *more)
        assert code == 0, said
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        flagged = pd.Series([line["p_value"] <= 0.05 for line in lines])
        shares.append(flagged.groupby(COUNTRY).mean())
    assert "Calibrated by country." in said
    assert options or shares[0]["LU"] > 0.08
    assert shares[1][["DE", "LU"]].le(0.08).all()  # less where rows count among those that they are judged by
    assert options or shares[1][["DE", "LU"]].ge(0.02).all()


@pytest.mark.parametrize("more", [["--stream"], ["--series"], ["--epsilon", "0.01"], ["--weight", "a"]])
def test_detect_calibrates_groups_of_whole_tables_only(cli, tmp_path, more):
    FRAME.to_csv(tmp_path / "people.csv", index=False)
    code, _, said = cli("detect", tmp_path / "people.csv", "--calibrate-by", "country", *more)
    assert code == 2
    assert "--calibrate-by" in said
