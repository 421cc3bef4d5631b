"""Features of the context window that ends at each reading of a series, grouped into views.

Neighbouring readings are nearly equal, so cuts along raw readings would all have the same direction. These features
differ: changes at several scales, volatility, the low waves of a cosine transform, levels, and the phase of a rhythm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from polyaforest.kernels.arrays import NONE, Array

LENGTH = 128  # readings in a context window
REACH = 64  # readings after an anomalous one that may look anomalous because of it
_WAVE_LENGTH = 96  # readings in the cosine transform
LEAST = _WAVE_LENGTH  # unbroken readings that a context window needs: mirrored readings would distort the waves
_MOST_WAVES = 12
_MOST_DETAILED = 3  # most channels with all features
_OF_SEASON = "deviation of {} from its rhythm"
PHASE = ("phase (sine)", "phase (cosine)", "shorter phase (sine)", "shorter phase (cosine)")
MOST_PERIODS = 2
LONGEST_PERIOD = 1024  # steps
_SEASON = np.array([1, 8, 32])  # steps over which deviations from the rhythm are averaged


class Coordinates(NamedTuple):
    """The features of each channel, as numbers of steps they look back."""

    edges: tuple[int, ...]
    means: tuple[int, ...]
    volatility: tuple[int, ...]
    n_waves: int
    most_still: int  # most unchanged steps that reduce the first volatility

    def labels(self) -> list[str]:
        """Return the names of the features, with a placeholder for the channel."""
        return [
            *(f"change of {{}} over {n}" for n in self.edges),
            *("{}" if n == 1 else f"mean of {{}} over {n}" for n in self.means),
            *(f"volatility of {{}} over {n}" for n in self.volatility),
            *(f"wave {k} of {{}}" for k in range(1, self.n_waves + 1)),
        ]


class ViewFeatures(NamedTuple):
    """The features that one forest sees: some of each channel, and optionally the phase."""

    name: str
    labels: tuple[str, ...]
    has_phase: bool = False

    def width(self, n_channels: int) -> int:
        """Return the number of features."""
        return len(self.labels) * n_channels + len(PHASE) * self.has_phase


_FEW = Coordinates((1, 2, 4, 8, 16, 32), (1, 8, 32, 64), (8, 32, LENGTH - 1), _MOST_WAVES, 64)
_MANY = Coordinates((), (1, 8, 32), (8, 32), 3, 0)


class Layout:
    """The features of a series of `n_channels` channels: view by view, channel by channel."""

    def __init__(self, n_channels: int) -> None:
        given = _FEW if n_channels <= _MOST_DETAILED else _MANY
        labels = given.labels()
        levels = ("{}", "mean of {} over 8", "mean of {} over 32") if given is _FEW else ("{}", "mean of {} over 32")
        waves = tuple(label for label in labels if label.startswith("wave"))
        changes = tuple(label for label in labels if label not in (*levels, *waves))
        self.n_channels, self.coordinates = n_channels, given
        self.season_labels = {n: _OF_SEASON if n == 1 else f"{_OF_SEASON} over {n}" for n in _SEASON.tolist()}
        self.views = (
            ViewFeatures("change", changes),
            ViewFeatures("shape", waves),
            ViewFeatures("season", tuple(self.season_labels.values())),
            ViewFeatures("rhythm", levels, has_phase=True),
        )
        self.steps = [np.array(steps, np.int64) for steps in given[:3]]
        self.waves = _WAVES[: given.n_waves]

    @property
    def stillness(self) -> str:
        """The label of the volatility that unchanged steps reduce."""
        return f"volatility of {{}} over {self.coordinates.volatility[0]}"

    @cached_property
    def columns(self) -> Array:
        """The coordinate of each feature except the season; lazy, because a file may claim any number of channels."""
        labels = self.coordinates.labels()
        found = [
            c * len(labels) + labels.index(label)
            for view in self.views
            if view.name != "season"
            for c in range(self.n_channels)
            for label in view.labels
        ]
        return np.array(found)

    @property
    def season(self) -> slice:
        """The features of the season."""
        first = sum(self.widths[:2])
        return slice(first, first + self.widths[2])

    @property
    def widths(self) -> list[int]:
        """Number of features of each view."""
        return [view.width(self.n_channels) for view in self.views]

    def names(self, channels: Sequence[str]) -> list[str]:
        """Return the names of the features."""
        return [label.format(name) for view in self.views for name in channels for label in view.labels] + [*PHASE]

    def channels(self) -> Array:
        """Return the channel of each feature, int64 (F,); NONE for the phase."""
        own = [c for view in self.views for c in range(self.n_channels) for _ in view.labels]
        return np.array(own + [NONE] * len(PHASE))

    @property
    def readings_in_view(self) -> Array:
        """The columns of the last view that contain the newest readings, int64 (C,)."""
        return len(self.views[-1].labels) * np.arange(self.n_channels)

    def readings(self) -> Array:
        """Return the columns that contain the newest readings, int64 (C,)."""
        return sum(self.widths[:-1]) + self.readings_in_view


layout_of = cache(Layout)


def season_features(values: Array, places: Array, period: int) -> Array:
    """Return the deviations from the rhythm at steps, (n, n_channels * 3), channel by channel."""
    deviations = np.empty((len(places), values.shape[1], len(_SEASON)))
    fill: Callable[..., None] = kernels().fill_seasons
    fill(np.ascontiguousarray(values), np.ascontiguousarray(places, np.int64), period, _SEASON, deviations)
    return deviations.reshape(len(places), values.shape[1] * len(_SEASON))


def mean_deviations(deviations: Array) -> Array:
    """Return means of deviations, (n, C), over the last steps, in the order of `season_features`: (n, C * 3)."""
    total = np.concatenate([np.zeros((1, deviations.shape[1])), np.cumsum(deviations, axis=0)])
    first = np.maximum(np.arange(1, len(total))[:, None] - _SEASON, 0)
    means = (total[1:, None] - total[first]) / _SEASON[None, :, None]
    return np.ascontiguousarray(means.transpose(0, 2, 1)).reshape(len(deviations), -1)


def context_features(values: Array, places: Array, starts: Array) -> Array:
    """Return the features of the context windows that end at `places`, (n, F), with zeros for season and phase.

    `values` are evenly spaced readings, (S, C); `starts` are the first of the unbroken steps before `places`.
    """
    n, n_channels = len(places), values.shape[1]
    layout = layout_of(n_channels)
    coordinates = np.empty((n, n_channels, sum(map(len, layout.steps)) + len(layout.waves)))
    fill: Callable[..., None] = kernels().fill_contexts
    steps = (np.ascontiguousarray(part, np.int64) for part in (places, starts))
    still = layout.coordinates.most_still
    fill(np.ascontiguousarray(values), *steps, *layout.steps, layout.waves, still, np.empty(LENGTH), coordinates)
    own = coordinates.reshape(n, n_channels * coordinates.shape[2])[:, layout.columns]
    rest = np.zeros((n, layout.season.stop - layout.season.start)), np.zeros((n, len(PHASE)))
    return np.concatenate([own[:, : layout.season.start], rest[0], own[:, layout.season.start :], rest[1]], axis=1)


def phase_features(clock: Array, periods: Sequence[int]) -> Array:
    """Return sine and cosine of the phase of each period, (n, 4); zeros for missing periods."""
    phases = np.zeros((len(clock), len(PHASE)))
    for k, period in enumerate(periods):
        angle = 2 * np.pi * np.mod(clock, period) / period
        phases[:, 2 * k], phases[:, 2 * k + 1] = np.sin(angle), np.cos(angle)
    return phases


@cache
def kernels() -> Any:
    """Import the compiled loops on first use."""
    from polyaforest.kernels import contexts

    return contexts


def _waves() -> Array:
    """Return the low waves of a cosine transform by age, (W, L), scaled so that projections are amplitudes."""
    steps = np.arange(_WAVE_LENGTH)[::-1] + 0.5
    waves = np.arange(1, _MOST_WAVES + 1)[:, None]
    return 2 / _WAVE_LENGTH * np.cos(np.pi * waves * steps / _WAVE_LENGTH)


_WAVES = _waves()
