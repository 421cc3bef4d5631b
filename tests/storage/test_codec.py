"""Models as bytes: packed blocks round-trip, and other blocks are rejected before memory is allocated."""

import json
import struct
import tracemalloc
import zlib
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polyaforest import BatchMPF, ModelFileError, SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.storage.codec import is_packed, pack, unpack

HEADER = {"detector": "x", "nested": {"list": [1, 2.5, None, True], "text": "é\ud800"}}
ARRAYS = {
    "forest/left": np.arange(12, dtype=np.int32).reshape(3, 4),
    "scalar": np.array(1.5),
    "empty": np.empty((0, 3)),
    "flags": np.array([True, False]),
    "zeros": np.zeros(300),
}
RANGES = [(-128, 127), (-129, 127), (0, 2**31 - 1), (-(2**63), 2**63 - 1)]
dtypes = st.sampled_from(["?", "i1", "<i2", ">i4", "<i8", "u1", ">u8", "<f2", ">f4", "<f8"]).map(np.dtype)
arrays = st.dictionaries(
    st.text(max_size=5),
    dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))),
    max_size=4,
)


def block_of(contents, values=b"", *, is_compressed=0, sizes=None, version=2):
    """Return a block with a valid checksum, as only an attacker would write it."""
    text = contents if isinstance(contents, bytes) else json.dumps(contents).encode()
    body = text + values
    n_header, n_arrays = sizes or (len(text), len(values))
    start = struct.pack("<4sHHLQ", b"PMPF", version, is_compressed, n_header, n_arrays)
    block = start + (zlib.compress(body, 9) if is_compressed else body)
    return block + blake2b(block, digest_size=32).digest()


@given(arrays=arrays)
def test_unpack_inverts_pack(arrays):
    header, read = unpack(pack(HEADER, arrays))
    assert header == HEADER
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype.newbyteorder("=")
        assert read[name].shape == array.shape
        assert read[name].tobytes() == np.ascontiguousarray(array, array.dtype.newbyteorder("=")).tobytes()
        assert read[name].flags.writeable
        assert read[name].flags.c_contiguous


def test_equal_contents_give_equal_bytes():
    assert pack(HEADER, ARRAYS) == pack(HEADER, {name: array.copy() for name, array in ARRAYS.items()})
    assert is_packed(pack(HEADER, ARRAYS))


@pytest.mark.parametrize("arrays", [ARRAYS, {"random": np.random.default_rng(0).normal(size=30)}], ids=["deflated", ""])
def test_rejects_every_flipped_missing_or_added_byte(arrays):
    block = pack(HEADER, arrays)
    for i in range(len(block)):
        for changed in (
            block[:i] + bytes([block[i] ^ (1 << i % 8)]) + block[i + 1 :],
            block[:i],
            block[:i] + block[i + 1 :],
        ):
            with pytest.raises(ModelFileError):
                unpack(changed)
    with pytest.raises(ModelFileError):
        unpack(block + b"\0")


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"PMPF",
        block_of({"header": {}, "arrays": []}, version=0),
        block_of({"header": {}, "arrays": []}, version=4),
        block_of({"header": {}, "arrays": []}, b"extra"),
        block_of({"header": {}, "arrays": []}, sizes=(27, 2**63)),
        block_of({"header": {}, "arrays": []}, sizes=(2**32 - 1, 0)),
        block_of({"header": {}, "arrays": []}, is_compressed=1, sizes=(28, 2**40)),
        block_of({"header": {}, "arrays": []}, bytes(10**6), is_compressed=1),  # shrinks more than models do
        block_of({"header": {}, "arrays": []}, is_compressed=1, sizes=(20, 0)),
        block_of({"header": {}}),
        block_of({"header": [], "arrays": []}),
        block_of({"header": {}, "arrays": {}}),
        block_of([1]),
        block_of(b'{"header": {"a": NaN}, "arrays": []}'),
        block_of(b"[" * 100_000),
        block_of(b"\xff"),
        block_of({"header": {}, "arrays": [["a", "<f8"]]}),
        block_of({"header": {}, "arrays": [[1, "<f8", [], "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "|O8", [], "|O8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<U4", [], "<U4"]]}, bytes(16)),
        block_of({"header": {}, "arrays": [["a", ["<f8"], [], ["<f8"]]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<b4", [], "<b4"]]}, bytes(4)),
        block_of({"header": {}, "arrays": [["a", "<f8", [-1], "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", [-1, -1], "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", [True], "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", 1, "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", [2**62], "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", [0, 2**62], "<f8"]]}),
        block_of({"header": {}, "arrays": [["a", "<f8", [1] * 100, "<f8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", [1], "<f8"], ["a", "<f8", [1], "<f8"]]}, bytes(16)),
        block_of({"header": {}, "arrays": [["a", "<f8", [1]]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<f8", [1], "<f8"]]}, bytes(8), version=1),
        block_of({"header": {}, "arrays": [["a", "<f8", [1], "<f4"]]}, bytes(4)),
        block_of({"header": {}, "arrays": [["a", "<i8", [1], "|u1"]]}, bytes(1)),
        block_of({"header": {}, "arrays": [["a", "<i4", [1], "<i8"]]}, bytes(8)),
        block_of({"header": {}, "arrays": [["a", "<i8", [2**62], "|i1"]]}, bytes(1)),
        block_of({"header": {}, "arrays": [["a", "<i8", [1], None]]}, bytes(8)),
    ],
)
def test_rejects_crafted_block_in_little_memory(block):
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            unpack(block)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_reads_block_of_version_1():
    block = block_of({"header": {"b": 1}, "arrays": [["a", "<i8", [2]]]}, np.arange(2).tobytes(), version=1)
    header, arrays = unpack(block)
    assert header == {"b": 1}
    np.testing.assert_array_equal(arrays["a"], [0, 1])


def test_stores_integers_in_smallest_type():
    sizes = [len(pack({}, {"a": np.array([low, high] * 500)}, is_compact=True)) for low, high in RANGES]
    assert [size - sizes[0] for size in sizes] == [0, 1000, 3000, 7000]
    for low, high in RANGES:
        np.testing.assert_array_equal(unpack(pack({}, {"a": np.array([low, high])}))[1]["a"], [low, high])


@pytest.mark.parametrize("header", [{"a": float("nan")}, {1: 2}, {"a": (1, 2)}, {"a": "x" * 17 * 2**20}, {"a": {1}}])
def test_rejects_header_that_json_would_change(header):
    with pytest.raises((TypeError, ValueError)):
        pack(header, {})


def test_rejects_array_of_objects():
    with pytest.raises(ValueError, match="'a'"):
        pack({}, {"a": np.array([None])})


@pytest.mark.parametrize(
    "make",
    [
        lambda: StreamingMPF(n_estimators=3, window=20, random_state=0),
        lambda: SeriesMPF(StreamingMPF(n_estimators=3, window=20, random_state=0), shingle=2),
        lambda: BatchMPF(n_estimators=3, random_state=0),
    ],
)
def test_detector_round_trips_through_bytes(make):
    rows = np.random.default_rng(0).normal(size=(60, 2))
    detector = make()
    assert (detector.is_fitted, detector.nbytes) == (False, 0)
    detector.partial_fit(rows)
    read = loads(detector.to_bytes({"a": 1}))
    assert read.notes == {"a": 1}
    assert read.is_fitted
    assert read.nbytes == detector.nbytes > 0
    assert type(read) is type(detector)
    np.testing.assert_array_equal(read.score_samples(rows), detector.score_samples(rows))
    assert loads(read.to_bytes()).notes == {"a": 1}
