"""After any operations, a forest on a stream holds the same points as a plain list, and is valid.

Two forests process the same stream: one learns in chunks, is pickled, copied, saved and loaded; the other only learns
row by row. They stay equal, bit for bit. Scores while learning match those without learning, up to rounding.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.testing import assert_allclose, assert_array_equal
from strategies import CODES, policies, seeds, stream_points, stream_times

from polyaforest import StreamingMPF
from polyaforest.detectors import loads
from polyaforest.forest.integrity import check_forest
from polyaforest.forest.retention import Reservoir, Window
from polyaforest.forest.stream_checks import check_stream
from polyaforest.kernels.arrays import QUESTIONS

pytestmark = pytest.mark.property

N_TREES = 3


class Held(NamedTuple):
    """A point; later points, by time or else by order of arrival, rank higher."""

    time: float
    arrival: int
    key: int | str
    row: tuple[float, ...]


class Model:
    """The points of a window, or candidates of a reservoir, as a plain list in order of arrival."""

    def __init__(self, policy: Window | Reservoir) -> None:
        self.policy, self.held, self.n_seen, self.n_deleted = policy, [], 0, 0
        self.floor = (-np.inf, -1)  # what ranks below has left, or came too late
        self.clock = -np.inf

    @property
    def goes_by_time(self) -> bool:
        return isinstance(self.policy, Window) and self.policy.duration is not None

    def come(self, row: list[float], key: int | str | None, time: float | None) -> int | str | None:
        """Add a point if the policy keeps it; return its key."""
        new = Held(time if self.goes_by_time else 0.0, self.n_seen, self.n_seen if key is None else key, tuple(row))
        self.n_seen += 1
        if self.goes_by_time:
            self.clock = max(self.clock, time)
            self.floor = max(self.floor, (self.clock - self.policy.duration, np.inf))
        self.held = [point for point in [*self.held, new] if point[:2] > self.floor]
        if isinstance(self.policy, Window) and self.policy.n is not None and len(self.held) > self.policy.n:
            lowest = min(self.held)
            self.held.remove(lowest)
            self.floor = max(self.floor, lowest[:2])
        return new.key if new in self.held else None

    def delete(self, keys: list[int | str]) -> None:
        self.held = [point for point in self.held if point.key not in keys]
        self.n_deleted += len(keys)

    def narrow(self, keys: list[int | str]) -> None:
        """Accept any choice of a reservoir, but points that left must not return."""
        latest = {point.key: point for point in self.held}
        assert set(keys) <= set(latest)
        self.held = sorted((latest[key] for key in keys), key=lambda point: point.arrival)
        most = min(self.policy.n, self.n_seen)
        assert most - self.n_deleted <= len(self.held) <= most
        assert self.n_deleted or len(self.held) == most


class StreamMachine(RuleBasedStateMachine):
    """A forest, its twin, and the model of their points."""

    @initialize(
        policy=policies,
        n_numbers=st.integers(0, 3),
        n_categories=st.integers(0, 2),
        max_depth=st.sampled_from([None, 0, 1, 3]),
        lifetime=st.sampled_from([np.inf, 0.5]),
        score=st.sampled_from(["typicality", "multiscale", "mass", "log_mass"]),
        max_samples=st.sampled_from([None, 1, 2, 3, "auto"]),
        seed=seeds,
    )
    def begin(self, policy, n_numbers, n_categories, max_depth, lifetime, score, max_samples, seed):
        parameters = {"max_depth": max_depth, "lifetime": lifetime, "score_type": score, "random_state": seed}
        parameters["max_samples"] = max_samples
        n_numbers = n_numbers if n_categories else max(n_numbers, 1)
        parameters["n_categories"], self.n_categories = n_categories, n_categories
        self.forest, self.twin = (
            made(StreamingMPF, n_estimators=N_TREES, window=policy, **parameters) for _ in range(2)
        )
        self.model, self.n_features = Model(policy), n_numbers + n_categories
        rng = np.random.default_rng(seed)
        self.probes = np.hstack([rng.normal(size=(3, n_numbers)) * 3, rng.choice(CODES, (3, n_categories))])
        self.probes[0, n_numbers:] = rng.integers(0, 2**QUESTIONS, n_categories)  # unseen
        self.now = 0.0

    # ---- insertion --------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def insert(self, data):
        (row,), (key,), (time,) = self.draw_points(data, 1)
        if self.is_refused([key]):
            with pytest.raises(ValueError, match="is already in use"):
                self.forest.insert(row, key, time)
            return
        expected = self.model.come(row, key, time)
        found = self.forest.insert(row, key, time)
        assert found == self.twin.insert(row, key, time)
        assert found == expected or (isinstance(self.model.policy, Reservoir) and found is None)

    @rule(data=st.data(), is_scored=st.booleans())
    def learn_a_chunk(self, data, is_scored):
        rows, keys, times = self.draw_points(data, data.draw(st.integers(1, 6)))
        given = {"keys": None if keys == [None] * len(keys) else keys, "times": None if times[0] is None else times}
        if self.is_refused(keys):
            with pytest.raises(ValueError, match="is already in use"):
                self.forest.partial_fit(rows, **given)
            return
        if not is_scored:
            self.forest.partial_fit(rows, **given)
        else:
            scores = self.forest.score_then_learn(rows, **given)
        for i, point in enumerate(zip(rows, keys, times, strict=True)):
            if is_scored and hasattr(self.twin, "forest_"):
                assert_allclose(scores[i], self.twin.score_samples([rows[i]])[0], rtol=1e-12, atol=1e-12)
            self.model.come(*point)
            self.twin.insert(*point)

    @precondition(lambda self: self.model.goes_by_time)
    @rule(data=st.data())
    def learn_without_the_times_that_the_window_needs(self, data):
        rows, keys, _ = self.draw_points(data, 2)
        for forest in self.forest, self.twin:
            with pytest.raises(ValueError, match="spans a duration"):
                forest.score_then_learn(rows, keys=keys)

    @rule(data=st.data(), policy=st.none() | policies)
    def fit(self, data, policy):
        """Fit from scratch, with a new window if given."""
        policy = self.forest.window if policy is None else policy
        before, self.model = self.model, Model(policy)
        rows, keys, times = self.draw_points(data, data.draw(st.integers(1, 6)))
        numbered = [i if key is None else key for i, key in enumerate(keys)]
        for forest in self.forest, self.twin:
            forest.set_params(window=policy)
            with (
                nullcontext() if len(set(numbered)) == len(keys) else pytest.raises(ValueError, match="already in use")
            ):
                forest.fit(rows, keys=keys, times=None if times[0] is None else times)
        if len(set(numbered)) < len(keys):
            self.model = before if self.is_fitted else Model(policy)
            return
        for point in zip(rows, keys, times, strict=True):
            self.model.come(*point)

    @rule(policy=policies)
    def change_the_window(self, policy):
        """Set a new window, which applies after the next fit."""
        for forest in self.forest, self.twin:
            forest.set_params(window=policy)
        if not self.is_fitted:
            self.model = Model(policy)

    # ---- deletion ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.is_fitted and self.model.held)
    @rule(data=st.data())
    def delete(self, data):
        keys = data.draw(st.lists(st.sampled_from([p.key for p in self.model.held]), min_size=1, max_size=3))
        if len(set(keys)) < len(keys):
            with pytest.raises(ValueError, match="more than once"):
                self.forest.delete(keys)
            keys = list(dict.fromkeys(keys))
        self.forest.delete(keys if len(keys) > 1 else keys[0])
        if self.forest._stream.is_sampled:  # a tree that lost one point may take in the next to be deleted
            self.twin.delete(keys)
        else:
            for key in keys:
                self.twin.delete(key)
        self.model.delete(keys)

    @precondition(lambda self: self.is_fitted)
    @rule(data=st.data())
    def delete_unknown(self, data):
        some = (
            data.draw(st.lists(st.sampled_from([p.key for p in self.model.held]), max_size=2))
            if self.model.held
            else []
        )
        with pytest.raises(KeyError, match="Nothing was deleted"):
            self.forest.delete([*some, "absent"])

    @precondition(lambda self: self.is_fitted and self.model.held)
    @rule(data=st.data())
    def delete_by_value(self, data):
        """Delete by value; of equal points the oldest leaves first."""
        chosen = data.draw(st.lists(st.sampled_from(self.model.held), min_size=1, max_size=3, unique=True))
        rows = [point.row for point in chosen]
        keys, left = [], sorted(self.model.held, key=lambda point: point.arrival)
        for row in rows:
            oldest = next(point for point in left if point.row == row)
            left.remove(oldest)
            keys.append(oldest.key)
        self.forest.delete_rows(rows)
        self.twin.delete_rows(np.array(rows))
        self.model.delete(keys)

    @precondition(lambda self: self.is_fitted)
    @rule(data=st.data())
    def delete_by_a_value_that_is_not_held(self, data):
        some = data.draw(st.lists(st.sampled_from(self.model.held), max_size=2, unique=True)) if self.model.held else []
        rows = [*(point.row for point in some), (77.0,) * self.n_features]
        with pytest.raises(ValueError, match=f"row {len(some)} is not held"):
            self.forest.delete_rows(rows)

    # ---- copies -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.is_fitted)
    @rule()
    def rebuild(self):
        for forest in self.forest, self.twin:
            forest.rebuild()

    @rule()
    def pickle_and_unpickle(self):
        self.forest = pickle.loads(pickle.dumps(self.forest))

    @rule()
    def copy(self):
        """Change a copy; the original must not change."""
        original, self.forest = self.forest, copy.deepcopy(self.forest)
        if self.is_fitted and self.model.held:
            original.delete(original.keys_)
            assert original.n_points_ == 0

    @precondition(lambda self: self.is_fitted)
    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            self.forest.save(Path(folder) / "forest")
            self.forest = StreamingMPF.load(Path(folder) / "forest")

    @precondition(lambda self: self.is_fitted)
    @rule()
    def to_bytes_and_back(self):
        """Replace the forest by one from its bytes, which omit derived arrays; its bytes must be the same."""
        block = self.forest.to_bytes()
        self.forest = loads(block)
        assert self.forest.to_bytes() == block == loads(block).to_bytes()

    # ---- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def it_holds_what_it_should_and_is_whole(self):
        if not hasattr(self, "model") or not self.is_fitted:
            return
        forest, model = self.forest, self.model
        if isinstance(model.policy, Reservoir):
            model.narrow(forest.keys_)
        rows = np.array([point.row for point in model.held]).reshape(-1, self.n_features)
        assert forest.keys_ == [point.key for point in model.held]
        assert_array_equal(forest.points_, rows)
        assert forest.n_points_ == len(rows)
        assert forest.n_seen_ == model.n_seen
        if len(rows) and not forest._stream.is_sampled:
            check_forest(forest.forest_, rows)
        check_stream(forest._stream)
        assert_array_equal(forest._stream.cutoffs, forest._stream.current_cutoffs())
        assert np.isfinite(forest.score_samples(self.probes)).all()

    @invariant()
    def it_is_the_same_as_its_twin(self):
        if not hasattr(self, "model") or not self.is_fitted:
            return
        forest, twin = self.forest, self.twin
        assert forest.window == twin.window
        assert forest.keys_ == twin.keys_
        assert_array_equal(forest.score_samples(self.probes), twin.score_samples(self.probes))
        assert forest.offset_ == twin.offset_
        assert_array_equal(forest.lifetimes_, twin.lifetimes_)
        assert forest.to_bytes() == twin.to_bytes()
        for part, theirs in zip(forest.forest_, twin.forest_, strict=True):
            room = tuple(map(slice, map(min, part.shape, theirs.shape)))
            assert_array_equal(part[room], theirs[room])

    @property
    def is_fitted(self) -> bool:
        return hasattr(self.forest, "forest_")

    def draw_points(self, data, n):
        """Draw rows with keys and times; times increase, but sometimes a point is late."""
        rows = data.draw(st.lists(stream_points(self.n_features, self.n_categories), min_size=n, max_size=n))
        key = st.none() | st.sampled_from("abcdef") | st.integers(0, 20)
        keys = data.draw(st.lists(key, min_size=n, max_size=n))
        if data.draw(st.booleans()):
            keys = [None] * n
        times = [None] * n
        if self.model.policy.needs_times or data.draw(st.booleans()):
            times = [self.draw_time(data) for _ in range(n)]
        return rows, keys, times

    def draw_time(self, data) -> float:
        time = max(self.now + data.draw(stream_times), 0.0)
        self.now = max(self.now, time)
        return time

    def is_refused(self, keys) -> bool:
        """Whether a key is already in use or occurs twice; the key of a row without one is its number."""
        coming = [self.model.n_seen + i if key is None else key for i, key in enumerate(keys)]
        taken = self.forest.keys_ if self.is_fitted else []
        return len(set(coming)) < len(coming) or not set(coming).isdisjoint(taken)


StreamMachine.TestCase.settings = settings(
    max_examples=examples(20 if numba.config.DISABLE_JIT else 60),
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_a_forest_on_a_stream_does_as_the_model_says = StreamMachine.TestCase
