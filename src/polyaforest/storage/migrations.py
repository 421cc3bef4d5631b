"""Upgrade the contents of files that earlier releases wrote to the current format, on read.

All other modules know the current format only. Contents are untrusted: where they do not have the expected types, they
are returned unchanged, for the checks of the reader to report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from polyaforest.kernels.arrays import EVERY, NONE, Array
from polyaforest.storage.modelfile import Arrays, Header

_N_JUDGES = 1000  # calibration scores of a stream that does not say how many it keeps
_EVENT_FIELDS = 9  # of an event without a summary
_LARGEST = 1e300  # of a threshold; larger integers may not fit into a float


def upgrade(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Return the header and the arrays of a model as the current release writes them; the given ones do not change."""
    kind = header.get("detector")
    rule = _RULES.get(kind) if isinstance(kind, str) else None
    if rule is None:
        return header, arrays
    arrays = dict(arrays)
    return rule(_with(header, "notes", _upgrade_notes), arrays), arrays


def upgrade_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of a service under its current field names."""
    if "blame" not in event:
        return event
    return {("attributions" if name == "blame" else name): value for name, value in event.items()}


def upgrade_tracker(state: Any) -> Any:
    """Return the state of an `EventTracker`, with a summary of its open event."""
    if not isinstance(state, dict) or state.keys() != {"merge", "row", "event"}:
        return state
    event = state["event"]
    if not isinstance(event, list) or len(event) != _EVENT_FIELDS:
        return state
    return {**state, "event": [*event, {"is": ""}]}


# ---- detectors -------------------------------------------------------------------------------------------------------
# Each rule returns a new header. It changes `arrays`, a copy, under a prefix of their names.


def _upgrade_batch(header: Header, arrays: Arrays, prefix: str = "") -> Header:
    header = _with_noted_threshold(_with(header, "parameters", _upgrade_parameters), arrays, prefix)
    parameters = header.get("parameters")
    if isinstance(parameters, dict) and parameters["missing"] != "error":
        arrays.setdefault(f"{prefix}filled", np.array(1, np.int64))
    return header


def _upgrade_streaming(header: Header, arrays: Arrays, prefix: str = "") -> Header:
    header = _with(header, "parameters", _upgrade_parameters)
    if header.get("stream", ...) is None:  # a table saved without its points
        return _with_noted_threshold(header, arrays, prefix)
    return _with(header, "stream", lambda stream: _upgrade_stream(stream, arrays, prefix))


def _upgrade_series(header: Header, arrays: Arrays) -> Header:
    header = _with(header, "template", _upgrade_parameters)
    header = _with(header, "parameters", lambda parameters: _with_defaults(parameters, **_OF_OLD_SERIES))
    header = _with(header, "forest", lambda forest: _upgrade_views(forest, arrays))
    return _with_known_readings(header, arrays)


def _upgrade_grouped(header: Header, arrays: Arrays) -> Header:
    def upgraded(forest: Header) -> Header:
        rule = _upgrade_batch if forest.get("detector") == "BatchMPF" else _upgrade_streaming
        return rule(forest, arrays, "forest/")

    return _with(header, "forest", upgraded)


def _upgrade_monitor(header: Header, arrays: Arrays) -> Header:
    return _with(header, "monitor", lambda monitor: _upgrade_follower(monitor, arrays))


_OF_OLD_SERIES = {"short_memory": False, "learn_alarms": False}
_RULES: Mapping[str, Callable[[Header, Arrays], Header]] = {
    "BatchMPF": _upgrade_batch,
    "StreamingMPF": _upgrade_streaming,
    "SeriesMPF": _upgrade_series,
    "GroupedMPF": _upgrade_grouped,
    "DriftMonitor": _upgrade_monitor,
}


# ---- parts of detectors ----------------------------------------------------------------------------------------------


def _upgrade_notes(notes: Header) -> Header:
    return _with(notes, "events", upgrade_tracker)


def _upgrade_parameters(parameters: Header) -> Header:
    """Add parameters whose default has changed since files lacked them."""
    return _with_defaults(parameters, missing="error")


def _with_noted_threshold(header: Header, arrays: Arrays, prefix: str) -> Header:
    """Move the threshold that the command line saved in the notes to the array `offset`."""
    notes = header.get("notes")
    if not isinstance(notes, dict) or "columns" not in notes:  # otherwise "line" is a note of the user
        return header
    line: Any = notes.get("line")
    if type(line) not in (int, float) or not abs(line) < _LARGEST:
        return header
    arrays[f"{prefix}offset"] = np.array(float(line))
    return {**header, "notes": {name: note for name, note in notes.items() if name != "line"}}


def _upgrade_stream(stream: Header, arrays: Arrays, prefix: str) -> Header:
    """Add what streams had no choice of: the number of calibration scores, and the samples of trees."""
    stream = _with_defaults(stream, n_judges=_N_JUDGES, is_seeded=False)
    trees = arrays.get(f"{prefix}forest/left")
    if isinstance(trees, np.ndarray) and trees.ndim:  # a compact state has none, and always these arrays
        n_trees = len(trees)
        arrays.setdefault(f"{prefix}stream/sizes", np.full(n_trees, EVERY, np.int64))
        arrays.setdefault(f"{prefix}stream/seeds", np.zeros(n_trees, np.uint64))
        arrays.setdefault(f"{prefix}stream/judges", np.empty(0, np.int64))
        arrays.setdefault(f"{prefix}stream/judging", np.empty(0))
        return _with_calibration(stream, arrays, prefix)
    return stream


def _with_calibration(stream: Header, arrays: Arrays, prefix: str) -> Header:
    """Move the calibration scores of a summary, which had an array of their own, to those of its stream."""
    scores, n = arrays.get(f"{prefix}calibration"), stream["n_judges"]
    if not _is_array(scores, np.float64, 1) or type(n) is not int or n < 1:
        return stream
    del arrays[f"{prefix}calibration"]
    if not len(scores) or np.size(arrays[f"{prefix}stream/judging"]):
        return stream
    if stream.get("score") == "mass":
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(scores)
    arrays[f"{prefix}stream/judges"] = np.arange(len(scores))[-n:]
    arrays[f"{prefix}stream/judging"] = scores[-n:]
    return {**stream, "is_seeded": True}


def _upgrade_views(forest: Header, arrays: Arrays) -> Header:
    """Upgrade the forests of a series: one, or one for each view."""
    views = forest.get("views")
    if "views" not in forest:
        return _upgrade_streaming(forest, arrays, "forest/")
    if not isinstance(views, list) or not all(isinstance(view, dict) for view in views):
        return forest
    upgraded = [_upgrade_streaming(view, arrays, f"forest/{v}/") for v, view in enumerate(views)]
    return {**forest, "views": upgraded}


def _with_known_readings(header: Header, arrays: Arrays) -> Header:
    """Take the readings in the history of a series of context windows as all its known readings."""
    series = header.get("series")
    pattern = series.get("pattern") if isinstance(series, dict) else None
    if not isinstance(pattern, dict) or pattern.get("shingle", ...) is not None or "novelty" in header:
        return header
    values, numbers = arrays.get("series/values"), arrays.get("series/numbers")
    is_known = not arrays.keys().isdisjoint({"series/readings", "series/novelties"})
    if is_known or not _is_array(values, np.float64, 2) or not _is_array(numbers, np.int64, 1):
        return header
    if len(values) != len(numbers):
        return header
    readings = values[numbers != NONE]
    arrays |= {"series/readings": readings, "series/novelties": np.empty(0)}
    return {**header, "novelty": len(readings)}


def _upgrade_follower(monitor: Header, arrays: Arrays) -> Header:
    """Rename the state of changes; drop thresholds for another definition of evidence, to compute them again."""
    monitor = _with(monitor, "open", lambda known: _with(known, "change", _upgrade_change))
    version = monitor.get("version", 1)
    if type(version) is not int or version != 1:
        return monitor
    for name in ("dispersions", "usual", "bars"):
        arrays.pop(f"bars/{name}", None)
    return {**monitor, "version": 2}


def _upgrade_change(change: Header) -> Header:
    return {**change, "state": "adopted"} if change.get("state") == "settled" else change


# ---- untrusted contents ----------------------------------------------------------------------------------------------


def _with(header: Header, name: str, rule: Callable[[Header], Header]) -> Header:
    """Return a header with a part upgraded by a rule, if the part is an object."""
    part = header.get(name)
    return {**header, name: rule(part)} if isinstance(part, dict) else header


def _with_defaults(header: Header, **defaults: Any) -> Header:
    """Return a header with the entries that it lacks."""
    return {**header, **{name: value for name, value in defaults.items() if name not in header}}


def _is_array(part: Any, dtype: type[np.generic], n_axes: int) -> TypeGuard[Array]:
    """Return whether an entry is an array of a type and a number of axes."""
    return isinstance(part, np.ndarray) and part.dtype == dtype and part.ndim == n_axes
