"""Every invariant that `check_forest` promises is one it can see broken."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from polyaforest import _engine as engine
from polyaforest._arrays import NONE, Forest
from polyaforest._check import CorruptForestError, check_forest
from polyaforest._plan import Plan, Weighting

N_FEATURES = 2
ROWS = np.random.default_rng(7).random((12, N_FEATURES))
T = 1  # the tree that gets broken


def plan(domain, max_depth):
    weighting = Weighting(np.ones(N_FEATURES), np.ones(N_FEATURES), np.ones(N_FEATURES))
    return Plan(2, np.inf, max_depth, weighting, domain, np.random.SeedSequence(3), None)


@pytest.fixture
def tree():
    """Two Mondrian trees over all rows, with arrays of their own."""
    unframed = np.repeat([[np.inf], [-np.inf]], N_FEATURES, axis=1)
    return own(engine.grow_trees(ROWS, len(ROWS), plan(unframed, None)))


@pytest.fixture
def process():
    """Two Mondrian processes that leave some of the rows outside."""
    forest = engine.sample_processes(plan(np.array([[0.0, 0.0], [0.8, 1.0]]), 3))
    counts, outside = engine.count_rows(forest, ROWS, None)
    return own(forest._replace(counts=counts, outside=outside))


def own(forest: Forest) -> Forest:
    return Forest(*(array.copy() for array in forest))


def inner(forest):
    """An internal node whose left child is internal too, other than the root."""
    is_inner = forest.feature[T] != NONE
    slots = range(1, forest.size[T])
    return next(j for j in slots if is_inner[j] and is_inner[forest.left[T, j]])


def leaf(forest):
    return next(j for j in range(forest.size[T]) if forest.feature[T, j] == NONE)


def root_in_range(forest):
    forest.root[T] = forest.left.shape[1]


def link_in_range(forest):
    forest.right[T, inner(forest)] = forest.left.shape[1]


def link_not_negative(forest):
    forest.left[T, inner(forest)] = -2


def no_cycle(forest):
    forest.left[T, inner(forest)] = forest.root[T]


def reached_once(forest):
    j = inner(forest)
    forest.right[T, j] = forest.left[T, j]


def size_is_what_is_reached(forest):
    forest.size[T] -= 1


def nothing_unreached(forest):
    j = inner(forest)
    forest.left[T, j] = forest.right[T, j] = forest.feature[T, j] = NONE


def parent_agrees(forest):
    forest.parent[T, leaf(forest)] = leaf(forest)


def root_has_no_parent(forest):
    forest.parent[T, forest.root[T]] = 0


def both_children(forest):
    forest.right[T, inner(forest)] = NONE


def leaf_has_no_feature(forest):
    forest.feature[T, leaf(forest)] = 0


def feature_in_range(forest):
    forest.feature[T, inner(forest)] = N_FEATURES


def internal_node_has_feature(forest):
    forest.feature[T, inner(forest)] = NONE


def cut_is_finite(forest):
    forest.cut[T, inner(forest)] = np.nan


def time_is_positive(forest):
    forest.time[T, forest.root[T]] = 0.0


def time_is_a_number(forest):
    forest.time[T, inner(forest)] = np.nan


def time_runs_downwards(forest):
    j = inner(forest)
    forest.time[T, j] = forest.time[T, forest.parent[T, j]] / 2


def cuts_come_before_the_lifetime(forest):
    forest.time[T, forest.feature[T] != NONE] = np.inf


def leaves_share_the_lifetime(forest):
    forest.time[T, leaf(forest)] = 1e9


def counts_add_up(forest):
    forest.counts[T, inner(forest)] += 1


def counts_are_not_negative(forest):
    shift_count(forest, -1 - forest.counts[T, leaf(forest)])


def weights_are_finite(forest):
    forest.weights[T, 1] = np.inf


def weights_are_not_negative(forest):
    forest.weights[T, 0] = -1.0


def shift_count(forest, by):
    """Change the count of a leaf and of all nodes above it, so that sums still hold."""
    j = leaf(forest)
    while j != NONE:
        forest.counts[T, j] += by
        j = forest.parent[T, j]


ANY_FOREST = [
    (root_in_range, "does not exist"),
    (link_in_range, "does not exist"),
    (link_not_negative, "does not exist"),
    (no_cycle, "more than once"),
    (reached_once, "more than once"),
    (size_is_what_is_reached, "size is"),
    (nothing_unreached, "size is"),
    (parent_agrees, "parent link"),
    (root_has_no_parent, "parent link"),
    (both_children, "one child only"),
    (leaf_has_no_feature, "is a leaf, but has feature"),
    (feature_in_range, "feature 2, which does not exist"),
    (internal_node_has_feature, "feature -1, which does not exist"),
    (cut_is_finite, "is cut at nan"),
    (time_is_positive, "not positive"),
    (time_is_a_number, "not positive"),
    (time_runs_downwards, "before its parent's"),
    (cuts_come_before_the_lifetime, "not before the lifetime"),
    (leaves_share_the_lifetime, "lifetime"),
    (counts_add_up, "not the sum"),
    (counts_are_not_negative, "is less than"),
    (weights_are_finite, "weight of feature 1 is inf"),
    (weights_are_not_negative, "weight of feature 0 is -1"),
]


def no_node_is_empty(forest):
    shift_count(forest, -forest.counts[T, leaf(forest)])


def trees_count_nothing_outside(forest):
    forest.outside[T] = 1


def box_is_finite(forest):
    forest.upper[T, forest.root[T], 0] = np.inf


def box_is_not_inside_out(forest):
    root = forest.root[T]
    forest.lower[T, root], forest.upper[T, root] = forest.upper[T, root].copy(), forest.lower[T, root].copy()


def box_is_inside_the_parents(forest):
    j = inner(forest)
    left, right, k = forest.left[T, j], forest.right[T, j], 1 - forest.feature[T, j]
    high = max(forest.upper[T, left, k], forest.upper[T, right, k])
    forest.upper[T, left, k] = np.nextafter(high, np.inf)


def box_is_the_hull_of_the_childrens(forest):
    root = forest.root[T]
    forest.upper[T, root, 1] = np.nextafter(forest.upper[T, root, 1], np.inf)


def cut_is_right_of_the_left_box(forest):
    root = forest.root[T]
    high = forest.upper[T, forest.left[T, root], forest.feature[T, root]]
    forest.cut[T, root] = np.nextafter(high, -np.inf)


def cut_is_left_of_the_right_box(forest):
    root = forest.root[T]
    forest.cut[T, root] = forest.lower[T, forest.right[T, root], forest.feature[T, root]]


MONDRIAN_TREE = [
    (no_node_is_empty, "is less than 1"),
    (trees_count_nothing_outside, "counted outside"),
    (box_is_finite, "not finite"),
    (box_is_not_inside_out, "lower side above the upper"),
    (box_is_inside_the_parents, "not inside that of its parent"),
    (box_is_the_hull_of_the_childrens, "not the hull"),
    (cut_is_right_of_the_left_box, "does not part"),
    (cut_is_left_of_the_right_box, "does not part"),
]


def cut_is_inside_the_domain(forest):
    root = forest.root[T]
    forest.cut[T, root] = forest.domain[1, forest.feature[T, root]]


def cut_is_inside_the_region(forest):
    j = inner(forest)
    forest.feature[T, forest.left[T, j]] = forest.feature[T, j]
    forest.cut[T, forest.left[T, j]] = forest.cut[T, j]


def outside_is_not_negative(forest):
    forest.outside[T] = -1


PROCESS = [
    (cut_is_inside_the_domain, "not strictly inside its region"),
    (cut_is_inside_the_region, "not strictly inside its region"),
    (outside_is_not_negative, "counted outside"),
]


def rows_are_on_their_side(forest):
    n = forest.counts[T]
    leaves = [j for j in range(forest.size[T]) if forest.feature[T, j] == NONE]
    pairs = [(forest.left[T, forest.parent[T, j]], forest.right[T, forest.parent[T, j]]) for j in leaves]
    left, right = next((a, b) for a, b in pairs if a in leaves and b in leaves and n[a] != n[b])
    n[left], n[right] = n[right], n[left]


def counts_are_those_of_the_rows(forest):
    shift_count(forest, 1)


def outside_is_that_of_the_rows(forest):
    forest.outside[T] += 1


def named(cases):
    return [pytest.param(*case, id=case[0].__name__) for case in cases]


def test_good_forests_pass(tree, process):
    check_forest(tree)
    check_forest(tree, ROWS)
    check_forest(process)
    check_forest(process, ROWS)
    assert process.outside[T] > 0


def test_unused_slots_are_not_looked_at(tree):
    padded = [np.concatenate([tree[i], np.full_like(tree[i][:, :1], 99)], axis=1) for i in range(9)]
    check_forest(Forest(*padded, *tree[9:]), ROWS)


@pytest.mark.parametrize("forest", ["tree", "process"])
@pytest.mark.parametrize(("corrupt", "complaint"), named(ANY_FOREST))
def test_corruption_of_any_forest_is_caught(request, forest, corrupt, complaint):
    broken = request.getfixturevalue(forest)
    corrupt(broken)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*{complaint}"):
        check_forest(broken)


@pytest.mark.parametrize(("corrupt", "complaint"), named(MONDRIAN_TREE))
def test_corruption_of_a_mondrian_tree_is_caught(tree, corrupt, complaint):
    corrupt(tree)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*{complaint}"):
        check_forest(tree)


@pytest.mark.parametrize(("corrupt", "complaint"), named(PROCESS))
def test_corruption_of_a_process_is_caught(process, corrupt, complaint):
    corrupt(process)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*{complaint}"):
        check_forest(process)


def test_an_empty_cell_is_no_fault_of_a_process(process):
    check_forest(process._replace(counts=np.zeros_like(process.counts)))


@pytest.mark.parametrize("forest", ["tree", "process"])
def test_counts_that_are_not_those_of_the_rows_are_caught(request, forest):
    broken = request.getfixturevalue(forest)
    counts_are_those_of_the_rows(broken)
    check_forest(broken)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*its count is"):
        check_forest(broken, ROWS)


def test_rows_on_the_wrong_side_are_caught(process):
    rows_are_on_their_side(process)
    check_forest(process)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*its count is"):
        check_forest(process, ROWS)


def test_rows_outside_that_are_not_counted_are_caught(process):
    outside_is_that_of_the_rows(process)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*lie outside"):
        check_forest(process, ROWS)


def test_a_box_that_is_not_that_of_the_rows_is_caught(tree):
    moved = ROWS.copy()
    highest = moved[:, 0].argmax()
    moved[highest, 0] += 1e-9
    with pytest.raises(CorruptForestError, match=r"^tree 0, node 0: its box is not the bounding box of its rows"):
        check_forest(tree, moved)


def test_checking_needs_no_compiler():
    probe = "import sys, polyaforest._check; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
