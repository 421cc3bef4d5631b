"""Threads read while others learn: nothing breaks, and readers do not change what is learned."""

import sys
import threading

import numpy as np
import pytest
from effort import mostly_slow
from forests import made
from readers import READERS
from streams import assert_whole, bits

from polyaforest import Reservoir, StreamingMPF, Window

pytestmark = pytest.mark.end_to_end

ROWS = np.random.default_rng(0).normal(size=(6000, 3)) * [1.0, 10.0, 100.0]
PROBES = ROWS[::600]
STUCK = 60.0  # seconds


@pytest.fixture(autouse=True)
def _threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def build(**parameters):
    return made(StreamingMPF, **{"n_estimators": 8, "random_state": 0, "window": 200} | parameters)


def together(*works, meanwhile=()):
    """Do all `works` at once, in threads, and until they are done the things of `meanwhile` over and over.

    Returns how often each of those was done.
    """
    done, problems, counts = threading.Event(), [], [0] * len(meanwhile)

    def guarded(work):
        try:
            work()
        except BaseException as problem:
            problems.append(problem)
            done.set()

    def repeat(k):
        while not done.is_set():
            meanwhile[k]()
            counts[k] += 1

    readers = [threading.Thread(target=guarded, args=(lambda k=k: repeat(k),), daemon=True) for k in range(len(counts))]
    workers = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in (*readers, *workers):
        thread.start()
    for thread in workers:
        thread.join(STUCK)
    done.set()
    for thread in readers:
        thread.join(STUCK)
    assert not problems, problems
    assert not any(thread.is_alive() for thread in (*readers, *workers)), "stuck"
    return counts


def live(forest, scores, n=6000):
    """Learn the rows from 200 on in many small steps, and delete some on the way."""
    rng, start = np.random.default_rng(1), 200
    while start < n:
        stop = min(start + int(rng.integers(1, 40)), n)
        given = {"times": np.arange(start, stop, dtype=float)}
        scores.append(forest.score_then_learn(ROWS[start:stop], **given))
        if rng.random() < 0.3:
            forest.delete(forest.keys_[:: int(rng.integers(5, 50))])
        start = stop


def begun(**parameters):
    return build(**parameters).partial_fit(ROWS[:200], times=np.arange(200.0))


@pytest.mark.parametrize(
    "parameters",
    mostly_slow(
        [
            {},
            {"window": Window(duration=150.0), "score_type": "mass", "max_depth": 5},
            {"window": Reservoir(150), "score_type": "log_mass", "n_jobs": 2},
        ],
        2,
    ),
    ids=["window", "time", "reservoir"],
)
def test_concurrent_reading_and_learning_give_correct_results(parameters):
    forest, alone = begun(**parameters), begun(**parameters)
    scores, expected, strange = [], [], []

    def score():
        found = forest.score_samples(PROBES)
        if not np.isfinite(found).all():
            strange.append(found)

    def ask():
        for name, arguments in READERS.items():
            if np.isnan(np.asarray(getattr(forest, name)(PROBES, **arguments), float)).any():
                strange.append(name)

    n_read = together(lambda: live(forest, scores), meanwhile=[score, ask])
    live(alone, expected)
    np.testing.assert_array_equal(np.concatenate(scores), np.concatenate(expected))
    assert bits(forest) == bits(alone)
    assert_whole(forest)
    assert not strange
    assert min(n_read) >= 3  # readers were let in
    np.testing.assert_array_equal(forest.mass(PROBES), alone.mass(PROBES))
    assert forest.offset_ == alone.offset_


def test_points_held_can_be_read_while_learning():
    forest = begun()

    def look():
        points, keys = forest.points_, forest.keys_
        assert points.shape[1] == 3
        assert (np.diff(keys) > 0).all()
        assert np.isin(points, ROWS).all()
        assert 100 <= len(keys) <= 200
        assert np.isfinite(forest.offset_)
        assert forest.n_points_ <= 200

    n_read = together(lambda: live(forest, [], n=3000), meanwhile=[look])
    assert min(n_read) >= 3
    assert_whole(forest)


def test_learning_forest_can_be_copied(tmp_path):
    forest = begun()

    def save():
        forest.save(tmp_path / "model.mpf")
        assert_whole(StreamingMPF.load(tmp_path / "model.mpf"))

    assert min(together(lambda: live(forest, [], n=3000), meanwhile=[save])) >= 1


def test_threads_can_learn_concurrently():
    """In which order is anyone's guess, but every row is learned once, under its own key."""
    forest, keys = begun(window=6000), {}

    def learn(k):
        for i in range(1000 + k, 2200, 3):
            keys[forest.insert(ROWS[i], time=0.0)] = i
            if i % 7 == 0:
                forest.partial_fit(ROWS[3000 + i : 3001 + i], keys=[f"{k}: {i}"], times=[0.0])

    together(*(lambda k=k: learn(k) for k in range(3)), meanwhile=[lambda: forest.score_samples(PROBES)])
    assert_whole(forest)
    n_named = sum(i % 7 == 0 for i in range(1000, 2200))
    assert forest.n_seen_ == forest.n_points_ == 200 + 1200 + n_named
    held = dict(zip(forest.keys_, forest.points_, strict=True))
    assert len(keys) == 1200
    for key, i in keys.items():
        np.testing.assert_array_equal(held[key], ROWS[i])


def test_threads_can_start_stream_concurrently():
    """One thread creates the stream, the others continue it."""
    for _ in range(5):
        forest, ready = build(), threading.Barrier(4)

        def begin(k, forest=forest, ready=ready):
            ready.wait(STUCK)
            forest.partial_fit(ROWS[10 * k : 10 * k + 10])

        together(*(lambda k=k, begin=begin: begin(k) for k in range(4)))
        assert forest.n_seen_ == 40
        assert_whole(forest)
