"""Numbers at the ends of what is measured: whatever finite values come, scores, masses and times are finite."""

import os
import subprocess
import sys

import numpy as np
import pytest
from forests import made

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Tree
from polyaforest.tables.validation import LARGEST, SMALLEST


@pytest.mark.parametrize("value", [0.1, SMALLEST, LARGEST])
@pytest.mark.parametrize("n", [5, 6, 7])
def test_rounding_does_not_give_a_constant_column_a_spread(value, n):
    forest = StreamingMPF(n_estimators=5, random_state=0).fit(np.full((n, 1), value))
    assert (forest.forest_.weights[:, 0] * value < 100).all()


def test_density_outside_is_finite_for_extreme_side_ratios():
    rows = [[0.0, 0.0], [0.0, 0.0], [9e8, SMALLEST]]
    forest = StreamingMPF(n_estimators=2, max_samples=None, tree=Tree(feature_weights=None), random_state=0).fit(rows)
    assert np.isfinite(forest.log_density([[1e9, 0.0]])).all()


def test_mass_at_time_zero_is_total_at_largest_distance():
    rows = np.random.default_rng(0).normal(size=(20, 1)) * SMALLEST * 100
    forest = StreamingMPF(n_estimators=3, random_state=0).fit(rows)
    assert forest.mass([[LARGEST]], lifetime=0.0) == pytest.approx(1, abs=0.01)


def test_tiny_gap_still_has_mass():
    forest = StreamingMPF(n_estimators=30, max_samples=None, tree=Tree(feature_weights=[1.0, 1.0]), random_state=0)
    forest.fit([[0.0, 0.0], [1e-30, 1.0], [LARGEST, 0.5], [2e-30, 0.7]])
    assert (forest.tree_masses([[0.5e-30, 0.5]]) > 0).all()


@pytest.mark.parametrize("value", [1e-310, 5e-324, 1e-308, 1e-200])
@pytest.mark.parametrize("detector", [StreamingMPF, lambda **given: SeriesMPF(made(StreamingMPF, **given), shingle=1)])
def test_young_stream_treats_tiny_values_as_zero(value, detector):
    rows = np.array([[0.0], [value], [1.0], [-value], [2.0]])
    given, plain = detector(random_state=0), detector(random_state=0)
    scores = given.score_then_learn(rows)
    assert np.isfinite(scores).all()
    assert np.array_equal(scores, plain.score_then_learn(np.where(np.abs(rows) < 1, 0.0, rows)))
    assert rows[1, 0] == value  # the caller's array is left alone


def test_values_of_all_sizes_in_one_stream_have_finite_scores():
    rows = np.geomspace(SMALLEST, LARGEST, 600)[:, None]
    for score in ("typicality", "multiscale", "mass", "log_mass"):
        forest = StreamingMPF(n_estimators=10, window=300, score_type=score, random_state=0)
        assert np.isfinite(forest.score_then_learn(rows)).all()
        assert np.isfinite(forest.score_samples(rows)).all()
        assert np.isfinite(forest.forest_.weights).all()


@pytest.mark.parametrize("weights", [[SMALLEST / 2, 1.0], [LARGEST * 2, 1.0], [-1.0, 1.0]])
def test_rejects_weights_that_would_overflow(weights):
    with pytest.raises(ValueError, match=r"feature_weights\[0\]"):
        StreamingMPF(tree=Tree(feature_weights=weights)).fit([[0.0, 1.0], [1.0, 0.0]])


def _extreme_values(rng, shape):
    """Values drawn where floats are at their ends: special ones, all sizes at once, sizes by column, adjacent ones."""
    special = [0.0, SMALLEST, -SMALLEST, 1.0, 1 + 2**-52, 1e50, LARGEST, -LARGEST, 1e-310, SMALLEST * (1 + 2**-52)]
    kind = rng.integers(4)
    if kind == 0:
        return rng.choice(special, size=shape)
    if kind == 1:
        return 10.0 ** rng.uniform(-100, 100, size=shape) * rng.choice([-1, 1], size=shape)
    if kind == 2:
        return rng.normal(size=shape) * 10.0 ** rng.uniform(-98, 98, size=shape[1])
    return 10.0 ** rng.uniform(-100, 99, size=shape[1]) * (1 + rng.integers(0, 3, size=shape) * 2**-52)


def _extreme_forest(rng, seed):
    """A detector with parameters that may be at their ends, too, which has learned extreme values."""
    rows = _extreme_values(rng, (int(rng.integers(1, 40)), int(rng.choice([1, 2, 3, 6, 40]))))
    given = {"n_estimators": 4, "random_state": seed, "missing": "marginalise"}
    given["score_type"] = str(rng.choice(["typicality", "multiscale", "mass", "log_mass"]))
    ends = {
        "feature_weights": 10.0 ** rng.uniform(-100, 100, size=rows.shape[1]),
        "prior_strength": 10.0 ** rng.uniform(-100, 100),
        "lifetime": 10.0 ** rng.uniform(-100, 100),
        "max_depth": int(rng.integers(0, 6)),
    }
    given |= {name: value for name, value in ends.items() if rng.random() < 0.3}
    kind = rng.integers(3)
    if kind == 0:
        return made(BatchMPF, **given).fit(rows), rows
    forest = made(StreamingMPF, max_samples=None if rng.random() < 0.3 else "auto", **given)
    if kind == 1:
        return forest.fit(rows), rows
    forest.set_params(window=int(rng.choice([4, 16, 256])))
    judged = forest.detect_then_learn(rows)
    assert np.isfinite(judged.scores).all()
    assert np.isfinite(judged.p_values).all()
    assert not np.isnan(judged.thresholds).any()
    return forest, rows


@pytest.mark.parametrize("seed", range(24))
def test_results_for_extreme_values_are_finite(seed):
    rng = np.random.default_rng(seed)
    forest, rows = _extreme_forest(rng, seed)
    asked = np.concatenate([rows[:5], _extreme_values(rng, (10, rows.shape[1]))])
    times = [forest.forest_.time[t, :n][forest.forest_.feature[t, :n] >= 0] for t, n in enumerate(forest.forest_.size)]
    explained = forest.explain(asked[:8])
    said = {
        "scores": forest.score_samples(asked),
        "mass": forest.mass(asked),
        "tree masses": forest.tree_masses(asked),
        "density": forest.log_density(asked),
        "intervals": forest.credible_interval(asked[:4]),
        "moments": np.stack(forest.mass(asked[:4], return_std=True)),
        "times": np.concatenate(times),
        "weights": forest.forest_.weights,
        "lifetimes": forest.lifetimes_,
        "surprise": explained.surprise,
        "bits": explained.parts,
    }
    if rows.shape[1] > 1:
        gaps = np.where(rng.random(asked.shape) < 0.4, np.nan, asked)
        said |= {"scores with gaps": forest.score_samples(gaps), "imputed": forest.impute(gaps)}
    for name, numbers in said.items():
        assert np.isfinite(numbers).all(), name
    assert all(str(explanation) for explanation in explained)


def test_credible_intervals_of_mixed_trees_stay_within_their_arrays():
    """Functions of SciPy with a mask over two axes have written beyond the end of their results."""
    script = """
import numpy as np
from polyaforest.forest.credible import Masses, interval
means = -np.random.default_rng(0).gamma(2, 60, size=(64, 7))
for _ in range(200):
    assert np.isfinite(interval(Masses(means, np.full(means.shape, 0.1), np.zeros(means.shape)), 0.9)).all()
    scrap = [np.empty(n) for n in range(1, 40)]
"""
    checked = {**os.environ, "MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}  # so that a torn heap is noticed
    done = subprocess.run([sys.executable, "-c", script], env=checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_tiny_false_alarm_rate_requires_more_rows():
    with pytest.raises(ValueError, match="needs at least"):
        StreamingMPF(n_estimators=3, false_alarm_rate=5e-324, random_state=0).fit(np.eye(30)).predict(np.eye(30))
