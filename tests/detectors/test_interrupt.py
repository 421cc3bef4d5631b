"""Ctrl-C at any moment leaves a valid forest, in which each row is learned completely or not at all."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from effort import FULL, PROFILE
from streams import bits

from polyaforest import StreamingMPF
from polyaforest.forest import learn

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.name == "nt", reason="there, a process cannot be sent a Ctrl-C of its own"),
]

N_INTERRUPTS = 30 if PROFILE == FULL else 10
STUCK = 120.0  # seconds

# Learn in all ways, report each interrupt, and finally check what was learned.
LEARNER = f"""
import signal
import numpy as np
from streams import assert_whole, bits
from polyaforest import StreamingMPF, Window

signal.signal(signal.SIGINT, signal.default_int_handler)
ROWS = np.random.default_rng(0).normal(size=(5000, 3))
forest, twin = (StreamingMPF(n_estimators=8, window=Window(duration=600.0), random_state=0) for _ in range(2))


def learn(forest, start, n):
    places = np.arange(start, start + n)
    rows, times = ROWS[places % len(ROWS)], places / 1.0
    if n == 1:
        forest.insert(rows[0], time=times[0])
    else:
        forest.score_then_learn(rows, times=times)


learn(forest, 0, 300)
forest.predict(ROWS[:5])
print("ready", flush=True)
n_interrupts, n_halves = 0, 0
while n_interrupts < {N_INTERRUPTS}:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        while True:
            start = forest.n_seen_
            n = (1, 1500, 1, 40)[start % 4]
            learn(forest, start, n)
            forest.score_samples(ROWS[:50])
            forest.mass(ROWS[:50])
            forest.predict(ROWS[:5])
            start = None
    except KeyboardInterrupt:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # block the next signal until this one is reported
        n_interrupts += 1
        if start is not None and 0 < forest.n_seen_ - start < n:
            n_halves += 1
        assert np.isfinite(forest.score_samples(ROWS[:50])).all()
        assert np.isfinite(forest.mass(ROWS[:50])).all()
        start = None
        print(n_interrupts, flush=True)

assert_whole(forest)
learn(twin, 0, forest.n_seen_)
assert bits(forest) == bits(twin)
assert (forest.mass(ROWS) == twin.mass(ROWS)).all()
assert forest.offset_ == twin.offset_
print("whole", n_halves, flush=True)
"""

# Interrupt each call at each of its lines in turn, and check the forest.
TRACER = """
import copy, signal, sys, threading
import numpy as np
from forests import without_derived
from streams import assert_whole, bits
from polyaforest import StreamingMPF, Window

signal.signal(signal.SIGINT, signal.default_int_handler)
ROWS = np.random.default_rng(0).normal(size=(100, 2))
TIMES = np.zeros(100)
PLACES = ("polyaforest", "contextlib", "threading")


def traced(call, at_line):
    "Do `call`, and `at_line(frame)` at each of its lines; return whether it was interrupted."

    def trace(frame, event, argument):
        if event == "line":
            at_line(frame)
        return trace

    def enter(frame, event, argument):
        return trace if any(name in frame.f_code.co_filename for name in PLACES) else None

    sys.settrace(enter)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def place_of(frame):
    return frame.f_code.co_filename.split("/")[-1], frame.f_lineno


def moments_of(call):
    "The first time that each line is reached from another: (how manieth line it is, where)."
    places, n_lines = {}, 0

    def note(frame):
        nonlocal n_lines
        n_lines += 1
        places.setdefault((place_of(frame), place_of(frame.f_back), place_of(frame.f_back.f_back)), n_lines)

    traced(call, note)
    return [(moment, place) for place, moment in places.items()]


def interrupt(call, moment):
    "Press Ctrl-C when `call` comes to its line number `moment`."
    n_lines = 0

    def press(frame):
        nonlocal n_lines
        n_lines += 1
        if n_lines == moment:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    return traced(call, press)


def problem_of(forest, stages):
    "Describe how a forest differs from all of several stages."
    if not is_free(forest._lock):
        return "the lock is not free"
    if bits(forest) not in stages:
        return "the forest is neither as before nor as after"
    assert_whole(forest)
    twin = without_derived(copy.deepcopy(forest))
    if (forest.mass(ROWS) != twin.mass(ROWS)).any() or forest.offset_ != twin.offset_:
        return "derived values do not match the forest"
    forest.partial_fit(ROWS[50:60], times=TIMES[50:60])
    assert_whole(forest)
    return None


def learn(forest, n=4):
    return forest.partial_fit(ROWS[6 : 6 + n], times=TIMES[6 : 6 + n])


def begin(n, window):
    return StreamingMPF(n_estimators=2, random_state=0, window=window).partial_fit(ROWS[:n], times=TIMES[:n])


CALLS = {
    "insert": (begin(30, 20), lambda forest: forest.insert(ROWS[30])),
    "learn and grow arrays, rebuild trees, learn more": (begin(6, Window(duration=9.0)), learn),
    "delete": (begin(30, 20), lambda forest: forest.delete([12, 25])),
    "rebuild": (begin(30, 20), lambda forest: forest.rebuild()),
    "score_samples": (begin(30, 20), lambda forest: forest.score_samples(ROWS[:3])),
    "predict": (begin(30, 20), lambda forest: forest.predict(ROWS[:3])),
}

for name, (base, call) in CALLS.items():
    base.mass(ROWS)
    call(copy.deepcopy(base))  # the first call compiles kernels or loads them from the cache
    after = copy.deepcopy(base)
    moments = moments_of(lambda: call(after))
    stages = [bits(base), bits(after)]
    if call is learn:
        stages += [bits(learn(copy.deepcopy(base), n)) for n in (1, 2, 3)]
    problems = []
    for moment, place in moments:
        forest = copy.deepcopy(base)
        if not interrupt(lambda: call(forest), moment):
            problems.append(f"the interrupt was lost at {place}")
        problem = problem_of(forest, stages)
        if problem:
            problems.append(f"{problem} after an interrupt at {place}")
        if len(problems) > 5:
            break
    print(f"{name}: {len(moments)} interrupts", *problems, sep="\\n    ", flush=True)
"""


def start(script):
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(filter(None, [str(tests), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_repeated_interrupts_do_not_change_a_forest():
    rng = random.Random(0)
    with start(LEARNER) as learner:
        try:
            assert learner.stdout.readline() == "ready\n", learner.communicate(timeout=STUCK)
            for k in range(1, N_INTERRUPTS + 1):
                time.sleep(rng.uniform(0.001, 0.05))
                learner.send_signal(signal.SIGINT)
                assert line_of(learner) == f"{k}\n"
            output, errors = learner.communicate(timeout=STUCK)
        finally:
            learner.kill()
    assert learner.returncode == 0, errors
    word, n_halves = output.split()
    assert word == "whole"
    assert int(n_halves) > 0  # some interrupts came between the chunks of a call


def line_of(process):
    """Return the next line of a process; if there is none in time, kill it and return an empty line."""
    timer = threading.Timer(STUCK, process.kill)
    timer.start()
    try:
        return process.stdout.readline() or process.stderr.read()
    finally:
        timer.cancel()


@pytest.mark.slow
def test_interrupt_at_any_line_leaves_a_valid_unlocked_forest():
    with start(TRACER) as tracer:
        try:
            output, errors = tracer.communicate(timeout=STUCK)
        finally:
            tracer.kill()
    assert tracer.returncode == 0, errors[-2000:]
    counts = [int(line.split()[-2]) for line in output.splitlines() if line.endswith("interrupts")]
    assert len(counts) == 6
    assert min(counts) > 50
    assert len(output.splitlines()) == 6, output  # one line per call, without problems


@pytest.mark.parametrize("n_before", [0, 300])
def test_handler_that_does_not_raise_interrupts_no_call(n_before, monkeypatch):
    """Servers and asyncio record Ctrl-C and stop later: until then every row has to be learned."""
    rows, calls = np.random.default_rng(0).normal(size=(1200, 2)), []
    forest, undisturbed = (StreamingMPF(n_estimators=2, window=50, random_state=0) for _ in range(2))
    expected = undisturbed.score_then_learn(rows)
    if n_before:
        forest.partial_fit(rows[:n_before])
    run_chunk = learn.run_chunk

    def run_interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return run_chunk(*arguments)

    before = signal.signal(signal.SIGINT, lambda *_: calls.append("Ctrl-C"))
    try:
        monkeypatch.setattr(learn, "run_chunk", run_interrupted)
        scores = forest.score_then_learn(rows[n_before:])
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls
    np.testing.assert_array_equal(scores, expected[n_before:])
    assert bits(forest) == bits(undisturbed)
