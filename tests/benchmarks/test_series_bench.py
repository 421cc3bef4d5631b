"""Measures on series against cases worked by hand and the authors' package; the run over series end to end."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import series
from benchmarks.series import Bench, Case, evaluate, on_unit_scale, pieces
from benchmarks.shared.metrics import vus_pr
from benchmarks.shared.nab_scoring import PROFILES
from benchmarks.shared.results import read
from benchmarks.shared.series_detectors import DETECTORS, NOVELTY, by_channel, centred, normalised, subsequence_length

CHEAP = ("differences", "random numbers")
MODULES = {"krcf": "krcf", "rcf3": "rcf3", "river HalfSpaceTrees": "river"}
COMPILED = ("matrix profile", "left matrix profile")  # by stumpy, for half a minute


def random_case(rng):
    """Labels in a few runs, and scores with or without ties that know something of them."""
    n_steps = int(rng.integers(20, 300))
    y = np.zeros(n_steps, dtype=int)
    for start in rng.integers(0, n_steps, rng.integers(1, 6)):
        y[start : start + rng.integers(1, 20)] = 1
    score = rng.random(n_steps) + rng.random() * y
    return y, score.round(1) if rng.random() < 0.5 else score


# ---- measures -------------------------------------------------------------------------------------------------------


def test_vus_pr_equals_that_of_the_authors():
    metricor = pytest.importorskip("vus.utils.metrics").metricor()
    rng = np.random.default_rng(0)
    for _ in range(20):
        y, score = random_case(rng)
        buffer, n_thresholds = int(rng.integers(0, 40)), int(rng.integers(5, 60))
        *_, expected = metricor.RangeAUC_volume_opt(y, score, buffer, n_thresholds)
        assert vus_pr(y, score, buffer, n_thresholds) == pytest.approx(expected, abs=1e-12)


def test_vus_pr_by_hand():
    """Without a buffer: steps of recall times precision, at the thresholds 4, 3, 2 and 1; both runs count in recall."""
    y, score = np.array([0, 1, 0, 1]), np.array([3.0, 4.0, 1.0, 2.0])
    assert vus_pr(y, score, buffer=0, n_thresholds=4) == pytest.approx(0.25 * 1 + 0.75 * 2 / 3)
    # a window of 2 joins the runs and labels the steps beside them with the root of a half, those between with 1
    root = np.sqrt(0.5)
    found = np.array([1.0, 1 + root, 2 + root, 3 + root])
    recall = np.minimum(found / (2 + np.array([0, root, root, 1 + root]) / 2), 1)
    area = np.diff(recall, prepend=0) @ (found / [1, 2, 3, 4])
    zero = vus_pr(y, score, buffer=0, n_thresholds=4)
    assert vus_pr(y, score, buffer=2, n_thresholds=4) == pytest.approx((zero + zero + area) / 3)


def test_perfect_scores_measure_one_and_vus_pr_tolerates_delays():
    y = np.zeros(500, dtype=int)
    y[200:240] = 1
    assert evaluate(y.astype(float), y)["auc_pr"] == evaluate(y.astype(float), y)["auc_roc"] == 1
    late = evaluate(np.roll(y, 20).astype(float), y)
    assert late["vus_pr"] > 1.2 * late["auc_pr"]


def test_missing_scores_count_as_most_normal():
    y = np.array([0, 0, 1, 0, 1])
    assert evaluate(np.array([np.nan, 2, 3, np.nan, 4]), y) == evaluate(np.array([2.0, 2, 3, 2, 4]), y)
    assert evaluate(np.full(5, np.nan), y)["auc_roc"] == 0.5


@pytest.mark.parametrize(
    ("y", "score", "message"),
    [([0, 0], [1, 2], "an anomaly"), ([0, 1], [1, np.nan], "not a number"), ([0, 1], [1, 2, 3], "one score per label")],
)
def test_invalid_input_raises(y, score, message):
    with pytest.raises(ValueError, match=message):
        vus_pr(y, score)


def test_causal_scores_share_one_scale():
    scores = [np.array([0.0, 1.0]), np.array([np.nan, 2.0, 4.0])]
    together, apart = on_unit_scale(scores, is_causal=True), on_unit_scale(scores, is_causal=False)
    np.testing.assert_array_equal(np.concatenate(together), [0, 0.25, 0.5, 0.5, 1])
    np.testing.assert_array_equal(np.concatenate(apart), [0, 1, 0, 0, 1])
    assert on_unit_scale([np.ones(3)], is_causal=True)[0].tolist() == [0, 0, 0]


# ---- detectors ------------------------------------------------------------------------------------------------------


def wave(n_steps=700, period=25, n_channels=1, seed=0):
    noise = 0.05 * np.random.default_rng(seed).normal(size=(n_steps, n_channels))
    return np.sin(2 * np.pi * np.arange(n_steps) / period)[:, None] + noise


def test_subsequences_have_the_length_of_the_period():
    assert subsequence_length(wave(period=25)) == 25
    assert subsequence_length(wave(period=7)) == 10  # the lags from 6 on count, and no length is below 10
    assert subsequence_length(np.zeros((500, 1))) == 125


def test_windows_are_normalised_and_scores_centred():
    windows = normalised(np.array([[0.1, 0.1, 0.1], [1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(windows, [[0, 0, 0], [-np.sqrt(1.5), 0, np.sqrt(1.5)]])
    np.testing.assert_array_equal(centred(np.array([1, 2, 3]), 4), [1, 1, 1, 2, 3, 3])


def test_constant_channels_are_left_out():
    values = np.column_stack([wave(100).ravel(), np.ones(100), np.arange(100.0)])
    np.testing.assert_array_equal(by_channel(lambda channel, _: channel)(values), values[:, [0, 2]].mean(axis=1))
    np.testing.assert_array_equal(by_channel(lambda channel, _: channel)(np.ones((9, 2))), np.zeros(9))


def detectors(*, causal_only=False):
    return [
        pytest.param(name, marks=pytest.mark.slow) if name in COMPILED else name
        for name, detector in DETECTORS.items()
        if detector.is_causal or not causal_only
    ]


@pytest.mark.parametrize("name", detectors())
def test_every_step_gets_a_score_and_a_jump_a_high_one(name):
    pytest.importorskip(MODULES.get(name, "stumpy" if name in COMPILED else "numpy"))
    values = wave(n_channels=2)
    values[500:510] += [[4.0, -4.0]]
    scores = DETECTORS[name].run(values)
    assert scores.shape == (700,)
    if name != "random numbers":
        assert np.nanmax(scores[490:610]) >= np.nanquantile(scores[300:], 0.99)


@pytest.mark.parametrize("name", detectors(causal_only=True))
def test_causal_detectors_do_not_know_the_future(name):
    pytest.importorskip(MODULES.get(name, "stumpy" if name in COMPILED else "numpy"))
    if name == "random numbers":
        pytest.skip("they are drawn by the whole series")
    values = wave(500)
    other = np.concatenate([values[:400], 10 * wave(100, period=9, seed=1)])
    np.testing.assert_allclose(DETECTORS[name].run(other)[:400], DETECTORS[name].run(values)[:400], atol=1e-6)


# ---- the whole ------------------------------------------------------------------------------------------------------


def made(family, name, half="choose", anomaly=300):
    values, y = wave(400), np.zeros(400, dtype=np.int8)
    if anomaly:
        values[anomaly] += 5.0
        y[anomaly - 5 : anomaly + 10] = 1
    return Case(family, name, half, values, y, 60)


@pytest.fixture
def small():
    cases = [("NAB", "a", "choose"), ("NAB", "b", "report"), ("UCR", "a", "choose"), ("UCR", "b", "report")]
    return [*(made(*case) for case in cases), made("NAB", "c", anomaly=None)]


def run(cases, directory):
    bench = Bench(cases, directory / "cache", directory)
    for name in CHEAP:
        bench.measure(name)
    return bench


def test_stored_series_take_turns_and_training_parts_are_fed_first(tmp_path, monkeypatch):
    values, y = wave(90), np.zeros(90, dtype=np.int8)
    (tmp_path / "series").mkdir()
    for name, train in [("A_1", values[:30]), ("A_2", values[:20] + 1), ("A_3", values[:30]), ("B_x_y", values[:30])]:
        np.savez(tmp_path / "series" / name, train=train, test=values, y=y)
    monkeypatch.setenv("POLYAFOREST_DATA", str(tmp_path))
    monkeypatch.setattr(series, "NAB", ())
    cases = series.load_all()
    assert [case[:3] for case in cases] == [
        ("A", "1", "choose"),
        ("A", "2", "report"),
        ("A", "3", "choose"),
        ("B", "x_y", "choose"),
    ]
    assert [(len(case.values), len(case.y), case.start) for case in cases] == [
        (90, 90, 0),
        (110, 110, 20),
        (90, 90, 0),
        (90, 90, 0),
    ]


def test_a_quick_run_takes_a_piece_of_each_family_with_its_anomaly(small):
    taken = pieces(sorted(small, key=lambda case: case[:2]))
    assert [(case.family, case.name) for case in taken] == [("NAB", "a"), ("UCR", "a")]
    assert all(case.y[case.start :].any() and len(case.values) == len(case.y) for case in taken)


def test_end_to_end(small, tmp_path):
    run(small, tmp_path)
    rows = read(tmp_path / "series.csv")
    assert len(rows) == len(CHEAP) * len(small)
    assert [row["vus_pr"] == "" for row in rows] == 2 * [False, False, False, False, True]  # the last has no label
    totals = {(row["detector"], row["profile"]): float(row["score"]) for row in read(tmp_path / "series-nab.csv")}
    assert set(totals) == {(name, profile) for name in CHEAP for profile in PROFILES}
    assert totals["differences", "standard"] > 80 > totals["random numbers", "standard"]

    page = tmp_path / "series.md"
    blocks = ("summary", "report", "choose", "nab")
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in blocks))
    series.render(tmp_path, tmp_path)
    lines = [line for line in page.read_text().splitlines() if line.startswith("| differences")]
    assert len(lines) == len(blocks)
    means = {
        row["series"]: float(row["auc_roc"]) for row in rows if row["detector"] == "differences" and row["auc_roc"]
    }
    assert f"| {means['b']:.3f} |" in lines[0]


def test_novelty_is_scored_by_half_and_at_a_fixed_limit(small, tmp_path):
    bench = run(small, tmp_path)
    bench.measure(NOVELTY)
    series.score_novelty(bench)
    series.score_novelty(bench)  # what was there is replaced
    rows = {row["half"]: row for row in bench.halves}
    assert list(rows) == ["choose", "report", "all"]
    assert rows["choose"]["score"] == rows["choose"]["carried"]
    assert all(float(row["score"]) >= max(float(row["carried"]), float(row["fixed"])) for row in rows.values())
    assert float(rows["all"]["score"]) > 80
    totals = {row["profile"]: row["score"] for row in bench.nab if row["detector"] == series.OWN_LIMIT}
    assert set(totals) == set(PROFILES)
    assert totals["standard"] == rows["all"]["fixed"]
    table = series.halves_table(read(tmp_path / "series-nab-halves.csv"))
    assert f"| all | {float(rows['all']['score']):.1f} |" in table


def test_the_mean_is_over_families_first():
    rows = [
        {"detector": "differences", "family": family, "half": "report", "vus_pr": value}
        for family, value in [("A", "0.1"), ("A", "0.3"), ("B", "0.8"), ("B", "")]
    ]
    assert series.mean_of_families(rows, "differences", "report", "vus_pr") == pytest.approx(0.5)
    assert np.isnan(series.mean_of_families(rows, "differences", "choose", "vus_pr"))


def test_a_run_resumes_where_it_was_interrupted(small, tmp_path, monkeypatch):
    run(small, tmp_path)
    files = {file: file.read_text() for file in tmp_path.glob("*.csv")}
    for file, text in files.items():
        file.write_text("".join(text.splitlines(keepends=True)[:-2]))  # stopped before the last rows were written

    def refuse(values):
        raise AssertionError("what is in the cache need not be scored again")

    for name in CHEAP:
        monkeypatch.setitem(DETECTORS, name, DETECTORS[name]._replace(run=refuse))
    bench = run(small, tmp_path)
    assert {file: file.read_text() for file in tmp_path.glob("*.csv")} == files
    bench.forget("differences")
    with pytest.raises(AssertionError, match="in the cache"):
        bench.measure("differences")
