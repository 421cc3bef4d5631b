"""P-values, and thresholds that mean a rate of false alarms."""

import copy

import numpy as np
import pytest
from effort import mostly_slow
from forests import made, some_trees, with_trees
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest import load as load_model
from polyaforest.cli._info import threshold_of
from polyaforest.forest.calibration import (
    as_beyond,
    beyond_others,
    boxes_without,
    out_of_bag_weights,
    some_rows,
)
from polyaforest.forest.score import left_out_scores
from polyaforest.forest.spec import spread_of
from polyaforest.forest.survey import ColumnBounds
from polyaforest.forest.thresholds import conformal_p_values

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(60, 2))
NEW = np.vstack([RNG.normal(size=(20, 2)), [[9.0, 9.0], [0.0, 40.0]]])
SCORES = ["typicality", "multiscale", "mass", "log_mass"]
FORESTS = {
    "table": StreamingMPF,
    "table of all rows": lambda **parameters: made(
        StreamingMPF, max_samples=None, tree=Tree(max_depth=5), **parameters
    ),
    "window": lambda **parameters: made(StreamingMPF, window=60, **parameters),
    "summary": lambda **parameters: made(StreamingMPF, window=None, tree=Tree(max_depth=5), **parameters),
    "batch": lambda **parameters: made(BatchMPF, tree=Tree(max_depth=5), **parameters),
    "batch, domain": lambda **parameters: made(
        BatchMPF, tree=Tree(max_depth=5, domain=[[-2.0, -2.0], [2.0, 2.0]]), **parameters
    ),
}


def calibration(forest):
    return forest._score.from_log(forest._calibration_scores())


def build(kind, **parameters):
    return FORESTS[kind](**{"n_estimators": 12, "random_state": 0} | parameters)


# ---- rows as if they had not been learned ---------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("domain", [None, [[-2.0, -2.0], [2.0, 2.0]]])
def test_batch_calibrates_rows_left_out(score, domain):
    forest = BatchMPF(n_estimators=5, tree=Tree(max_depth=5, domain=domain), score_type=score, random_state=0).fit(ROWS)
    low, high = ROWS.min(axis=0), ROWS.max(axis=0)
    for row, score_of_row in zip(ROWS, calibration(forest), strict=True):
        is_edge = domain is None and ((row == low) | (row == high)).any()
        is_outside = domain is not None and (np.abs(row) > 2).any()
        if not is_edge and not is_outside:
            removed = copy.deepcopy(forest).delete_rows(row[None])
            assert_allclose(score_of_row, removed.score_samples(row[None])[0], rtol=1e-9)


def test_row_on_edge_of_domain_is_calibrated_as_outside():
    rows = np.vstack([ROWS, [[5.0, 0.0]]])
    forest = BatchMPF(n_estimators=20, tree=Tree(max_depth=6), random_state=0).fit(rows)
    length = np.ptp(rows[:, 0]) / np.ptp(ROWS[:, 0])  # of the domain, by which features are weighed
    beyond = rows[-1] + [length * (5.0 - ROWS[:, 0].max()), 0.0]
    assert_allclose(calibration(forest)[-1], forest.score_samples(beyond[None])[0])
    assert calibration(forest)[-1] < forest.score_samples(rows[-1:])[0]


def test_boxes_without_each_row_and_rows_moved_beyond():
    rows = np.array([[0.0, 5.0], [1.0, 5.0], [4.0, 7.0], [9.0, 2.0]])
    facts = ColumnBounds.of(rows, np.arange(4))
    low, high = boxes_without(rows[[0, 3]], facts.lowest, facts.highest)
    assert_array_equal(low, [[1.0, 2.0], [0.0, 5.0]])
    assert_array_equal(high, [[9.0, 7.0], [4.0, 7.0]])
    moved = as_beyond(rows[[0, 3]], np.stack([low, high]), np.array([[0.0, 2.0], [9.0, 7.0]]))
    assert_array_equal(moved, [[-1.0, 5.0], [14.0, -1.0]])
    domain, known = np.array([[0.0], [10.0]]), np.array([[[0.0], [2.0], [0.0]], [[5.0], [10.0], [0.0]]])
    moved = as_beyond(np.array([[10.0], [0.0], [10.0]]), known, domain, is_rescaled=True)
    assert_array_equal(moved, [[20.0], [-2.5], [20.0]])  # without other values, there is no length to compare with
    alone = ColumnBounds.of(np.array([[3.0], [np.nan]]), np.arange(2))  # there is no other value to be beyond
    assert_array_equal(boxes_without(np.array([[3.0]]), alone.lowest, alone.highest), np.full((2, 1, 1), 3.0))


def members(n_points, *samples):
    """Which of the points trees with these samples have learned, and the sizes of the samples."""
    return np.array([[i in sample for i in range(n_points)] for sample in samples]), np.array(list(map(len, samples)))


def test_out_of_bag_weights_exclude_own_trees_and_keep_sizes():
    weights = out_of_bag_weights(*members(7, [0], [1], [0, 1, 2], [3, 4, 5], [0, 4, 5]))
    assert_allclose(weights.sum(axis=0), 1.0)
    assert_allclose(weights[:, 0], [0, 2 / 5, 0, 3 / 5, 0])
    assert_allclose(weights[:, 2], [1 / 5, 1 / 5, 0, 3 / 10, 3 / 10])
    assert_allclose(weights[:, 6], 1 / 5)


def test_point_in_all_trees_has_no_weight():
    assert not out_of_bag_weights(*members(1, [0], [0])).any()


def test_weight_of_exhausted_size_goes_to_other_sizes():
    assert_array_equal(out_of_bag_weights(*members(3, [0, 1], [2]))[:, 0], [0.0, 1.0])


@pytest.mark.parametrize("score", SCORES)
def test_table_is_calibrated_out_of_bag(score):
    """Of trees that took one row of three each, two do not know a given row."""
    rows = np.array([[0.0], [1.0], [5.0]])
    forest = StreamingMPF(n_estimators=30, max_samples=1, score_type=score, random_state=0).fit(rows)
    taken = forest.forest_.lower[np.arange(30), forest.forest_.root, 0]
    placed = beyond_others(rows, rows)
    for row, other, found in zip(rows, placed, calibration(forest), strict=True):
        out_of_bag = np.flatnonzero(taken != row[0])
        alone = with_trees(copy.deepcopy(forest), some_trees(forest.forest_, out_of_bag))
        assert_allclose(found, alone.score_samples(other[None])[0], rtol=1e-9)


def test_extreme_value_is_as_far_from_others_as_by_weights_measured_without_it():
    rng = np.random.default_rng(0)
    points = rng.standard_cauchy((200, 2))
    points[:2, 1] = points[:, 1].max() + 1.0  # the same value twice is not alone
    placed = beyond_others(points, points)
    for k, i in ((0, points[:, 0].argmax()), (0, points[:, 0].argmin()), (1, points[:, 1].argmin())):
        others = np.delete(points[:, k], i)
        nearest = others[np.abs(others - points[i, k]).argmin()]
        by_all, by_others = (abs(points[i, k] - nearest) / spread_of(part[None])[0] for part in (points[:, k], others))
        assert abs(placed[i, k] - nearest) / spread_of(points[None, :, k])[0] == pytest.approx(by_others)
        assert by_others > by_all
    assert (placed != points).sum() == 3
    assert_array_equal(beyond_others(points[5:6], points), placed[5:6])
    assert_array_equal(beyond_others(points[:1], points[:1]), points[:1])
    assert_array_equal(beyond_others(points, points, 2), points)  # categories


def test_given_weights_do_not_move_calibration_rows():
    rows = np.random.default_rng(0).standard_cauchy((300, 2))
    forest = StreamingMPF(n_estimators=5, tree=Tree(feature_weights=[1.0, 2.0]), random_state=0).fit(rows)
    assert forest._stream.as_left_out(rows) is rows
    assert (StreamingMPF(n_estimators=5, random_state=0).fit(rows)._stream.as_left_out(rows) != rows).sum() == 4


def test_point_left_out_one_by_one_is_placed_by_weights_without_it():
    """The last row is extreme: moved, it is scored as a new row by a forest that never held it."""
    rows = np.vstack([ROWS, [[30.0, 30.0]]])
    weights = {"n_estimators": 5, "max_samples": None, "window": len(rows), "random_state": 0}
    forest = StreamingMPF(**weights).fit(rows)
    scores, arrivals = forest._stream.left_out_scores(None, np.array([len(ROWS)], np.int32))
    rest = copy.deepcopy(forest)
    rest.delete(len(ROWS))
    placed = beyond_others(rows, rows)[-1:]
    assert (placed > 30).all()
    expected = rest.score_samples(placed) - rest._stream.penalties.subtract(np.zeros(1), placed)
    expected += forest._stream.penalties.subtract(np.zeros(1), rows[-1:])
    assert_array_equal(arrivals, [len(ROWS)])
    assert_allclose(scores, expected, rtol=1e-9)


def test_some_rows_returns_all_or_fixed_subset():
    assert_array_equal(some_rows(5, 9), np.arange(5))
    chosen = some_rows(1000, 50)
    assert len(np.unique(chosen)) == 50
    assert_array_equal(chosen, some_rows(1000, 50))


# ---- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORESTS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_row_is_flagged_iff_p_value_is_at_most_rate(kind, score, rate):
    forest = build(kind, score_type=score, false_alarm_rate=rate).fit(ROWS)
    p_values = forest.p_value(NEW)
    assert_array_equal(forest.predict(NEW) == -1, p_values <= rate)
    assert_array_equal(forest.decision_function(NEW) < 0, p_values <= rate)
    assert (p_values > 0).all()
    assert (p_values <= 1).all()


@pytest.mark.parametrize("kind", FORESTS)
def test_p_values_do_not_need_rate(kind):
    forest = build(kind).fit(ROWS)
    p_values = forest.p_value(NEW)
    assert p_values[-2:].max() < 0.1 < np.median(p_values[:-2])
    assert_array_equal(p_values, conformal_p_values(forest.score_samples(NEW), calibration(forest)))


@pytest.mark.parametrize("kind", FORESTS)
def test_too_few_rows_for_rate_raise_with_required_number(kind):
    forest = build(kind, false_alarm_rate=0.001)
    with pytest.raises(ValueError, match=r"false alarm rate of 0.001 needs at least 999 calibration scores"):
        forest.fit(ROWS).predict(NEW)


def test_failed_fit_changes_nothing():
    forest = build("table").fit(ROWS)
    before = forest.score_samples(NEW)
    with pytest.raises(ValueError, match="needs at least"):
        forest.set_params(false_alarm_rate=1e-6).fit(ROWS[:10])
    assert_array_equal(forest.score_samples(NEW), before)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, "much"])
@pytest.mark.parametrize("kind", ["table", "batch"])
def test_rate_must_be_between_0_and_1(kind, rate):
    with pytest.raises(ValueError, match="false_alarm_rate"):
        build(kind, false_alarm_rate=rate).fit(ROWS)
    with pytest.raises((ValueError, TypeError), match="rate"):
        build(kind).fit(ROWS).predict_fdr(NEW, rate=rate)


@pytest.mark.parametrize("kind", FORESTS)
def test_contamination_and_rate_exclude_each_other(kind):
    with pytest.raises(ValueError, match=r"contamination=0.1 and false_alarm_rate=0.05"):
        build(kind, contamination=0.1, false_alarm_rate=0.05).fit(ROWS)


def test_p_value_of_unfitted_forest_raises():
    with pytest.raises(NotFittedError):
        StreamingMPF().p_value(NEW)


@pytest.mark.parametrize("kind", [kind for kind in FORESTS if kind != "window"])
def test_p_values_survive_file(kind, tmp_path):
    forest = build(kind, false_alarm_rate=0.1).fit(ROWS)
    forest.save(tmp_path / "forest.mpf")
    assert_array_equal(load_model(tmp_path / "forest.mpf").p_value(NEW), forest.p_value(NEW))


def test_predict_fdr_flags_fewer_rows_than_small_p_values():
    forest = StreamingMPF(n_estimators=20, random_state=0).fit(np.random.default_rng(1).normal(size=(400, 2)))
    rows = np.vstack([np.random.default_rng(2).normal(size=(200, 2)), np.full((10, 2), 8.0)])
    found = forest.predict_fdr(rows, rate=0.1)
    assert (found[-10:] == -1).all()
    assert (found == -1).sum() <= (forest.p_value(rows) <= 0.1).sum()


# ---- streams --------------------------------------------------------------------------------------------------------


def test_p_values_of_stream_follow_points_held():
    forest = StreamingMPF(n_estimators=12, window=60, random_state=0).fit(ROWS)
    before = forest.p_value(NEW)
    forest.partial_fit(ROWS + 9.0)
    assert forest.p_value(NEW)[-2] > before[-2]
    forest.delete(forest.keys_)
    with pytest.raises(ValueError, match="holds no points"):
        forest.p_value(NEW)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_running_p_values_compare_with_earlier_scores_in_any_chunks(size):
    forest, twin = (StreamingMPF(n_estimators=5, window=20, random_state=0) for _ in range(2))
    scores = twin.score_then_learn(ROWS)
    expected = [(1 + (scores[:i] <= scores[i]).sum()) / (i + 1) for i in range(len(ROWS))]
    parts = [forest.detect_then_learn(ROWS[start : start + size]).p_values for start in range(0, 60, size)]
    assert_allclose(np.concatenate(parts), expected)


def test_running_p_values_compare_with_last_scores_that_rate_needs():
    for rate, n in ((None, 1000), (0.05, 1000), (0.001, 10_000)):
        forest = StreamingMPF(n_estimators=1, window=5, false_alarm_rate=rate, random_state=0).partial_fit(ROWS[:5])
        assert forest._stream.calibration.n == n


def test_score_of_deleted_point_is_removed(tmp_path):
    forest = StreamingMPF(n_estimators=5, window=20, random_state=0)
    forest.detect_then_learn(ROWS[:20])
    assert len(forest._stream.calibration) == 20
    forest.delete([3, 17])
    assert_array_equal(forest._stream.calibration.arrivals, np.delete(np.arange(20), [3, 17]))
    forest.save(tmp_path / "stream.mpf")
    loaded = load_model(tmp_path / "stream.mpf")
    assert_array_equal(loaded.detect_then_learn(ROWS[20:]).p_values, forest.detect_then_learn(ROWS[20:]).p_values)


def test_first_detected_row_is_compared_with_points_held():
    forest = StreamingMPF(n_estimators=5, window=20, random_state=0)
    forest.score_then_learn(ROWS[:30])
    expected = forest.p_value(ROWS[30:31])
    assert_array_equal(forest.detect_then_learn(ROWS[30:31]).p_values, expected)
    assert_array_equal(forest._stream.calibration.arrivals, [*range(10, 30), 30])


@pytest.mark.parametrize("score", SCORES)
def test_rows_outside_given_domain_are_calibrated_by_others(score):
    forest = BatchMPF(
        n_estimators=5, tree=Tree(max_depth=4, domain=[[-0.5, -0.5], [0.5, 0.5]]), score_type=score, random_state=0
    ).fit(ROWS)
    is_outside = (np.abs(ROWS) > 0.5).any(axis=1)
    assert 0 < is_outside.sum() < len(ROWS)
    first = np.flatnonzero(is_outside)[::2]  # they are counted out by halves
    removed = copy.deepcopy(forest).delete_rows(ROWS[first])
    assert_allclose(calibration(forest)[first], removed.score_samples(ROWS[first]))
    assert np.isfinite(calibration(forest)).all()


def test_rows_outside_domain_are_left_out_of_outside_count():
    rows = np.vstack([ROWS / 10, [[5.0, 5.0]]])
    forest = BatchMPF(n_estimators=5, tree=Tree(max_depth=4, domain=[[-0.5, -0.5], [0.5, 0.5]]), random_state=0).fit(
        rows
    )
    removed = copy.deepcopy(forest).delete_rows(rows[-1:])
    assert_allclose(calibration(forest)[-1], removed.score_samples(rows[-1:])[0])


def test_incomplete_rows_of_batch_are_calibrated_like_new_rows():
    rng = np.random.default_rng(8)
    rows, new = (np.where(rng.uniform(size=(600, 3)) < 0.3, np.nan, rng.normal(size=(600, 3))) for _ in range(2))
    forest = BatchMPF(n_estimators=20, tree=Tree(max_depth=5), missing="marginalise", random_state=0).fit(rows)
    assert abs((forest.p_value(new) <= 0.3).mean() - 0.3) < 0.1


def test_row_on_edge_is_calibrated_up_to_lifetime_of_forest():
    rows = np.vstack([ROWS, [[30.0, 30.0]]])
    forest = BatchMPF(
        n_estimators=10, tree=Tree(lifetime=3.0, max_depth=8), score_type="typicality", random_state=0
    ).fit(rows)
    within = left_out_scores(
        "typicality", forest.forest_, forest.posterior_, forest.prior_, rows[-1:], forest.lifetimes_, None
    )
    lengths = np.ptp(rows, axis=0) / np.ptp(ROWS, axis=0)  # of the domain, by which features are weighed
    distance = (forest.forest_.weights @ (lengths * (30.0 - ROWS.max(axis=0)))).mean()
    endured = np.minimum(forest.lifetimes_, 3.0).mean()
    assert_allclose(calibration(forest)[-1], within[0] - endured * distance)


def test_batch_recalibrates_after_many_new_rows_only():
    forest = BatchMPF(
        n_estimators=5, tree=Tree(max_depth=5, domain=[[-9] * 2, [9] * 2]), false_alarm_rate=0.1, random_state=0
    )
    forest.fit(ROWS)
    first, threshold = calibration(forest), forest.offset_
    forest.partial_fit(ROWS[:5])
    assert_array_equal(calibration(forest), first)
    forest.partial_fit(np.random.default_rng(3).normal(size=(150, 2)))
    assert len(calibration(forest)) == 150
    assert forest.offset_ != threshold
    assert_array_equal(forest.predict(NEW) == -1, forest.p_value(NEW) <= 0.1)


@pytest.mark.parametrize("change", ["delete_rows", "merge"])
def test_changed_batch_has_no_p_values_until_recalibrated(change):
    forest = BatchMPF(n_estimators=5, tree=Tree(max_depth=5, domain=[[-9] * 2, [9] * 2]), random_state=0).fit(ROWS)
    other = copy.deepcopy(forest)
    forest.delete_rows(ROWS[:1])
    if change == "merge":  # with a forest that knows rows to compare with, while this one does not
        forest.merge(other)
    with pytest.raises(ValueError, match=r"counts have changed, .* partial_fit with at least 100 rows"):
        forest.p_value(NEW)
    forest.predict(NEW)
    forest.partial_fit(np.random.default_rng(3).normal(size=(100, 2)))
    assert forest.p_value(NEW)[-1] < 0.1


def test_summary_with_unreachable_rate_can_be_saved(tmp_path):
    rows = np.random.default_rng(2).normal(size=(300, 2))
    forest = StreamingMPF(n_estimators=3, window=None, tree=Tree(max_depth=4), false_alarm_rate=0.001, random_state=0)
    forest.partial_fit(rows).save(tmp_path / "summary.mpf")
    loaded = load_model(tmp_path / "summary.mpf")
    for model in (forest, loaded):
        with pytest.raises(ValueError, match=r"needs at least 999 .* got 256: hold more points"):
            model.predict(NEW)
    assert_array_equal(loaded.p_value(NEW), forest.p_value(NEW))


def test_batch_with_unreachable_rate_raises_and_can_be_saved(tmp_path):
    rows = np.random.default_rng(2).normal(size=(1200, 2))
    forest = BatchMPF(n_estimators=3, tree=Tree(max_depth=4), false_alarm_rate=0.001, random_state=0).fit(rows)
    assert forest.predict(NEW)[-1] == -1
    forest.partial_fit(rows[:150])  # which recalibrate it
    forest.save(tmp_path / "batch.mpf")
    loaded = load_model(tmp_path / "batch.mpf")
    for model in (forest, loaded, copy.deepcopy(forest)):
        for call in (model.predict, model.detect, model.decision_function, model.explain):
            with pytest.raises(ValueError, match=r"needs at least 999 .* got 150: fit more rows or set"):
                call(NEW)
        assert threshold_of(model) is None
    assert_array_equal(loaded.p_value(NEW), forest.p_value(NEW))
    assert loaded.partial_fit(rows).predict(NEW)[-1] == -1


def test_lower_rate_set_later_gets_more_calibration_scores():
    rows = np.random.default_rng(2).normal(size=(1200, 2))
    forest = StreamingMPF(n_estimators=2, window=1200, random_state=0).fit(rows)
    forest.p_value(NEW)
    forest.set_params(false_alarm_rate=0.001)
    assert forest.predict(NEW)[-1] == -1


def test_rate_may_be_any_float_type():
    forest = build("table", false_alarm_rate=np.float32(0.25)).fit(ROWS)
    assert_array_equal(forest.predict(NEW) == -1, forest.p_value(NEW) <= 0.25)


def test_far_rows_do_not_underflow_when_trees_are_averaged_first():
    rows = np.vstack([np.random.default_rng(4).normal(size=(300, 2)), [[1e4, 1e4]]])
    forest = StreamingMPF(
        n_estimators=30, score_type="multiscale", tree=Tree(feature_weights=None), random_state=0
    ).fit(rows)
    assert np.isfinite(calibration(forest)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_contamination_with_impossible_rows_has_threshold(n):
    forest = StreamingMPF(
        n_estimators=10, window=40, tree=Tree(domain="data"), score_type="log_mass", contamination=0.05, random_state=0
    ).partial_fit(ROWS[:n])
    assert not np.isnan(forest.offset_)
    assert (forest.predict(ROWS[:n]) == 1).any()


# ---- rates of p-values -----------------------------------------------------------------------------------------------


def with_categories(rng, n):
    kind = rng.choice(5, n, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    other = np.where(rng.random(n) < 0.1, rng.integers(0, 5, n), kind)
    return np.column_stack([rng.standard_cauchy((n, 2)), kind, other])


TABLES = {
    "cauchy": lambda rng, n: rng.standard_cauchy((n, 5)),
    "student": lambda rng, n: rng.standard_t(3, (n, 10)),
    "ties": lambda rng, n: rng.standard_t(2, (n, 4)).round(),
    "categories": with_categories,
}


@pytest.mark.statistical
@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
@pytest.mark.parametrize("kind", mostly_slow(list(TABLES)))
def test_p_values_hold_in_the_far_tail(detector, kind):
    """Rates at 0.1, 0.01 and 0.002 over tables of 1,000 rows exceed these by at most four standard errors.

    With calibration rows among those that weigh the features, the last rate is half as large again (seeds are fixed).
    """
    rates, n_tables = [], 60
    for seed in range(n_tables):
        rng = np.random.default_rng(seed)
        rows, new = TABLES[kind](rng, 1000), TABLES[kind](rng, 2000)
        categorical = [2, 3] if kind == "categories" else None
        fitted = detector(n_estimators=60, random_state=seed, categorical_features=categorical).fit(rows)
        p_values = fitted.p_value(new)
        rates.append([(p_values <= alpha).mean() for alpha in (0.1, 0.01, 0.002)])
    error = np.std(rates, axis=0) / np.sqrt(n_tables)
    assert (np.mean(rates, axis=0) <= np.array([0.1, 0.01, 0.002]) + 4 * error).all()
    assert (np.mean(rates, axis=0) >= [0.09, 0.006, 0.0008]).all()  # nor far fewer
