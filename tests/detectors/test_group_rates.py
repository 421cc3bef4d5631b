"""Verdicts by group: under the null each group is flagged at the requested rate; without groups, small ones are not."""

import numpy as np
import pytest
from laws import ALARM
from scipy.stats import betabinom

from polyaforest import BatchMPF, GroupedMPF, StreamingMPF

pytestmark = pytest.mark.statistical

RATE = 0.05
SHARES = {"large": 0.9, "small": 0.07, "tiny": 0.02, "tinier": 0.01}  # the last two share a calibration
PLACES = {"large": 0.0, "small": 5.0, "tiny": -6.0, "tinier": -6.0}


def draw(n, rng):
    groups = rng.choice(list(SHARES), n, p=list(SHARES.values()))
    spread = np.where(groups == "small", 1.5, 1.0)[:, None]
    return rng.normal(size=(n, 3)) * spread + np.array([PLACES[group] for group in groups])[:, None], groups


@pytest.mark.parametrize("kind", [StreamingMPF, BatchMPF])
@pytest.mark.parametrize("seed", range(2))
def test_every_group_is_flagged_at_the_rate(kind, seed):
    rng = np.random.default_rng([seed, 17])
    rows, groups = draw(8000, rng)
    new, of_new = draw(30_000, rng)
    forest = GroupedMPF(kind(n_estimators=40, false_alarm_rate=RATE, random_state=seed), min_group=200)
    found = forest.fit(rows, groups=groups).detect(new, groups=of_new)
    assert set(forest.groups_) == {"large", "small"}
    alone = forest.estimator_.detect(new)
    for names in (["large"], ["small"], ["tiny", "tinier"]):
        is_own = np.isin(of_new, names)
        n_flagged, n_known = int(found.is_anomaly[is_own].sum()), min(int(np.isin(groups, names).sum()), 1000)
        rank = int(RATE * (n_known + 1))
        law = betabinom(int(is_own.sum()), rank, n_known + 1 - rank)  # the threshold is the rank-th of n_known scores
        assert ALARM / 6 < law.cdf(n_flagged) < 1 - ALARM / 6, names
        if names != ["large"]:
            assert alone.is_anomaly[is_own].mean() > 3 * RATE  # by all rows, small groups are odd
    assert alone.is_anomaly[of_new == "large"].mean() < RATE / 2
