"""Numbers of records in the history, and of the same records as points of a model.

A model numbers what it learns from 0 on. One that was relearned from part of the history has learned fewer records than
the one before it, while numbers in the history keep rising. How the two relate is noted with the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyaforest.core import schema
from polyaforest.forest.point_store import Key

__all__ = ["Numbering"]

_NAME = "numbering"
_RULE = schema.record(
    {
        "since": schema.whole(),
        "ahead": schema.whole(-schema.MOST_COUNTED),
        "runs": schema.many(schema.listed(schema.whole(), schema.whole(), schema.whole())),
    }
)


class Numbering:
    """How the records of a key are numbered.

    Parameters
    ----------
    since, ahead : int
        From the number `since` on, numbers in the history are so far ahead of those in the model.
    runs : sequence of (int, int, int)
        Of records that were relearned: the first number in the history, the first in the model, and how many.
    """

    def __init__(self, since: int = 0, ahead: int = 0, runs: Sequence[Sequence[int]] = ()) -> None:
        self.since, self.ahead, self._runs = since, ahead, [list(run) for run in runs]

    @classmethod
    def of_notes(cls, notes: dict[str, Any]) -> Numbering:
        """Return the numbering in the notes of a model."""
        stored = notes.get(_NAME)
        if stored is None:
            return cls()
        _RULE(stored, _NAME)
        return cls(**stored)

    def to_notes(self, notes: dict[str, Any]) -> None:
        """Write the numbering into the notes of a model."""
        notes[_NAME] = {"since": self.since, "ahead": self.ahead, "runs": self._runs}

    def add(self, in_history: int, in_model: int) -> None:
        """Take note of a record that was relearned; they are given in order."""
        last = self._runs[-1] if self._runs else [0, 0, -1]
        if in_history - last[0] == in_model - last[1] == last[2]:
            last[2] += 1
        else:
            self._runs.append([in_history, in_model, 1])

    def in_history(self, point: Key | None) -> Key | None:
        """Return the key in the history of a point that the model has just learned."""
        return point + self.ahead if isinstance(point, int) else point

    def in_model(self, point: Key | None) -> Key | None:
        """Return the key in the model of a record of the history; None if the model has not learned it."""
        if not isinstance(point, int):
            return point
        if point >= self.since:
            return point - self.ahead
        runs = (run for run in self._runs if run[0] <= point < run[0] + run[2])
        return next((in_model + point - first for first, in_model, _ in runs), None)
