"""Copies and pickles of detectors that another thread changes are consistent.

All runs are separate processes with a time limit: an inconsistent copy can crash its user.
"""

import copy
import os
import pickle
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from effort import FULL, PROFILE, mostly_slow
from streams import bits

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Tree

pytestmark = pytest.mark.end_to_end

ROWS = np.random.default_rng(0).normal(size=(600, 3))
STUCK = 240  # seconds
N_COPIES = 24 if PROFILE == FULL else 8
FORKS = hasattr(os, "fork")

SHARED = f"""
import faulthandler
faulthandler.dump_traceback_later({STUCK}, exit=True)
import copy, io, os, pickle, signal, sys, threading
from contextlib import contextmanager
import joblib
import numpy as np
from streams import assert_whole, bits
from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest import SeriesMPF

sys.setswitchinterval(1e-5)
ROWS = np.random.default_rng(0).normal(size=(4096, 3))
STEP, PROBES = 128, ROWS[::512]  # a series is learned in pieces that end with every 256th row


class Stream:
    build = staticmethod(lambda: StreamingMPF(n_estimators=16, window=300, random_state=0))
    learn = staticmethod(lambda one, rows: one.partial_fit(rows))
    seen = staticmethod(lambda one: one.n_seen_)

    @staticmethod
    def state(one):
        assert_whole(one)
        return bits(one), one.score_samples(PROBES).tobytes(), one.mass(PROBES).tobytes()


class Batch(Stream):
    build = staticmethod(
        lambda: BatchMPF(n_estimators=16, tree=Tree(domain=[[-9] * 3, [9] * 3]), false_alarm_rate=0.1, random_state=0)
    )
    seen = staticmethod(lambda one: one.n_points_)

    @staticmethod
    def state(one):
        return one.mass(PROBES).tobytes(), one.p_value(PROBES).tobytes(), one.offset_


class Series(Stream):
    build = staticmethod(lambda: SeriesMPF(StreamingMPF(n_estimators=8, window=300, random_state=0), shingle=4))

    @staticmethod
    def state(one):
        return one.n_seen_, one.keys_, bits(one.estimator_), one.score_samples(PROBES).tobytes()


class Refitted(Stream):
    "Tables of other columns in turn: a copy is of one table or the other."
    build = staticmethod(lambda: StreamingMPF(n_estimators=8, random_state=0))
    seen = staticmethod(lambda one: one.n_features_in_)

    @staticmethod
    def learn(one, rows):
        n_features = 5 - getattr(one, "n_features_in_", 2)
        one.fit(ROWS[: 100 * n_features, :n_features])

    @staticmethod
    def state(one):
        return one.score_samples(PROBES[:, : one.n_features_in_]).tobytes(), one.offset_


class River(Stream):
    "A new feature every now and then, which makes another column."
    seen = staticmethod(lambda one: one._n_learned)

    @staticmethod
    def build():
        from polyaforest.adapters.river import StreamingMPF
        return StreamingMPF(n_estimators=8, window=64, seed=0, grace_period=0)

    @staticmethod
    def learn(one, rows):
        n_features = 2 + min(River.seen(one) // 50, 6)
        one.learn_one({{f"f{{k}}": rows[0, k % 3] for k in range(n_features)}})

    @staticmethod
    def state(one):
        scores = [one.score_one(dict(zip(one.features, np.resize(row, len(one.features))))) for row in PROBES]
        return scores, one.features, bits(one.forest)


def rows_at(k):
    return ROWS[k % len(ROWS) :][:STEP]


def learner(kind, one):
    k = STEP  # the first rows are learned by now
    while True:
        kind.learn(one, rows_at(k))
        k += STEP
        yield


@contextmanager
def learning(kind):
    "Yield a detector that a thread keeps teaching."
    one, done, problems = kind.build(), threading.Event(), []
    kind.learn(one, rows_at(0))
    kind.state(one)  # all is compiled

    def teach():
        try:
            for _ in learner(kind, one):
                if done.is_set():
                    return
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=teach, daemon=True)
    thread.start()
    yield one
    done.set()
    thread.join()
    assert not problems, problems


def assert_of_one_moment(kind, copies):
    "Each copy is what a detector was that learned alone, after some call."
    wanted = {{kind.seen(one): set() for one in copies}}
    found = [(kind.seen(one), repr(kind.state(one))) for one in copies]
    alone = kind.build()
    kind.learn(alone, rows_at(0))
    steps, last = learner(kind, alone), max(wanted)
    for _ in range(10_000):
        if kind.seen(alone) in wanted:
            wanted[kind.seen(alone)].add(repr(kind.state(alone)))
        if all(wanted.values()) or kind.seen(alone) > last:
            break
        next(steps)
    for n, state in found:
        assert state in wanted[n], f"a copy after {{n}} rows is torn"
"""

COPYING = (
    SHARED
    + """
def by_joblib(one):
    place = io.BytesIO()
    joblib.dump(one, place)
    place.seek(0)
    return joblib.load(place)


WAYS = [copy.deepcopy, copy.copy, lambda one: pickle.loads(pickle.dumps(one)), by_joblib]
kind = globals()[sys.argv[1]]
with learning(kind) as one:
    copies = [WAYS[i % 4](one) for i in range(int(sys.argv[2]))]
assert_of_one_moment(kind, copies)
for twin in copies:
    kind.learn(twin, rows_at(0))  # the copy is independent and can learn
    kind.state(twin)
print("whole", len(copies))
"""
)

FORKING = (
    SHARED
    + """
def child(kind, one):
    signal.alarm(60)  # a fork has no watchdog thread
    try:
        kind.state(one)
        kind.learn(one, rows_at(0))
        kind.state(copy.deepcopy(one))
        return 10
    except RuntimeError as problem:
        if "forked while" not in str(problem):
            raise
    one.fit(ROWS[:200])
    kind.state(one)
    return 20


def fork(kind, one):
    pid = os.fork()
    if not pid:
        try:
            os._exit(child(kind, one))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (10, 20), code
    return code


kind = globals()[sys.argv[1]]
with learning(kind) as one:
    codes = [fork(kind, one) for _ in range(int(sys.argv[2]))]
assert fork(kind, one) == 10  # nothing is learned any more
kind.learn(one, rows_at(0))
kind.state(one)
print("whole", codes.count(10), "refused", codes.count(20))
"""
)

PROCESSES = (
    SHARED.replace("faulthandler.dump", "if __name__ == '__main__': faulthandler.dump", 1)
    + """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def look(one):
    return one


if __name__ == "__main__":
    kind = Stream
    with learning(kind) as one:
        if sys.argv[1] == "loky":
            copies = joblib.Parallel(n_jobs=2)(joblib.delayed(look)(one) for _ in range(20))
        else:
            with ProcessPoolExecutor(2, mp_context=get_context(sys.argv[1])) as pool:
                copies = list(pool.map(look, [one] * 20))
    assert_of_one_moment(kind, copies)
    print("whole", len(copies))
"""
)

COMPILING = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import os, signal, threading
import numba
import polyaforest.kernels.jit

done = threading.Event()

def new_kernel(**space):
    exec("def kernel(x):\\n    return x + 1.0", space)
    return numba.njit(space["kernel"])

def compile_more():
    while not done.is_set():
        new_kernel(__name__=__name__)(1.0)

new_kernel()(1.0)  # a kernel without a module: the kernel cache must not interfere
thread = threading.Thread(target=compile_more)
thread.start()
for _ in range(20):
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os._exit(0 if new_kernel(__name__=__name__)(2.0) == 3.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
done.set()
thread.join()
print("done")
"""


def run(script, tmp_path, *arguments):
    """Return the output of a script, which must succeed."""
    place = tmp_path / "script.py"
    place.write_text(script)
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(place), *arguments]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * STUCK,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ended.returncode == 0, f"{ended.returncode}\n{ended.stdout}\n{ended.stderr[-4000:]}"
    return ended.stdout.split()


# ---- while a thread learns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", mostly_slow(["Stream", "Batch", "Series", "Refitted", "River"]))
def test_copies_of_learning_detector_are_consistent(kind, tmp_path):
    if kind == "River" and not find_spec("river"):
        pytest.skip("needs river")
    assert run(COPYING, tmp_path, kind, str(N_COPIES)) == ["whole", str(N_COPIES)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "spawn", "loky"])
def test_processes_receive_consistent_detectors_while_thread_learns(how, tmp_path):
    if how == "fork" and not FORKS:
        pytest.skip("needs fork")
    assert run(PROCESSES, tmp_path, how) == ["whole", "20"]


@pytest.mark.slow
@pytest.mark.skipif(not FORKS, reason="needs fork")
@pytest.mark.parametrize("kind", ["Stream", "Batch", "Series"])
def test_forked_child_works_or_raises_while_thread_learns(kind, tmp_path):
    _, n_whole, _, n_refused = run(FORKING, tmp_path, kind, str(N_COPIES))
    assert int(n_whole) + int(n_refused) == N_COPIES


@pytest.mark.slow
@pytest.mark.skipif(not FORKS, reason="needs fork")
def test_child_forked_while_thread_compiles_can_compile(tmp_path):
    assert run(COMPILING, tmp_path) == ["done"]


def test_concurrent_counts_are_all_kept():
    forest = BatchMPF(n_estimators=4, tree=Tree(domain=[[-9] * 3, [9] * 3]), random_state=0)
    meeting = threading.Barrier(4)

    def count():
        meeting.wait(STUCK)
        for _ in range(10):
            forest.partial_fit(ROWS[:10])

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STUCK)
    assert forest.n_points_ == 400


# ---- copies ---------------------------------------------------------------------------------------------------------

DETECTORS = {
    "stream": lambda: StreamingMPF(n_estimators=4, window=50, random_state=0).partial_fit(ROWS[:100]),
    "table": lambda: StreamingMPF(n_estimators=4, random_state=0).fit(ROWS[:100]),
    "batch": lambda: BatchMPF(n_estimators=4, random_state=0).fit(ROWS[:100]),
    "series": lambda: SeriesMPF(StreamingMPF(n_estimators=4, window=50), shingle=3).partial_fit(ROWS[:100]),
}
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DETECTORS)
def test_copy_gives_same_results_and_is_independent(name, way):
    detector = DETECTORS[name]()
    twin, before = WAYS[way](detector), detector.score_samples(ROWS)
    np.testing.assert_array_equal(twin.score_samples(ROWS), before)
    assert twin._lock is not detector._lock
    detector.partial_fit(ROWS[200:])
    np.testing.assert_array_equal(twin.score_samples(ROWS), before)


@pytest.mark.parametrize("way", WAYS)
def test_inconsistent_forest_cannot_be_copied(way):
    forest = DETECTORS["stream"]()
    forest._stream.is_dirty = True
    with pytest.raises(RuntimeError, match="interrupted halfway"):
        WAYS[way](forest)


@pytest.mark.parametrize("name", DETECTORS)
def test_damaged_pickle_is_rejected(name):
    detector = copy.deepcopy(DETECTORS[name]())
    pickle.dumps(detector)  # all that is worked out on first use is, by whole trees
    trees = detector.estimator_.forest_ if name == "series" else detector.forest_
    trees.left[1, trees.root[1]] = 1_000_000
    torn = pickle.dumps(detector)
    with pytest.raises(ValueError, match=r"pickle does not contain a valid .*tree 1, node \d+.*Pickle it again"):
        pickle.loads(torn)


def test_pickle_with_damaged_lists_of_points_is_rejected():
    forest = DETECTORS["stream"]()
    forest._stream.points.links[0, forest._stream.store.held[0]] = 1_000_000
    torn = pickle.dumps(forest)
    with pytest.raises(ValueError, match="does not contain a valid StreamingMPF: tree 0, point"):
        pickle.loads(torn)


def test_failed_fit_leaves_forest_unchanged():
    forest = DETECTORS["stream"]()
    before = bits(forest)
    with pytest.raises(ValueError, match="infinity"):
        forest.fit(np.full((5, 2), np.inf))
    assert bits(forest) == before
    assert forest.n_features_in_ == 3
