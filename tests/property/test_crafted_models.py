"""Models with a right seal and wrong contents: each is refused when it is loaded, or works. None hangs or crashes.

Files are put to use by another process, tests/use_models.py, so that a hang or a crash is a failure and not the end of
all tests.
"""

import copy
import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyaforest import BatchMPF, Reservoir, StreamingMPF, Window
from polyaforest._files import read_model, write_model
from polyaforest.timeseries import SeriesMPF

TESTS = Path(__file__).parents[1]
PATIENCE = 300.0  # seconds, the compilation of kernels included: what takes longer hangs
ROWS = np.random.default_rng(8).normal(size=(60, 2)) * 2 + 4
SMALL = {"n_estimators": 3, "random_state": 5}
TIMES = np.arange(60.0) + 1e9

MODELS = {
    "table": lambda: StreamingMPF(**SMALL).fit(ROWS),
    "closed": lambda: StreamingMPF(**SMALL, domain="data", score="mass", max_depth=4, window=20).partial_fit(ROWS),
    "batch": lambda: BatchMPF(**SMALL, max_depth=3, domain=[[-4] * 2, [12] * 2]).fit(ROWS),
    "window": lambda: judged(StreamingMPF(**SMALL, window=20, domain=[[-9] * 2, [19] * 2]), ROWS),
    "in time": lambda: judged(StreamingMPF(**SMALL, window=Window(30, duration=25.0)), ROWS, times=TIMES),
    "reservoir": lambda: judged(StreamingMPF(**SMALL, window=Reservoir(9, half_life=20.0)), ROWS),
    "young": lambda: judged(StreamingMPF(**SMALL, feature_weights=[1.0, 0.0]), ROWS[:5], keys=list("abcde")),
    "summary": lambda: StreamingMPF(**SMALL, window=None, max_depth=3).fit(ROWS),
    "young summary": lambda: StreamingMPF(**SMALL, window=None, max_depth=3).partial_fit(ROWS),
    "empty": lambda: StreamingMPF(**SMALL, window=9).partial_fit(ROWS[:3]).delete([0, 1, 2]),
    "series": lambda: judged(SeriesMPF(StreamingMPF(**SMALL, window=20), shingle=3), ROWS, times=with_gaps(TIMES)),
    "named series": lambda: judged(
        SeriesMPF(StreamingMPF(**SMALL, window=9), shingle=2, difference=True), ROWS, keys=[f"r{i}" for i in range(60)]
    ),
    "young series": lambda: judged(
        SeriesMPF(StreamingMPF(**SMALL, window=9), calendar=["time of day"]), ROWS[:4], times=TIMES[:4]
    ),
}
GOLDEN = {path.stem: path for path in sorted((TESTS / "golden").glob("*.mpf"))}


def judged(model, rows, **labels):
    model.judge_then_learn(rows, **labels)
    return model


def with_gaps(times):
    return times + 2.0 * (np.arange(len(times)) > 30) + 50.0 * (np.arange(len(times)) > 40)


class Good(dict):
    """Good models by name, which Hypothesis does not print in full."""

    def __repr__(self):
        return "good"


class User:
    """The process that uses files."""

    def __init__(self):
        self.process = None

    def answer(self, path):
        """How it went with the file at `path`."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, TESTS / "use_models.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        self.process.stdin.write(os.fsencode(f"{path}\n"))
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.close()
            return "hangs", f"no answer after {PATIENCE} s"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.process = None
            return "crashed", f"exit code {code}"
        return tuple(json.loads(line))

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def user():
    user = User()
    yield user
    user.close()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The headers and arrays of good models, by name."""
    folder = tmp_path_factory.mktemp("good")
    for name, make in MODELS.items():
        make().save(folder / name, notes={"line": -3.0})
    return Good(
        {name: read_model(path) for name, path in [*GOLDEN.items(), *((name, folder / name) for name in MODELS)]}
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("crafted") / "model.mpf"


def test_good_files_work(good, user, path):
    for name, (header, arrays) in good.items():
        write_model(path, header, arrays)
        assert user.answer(path)[0] == "works", (name, user.answer(path))


def placed(header, place, value):
    """The header with another value at a place: keys and numbers, with dots between."""
    header = copy.deepcopy(header)
    *above, last = place.split(".")
    part = header
    for key in above:
        part = part[int(key)] if isinstance(part, list) else part[key]
    part[int(last) if isinstance(part, list) else last] = value
    return header


LIES = [
    *(("window", "stream.n_seen", n) for n in (2**31 - 1, 2**31, 2**32, 2**62, 2**63, 10**30, -1, 59, 1e3, True, None)),
    *(("window", "stream.next_birth", n) for n in (-1, True, 1, 2, 32, 63, 65, 128, 256, 2**62, 64.0, "64", None)),
    *(("1-window", "stream.n_seen", n) for n in (64, 2**31, 2**62)),
    *(("summary", "stream.n_seen", n) for n in (0, 59, 2**31, 2**62 - 1, 2**62)),
    *(("summary", "stream.next_birth", n) for n in (1, 64, 128)),
    *(("window", "stream.n_judges", n) for n in (0, -1, True, 1.5, 10**400)),
    *(("window", "stream.max_depth", n) for n in (-1, False, 0, 10**30, "3")),
    *(("closed", "stream.max_depth", n) for n in (None, 5, 2**32)),  # its arrays have room for a depth of 4 only
    *(("window", "stream.has_fixed_weights", n) for n in (True, 0, None)),
    *(("young", "stream.has_fixed_weights", n) for n in (False, 1)),
    *(
        ("window", "stream.policy", p)
        for p in (None, {}, {"window": [20]}, {"window": [True, None]}, {"window": [20, -1]})
    ),
    *(
        ("reservoir", "stream.policy.reservoir", p)
        for p in ([9, 5e-324, False], [9, None, True], [9, 20.0, 1], [10**30, 1, True])
    ),
    *(("summary", "stream.max_depth", n) for n in (None, 2)),
    *(("table", "n_features", n) for n in (0, -2, True, 1, 2**31, 2.0)),
    *(("table", "is_open", n) for n in (0, 1, None, "no")),
    *(("table", "feature_names", n) for n in (["a", "a"], ["a", 1], "ab", ["a", None], {"a": 1, "b": 2})),
    *(("table", "notes", n) for n in (None, [], "x")),
    *(("table", "parameters.n_estimators", n) for n in (0, "3", None, 2.5, {"float": "inf"})),
    *(("table", "parameters.prior_strength", n) for n in (0, 1e300, 5e-324, {"float": "nan"})),
    *(("table", "parameters.n_jobs", n) for n in (0, 10**9, -(10**9), 1.5)),
    *(("table", "parameters.window", n) for n in ({"timedelta": 1e300}, {"window": [None, None]}, {"magic": 1}, [1])),
    *(("table", "parameters.false_alarm_rate", n) for n in (0, 1, 5e-324, 1e-9)),
    ("table", "parameters.more", 1),
    ("table", "more", 1),
    ("window", "stream.more", 1),
    *(("series", "series.n_seen", n) for n in (2**31, 2**62, 61, 59, True, -1)),
    *(("young series", "series.n_seen", n) for n in (2**31, 2**62, 5, 3, 4.0)),
    *(("series", "series.weighed_at", n) for n in (61, 2**62, -1, True)),
    *(("series", "series.is_timed", n) for n in (False, None, 1)),
    *(("series", "series.pattern.max_gap", n) for n in (0, 4, 2**16, 2**16 + 1, 2**40, -1, True)),
    *(("series", "series.pattern.shingle", n) for n in (0, 2, 4, 2**40, True)),
    *(("young series", "series.pattern.shingle", n) for n in (2**40, 2**20, 1)),
    *(("series", "series.pattern.difference", n) for n in (True, 0, None)),
    *(("young series", "series.pattern.calendar", n) for n in (["x"], [], ["time of day"] * 2, "time of day")),
    *(("young series", "series.pattern.timezone", n) for n in ("", "../../etc/passwd", "Nowhere", 1)),
    *(("young series", "forest.parameters.window", n) for n in (None, "auto", {"timedelta": -1.0}, 2)),
    *(("young series", "forest.parameters.domain", n) for n in ({"array": [1.0]}, {"array": [[1.0], [0.0]]}, "data")),
    *(("series", "forest.parameters.window", n) for n in (None, {"timedelta": -1.0}, {"window": [None, 5.0]})),
    *(("series", "forest.parameters.domain", n) for n in ({"array": [1.0]}, {"array": [[1.0], [0.0]]})),
    *(("series", "forest.stream.n_seen", n) for n in (2**31, 61)),
    *(("series", "template", n) for n in (1, {"score": "x"}, {"more": 1})),
]


@pytest.mark.parametrize("name", sorted({lie[0] for lie in LIES}))
def test_a_header_that_lies_is_refused_or_harmless(good, user, path, name):
    header, arrays = good[name]
    for _, place, value in (lie for lie in LIES if lie[0] == name):
        write_model(path, placed(header, place, value), arrays)
        how, why = user.answer(path)
        assert how in ("refused", "works"), (place, value, how, why)


MUST_BE_REFUSED = [
    ("closed", "stream.max_depth", 2**32),
    ("window", "stream.n_seen", 2**31),
    ("window", "stream.next_birth", -1),
    ("window", "stream.next_birth", True),
    ("window", "stream.n_judges", True),
    ("series", "series.n_seen", 2**31),
    ("series", "series.weighed_at", True),
    ("table", "is_open", 1),
    ("table", "more", 1),
    ("table", "feature_names", ["a", "a"]),
]


@pytest.mark.parametrize(("name", "place", "value"), MUST_BE_REFUSED)
def test_a_refusal_names_the_file_and_the_reason(good, user, path, name, place, value):
    header, arrays = good[name]
    write_model(path, placed(header, place, value), arrays)
    how, why = user.answer(path)
    assert how == "refused"
    assert repr(str(path)) in why


# ---- at random -------------------------------------------------------------------------------------------------------

INTEGERS = [0, 1, -1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-300, 1e-150, 1e150, 1e300, 1.7e308, -1e308, np.inf, -np.inf, np.nan]
TEXTS = ["", "auto", "mass", "\x1b[2J"]
PARTS = [[], {}, {"float": "inf"}, {"array": [[0.0], [1.0]]}]
VALUES = [None, True, False, *INTEGERS, *filter(np.isfinite, FLOATS), *TEXTS, *PARTS]


def places(header, above=""):
    """All places of a header."""
    found = []
    for key, part in header.items() if isinstance(header, dict) else enumerate(header):
        place = f"{above}{key}"
        found.append(place)
        if isinstance(part, dict | list):
            found += places(part, f"{place}.")
    return found


def changed(header, arrays, rng):
    """A header and arrays in which something is different."""
    arrays = {name: array.copy() for name, array in arrays.items()}
    for _ in range(rng.choice([1, 1, 2])):
        if rng.random() < 0.5:
            header = placed(header, rng.choice(places(header)), rng.choice(VALUES))
        else:
            name = rng.choice(sorted(arrays))
            arrays[name] = other_array(arrays[name], rng)
    return header, arrays


def other_array(array, rng):
    """An array with other values, another type or another shape."""
    how = rng.choice(["value", "value", "value", "values", "type", "shape", "swap"])
    values = FLOATS if array.dtype.kind == "f" else INTEGERS
    flat = array.reshape(-1)  # a view
    if how == "type":
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(["f4", "f8", "i8", "i4", "u8", "?"]))
    if how == "shape":
        return rng.choice([array[:0], array[None], flat, array[1:]]) if array.ndim else array[None]
    if how == "values":
        flat[:] = cast(rng.choice(values), array.dtype)
    elif how == "value" and flat.size:
        flat[rng.randrange(flat.size)] = cast(rng.choice(values), array.dtype)
    elif flat.size:
        one, other = rng.randrange(flat.size), rng.randrange(flat.size)
        flat[[one, other]] = flat[[other, one]]
    return array


def cast(value, dtype):
    """A value as an array of this type would hold it, whatever is lost."""
    with np.errstate(all="ignore"):
        return np.array(int(value) % 2**64, np.uint64).astype(dtype) if dtype.kind in "iu" else np.array(value, dtype)


def check_changes(seed, good, user, path):
    rng = random.Random(seed)
    name = rng.choice(sorted(good))
    header, arrays = changed(*good[name], rng)
    write_model(path, header, arrays)
    how, why = user.answer(path)
    assert how in ("refused", "works"), (name, how, why)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64))
def test_a_file_with_changes_is_refused_or_works(good, user, path, seed):
    check_changes(seed, good, user, path)


@pytest.mark.slow
@settings(max_examples=20_000, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=False)
@given(seed=st.integers(0, 2**64))
def test_many_files_with_changes_are_refused_or_work(good, user, path, seed):
    check_changes(seed, good, user, path)
