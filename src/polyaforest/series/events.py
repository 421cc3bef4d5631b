"""Events: groups of flagged rows that are near each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isnan
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np

from polyaforest.util import schema

Attributions = Sequence[Mapping[str, float] | None] | Mapping[int, Mapping[str, float]]


class Event(NamedTuple):
    """A group of flagged rows.

    `start`, `end` and `peak` are the times of the first, the last and the most anomalous flagged row, or their row
    numbers if there are no times. `score`, `p_value`, `attributions` and `summary` are those of the peak: the first row
    with the lowest score.
    """

    start: Any
    end: Any
    peak: Any
    first: int  # row numbers of the first and the last flagged row
    last: int
    n_flagged: int
    score: float
    p_value: float | None
    attributions: dict[str, float]  # bits by channel or feature
    summary: str = ""  # what is unusual

    def __str__(self) -> str:
        worst = max(self.attributions, key=lambda name: self.attributions[name], default=None)
        because = f", mostly {worst}" if worst is not None and self.attributions[worst] > 0 else ""
        because = f": {self.summary}" if self.summary else because
        rows = f"{self.n_flagged} flagged row" + ("s" if self.n_flagged > 1 else "")
        return f"{self.start} to {self.end}, peak at {self.peak}: {rows}, score {self.score:.2f}{because}"


class EventTracker:
    """Merge flagged rows into events, row by row.

    Flagged rows at most `merge` rows apart belong to one event. `update` returns an event once it is complete, that is
    `merge` rows after its last flagged row; `close` returns an event that is still open.

    Parameters
    ----------
    merge : int, default=10
        Largest distance between flagged rows of one event, in rows.

    Examples
    --------
    >>> tracker = EventTracker(merge=2)
    >>> flags = [False, True, False, True, False, False, False]
    >>> for row, is_anomaly in enumerate(flags):
    ...     if event := tracker.update(row, is_anomaly, -8.0 - row):
    ...         print(f"row {row}: {event}")
    row 5: 1 to 3, peak at 3: 2 flagged rows, score -11.00
    """

    def __init__(self, merge: int = 10) -> None:
        if isinstance(merge, bool) or not isinstance(merge, Integral) or merge < 1:
            raise ValueError(f"merge must be an integer of at least 1; got {merge!r}")
        self.merge: int = int(merge)
        self._row: int | None = None  # the latest
        self._event: Event | None = None  # still open

    @property
    def open_event(self) -> Event | None:
        """The event that is still open, if any."""
        return self._event

    def update(
        self,
        row: int,
        is_anomaly: bool,
        score: float,
        *,
        time: Any = None,
        p_value: float | None = None,
        attributions: Mapping[str, float] | None = None,
        summary: str = "",
    ) -> Event | None:
        """Add the next row; return the event that it completes, if any.

        Parameters
        ----------
        row : int
            Row number; rows that are not flagged may be omitted.
        is_anomaly : bool
            Whether the row is flagged.
        score : float
            Lower is more anomalous.
        time : float, str or datetime, optional
        p_value : float, optional
        attributions : dict of str to float, optional
            Bits by channel or feature; ignored unless the row is flagged.
        summary : str, optional
            What is unusual about the row.
        """
        if self._row is not None and row <= self._row:
            raise ValueError(f"row numbers must increase: got {row} after {self._row}")
        is_far = self._event is not None and int(row) - self._event.last >= self.merge + bool(is_anomaly)
        ended = self.close() if is_far else None
        self._row = int(row)
        if is_anomaly:
            when = _plain(row if time is None else time)
            bits = {str(name): float(part) for name, part in (attributions or {}).items()}
            self._take_in(Event(when, when, when, int(row), int(row), 1, _plain(score), _plain(p_value), bits, summary))
        return ended

    def close(self) -> Event | None:
        """Close and return the open event, if any."""
        event, self._event = self._event, None
        return event

    def _take_in(self, one: Event) -> None:
        """Add a flagged row, as an event of its own, to the open event, or open it."""
        event = self._event
        if event is None:
            self._event = one
            return
        self._event = event._replace(end=one.end, last=one.last, n_flagged=event.n_flagged + 1)
        if one.score < event.score or (isnan(event.score) and not isnan(one.score)):
            peak = {name: getattr(one, name) for name in ("peak", "score", "p_value", "attributions", "summary")}
            self._event = self._event._replace(**peak)

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values."""
        event = None if self._event is None else [_encoded(part) for part in self._event]
        return {"merge": self.merge, "row": self._row, "event": event}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the tracker with a state from `state`; raise ValueError if it is invalid."""
        _STATE(state, "events")
        tracker = cls(state["merge"])
        tracker._row = state["row"]
        if state["event"] is not None:
            tracker._event = Event(*(_decoded(part) for part in state["event"]))
            _check(tracker._event)
        return tracker


_PART = schema.either(
    schema.record({"is": schema.anything}), schema.record({"float": schema.text}), schema.record({"date": schema.text})
)
_STATE = schema.record(
    {
        "merge": schema.whole(1),
        "row": schema.either(schema.nothing, schema.whole()),
        "event": schema.either(schema.nothing, schema.listed(*[_PART] * len(Event._fields))),
    }
)


def _float(value: Any, place: str) -> None:
    """Check that a number can be written as JSON again."""
    schema.number(value, place)
    if isinstance(value, int):
        schema.whole(-(2**53), 2**53)(value, place)


_TIME = schema.either(schema.text, _float)


def _check(event: Event) -> None:
    """Raise ValueError if an event from a file is invalid."""
    for name in ("first", "last", "n_flagged"):
        schema.whole()(getattr(event, name), f"events.{name}")
    for name in ("start", "end", "peak"):
        if not isinstance(getattr(event, name), datetime):
            _TIME(getattr(event, name), f"events.{name}")
    _float(event.score, "events.score")
    schema.either(schema.nothing, _float)(event.p_value, "events.p_value")
    schema.text(event.summary, "events.summary")
    schema.mapping(event.attributions, "events.attributions")
    for name, bits in event.attributions.items():
        schema.text(name, "events.attributions")
        _float(bits, f"events.attributions.{name}")


def find_events(
    is_anomaly: Any,
    scores: Any,
    *,
    times: Any = None,
    p_values: Any = None,
    attributions: Attributions | None = None,
    merge: int = 10,
) -> list[Event]:
    """Merge flagged rows into events.

    Parameters
    ----------
    is_anomaly : array-like of bool, shape (n_rows,)
        Whether each row is flagged.
    scores : array-like of float, shape (n_rows,)
        Lower is more anomalous.
    times : sequence, optional
        The time of each row.
    p_values : array-like of float, shape (n_rows,), optional
    attributions : sequence of dicts, or dict of row number to dict, optional
        Bits by channel or feature, as from `SeriesMPF.bits_by_channel`; needed for flagged rows only.
    merge : int, default=10
        Largest distance between flagged rows of one event, in rows.

    Returns
    -------
    events : list of Event, by time

    Examples
    --------
    >>> find_events([0, 1, 1, 0, 0, 0, 1], [0, -9, -8, 0, 0, 0, -7], merge=3)[0]
    Event(start=1, end=2, peak=1, first=1, last=2, n_flagged=2, score=-9.0, p_value=None, attributions={}, summary='')
    """
    flags, values = np.asarray(is_anomaly, np.bool_), np.asarray(scores, np.float64)
    columns = {"scores": values, "times": times, "p_values": p_values}
    for name, column in columns.items():
        if flags.ndim != 1 or (column is not None and len(column) != len(flags)):
            raise ValueError(f"{name} and is_anomaly must have the same length: one value for each row")
    tracker, events = EventTracker(merge), []
    for row in np.flatnonzero(flags).tolist():
        time, p_value = (None if column is None else _item(column, row) for column in (times, p_values))
        events.append(
            tracker.update(
                row, True, values[row], time=time, p_value=p_value, attributions=_attributions_of(attributions, row)
            )
        )
    return [event for event in (*events, tracker.close()) if event is not None]


def _item(column: Any, row: int) -> Any:
    return column.iloc[row] if hasattr(column, "iloc") else column[row]


def _attributions_of(attributions: Attributions | None, row: int) -> Mapping[str, float] | None:
    if attributions is None:
        return None
    return attributions.get(row) if isinstance(attributions, Mapping) else attributions[row]


def _plain(value: Any) -> Any:
    """Return a number or a date as a Python object."""
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _encoded(part: Any) -> Any:
    if isinstance(part, datetime):
        return {"date": part.isoformat()}
    return {"float": str(part)} if isinstance(part, float) and not np.isfinite(part) else {"is": part}


def _decoded(part: Mapping[str, Any]) -> Any:
    ((kind, value),) = part.items()
    return datetime.fromisoformat(value) if kind == "date" else float(value) if kind == "float" else value
