"""Kernels match the reference, draw for draw."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference import naive
from strategies import depths, domains, lifetimes, matrices, mixed, prior_strengths, probes, seeds, weightings

from polyaforest.forest import grow, learn, posterior, score
from polyaforest.forest.integrity import check_forest
from polyaforest.forest.spec import Plan
from polyaforest.kernels.arrays import LEAST_LOG, NONE, Array, Forest, Posterior, Prior
from polyaforest.kernels.boxes import empty_box
from polyaforest.util.parallel import log_mean_exp

pytestmark = [pytest.mark.property, pytest.mark.plain]

N_TREES = 2
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}

oracle = settings(
    max_examples=examples(50 if numba.config.DISABLE_JIT else 80),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Case(NamedTuple):
    """A forest, and the trees of the reference with the same draws."""

    rows: Array
    forest: Forest
    trees: list[naive.Tree]
    generators: list[naive.Xoshiro]  # as the sampling left them


def sides(domain, n_categories=0):
    """Return the box for the reference, None if it is empty."""
    if domain[0, 0] > domain[1, 0]:
        return None
    n = domain.shape[1] - n_categories
    numbers = [naive.side(float(a), float(b)) for a, b in domain[:, :n].T]
    return [*numbers, *(naive.Cube(int(a), int(b)) for a, b in domain[:, n:].T)]


def points(rows, n_categories=0):
    """Return rows for the reference."""
    return [naive.point(row, n_categories) for row in rows.tolist()]


def generators(seed):
    return [naive.Xoshiro(c.generate_state(4, np.uint64)) for c in np.random.SeedSequence(seed).spawn(N_TREES)]


def weights_of(rng, weighting):
    if weighting.fixed is not None:
        return weighting.fixed.tolist()
    return naive.sample_weights(rng, weighting.spread, weighting.deviation)


@st.composite
def mondrian_cases(draw, *, subsets):
    (rows, n_categories), seed, max_depth = draw(mixed(matrices())), draw(seeds), draw(depths)
    weighting = draw(weightings(rows=rows, n_categories=n_categories))
    lifetime = draw(lifetimes) / weighting.unit
    n_rows = draw(st.integers(1, len(rows))) if subsets else len(rows)
    domain = empty_box(rows.shape[1], n_categories)
    if draw(st.booleans()):
        domain = draw(domains(rows, n_categories))
    plan = Plan(N_TREES, lifetime, max_depth, weighting, domain, np.random.SeedSequence(seed), None, n_categories)
    trees, rngs = [], generators(seed)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(len(rows)), (N_TREES, 1)), axis=1)
    members = order[:, :n_rows].copy() if subsets else np.tile(np.arange(len(rows)), (N_TREES, 1))
    for rng, chosen in zip(rngs, members, strict=True):
        weights = weights_of(rng, weighting)
        held = points(rows[chosen], n_categories)
        depth = np.inf if max_depth is None else max_depth
        trees.append(naive.sample_mondrian_tree(rng, held, weights, lifetime, depth, sides(domain, n_categories)))
    return Case(rows, grow.grow_trees(rows, plan, members=members if subsets else None), trees, rngs)


@st.composite
def process_cases(draw):
    (rows, n_categories), seed = draw(mixed(matrices())), draw(seeds)
    domain = draw(domains(rows, n_categories))
    weighting = draw(weightings(domain=domain, n_categories=n_categories))
    lifetime = draw(lifetimes) / weighting.unit
    max_depth = draw(depths.filter(lambda depth: depth in (0, 1, 2, 3) or (depth is None and lifetime < np.inf)))
    plan = Plan(N_TREES, lifetime, max_depth, weighting, domain, np.random.SeedSequence(seed), None, n_categories)
    forest = grow.sample_processes(plan)
    counts, outside = learn.count_rows(forest, rows, None)
    trees, rngs = [], generators(seed)
    for rng in rngs:
        weights = weights_of(rng, weighting)
        depth = np.inf if max_depth is None else max_depth
        tree = naive.sample_mondrian_process(rng, sides(domain, n_categories), weights, lifetime, depth)
        naive.count_rows(tree, points(rows, n_categories))
        trees.append(tree)
    return Case(rows, forest._replace(counts=counts, outside=outside), trees, rngs)


cases = st.one_of(mondrian_cases(subsets=False), mondrian_cases(subsets=True), process_cases())


def slots(forest: Forest, t: int, node: naive.Node, j: int | None = None) -> list[tuple[int, naive.Node]]:
    """Yield slots of tree `t` with the nodes of the reference, in preorder; both trees must have the same shape."""
    j = int(forest.root[t]) if j is None else j
    assert (forest.left[t, j] == NONE) == (forest.right[t, j] == NONE) == node.is_leaf
    if node.is_leaf:
        return [(j, node)]
    below = [(node.left, int(forest.left[t, j])), (node.right, int(forest.right[t, j]))]
    return [(j, node), *(pair for child, slot in below for pair in slots(forest, t, child, slot))]


def assert_same_trees(case: Case) -> None:
    for t, (tree, rng) in enumerate(zip(case.trees, case.generators, strict=True)):
        assert_same_tree(case.forest, t, tree)
        assert_array_equal(case.forest.rng[t], np.array(rng.s, np.uint64))


def assert_same_tree(forest: Forest, t: int, tree: naive.Tree) -> None:
    assert_array_equal(forest.weights[t], tree.weights)
    assert forest.outside[t] == tree.n_outside
    for j, node in slots(forest, t, tree.root):
        assert forest.time[t, j] == node.time
        assert forest.counts[t, j] == node.count
        assert forest.feature[t, j] == (NONE if node.is_leaf else node.feature)
        if not node.is_leaf:
            assert forest.cut[t, j] == node.cut
        if node.box is not None:
            assert_array_equal(forest.lower[t, j], [s.low for s in node.box])
            assert_array_equal(forest.upper[t, j], [s.high for s in node.box])


def assert_same_posterior(forest: Forest, known: Posterior, t: int, tree: naive.Tree) -> None:
    pairs = slots(forest, t, tree.root)
    order = [j for j, _ in pairs]
    nodes = [node for _, node in pairs]
    assert_allclose(known.inside[t, order], [naive.log(j.mass) for j in nodes], **TOLERANCE)
    assert_allclose(known.complement[t, order], [naive.log(j.complement_mass) for j in nodes], **TOLERANCE)
    volumes = [naive.log(naive.volume(j.cell, tree.world)) for j in nodes]
    assert_allclose(known.inside_volume[t, order], volumes, **TOLERANCE)
    complements = [naive.log(naive.complement_volume(j, tree.world)) for j in nodes]
    assert_allclose(known.complement_volume[t, order], complements, **TOLERANCE)
    assert_allclose(known.outside[t], naive.log(tree.outside_mass), **TOLERANCE)


def posteriors(case: Case, gamma: float, is_open: bool) -> Posterior:
    for tree in case.trees:
        naive.set_polya_parameters(tree, gamma, is_open=is_open)
    return posterior.posterior(case.forest, Prior(gamma, is_open), n_jobs=None)


@oracle
@given(case=mondrian_cases(subsets=False))
def test_mondrian_trees_match_reference_draw_for_draw(case):
    assert_same_trees(case)
    check_forest(case.forest, case.rows)


@oracle
@given(case=mondrian_cases(subsets=True))
def test_trees_of_sampled_rows_match_reference_draw_for_draw(case):
    assert_same_trees(case)
    check_forest(case.forest)


@oracle
@given(case=process_cases())
def test_mondrian_processes_match_reference_draw_for_draw(case):
    assert_same_trees(case)
    check_forest(case.forest, case.rows)


@oracle
@given(case=cases, gamma=prior_strengths, is_open=st.booleans())
def test_masses_and_volumes_match_reference(case, gamma, is_open):
    known = posteriors(case, gamma, is_open)
    for t, tree in enumerate(case.trees):
        assert_same_posterior(case.forest, known, t, tree)
        if is_open:
            assert_allclose(known.outside_volume[t], naive.outside_volume(tree), **TOLERANCE)


@oracle
@given(case=cases, gamma=prior_strengths, is_open=st.booleans())
def test_leaf_masses_of_a_tree_sum_to_one(case, gamma, is_open):
    known = posteriors(case, gamma, is_open)
    forest = case.forest
    for t, tree in enumerate(case.trees):
        order = [j for j, _ in slots(forest, t, tree.root)]
        leaves = [j for j in order if forest.left[t, j] == NONE]
        total = np.exp(known.inside[t, leaves]).sum() + np.exp(known.complement[t, order]).sum()
        assert_allclose(total + np.exp(known.outside[t]), 1.0, **TOLERANCE)
        assert sum(naive.leaves(tree)) == 1


@oracle
@given(case=cases, gamma=prior_strengths, is_open=st.booleans(), seed=seeds)
def test_leaves_of_probes_match_reference(case, gamma, is_open, seed):
    n_categories = int(case.forest.n_categories[0])
    known, X = posteriors(case, gamma, is_open), probes(case.rows, seed, n_categories)
    nodes, kinds = posterior.leaf_kinds(case.forest, known, X, None)
    values = [
        posterior.leaf_values(case.forest, table(known), X, np.transpose, None)
        for table in (posterior.mass_table, posterior.log_mass_table, posterior.log_density_table)
    ]
    for t, tree in enumerate(case.trees):
        slot_of = {id(node): j for j, node in slots(case.forest, t, tree.root)}
        found = [naive.find_leaf(tree, x) for x in points(X, n_categories)]
        assert_array_equal(kinds[:, t], [leaf.kind for leaf in found])
        assert_array_equal(nodes[:, t], [slot_of.get(id(leaf.node), NONE) for leaf in found])
        assert_allclose(values[0][:, t], np.exp([leaf.log_mass for leaf in found]), **TOLERANCE)
        assert_allclose(values[1][:, t], [leaf.log_mass for leaf in found], **TOLERANCE)
        assert_allclose(values[2][:, t], [leaf.log_density for leaf in found], **TOLERANCE)


@oracle
@given(case=cases, gamma=prior_strengths, is_open=st.booleans(), seed=seeds)
def test_masses_at_lifetimes_match_reference(case, gamma, is_open, seed):
    n_categories = int(case.forest.n_categories[0])
    known, X = posteriors(case, gamma, is_open), probes(case.rows, seed, n_categories)
    first_cut = case.forest.time[0, case.forest.root[0]]
    unit = first_cut if np.isfinite(first_cut) else 1.0
    times = np.minimum(unit * np.array([0.0, 0.5, 1.0, 1.5, 4.0, 40.0]), case.forest.time.max())
    logs = score.log_cell_masses(case.forest, known, X, times, None)
    expected = np.array([masses_at(tree, points(X, n_categories), times) for tree in case.trees]).clip(LEAST_LOG)
    assert_allclose(logs, log_mean_exp(expected), **TOLERANCE)
    means = score.mean_log_cell_masses(case.forest, known, X, times, None)
    assert_allclose(means, expected.mean(axis=(0, 2)), **TOLERANCE)


def masses_at(tree: naive.Tree, X: list[list[float]], times: Array) -> list[list[float]]:
    return [[naive.log_cell_mass(tree, x, time) for time in times.tolist()] for x in X]
