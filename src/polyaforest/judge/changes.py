"""Changed settings of models that have learned: each is applied, causes relearning, or is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyaforest.detectors import StreamingMPF
from polyaforest.drift import DriftMonitor
from polyaforest.io.errors import BadInput, in_words
from polyaforest.io.records import RecordReader
from polyaforest.judge.models import Detector, with_rate
from polyaforest.kernels.arrays import Array
from polyaforest.settings.stream import FORMER_NAMES, Effect, StreamSettings, flat_settings
from polyaforest.settings.values import Setting
from polyaforest.tables.categories import Categories, encode
from polyaforest.tables.validation import NamedRows
from polyaforest.util.durations import parse_duration

__all__ = ["Changed", "Changes", "apply_settings", "find_changes", "relearn_held"]

Changed = dict[str, tuple[Any, Any]]  # settings before and after, by name
_KNOWN = flat_settings(StreamSettings)


@dataclass
class Changes:
    """What other settings do to existing models."""

    applied: Changed = field(default_factory=dict)
    relearned: Changed = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # reasons, by setting
    reader: dict[str, Any] | None = None  # the state of the reader of records


def find_changes(
    notes: Mapping[str, Any],
    now: Mapping[str, Any],
    wanted: RecordReader,
    effects: Mapping[str, Effect],
    data: str = "models",
) -> Changes:
    """Compare settings with those saved with the models.

    Parameters
    ----------
    notes : mapping
        Saved with the models.
    now : mapping
        The settings as JSON values.
    wanted : RecordReader
        The record reader of a new stream with these settings.
    effects : mapping
        What a change of each setting does.
    data : str
        What is stored, in words.
    """
    state, stored = notes["reader"], _stored(notes["settings"])
    has_learned = state["settled"]
    found = Changes(reader=_continued_reader(wanted, state) if has_learned else wanted.state())
    if has_learned:
        found.refused = dict(_refusals(wanted, state, data))
    for name, value in now.items():
        if name not in stored or name in found.refused or _is_same(name, stored[name], value):
            continue
        is_learned_again = effects[name] is Effect.RELEARNED and has_learned
        (found.relearned if is_learned_again else found.applied)[name] = (stored[name], value)
    return found


def _stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved settings under their current names, with the defaults of those that did not exist."""
    stored = {FORMER_NAMES.get(name, name): value for name, value in settings.items()}
    if stored.get("series") == "auto":  # of earlier versions of `watch`
        stored["series"] = None
    return StreamSettings().plain() | stored


def _is_same(name: str, before: Any, now: Any) -> bool:
    """Return whether a saved value is the current one; earlier versions rounded durations to six digits."""
    if before == now or _normal(_KNOWN.get(name), before) == now:
        return True
    return name == "window" and isinstance(now, str) and before == f"{parse_duration(now):g}s"


def _normal(setting: Setting | None, value: Any) -> Any:
    """Return a saved value in its normal form; an invalid one, as of an untrusted file, unchanged."""
    try:
        return value if setting is None else setting.plain(setting.check(value))
    except ValueError:
        return value


def _refusals(wanted: RecordReader, state: Mapping[str, Any], data: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit the stored records, with the reasons."""
    categories = state.get("categories", [])
    if wanted.categories != categories:
        before, after = (in_words(names) if names else "none" for names in (categories, wanted.categories))
        yield "categories", f"the {data} have the categories {before}, not {after}"
    if wanted.names and wanted.names != state["names"]:
        yield "columns", f"the {data} have the columns {in_words(state['names'])}, not {in_words(wanted.names)}"
    if wanted.time is not None and wanted.time != state["time"]:
        former = f"have their times in {state['time']!r}" if state["time"] is not None else "have no times"
        yield "time", f"stored records {former}, but time is now {wanted.time!r}"
    stored, now = state["key"], wanted.state()["key"]
    if now != stored:
        before = f"each {_fields(stored)} has its own" if stored is not None else "all records share their"
        after = "none" if now is None else _fields(now)
        yield "by", f"{before} {data}, but by is now {after}"
    if wanted.weight != state.get("weight"):
        before, after = (f"the field {name!r}" if name else "none" for name in (state.get("weight"), wanted.weight))
        yield "weight", f"the {data} have the weights of {before}, but weight is now {after}"
    if wanted.id is not None and wanted.id in state["names"]:
        yield "id", f"the field {wanted.id!r} is a column of the models"


def _fields(names: str | Sequence[str]) -> str:
    """Return one or several names in quotes."""
    return repr(names) if isinstance(names, str) else " and ".join(map(repr, names))


def _continued_reader(wanted: RecordReader, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reader state of existing models; it keeps the detected columns."""
    if wanted.format not in ("auto", state["format"]):
        known = {"columns": state["names"], "time": state["time"], "key": state["key"]}
        known |= {"categories": state.get("categories", []), "weight": state.get("weight")}
        return RecordReader(wanted.format, **known, id=wanted.id).state()
    return {**state, "id": wanted.id}


# ---- models ----------------------------------------------------------------------------------------------------------


def apply_settings(detector: Detector, settings: StreamSettings) -> Detector:
    """Apply the settings that do not change what a model has learned; return the model.

    A drift monitor restarts if its parameters have changed.
    """
    with_rate(detector, settings.false_alarm_rate)
    if detector.companion is not None and not _is_as_set(detector.companion, settings):
        detector.companion = None
    return detector


def _is_as_set(monitor: Any, settings: StreamSettings) -> bool:
    """Return whether a drift monitor has the parameters that settings ask for."""
    wanted = settings.monitor
    if wanted is None or not isinstance(monitor, DriftMonitor):
        return False
    every = _normal(_KNOWN["drift_alarms_every"], monitor.false_alarms_every)
    before = {**{name: getattr(monitor, name) for name in wanted}, "false_alarms_every": every}
    return before == {**wanted, "false_alarms_every": settings.plain()["drift_alarms_every"]}


def relearn_held(detector: Detector, fresh: Detector) -> Detector:
    """Return a new model that has learned the records another one holds; raise `BadInput` if it holds none.

    Records without an id are numbered from 0 again.
    """
    if not detector.is_fitted:
        return fresh
    if not isinstance(detector, StreamingMPF) or not detector.keeps_points_:
        raise BadInput("a model of a time series does not hold its records, so a new model cannot learn from them")
    if not detector.n_points_:
        return fresh
    keys = [key for key in detector.keys_ if isinstance(key, str)]
    is_named = len(keys) == detector.n_points_
    times = None if np.isnan(detector.times_).any() else detector.times_
    fresh.detect_then_learn(_held_rows(detector), keys=keys if is_named else None, times=times)
    return fresh


def _held_rows(detector: StreamingMPF) -> NamedRows:
    """Return the points that a model holds, with names and categories."""
    points: Array = detector.points_
    names = [str(name) for name in detector.feature_names_in_]
    if detector.encoding_ is None:
        return NamedRows(points, names)
    values, texts = np.empty(points.shape), dict[float, str]()
    for k in range(points.shape[1]):
        if k in detector.encoding_.columns:
            values[:, k], known = encode(points[:, k])
            texts |= known
        else:
            values[:, k] = points[:, k].astype(np.float64)
    return NamedRows(values, names, Categories(detector.encoding_.columns, points.shape[1], texts))
