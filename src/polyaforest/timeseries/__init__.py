"""Time series: shingles of the last readings, and events that flagged rows make up.

`Shingler` is a scikit-learn transformer. `find_events` and `EventTracker` merge flagged rows into events. The detector
on a stream of readings is `polyaforest.SeriesMPF`; its `forecast` returns a `Forecast`.
"""

from polyaforest.timeseries._events import Event, EventTracker, find_events
from polyaforest.timeseries._forecasts import Forecast
from polyaforest.timeseries._shingler import Shingler

__all__ = ["Event", "EventTracker", "Forecast", "Shingler", "find_events"]
