"""A comparison for tests of plots and reports."""

import math

import numpy as np

from polyaforest.drift import Bound, Comparison, Condition, Region, Share


def compared(names=("u", "v"), after=0.06):
    """Comparison with two regions: more rows with a high first feature, fewer without the second."""
    high = Condition(0, names[0], 4.0, math.inf, values=True, missing=False)
    lacks = Condition(1, names[1], -math.inf, -math.inf, values=False, missing=True)
    regions = [
        Region((high,), Share(0.01, 0.005, 0.02), Share(after, 0.05, 0.07), Share(after - 0.01, 0.03, 0.07)),
        Region((lacks,), Share(0.3, 0.25, 0.35), Share(0.2, 0.15, 0.25), Share(-0.1, -0.2, -0.01)),
    ]
    return Comparison(
        log_bayes_factor=12.0,
        p_value=0.005,
        total_variation=Bound(0.05, 0.03, 0.07),
        jensen_shannon=Bound(0.02, 0.01, 0.03),
        regions=regions,
        feature_bits=np.array([15.0, 2.3]),
        names=list(names),
        n_rows=(500, 400),
        n_permutations=199,
        block_size=None,
        alpha=0.01,
        least_effect=0.01,
        samples=("monday", "tuesday"),
    )
