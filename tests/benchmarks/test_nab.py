"""NAB's scoring against cases worked by hand and by brute force; the run over series end to end."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import nab
from benchmarks.nab import (
    DETECTORS,
    OURS,
    PROCESSINGS,
    Bench,
    Processing,
    Setting,
    Trial,
    choices,
    halves,
    hush,
    shingles,
)
from benchmarks.shared.nab_scoring import (
    OUTSIDE,
    PROFILES,
    Corpus,
    Profile,
    probation,
    scaled_sigmoid,
    windows_of,
    worth_of,
)
from benchmarks.shared.results import read

STANDARD = PROFILES["standard"]


def labelled(n_rows, *windows):
    label = np.zeros(n_rows, dtype=int)
    for first, last in windows:
        label[first : last + 1] = 1
    return label


def earliest(label):
    """The perfect detector: the first point of each window."""
    flags = np.zeros(len(label))
    flags[windows_of(label)[:, 0]] = 1.0
    return flags


# ---- the pieces -----------------------------------------------------------------------------------------------------


def test_weights_are_those_of_the_benchmark():
    assert STANDARD == (1.0, 0.11, 1.0)
    assert PROFILES["reward low FP rate"] == (1.0, 0.22, 1.0)
    assert PROFILES["reward low FN rate"] == (1.0, 0.11, 2.0)


def test_sigmoid_has_the_published_values():
    np.testing.assert_allclose(scaled_sigmoid([-1.0, -0.5, 0.0, 1.0]), [0.98661, 0.84828, 0.0, -0.98661], atol=1e-5)
    assert scaled_sigmoid(3.0) == scaled_sigmoid(1e9) == -1.0


def test_probation_is_fifteen_percent_of_at_most_five_thousand():
    assert [probation(n) for n in (0, 100, 1882, 5000, 22695)] == [0, 15, 282, 750, 750]


@pytest.mark.parametrize(
    ("label", "windows"),
    [([0, 0], []), ([1], [(0, 0)]), ([1, 1, 0, 1], [(0, 1), (3, 3)]), ([0, 1, 1, 0], [(1, 2)])],
)
def test_windows_are_runs_of_labels(label, windows):
    assert [tuple(window) for window in windows_of(np.array(label))] == windows


def test_worth_by_hand():
    """A window of points 2 to 4: thirds of its width before its end, then halves of its width less one behind it."""

    def sigma(x):
        return 2 / (1 + np.exp(5 * x)) - 1

    worth = worth_of(labelled(12, (2, 4)))
    top = sigma(-1)
    inside = [1.0, sigma(-2 / 3) / top, sigma(-1 / 3) / top]
    behind = [sigma(1 / 2), sigma(1), sigma(3 / 2), sigma(2), sigma(5 / 2), -1.0, -1.0]
    np.testing.assert_allclose(worth.value, [-1.0, -1.0, *inside, *behind])
    assert worth.window.tolist() == [OUTSIDE] * 2 + [0] * 3 + [OUTSIDE] * 7


def test_false_alarms_are_measured_from_the_latest_window():
    worth = worth_of(labelled(200, (20, 39), (100, 104)))
    assert worth.value[99] == pytest.approx(-1.0)
    assert worth.value[105] == pytest.approx(float(scaled_sigmoid(1 / 4)))


# ---- totals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_perfect_is_100_and_nothing_is_0(profile):
    labels = [labelled(400, (100, 139), (300, 310)), labelled(300), labelled(500, (90, 100))]
    corpus = Corpus(labels)
    assert corpus.best([earliest(label) for label in labels], profile) == (1.0, pytest.approx(100.0))
    assert corpus.of_flags([label * 0 for label in labels], profile) == pytest.approx(0.0)
    assert corpus.n_windows == 3


def test_the_best_threshold_of_a_useless_detector_flags_nothing():
    label = labelled(1000, (900, 910))
    everywhere_but_there = [1.0 - label]
    assert Corpus([label]).best(everywhere_but_there, STANDARD) == (np.inf, 0.0)


def test_one_late_hit_one_miss_and_one_false_alarm_by_hand():
    label = labelled(1000, (200, 299), (600, 699))
    flags = np.zeros(1000)
    flags[[250, 260, 500]] = 1  # the second flag in the window is worth nothing; that at 500 is two widths behind it
    hit = float(scaled_sigmoid(-0.5) / scaled_sigmoid(-1.0))
    total = hit - 1.0 + 0.11 * float(scaled_sigmoid(201 / 99))
    assert Corpus([label]).of_flags([flags], STANDARD) == pytest.approx(100 * (total + 2) / 4)


def test_probation_is_not_scored():
    label = labelled(1000, (10, 20), (100, 199))  # the second reaches into the scored part, the first does not
    corpus = Corpus([label])
    flags = np.zeros(1000)
    flags[:150] = 1
    assert corpus.n_windows == 1
    assert corpus.of_flags([flags], STANDARD) == pytest.approx(0.0)
    flags[150] = 1
    half = 100 * (float(scaled_sigmoid(-0.5) / scaled_sigmoid(-1.0)) + 1) / 2
    assert corpus.of_flags([flags], STANDARD) == pytest.approx(half)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("profile", [*PROFILES.values(), Profile(2.0, 0.01, 0.3)])
def test_the_sweep_equals_trying_every_threshold(seed, profile):
    rng = np.random.default_rng(seed)
    labels = [labelled(80, (30, 39), (60, 64)), labelled(60), labelled(70, (5, 15), (50, 50))]
    scores = [rng.integers(0, 12, len(label)) + 4.0 * (label * rng.random(len(label)) > 0.7) for label in labels]
    scores[1][rng.integers(60)] = -np.inf  # as from alarms that were silenced
    corpus = Corpus(labels)
    tried = {t: corpus.at(scores, t, profile) for t in [np.inf, *np.unique(np.concatenate(scores))]}
    best = corpus.best(scores, profile)
    assert best.score == pytest.approx(max(tried.values()))
    assert tried[best.threshold] == pytest.approx(best.score)


def test_every_point_needs_a_score():
    with pytest.raises(ValueError, match="every point"):
        Corpus([labelled(20)]).best([np.zeros(19)], STANDARD)


def test_without_windows_there_is_no_scale():
    with pytest.raises(ValueError, match="without a window"):
        Corpus([labelled(20)]).of_flags([np.ones(20)], STANDARD)


# ---- scores and what is made of them --------------------------------------------------------------------------------


def noise(n_rows, seed=0):
    return np.random.default_rng(seed).normal(size=n_rows)


def test_a_shingle_ends_with_its_own_point():
    np.testing.assert_array_equal(
        shingles(np.array([5.0, 6.0, 7.0, 8.0]), 3), [[5, 5, 5], [5, 5, 6], [5, 6, 7], [6, 7, 8]]
    )


def test_hush_keeps_the_highest_score_of_a_burst():
    silent = -np.inf
    scores = np.array([1.0, 3.0, 3.0, 2.0, 4.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(hush(scores, 2), [1, 3, silent, silent, 4, silent, silent, 1])
    np.testing.assert_array_equal(hush(scores, 0), scores)


@pytest.mark.parametrize("conversion", ["likelihood", "likelihood of 10", "tail"])
def test_conversions_make_scales_comparable(conversion):
    scores = noise(600)
    scores[500:510] += 12.0
    surprise = Processing(conversion)(scores)
    assert 500 <= surprise.argmax() < 510
    assert surprise[500:510].max() > 3  # p < 0.001
    np.testing.assert_allclose(Processing(conversion)(1000.0 * scores)[100:], surprise[100:], rtol=0.05)
    assert (Processing(conversion)(np.full(300, 7.0))[50:] < 1).all()


@pytest.mark.parametrize("processing", PROCESSINGS, ids=str)
def test_processing_does_not_know_the_future(processing):
    scores = noise(700)
    other = np.append(scores[:400], 100.0 * noise(300, seed=1))
    np.testing.assert_array_equal(processing(other)[:400], processing(scores)[:400])


MODULES = {OURS: "polyaforest", "krcf": "krcf", "rcf3": "rcf3", "river HalfSpaceTrees": "river"}


def test_all_detectors_are_tested():
    assert {*MODULES, nab.CHANCE} == set(DETECTORS)


@pytest.mark.parametrize("detector", MODULES)
def test_detectors_do_not_know_the_future(detector):
    pytest.importorskip(MODULES[detector])
    run, (variant, *_), *_ = DETECTORS[detector]
    setting = Setting(detector, variant, shingle=3, window=32, trees=5)
    values = noise(300)
    other = np.append(values[:200], 50.0 * noise(100, seed=1))
    scores = run(shingles(values, 3), setting)
    assert len(scores) == 300
    np.testing.assert_array_equal(run(shingles(other, 3), setting)[:200], scores[:200])


@pytest.mark.parametrize("detector", MODULES)
def test_anomalies_score_high(detector):
    pytest.importorskip(MODULES[detector])
    values = np.append(noise(300) + 10 * np.sin(np.arange(300)), 40.0)
    for variant in DETECTORS[detector].variants:
        scores = DETECTORS[detector].run(shingles(values, 1), Setting(detector, variant, window=64, trees=20))
        assert scores[-1] > np.quantile(scores[150:-1], 0.95), variant


def test_relative_log_mass_is_relative_to_an_average_point():
    values = noise(300)[:, None]
    plain, relative = (
        nab.ours(values, Setting(OURS, variant, window=100, trees=5)) for variant in ("log mass", "relative log mass")
    )
    n_held = [1, 1, 2, 99, 100, 100]  # nothing is held yet when the first point comes
    np.testing.assert_allclose((plain - relative)[[0, 1, 2, 99, 100, 299]], np.log(n_held))


# ---- the whole ------------------------------------------------------------------------------------------------------


def test_halves_take_turns_within_a_folder():
    assert halves(["b/2", "a/1", "b/1", "a/3", "a/2"]) == {"tuning": ["a/1", "a/3", "b/1"], "reported": ["a/2", "b/2"]}


def test_the_best_trial_is_chosen_and_the_best_with_raw_scores():
    trials = [
        Trial(Setting("d", "v", shingle), processing, score)
        for shingle, processing, score in [(1, nab.RAW, 3.0), (4, nab.RAW, 5.0), (4, Processing("tail", 100), 4.0)]
    ]
    assert choices(trials) == {"raw": trials[1], "processed": trials[1]}
    better = Trial(Setting("d", "v", 1), Processing("tail"), 9.0)
    assert choices([*trials, better]) == {"raw": trials[1], "processed": better}


def made(name, seed, places):
    """A noisy wave with spikes in the middle of windows."""
    value = np.sin(np.arange(600) / 7) + 0.1 * noise(600, seed)
    value[places] += 6.0
    label = labelled(600, *((place - 10, place + 10) for place in places))
    return nab.Series(name, 1_400_000_000 + 300 * np.arange(600), value, label.astype(np.int8))


@pytest.fixture
def small(monkeypatch):
    """A small grid, two seeds and the two series to be pictured."""
    monkeypatch.setitem(DETECTORS, OURS, DETECTORS[OURS]._replace(shingles=(1,), windows=(128,)))
    monkeypatch.setattr(nab, "PICTURED", ("made/a", "made/b"))
    return [made("made/a", 1, [200, 400]), made("made/b", 2, [300])]


def run(series, directory):
    bench = Bench(series, directory / "cache", directory)
    bench.tune(OURS)
    for seed in (0, 1):
        bench.report(OURS, seed)
    return bench


def test_end_to_end(small, tmp_path):
    bench = run(small, tmp_path)
    totals = read(tmp_path / "nab.csv")
    assert len(totals) == 2 * len(PROFILES) * 3 * 2  # raw and processed, profiles, halves and both, seeds
    assert all(0 < float(row["score"]) <= 100 for row in totals)
    found = [float(row["score"]) for row in totals if row["scores"] == "processed" and row["half"] == "all"]
    assert min(found) > 60  # a spike in the middle of its window is worth 0.85 of a full detection
    assert all(float(row["carried"]) <= float(row["score"]) + 1e-3 for row in totals)
    by_series = read(tmp_path / "nab-series.csv")
    assert {(row["series"], row["half"], row["windows"]) for row in by_series} == {
        ("made/a", "tuning", "2"),
        ("made/b", "reported", "1"),
    }
    assert all(row["found"] == row["windows"] for row in by_series)

    page = tmp_path / "nab.md"
    page.write_text(
        "".join(f"<!-- begin {b} -->\n<!-- end {b} -->\n" for b in ("processed", "raw", "choices", "series"))
    )
    nab.render(tmp_path, tmp_path)
    assert page.read_text().count(f"| {OURS} |") == 5
    nab.draw(bench, tmp_path / "nab.png")
    assert (tmp_path / "nab.png").stat().st_size > 10_000


def test_a_run_resumes_where_it_was_interrupted(small, tmp_path, monkeypatch):
    run(small, tmp_path)
    files = {file: file.read_text() for file in tmp_path.glob("*.csv")}
    lines = files[tmp_path / "nab.csv"].splitlines(keepends=True)
    (tmp_path / "nab.csv").write_text("".join(lines[:-2]))  # stopped before the last two rows were written

    def refuse(rows, setting):
        raise AssertionError("what is in the cache need not be scored again")

    monkeypatch.setitem(DETECTORS, OURS, DETECTORS[OURS]._replace(run=refuse))
    run(small, tmp_path)
    assert {file: file.read_text() for file in tmp_path.glob("*.csv")} == files
