"""Compact states: small, exact, and always consistent after loading, even from crafted bytes."""

import io
import random
import tracemalloc

import numpy as np
import pytest
from crafted import MODELS, changed, good_blocks, judged
from numpy.testing import assert_array_equal

from polyaforest import ModelFileError, SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.forest.stream_checks import check_stream
from polyaforest.storage.codec import pack, unpack

ROWS = np.random.default_rng(3).normal(size=(900, 3))


@pytest.fixture(scope="module")
def full():
    """Return a forest of 100 trees with a full window of 256 x 3."""
    return judged(StreamingMPF(random_state=0, window=256), ROWS)


@pytest.fixture(scope="module")
def blocks():
    return good_blocks()


def sealed(model):
    file = io.BytesIO()
    model.save(file)
    return file.getvalue()


def views(model):
    return list(model.estimators_.values()) if isinstance(model, SeriesMPF) else [model]


def test_a_full_window_takes_a_twentieth_of_its_file(full):
    assert len(full.to_bytes()) < min(100_000, len(sealed(full)) / 18)


def test_a_series_takes_a_ninth_of_its_file():
    steps = np.arange(2400)
    series = judged(
        SeriesMPF(StreamingMPF(random_state=0)), np.sin(steps / 20) + np.random.default_rng(0).normal(size=2400) / 9
    )
    assert series.n_points_ == 2048
    assert len(series.to_bytes()) < min(1_500_000, len(sealed(series)) / 8)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"batch"}))
def test_loaded_stream_is_equal_and_continues_equally(name):
    model = MODELS[name]()
    block = model.to_bytes()
    read = loads(block)
    assert read.to_bytes() == block
    for one, other in zip(views(model), views(read), strict=True):
        if not one.is_fitted:
            continue
        for part, theirs in zip(one.forest_, other.forest_, strict=True):
            room = tuple(map(slice, map(min, part.shape, theirs.shape)))
            assert_array_equal(part[room], theirs[room])
        check_stream(other._stream)
        assert_array_equal(one._stream.cutoffs, other._stream.cutoffs)
    rows = np.random.default_rng(1).normal(size=(9, 2)) * 2 + 4
    times = 2e9 + np.arange(9.0)
    if name in ("named series", "contexts of a table"):
        times = None
    labels = {"keys": [f"n{i}" for i in range(9)]} if name == "named series" else {}
    first, second = (one.detect_then_learn(rows, times=times, explain=True, **labels) for one in (model, read))
    for mine, theirs in zip(first[:4], second[:4], strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert {i: str(why) for i, why in first.explanations.items()} == {
        i: str(why) for i, why in second.explanations.items()
    }
    assert model.to_bytes() == read.to_bytes()


def test_bytes_do_not_depend_on_chunks(full):
    """They contain neither slots taken in chunks nor capacity for removed nodes."""
    twin = StreamingMPF(random_state=0, window=256)
    for row in ROWS[:40]:
        twin.detect_then_learn(row[None])
    for start in range(40, 900, 43):
        twin.detect_then_learn(ROWS[start : min(start + 43, 900)])
    assert twin.to_bytes() == full.to_bytes()


def test_rejects_every_flipped_or_missing_byte():
    block = judged(StreamingMPF(n_estimators=2, window=9, random_state=0), ROWS[:20]).to_bytes()
    for i in range(len(block)):
        for harmed in (block[:i] + bytes([block[i] ^ (1 << i % 8)]) + block[i + 1 :], block[:i]):
            with pytest.raises(ModelFileError):
                loads(harmed)


@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("size", lambda part: part + 2),
        ("size", lambda part: part * 0),
        ("size", lambda part: -part),
        ("feature", lambda part: part * 0 - 1),  # leaves only
        ("feature", lambda part: part * 0),  # no leaf
        ("feature", lambda part: part + 3),
        ("feature", lambda part: part - 9),
        ("feature", lambda part: part[::-1].copy()),
        ("slot", lambda part: part * 0),
        ("slot", lambda part: part + 1),
        ("slot", lambda part: part - 1),
        ("slot", lambda part: part + 2**30),
        ("cut", lambda part: part * np.nan),
        ("cut", lambda part: part + 1e9),
        ("cut", lambda part: part[:-1]),
        ("time", lambda part: part * np.nan),
        ("time", lambda part: part[::-1].copy()),
        ("time", lambda part: part - 1e9),
        ("time", lambda part: part + np.inf),
        ("bars", lambda part: part * 0),
        ("bars", lambda part: part * 0 + 2**63),
        ("seeds", lambda part: part + np.uint64(1)),
        ("samples", lambda part: part * 0),
        ("samples", lambda part: -part),
        ("samples", lambda part: part + 1),
        ("values", lambda part: part * np.nan),
        ("values", lambda part: part * 1e300),
        ("values", lambda part: part[:-1]),
        ("values", lambda part: part[:0]),
        ("weights", lambda part: part * np.nan),
        ("rng", lambda part: part * 0),
        ("domain", lambda part: part * 0 - [[-1.0], [1.0]]),
        ("ages", lambda part: part * 0),
        ("ages", lambda part: part * 0 + 1),
        ("ages", lambda part: part + 10**6),
        ("judges", lambda part: part * 0 + 1),
        ("judges", lambda part: part - 10**6),
        ("left", lambda part: np.zeros(3, np.int32)),
    ],
)
def test_rejects_inconsistent_block(full, array, change):
    header, arrays = unpack(full.to_bytes())
    name = f"compact/{array}"
    given = arrays.get(name, np.zeros(0))
    with np.errstate(all="ignore"):
        changed = change(given)
    with pytest.raises(ModelFileError):
        loads(pack(header, {**arrays, name: changed.astype(given.dtype) if name in arrays else changed}))


@pytest.mark.parametrize("place", ["n_seen", "max_depth", "next_birth", "policy"])
def test_rejects_inconsistent_header(full, place):
    header, arrays = unpack(full.to_bytes())
    lie = {"n_seen": 3, "max_depth": 1, "next_birth": 4, "policy": {"window": [9, None]}}[place]
    with pytest.raises(ModelFileError):
        loads(pack({**header, "stream": {**header["stream"], place: lie}}, arrays))


def test_rejects_block_with_full_trees_beside_compact_ones(full):
    header, arrays = unpack(full.to_bytes())
    for extra in ("forest/left", "points/values"):
        with pytest.raises(ModelFileError, match=extra):
            loads(pack(header, {**arrays, extra: np.zeros((2, 2))}))


def test_rejects_small_block_that_needs_much_memory(full):
    """One tree with half of the points and many trees with one point each would exhaust memory when stacked."""
    header, arrays = unpack(full.to_bytes())
    n_trees, n_points = 40_000, 150_000
    part = {name.removeprefix("compact/"): array for name, array in arrays.items() if name.startswith("compact/")}
    size = np.ones(n_trees, np.int32)
    size[0] = 2 * n_points - 1
    lies = {
        "size": size,
        "feature": np.full(int(size.sum()), -1, np.int32),
        "slot": np.zeros(int(size.sum()), np.int32),
        "cut": np.zeros(n_points - 1),
        "time": np.zeros(n_points - 1),
        "weights": np.ones((n_trees, 3)),
        "rng": np.ones((n_trees, 4), np.uint64),
        "samples": np.where(size > 1, 0, 1),
        "seeds": np.ones(n_trees, np.uint64),
        "bars": np.full(n_trees, 2**63, np.uint64),
        "values": np.zeros((n_points, 3)),
        "ages": np.arange(n_points, 0, -1),
    }
    block = pack(
        header, {**arrays, **{f"compact/{name}": lie for name, lie in {**part, **lies}.items()}}, is_compact=True
    )
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="fit into memory"):
            loads(block)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(block)
    finally:
        tracemalloc.stop()


def test_keys_of_every_type_survive():
    for keys in (range(900), range(5000, 5900), [f"k{i}" for i in range(900)], [2**70 - i for i in range(900)]):
        model = StreamingMPF(n_estimators=2, window=20, random_state=0).partial_fit(ROWS, keys=list(keys))
        read = loads(model.to_bytes())
        assert read.keys_ == model.keys_ == list(keys)[-20:]
        with pytest.raises(ValueError, match="is already in use"):
            read.partial_fit(ROWS[:1], keys=[keys[-1]])


def test_crafted_blocks_are_rejected_or_valid(blocks, any_seed):
    """Short version of the fuzz test: accepted files have passed all checks."""
    rng = random.Random(any_seed)

    for _ in range(150):
        name = rng.choice(sorted(blocks))
        with np.errstate(all="ignore"):
            block = pack(*changed(*blocks[name], rng))
        try:
            model = loads(block)
        except ModelFileError:
            continue
        for view in views(model):
            if view.is_fitted:
                check_stream(view._stream)


@pytest.mark.parametrize("lie", [[np.inf, np.inf], [1.0, np.nan], [2.0, 1.0]])
def test_rejects_score_times_that_do_not_increase(full, lie):
    """No warning is raised, as by differences of infinite numbers."""
    header, arrays = unpack(full.to_bytes())
    grid = arrays["stream/grid"].copy()
    grid[:2] = lie
    with pytest.raises(ModelFileError, match="grid"):
        loads(pack(header, {**arrays, "stream/grid": grid}))


def test_rejects_sample_sizes_beyond_every_point(full):
    header, arrays = unpack(full.to_bytes())
    sizes = arrays["compact/samples"].copy()
    sizes[-1] = 2**62 + 1
    with pytest.raises(ModelFileError, match="sample sizes of trees must be positive"):
        loads(pack(header, {**arrays, "compact/samples": sizes}))
