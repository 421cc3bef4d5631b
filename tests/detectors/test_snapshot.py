"""save and load: a loaded detector equals the saved one and continues identically; damaged files are rejected."""

import copy
import json
from datetime import timedelta

import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import NODE_PARTS

import polyaforest
from polyaforest import BatchMPF, ModelFileError, Reservoir, StreamingMPF, Tree, Window
from polyaforest.storage.modelfile import read_model, write_model

ROWS = np.random.default_rng(3).normal(size=(60, 3)).round(1)  # rounded: some coordinates are equal
TIMES = np.arange(60.0) * 1.5
SMALL = {"n_estimators": 4, "random_state": 5}

DETECTORS = {
    "table": lambda: made(StreamingMPF, **SMALL).fit(ROWS),
    "paper": lambda: made(
        StreamingMPF,
        **SMALL,
        tree=Tree(feature_weights=None, max_depth=4, domain="data"),
        max_samples=None,
        score_type="mass",
    ).fit(ROWS),
    "batch": lambda: made(BatchMPF, **SMALL, tree=Tree(max_depth=4, domain=[[-4] * 3, [4] * 3])).fit(ROWS),
    "batch multiscale": lambda: BatchMPF(n_estimators=3, tree=Tree(max_depth=3), score_type="multiscale").fit(ROWS),
    "window": lambda: made(StreamingMPF, **SMALL, window=9).partial_fit(ROWS),
    "window fitted": lambda: made(StreamingMPF, **SMALL, window=Window(9)).fit(ROWS),
    "warming up": lambda: made(StreamingMPF, **SMALL, window=100).partial_fit(ROWS[:3]),
    "an hour": lambda: made(StreamingMPF, **SMALL, window=timedelta(seconds=9)).partial_fit(ROWS, times=TIMES),
    "in time": lambda: made(StreamingMPF, **SMALL, window=Window(duration=9.0)).partial_fit(ROWS, times=TIMES),
    "reservoir": lambda: made(StreamingMPF, **SMALL, window=Reservoir(7)).partial_fit(ROWS),
    "fading": lambda: made(StreamingMPF, **SMALL, window=Reservoir(7, timedelta(seconds=4))).partial_fit(
        ROWS, times=TIMES
    ),
    "summary": lambda: made(StreamingMPF, **SMALL, window=None, tree=Tree(max_depth=3)).fit(ROWS),
    "young summary": lambda: made(StreamingMPF, **SMALL, window=None, tree=Tree(max_depth=3)).partial_fit(ROWS),
    "capped": lambda: made(
        StreamingMPF, **SMALL, window=20, tree=Tree(max_depth=3, lifetime=2.0), score_type="log_mass"
    ).partial_fit(ROWS),
    "weighted": lambda: made(
        StreamingMPF, **SMALL, window=8, tree=Tree(feature_weights=[1.0, 0.0, 2.0], domain=[[-9] * 3, [9] * 3])
    ).partial_fit(ROWS, keys=[f"row {i}" for i in range(len(ROWS))]),
    "empty": lambda: made(StreamingMPF, **SMALL, window=8).partial_fit(ROWS[:4]).delete([0, 1, 2, 3]),
}


@pytest.fixture(params=DETECTORS, ids=str)
def detector(request):
    return DETECTORS[request.param]()


def in_use(forest):
    """A forest but for the room that its arrays have left, which depends on how rows came."""
    used = int(forest.size.max())
    return forest._replace(**{name: getattr(forest, name)[:, :used] for name in NODE_PARTS})


def same_arrays(one, other):
    return all(
        np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f") for mine, theirs in zip(one, other, strict=True)
    )


def learn_more(detector):
    """Let a stream learn more and lose some; a table or a batch forest only answers."""
    rows = ROWS[:30] + 0.25
    answers = [detector.score_samples(rows), detector.mass(rows), detector.predict(rows)]
    if getattr(detector, "_stream", None) is not None:
        times = TIMES[:30] + 200.0
        keys = range(1000, 1030) if detector.window is not None else None
        answers.append(detector.score_then_learn(rows, keys=keys, times=times))
        if detector._stream.keeps_points:
            detector.delete(detector.keys_[2:4])
            answers += [detector.points_, np.array([str(key) for key in detector.keys_])]
        answers += [detector.score_then_learn(ROWS, times=TIMES + 300.0), np.array(detector.n_seen_)]
    return [*answers, *detector.forest_]


def test_saved_forest_loads_equal(detector, tmp_path):
    detector.save(tmp_path / "model.mpf")
    back = type(detector).load(tmp_path / "model.mpf")
    assert same_arrays(detector.forest_, back.forest_)
    assert back.n_features_in_ == 3
    for name, value in detector.get_params().items():
        if name != "tree":  # whose own parameters are among them
            assert np.array_equal(np.asarray(back.get_params()[name]), np.asarray(value)), name
    assert type(polyaforest.load(str(tmp_path / "model.mpf"))) is type(detector)


def test_saved_stream_continues_bit_for_bit(detector, tmp_path):
    detector.save(tmp_path / "model.mpf")
    back = polyaforest.load(tmp_path / "model.mpf")
    assert same_arrays(learn_more(back), learn_more(detector))


def test_saving_twice_gives_same_bytes(detector, tmp_path):
    detector.save(tmp_path / "one")
    polyaforest.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@settings(max_examples=examples(25))
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.sampled_from([1, 2, 5, 20, Reservoir(4)]))
def test_stream_does_not_depend_on_saving(tmp_path_factory, sizes, window):
    path = tmp_path_factory.mktemp("stops") / "model"
    never_stopped = made(StreamingMPF, **SMALL, window=window)
    stopped, scores, start = made(StreamingMPF, **SMALL, window=window), [], 0
    for size in sizes:
        chunk = ROWS[start : start + size + 1]
        scores.append(stopped.score_then_learn(chunk))
        stopped.save(path)
        stopped, start = StreamingMPF.load(path), start + len(chunk)
    assert np.array_equal(never_stopped.score_then_learn(ROWS[:start]), np.concatenate(scores))
    assert same_arrays(in_use(never_stopped.forest_), in_use(stopped.forest_))
    assert np.array_equal(never_stopped.points_, stopped.points_)


def test_column_names_are_kept(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(ROWS, columns=["a", "b", "ü"])
    made(StreamingMPF, **SMALL, window=5).partial_fit(frame).save(tmp_path / "model")
    back = StreamingMPF.load(tmp_path / "model")
    assert back.feature_names_in_.tolist() == ["a", "b", "ü"]
    with pytest.raises(ValueError, match="feature names"):
        back.partial_fit(frame.rename(columns={"a": "z"}))


def test_generator_as_random_state_can_be_saved(tmp_path):
    forest = StreamingMPF(n_estimators=2, random_state=np.random.RandomState(0)).fit(ROWS)
    forest.save(tmp_path / "model")
    back = StreamingMPF.load(tmp_path / "model")
    assert back.random_state is None
    assert np.array_equal(back.score_samples(ROWS), forest.score_samples(ROWS))


def test_pending_parameters_are_saved(tmp_path):
    forest = (
        made(StreamingMPF, **SMALL, window=6)
        .partial_fit(ROWS[:20])
        .set_params(window=3, tree=Tree(max_depth=1), score_type="mass")
    )
    forest.save(tmp_path / "model")
    back = StreamingMPF.load(tmp_path / "model")
    assert back.window == 3
    assert np.array_equal(back.score_then_learn(ROWS[20:]), forest.score_then_learn(ROWS[20:]))
    assert back.n_points_ == 6


@pytest.mark.parametrize("leave", ["delete", "delete_rows", "evict"])
@pytest.mark.parametrize("settings_", [{}, {"max_depth": 3}, {"lifetime": 1.0}], ids=str)
def test_file_contains_no_trace_of_deleted_points(tmp_path, leave, settings_):
    secret = np.array([[7.123456789012345e7, -3.98765432109876e-5, 1.357924680123456e3]])
    forest = (
        made(StreamingMPF, **SMALL, window=300, **settings_).partial_fit(ROWS).partial_fit(secret, keys=["Jane Doe"])
    )
    forest.partial_fit(ROWS + 0.5)
    forest.save(tmp_path / "with")
    held = (tmp_path / "with").read_bytes()
    assert all(value.tobytes() in held for value in secret[0])
    assert b"Jane Doe" in held
    if leave == "delete":
        forest.delete("Jane Doe")
    elif leave == "delete_rows":
        forest.delete_rows(secret)
    else:
        forest.partial_fit(np.tile(ROWS, (6, 1)) + 0.125)
    forest.save(tmp_path / "without")
    gone = (tmp_path / "without").read_bytes()
    assert not any(value.tobytes() in gone for value in secret[0])
    assert b"Jane" not in gone


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_rejects_file_of_other_detector(tmp_path):
    DETECTORS["batch"]().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="contains a BatchMPF, not a StreamingMPF"):
        StreamingMPF.load(tmp_path / "model")


def test_unfitted_forest_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        StreamingMPF().save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_rejects_flipped_bits_and_truncation(tmp_path):
    path = tmp_path / "model"
    DETECTORS["capped"]().save(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place in rng.integers(len(whole), size=200):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(ModelFileError):
            polyaforest.load(path)
        path.write_bytes(whole[:place])
        with pytest.raises(ModelFileError):
            polyaforest.load(path)


def tampered(path, change):
    """Write the model at `path` again after `change` to its header and arrays: with all its digests in order."""
    header, arrays = read_model(path)
    change(header, arrays)
    write_model(path, header, arrays)


CRAFTED = {
    "cycle": lambda h, a: a["forest/left"].__setitem__((0, a["forest/root"][0]), a["forest/root"][0]),
    "child out of range": lambda h, a: a["forest/right"].__setitem__((1, a["forest/root"][1]), 10**6),
    "list without end": lambda h, a: a["points/links"].__setitem__((0, np.s_[:], 1), 0),
    "point in no leaf": lambda h, a: a["points/head"].fill(-1),
    "head out of range": lambda h, a: a["points/head"].__setitem__((0, 0), 99999),
    "a point moved": lambda h, a: a["points/values"].__iadd__(1.0),
    "NaN point": lambda h, a: a["points/values"].__setitem__((0, 0), np.nan),
    "no trees": lambda h, a: a.update({name: part[:0] for name, part in a.items() if name.startswith("forest/")}),
    "another number of features": lambda h, a: h.update(n_features=2),
    "names of other columns": lambda h, a: h.update(feature_names=["a"]),
    "arrival of the future": lambda h, a: h["stream"].update(n_seen=3),
    "keys of others": lambda h, a: a.update({"stream/keys": np.frombuffer(b"[1, 2]", np.uint8)}),
    "key of no kind": lambda h, a: a.update({"stream/keys": np.frombuffer(b"[[1], 2]", np.uint8)}),
    "keys twice": lambda h, a: a.update({"stream/keys": np.frombuffer(json.dumps([7] * 20).encode(), np.uint8)}),
    "smaller window than held": lambda h, a: h["stream"].update(policy={"window": [2, None]}),
    "policy of no kind": lambda h, a: h["stream"].update(policy={"magic": 1}),
    "policy that is a number": lambda h, a: h["stream"].update(policy=7),
    "score of no kind": lambda h, a: h["stream"].update(score="best"),
    "parameter of no kind": lambda h, a: h["parameters"].update(score="best"),
    "unknown parameter": lambda h, a: h["parameters"].update(colour="red"),
    "unknown detector": lambda h, a: h.update(detector="Forest"),
    "no parameters": lambda h, a: h.pop("parameters"),
    "no stream": lambda h, a: h.pop("stream"),
    "deeper than allowed": lambda h, a: h["stream"].update(max_depth=1),
    "another lifetime": lambda h, a: a.update({"stream/lifetime": np.array(1.5)}),
    "prior of nothing": lambda h, a: a.update({"prior_strength": np.array(-1.0)}),
    "lifetimes upside down": lambda h, a: a.update({"lifetimes": a["lifetimes"][::-1].copy()}),
    "generator cut short": lambda h, a: a.update({"stream/rng": a["stream/rng"][:2]}),
    "counts as text would be": lambda h, a: a.update({"forest/counts": a["forest/counts"].astype(np.int8)}),
    "missing array": lambda h, a: a.pop("forest/cut"),
    "missing part of the stream": lambda h, a: a.pop("stream/floor"),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED)
def test_rejects_crafted_file(tmp_path, change):
    path = tmp_path / "model"
    DETECTORS["capped"]().save(path)
    tampered(path, lambda header, arrays: None)
    assert polyaforest.load(path).n_points_ == 20
    tampered(path, change)
    with pytest.raises(ModelFileError):
        polyaforest.load(path)


@settings(max_examples=examples(150))
@given(st.data())
def test_arbitrary_arrays_never_crash_loading(tmp_path_factory, data):
    """A forest with other numbers in it may be a forest too; but it is refused or works."""
    path = tmp_path_factory.mktemp("fuzz") / "model"
    DETECTORS[data.draw(st.sampled_from(["capped", "batch", "table", "fading", "young summary"]))]().save(path)
    header, arrays = read_model(path)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(name for name, part in arrays.items() if part.size)))
        part = arrays[name].reshape(-1)
        odd = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300, 5e-324]
        limits = np.iinfo(part.dtype) if part.dtype.kind in "iu" else None
        value = data.draw(st.integers(limits.min, limits.max) | st.integers(0, 20) if limits else st.sampled_from(odd))
        part[data.draw(st.integers(0, part.size - 1))] = value
    write_model(path, header, arrays)
    try:
        forest = polyaforest.load(path)
    except ModelFileError:
        return
    with np.errstate(all="ignore"):
        assert forest.score_samples(ROWS).shape == (len(ROWS),)
        assert copy.deepcopy(forest).mass(ROWS).shape == (len(ROWS),)
