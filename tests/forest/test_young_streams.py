"""Fast starting and saving of streams does not change their bits."""

from __future__ import annotations

import hashlib
import zipfile
from io import BytesIO

import numpy as np
import pytest
from forests import made
from numpy.lib import format as npy

from polyaforest import StreamingMPF
from polyaforest.kernels.rng import seed_states, seeds_of_stream
from polyaforest.storage import modelfile
from polyaforest.util import parallel

pytestmark = pytest.mark.plain

ROWS = np.random.default_rng(11).normal(size=(40, 3))


def saved(forest: StreamingMPF) -> bytes:
    file = BytesIO()
    forest.save(file)
    return file.getvalue()


@pytest.mark.parametrize(
    "parameters",
    [{}, {"max_samples": 3}, {"feature_weights": [1.0, 0.0, 2.0]}, {"max_depth": 2}, {"window": None, "max_depth": 4}],
)
def test_trees_grown_in_one_call_match_trees_grown_one_by_one(monkeypatch, parameters):
    def grown() -> bytes:
        forest = made(StreamingMPF, **{"n_estimators": 6, "window": 16, "random_state": 3, **parameters})
        for row in ROWS:
            forest.detect_then_learn(row[None])
        return saved(forest)

    together = grown()
    monkeypatch.setattr(parallel, "_LEAST_WORK", 0)
    assert grown() == together


@pytest.mark.parametrize("entropy", [0, 2**80, [1, 2, 3]])
def test_seeds_of_stream_match_spawned_seeds(entropy):
    spawning = np.random.SeedSequence(entropy, spawn_key=(4,), n_children_spawned=2)
    for _ in range(2):  # the second time from memory, which no other process writes
        states, policy, samples, after = seeds_of_stream(
            np.random.SeedSequence(entropy, spawn_key=(4,), n_children_spawned=2), 5
        )
        expected = np.random.SeedSequence(entropy, spawn_key=(4,), n_children_spawned=2)
        np.testing.assert_array_equal(states, seed_states(expected, 5))
        np.testing.assert_array_equal(policy, expected.spawn(1)[0].generate_state(4, np.uint64))
        np.testing.assert_array_equal(samples, expected.spawn(1)[0].generate_state(5, np.uint64))
        np.testing.assert_array_equal(after.spawn(1)[0].generate_state(4), expected.spawn(1)[0].generate_state(4))
        for part in (states, policy, samples):
            part[:] = 0
    assert spawning.n_children_spawned == 2


def test_validates_equal_parameters_of_another_type():
    StreamingMPF(n_estimators=1, window=16).partial_fit(ROWS)
    with pytest.raises(ValueError, match="n_estimators"):
        StreamingMPF(n_estimators=1.0, window=16).partial_fit(ROWS)


def as_zipfile_writes(header: bytes, stored: dict[str, np.ndarray]) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {"header.json": np.frombuffer(header, np.uint8), **stored}.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as stream:
                npy.write_array(stream, array, version=(1, 0), allow_pickle=False)
        archive.comment = b"\0" * modelfile._SEAL_SIZE
    whole = file.getvalue()[: -modelfile._SEAL_SIZE]
    return whole + modelfile._SEAL + hashlib.sha256(whole).hexdigest().encode()


@pytest.mark.parametrize("largest", [2**31 - 1, 700, 0])
def test_archives_match_zipfile(monkeypatch, largest):
    """Cover archives beyond 2 GB by lowering the limit."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", largest)
    monkeypatch.setattr(modelfile, "_LARGEST_DIRECT", largest)
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b/none": np.empty((0, 4), np.int32),
        "b/one": np.array(2.5),
        "b/many": np.arange(400, dtype=np.uint16),
        "is": np.array([True, False]),
    }
    file = BytesIO()
    modelfile._write_archive(file, b'{"x":1}', arrays)
    assert file.getvalue() == as_zipfile_writes(b'{"x":1}', arrays)
    with zipfile.ZipFile(BytesIO(file.getvalue())) as archive:
        assert archive.testzip() is None
