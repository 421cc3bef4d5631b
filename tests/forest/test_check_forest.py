"""`check_forest` detects violations of every invariant."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from polyaforest import StreamingMPF, Tree
from polyaforest.forest import grow, learn
from polyaforest.forest.integrity import CorruptForestError, check_forest
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.kernels.arrays import NONE, Array, Forest, Points

N_FEATURES = 2
ROWS = np.random.default_rng(7).random((12, N_FEATURES))
T = 1  # the tree that gets broken
DEPTH = 2  # of the stream's trees, whose leaves hold several points each


def plan(domain, max_depth):
    weighting = Weighting(np.ones(N_FEATURES), np.ones(N_FEATURES), np.ones(N_FEATURES))
    return Plan(2, np.inf, max_depth, weighting, domain, np.random.SeedSequence(3), None)


class Held(NamedTuple):
    """A forest and the points it holds, if it keeps any."""

    forest: Forest
    points: Points | None
    held: Array | None

    def check(self, **limits):
        check_forest(self.forest, points=self.points, held=self.held, **limits)


@cache
def grown_trees():
    unframed = np.repeat([[np.inf], [-np.inf]], N_FEATURES, axis=1)
    return grow.grow_trees(ROWS, plan(unframed, None))


@cache
def sampled_processes():
    forest = grow.sample_processes(plan(np.array([[0.0, 0.0], [0.8, 1.0]]), 3))
    counts, outside = learn.count_rows(forest, ROWS, None)
    return forest._replace(counts=counts, outside=outside)


@cache
def streamed(max_depth):
    model = StreamingMPF(window=10, n_estimators=3, random_state=1, tree=Tree(max_depth=max_depth), max_samples=None)
    stream = model.partial_fit(np.random.default_rng(8).random((24, N_FEATURES)))._stream
    return Held(stream.forest, stream.points, stream.store.held)


@pytest.fixture
def tree():
    """Return two Mondrian trees over all rows, with their own arrays."""
    return own(grown_trees())


@pytest.fixture
def process():
    """Return two Mondrian processes with some rows outside."""
    return own(sampled_processes())


@pytest.fixture
def stream():
    """Return three Mondrian trees that hold points, with spare slots for both."""
    forest, points, held = streamed(DEPTH)
    assert forest.size.max() < forest.left.shape[1]
    assert len(held) < len(points.values)
    return Held(own(forest), own(points), held.copy())


def own(arrays):
    return type(arrays)(*(array.copy() for array in arrays))


def inner(forest):
    """Return an internal node other than the root whose left child is internal too."""
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


def size_has_room(forest):
    forest.size[T] = forest.left.shape[1] + 1


def size_is_not_negative(forest):
    forest.size[T] = -1


def trees_are_not_empty_alone(forest):
    for array in forest[:9]:
        array[T] = 0
    forest.root[T] = forest.size[T] = 0


def nothing_unreached(forest):
    j = inner(forest)
    forest.left[T, j] = forest.right[T, j] = forest.feature[T, j] = NONE


def parent_agrees(forest):
    forest.parent[T, leaf(forest)] = leaf(forest)


def root_has_no_parent(forest):
    forest.parent[T, forest.root[T]] = 0


def no_circle_apart_from_the_root(forest):
    j = inner(forest)
    above, below = forest.parent[T, j], forest.left[T, j]
    side = forest.left if forest.left[T, above] == j else forest.right
    side[T, above], forest.parent[T, below] = below, above
    forest.left[T, j] = forest.parent[T, j] = j


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


def leaf_has_no_cut(forest):
    forest.cut[T, leaf(forest)] = 0.5


def generator_is_not_stuck(forest):
    forest.rng[T] = 0


def time_is_not_negative(forest):
    forest.time[T, forest.root[T]] = -5e-324


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


def trees_count_alike(forest):
    shift_count(forest, 1)


def shift_count(forest, by, t=T):
    """Change the count of a leaf and of all nodes above it, so that sums still hold."""
    j = next(j for j in range(forest.size[t]) if forest.feature[t, j] == NONE)
    while j != NONE:
        forest.counts[t, j] += by
        j = forest.parent[t, j]


ANY_FOREST = [
    (root_in_range, "does not exist"),
    (link_in_range, "does not exist"),
    (link_not_negative, "does not exist"),
    (no_cycle, "more than once"),
    (reached_once, "more than once"),
    (size_is_what_is_reached, "size is"),
    (nothing_unreached, "size is"),
    (size_has_room, "it has slots for"),
    (size_is_not_negative, "it has slots for"),
    (trees_are_not_empty_alone, "cannot be empty"),
    (no_circle_apart_from_the_root, "in a cycle"),
    (parent_agrees, "parent link"),
    (root_has_no_parent, "parent link"),
    (both_children, "only one child"),
    (leaf_has_no_feature, "is a leaf, but has feature"),
    (feature_in_range, "feature 2, which does not exist"),
    (internal_node_has_feature, "feature -1, which does not exist"),
    (cut_is_finite, "is cut at nan"),
    (leaf_has_no_cut, "is a leaf, but has a cut"),
    (time_is_not_negative, "negative or NaN"),
    (time_is_a_number, "negative or NaN"),
    (time_runs_downwards, "before its parent's"),
    (cuts_come_before_the_lifetime, "not before the lifetime"),
    (leaves_share_the_lifetime, "lifetime"),
    (counts_add_up, "not the sum"),
    (counts_are_not_negative, "is less than"),
    (trees_count_alike, "that of tree 0"),
    (weights_are_finite, "weight of feature 1 is inf"),
    (weights_are_not_negative, "weight of feature 0 is -1"),
    (generator_is_not_stuck, "all zeros"),
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
    (trees_count_nothing_outside, "count outside the domain is 1$"),
    (box_is_finite, "not finite"),
    (box_is_not_inside_out, "lower side above the upper"),
    (box_is_inside_the_parents, "not inside that of its parent"),
    (box_is_the_hull_of_the_childrens, "not the hull"),
    (cut_is_right_of_the_left_box, "does not separate"),
    (cut_is_left_of_the_right_box, "does not separate"),
]


def cut_is_inside_the_domain(forest):
    root = forest.root[T]
    forest.cut[T, root] = forest.domain[1, forest.feature[T, root]]


def cut_is_inside_the_region(forest):
    j = inner(forest)
    forest.feature[T, forest.left[T, j]] = forest.feature[T, j]
    forest.cut[T, forest.left[T, j]] = forest.cut[T, j]


def cut_is_inside_a_region_far_above(forest):
    """Move the cut of a node below the root's left child beyond the root's cut, along the same feature."""
    root = forest.root[T]
    j = forest.right[T, forest.left[T, root]]
    forest.feature[T, j] = forest.feature[T, root]
    forest.cut[T, j] = np.nextafter(forest.cut[T, root], np.inf)


def cut_is_right_of_a_cut_above(forest):
    root = forest.root[T]
    j = forest.left[T, forest.right[T, root]]
    forest.feature[T, j] = forest.feature[T, root]
    forest.cut[T, j] = forest.cut[T, root]


def outside_is_not_negative(forest):
    forest.outside[T] = -1


def trees_count_alike_outside(forest):
    forest.outside[T] += 1


PROCESS = [
    (cut_is_inside_the_domain, "not strictly inside its region in the domain"),
    (cut_is_inside_the_region, "not strictly inside its region"),
    (cut_is_inside_a_region_far_above, "not strictly inside its region"),
    (cut_is_right_of_a_cut_above, "not strictly inside its region"),
    (outside_is_not_negative, "count outside the domain is -1$"),
    (trees_count_alike_outside, "count outside the domain is .*, but that of tree 0"),
]


def rows_are_on_their_side(forest):
    n = forest.counts[T]
    leaves = [j for j in range(forest.size[T]) if forest.feature[T, j] == NONE]
    pairs = [(forest.left[T, forest.parent[T, j]], forest.right[T, forest.parent[T, j]]) for j in leaves]
    left, right = next((a, b) for a, b in pairs if a in leaves and b in leaves and n[a] != n[b])
    n[left], n[right] = n[right], n[left]


def named(cases):
    return [pytest.param(*case, id=case[0].__name__) for case in cases]


def test_accepts_valid_forests(tree, process, stream):
    check_forest(tree)
    check_forest(tree, ROWS)
    check_forest(process)
    check_forest(process, ROWS, max_depth=3)
    assert process.outside[T] > 0
    stream.check(lifetime=np.inf, max_depth=DEPTH)
    check_forest(stream.forest, stream.points.values[stream.held])
    streamed(None).check()


@pytest.mark.parametrize("name", Forest._fields[:9])
def test_detects_content_of_unused_slot(stream, name):
    array, j = getattr(stream.forest, name), stream.forest.size[T]
    array[T, j, ...] = 1
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node {j}: is not in use, but its {name} is not zero"):
        check_forest(stream.forest)


@pytest.mark.parametrize("forest", ["tree", "process"])
@pytest.mark.parametrize(("corrupt", "complaint"), named(ANY_FOREST))
def test_detects_corruption_of_any_forest(request, forest, corrupt, complaint):
    broken = request.getfixturevalue(forest)
    corrupt(broken)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*{complaint}"):
        check_forest(broken)


def test_trees_on_separate_samples_may_have_different_counts(tree):
    shift_count(tree, 1)
    check_forest(tree, alike=False)


@pytest.mark.parametrize(("corrupt", "complaint"), named(MONDRIAN_TREE))
def test_detects_corruption_of_mondrian_tree(tree, corrupt, complaint):
    corrupt(tree)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*{complaint}"):
        check_forest(tree)


@pytest.mark.parametrize(("corrupt", "complaint"), named(PROCESS))
def test_detects_corruption_of_process(process, corrupt, complaint):
    corrupt(process)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*{complaint}"):
        check_forest(process)


def test_accepts_empty_cell_of_process(process):
    check_forest(process._replace(counts=np.zeros_like(process.counts)))


@pytest.mark.parametrize("forest", ["tree", "process"])
def test_detects_counts_that_differ_from_rows(request, forest):
    broken = request.getfixturevalue(forest)
    for t in range(2):
        shift_count(broken, 1, t)
    check_forest(broken)
    with pytest.raises(CorruptForestError, match=r"^tree 0, node .* rows fall in it, but its count is"):
        check_forest(broken, ROWS)


def test_detects_rows_on_wrong_side(process):
    rows_are_on_their_side(process)
    check_forest(process)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node .*its count is"):
        check_forest(process, ROWS)


def test_detects_wrong_count_outside(process):
    process.outside[:] += 1
    check_forest(process)
    with pytest.raises(CorruptForestError, match=r"^tree 0, node .*outside the domain is 2, but 1 rows lie there"):
        check_forest(process, ROWS)


def test_detects_box_that_differs_from_rows(tree):
    moved = ROWS.copy()
    highest = moved[:, 0].argmax()
    moved[highest, 0] += 1e-9
    with pytest.raises(CorruptForestError, match=r"^tree 0, node \d+: its box is not the bounding box of its rows"):
        check_forest(tree, moved)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_detects_node_below_depth_limit(stream):
    with pytest.raises(CorruptForestError, match=rf"^tree \d, node \d+: lies at depth {DEPTH}, below max_depth=1"):
        stream.check(max_depth=DEPTH - 1)


def test_detects_leaves_that_do_not_end_at_the_lifetime(stream):
    with pytest.raises(CorruptForestError, match=r"^tree 0, node \d+: its time inf is not the lifetime 1e\+300"):
        stream.check(lifetime=1e300)


# ---- trees without nodes --------------------------------------------------------------------------------------------


@pytest.fixture
def emptied():
    """Return a stream whose points were all deleted."""
    model = StreamingMPF(window=4, n_estimators=2, random_state=0).partial_fit(ROWS)
    model.delete(model.keys_)
    return Held(model._stream.forest, model._stream.points, model._stream.store.held)


def test_accepts_empty_trees(emptied):
    assert not emptied.forest.size.any()
    emptied.check(lifetime=np.inf, max_depth=0)
    check_forest(emptied.forest, ROWS[:0])


def test_detects_empty_trees_despite_learned_rows(emptied):
    with pytest.raises(CorruptForestError, match=r"^tree 0, node 0: the tree is empty, but has learned 12 rows"):
        check_forest(emptied.forest, ROWS)


def test_detects_empty_trees_that_hold_points(emptied):
    with pytest.raises(CorruptForestError, match=r"^tree 0, point 0: is kept at node -1, which is not a leaf"):
        emptied._replace(held=np.array([0])).check()


def test_the_root_of_an_empty_tree_is_0(emptied):
    emptied.forest.root[T] = 1
    with pytest.raises(CorruptForestError, match=f"^tree {T}, node 1: is the root, but does not exist"):
        emptied.check()


def test_a_process_is_never_empty(process):
    nothing = Forest(*(np.zeros_like(array) for array in process[:12]), *process[12:])
    with pytest.raises(CorruptForestError, match=r"^tree 0, node 0: the tree's size is 0"):
        check_forest(nothing)


# ---- types and shapes -----------------------------------------------------------------------------------------------


def other_arrays(array):
    """Yield variants of `array` with another type, or shortened along one axis."""
    yield array.astype(np.float32)
    yield array.astype(array.dtype.newbyteorder())
    yield array[..., None]
    yield array[0]
    yield array.tolist()
    for axis in range(array.ndim):
        yield array.take(range(array.shape[axis] - 1), axis)
        yield array.take(range(0), axis)


@pytest.mark.parametrize("name", [*Forest._fields, *Points._fields])
def test_detects_arrays_of_wrong_type_or_shape(stream, name):
    part = "forest" if name in Forest._fields else "points"
    arrays = getattr(stream, part)
    for other in other_arrays(getattr(arrays, name)):
        broken = stream._replace(**{part: arrays._replace(**{name: other})})
        with pytest.raises(CorruptForestError, match=r"^array \w+: "):
            broken.check()


def test_detects_lengths_of_zero(tree, process):
    no_trees = Forest(*(array[:0] for array in tree[:-2]), *tree[-2:])
    no_nodes = Forest(*(array[:, :0] for array in tree[:9]), *tree[9:])
    no_features = process._replace(weights=process.weights[:, :0], domain=process.domain[:, :0])
    flat_boxes = tree._replace(lower=tree.lower[..., :1], upper=tree.upper[..., :1])
    for broken, complaint in (
        (no_trees, "there are no trees"),
        (no_nodes, "there are no nodes"),
        (no_features, "there are no features"),
        (flat_boxes, "boxes have 1 dimensions, not 2"),
    ):
        with pytest.raises(CorruptForestError, match=complaint):
            check_forest(broken)


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (np.nan, 1.0), (0.0, np.nan), (-np.inf, 1.0), (0.0, np.inf)])
def test_detects_invalid_domain_bounds(tree, process, bounds):
    for forest in (tree._replace(domain=process.domain.copy()), process):
        forest.domain[:, 1] = bounds
        with pytest.raises(CorruptForestError, match=r"^array domain: the bounds of feature 1"):
            check_forest(forest)


def test_only_trees_may_have_an_empty_domain(tree, process):
    check_forest(tree._replace(domain=process.domain))
    with pytest.raises(CorruptForestError, match=r"^array domain: the bounds of feature 0"):
        check_forest(process._replace(domain=tree.domain))


# ---- lists of points ------------------------------------------------------------------------------------------------


def full_leaf(stream):
    """Return a leaf with at least three points, and its first three."""
    is_leaf = stream.forest.feature[T] == NONE
    j = next(j for j in np.flatnonzero(is_leaf) if stream.forest.counts[T, j] > 2)
    a = stream.points.head[T, j]
    b = stream.points.links[T, a, 1]
    return j, a, b, stream.points.links[T, b, 1]


def other_leaf(stream):
    j = full_leaf(stream)[0]
    return next(k for k in range(stream.forest.size[T]) if stream.forest.feature[T, k] == NONE and k != j)


def free_slot(stream):
    return next(s for s in range(len(stream.points.values)) if s not in stream.held)


def unlink(stream, slot):
    """Remove a point from its list, leaving a valid list."""
    head, links = stream.points.head[T], stream.points.links[T]
    before, after, j = links[slot]
    if before == NONE:
        head[j] = after
    else:
        links[before, 1] = after
    if after != NONE:
        links[after, 0] = before
    links[slot] = NONE


def link(stream, slot, j):
    head, links = stream.points.head[T], stream.points.links[T]
    links[slot] = NONE, head[j], j
    if head[j] != NONE:
        links[head[j], 0] = slot
    head[j] = slot


def point_is_in_a_list(stream):
    unlink(stream, full_leaf(stream)[1])


def point_is_kept_at_a_leaf(stream):
    stream.points.links[T, full_leaf(stream)[1], 2] = stream.forest.root[T]


def point_is_kept_at_a_node(stream):
    stream.points.links[T, full_leaf(stream)[1], 2] = stream.forest.left.shape[1]


def point_is_not_kept_at_an_unused_slot(stream):
    stream.points.links[T, full_leaf(stream)[1], 2] = stream.forest.size[T]


def point_before_exists(stream):
    stream.points.links[T, full_leaf(stream)[2], 0] = len(stream.points.values)


def point_after_exists(stream):
    stream.points.links[T, full_leaf(stream)[2], 1] = -2


def neighbour_is_held(stream):
    stream.points.links[T, full_leaf(stream)[2], 1] = free_slot(stream)


def links_go_forth_and_back(stream):
    _, a, _, c = full_leaf(stream)
    stream.points.links[T, a, 1] = c


def links_go_back_and_forth(stream):
    _, a, _, c = full_leaf(stream)
    stream.points.links[T, c, 0] = a


def neighbour_is_in_the_same_list(stream):
    b = full_leaf(stream)[2]
    stream.points.links[T, b, 2] = other_leaf(stream)


def list_has_one_beginning(stream):
    _, _, b, c = full_leaf(stream)
    stream.points.links[T, b, 1] = stream.points.links[T, c, 0] = NONE


def list_is_no_circle(stream):
    _, a, b, c = full_leaf(stream)
    d = stream.points.links[T, c, 1]
    unlink(stream, b)
    unlink(stream, c)
    assert stream.points.links[T, a, 1] == d
    j = stream.points.links[T, a, 2]
    stream.points.links[T, b], stream.points.links[T, c] = (c, c, j), (b, b, j)


def list_is_no_circle_from_its_head(stream):
    j, a, _, _ = full_leaf(stream)
    last = next(s for s in stream.held if stream.points.links[T, s, 1] == NONE and stream.points.links[T, s, 2] == j)
    stream.points.links[T, last, 1], stream.points.links[T, a, 0] = a, last


def head_exists(stream):
    stream.points.head[T, full_leaf(stream)[0]] = len(stream.points.values)


def head_is_held(stream):
    stream.points.head[T, full_leaf(stream)[0]] = free_slot(stream)


def leaf_has_a_list(stream):
    stream.points.head[T, full_leaf(stream)[0]] = NONE


def head_is_the_first(stream):
    j, _, b, _ = full_leaf(stream)
    stream.points.head[T, j] = b


def head_is_of_its_leaf(stream):
    stream.points.head[T, other_leaf(stream)] = full_leaf(stream)[1]


def internal_node_has_no_list(stream):
    stream.points.head[T, stream.forest.root[T]] = full_leaf(stream)[1]


def unused_node_has_no_list(stream):
    stream.points.head[T, stream.forest.size[T]] = 0


def free_slot_has_no_links(stream):
    stream.points.links[T, free_slot(stream), 2] = 0


def count_is_the_length_of_the_list(stream):
    a = full_leaf(stream)[1]
    unlink(stream, a)
    link(stream, a, other_leaf(stream))


def points_are_on_their_side(stream):
    (j, a, _, _), k = full_leaf(stream), other_leaf(stream)
    b = stream.points.head[T, k]
    unlink(stream, a)
    unlink(stream, b)
    link(stream, a, k)
    link(stream, b, j)


LISTS = [
    (point_is_in_a_list, "point .*kept at node -1, which is not a leaf"),
    (point_is_kept_at_a_leaf, "point .*which is not a leaf"),
    (point_is_kept_at_a_node, "point .*which is not a leaf"),
    (point_is_not_kept_at_an_unused_slot, "point .*which is not a leaf"),
    (point_before_exists, "point .*the point before it is .*, which is not held"),
    (point_after_exists, "point .*the point after it is -2, which is not held"),
    (neighbour_is_held, "point .*the point after it is .*, which is not held"),
    (links_go_forth_and_back, "point .*which does not link back from the same list"),
    (links_go_back_and_forth, "point .*which does not link back from the same list"),
    (neighbour_is_in_the_same_list, "point .*which does not link back from the same list"),
    (list_has_one_beginning, "point .*has no point before it, but"),
    (list_is_no_circle, "point .*forms a cycle"),
    (list_is_no_circle_from_its_head, "node .*not the first of its points"),
    (head_exists, "node .*is not held"),
    (head_is_held, "node .*is not held"),
    (leaf_has_a_list, "node .*starts with -1, which is not held"),
    (head_is_the_first, "node .*not the first of its points"),
    (head_is_of_its_leaf, "node .*not the first of its points"),
    (internal_node_has_no_list, "node .*is not a leaf, but has a list"),
    (unused_node_has_no_list, "node .*is not a leaf, but has a list"),
    (free_slot_has_no_links, "point .*is not held, but is linked to a list"),
    (count_is_the_length_of_the_list, "node .*rows fall in it, but its count is"),
    (points_are_on_their_side, "node .*not the bounding box of its rows"),
]


@pytest.mark.parametrize(("corrupt", "complaint"), named(LISTS))
def test_detects_corruption_of_lists(stream, corrupt, complaint):
    corrupt(stream)
    check_forest(stream.forest)
    with pytest.raises(CorruptForestError, match=f"^tree {T}, {complaint}"):
        stream.check()


@pytest.mark.parametrize("value", [0.5, -1e9, np.nan, np.inf])
def test_detects_values_that_differ_from_trees(stream, value):
    stream.points.values[stream.held[3], 1] = value
    with pytest.raises(CorruptForestError, match=r"^tree 0, node \d+: its box is not the bounding box of its rows"):
        stream.check()


def test_detects_traces_of_deleted_point(stream):
    slot = free_slot(stream)
    stream.points.values[slot, 1] = 1e-300
    with pytest.raises(CorruptForestError, match=f"^point {slot}: is not held, but its values are not zero"):
        stream.check()


def test_all_slots_are_in_use_by_default(tree, stream):
    check_forest(tree, points=learn.hold_points(tree, ROWS, np.arange(len(ROWS)), None))
    with pytest.raises(CorruptForestError, match=r"^tree 0, point \d+: is kept at node -1, which is not a leaf"):
        check_forest(stream.forest, points=stream.points)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda held: held.astype(float), "must be a 1-D array of slots"),
        (lambda held: held[None], "must be a 1-D array of slots"),
        (lambda held: held.tolist(), "must be a 1-D array of slots"),
        (lambda held: np.append(held, 99), "slot 99 does not exist"),
        (lambda held: np.append(held, -1), "slot -1 does not exist"),
        (lambda held: np.append(held, held[2]), "is in use twice"),
        (lambda held: held[:-1], "is not held"),
    ],
)
def test_detects_invalid_slots_in_use(stream, wrong, complaint):
    with pytest.raises(CorruptForestError, match=complaint):
        stream._replace(held=wrong(stream.held)).check()


def test_a_process_keeps_no_points(process, stream):
    points = Points(stream.points.values, np.zeros_like(process.left), stream.points.links[:2])
    with pytest.raises(CorruptForestError, match="keeps no points"):
        check_forest(process, points=points, held=stream.held)


# ---- a forest that anyone can have written ---------------------------------------------------------------------------


def chain(n):
    """Return a Mondrian process of `n` cuts, each to the right of the one before."""
    inner, size = np.arange(n), 2 * n + 1  # cut k is node k, and node n + k is the leaf on its left
    nodes = {name: np.full((1, size), NONE, np.int32) for name in ("left", "right", "parent", "feature")}
    nodes["left"][0, :n], nodes["right"][0, :n] = n + inner, np.append(inner[1:], 2 * n)
    nodes["parent"][0, nodes["left"][0, :n]] = nodes["parent"][0, nodes["right"][0, :n]] = inner
    nodes["feature"][0, :n] = inner % 2
    cut, time = np.full((1, size), np.nan), np.ones((1, size))
    cut[0, :n], time[0, :n] = (inner + 1) / (n + 1), (inner + 1) / (n + 1)
    none, box = np.zeros((1, size), np.int64), np.empty((1, size, 0))
    root, sizes, outside = np.zeros(1, np.int32), np.full(1, size, np.int32), np.zeros(1, np.int64)
    rng, domain = np.ones((1, 4), np.uint64), np.array([[0.0, 0.0], [1.0, 1.0]])
    return Forest(
        **nodes,
        cut=cut,
        time=time,
        counts=none,
        lower=box,
        upper=box.copy(),
        root=root,
        size=sizes,
        outside=outside,
        weights=np.ones((1, 2)),
        rng=rng,
        domain=domain,
    )


def test_accepts_tree_of_maximal_depth():
    n = 50_000
    forest = chain(n)
    check_forest(forest, max_depth=n)
    with pytest.raises(CorruptForestError, match=f"^tree 0, node {2 * n - 1}: lies at depth {n}"):
        check_forest(forest, max_depth=n - 1)
    forest.cut[0, n - 2] = forest.cut[0, 0]
    with pytest.raises(CorruptForestError, match=r"^tree 0, node 0: a cut below it .* not strictly inside its region"):
        check_forest(forest)


def victims():
    """A forest to tamper with."""
    return [streamed(None), streamed(DEPTH), Held(sampled_processes(), None, None)]


def assert_true_to(forest, t, rows, j, region, born):
    """Check that the subtree of `j` is a valid Mondrian tree or process over exactly these rows."""
    is_boxed = forest.lower.shape[2] > 0
    assert forest.counts[t, j] == len(rows)
    assert born <= forest.time[t, j]
    assert forest.time[t, j] >= 0
    if is_boxed:
        assert_array_equal(forest.lower[t, j], rows.min(axis=0))
        assert_array_equal(forest.upper[t, j], rows.max(axis=0))
        region = np.stack([forest.lower[t, j], forest.upper[t, j]])
    if forest.left[t, j] == NONE:
        assert np.isnan(forest.cut[t, j])
        assert forest.time[t, j] == np.inf
        return
    delta, xi = forest.feature[t, j], forest.cut[t, j]
    assert region[0, delta] <= xi < region[1, delta]
    assert is_boxed or region[0, delta] < xi
    goes_left = rows[:, delta] <= xi
    for child, side, below in ((forest.left[t, j], 1, goes_left), (forest.right[t, j], 0, ~goes_left)):
        part = region.copy()
        part[side, delta] = xi
        assert_true_to(forest, t, rows[below], child, part, forest.time[t, j])


def assert_same_in_what_matters(case, original):
    """Check that only free values differ: location and time of cuts, and points within the box of their leaf."""
    free = {"feature", "cut", "time", "values", "weights", "rng", "domain"}
    for part, before in zip(case, original, strict=True):
        for name in set(getattr(part, "_fields", ())) - free:
            assert_array_equal(getattr(part, name), getattr(before, name), name)
    domain = case.forest.domain
    rows = ROWS[((domain[0] <= ROWS) & (domain[1] >= ROWS)).all(axis=1)]
    if case.points is not None:
        assert_array_equal(np.sort(case.held), np.sort(original.held))
        rows = case.points.values[case.held]
    for t in range(len(case.forest.left)):
        assert_true_to(case.forest, t, rows, case.forest.root[t], domain, 0.0)
    assert (case.forest.weights >= 0).all()
    assert np.isfinite(case.forest.weights).all()
    assert case.forest.rng.any(axis=1).all()


def numbers(dtype):
    """Draw a number of a type, preferably a harmful one."""
    if dtype.kind == "f":
        harmful = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 5e-324, 1.7e308, -1.7e308]
        return st.one_of(st.sampled_from(harmful), st.floats(0, 1), st.floats(allow_nan=True))
    limits = np.iinfo(dtype)
    return st.one_of(st.integers(max(-3, limits.min), 40), st.integers(limits.min, limits.max))


@st.composite
def edits(draw, arrays):
    """Draw changes of arrays: (array, place, number), or a number from elsewhere in the array."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(name for name, array in arrays.items() if array.size)))
        place = st.integers(0, arrays[name].size - 1)
        value = draw(st.one_of(numbers(arrays[name].dtype), place.map(arrays[name].item)))
        found.append((name, draw(place), value))
    return found


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_tampering_is_detected_or_harmless(data):
    original = data.draw(st.sampled_from(victims()))
    case = Held(*(part.copy() if isinstance(part, np.ndarray) else part and own(part) for part in original))
    arrays = dict(case.forest._asdict())
    if case.points is not None:
        arrays |= case.points._asdict() | {"held": case.held}
    for name, place, value in data.draw(edits(arrays)):
        arrays[name].flat[place] = value
    try:
        check_forest(case.forest, None if case.points else ROWS, points=case.points, held=case.held, lifetime=np.inf)
    except CorruptForestError:
        event("caught")
        return
    event("let pass")
    assert_same_in_what_matters(case, original)


def test_check_needs_no_compiler():
    probe = "import sys, polyaforest.forest.integrity; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
