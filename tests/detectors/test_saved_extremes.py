"""Saved models load and continue bit for bit, for extreme values, weights, times and settings."""

from io import BytesIO

import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st

import polyaforest
from polyaforest import BatchMPF, Reservoir, SeriesMPF, StreamingMPF, Tree, Window
from polyaforest.forest.stream_rows import widen
from polyaforest.storage.modelfile import read_model, write_model

pytestmark = pytest.mark.property

SMALL = {"n_estimators": 3, "random_state": 1}
SIZES = st.sampled_from([0.0, 1e-100, 3e-100, 1e-75, 1e-10, 1.0, 7.0, 1e10, 1e75, 3e98, 1e99])
VALUES = st.builds(lambda size, sign: size * sign, SIZES, st.sampled_from([-1.0, 1.0]))
TABLES = st.one_of(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=12),
    st.builds(lambda row, n: [row] * n, st.tuples(VALUES, VALUES), st.integers(1, 12)),  # all equal
).map(lambda rows: np.array(rows, np.float64))
WEIGHTS = st.sampled_from(["auto", None, [1e-100, 1.0], [1e100, 0.0], [1e-100, 0.0], [1e100, 1e100]])
STREAMS = {
    "window": lambda weights: made(StreamingMPF, **SMALL, window=4, tree=Tree(feature_weights=weights)),
    "young": lambda weights: made(StreamingMPF, **SMALL, tree=Tree(feature_weights=weights, max_depth=np.int64(3))),
    "one": lambda weights: made(StreamingMPF, **SMALL, window=1, tree=Tree(feature_weights=weights)),
    "in time": lambda weights: made(
        StreamingMPF, **SMALL, window=Window(5, duration=1e-300), tree=Tree(feature_weights=weights)
    ),
    "reservoir": lambda weights: made(StreamingMPF, **SMALL, window=Reservoir(3), tree=Tree(feature_weights=weights)),
    "fading": lambda weights: made(
        StreamingMPF, **SMALL, window=Reservoir(3, half_life=1e-300), tree=Tree(feature_weights=weights)
    ),
    "summary": lambda weights: made(
        StreamingMPF, **SMALL, window=None, tree=Tree(max_depth=3, feature_weights=weights)
    ),
    "closed": lambda weights: made(
        StreamingMPF, **SMALL, window=4, tree=Tree(domain="data", feature_weights=weights), score_type="mass"
    ),
    "brief": lambda weights: made(StreamingMPF, **SMALL, window=4, tree=Tree(lifetime=5e-324, feature_weights=weights)),
    "faint prior": lambda weights: made(
        StreamingMPF, **SMALL, window=4, tree=Tree(prior_strength=1e-100, feature_weights=weights)
    ),
    "strong prior": lambda weights: made(
        StreamingMPF, **SMALL, window=4, tree=Tree(prior_strength=1e100, feature_weights=weights)
    ),
    "series": lambda weights: SeriesMPF(made(StreamingMPF, **SMALL, window=4), shingle=2, every=1e-300),
    "changes": lambda weights: SeriesMPF(made(StreamingMPF, **SMALL, window=4), shingle=2, difference=True),
}


def loaded(model):
    """Return the model after saving and loading."""
    file, again = BytesIO(), BytesIO()
    model.save(file)
    polyaforest.load(BytesIO(file.getvalue())).save(again)
    assert file.getvalue() == again.getvalue()
    return polyaforest.load(BytesIO(file.getvalue()))


def times_of(model, start, n):
    """Return times from 0 on in steps that a window of 1e-300 distinguishes, if the model needs times."""
    window = getattr(model, "window", None)
    return (
        np.arange(start, start + n) * 1e-301 if window is not None and getattr(window, "needs_times", False) else None
    )


def same(one, other):
    return all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=examples(12))
@given(rows=TABLES, more=TABLES, weights=WEIGHTS, gone=st.integers(0, 12))
def test_saved_stream_continues_bit_for_bit(name, rows, more, weights, gone):
    model = STREAMS[name](weights)
    model.detect_then_learn(rows, times=times_of(model, 0, len(rows)))
    if hasattr(model, "keys_"):
        for key in model.keys_[:gone]:
            if key in model.keys_:
                model.delete(key)
    back = loaded(model)
    times = times_of(model, len(rows), len(more))
    assert same(model.detect_then_learn(more, times=times)[:4], back.detect_then_learn(more, times=times)[:4])
    loaded(back)


@pytest.mark.parametrize("make", [StreamingMPF, BatchMPF])
@settings(max_examples=examples(12))
@given(rows=TABLES, more=TABLES, weights=WEIGHTS)
def test_saved_table_gives_same_results_and_continues(make, rows, more, weights):
    limits = {"max_depth": 3} if make is BatchMPF else {}
    model = made(make, **SMALL, **limits, feature_weights=weights).fit(rows)
    back = loaded(model)
    assert same(model.detect(rows)[:4], back.detect(rows)[:4])
    assert same(model.partial_fit(more).detect(rows)[:4], back.partial_fit(more).detect(rows)[:4])
    loaded(back)


def test_accepts_times_that_underflow(tmp_path):
    """Such times come from trees whose weighted lengths exceed today's limits of weights and values."""
    made(StreamingMPF, **SMALL, window=4).partial_fit([[0.0, 0.0], [1.0, 1.0]]).save(tmp_path / "model")
    header, arrays = read_model(tmp_path / "model")
    trees = np.arange(3)
    assert (arrays["forest/feature"][trees, arrays["forest/root"]] >= 0).all()  # all roots are cut
    arrays["forest/time"][trees, arrays["forest/root"]] = 0.0
    write_model(tmp_path / "model", header, arrays)
    model = polyaforest.load(tmp_path / "model")
    assert np.isfinite(model.score_then_learn([[0.5, 2.0], [0.0, 0.0]])).all()
    loaded(model.delete([0, 2]))


def test_accepts_forest_widened_beyond_its_domain():
    model = made(StreamingMPF, **SMALL, window=4, tree=Tree(domain=[[0.0], [1.0]])).partial_fit([[0.5], [0.25]])
    widen(model._stream, np.array([7.0]), None)
    model._model.refresh()
    model.n_features_in_ = 2
    back = loaded(model)
    row = [[0.5, 3.0]]
    assert same([model.score_then_learn(row)], [back.score_then_learn(row)])
