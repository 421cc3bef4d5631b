"""The mapping between record numbers in the history and point numbers in a model.

A model numbers points from 0. After relearning from part of the history, its numbers are lower than those in the
history. The mapping is saved with the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyaforest.forest.point_store import Key
from polyaforest.util import schema

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
    """The mapping of the record numbers of a key.

    Parameters
    ----------
    since, ahead : int
        From the number `since` on, history numbers exceed model numbers by `ahead`.
    runs : sequence of (int, int, int)
        Runs of relearned records: first number in the history, first number in the model, length.
    """

    def __init__(self, since: int = 0, ahead: int = 0, runs: Sequence[Sequence[int]] = ()) -> None:
        self.since, self.ahead, self._runs = since, ahead, [list(run) for run in runs]

    @classmethod
    def of_notes(cls, notes: dict[str, Any]) -> Numbering:
        """Read the mapping from the notes of a model."""
        stored = notes.get(_NAME)
        if stored is None:
            return cls()
        _RULE(stored, _NAME)
        return cls(**stored)

    def to_notes(self, notes: dict[str, Any]) -> None:
        """Write the mapping to the notes of a model."""
        notes[_NAME] = {"since": self.since, "ahead": self.ahead, "runs": self._runs}

    def add(self, in_history: int, in_model: int, n: int = 1) -> None:
        """Add the `n` copies of a relearned record; call in the order of the records."""
        last = self._runs[-1] if self._runs else [0, 0, -1]
        if in_history - last[0] == in_model - last[1] == last[2]:
            last[2] += n
        else:
            self._runs.append([in_history, in_model, n])

    def in_history(self, point: Key | None) -> Key | None:
        """Return the history number of a point that the model has just learned."""
        return point + self.ahead if isinstance(point, int) else point

    def in_model(self, point: Key | None) -> Key | None:
        """Return the model number of a record; None if the model has not learned it."""
        if not isinstance(point, int):
            return point
        if point >= self.since:
            return point - self.ahead
        runs = (run for run in self._runs if run[0] <= point < run[0] + run[2])
        return next((in_model + point - first for first, in_model, _ in runs), None)
