"""Contents of earlier formats are upgraded on read; current and hostile ones are not changed."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crafted import MODELS
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from polyaforest import BatchMPF, GroupedMPF, StreamingMPF, Tree
from polyaforest.drift import Change, DriftMonitor
from polyaforest.kernels.arrays import EVERY
from polyaforest.series import EventTracker
from polyaforest.storage.codec import pack, unpack
from polyaforest.storage.migrations import upgrade, upgrade_event, upgrade_tracker
from polyaforest.storage.modelfile import read_model

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = np.random.default_rng(3).normal(size=(60, 2))
SMALL = {"n_estimators": 2, "random_state": 0}


def same(one: Any, other: Any) -> bool:
    """Return whether two headers, or the arrays of two models, are equal."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 -- NaN


def without(part: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in names}


def contents(model: Any, notes: dict[str, Any] | None = None, *, is_compact: bool = False) -> Any:
    """Return the header and the arrays that a model saves."""
    with model._contents(notes, is_compact=is_compact) as (header, arrays):
        return header, dict(arrays)


# ---- current formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_compact", [False, True])
def test_current_contents_do_not_change(name: str, is_compact: bool) -> None:
    header, arrays = contents(MODELS[name](), {"rows": 3}, is_compact=is_compact)
    assert same(list(upgrade(header, arrays)), [header, arrays])


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("[0-9]*.mpf")), ids=lambda path: path.name)
def test_upgrading_twice_changes_nothing_and_keeps_what_is_given(path: Path) -> None:
    given_header, given_arrays = read_model(path)
    header, arrays = copy.deepcopy((given_header, given_arrays))
    once = upgrade(header, arrays)
    assert same(header, given_header)
    assert same(arrays, given_arrays)
    assert same(list(upgrade(*once)), list(once))


# ---- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["StreamingMPF", "BatchMPF"])
def test_missing_values_were_errors(kind: str) -> None:
    header, _ = upgrade({"detector": kind, "parameters": {"n_estimators": 3}}, {})
    assert header["parameters"] == {"n_estimators": 3, "missing": "error"}
    header, _ = upgrade({"detector": kind, "parameters": {"missing": "impute"}}, {})
    assert header["parameters"] == {"missing": "impute"}


def test_missing_values_were_errors_in_nested_forests() -> None:
    one = {"detector": "SeriesMPF", "template": {"window": 9}, "forest": {"parameters": {"window": 9}}}
    header, _ = upgrade(one, {})
    assert header["template"] == header["forest"]["parameters"] == {"window": 9, "missing": "error"}
    many = {"detector": "SeriesMPF", "template": None, "forest": {"views": [{"parameters": {}}, {"parameters": {}}]}}
    header, _ = upgrade(many, {})
    assert header["template"] is None
    assert header["forest"]["views"] == [{"parameters": {"missing": "error"}}] * 2
    for kind in ("BatchMPF", "StreamingMPF"):
        header, _ = upgrade({"detector": "GroupedMPF", "forest": {"detector": kind, "parameters": {}}}, {})
        assert header["forest"]["parameters"] == {"missing": "error"}


@pytest.mark.parametrize("is_grouped", [False, True])
def test_completed_tables_were_not_marked(is_grouped: bool) -> None:
    forest = BatchMPF(**SMALL, missing="impute").fit(ROWS)
    model = GroupedMPF(forest).fit(ROWS, groups=np.arange(60) % 2) if is_grouped else forest
    place = "forest/filled" if is_grouped else "filled"
    header, arrays = contents(model)
    assert arrays[place] == 0  # no value was missing
    back = type(model).restored(header, without(arrays, place))
    assert (back.estimator_ if is_grouped else back)._model.was_filled
    header, arrays = upgrade({"detector": "BatchMPF", "parameters": {"missing": "error"}}, {})
    assert arrays == {}


# ---- thresholds in notes ---------------------------------------------------------------------------------------------


def test_line_in_notes_was_the_threshold() -> None:
    notes = {"columns": ["a"], "line": -2, "more": 1}
    for kind in ({"detector": "BatchMPF"}, {"detector": "StreamingMPF", "stream": None}):
        header, arrays = upgrade({**kind, "notes": notes}, {"offset": np.array(-1.0)})
        assert header["notes"] == {"columns": ["a"], "more": 1}
        assert same(arrays, {"offset": np.array(-2.0)})


@pytest.mark.parametrize("line", [None, "x", True, [], {}, 10**400, math.inf, math.nan])
def test_other_lines_in_notes_are_kept(line: Any) -> None:
    header = {"detector": "BatchMPF", "notes": {"columns": ["a"], "line": line}}
    assert same(list(upgrade(header, {})), [header, {}])


def test_lines_of_users_and_of_streams_are_kept() -> None:
    mine = {"detector": "BatchMPF", "notes": {"line": -2.0}}
    assert upgrade(mine, {}) == (mine, {})
    header, arrays = upgrade({"detector": "StreamingMPF", "stream": {}, "notes": {"columns": [], "line": -2.0}}, {})
    assert header["notes"] == {"columns": [], "line": -2.0}
    assert arrays == {}


# ---- streams ---------------------------------------------------------------------------------------------------------

TREES = {"forest/left": np.zeros((3, 5), np.int32)}


def stream(arrays: dict[str, Any], **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    header, parts = upgrade({"detector": "StreamingMPF", "stream": given}, {**TREES, **arrays})
    return header["stream"], without(parts, *TREES)


def test_streams_had_trees_of_every_point_and_no_scores() -> None:
    header, arrays = stream({}, n_seen=9)
    assert header == {"n_seen": 9, "n_judges": 1000, "is_seeded": False}
    assert same(
        arrays,
        {
            "stream/sizes": np.full(3, EVERY),
            "stream/seeds": np.zeros(3, np.uint64),
            "stream/judges": np.empty(0, np.int64),
            "stream/judging": np.empty(0),
        },
    )


def test_compact_streams_get_no_arrays() -> None:
    header, arrays = upgrade({"detector": "StreamingMPF", "stream": {}}, {"compact/size": np.zeros(3, np.int32)})
    assert header["stream"] == {"n_judges": 1000, "is_seeded": False}
    assert list(arrays) == ["compact/size"]


@pytest.mark.parametrize(("score", "expected"), [("mass", np.log([0.25, 0.5])), ("log_mass", [0.25, 0.5])])
def test_scores_of_summaries_move_to_the_stream(score: str, expected: Any) -> None:
    header, arrays = stream({"calibration": np.array([0.125, 0.25, 0.5])}, n_judges=2, score=score)
    assert header == {"n_judges": 2, "score": score, "is_seeded": True}
    assert "calibration" not in arrays
    assert same(arrays["stream/judges"], np.array([1, 2]))
    assert same(arrays["stream/judging"], np.asarray(expected))


def test_scores_of_the_stream_come_first() -> None:
    own = {"stream/judges": np.array([7]), "stream/judging": np.array([-1.0])}
    header, arrays = stream({"calibration": np.array([0.5]), **own})
    assert not header["is_seeded"]
    assert same({name: arrays[name] for name in own}, own)
    assert "calibration" not in arrays


@pytest.mark.parametrize("scores", [np.zeros(2, np.float32), np.zeros((2, 1)), np.zeros(2, np.int64), "x", None])
def test_scores_of_other_types_are_left_for_the_reader(scores: Any) -> None:
    _, arrays = stream({"calibration": scores})
    assert arrays["calibration"] is scores


def test_summary_with_scores_of_its_own_loads_as_before() -> None:
    model = StreamingMPF(**SMALL, window=None, tree=Tree(max_depth=3), score_type="mass").fit(ROWS)
    header, arrays = contents(model)
    old = without(arrays, "stream/judges", "stream/judging")
    old["calibration"] = np.exp(arrays["stream/judging"])
    back = StreamingMPF.restored({**header, "stream": without(header["stream"], "is_seeded")}, old)
    np.testing.assert_allclose(back.detect(ROWS).p_values, model.detect(ROWS).p_values)
    assert back._stream.calibration.is_seeded


# ---- series ----------------------------------------------------------------------------------------------------------


def series(**arrays: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    header = {"detector": "SeriesMPF", "series": {"pattern": {"shingle": None}}}
    parts = {"values": np.arange(6.0).reshape(3, 2), "numbers": np.array([4, -1, 5]), **arrays}
    return upgrade(header, {f"series/{name}": part for name, part in parts.items()})


def test_known_readings_were_those_of_the_history() -> None:
    header, arrays = series()
    assert header["novelty"] == 2
    assert same(arrays["series/readings"], np.array([[0.0, 1.0], [4.0, 5.0]]))
    assert same(arrays["series/novelties"], np.empty(0))


@pytest.mark.parametrize(
    "arrays",
    [
        {"values": np.zeros(3)},
        {"values": None},
        {"values": np.zeros((2, 2))},
        {"numbers": np.zeros(3)},
        {"readings": np.zeros((1, 2))},
        {"novelties": np.zeros(1)},
    ],
)
def test_other_histories_get_no_known_readings(arrays: dict[str, Any]) -> None:
    header, parts = series(**arrays)
    assert "novelty" not in header
    assert parts.keys() == {"series/values", "series/numbers", *(f"series/{name}" for name in arrays)}


def test_shingles_have_no_known_readings() -> None:
    header = {"detector": "SeriesMPF", "series": {"pattern": {"shingle": 3}}}
    arrays = {"series/values": np.zeros((3, 2)), "series/numbers": np.arange(3)}
    assert same(list(upgrade(header, arrays)), [header, arrays])


# ---- events and changes ----------------------------------------------------------------------------------------------


def test_events_had_no_summary() -> None:
    tracker = EventTracker(5)
    tracker.update(3, True, -9.0, attributions={"a": 2.0})
    state = tracker.state()
    old = {**state, "event": state["event"][:-1]}
    with pytest.raises(ValueError, match="10 values"):
        EventTracker.of_state(old)
    assert upgrade_tracker(old) == upgrade_tracker(state) == state
    header, _ = upgrade({"detector": "StreamingMPF", "notes": {"events": old, "rows": 3}}, {})
    assert header["notes"] == {"events": state, "rows": 3}


@pytest.mark.parametrize("state", [None, [], {}, {"merge": 1, "row": 2, "event": None}, {"event": [{}] * 9}, "x"])
def test_other_states_of_events_do_not_change(state: Any) -> None:
    assert upgrade_tracker(state) == state


def test_attributions_had_another_name() -> None:
    assert upgrade_event({"id": 1, "blame": {"a": 2.0}}) == {"id": 1, "attributions": {"a": 2.0}}
    assert upgrade_event({"id": 1, "attributions": {}}) == {"id": 1, "attributions": {}}


def test_adopted_changes_had_another_name() -> None:
    watching = DriftMonitor(reference=128, n_estimators=2, random_state=0)
    watching.update(ROWS.repeat(4, axis=0))
    change = Change("drift", "adopted", 130, 129, 131, 140, None, None, 16, 25.0)
    header, arrays = unpack(watching.to_bytes())
    known = {"change": {**change.state_dict(), "state": "settled"}, "learned": 135, "balance": 0.0, "turned": -1}
    block = pack({**header, "monitor": {**header["monitor"], "open": known}}, arrays)
    assert DriftMonitor.of_bytes(block)._follower.ongoing.change == change


def test_thresholds_of_the_first_monitors_are_dropped() -> None:
    header, arrays = unpack((GOLDEN / "monitor-0-numbers.monitor").read_bytes())
    now, parts = upgrade(header, arrays)
    assert now["monitor"] == {**header["monitor"], "version": 2}
    assert parts.keys() == {name for name in arrays if not name.startswith("bars/")}


# ---- hostile contents ------------------------------------------------------------------------------------------------

NAMES = [
    *("parameters", "template", "forest", "views", "stream", "series", "pattern", "shingle", "notes", "columns"),
    *("line", "events", "event", "merge", "row", "n_judges", "score", "monitor", "open", "change", "state", "version"),
]
KINDS = ["BatchMPF", "StreamingMPF", "SeriesMPF", "GroupedMPF", "DriftMonitor"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "mass", "settled", *KINDS])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.sampled_from([*NAMES, "detector"]), inner),
    max_leaves=20,
)
FLAT = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=9), max_leaves=9)
PLACES = [
    *("offset", "calibration", "filled", "forest/left", "stream/judging", "stream/sizes", "series/values"),
    *("series/numbers", "series/readings", "forest/0/forest/left", "forest/calibration", "bars/bars"),
]
ARRAYS = st.sampled_from(
    [np.array(0.5), np.zeros(2), np.full((2, 3), np.nan), np.arange(2), np.zeros((0, 2)), np.zeros(3, np.uint8), "x", 3]
)


@settings(max_examples=examples(300))
@given(kind=st.sampled_from(KINDS), header=st.dictionaries(st.sampled_from(NAMES), FLAT))
def test_parts_that_are_not_objects_do_not_change(kind: str, header: dict[str, Any]) -> None:
    header = {**header, "detector": kind}
    assert same(list(upgrade(header, {})), [header, {}])


@settings(max_examples=examples(100))
@given(header=st.dictionaries(st.sampled_from(NAMES), VALUES), kind=FLAT)
def test_headers_of_unknown_kinds_do_not_change(header: dict[str, Any], kind: Any) -> None:
    if kind not in KINDS:
        assert upgrade({**header, "detector": kind}, {}) == ({**header, "detector": kind}, {})
    assert upgrade(header, {}) == (header, {})


@settings(max_examples=examples(500))
@given(
    kind=st.sampled_from(KINDS),
    header=st.dictionaries(st.sampled_from(NAMES), VALUES),
    arrays=st.dictionaries(st.sampled_from(PLACES), ARRAYS),
)
def test_hostile_contents_raise_nothing_and_are_upgraded_once(
    kind: str, header: dict[str, Any], arrays: dict[str, Any]
) -> None:
    header = {**header, "detector": kind}
    before = copy.deepcopy([header, arrays])
    once = upgrade(header, arrays)
    assert same([header, arrays], before)
    assert same(list(upgrade(*once)), list(once))
