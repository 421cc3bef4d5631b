"""Streams that start with missing values: learning, scoring, and when a late column counts."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from forests import made
from numpy.testing import assert_array_equal
from streams import assert_whole, bits

from polyaforest import EpsilonPhi, GroupedMPF, Reservoir, SeriesMPF, StreamingMPF, Window, load
from polyaforest.detectors import loads
from polyaforest.forest import learn, stream
from polyaforest.forest.stream_state import state_of
from polyaforest.service import outlook

NAN = np.nan
RNG = np.random.default_rng(0)
ROWS = RNG.normal([3.0, -1.0, 1e4], [1.0, 20.0, 500.0], size=(1500, 3))
POLICIES = ["impute", "marginalise"]


def build(**parameters):
    return made(StreamingMPF, **{"n_estimators": 20, "random_state": 0} | parameters)


def without(rows, k, first):
    """Return rows without the values of a column before row `first`."""
    late = rows.copy()
    late[:first, k] = NAN
    return late


@pytest.mark.parametrize("missing", POLICIES)
@pytest.mark.parametrize("method", ["partial_fit", "score_then_learn", "detect_then_learn"])
def test_stream_may_start_with_row_with_missing_values(method, missing):
    forest = build(missing=missing)
    getattr(forest, method)([[NAN, 2.0, NAN], [NAN, NAN, NAN], [1.0, 3.0, NAN], [2.0, NAN, 5.0]])
    assert forest.n_seen_ == forest.n_points_ == 4
    assert_array_equal(forest.points_[:, 2], [5.0] * 4)
    assert_whole(forest)


def test_stream_with_missing_error_still_rejects_gaps():
    with pytest.raises(ValueError, match="row 0, column 0 is missing"):
        build(missing="error").partial_fit([[NAN, 2.0]])


@pytest.mark.parametrize("missing", POLICIES)
def test_first_row_with_gaps_has_score_of_any_first_row(missing):
    complete, gappy, empty = (
        build(missing=missing).score_then_learn([row])[0] for row in ([1.0, 2.0], [NAN, 2.0], [NAN, NAN])
    )
    assert complete == gappy == empty


@pytest.mark.parametrize("missing", POLICIES)
def test_column_without_values_changes_no_score(missing):
    """A forest on the other columns, with the same trees, gives the same scores."""
    rows = without(ROWS[:600], 2, 600)
    forest = build(missing=missing, feature_weights=[1.0, 0.05, 7.0], window=100)
    found = forest.detect_then_learn(rows)
    other = build(missing=missing, feature_weights=[1.0, 0.05], window=100)
    expected = other.detect_then_learn(rows[:, :2])
    assert np.corrcoef(found.scores[100:], expected.scores[100:])[0, 1] > 0.95
    assert_array_equal(np.isnan(forest.points_), np.tile([False, False, True], (100, 1)))
    assert np.isnan(forest.impute(rows[:1])[0, 2])
    strange = rows[-1:].copy()
    strange[0, 2] = 1e9  # a value that nothing is known of
    assert forest.score_samples(strange) == forest.score_samples(rows[-1:])
    assert forest.mass(strange) == forest.mass(rows[-1:])


def test_column_without_values_uses_fast_path(monkeypatch):
    """No row is completed, and chunks keep their length."""
    chunks = []
    run_chunk = learn.run_chunk
    monkeypatch.setattr(learn, "run_chunk", lambda *args: chunks.append(len(args[2].rows)) or run_chunk(*args))
    build(window=100).score_then_learn(without(ROWS, 2, len(ROWS)))
    rows_of_late, chunks[:] = list(chunks), []
    build(window=100).score_then_learn(ROWS)
    assert rows_of_late == chunks


@pytest.mark.parametrize("missing", POLICIES)
def test_incomplete_rows_do_not_split_chunks(missing, monkeypatch):
    """With gaps in a tenth of the rows, the kernel is called only slightly more often."""
    n_calls = []
    run_chunk = learn.run_chunk
    monkeypatch.setattr(learn, "run_chunk", lambda *args: n_calls.append(1) or run_chunk(*args))
    rows = ROWS.copy()
    rows[1::10, 1] = NAN
    for table in (ROWS, rows):
        build(missing=missing).detect_then_learn(table)
        n_calls.append(0)
    none, some = (sum(part) for part in np.split(np.array(n_calls), np.flatnonzero(np.array(n_calls) == 0))[:2])
    assert none == some


@pytest.mark.parametrize("missing", POLICIES)
@pytest.mark.parametrize("first", [1, 40, 300, 1000])
def test_late_column_counts_after_256_rows_without_false_alarms(missing, first):
    rows = without(ROWS, 2, first)
    forest = build(missing=missing)
    found = forest.detect_then_learn(rows[: first + 255])
    strange = rows[first + 255 : first + 256].copy()
    strange[0, 2] = 1e9
    assert forest.score_samples(strange) == forest.score_samples(rows[first + 255 : first + 256])
    forest.partial_fit(rows[first + 255 : first + 256])
    assert forest.score_samples(strange) < forest.score_samples(rows[first + 256 : first + 257]) - 2
    rest = forest.detect_then_learn(rows[first + 256 :])
    flags = np.concatenate([found.is_anomaly, [False], rest.is_anomaly])
    assert flags[first : first + 400].sum() <= 4
    assert forest._stream.columns.are_known
    assert not forest._stream.origin


def test_late_column_is_weighed_by_its_own_scale():
    """After its first 256 rows, trees treat the column as in a stream that always had it."""
    late, always = (build(n_estimators=100).partial_fit(table) for table in (without(ROWS, 2, 900), ROWS))
    assert_array_equal(late.points_, ROWS[-256:])
    shares = [(one.forest_.feature == 2).sum() / (one.forest_.feature >= 0).sum() for one in (late, always)]
    assert shares[0] == pytest.approx(shares[1], abs=0.08)


def test_earlier_points_take_values_of_donors():
    rows = np.column_stack([np.tile([0.0, 100.0], 40), np.tile([5.0, 9.0], 40)]) + RNG.normal(0, 0.1, (80, 2))
    forest = build(window=100).partial_fit(without(rows, 1, 40))
    forest.rebuild()
    assert np.abs(forest.points_[:, 1] - rows[:, 1]).max() < 1


@pytest.mark.parametrize("policy", [Reservoir(50), 50, "auto"])
def test_memory_is_bounded_while_a_column_is_absent(policy):
    forest = build(window=policy, n_estimators=5)
    sizes = []
    for _ in range(4):
        forest.partial_fit(without(ROWS, 2, len(ROWS)))
        sizes.append(len(forest.to_bytes()) // 1000)
    assert max(sizes) <= 1.2 * sizes[0] + 1


def test_stream_restarts_after_all_points_are_deleted():
    forest = build(window=5).partial_fit(ROWS[:3])
    forest.delete(forest.keys_)
    forest.partial_fit([[NAN, 2.0, NAN]])
    assert_array_equal(forest.points_, [[NAN, 2.0, NAN]])
    forest.delete(3)
    forest.score_then_learn(ROWS[:4])
    assert_array_equal(forest.points_, ROWS[:4])
    assert_whole(forest)


def test_deletion_by_value_ignores_unknown_columns():
    forest = build(window=5).partial_fit([[1.0, NAN, 3.0], [2.0, NAN, 4.0]])
    with pytest.raises(ValueError, match="row 0, column 0 is missing"):
        forest.delete_rows([[NAN, NAN, 3.0]])
    forest.delete_rows([[1.0, NAN, 3.0]])
    assert_array_equal(forest.points_, [[2.0, NAN, 4.0]])
    forest.partial_fit([[5.0, 6.0, 7.0]]).delete_rows([[5.0, 6.0, 7.0]])
    assert_array_equal(forest.points_, [[2.0, 6.0, 4.0]])


def test_summary_ignores_column_that_appears_after_warm_up(monkeypatch):
    monkeypatch.setattr(stream, "WARM_UP", 16)
    late = without(without(ROWS[:100], 2, 40), 1, 7)
    forest = build(window=None, max_depth=5)
    scores = forest.score_then_learn(late)
    again = build(window=None, max_depth=5)
    parts = [again.score_then_learn(late[start : start + 9]) for start in range(0, 100, 9)]
    assert_array_equal(np.concatenate(parts), scores)
    assert_array_equal(forest._stream.columns.since, [0, 0, -1])
    strange = ROWS[:1] * [1.0, 1.0, 1e4]
    assert forest.score_samples(strange) == forest.score_samples(ROWS[:1])
    assert forest.score_samples(ROWS[:1] * [1.0, 1e4, 1.0]) < forest.score_samples(ROWS[:1])


@pytest.mark.parametrize("score_type", ["margins", "multiscale", "mass", EpsilonPhi(0.01)])
@pytest.mark.parametrize("domain", [None, "data", [[-99.0, -999.0, 10.0], [99.0, 999.0, 9e4]]])
@pytest.mark.parametrize("missing", POLICIES)
def test_every_score_and_domain_accepts_late_columns(score_type, domain, missing):
    table = without(ROWS[:60], 2, 30)
    table[::7, 0] = NAN
    forest = build(score_type=score_type, domain=domain, missing=missing, n_estimators=5, window=40)
    scores = forest.score_then_learn(table)
    assert not np.isnan(scores).any()
    assert_whole(forest)
    again = loads(build(score_type=score_type, domain=domain, missing=missing, n_estimators=5, window=40)
                  .partial_fit(table[:20]).to_bytes())  # fmt: skip
    assert_array_equal(again.score_then_learn(table[20:]), scores[20:])
    assert bits(again) == bits(forest)


def test_categories_may_be_late():
    n = 400
    frame = pd.DataFrame({"x": ROWS[:n, 0], "kind": pd.Categorical(RNG.choice(list("abc"), n))})
    frame.loc[:99, "kind"] = None
    forest = build(window=300)
    forest.detect_then_learn(frame[:100])
    assert forest.categories_ == {"kind": []}
    assert set(forest.points_[:, 1]) == {None}
    scores = forest.detect_then_learn(frame[100:]).scores
    assert forest.categories_ == {"kind": ["a", "b", "c"]}
    assert not np.isnan(scores).any()
    row = pd.DataFrame({"x": [3.0], "kind": pd.Categorical(["z"])})
    assert forest.score_samples(row)[0] < forest.score_samples(frame[-1:].assign(x=3.0))[0]


def test_ignored_values_are_not_explained():
    forest = build().partial_fit(without(ROWS[:300], 2, 300))
    explained = forest.explain(np.array([[30.0, -1.0, 1e9]]))[0]
    assert [one.name for one in explained.attributions] == ["x0"]
    assert np.isnan(explained.values[2])
    assert all(np.isnan(point[2]) for _, point in explained.similar)
    assert len(explained.similar)


def test_weights_and_time_windows_accept_first_rows_with_gaps():
    table = without(ROWS[:60], 2, 30)
    weights = np.arange(60) % 3
    forest = build(window=30).partial_fit(table, sample_weight=weights)
    twin = build(window=30).partial_fit(table.repeat(weights, axis=0))
    assert_array_equal(forest.points_, twin.points_)
    timed = build(window=Window(duration=10.0)).partial_fit([[1.0, NAN, NAN]], times=[100.0])
    timed.partial_fit([[NAN, 2.0, NAN], [1.0, 2.0, NAN]], times=[0.0, 111.0])  # one comes too late, one long after
    assert_array_equal(timed.points_, [[1.0, 2.0, NAN]])


def test_rejects_files_with_damaged_columns(tmp_path):
    forest = build(window=5).partial_fit([[1.0, NAN, 3.0]])
    forest._stream.columns.since[:] = [9, -1, 0]
    forest.save(tmp_path / "model.mpf")
    with pytest.raises(ValueError, match=re.escape("a row that has not arrived")):
        load(tmp_path / "model.mpf")
    forest._stream.columns.since[:] = [-1, -1, 0]
    forest.save(tmp_path / "model.mpf")
    with pytest.raises(ValueError, match="points have values in an unknown column"):
        load(tmp_path / "model.mpf")


def test_files_without_late_columns_omit_them():
    header, arrays = state_of(build().partial_fit(ROWS[:10])._stream)
    assert "origin" not in header
    assert "stream/since" not in arrays


def test_series_contains_no_placeholders():
    """Readings passed on by a forest have NaN in unknown columns."""
    forest = build(window=600).partial_fit(without(ROWS[:400], 2, 400))
    series = SeriesMPF.from_stream(forest, short_memory=False)
    assert np.isnan(series.detect_then_learn(without(ROWS[400:500], 2, 100)).scores).all()


def test_outlook_of_the_service_can_be_saved():
    forest = build().partial_fit(without(ROWS[:300], 2, 300))
    entry = SimpleNamespace(detector=forest, notes={})
    outlook.bands(entry, 3, 290, 10)
    again = loads(forest.to_bytes(notes=entry.notes))
    [band] = outlook.bands(SimpleNamespace(detector=again, notes=entry.notes), 3, 300, 1)
    assert_array_equal(np.isnan(band), np.tile([False, False, True], (3, 1)))


def test_series_and_groups_accept_first_rows_with_gaps():
    values = np.sin(np.arange(600) / 9)[:, None] + RNG.normal(0, 0.1, (600, 2))
    values[:5] = NAN
    values[5, 1] = NAN
    found = SeriesMPF(build(n_estimators=5)).detect_then_learn(values)
    assert np.isnan(found.scores[:6]).all()
    assert np.isfinite(found.scores[-60:]).all()
    table = ROWS[:300].copy()
    table[0, 1] = NAN
    grouped = GroupedMPF(build(n_estimators=5)).fit(table, groups=np.repeat(["a", "b"], 150))
    assert np.isfinite(grouped.score_samples(table, groups=np.repeat(["a", "b"], 150))).all()


def test_completions_delete_no_point():
    forest = build(window=3, n_estimators=2).partial_fit(ROWS[:3])
    forest.score_then_learn(np.array([[1.0, NAN, 2.0], ROWS[4], [NAN, NAN, 1.0], ROWS[6]]))
    assert forest.keys_ == [4, 5, 6]
    assert_whole(forest)
