"""Time series: shingles, events and forecasts.

`Shingler` is a scikit-learn transformer. `find_events` and `EventTracker` merge flagged rows into events. The detector
is `polyaforest.SeriesMPF`; its `forecast` returns a `Forecast`.
"""

from polyaforest.series.events import Event, EventTracker, find_events
from polyaforest.series.forecasts import Forecast
from polyaforest.series.shingler import Shingler

__all__ = ["Event", "EventTracker", "Forecast", "Shingler", "find_events"]
