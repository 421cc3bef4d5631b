"""Private releases: the noise has its law, and an audit does not refute epsilon; with less noise it does.

The audit compares releases of neighbouring tables. If they are epsilon-differentially private, no event is more than
exp(epsilon) times as likely with one table as with the other. On one half of the releases it searches for the event
that best distinguishes the tables; on the other half it bounds the probabilities of that event.
"""

from math import log

import numpy as np
import pytest
from effort import mostly_slow
from laws import RARE
from scipy.stats import beta, chisquare

from polyaforest import BatchMPF, Tree
from polyaforest.forest import privacy

pytestmark = pytest.mark.statistical

TREE = Tree(domain=[[0.0, 0.0], [1.0, 1.0]], max_depth=3)
N_TREES = 8
TABLE = np.random.default_rng(0).random((400, 2))


def words_of(seed):
    rng = np.random.default_rng(seed)
    return lambda n: rng.integers(2**64, size=n, dtype=np.uint64)


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 2.5])
def test_noise_is_discrete_laplace(epsilon, any_seed):
    n = 40_000
    units = int(epsilon * privacy._UNIT)
    drawn = privacy.discrete_laplace(np.full(n, units), words_of(any_seed))
    most = int(5 / epsilon) + 1
    places = np.arange(-most, most + 1)
    chances = np.exp(-np.abs(places) * units / privacy._UNIT) * np.tanh(units / privacy._UNIT / 2)
    tail = (1 - chances.sum()) / 2
    expected = n * np.array([tail, *chances, tail])
    found = np.bincount(np.clip(drawn, -most - 1, most + 1) + most + 1, minlength=len(expected))
    assert chisquare(found, expected).pvalue > RARE


def test_noise_follows_its_own_budget(any_seed):
    units = np.repeat([privacy._UNIT // 10, 3 * privacy._UNIT], 20_000)
    drawn = privacy.discrete_laplace(units, words_of(any_seed))
    assert drawn[:20_000].std() == pytest.approx(14.1, rel=0.1)
    assert drawn[20_000:].std() == pytest.approx(0.332, rel=0.1)


# ---- the audit -------------------------------------------------------------------------------------------------------


def counted(rows):
    return BatchMPF(n_estimators=N_TREES, tree=TREE, random_state=0).fit(rows)


def releases(forest, row, epsilon, n, seed):
    """Return statistics that reveal the row: the counts of releases in its leaves, and in total, (n, 2)."""
    leaves, words = forest.leaves(row[None])[0], words_of(seed)
    found = []
    for _ in range(n):
        budget = privacy.Budget.of(epsilon, N_TREES, has_scores=False)
        counts, _ = privacy.private_counts(forest.forest_, budget, words)
        found.append((counts[np.arange(N_TREES), leaves].sum(), counts[0, forest.forest_.root[0]]))
    return np.array(found, float)


def bound(hits, n, alarm):
    """Return a lower bound of a log ratio of probabilities, given how often the event occurred in n trials."""
    low = beta.ppf(alarm / 4, hits[0], n - hits[0] + 1) if hits[0] else 0.0
    high = beta.ppf(1 - alarm / 4, hits[1] + 1, n - hits[1]) if hits[1] < n else 1.0
    return log(low / high) if low > high else 0.0


def least_epsilon(with_it, without, alarm):
    """Return a lower bound of epsilon, wrong with a probability of at most `alarm`."""
    half, best = len(with_it) // 2, 0.0
    for pair in ((with_it, without), (-without, -with_it)):
        scores = [part @ [1.0, -1.0] for part in pair]  # of a leaf against the others
        places = np.quantile(np.concatenate([part[:half] for part in scores]), np.linspace(0.5, 0.99, 50))
        seen = [[int((part[:half] >= place).sum()) for part in scores] for place in places]
        chosen = places[int(np.argmax([bound(hits, half, alarm) for hits in seen]))]
        best = max(best, bound([int((part[half:] >= chosen).sum()) for part in scores], len(with_it) - half, alarm))
    return best


@pytest.mark.parametrize("n", mostly_slow([500, 20_000]))
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_event_refutes_epsilon(epsilon, n, any_seed):
    row = np.array([0.3, 0.6])
    without, with_it = counted(TABLE), counted(np.vstack([TABLE, row]))
    found = [releases(forest, row, epsilon, n, [any_seed, i]) for i, forest in enumerate((with_it, without))]
    assert least_epsilon(*found, RARE) <= epsilon


def test_audit_detects_noise_that_ignores_sharing_among_trees(monkeypatch):
    share = privacy.Budget.of
    monkeypatch.setattr(privacy.Budget, "of", lambda epsilon, n_trees, **given: share(epsilon, 1, **given))
    row = np.array([0.3, 0.6])
    without, with_it = counted(TABLE), counted(np.vstack([TABLE, row]))
    found = [releases(forest, row, 2.0, 1000, [0, i]) for i, forest in enumerate((with_it, without))]
    assert least_epsilon(*found, RARE) > 2.0


def test_audit_is_sharp():
    """For two geometric counts that differ by one, the audit finds most of epsilon."""
    n, units = 40_000, int(1.5 * privacy._UNIT)
    drawn = privacy.discrete_laplace(np.full(2 * n, units), words_of(0)).astype(float)
    pairs = [np.column_stack([part, np.zeros(n)]) for part in (drawn[:n] + 1, drawn[n:])]
    assert 1.2 < least_epsilon(*pairs, RARE) <= 1.5


def test_no_event_refutes_epsilon_of_scores(any_seed):
    budget = privacy.Budget.of(5.0, 1, has_scores=True)  # a fifth of it for scores
    scores, words = np.linspace(-3, -0.5, 500), words_of(any_seed)
    found = []
    for more in ([-7.5], []):
        drawn = [privacy.private_scores(np.append(scores, more), -8.0, 501, budget, words) for _ in range(400)]
        found.append(np.column_stack([[(part < -7.0).sum() for part in drawn], np.zeros(400)]))
    assert least_epsilon(*found, RARE) <= 1.0
