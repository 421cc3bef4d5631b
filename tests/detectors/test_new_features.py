"""Features added to a stream, and consistent reading of several results."""

import threading

import numpy as np
import pandas as pd
import pytest

from polyaforest import BatchMPF, Reservoir, StreamingMPF, Tree

ROWS = np.random.default_rng(0).normal(size=(300, 3))
SMALL = {"n_estimators": 4, "random_state": 0}


@pytest.mark.parametrize("settings", [{"window": 50}, {"window": Reservoir(40)}, {"tree": Tree(feature_weights=None)}])
def test_new_columns_have_given_value_for_all_points(settings, tmp_path):
    forest = StreamingMPF(**SMALL, **settings).partial_fit(ROWS)
    before, keys = forest.points_, forest.keys_
    assert forest.add_features([7.0, 1e-200]) is forest
    assert forest.n_features_in_ == 5
    assert forest.keys_ == keys
    np.testing.assert_array_equal(forest.points_, np.hstack([before, np.tile([7.0, 0.0], (len(before), 1))]))
    wider = np.hstack([ROWS, np.random.default_rng(1).normal([7, 0], size=(300, 2))])
    forest.partial_fit(wider)
    forest.save(tmp_path / "model")
    back = StreamingMPF.load(tmp_path / "model")
    np.testing.assert_array_equal(back.score_then_learn(wider), forest.score_then_learn(wider))


def test_flags_extreme_value_in_new_column():
    forest = StreamingMPF(random_state=0).fit(ROWS).add_features(0.0)
    forest.detect_then_learn(np.hstack([ROWS, ROWS[:, :1] + ROWS[:, 1:2]])).is_anomaly.mean()
    np.testing.assert_array_equal(forest.rebuild().predict([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 90.0]]), [1, -1])


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf], [1e101], [[1.0]]])
def test_rejects_columns_without_finite_value(values):
    forest = StreamingMPF(**SMALL).fit(ROWS)
    with pytest.raises(ValueError, match="one finite number for each new feature"):
        forest.add_features(values)
    assert forest.n_features_in_ == 3


def test_failed_addition_of_columns_changes_nothing():
    bounds = [np.full(3, -9.0), np.full(3, 9.0)]
    by_column = [
        StreamingMPF(**SMALL, tree=Tree(domain=bounds)).fit(ROWS),
        StreamingMPF(**SMALL, tree=Tree(feature_weights=[1.0, 2.0, 3.0])).fit(ROWS),
        StreamingMPF(**SMALL).fit(pd.DataFrame(ROWS, columns=["a", "b", "c"])),
    ]
    for forest in by_column:
        with pytest.raises(ValueError, match="cannot add features to"):
            forest.add_features([1.0])
        assert forest.n_features_in_ == 3
    summary = StreamingMPF(**SMALL, window=None, tree=Tree(max_depth=4)).fit(ROWS)
    with pytest.raises(ValueError, match="holds no points"):
        summary.add_features([1.0])


def test_keeps_points_is_reported():
    assert StreamingMPF(**SMALL).fit(ROWS).keeps_points_
    summary = StreamingMPF(**SMALL, window=None, tree=Tree(max_depth=4)).partial_fit(ROWS[:255])
    assert summary.keeps_points_
    assert not summary.partial_fit(ROWS[255:]).keeps_points_


@pytest.mark.parametrize("kind", [StreamingMPF, BatchMPF])
def test_reading_blocks_concurrent_changes(kind):
    forest = kind(**SMALL).fit(ROWS)
    change = threading.Thread(target=lambda: forest.fit(ROWS + 5.0))
    with forest.reading():
        offset, before = forest.offset_, forest.score_samples(ROWS)
        change.start()
        change.join(0.5)
        assert change.is_alive()
        np.testing.assert_array_equal(forest.score_samples(ROWS), before)
        np.testing.assert_array_equal(forest.predict(ROWS) == -1, before < offset)
    change.join()
    assert (forest.score_samples(ROWS) != before).any()
