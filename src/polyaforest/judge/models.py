"""The models of streams: one detector per key, in a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeAlias

from polyaforest.detectors import BatchMPF, SeriesMPF, StreamingMPF, loads
from polyaforest.drift import DriftMonitor
from polyaforest.series import EventTracker
from polyaforest.settings.stream import StreamSettings
from polyaforest.storage import model_store
from polyaforest.storage.model_store import ModelStore
from polyaforest.storage.state import MALFORMED
from polyaforest.util import schema

__all__ = [
    "Detector", "Entry", "Models", "Store", "load_stream", "new_detector", "open_store", "read_model", "with_rate",
]  # fmt: skip

Detector: TypeAlias = StreamingMPF | SeriesMPF
Entry: TypeAlias = model_store.Entry[Detector]
Store: TypeAlias = ModelStore[Detector]


class Models(Protocol):
    """Models by key; a `ModelStore` is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: str) -> Entry:
        """Return the model of a key, with its notes."""

    def revert(self, key: str) -> None:
        """Restore the last saved state of a model."""

    def delete(self, key: str) -> None:
        """Delete a model: its key starts over."""


def open_store(
    path: str | os.PathLike[str] | None,
    make: Callable[[], Detector],
    *,
    change: Callable[[Detector], Detector] = lambda detector: detector,
    max_bytes: int = 2**30,
    notify: Callable[[str], None] = lambda message: None,
) -> Store:
    """Open a model store for writing; for the parameters see `ModelStore`.

    `change` is applied to each model that is read, to update settings that do not affect what it has learned.
    """
    return ModelStore(path, make, lambda block: change(load_stream(block)), max_bytes=max_bytes, notify=notify)


def with_rate(detector: Detector, false_alarm_rate: float | None) -> Detector:
    """Set the false alarm rate of a detector, and return the detector."""
    forest = detector.estimator if isinstance(detector, SeriesMPF) else detector
    if forest is None or forest.false_alarm_rate != false_alarm_rate:
        detector.change_false_alarm_rate(false_alarm_rate)
    return detector


def read_model(path: str | os.PathLike[str], key: str) -> Detector:
    """Return the detector of a key, as of the last commit."""
    return model_store.read_model(path, key, load_stream)


def new_detector(settings: StreamSettings) -> Detector:
    """Return a detector for a stream of independent rows or, if any of its settings is given, for a time series."""
    forest = StreamingMPF(
        n_estimators=settings.trees,
        window=settings.window,
        false_alarm_rate=settings.false_alarm_rate,
        random_state=settings.seed,
    )
    shingle, difference, calendar = settings.shingle, settings.difference, settings.calendar
    if settings.series:
        return SeriesMPF(forest, calendar=calendar, timezone=settings.timezone)
    if not (shingle or difference or calendar):
        return forest
    timezone = settings.timezone
    return SeriesMPF(forest, shingle=shingle or 1, difference=difference, calendar=calendar, timezone=timezone)


def load_stream(block: bytes) -> Detector:
    """Load a detector that can learn more; raise ValueError for any other."""
    model = loads(block)
    if isinstance(model, BatchMPF) or (isinstance(model, StreamingMPF) and model.is_frozen_):
        raise ValueError("it cannot learn from a stream")
    try:
        schema.whole(-1)(model.notes.get("rows", 0), "rows")
        if model.notes.get("events") is not None:
            EventTracker.of_state(model.notes["events"])
    except MALFORMED as problem:
        raise ValueError(f"its notes are damaged: {problem}") from problem
    if model.companion is not None:
        DriftMonitor.beside(model)  # so that deleting points from the model deletes them from its monitor too
    return model
