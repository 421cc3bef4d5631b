"""Time series: shingles of the last readings, a detector that makes them as readings come, and anomalous stretches.

`Shingler` is a scikit-learn transformer, `SeriesMPF` a detector on a stream of readings. `find_events` and
`EventTracker` merge flagged rows into events.
"""

from polyaforest.timeseries._events import Event, EventTracker, find_events
from polyaforest.timeseries._series import SeriesMPF
from polyaforest.timeseries._shingler import Shingler

__all__ = ["Event", "EventTracker", "SeriesMPF", "Shingler", "find_events"]
