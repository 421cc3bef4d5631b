"""Shingles against a slow oracle that knows the rules by heart, and series that must not depend on chunks."""

import copy
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from polyaforest import Reservoir, SeriesMPF, StreamingMPF, Window
from polyaforest.datasets import shingle
from polyaforest.series import EventTracker, find_events
from polyaforest.series.context_views import ContextViews
from polyaforest.series.contexts import layout_of
from polyaforest.series.shingles import Pattern, align, new_track

pytestmark = pytest.mark.property


# ---- the rules once more, slowly -------------------------------------------------------------------------------------


def steps_of(rows, times, every, max_gap):
    """Readings in even steps: a list of lists of values, and the step of each row."""
    steps, places = [], []
    for i, row in enumerate(rows):
        if i and times is not None and every:
            missing = max(round((times[i] - times[i - 1]) / every) - 1, 0)
            steps += [[np.nan] * len(row) for _ in range(missing)]
        places.append(len(steps))
        steps.append(list(row))
    for channel in range(len(rows[0])):
        known = [k for k, step in enumerate(steps) if not np.isnan(step[channel])]
        for left, right in pairwise(known):
            if right - left - 1 <= max_gap:
                for k in range(left + 1, right):
                    share = (k - left) / (right - left)
                    steps[k][channel] = (1 - share) * steps[left][channel] + share * steps[right][channel]
    return steps, places


def spacing(times, n):
    gaps = [b - a for a, b in pairwise(times[:n]) if b > a]
    return float(np.median(gaps)) if gaps else 0.0


def naive_shingles(rows, times, every, pattern):
    """The shingle that ends at each row, None where there is none."""
    shingles = []
    for i in range(len(rows)):
        is_known = times is None or every is not None or i >= pattern.shingle
        width = every if every is not None or times is None else spacing(times, pattern.shingle + 1)
        steps, _ = steps_of(rows[: i + 1], times, width, pattern.max_gap)
        last = np.array(steps[-pattern.depth :])
        if not is_known or np.isnan(rows[i]).any() or len(last) < pattern.depth or np.isnan(last).any():
            shingles.append(None)
        else:
            shingles.append((np.diff(last, axis=0) if pattern.difference else last).ravel())
    return shingles


patterns = st.builds(Pattern, st.integers(1, 4), st.integers(0, 3), st.booleans(), st.just(()), st.just("UTC"))
values = st.sampled_from([np.nan, np.nan, 0.0, 1.0, -2.5, 1e6, 3.0, 4.0, 5.0])


@st.composite
def series(draw, max_channels=2, max_rows=24):
    """Readings with gaps, and with or without times that jitter, repeat and jump."""
    n, n_channels = draw(st.integers(1, max_rows)), draw(st.integers(1, max_channels))
    rows = np.array(draw(st.lists(values, min_size=n * n_channels, max_size=n * n_channels))).reshape(n, n_channels)
    if not draw(st.booleans()):
        return rows, None
    gaps = draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.9, 1.3, 0.0, 2.0, 4.1, 9.0]), min_size=n, max_size=n))
    return rows, np.cumsum(gaps)


def aligned_in_chunks(rows, times, every, pattern, cuts):
    """Return the shingles of a series that arrives in chunks, row by row, and their oldest readings."""
    track, shingles, oldest = new_track(rows.shape[1], np.nan if every is None else every), [], []
    stamps = np.full(len(rows), np.nan) if times is None else times
    for part in np.split(np.arange(len(rows)), cuts):
        aligned = align(track, rows[part], stamps[part], int(part[0]) if len(part) else len(shingles), pattern)
        found, since = iter(aligned.shingles()), iter(aligned.oldest().tolist())
        shingles += [next(found) if is_whole else None for is_whole in aligned.is_whole]
        oldest += [next(since) if is_whole else None for is_whole in aligned.is_whole]
        track = aligned.kept()
        assert len(track.values) <= max(pattern.room, pattern.shingle)
    return shingles, oldest


@settings(max_examples=examples(300))
@given(series(), patterns, st.sampled_from([None, 1.0]), st.lists(st.integers(0, 24), max_size=6).map(sorted))
def test_shingles_match_naive_reference_in_any_chunks(given_series, pattern, every, cuts):
    rows, times = given_series
    expected = naive_shingles(rows, times, every, pattern)
    found, _ = aligned_in_chunks(rows, times, every, pattern, np.minimum(cuts, len(rows)))
    assert [one is None for one in found] == [one is None for one in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine is None or mine.tobytes() == theirs.tobytes()


@settings(max_examples=examples(100))
@given(series(), patterns, st.data())
def test_shingles_depend_only_on_recorded_readings(given_series, pattern, data):
    rows, times = given_series
    shingles, oldest = aligned_in_chunks(rows, times, 1.0, pattern, [])
    r = data.draw(st.integers(0, len(rows) - 1))
    others = aligned_in_chunks(rows + 7.0 * (np.arange(len(rows)) == r)[:, None], times, 1.0, pattern, [])[0]
    for i, (mine, other) in enumerate(zip(shingles, others, strict=True)):
        if mine is None:
            continue
        is_changed = mine.tobytes() != other.tobytes()
        is_said_to = oldest[i] <= r <= i
        assert is_said_to or not is_changed
        if rows.shape[1] == 1 and not np.isnan(rows[r, 0]):
            assert is_said_to == is_changed


@given(st.lists(st.floats(-9, 9), min_size=5, max_size=30), st.integers(1, 5))
def test_shingles_without_gaps_match_data_sets(line, size):
    rows = np.array(line)[:, None]
    aligned = align(new_track(1, np.nan), rows, np.full(len(rows), np.nan), 0, Pattern(size, 3, False, (), "UTC"))
    assert np.array_equal(aligned.shingles(), shingle(line, size))


# ---- series ----------------------------------------------------------------------------------------------------------


def build(window=12, **parameters):
    return SeriesMPF(StreamingMPF(n_estimators=3, window=window, random_state=0), **{"shingle": 3} | parameters)


def scores_known(views):
    """The calibration scores of all views together, or of the only one."""
    return (views.calibration if isinstance(views, ContextViews) else views.first.model.stream.calibration).scores


def same(one, other):
    """Whether two series are in the same state, and hold the same."""
    mine, theirs = one._model.views, other._model.views
    if not mine.has_begun or not theirs.has_begun:
        return mine.has_begun == theirs.has_begun and one.keys_ == other.keys_
    return (
        one.keys_ == other.keys_
        and all(
            a.keys_ == b.keys_
            and a.points_.tobytes() == b.points_.tobytes()
            and a.forest_.rng.tobytes() == b.forest_.rng.tobytes()
            for a, b in zip(one.estimators_.values(), other.estimators_.values(), strict=True)
        )
        and mine.run_length == theirs.run_length
        and scores_known(mine).tobytes() == scores_known(theirs).tobytes()
        and one._model.history.provenance.spans == other._model.history.provenance.spans
        and all(
            np.array_equal(a, b, equal_nan=True)
            for a, b in zip(one._model.history.track, other._model.history.track, strict=True)
        )
    )


@settings(max_examples=examples(30))
@given(
    series(),
    st.lists(st.integers(0, 24), max_size=5).map(sorted),
    st.sampled_from([4, 12, Reservoir(3), Window(5, duration=6.0)]),
    st.sampled_from([{}, {"difference": True}, {"calendar": ("time of day",)}, {"max_gap": 0, "every": 1.0}]),
)
def test_series_is_same_in_chunks_and_continues_from_copy(given_series, cuts, window, parameters):
    rows, times = given_series
    if times is None and ("calendar" in parameters or isinstance(window, Window)):
        times = np.arange(len(rows)) * 1.0
    whole, parts = build(window, **parameters), build(window, **parameters)
    scores, found = whole.score_then_learn(rows, times=times), []
    for part in filter(len, np.split(np.arange(len(rows)), np.minimum(cuts, len(rows)))):
        found.append(parts.score_then_learn(rows[part], times=None if times is None else times[part]))
        parts = copy.deepcopy(parts)
    assert np.array_equal(scores, np.concatenate(found), equal_nan=True)
    assert same(whole, parts)


@settings(max_examples=examples(40))
@given(series(max_channels=1), st.sampled_from([6, 30, Reservoir(4)]), st.booleans(), st.data())
def test_deletion_removes_exactly_dependent_shingles(given_series, window, difference, data):
    rows, times = given_series
    model = build(window, difference=difference, every=1.0).partial_fit(rows, times=times)
    before, known = (model.estimator_.keys_ if model._model.views.has_begun else []), model.keys_
    if not known:
        return
    r = data.draw(st.sampled_from(known))
    touched = rows + 7.0 * (np.arange(len(rows)) == r)[:, None]
    pattern = model._model.history.pattern
    plain, other = (naive_shingles(table, times, 1.0, pattern) for table in (rows, touched))
    model.delete(r)
    held = model.estimator_.keys_ if model._model.views.has_begun else []
    assert r not in model.keys_
    kept = [i for i in before if plain[i].tobytes() == other[i].tobytes()]
    if np.isnan(rows[r, 0]):  # values interpolated across it depend on it, too
        assert set(held) <= set(kept)
    else:
        assert held == kept
    assert held == [] or model.estimator_.points_.tobytes() == np.stack([plain[i] for i in held]).tobytes()
    assert set(model.keys_) <= set(known) - {r}
    model._model.history.provenance.check(model.n_seen_)


# ---- context windows -------------------------------------------------------------------------------------------------


@st.composite
def long_series(draw):
    """Readings that repeat, long enough for a rhythm, with holes, and with or without times that jump."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, n_channels = draw(st.integers(300, 700)), draw(st.integers(1, 2))
    rows = np.sin(np.arange(n)[:, None] / draw(st.integers(2, 9))) + 0.2 * rng.normal(size=(n, n_channels))
    rows[rng.random(n) < draw(st.sampled_from([0.0, 0.02]))] = np.nan
    if not draw(st.booleans()):
        return rows, None
    return rows, np.cumsum(rng.choice([1.0, 1.0, 1.0, 1.0, 1.1, 0.9], size=n) + 20.0 * (rng.random(n) < 0.003))


@settings(max_examples=examples(60))
@given(
    long_series(),
    st.lists(st.integers(0, 700), max_size=5).map(sorted),
    st.sampled_from([200, 2048, Window(200, duration=300.0)]),
    st.sampled_from([{}, {"calendar": ("time of day",)}, {"max_gap": 0, "every": 1.0}, {"rescale": None}]),
    st.booleans(),
)
def test_context_windows_are_same_in_chunks_and_continue_from_copy(given_series, cuts, window, parameters, is_fitted):
    rows, times = given_series
    if times is None and ("calendar" in parameters or isinstance(window, Window)):
        times = np.arange(len(rows)) * 1.0
    whole, parts = (build(window, **{"shingle": "auto"} | parameters) for _ in range(2))
    start = 200 if is_fitted and len(rows) > 500 else 0
    if start:
        for model in (whole, parts):
            model.set_params(max_gap=3).fit(rows[:start], times=None if times is None else times[:start])
    else:
        start = 0
    at = None if times is None else times[start:]
    answers, found = whole.detect_then_learn(rows[start:], times=at), []
    for part in filter(len, np.split(np.arange(start, len(rows)), np.clip(cuts, start, len(rows)) - start)):
        found.append(parts.detect_then_learn(rows[part], times=None if times is None else times[part]))
        parts = copy.deepcopy(parts)
    for mine, theirs in zip(answers[:4], type(answers).joined(found)[:4], strict=True):
        assert np.array_equal(mine, theirs, equal_nan=True)
    assert same(whole, parts)
    assert whole.periods_ == parts.periods_


@settings(max_examples=examples(60))
@given(long_series(), st.sampled_from([100, 2048]), st.data())
def test_deletion_removes_exactly_dependent_context_windows(given_series, window, data):
    rows, times = given_series
    rows = rows[:, :1]
    model = build(window, shingle="auto", every=1.0).partial_fit(rows, times=times)
    known, before = model.keys_, model._model.views.first.keys if model._model.views.has_begun else []
    r = data.draw(st.sampled_from(known))
    stamps = np.full(len(rows), np.nan) if times is None else times
    track, pattern = new_track(1, 1.0), model._model.history.pattern
    touched = rows + 7.0 * (np.arange(len(rows)) == r)[:, None]
    aligned, other = (align(track, table, stamps, 0, pattern) for table in (rows, touched))
    ends = np.flatnonzero(aligned.is_whole)
    is_changed = dict(zip(ends.tolist(), (aligned.shingles() != other.shingles()).any(axis=1).tolist(), strict=True))
    points = dict(zip(before, model._model.views.points if before else [], strict=True))
    model.delete(r)
    held = model._model.views.first.keys if model._model.views.has_begun else []
    kept = [i for i in before if not is_changed[i]]
    assert r not in model.keys_
    assert not model.holds(r)
    assert set(held) <= set(kept) if np.isnan(rows[r, 0]) else held == kept
    for forest in model.estimators_.values() if held else ():
        assert forest.keys_ == held
    others = np.delete(np.arange(pattern.n_features(1)), layout_of(1).season)  # which is recomputed
    if held:
        np.testing.assert_array_equal(
            model._model.views.points[:, others], np.stack([points[i] for i in held])[:, others]
        )
    assert set(model.keys_) <= set(known) - {r}
    model._model.history.provenance.check(model.n_seen_)


# ---- events ----------------------------------------------------------------------------------------------------------

flags_and_scores = st.lists(st.tuples(st.booleans(), st.integers(-9, 0)), max_size=40)


def naive_events(flagged, merge):
    groups = []
    for row in flagged:
        if groups and row - groups[-1][-1] <= merge:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


@given(flags_and_scores, st.integers(1, 6), st.integers(0, 40), st.booleans())
def test_events_are_runs_of_flagged_rows_online_and_offline(rows, merge, stop, has_dates):
    flags, scores = [flag for flag, _ in rows], [float(score) for _, score in rows]
    start = datetime(2024, 1, 1, tzinfo=UTC)
    times = [start + timedelta(minutes=i) if has_dates else 5.0 * i for i in range(len(rows))]
    attributions = {i: {"a": float(i)} for i in range(len(rows))}
    events = find_events(flags, scores, times=times, attributions=attributions, merge=merge)
    groups = naive_events([i for i, flag in enumerate(flags) if flag], merge)
    assert [(event.first, event.last, event.n_flagged) for event in events] == [(g[0], g[-1], len(g)) for g in groups]
    for event, group in zip(events, groups, strict=True):
        peak = min(group, key=lambda i: scores[i])
        assert (event.start, event.end, event.peak) == (times[group[0]], times[group[-1]], times[peak])
        assert event.score == scores[peak]
        assert event.attributions == {"a": float(peak)}
    tracker, online = EventTracker(merge), []
    for i, (flag, score) in enumerate(zip(flags, scores, strict=True)):
        if i == stop:
            tracker = EventTracker.of_state(json.loads(json.dumps(tracker.state())))
        online.append(tracker.update(i, flag, score, time=times[i], attributions=attributions[i]))
        assert online[-1] is None or i - online[-1].last >= merge  # reported as soon as it is complete
    assert [event for event in (*online, tracker.close()) if event is not None] == events


def test_oracle_detects_differences():
    rows, pattern = np.array([[0.0], [np.nan], [4.0], [5.0]]), Pattern(3, 1, False, (), "UTC")
    assert naive_shingles(rows, None, None, pattern)[2].tolist() == [0.0, 2.0, 4.0]
    assert naive_shingles(rows, None, None, pattern._replace(max_gap=0)) == [None] * 4
    with pytest.raises(AssertionError):
        assert naive_shingles(rows, None, None, pattern)[3] is None
