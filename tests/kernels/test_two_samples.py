"""Laws of the evidence of two samples, on arbitrary trees: against plain formulas, and over all permutations."""

import itertools
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import hypergeom

from polyaforest.drift.evidence import MISSING, Axis, SplitPrior, TreePartition, attribute, permute_labels
from polyaforest.drift.regions import gain, shortest
from polyaforest.kernels.arrays import NONE

pytestmark = [pytest.mark.property, pytest.mark.plain]


@st.composite
def partitions(draw, most_rows=7):
    """A tree of a few nodes, and rows in its leaves."""
    left, parent, leaves = [NONE], [NONE], [0]
    for _ in range(draw(st.integers(1, 3))):
        j = draw(st.sampled_from(leaves))
        left[j] = len(left)
        leaves.remove(j)
        leaves += [len(left), len(left) + 1]
        left += [NONE, NONE]
        parent += [j, j]
    depth = [0]
    for above in parent[1:]:
        depth.append(depth[above] + 1)
    rows = draw(st.lists(st.sampled_from(leaves), min_size=3, max_size=most_rows))
    feature = [NONE if child == NONE else draw(st.integers(0, 2)) for child in left]
    whole = [np.array(part, np.int32) for part in (left, parent, feature)]
    deep = np.array(depth, np.int64)
    return TreePartition(*whole, np.zeros(len(left)), deep, deep, np.array(rows, np.int32))


def evidence_of(partition, labels, prior):
    counts = partition.counts_of(np.ones((len(labels), 1), np.uint8))
    return prior.evidence(partition, counts, partition.counts_of(np.array(labels, np.uint8)[:, None]))[:, 0]


def naive_node(n, n_left, m, m_left, strength):
    """The Bayes factor of a cut from its definition: Beta-binomials of both samples, and the hypergeometric."""
    a, b = strength * n_left / n, strength * (1 - n_left / n)

    def beta_binomial(total, k):
        choose = gammaln(total + 1) - gammaln(k + 1) - gammaln(total - k + 1)
        return math.exp(choose + betaln(k + a, total - k + b) - betaln(a, b))

    two = (beta_binomial(m, m_left) + beta_binomial(n - m, n_left - m_left)) / 2
    return two / hypergeom.pmf(m_left, n, n_left, m)


@settings(max_examples=examples(100))
@given(partitions(30), st.data(), st.floats(0.1, 100))
def test_evidence_of_nodes_matches_its_definition(partition, data, strength):
    n = len(partition.leaves)
    labels = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    prior = SplitPrior(strength)
    found = evidence_of(partition, labels, prior)
    below = [np.isin(partition.leaves, descendants(partition, j)) for j in range(len(partition.left))]
    for j, child in enumerate(partition.left):
        n, m = below[j].sum(), np.array(labels)[below[j]].sum()
        n_left, m_left = below[child].sum(), np.array(labels)[below[child]].sum()
        if child == NONE or m in (0, n) or n_left in (0, n):
            assert found[j] == 0
            continue
        ratio = naive_node(n, n_left, m, m_left, prior.at(partition.depth[j]))
        rho = 0.5 ** partition.depth[j]
        assert found[j] == pytest.approx(math.log(1 - rho + rho * ratio), abs=1e-8)


def descendants(partition, j):
    below = [j]
    for child, above in enumerate(partition.parent):
        if above in below:
            below.append(child)
    return below


@settings(max_examples=examples(50))
@given(partitions(), st.integers(1, 4), st.floats(0.5, 50))
def test_mean_bayes_factor_over_all_permutations_is_at_most_one(partition, m, strength):
    n = len(partition.leaves)
    factors = []
    for chosen in itertools.combinations(range(n), min(m, n - 1)):
        labels = np.zeros(n, np.uint8)
        labels[list(chosen)] = 1
        factors.append(math.exp(evidence_of(partition, labels, SplitPrior(strength)).sum()))
    assert np.mean(factors) <= 1 + 1e-9
    assert np.mean(factors) > 0


@given(partitions(30), st.data())
def test_evidence_is_symmetric_in_the_samples(partition, data):
    n = len(partition.leaves)
    labels = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    np.testing.assert_allclose(
        evidence_of(partition, labels, SplitPrior(10.0)),
        evidence_of(partition, 1 - labels, SplitPrior(10.0)),
        atol=1e-9,
    )


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=st.floats(-300, 300)))
def test_attributions_sum_to_the_log_of_the_mean(by_tree):
    whole = logsumexp(by_tree.sum(axis=1)) - math.log(len(by_tree))
    parts = attribute(by_tree)
    assert parts.sum() == pytest.approx(whole, abs=1e-9 * max(abs(by_tree).max(), 1))


@given(st.lists(st.floats(-5, 20), min_size=1, max_size=8))
def test_a_feature_without_cuts_has_no_attribution(factors):
    parts = attribute(np.column_stack([factors, np.zeros(len(factors))]))
    assert parts[1] == 0


@given(st.lists(st.integers(0, 1), min_size=8, max_size=30), st.integers(1, 5), st.integers(0, 2**32))
def test_labels_are_permuted_in_whole_blocks(labels, size, seed):
    labels = np.array(labels, np.uint8)
    (permuted,) = permute_labels(labels, 3, size, np.random.default_rng(seed))
    own = [np.flatnonzero(labels == label) for label in (1, 0)]
    assert (permuted.sum(axis=0) == labels.sum()).all()
    for rows in own:
        whole = len(rows) // size * size
        blocks = permuted[rows[:whole]].reshape(-1, size, 3)
        assert (blocks == blocks[:, :1]).all()
        assert (permuted[rows[whole:]] == labels[rows[whole:], None]).all()


values = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(np.nan), st.integers(0, 3).map(float)), min_size=1)


@given(values, st.floats(-0.1, 1.6))
def test_cuts_of_an_axis_fall_between_levels(column, cut):
    column = np.array(column)
    axis = Axis.of(column)
    levels = axis.levels(column)
    assert ((levels == MISSING) == np.isnan(column)).all()
    assert (np.diff(axis.positions) > 0).all()
    goes_left = axis.positions[levels] <= cut
    assert (goes_left == (levels <= axis.last_below(cut))).all()
    present = ~np.isnan(column)
    order = np.argsort(column[present], kind="stable")
    assert (np.diff(levels[present][order]) >= 0).all()


@given(st.floats(-1e9, 1e9), st.floats(0, 1e3), st.floats(1e-6, 1e3))
def test_shortest_lies_in_its_range(value, below, above):
    low, high = value - below, value + above
    found = shortest(value, low, high)
    assert low <= found <= high
    assert len(repr(found)) <= len(repr(value)) + 1


@given(st.integers(0, 50), st.integers(0, 50), st.integers(50, 90), st.integers(50, 90))
def test_gain_is_equal_for_complements_and_zero_for_equal_shares(n_a, n_b, total_a, total_b):
    one, other = gain(n_a, n_b, (total_a, total_b)), gain(total_a - n_a, total_b - n_b, (total_a, total_b))
    assert one == pytest.approx(float(other), abs=1e-9)
    assert gain(n_a, n_a, (total_a, total_a)) == pytest.approx(0, abs=1e-9)
    assert one >= 0
