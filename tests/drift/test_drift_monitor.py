"""DriftMonitor: alarms, dates, kinds, deletion, files and bad input."""

from __future__ import annotations

import copy
import io
from datetime import UTC, datetime, timedelta
from math import log

import numpy as np
import pytest
from effort import mostly_slow
from sklearn.exceptions import NotFittedError

from polyaforest import ModelFileError
from polyaforest.drift import Change, DriftMonitor, RunLengths
from polyaforest.drift.changes import is_scale_change
from polyaforest.drift.windows import SharedTrees, Windows, measure_dispersions
from polyaforest.storage.migrations import upgrade

N = 256  # points of the references here


def normal(n: int, n_features: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, n_features))


def monitor(**given: object) -> DriftMonitor:
    return DriftMonitor(**{"reference": N, "random_state": 0, "n_estimators": 8, **given})


# ---- evidence from counts --------------------------------------------------------------------------------------------


@pytest.mark.plain
def test_evidence_matches_the_formula() -> None:
    """One cut at a time, with the Beta integrals written out: trees on values, then on ranks, in turn."""
    from scipy.special import betaln

    rows = normal(N)
    trees = SharedTrees(rows, np.arange(N), np.random.SeedSequence(0), 4)
    recent = trees.find(normal(40, seed=1) + 1.0)
    windows = Windows(trees, [40], [1.0])
    windows.fill(recent)
    cuts, counts = trees.cuts, trees.count(recent)
    logs = np.zeros(4)
    for t in range(4):
        depth = np.zeros(cuts.size[t])
        for j in range(cuts.size[t]):
            if cuts.parent[t, j] >= 0:
                depth[j] = depth[cuts.parent[t, j]] + 1
            if cuts.left[t, j] < 0:
                continue
            sides = [cuts.left[t, j], cuts.right[t, j]]
            a, b = trees.counts[t, sides], counts[t, sides]
            n, prior, chance = a.sum() + 1, np.array([0.5, 0.5]), 0.03
            if t % 2:
                units = np.rint(8 / (1 / n + 1 / 10) * (a + 0.5) / n)  # pseudo-points are in eighths
                prior, chance = np.maximum(units, 1) / 8, max(0.5 ** depth[j], 0.01)
            factor = betaln(*(b + prior)) - betaln(*prior) - betaln(*(a + b + 0.5)) + betaln(*(a + 0.5))
            logs[t] += np.log(1 - chance + chance * np.exp(factor))
    assert windows.evidence[0] == pytest.approx(2 * np.log(np.exp(logs / 2).mean()), abs=1e-9)
    assert trees.evidence(trees.leaves, recent, 1.0) == pytest.approx(logs, abs=1e-9)


def test_trees_on_ranks_do_not_depend_on_the_scale_of_values() -> None:
    rows = np.abs(normal(N)) + 0.1
    plain, bent = (SharedTrees(one, np.arange(N), np.random.SeedSequence(0), 8) for one in (rows, rows**3))
    ranked, on_values = np.flatnonzero(plain.is_ranked), np.flatnonzero(~plain.is_ranked)
    assert (
        plain.counts[ranked] == bent.counts[ranked]
    ).mean() > 0.97  # the same cells, except for bounds between points
    assert (plain.counts[on_values] == bent.counts[on_values]).mean() < 0.95


def test_some_trees_use_only_one_or_two_features() -> None:
    trees = SharedTrees(normal(N, 5), np.arange(N), np.random.SeedSequence(0), 32)
    seen = [len(set(own[:n].tolist()) - {-1}) for own, n in zip(trees.cuts.feature, trees.cuts.size, strict=True)]
    for kind in (seen[0::2], seen[1::2]):
        assert (kind.count(1), kind.count(2)) == (4, 8)
    pairs = [frozenset(own[:n].tolist()) - {-1} for own, n in zip(trees.cuts.feature, trees.cuts.size, strict=True)]
    for kind in (pairs[0::2], pairs[1::2]):
        of_two = [pair for pair in kind if len(pair) == 2]
        assert len(set(of_two)) >= len(of_two) - 1  # hardly any pair twice, so most of the ten are used


@pytest.mark.plain
def test_sliding_windows_equal_filled_windows() -> None:
    trees = SharedTrees(normal(N), np.arange(N), np.random.SeedSequence(0), 8)
    leaves, lengths = trees.find(normal(300, seed=1)), [8, 32, 128]
    sliding, filled = (Windows(trees, lengths, [1.0, 1.5, 2.0]) for _ in range(2))
    _, evidence = sliding.slide(leaves, 0, 0)
    for n in (5, 31, 200, 300):
        filled.fill(leaves[:n])
        assert (evidence[n - 1] == filled.evidence).all()  # to the last bit: sums depend only on counts
    assert (sliding.counts == filled.counts).all()


@pytest.mark.plain
def test_run_evidence_equals_that_of_windows_of_all_lengths() -> None:
    trees = SharedTrees(normal(N), np.arange(N), np.random.SeedSequence(0), 8)
    leaves = trees.find(normal(60, seed=1) * 2)
    of_runs = Windows(trees, [60], [1.0], 60).of_runs(leaves)
    for length in (1, 7, 60):
        window = Windows(trees, [length], [1.0])
        window.fill(leaves)
        assert of_runs[length - 1] == window.evidence[0]


def test_dispersion_is_one_for_independent_points_and_larger_for_dependent_ones() -> None:
    steps = normal(2048, 1)
    walk = np.empty_like(steps)
    walk[0] = steps[0]
    for i in range(1, len(steps)):
        walk[i] = 0.9 * walk[i - 1] + steps[i]
    independent, dependent = (
        measure_dispersions(SharedTrees(rows, np.arange(2048), np.random.SeedSequence(0), 8), [16, 64, 256, 2048])
        for rows in (steps, walk)
    )
    assert (independent == 1.0).all()
    assert (np.diff(dependent) >= 0).all()
    assert dependent[0] > 2.5
    assert dependent[-1] > 5.0


# ---- following a stream ---------------------------------------------------------------------------------------------


def test_monitor_learns_then_reports_normal() -> None:
    watching = monitor()
    trace = watching.follow(normal(N + 100))
    assert (trace.status[:N] == "learning").all()
    assert set(trace.status[N:]) <= {"normal", "outlier"}
    assert np.isnan(trace.evidence[:N]).all()
    assert np.isfinite(trace.evidence[N:]).all()
    assert trace.changes == []
    assert watching.n_seen_ == N + 100
    assert not watching.drift_detected
    assert watching.change_ is None


def test_monitor_dates_and_locates_a_drift() -> None:
    rows = normal(3 * N)
    rows[600:, 0] += 3.0
    watching = monitor()
    changes = watching.update(rows)
    drift = next(change for change in changes if change.kind == "drift")
    assert abs(drift.start - 600) <= 3
    assert drift.earliest <= drift.start <= drift.latest
    assert drift.noticed < 680
    assert drift.log_odds > np.log(1e6)
    assert "x0 >" in drift.regions[0]
    assert "has risen from" in str(drift)
    assert "not a burst" in str(drift)
    assert watching.status_ == "drift"


def test_drift_detected_is_true_at_the_alarm() -> None:
    rows = normal(3 * N)
    rows[600:, 0] += 3.0
    watching = monitor()
    detected = []
    for i in range(len(rows)):
        watching.update(rows[i : i + 1])
        if watching.drift_detected:
            detected.append(i)
    assert detected
    assert 600 < detected[0] < 620


def test_a_short_change_is_a_burst_that_ends() -> None:
    rows = normal(4 * N)
    rows[600:612] += 5.0
    changes = monitor().update(rows)
    assert [(change.kind, change.state) for change in changes] == [("burst", "begun"), ("burst", "ended")]
    assert abs(changes[0].start - 600) <= 1
    assert "now over" in str(changes[1])


def test_monitor_dates_the_return_to_normal() -> None:
    rows = normal(4 * N)
    rows[500:650, 0] += 4.0
    changes = monitor().update(rows)
    assert [change.kind for change in changes][-2:] == ["drift", "return to normal"]
    assert abs(changes[-1].start - 650) <= 3


def test_a_change_ends_when_the_odds_against_it_exceed_the_time_between_false_alarms() -> None:
    rows = normal(4 * N)
    rows[500:650, 0] += 4.0
    watching = monitor(false_alarms_every=1e6)
    over = watching.update(rows)[-1]
    assert over.kind == "return to normal"
    assert log(1e6) < over.log_odds < log(1e6) + 4.0  # the odds of one point, at most


@pytest.mark.parametrize(("n", "lasting"), [(N, 64), (2048, 128)])
def test_changes_shorter_than_a_sixteenth_of_the_reference_are_bursts(n: int, lasting: int) -> None:
    watching = monitor(reference=n, n_estimators=2).fit(normal(n))
    assert watching._follower.lasting == lasting


def test_a_wider_spread_is_a_scale_change() -> None:
    rows = normal(4 * N)
    rows[500:] *= 3.0
    assert "scale change" in [change.kind for change in monitor().update(rows)]


def test_a_slow_change_is_a_gradual_drift() -> None:
    rows = normal(6 * N)
    rows[500:, 0] += np.arange(len(rows) - 500) / 60
    assert "gradual drift" in [change.kind for change in monitor().update(rows)]


def test_a_single_odd_point_is_an_outlier_and_no_alarm() -> None:
    rows = normal(2 * N)
    rows[400] = 12.0
    trace = monitor().follow(rows)
    assert trace.status[400] == "outlier"
    assert trace.changes == []


def test_monitor_adopts_a_lasting_change_as_the_reference() -> None:
    rows = normal(6 * N)
    rows[500:, 0] += 4.0
    watching = monitor()
    changes = watching.update(rows)
    assert changes[-1].state == "adopted"
    assert watching.status_ in ("normal", "outlier")
    rows = normal(N, seed=5)  # the old normal is a change now
    assert watching.update(rows)


def test_monitor_keeps_the_reference_with_keep() -> None:
    rows = normal(8 * N)
    rows[500:1800, 0] += 4.0
    watching = monitor(on_drift="keep")
    changes = watching.update(rows)
    assert "adopted" not in [change.state for change in changes]
    assert changes[-1].kind == "return to normal"


def test_fit_sets_the_reference() -> None:
    watching = monitor().fit(normal(400))
    assert watching.n_seen_ == 400
    assert watching.windows_.tolist() == [8, 12, 25, 50, 100, 200, 400]
    assert watching.update(normal(100, seed=1) + 3.0)


def test_monitor_detects_changed_correlation_and_missing_values() -> None:
    rows = normal(4 * N)
    rows[600:, 1] = 0.95 * rows[600:, 0] + 0.3 * rows[600:, 1]
    assert monitor().update(rows)
    gappy = normal(4 * N)
    gappy[600::3, 1] = np.nan
    changes = monitor().update(gappy)
    assert changes
    assert any("missing" in words for change in changes for words in change.regions)


def test_a_duration_requires_times_and_uses_their_rate() -> None:
    times = np.arange(2 * N) * 60.0
    watching = monitor(false_alarms_every="7 days")
    watching.update(normal(2 * N), times=times)
    same = monitor(false_alarms_every=7 * 24 * 60)
    same.update(normal(2 * N))
    assert watching.thresholds_ == pytest.approx(same.thresholds_)
    with pytest.raises(ValueError, match="is a duration: pass times"):
        monitor(false_alarms_every=timedelta(days=7)).update(normal(10))


def test_since_is_a_time_of_day() -> None:
    began = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    times = [began + timedelta(minutes=i) for i in range(3 * N)]
    rows = normal(3 * N)
    rows[600:, 0] += 4.0
    changes = monitor().update(rows, times=times)
    assert changes[-1].start_time == (began + timedelta(minutes=600)).timestamp()
    assert changes[-1].since == "22:00"


def test_thresholds_fall_with_the_rate_of_false_alarms() -> None:
    often, seldom = (monitor(false_alarms_every=every).fit(normal(N)) for every in (2_000, 2_000_000))
    assert (often.thresholds_ < seldom.thresholds_).all()
    assert often.thresholds_for(2_000_000) == pytest.approx(seldom.thresholds_)
    assert seldom.thresholds_for(2_000) == pytest.approx(often.thresholds_)


# ---- deletion, copies, files -----------------------------------------------------------------------------------------


def test_delete_removes_points_from_the_windows() -> None:
    rows, gone = normal(3 * N), [N + 3, 400, 700, 3 * N - 1]
    with_all = monitor()
    with_all.update(rows)
    with_all.delete(gone)
    without = monitor()
    without.update(np.delete(rows, gone, axis=0))
    assert (with_all.evidence_ == without.evidence_).all()
    assert not with_all.holds(700)
    more = normal(50, seed=9)
    assert (with_all.follow(more).evidence == without.follow(more).evidence).all()


def test_delete_removes_points_from_the_reference() -> None:
    rows, keys = normal(N), np.arange(N)
    with_all = monitor().fit(rows).delete([5, 77])
    without = monitor().fit(np.delete(rows, [5, 77], axis=0), keys=np.delete(keys, [5, 77]).tolist())
    more = normal(50, seed=9)
    found = [one.follow(more).evidence[:, 0] for one in (with_all, without)]
    assert len(with_all.windows_) == len(without.windows_)
    assert np.isfinite(found).all()


def test_delete_rejects_an_unknown_key_and_deletes_nothing() -> None:
    watching = monitor().fit(normal(N))
    before = watching.to_bytes()
    with pytest.raises(KeyError, match="no point with key 'who'"):
        watching.delete([3, "who"])
    assert watching.to_bytes() == before
    watching.forget([3, "who"])
    assert not watching.holds(3)


def test_monitor_learns_a_reference_again_that_became_too_small() -> None:
    watching = monitor().fit(normal(N))
    watching.delete(list(range(N - 50)))
    assert watching.status_ == "learning"
    watching.update(normal(N, seed=1))
    assert watching.status_ != "learning"


@pytest.mark.parametrize("n", mostly_slow([100, 400, 610, 700], 0, 2))  # while it learns, and beside a change
def test_a_saved_monitor_continues_bit_for_bit(n: int) -> None:
    rows, times = normal(4 * N), np.arange(4 * N) * 1.0
    rows[600:, 0] += 3.0
    whole, first = (monitor(windows=[16, 64, 256]) for _ in range(2))
    keys = [f"k{i}" for i in range(len(rows))]
    expected = whole.follow(rows, keys=keys, times=times)
    before = first.follow(rows[:n], keys=keys[:n], times=times[:n])
    file = io.BytesIO()
    first.save(file)
    file.seek(0)
    for second in (DriftMonitor.load(file), DriftMonitor.of_bytes(first.to_bytes()), copy.deepcopy(first)):
        after = second.follow(rows[n:], keys=keys[n:], times=times[n:])
        assert (after.status == expected.status[n:]).all()
        assert before.changes + after.changes == expected.changes
        assert np.array_equal(second.evidence_, whole.evidence_)
        assert second.get_params() == first.get_params()


def test_damaged_states_are_rejected() -> None:
    watching = monitor()
    watching.update(normal(2 * N))
    header, arrays = watching._follower.state()
    from polyaforest.drift.follower import Follower

    wrong = [
        ({**header, "n_seen": -1}, arrays),
        ({**header, "n_seen": 3}, arrays),
        ({**header, "more": 1}, arrays),
        ({**header, "version": 99}, arrays),
        (header, {**arrays, "bars/bars": np.full(len(watching.thresholds_), np.nan)}),
        (header, {**arrays, "bars/dispersions": np.zeros(len(watching.thresholds_))}),
        (header, {**arrays, "reference/values": arrays["reference/values"][:, :1]}),
        (header, {**arrays, "points/numbers": arrays["points/numbers"][::-1].copy()}),
        (header, {name: part for name, part in arrays.items() if name != "points/times"}),
        ({**header, "open": {"change": {}, "learned": 0, "balance": 0.0, "turned": 0}}, arrays),
    ]
    for state, parts in wrong:
        with pytest.raises((ValueError, KeyError)):
            Follower.of_state(state, parts, 2, ["a", "b"])
    with pytest.raises(ModelFileError):
        DriftMonitor.of_bytes(watching.to_bytes()[:-1] + b"0")


def test_states_of_the_first_version_are_read_and_their_thresholds_computed_again() -> None:
    """They had four windows, and another definition of evidence."""
    from polyaforest.drift.follower import Follower

    watching = monitor()
    watching.update(normal(2 * N))
    header, arrays = watching._follower.state()
    old = {key: value for key, value in header.items() if key != "version"}
    four = {name: part[:4] if name.startswith("bars/") else part for name, part in arrays.items()}
    del four["bars/slopes"]
    upgraded, parts = upgrade({"detector": "DriftMonitor", "monitor": old}, four)
    again = Follower.of_state(upgraded["monitor"], parts, 2, ["x0", "x1"])
    assert (again.thresholds.levels == watching.thresholds_).all()
    assert (again.windows.evidence == watching.evidence_).all()
    with pytest.raises(ValueError, match="bars/"):
        Follower.of_state(header, four, 2, ["x0", "x1"])


def test_load_rejects_other_models() -> None:
    from polyaforest import StreamingMPF

    file = io.BytesIO()
    StreamingMPF(n_estimators=2, random_state=0).fit(normal(50)).save(file)
    file.seek(0)
    with pytest.raises(ModelFileError):
        DriftMonitor.load(file)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reference": 10}, "reference"),
        ({"windows": [8, 8]}, "different numbers"),
        ({"windows": [8, 5000]}, "longer than the reference"),
        ({"windows": [0.5]}, "at least 2"),
        ({"false_alarms_every": "soon"}, "is not a duration"),
        ({"false_alarms_every": timedelta(0)}, "must be a positive duration"),
        ({"on_drift": "panic"}, "on_drift"),
    ],
)
def test_invalid_parameters_are_rejected(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        monitor(**given).update(normal(10))


def test_invalid_rows_are_rejected_before_anything_changes() -> None:
    watching = monitor()
    watching.update(normal(50))
    for rows in (normal(3, 5), [["a", "b"]], [[np.inf, 0.0]]):
        with pytest.raises((ValueError, TypeError)):
            watching.update(rows)
    with pytest.raises(ValueError, match="keys for 2 rows"):
        watching.update(normal(2), keys=["one"])
    assert watching.n_seen_ == 50


def test_results_require_a_learned_reference() -> None:
    watching = monitor()
    assert watching.status_ == "learning"
    with pytest.raises(NotFittedError, match="has not followed"):
        watching.run_lengths()
    watching.update(normal(10))
    with pytest.raises(NotFittedError, match="10 of 256"):
        _ = watching.thresholds_


# ---- results ---------------------------------------------------------------------------------------------------------


def test_run_lengths_peak_at_the_change() -> None:
    rows = normal(N + 60)
    rows[-20:] += 3.0
    watching = monitor(windows=[256])  # too long to notice yet
    watching.update(rows)
    runs = watching.run_lengths()
    assert isinstance(runs, RunLengths)
    assert runs.none + runs.probabilities.sum() == pytest.approx(1.0)
    assert abs(runs.mode - 20) <= 2
    assert runs.range[0] <= runs.mode <= runs.range[1]


def test_run_lengths_subtract_the_baseline_of_the_evidence() -> None:
    """The odds of a run of the length of a window are those of its evidence, less the mean without a change."""
    watching = monitor(false_alarms_every=5000)
    watching.update(normal(3 * N))
    follower, runs = watching._follower, watching.run_lengths()
    lengths, evidence = follower.windows.lengths, follower.windows.evidence
    assert (follower.thresholds.baseline < -0.05).all()
    expected = evidence - follower.thresholds.baseline - log(5000)
    assert np.log(runs.probabilities[lengths - 1] / runs.none) == pytest.approx(expected, rel=1e-6)


def test_is_scale_change_distinguishes_scale_from_location() -> None:
    before, after = normal(500), normal(200, seed=1)
    assert is_scale_change(before, after * 3)
    assert is_scale_change(before, after / 4)
    assert not is_scale_change(before, after + 1.0)
    assert not is_scale_change(before, after)


def test_changes_escape_hostile_names() -> None:
    from polyaforest.tables.validation import NamedRows

    rows = normal(3 * N)
    rows[600:, 0] += 4.0
    changes = monitor().update(NamedRows(rows, ["\x1b[2Jevil\n", "b"]))
    assert changes[-1].regions
    assert "\x1b" not in str(changes[-1])
    assert "\n" not in str(changes[-1])


def test_change_as_text() -> None:
    plain = Change("drift", "begun", 7, 6, 9, 80, None, None, 16, 25.0, ("the share of a has risen",), "it relearns")
    assert (
        str(plain)
        == "Since point 7 the share of a has risen; this is a change (odds 10^10 : 1), not a burst; it relearns."
    )
    assert "gradual" in str(plain._replace(kind="gradual drift"))
    assert "scale" in str(plain._replace(kind="scale change"))
    assert "back to normal" in str(plain._replace(kind="return to normal"))
    assert "new normal" in str(plain._replace(state="adopted"))
    assert "burst so far" in str(plain._replace(kind="burst", log_odds=1.0))
    assert Change.of_state(plain.state_dict()) == plain


def test_traces_can_be_joined() -> None:
    from polyaforest.drift import Trace

    rows = normal(N + 60)
    whole = monitor().fit(rows[:N]).follow(rows[N:])
    parts = monitor().fit(rows[:N])
    joined = Trace.joined([parts.follow(rows[start : start + 20]) for start in range(N, N + 60, 20)])
    assert (joined.evidence == whole.evidence).all()
    assert joined.status.tolist() == whole.status.tolist()
    assert (joined.first, joined.changes) == (whole.first, whole.changes) == (N, [])
