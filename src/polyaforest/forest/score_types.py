"""The types of score."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from numbers import Real

import numpy as np

from polyaforest.kernels.arrays import SCORE_CELLS, SCORE_LOG_CELLS, SCORE_LOG_MASS, SCORE_MASS, Array


class Score(StrEnum):
    """The values of the detectors' parameter `score_type`."""

    MARGINS = "margins"  # typicality, less the surprise of features beyond their own margins
    TYPICALITY = "typicality"  # mean over trees and lifetimes of the log-mass of a row's cell
    MULTISCALE = "multiscale"  # mean over lifetimes of the log of the mean mass of a row's cell
    MASS = "mass"  # mean over trees of the mass of a row's leaf
    LOG_MASS = "log_mass"  # mean over trees of the log-mass of a row's leaf

    @property
    def uses_cells(self) -> bool:
        """Whether the score uses cells at several lifetimes rather than leaves."""
        return self in (Score.MARGINS, Score.TYPICALITY, Score.MULTISCALE)

    @property
    def is_log(self) -> bool:
        """Whether the score is a logarithm."""
        return self is not Score.MASS

    @property
    def is_additive(self) -> bool:
        """Whether the score is a mean of logarithms; then surprise is minus the score, in bits."""
        return self in (Score.MARGINS, Score.TYPICALITY, Score.LOG_MASS)

    def to_log(self, scores: Array) -> Array:
        """Return the logarithms of scores, whose tails are exponential."""
        if self.is_log:
            return scores
        with np.errstate(divide="ignore"):
            return np.log(scores)

    def from_log(self, logs: Array) -> Array:
        """Invert `to_log`."""
        return logs if self.is_log else np.exp(logs)

    @property
    def code(self) -> int:
        """The code of the score in kernels."""
        return _CODES[self]


_CODES = {
    Score.MARGINS: SCORE_LOG_CELLS,  # the margins are added later
    Score.TYPICALITY: SCORE_LOG_CELLS,
    Score.MULTISCALE: SCORE_CELLS,
    Score.MASS: SCORE_MASS,
    Score.LOG_MASS: SCORE_LOG_MASS,
}


@dataclass(frozen=True)
class EpsilonPhi:
    """The paper's (epsilon, phi)-anomalies as a score with its own threshold.

    The score of a row is the smallest mass that a share `phi` of the trees do not exceed in its leaf. Rows with a score
    of at most `epsilon` are anomalies.

    Parameters
    ----------
    epsilon : float in [0, 1]
    phi : float in [0, 1], default=0.8
    """

    epsilon: float
    phi: float = 0.8

    def __post_init__(self) -> None:
        """Raise ValueError if a parameter is not in [0, 1]."""
        for name in ("epsilon", "phi"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
                raise ValueError(f"{name} must be a number from 0 to 1; got {value!r}")

    @property
    def threshold(self) -> float:
        """The score below which rows are anomalies: the smallest float above `epsilon`."""
        return float(np.nextafter(self.epsilon, 2.0))


def epsilon_levels(masses: Array, phi: float) -> Array:
    """Return for each row the smallest mass that a share `phi` of the trees do not exceed; masses are (T, n)."""
    n_trees = len(masses)
    needed = int(np.searchsorted(np.arange(n_trees + 1) / n_trees, phi))  # the fewest trees with a share of phi
    if needed == 0:
        return np.zeros(masses.shape[1])
    return np.asarray(np.partition(masses, needed - 1, axis=0)[needed - 1])
