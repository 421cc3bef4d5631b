"""Streams with missing values anywhere, even in the first rows, do not depend on chunks, files and deletions.

The warm-up is shortened, so that few rows cover columns that are unknown, young and known.
"""

import pickle
import tempfile
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from streams import assert_whole, bits

from polyaforest import EpsilonPhi, Reservoir, StreamingMPF, Window, load
from polyaforest.detectors import loads
from polyaforest.forest import imputation, stream
from polyaforest.forest.stream_checks import check_stream

pytestmark = pytest.mark.property

WARM_UP, MOST, N = 8, 12, 40
NAN = np.nan


@contextmanager
def short_warm_up():
    """Shorten warm-up and the search for donors to few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WARM_UP", WARM_UP)
        patch.setattr(imputation, "MOST", MOST)
        yield


def values():
    return st.one_of(st.just(NAN), st.floats(-100, 100), st.integers(-3, 3).map(float))


@st.composite
def tables(draw):
    """Draw rows with gaps; a column may lack all values up to some row."""
    n = draw(st.integers(1, N))
    rows = draw(arrays(np.float64, (n, 3), elements=values()))
    for k, first in enumerate(draw(st.tuples(*[st.sampled_from([0, 0, 1, 5, n // 2, n])] * 3))):
        rows[:first, k] = NAN
    return rows


detectors = st.builds(
    dict,
    window=st.sampled_from([5, 20, "auto", Window(duration=6.0), Reservoir(10), None]),
    missing=st.sampled_from(["impute", "marginalise"]),
    score_type=st.sampled_from(["margins", "typicality", "multiscale", "log_mass", EpsilonPhi(0.1)]),
    max_samples=st.sampled_from(["auto", None]),
    n_estimators=st.just(3),
    random_state=st.integers(0, 3),
)


def new(parameters):
    return made(StreamingMPF, **parameters, max_depth=3 if parameters["window"] is None else None)


def cuts(draw, n):
    return sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=6))})


def detect(forest, rows, start, stop, *, explain=False):
    times = np.arange(start, stop, dtype=float)
    return forest.detect_then_learn(rows[start:stop], times=times, explain=explain)


def restored(forest, how):
    """Return the forest after a round trip through a file, the bytes of stores, or a pickle."""
    if how == "file":
        with tempfile.TemporaryDirectory() as folder:
            forest.save(f"{folder}/model.mpf")
            return load(f"{folder}/model.mpf")
    if how == "compact":
        return loads(forest.to_bytes())
    return forest if how is None else pickle.loads(pickle.dumps(forest))


def same(a, b):
    assert_array_equal(a.scores, b.scores)
    assert_array_equal(a.p_values, b.p_values)
    assert_array_equal(a.is_anomaly, b.is_anomaly)


@settings(max_examples=examples(150))
@given(st.data(), tables(), detectors)
def test_results_do_not_depend_on_chunks_files_or_explanations(data, rows, parameters):
    with short_warm_up():
        whole, parts = new(parameters), new(parameters)
        expected = detect(whole, rows, 0, len(rows))
        ends = cuts(data.draw, len(rows))
        for start, stop in pairwise(ends):
            found = detect(parts, rows, start, stop, explain=data.draw(st.booleans()))
            same(found, expected.select(np.arange(start, stop)))
            how = data.draw(st.sampled_from([None, "file", "compact", "pickle"]))
            parts = restored(parts, how)
        assert bits(parts) == bits(whole)


@settings(max_examples=examples(100))
@given(st.data(), tables(), detectors)
def test_rows_are_scored_by_the_forest_before_them(data, rows, parameters):
    """Scores in chunks match those without learning, up to rounding, after any deletions."""
    with short_warm_up():
        forest = new(parameters)
        for i in range(len(rows)):
            if forest.is_fitted:
                expected = forest.score_samples(rows[i : i + 1])
                assert_allclose(
                    pickle.loads(pickle.dumps(forest)).score_then_learn(rows[i : i + 1], times=[float(i)]),
                    expected,
                    rtol=1e-9,
                    atol=1e-12,
                )
            forest.partial_fit(rows[i : i + 1], times=[float(i)])
            if parameters["window"] is not None:
                if forest.n_points_ and data.draw(st.integers(0, 4)) == 0:
                    forest.delete(data.draw(st.lists(st.sampled_from(forest.keys_), min_size=1, unique=True)))
                assert_whole_or_unknown(forest)


def assert_whole_or_unknown(forest):
    """Check that the forest is valid, and that exactly the unknown columns of its points are NaN."""
    check_stream(forest._stream)
    columns = forest._stream.columns
    assert_array_equal(np.isnan(forest.points_), np.tile(columns.is_unknown, (forest.n_points_, 1)))
    if columns.are_known:
        assert_whole(forest)


@settings(max_examples=examples(100))
@given(st.data(), tables(), detectors.filter(lambda one: one["window"] is not None))
def test_deletion_is_exact_for_any_chunks(data, rows, parameters):
    with short_warm_up():
        whole, parts = new(parameters), new(parameters)
        ends = cuts(data.draw, len(rows))
        for start, stop in pairwise(ends):
            detect(whole, rows, start, stop)
            for i in range(start, stop):
                detect(parts, rows, i, i + 1)
            if whole.n_points_:
                gone = data.draw(st.lists(st.sampled_from(whole.keys_), unique=True))
                kept = [key not in gone for key in whole.keys_]
                left = whole.points_[kept]
                whole.delete(gone)
                parts = loads(parts.delete(gone).to_bytes())
                assert_array_equal(whole.points_, left)
            assert_whole_or_unknown(whole)
        assert bits(parts) == bits(whole)


@settings(max_examples=examples(100))
@given(tables(), st.integers(0, 3), st.booleans())
def test_single_row_distances_match_batch_distances(rows, n_categories, is_coded):
    n_categories = min(n_categories, 2) if is_coded else 0
    rows = np.abs(rows).round() if n_categories else rows
    donors = np.nan_to_num(rows) + np.arange(len(rows))[:, None] % 2
    columns = np.ascontiguousarray(donors.T)
    together = imputation.completions(rows, donors, n_categories)
    for row, completed in zip(rows, together, strict=True):
        assert_array_equal(imputation.complete_row(row, columns, n_categories), completed)
