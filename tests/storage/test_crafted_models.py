"""Models with a valid checksum and wrong contents are rejected on loading, or work. None hangs or crashes.

Another process, tests/use_models.py, uses the files, so that a hang or a crash fails one test and does not end the run.
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from crafted import good_models, placed
from effort import mostly_slow

from polyaforest.storage.modelfile import write_model

pytestmark = pytest.mark.property

PATIENCE = 300.0  # seconds until a process counts as hanging, including compilation of kernels
TESTS = Path(__file__).parents[1]


class User:
    """A process that uses files."""

    def __init__(self):
        self.process = None

    def answer(self, path):
        """Return the outcome for the file at `path`."""
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
    return good_models(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("crafted") / "model.mpf"


def test_accepts_valid_files(good, user, path):
    for name, (header, arrays) in good.items():
        write_model(path, header, arrays)
        assert user.answer(path)[0] == "works", (name, user.answer(path))


LIES = [
    *(("window", "stream.n_seen", n) for n in (2**31 - 1, 2**31, 2**32, 2**62, 2**63, 10**30, -1, 59, 1e3, True, None)),
    *(("window", "stream.next_rebuild", n) for n in (-1, True, 1, 2, 32, 63, 65, 128, 256, 2**62, 64.0, "64", None)),
    *(("1-window", "stream.n_seen", n) for n in (64, 2**31, 2**62)),
    *(("summary", "stream.n_seen", n) for n in (0, 59, 2**31, 2**62 - 1, 2**62)),
    *(("summary", "stream.next_rebuild", n) for n in (1, 64, 128)),
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
    *(("contexts", "forest.views", n) for n in (None, 1, [], [{}], [{}] * 3, [1, 2, 3], {"0": {}}, "abc")),
    *(("contexts", "forest.spell", n) for n in (0, 0.5, -1, True, None, "1", 1e300, 10**400, {"float": "nan"}, 33)),
    *(("contexts", "forest.is_seeded", n) for n in (False, 0, None)),
    ("contexts", "forest.more", 1),
    *(("contexts", f"forest.views.{v}.stream.n_seen", n) for v in (0, 2) for n in (2**31, 2**62, 5, True)),
    *(("contexts", f"forest.views.{v}.stream.next_rebuild", n) for v in (0, 1) for n in (256, 1, 1024)),
    *(
        ("contexts", f"forest.views.{v}.stream.policy", {"window": [n, None]})
        for v in (0, 1)
        for n in (1, 39, 41, 10**9)
    ),
    *(("contexts", "forest.views.1.stream.policy", p) for p in (None, {"reservoir": [40, None, False]})),
    *(
        ("contexts", f"forest.views.{v}.parameters.window", n)
        for v in (0, 1)
        for n in (None, "auto", 2, {"window": [2, None]})
    ),
    *(("contexts", f"forest.views.{v}.parameters.n_estimators", n) for v in (0, 2) for n in (0, 7, 10**400)),
    *(("contexts", "forest.views.1.parameters.score", n) for n in ("mass", "log_mass", "multiscale")),
    *(("contexts", f"forest.views.{v}.parameters.false_alarm_rate", n) for v in (0, 1) for n in (0.5, 1e-9)),
    *(("contexts", "forest.views.2.n_features", n) for n in (1, 3, 11)),
    *(("contexts", "series.n_seen", n) for n in (2**31, 2**62, 561, 559, 100)),
    *(("contexts", "series.is_timed", n) for n in (False, None)),
    *(("contexts", "series.pattern.shingle", n) for n in (1, 3, 128, 2**20, "auto")),
    *(("contexts", "series.pattern.calendar", n) for n in (["time of day"], ["x"])),
    *(("contexts", "series.pattern.difference", n) for n in (True, 1)),
    *(("contexts", "series.pattern.max_gap", n) for n in (0, 9, 2**16)),
    *(("contexts", "parameters.shingle", n) for n in (None, 3, "x", 0, 1.5)),
    *(("contexts", "template.domain", n) for n in ("data", {"array": [[0.0] * 2, [1.0] * 2]})),
    *(("contexts", "template.window", n) for n in (None, {"reservoir": [40, None, False]})),
    *(("contexts", "n_features", n) for n in (1, 3, 4, 2**31 - 1)),
    *(("young contexts", f"forest.views.{v}.parameters.window", n) for v in (0, 1) for n in (None, "auto", 2)),
    *(
        ("young contexts", f"forest.views.{v}.parameters.domain", n)
        for v in (0, 1)
        for n in ({"array": [1.0]}, {"array": [[1.0], [0.0]]}, "data")
    ),
    *(("young contexts", f"forest.views.{v}.parameters.feature_weights", {"array": [1.0] * 4}) for v in (0, 1)),
    *(("young contexts", f"forest.views.{v}.parameters.score", "mass") for v in (0, 2)),
    *(("young contexts", f"forest.views.{v}.parameters.n_estimators", n) for v in (0, 2) for n in (0, 10**9, 10**400)),
    *(("young contexts", "series.n_seen", n) for n in (2**31, 5, 3)),
    *(("young contexts", "series.pattern.shingle", n) for n in (1, 3, 2**20)),
    *(("young contexts", "forest.spell", n) for n in (0, 33)),
]

CALIBRATION = "forest/calibration"
ARRAY_LIES = [
    *((f"{CALIBRATION}/arrivals", change) for change in ("later", "earlier", "none", "reversed", "first")),
    *((f"{CALIBRATION}/scores", change) for change in ("nan", "high", "none", "first")),
    *(("series/periods", np.array(periods, np.int64)) for periods in ([0], [1], [-24], [2**40], [4, 5, 6], [24, 24])),
    *(("series/since", change) for change in ("later", "earlier", "reversed")),
    *(("forest/2/stream/arrivals", change) for change in ("later", "reversed")),
    *(("forest/1/stream/times", change) for change in ("later", "nan")),
    *(("forest/0/stream/damping", np.array(part)) for part in ([1.0], [np.nan] * 14, [0.0] * 14)),
    ("forest/3/stream/arrivals", np.zeros(3, np.int64)),
    ("forest/calibration/more", np.zeros(3)),
]
CHANGES = {
    "later": lambda array: array + 1000,
    "earlier": lambda array: array - 100,
    "none": lambda array: array[:0],
    "reversed": lambda array: array[::-1].copy(),
    "first": lambda array: array[:1],
    "nan": lambda array: array * np.nan,
    "high": lambda array: array * 0 + 5.0,
}


@pytest.mark.parametrize("name", mostly_slow(["contexts", "contexts of a table"]))
def test_inconsistent_context_window_arrays_are_rejected_or_harmless(good, user, path, name):
    header, arrays = good[name]
    for place, change in ARRAY_LIES:
        wrong = CHANGES[change](arrays[place]) if isinstance(change, str) else change
        write_model(path, header, {**arrays, place: wrong})
        how, why = user.answer(path)
        assert how in ("refused", "works"), (place, change, how, why)
    for place in arrays:
        write_model(path, header, {key: part for key, part in arrays.items() if key != place})
        how, why = user.answer(path)
        assert how in ("refused", "works"), (place, how, why)
    for v in range(3):  # of one view, as if it had not begun
        others = {key: part for key, part in arrays.items() if not key.startswith(f"forest/{v}/")}
        begun = placed(header, f"forest.views.{v}", {"parameters": header["forest"]["views"][v]["parameters"]})
        write_model(path, begun, others)
        assert user.answer(path)[0] == "refused"


@pytest.mark.parametrize("name", sorted({lie[0] for lie in LIES}))
def test_inconsistent_header_is_rejected_or_harmless(good, user, path, name):
    header, arrays = good[name]
    for _, place, value in (lie for lie in LIES if lie[0] == name):
        write_model(path, placed(header, place, value), arrays)
        how, why = user.answer(path)
        assert how in ("refused", "works"), (place, value, how, why)


MUST_BE_REFUSED = [
    ("closed", "stream.max_depth", 2**32),
    ("window", "stream.n_seen", 2**31),
    ("window", "stream.next_rebuild", -1),
    ("window", "stream.next_rebuild", True),
    ("window", "stream.n_judges", True),
    ("series", "series.n_seen", 2**31),
    ("series", "series.weighed_at", True),
    ("table", "is_open", 1),
    ("table", "more", 1),
    ("table", "feature_names", ["a", "a"]),
    ("contexts", "forest.spell", 33),
    ("contexts", "forest.views", []),
    ("contexts", "forest.views.1.parameters.window", 39),
    ("contexts", "forest.views.1.stream.policy", {"window": [41, None]}),
    ("young contexts", "forest.views.0.parameters.domain", "data"),
    ("young contexts", "forest.views.2.parameters.window", None),
]


@pytest.mark.parametrize(("name", "place", "value"), MUST_BE_REFUSED)
def test_error_names_file_and_reason(good, user, path, name, place, value):
    header, arrays = good[name]
    write_model(path, placed(header, place, value), arrays)
    how, why = user.answer(path)
    assert how == "refused"
    assert repr(str(path)) in why
