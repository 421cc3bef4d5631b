"""Write and read trees in preorder; reject malformed ones."""

import numpy as np
import pytest
from crafted import judged
from numpy.testing import assert_array_equal

from polyaforest import StreamingMPF, Tree
from polyaforest.detectors import loads
from polyaforest.forest.integrity import check_forest
from polyaforest.kernels import preorder
from polyaforest.kernels.arrays import NONE, new_forest, new_points
from polyaforest.kernels.sampling import NO_CUTOFF, fill_priorities

pytestmark = pytest.mark.plain

LIFETIME = 9.0


def leafy():
    """Return a tree with a cut at 1 and a cut at 2 below it on the right, and a tree of one leaf."""
    features, slots = np.array([[0, NONE, 0, NONE, NONE, NONE], [2, 0, 1, 4, 3, 0]], np.int32)
    return features, slots, np.array([1.0, 2.0]), np.array([3.0, 4.0])


def blank(sizes=(5, 1), n_slots=4):
    rng = np.ones((len(sizes), 4), np.uint64)
    forest = new_forest(6, np.ones((len(sizes), 1)), rng, np.array([[np.inf], [-np.inf]]), boxed=True)
    forest.size[:] = sizes
    return forest, new_points(len(sizes), 6, n_slots, 1)


def read(forest, nodes, lifetime=LIFETIME, max_depth=5):
    return preorder.read_trees(forest, *nodes, lifetime, max_depth, np.empty(7, np.int32), np.empty(6, np.int32))


def fill(forest, points, nodes, values=(0.5, 1.5, 2.5, 0.7), sizes=(9, 9), cutoffs=(NO_CUTOFF, NO_CUTOFF)):
    n = len(values)
    points.values[:n, 0] = values
    numbers, seeds, cutoffs = np.arange(n), np.zeros(len(sizes), np.uint64), np.array(cutoffs, np.uint64)
    return preorder.fill_trees(forest, points, nodes[1], numbers, np.array(sizes), seeds, cutoffs), cutoffs


def test_reads_and_fills_trees():
    nodes, (forest, points) = leafy(), blank()
    assert read(forest, nodes) == 2
    assert fill(forest, points, nodes)[0] == 6
    assert_array_equal(forest.root, [2, 0])
    assert_array_equal(forest.left[0], [NONE, 4, 0, NONE, NONE, 0])
    assert_array_equal(forest.right[0], [NONE, 3, 1, NONE, NONE, 0])
    assert_array_equal(forest.counts[0], [2, 2, 4, 1, 1, 0])
    assert_array_equal(forest.lower[0, :, 0], [0.5, 1.5, 0.5, 2.5, 1.5, 0])
    assert_array_equal(forest.upper[0, :, 0], [0.7, 2.5, 2.5, 2.5, 1.5, 0])
    check_forest(forest, points=points, lifetime=LIFETIME, max_depth=2)
    written = np.empty((2, 6), np.int32), np.empty((2, 2))
    preorder.write_trees(forest, *written[0], *written[1], np.empty(7, np.int32))
    for mine, theirs in zip((*written[0], *written[1]), nodes, strict=True):
        assert_array_equal(mine, theirs)


def test_tree_takes_points_up_to_its_cutoff():
    (one, points), nodes = blank((1,)), (np.array([NONE], np.int32), np.zeros(1, np.int32), np.empty(0), np.empty(0))
    assert read(one, nodes) == 0
    own = np.empty((1, 4), np.uint64)
    fill_priorities(np.zeros(1, np.uint64), np.arange(4), own)
    second = np.sort(own[0])[1]
    assert fill(one, points, nodes, sizes=(2,), cutoffs=(second + np.uint64(1),)) == (1, np.array([second]))
    assert_array_equal(points.links[0, :, 2] != NONE, own[0] <= second)
    again, points = blank((1,))
    read(again, nodes)
    assert fill(again, points, nodes, sizes=(3,), cutoffs=(second,))[0] == preorder.MALFORMED


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [
        (0, 0, NONE),  # a leaf, and nodes after it
        (0, 1, 0),  # too many cuts
        (0, 1, 1),  # no such feature
        (0, 1, -7),
        (0, 4, 0),  # a tree without an end
        (1, 0, 5),  # a slot beyond the tree
        (1, 0, -1),
        (1, 3, 2),  # taken twice
        (1, 5, 1),
        (3, 0, np.nan),
        (3, 0, -1.0),
        (3, 1, 2.0),  # before its parent
        (3, 1, LIFETIME),
    ],
)
def test_rejects_malformed_trees(part, place, value):
    nodes, (forest, _) = leafy(), blank()
    nodes[part][place] = value
    assert read(forest, nodes) != 2


def test_rejects_tree_below_depth_limit():
    assert read(blank()[0], leafy(), max_depth=2) == 2
    assert read(blank()[0], leafy(), max_depth=1) == preorder.MALFORMED


def test_rejects_leaf_without_points():
    nodes, (forest, points) = leafy(), blank()
    nodes[2][0] = -1.0
    assert read(forest, nodes) == 2
    assert fill(forest, points, nodes)[0] == preorder.MALFORMED


@pytest.mark.parametrize("tree", [Tree(max_depth=2), Tree(lifetime=0.3), Tree(max_depth=0), Tree(domain="data")])
def test_read_trees_inverts_write_trees(tree):
    """Cover leaves with several points: equal ones, at the depth limit, and at the lifetime."""
    rows = np.random.default_rng(0).integers(0, 3, (60, 2)).astype(float)
    rows[::7] *= -0.0
    model = judged(StreamingMPF(n_estimators=3, window=30, random_state=1, tree=tree), rows)
    read = loads(model.to_bytes())
    stream = read._stream
    depth = stream.rules.plan.max_depth
    check_forest(read.forest_, points=stream.points, held=stream.store.held, alike=False, max_depth=depth)
    more = np.random.default_rng(1).integers(0, 3, (20, 2)).astype(float)
    assert model.score_then_learn(more).tobytes() == read.score_then_learn(more).tobytes()
    model.delete(model.keys_[5:20])
    read.delete(read.keys_[5:20])
    assert model.to_bytes() == read.to_bytes()
