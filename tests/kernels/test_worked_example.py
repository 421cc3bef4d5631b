"""The paper's worked example (its Fig. 2 and the calculations in its appendix), cut by cut."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from reference import naive

from polyaforest.forest import posterior
from polyaforest.forest.integrity import check_forest
from polyaforest.kernels.arrays import NONE, Forest, LeafKind, Prior

pytestmark = pytest.mark.plain

POINTS = [
    (Fraction(0), Fraction(0)),
    (Fraction(1, 4), Fraction(1, 4)),
    (Fraction(2, 5), Fraction(4, 5)),
    (Fraction(1), Fraction(1)),
]
GAMMA = 1.0

CUT_ROOT = Fraction(7, 10)  # share of x <= 1/2
RESTRICT_LEFT = Fraction(139, 175)  # share of the box of the first three points
CUT_LEFT = Fraction(13, 24)  # share of y <= 2/5 in that box
RESTRICT_LOW = Fraction(11, 24)  # share of the box of the first two points

# leaves of probes: (probe, node, kind, mass, volume)
LEAVES = [
    ((0.9, 0.3), 2, LeafKind.OBSERVED_I, 1 - CUT_ROOT, Fraction(1, 2)),
    ((0.45, 0.5), 1, LeafKind.COMPLEMENTARY, CUT_ROOT * (1 - RESTRICT_LEFT), Fraction(18, 100)),
    ((0.2, 0.7), 4, LeafKind.OBSERVED_I, CUT_ROOT * RESTRICT_LEFT * (1 - CUT_LEFT), Fraction(16, 100)),
    ((0.1, 0.1), 3, LeafKind.OBSERVED_II, CUT_ROOT * RESTRICT_LEFT * CUT_LEFT * RESTRICT_LOW, Fraction(1, 16)),
    (
        (0.3, 0.1),
        3,
        LeafKind.COMPLEMENTARY,
        CUT_ROOT * RESTRICT_LEFT * CUT_LEFT * (1 - RESTRICT_LOW),
        Fraction(39, 400),
    ),
]
PROBES = np.array([leaf[0] for leaf in LEAVES])


@pytest.fixture
def forest():
    """Return the tree of the example: x is cut at 1/2, then y at 2/5 on the left."""
    none, unset, never = NONE, np.nan, np.inf
    lower = [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.4, 0.8]]
    upper = [[1.0, 1.0], [0.4, 0.8], [1.0, 1.0], [0.25, 0.25], [0.4, 0.8]]
    return Forest(
        left=np.array([[1, 3, none, none, none]], np.int32),
        right=np.array([[2, 4, none, none, none]], np.int32),
        parent=np.array([[none, 0, 0, 1, 1]], np.int32),
        feature=np.array([[0, 1, none, none, none]], np.int32),
        cut=np.array([[0.5, 0.4, unset, unset, unset]]),
        time=np.array([[0.5, 1.0, never, never, never]]),
        counts=np.array([[4, 3, 1, 2, 1]], np.int64),
        lower=np.array([lower]),
        upper=np.array([upper]),
        root=np.zeros(1, np.int32),
        size=np.array([5], np.int32),
        outside=np.zeros(1, np.int64),
        weights=np.ones((1, 2)),
        rng=np.ones((1, 4), np.uint64),
        domain=np.array([[np.inf, np.inf], [-np.inf, -np.inf]]),
    )


@pytest.fixture
def known(forest):
    return posterior.posterior(forest, Prior(GAMMA, is_open=False), n_jobs=None)


@pytest.fixture
def tree():
    """Return the same tree in the reference, in exact fractions."""
    tree = naive.plant(POINTS, [1, 1], np.inf)
    below, _ = naive.cut(tree.root, POINTS, 0.5, 0, Fraction(1, 2), np.inf)
    naive.cut(tree.root.left, below, 1.0, 1, Fraction(2, 5), np.inf)
    naive.set_polya_parameters(tree, GAMMA, is_open=False)
    return tree


def test_example_is_a_valid_forest(forest):
    check_forest(forest, np.array(POINTS, np.float64))


def test_kernel_shares_match_the_example(known):
    inside, complement = np.exp(known.inside[0]), np.exp(known.complement[0])
    region = inside + complement
    assert inside[0] == 1.0
    assert region[1] == pytest.approx(float(CUT_ROOT), rel=1e-14)
    assert inside[1] / region[1] == pytest.approx(float(RESTRICT_LEFT), rel=1e-14)
    assert region[3] / inside[1] == pytest.approx(float(CUT_LEFT), rel=1e-14)
    assert inside[3] / region[3] == pytest.approx(float(RESTRICT_LOW), rel=1e-14)


def test_reference_shares_match_the_example_exactly(tree):
    left, gamma = tree.root.left, Fraction(1)
    assert naive.cut_mean(tree.root, gamma) == CUT_ROOT
    assert naive.restriction_mean(left, gamma * 2**2) == RESTRICT_LEFT
    assert naive.restriction_mean(tree.root.right, gamma * 2**2) == 1
    assert naive.cut_mean(left, gamma) == CUT_LEFT
    assert naive.restriction_mean(left.left, gamma * 4**2) == RESTRICT_LOW
    assert naive.restriction_mean(left.right, gamma * 4**2) == 1


def test_masses_and_volumes_of_leaves_add_up():
    assert sum(mass for *_, mass, _ in LEAVES) == 1
    assert sum(volume for *_, volume in LEAVES) == 1


def test_kernel_finds_leaves_of_the_example(forest, known):
    nodes, kinds = posterior.leaf_kinds(forest, known, PROBES, None)
    assert nodes[:, 0].tolist() == [leaf[1] for leaf in LEAVES]
    assert kinds[:, 0].tolist() == [leaf[2] for leaf in LEAVES]


def test_kernel_masses_and_densities_match_the_example(forest, known):
    masses = posterior.leaf_values(forest, posterior.mass_table(known), PROBES, np.transpose, None)
    densities = np.exp(posterior.leaf_values(forest, posterior.log_density_table(known), PROBES, np.transpose, None))
    assert masses[:, 0] == pytest.approx([float(mass) for *_, mass, _ in LEAVES], rel=1e-14)
    assert densities[:, 0] == pytest.approx([float(mass / volume) for *_, mass, volume in LEAVES], rel=1e-14)


def test_reference_masses_and_volumes_match_the_example_exactly(tree):
    nodes = [tree.root, tree.root.left, tree.root.right, tree.root.left.left, tree.root.left.right]
    for _, j, kind, mass, volume in LEAVES:
        if kind == LeafKind.COMPLEMENTARY:
            assert nodes[j].complement_mass == mass
            assert naive.complement_volume(nodes[j], tree.world) == volume
        else:
            assert nodes[j].mass == mass
            assert naive.volume(nodes[j].cell, tree.world) == volume
    assert sum(naive.leaves(tree)) == 1


def test_reference_finds_leaves_of_the_example(tree):
    found = [naive.find_leaf(tree, probe) for probe, *_ in LEAVES]
    assert [leaf.kind for leaf in found] == [leaf[2] for leaf in LEAVES]
    assert [leaf.log_mass for leaf in found] == pytest.approx([naive.log(leaf[3]) for leaf in LEAVES])


def test_closed_domain_has_no_mass_outside(forest, known):
    beyond = np.array([[1.5, 0.5], [-0.1, -0.1]])
    _, kinds = posterior.leaf_kinds(forest, known, beyond, None)
    masses = posterior.leaf_values(forest, posterior.mass_table(known), beyond, np.transpose, None)
    assert (kinds == LeafKind.OUTSIDE).all()
    assert (masses == 0).all()


def test_domain_equal_to_the_box_changes_nothing(forest, known):
    framed = forest._replace(domain=np.array([[0.0, 0.0], [1.0, 1.0]]))
    again = posterior.posterior(framed, Prior(GAMMA, is_open=False), n_jobs=None)
    for name in known._fields:
        np.testing.assert_array_equal(getattr(again, name), getattr(known, name), name)
