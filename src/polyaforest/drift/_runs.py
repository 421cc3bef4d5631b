"""The run-length posterior: how many of the last points come from the distribution that is in force now."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from polyaforest.core.arrays import Array

_WITHIN = 0.9  # probability of the range that is stated


class RunLengths(NamedTuple):
    """How many points ago the distribution changed.

    The posterior of Bayesian online change-point detection (Adams and MacKay, 2007), with the masses of the forest as
    the predictive probabilities: before the change the points follow the reference, after it a distribution of which
    nothing is known; a change comes with the same small probability at every point. Evidence counts as far as it
    exceeds what is usual without a change.
    """

    none: float  # the probability that there was no change
    probabilities: Array  # float64 (n,): that the last 1, 2, ..., n points came after the change

    @classmethod
    def of_evidence(cls, evidence: Array, hazard: float) -> RunLengths:
        """Return the posterior, given the evidence for runs of 1, 2, ..., n points."""
        weights = np.log(hazard) + evidence
        total = logsumexp(np.append(weights, 0.0))
        return cls(float(np.exp(-total)), np.exp(weights - total))

    @property
    def mode(self) -> int:
        """The most probable number of points since the change, if there was one."""
        return int(np.argmax(self.probabilities)) + 1

    @property
    def range(self) -> tuple[int, int]:
        """The numbers of points since the change between which it lies with a probability of 90 %, if there was one."""
        order = np.argsort(-self.probabilities, kind="stable")
        within = self.probabilities[order].cumsum() < _WITHIN * self.probabilities.sum()
        chosen = order[: int(within.sum()) + 1]  # the most probable first
        return int(chosen.min()) + 1, int(chosen.max()) + 1
