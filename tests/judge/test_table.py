"""Detection in tables, without reading a file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest.forest.point_store import keys_named, point_keys
from polyaforest.io.tables import BadInput, TableChunk, TableColumns
from polyaforest.judge import table
from polyaforest.judge.table import DetectorSettings, TableDetector, check_order, places_by_partition

NOON = 1_714_564_800.0  # 2024-05-01 12:00 UTC


def chunk_of(rows, *, keys=None):
    rows = np.asarray(rows, np.float64)
    return TableChunk(rows, np.arange(1, 1 + len(rows)), None, keys, None)


@pytest.mark.parametrize("n_odd", [0, 1, 40, 180])
def test_threshold_finds_many_anomalies_as_well_as_few(n_odd):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2000, 3))
    rows[:n_odd] = rng.normal(9.0, 1.0, size=(n_odd, 3))
    judged = TableDetector(chunk_of(rows), TableColumns(["a", "b", "c"]), DetectorSettings()).detect()
    assert judged.is_anomaly[:n_odd].all()
    assert judged.is_anomaly[n_odd:].sum() <= 4


def test_small_counts_are_not_flagged():
    rows = np.random.default_rng(2).poisson(0.3, size=(3000, 3))
    judged = TableDetector(chunk_of(rows), TableColumns(["a", "b", "c"]), DetectorSettings()).detect()
    assert judged.is_anomaly.mean() < 0.02


def test_too_few_rows_are_rejected_or_reported():
    names, rows = ["a"], np.arange(30.0)[:, None]
    with pytest.raises(BadInput, match="only 1 row; at least 8 are needed to learn what is normal"):
        TableDetector(chunk_of([[1.0]]), TableColumns(names), DetectorSettings()).detect()
    with pytest.raises(BadInput, match=r"at least 100 are needed for a false alarm rate of 0.01"):
        TableDetector(chunk_of(rows), TableColumns(names), DetectorSettings(false_alarm_rate=0.01)).detect()
    with pytest.raises(BadInput, match="all 5 partitions have fewer than the 8 rows"):
        TableDetector(chunk_of(rows, keys=[*"abcde"] * 6), TableColumns(names), DetectorSettings()).detect()
    with pytest.raises(BadInput, match=r"30 different values in 30 rows.*--id"):
        TableDetector(
            chunk_of(rows, keys=[str(i) for i in range(30)]), TableColumns(names), DetectorSettings()
        ).detect()
    judge = TableDetector(chunk_of(rows, keys=["a"] * 25 + ["b"] * 5), TableColumns(names), DetectorSettings())
    assert np.isnan(judge.detect().scores).tolist() == [False] * 25 + [True] * 5
    assert judge.too_small == {"b": 5}


def test_explanations_are_equal_when_detectors_are_fitted_again(monkeypatch):
    rng = np.random.default_rng(5)
    rows, keys = rng.normal(size=(90, 2)), ["a", "b", "c"] * 30
    rows[[40, 80]] = 30.0
    words = []
    for most in (9, 1):
        monkeypatch.setattr(table, "_MOST_DETECTORS", most)
        judge = TableDetector(chunk_of(rows, keys=keys), TableColumns(["x", "y"]), DetectorSettings())
        assert np.flatnonzero(judge.detect().is_anomaly).tolist() == [40, 80]
        assert sum(detector is not None for _, detector in judge._fitted) == min(most, 3)
        words.append({place: str(explanation) for place, explanation in judge.explain([40, 80]).items()})
    assert words[0] == words[1]


# ---- keys and order --------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("abcd"), max_size=40))
def test_places_by_partition_are_in_order(keys):
    places = places_by_partition(keys, len(keys))
    assert {key: part.tolist() for key, part in places.items()} == {
        key: [i for i, other in enumerate(keys) if other == key] for key in dict.fromkeys(keys)
    }
    assert places_by_partition(None, 3)[""].tolist() == [0, 1, 2]


@given(st.lists(st.lists(st.text("ab", max_size=2), max_size=8), max_size=4))
def test_point_keys_are_unique_and_found_by_name(chunks):
    held: list[int | str] = [7]
    for names in chunks:
        held += point_keys(names, held.__contains__, n_before=len(held))
    names = [name for chunk in chunks for name in chunk]
    assert len(set(held)) == len(held)
    for name in set(names):
        assert keys_named(name, held) == [key for key, other in zip(held[1:], names, strict=True) if other == name]
    assert keys_named("7", held) == [7]


def test_point_keys_reject_names_with_the_separator():
    with pytest.raises(ValueError, match="control character"):
        point_keys(["a\x1f2"])


def test_check_order_names_the_row_out_of_order():
    check_order(np.array([NOON, NOON, NOON + 60]), np.array([4, 5, 6]))
    with pytest.raises(BadInput, match=r"row 6 is from 2024-05-01 12:00, .* from 2024-05-01 12:01: .*Sort"):
        check_order(np.array([NOON, NOON + 60, NOON]), np.array([4, 5, 6]))
    with pytest.raises(BadInput, match="row 4"):
        check_order(np.array([NOON]), np.array([4]), latest=NOON + 60)
