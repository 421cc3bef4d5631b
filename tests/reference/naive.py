"""The paper's algorithms as printed: recursive, one node at a time, probabilities as exact fractions.

Slow on purpose. Names follow the paper's verbs (SampleMondrianTree, SampleMondrianBlock, Cut, Restrict,
SetCutParameters, SetRestrictionParameters). Docstrings mention where the design corrects the paper (live dimensions,
the known world, points outside every box, deletion). Random numbers are drawn in preorder: for every node the time of
its cut, then the dimension, then the location. Where a draw depends on a sum of floats, the sum runs feature by
feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from operator import and_, or_

MASK = (1 << 64) - 1
SLIVER = Fraction(1, 2**54)  # share of a side whose length rounds to 0
INF = math.inf

OBSERVED_I, OBSERVED_II, COMPLEMENTARY, OUTSIDE = 1, 2, 3, 4

Point = Sequence[float]  # a number, or a `Category`, for each feature

QUESTIONS = 52  # yes/no questions per category
APART = 26.0  # questions that two categories answer differently, on average


class Category(int):
    """The code of a category: bit b is the answer to question b, an axis with two places, no and yes."""


def point(values: Sequence[float], n_categories: int = 0) -> list[float]:
    """Return a row whose last values are the codes of categories."""
    n = len(values) - n_categories
    return [*map(float, values[:n]), *(Category(code) for code in values[n:])]


# ---- random numbers ------------------------------------------------------------------------------------------------


class Xoshiro:
    """xoshiro256++ of Blackman and Vigna."""

    def __init__(self, words: Sequence[int]) -> None:
        self.s = [int(word) for word in words]

    def next_word(self) -> int:
        s = self.s
        result = (_rotate((s[0] + s[3]) & MASK, 23) + s[0]) & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = _rotate(s[3], 45)
        return result

    def uniform(self) -> float:
        return (self.next_word() >> 11) * 2.0**-53

    def exponential(self) -> float:
        return -math.log(1.0 - self.uniform())

    def below(self, bound: int) -> int:
        return int(self.uniform() * bound)


def _rotate(word: int, places: int) -> int:
    return ((word << places) | (word >> (64 - places))) & MASK


def sample_weights(rng: Xoshiro, spread: Point, deviation: Point) -> list[float]:
    """Draw feature weights Exp(1) / spread, scaled so that the weighted deviations sum to 1."""
    weights = [rng.exponential() / float(s) for s in spread]
    total = ordered_sum(w * float(d) for w, d in zip(weights, deviation, strict=True))
    return [w / total for w in weights] if total > 0 else weights


def ordered_sum(terms: Iterator[float]) -> float:
    """Sum floats in the given order; the built-in sum compensates rounding in newer Pythons."""
    total = 0.0
    for term in terms:
        total += term
    return total


# ---- boxes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a box. Its length is exact, and never 0 after a cut."""

    low: float
    high: float
    length: Fraction

    @property
    def is_live(self) -> bool:
        return self.low < self.high

    restricts = is_live  # whether a region can be larger than the side

    @property
    def extent(self) -> float:
        return self.high - self.low

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def distance(self, value: float) -> float:
        return max(self.low - value, value - self.high, 0.0)

    def joined(self, other: Side) -> Side:
        return side(min(self.low, other.low), max(self.high, other.high))

    def parts(self, xi: float) -> tuple[Side, Side]:
        """Return the parts up to a cut and beyond it."""
        least = SLIVER * self.length
        below = Side(self.low, xi, max(Fraction(xi) - Fraction(self.low), least))
        return below, Side(xi, self.high, max(Fraction(self.high) - Fraction(xi), least))

    def lacks(self, world: Side) -> bool:
        """Return whether the side is collapsed but that of the world is not."""
        return world.is_live and not self.is_live


@dataclass(frozen=True)
class Cube:
    """The side of a box along a category: the questions that all its categories answer with yes, and that any does.

    Axes on which the answers differ are live and completely filled; the others restrict nothing. A cut by a question
    halves the possible categories: the length is the remaining share.
    """

    every: int
    some: int
    length: Fraction = Fraction(1)

    restricts = False

    @property
    def low(self) -> float:
        return float(self.every)

    @property
    def high(self) -> float:
        return float(self.some)

    @property
    def live(self) -> list[int]:
        return questions_in(self.every ^ self.some)

    @property
    def is_live(self) -> bool:
        return bool(self.live)

    @property
    def extent(self) -> float:
        return len(self.live) / APART

    def new(self, code: int) -> list[int]:
        """Return the questions to which the answer of `code` is new."""
        return questions_in((self.every & ~code) | (code & ~self.some))

    def holds(self, code: int) -> bool:
        return not self.new(code)

    def distance(self, code: int) -> float:
        return len(self.new(code)) / APART

    def joined(self, other: Cube) -> Cube:
        return Cube(self.every & other.every, self.some | other.some)

    def parts(self, question: float) -> tuple[Cube, Cube]:
        bit = 1 << int(question)
        no = Cube(self.every, self.some & ~bit, self.length / 2)
        return no, Cube(self.every | bit, self.some, self.length / 2)

    def lacks(self, world: Cube) -> bool:
        return self.live != world.live


def questions_in(word: int) -> list[int]:
    return [b for b in range(QUESTIONS) if word >> b & 1]


Box = list[Side | Cube]


def side(low: float, high: float) -> Side:
    return Side(low, high, Fraction(high) - Fraction(low))


def bounding_box(rows: Sequence[Point]) -> Box:
    return [hull_of(column) for column in zip(*rows, strict=True)]


def hull_of(column: Sequence[float]) -> Side | Cube:
    if isinstance(column[0], Category):
        return Cube(reduce(and_, column), reduce(or_, column))
    return side(min(column), max(column))


def hull(a: Box, b: Box) -> Box:
    return [p.joined(q) for p, q in zip(a, b, strict=True)]


def sides_of_cut(box: Box, delta: int, xi: float) -> tuple[Box, Box]:
    """Return R_0 and R_1: the parts of `box` up to the cut and beyond it."""
    below, above = box[delta].parts(xi)
    return [*box[:delta], below, *box[delta + 1 :]], [*box[:delta], above, *box[delta + 1 :]]


def linear_dimension(box: Box, weights: Point) -> float:
    return ordered_sum(w * s.extent for w, s in zip(weights, box, strict=True))


def extension(box: Box, weights: Point, x: Point) -> float:
    """Return the growth of the linear dimension of `box` if it is to hold `x`.

    The order of additions matches that of the kernels: every fourth number together, then the four sums, then
    categories.
    """
    parts = [w * s.distance(v) for w, s, v in zip(weights, box, x, strict=True)]
    n = sum(isinstance(s, Side) for s in box)
    a, b, c, d = (ordered_sum(iter(parts[lane:n:4])) for lane in range(4))
    return ordered_sum(iter([(a + c) + (b + d), *parts[n:]]))


def holds(box: Box, x: Point) -> bool:
    return all(s.holds(v) for s, v in zip(box, x, strict=True))


def holds_live(box: Box, x: Point) -> bool:
    """Return whether `x` lies in `box` along its live dimensions; collapsed ones restrict nothing."""
    return all(s.holds(v) for s, v in zip(box, x, strict=True) if s.restricts)


def product(factors: Iterator[Fraction]) -> Fraction:
    pairs = [factor.as_integer_ratio() for factor in factors]
    return Fraction(math.prod(p for p, _ in pairs), math.prod(q for _, q in pairs))


def live_share(box: Box, region: Box) -> Fraction:
    """Return f: the share of `box` in `region`, over the dimensions live in the box."""
    return product(b.length / r.length for b, r in zip(box, region, strict=True) if b.restricts)


def volume(box: Box, world: Box) -> Fraction:
    """Return the volume over the live dimensions of the known world."""
    return product(s.length for s, w in zip(box, world, strict=True) if w.is_live)


def log(x: Fraction) -> float:
    """Return the logarithm of a fraction, also beyond the range of floats or very close to 1."""
    if x == 0:
        return -INF
    if abs(x - 1) < Fraction(1, 2):
        return math.log1p(x - 1)
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(x / Fraction(2) ** shift) + shift * math.log(2)


# ---- the tree ------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A node j: its region R_j, its box B_j (None in a Mondrian process) and, once it is cut, the cut and two children.

    A leaf of a Mondrian tree holds its rows; its time is the lifetime.
    """

    depth: int
    region: Box
    box: Box | None
    count: int
    time: float
    feature: int | None = None
    cut: float | None = None
    left: Node | None = None
    right: Node | None = None
    rows: list[Point] = field(default_factory=list)
    mass: Fraction = Fraction(1)
    complement_mass: Fraction = Fraction(0)

    @property
    def is_leaf(self) -> bool:
        return self.left is None

    @property
    def cell(self) -> Box:
        """The restricted region: the box in its live dimensions, the region in the others."""
        if self.box is None:
            return self.region
        return [b if b.restricts else r for b, r in zip(self.box, self.region, strict=True)]


@dataclass
class Tree:
    """A sampled tree, its known world and feature weights; without points it has no root."""

    root: Node | None
    world: Box
    weights: Point
    domain: Box | None = None
    n_outside: int = 0
    outside_mass: Fraction = Fraction(0)


def preorder(node: Node | None) -> Iterator[Node]:
    if node is not None:
        yield node
        yield from preorder(node.left)
        yield from preorder(node.right)


def rows_below(node: Node | None) -> list[Point]:
    """Return all rows below a node."""
    return [x for j in preorder(node) for x in j.rows]


# ---- the partition -------------------------------------------------------------------------------------------------


def sample_mondrian_tree(
    rng: Xoshiro,
    rows: Sequence[Point],
    weights: Point,
    lifetime: float,
    max_depth: float = INF,
    domain: Box | None = None,
) -> Tree:
    """Sample a Mondrian tree (SampleMondrianTree, Alg. 1 and 3)."""
    tree = plant(rows, weights, lifetime, domain)
    sample_mondrian_block(rng, tree.root, tree.root.rows, weights, 0.0, lifetime, max_depth)
    return tree


def plant(rows: Sequence[Point], weights: Point, lifetime: float, domain: Box | None = None) -> Tree:
    """Return a tree that is a single leaf: the box of all rows, in the hull of this box and the domain."""
    box = bounding_box(rows)
    world = box if domain is None else hull(box, domain)
    root = Node(0, world, box, len(rows), lifetime, rows=[list(x) for x in rows])
    return Tree(root, world, weights, domain)


def sample_mondrian_block(
    rng: Xoshiro,
    j: Node,
    rows: Sequence[Point],
    weights: Point,
    parent_time: float,
    lifetime: float,
    max_depth: float,
) -> None:
    """Sample the subtree of `j` (SampleMondrianBlock), continuing along live dimensions if others are collapsed."""
    if j.depth == max_depth:
        return
    drawn = sample_cut(rng, j.box, weights, parent_time, lifetime)
    if drawn is None:
        return
    tau, delta, xi = drawn
    below, above = cut(j, rows, tau, delta, xi, lifetime)
    sample_mondrian_block(rng, j.left, below, weights, tau, lifetime, max_depth)
    sample_mondrian_block(rng, j.right, above, weights, tau, lifetime, max_depth)


def sample_cut(
    rng: Xoshiro, box: Box, weights: Point, parent_time: float, lifetime: float
) -> tuple[float, int, float] | None:
    """Draw time, dimension and location of the first cut of `box`; None if it falls after the lifetime."""
    length = linear_dimension(box, weights)
    if not length > 0:
        return None
    tau = parent_time + rng.exponential() / length
    if not tau < lifetime:
        return None
    delta, place = sample_dimension(rng, [w * s.extent for w, s in zip(weights, box, strict=True)], length)
    if isinstance(box[delta], Cube):
        return tau, delta, question_at(box[delta].live, place / weights[delta])
    low, high = box[delta].low, box[delta].high
    xi = low + rng.uniform() * (high - low)
    return tau, delta, xi if xi < high else low


def question_at(questions: list[int], place: float) -> float:
    """Return the question at a place along `questions`, which all have the same length."""
    return float(questions[min(int(place * APART), len(questions) - 1)])


def sample_dimension(rng: Xoshiro, lengths: Sequence[float], length: float) -> tuple[int, float]:
    """Draw a dimension with probability proportional to its weighted length; return it and the rest of the draw.

    The weighted lengths sum to `length`.
    """
    candidates = [d for d, part in enumerate(lengths) if part > 0]
    place = rng.uniform() * length
    for d in candidates:
        if place < lengths[d]:
            return d, place
        place -= lengths[d]
    return candidates[-1], place


def cut(
    j: Node, rows: Sequence[Point], tau: float, delta: int, xi: float, lifetime: float
) -> tuple[list[Point], list[Point]]:
    """Cut `j` into two children, each restricted to the box of its rows; return the rows of each (Cut)."""
    below = [x for x in rows if goes_left(x, delta, xi)]
    above = [x for x in rows if not goes_left(x, delta, xi)]
    j.time, j.feature, j.cut, j.rows = tau, delta, xi, []
    region_below, region_above = sides_of_cut(j.cell, delta, xi)
    j.left = Node(j.depth + 1, region_below, bounding_box(below), len(below), lifetime, rows=below)
    j.right = Node(j.depth + 1, region_above, bounding_box(above), len(above), lifetime, rows=above)
    return below, above


def sample_mondrian_process(rng: Xoshiro, domain: Box, weights: Point, lifetime: float, max_depth: float = INF) -> Tree:
    """Sample a Mondrian process over the domain, independent of the data."""
    root = Node(0, domain, None, 0, lifetime)
    sample_process_block(rng, root, weights, 0.0, lifetime, max_depth)
    return Tree(root, domain, weights)


def sample_process_block(
    rng: Xoshiro, j: Node, weights: Point, parent_time: float, lifetime: float, max_depth: float
) -> None:
    if j.depth == max_depth:
        return
    drawn = sample_cut(rng, j.region, weights, parent_time, lifetime)
    if drawn is None:
        return
    cut_side = j.region[drawn[1]]
    if isinstance(cut_side, Side) and drawn[2] == cut_side.low:  # no float lies between the sides of this region
        return
    j.time, j.feature, j.cut = drawn
    for_left, for_right = sides_of_cut(j.region, j.feature, j.cut)
    j.left = Node(j.depth + 1, for_left, None, 0, lifetime)
    j.right = Node(j.depth + 1, for_right, None, 0, lifetime)
    sample_process_block(rng, j.left, weights, j.time, lifetime, max_depth)
    sample_process_block(rng, j.right, weights, j.time, lifetime, max_depth)


def count_rows(tree: Tree, rows: Sequence[Point]) -> None:
    """Count rows in the cells of a process."""
    for x in rows:
        if not holds(tree.world, x):
            tree.n_outside += 1
            continue
        j: Node | None = tree.root
        while j is not None:
            j.count += 1
            j = child_of(j, x)


def child_of(j: Node, x: Point) -> Node | None:
    if j.is_leaf:
        return None
    return j.left if goes_left(x, j.feature, j.cut) else j.right


def goes_left(x: Point, delta: int, xi: float) -> bool:
    """Return whether a value is at most `xi`; for a category, whether its answer to the question is no."""
    return not x[delta] >> int(xi) & 1 if isinstance(x[delta], Category) else x[delta] <= xi


def separation_time(tree: Tree, x: Point, y: Point) -> float:
    """Return the time until which two points share a cell; infinite if no cut separates them."""
    j = tree.root
    while not j.is_leaf:
        if child_of(j, x) is not child_of(j, y):
            return j.time
        j = child_of(j, x)
    return INF


# ---- insertion and deletion ----------------------------------------------------------------------------------------


def empty_tree(weights: Point, domain: Box | None = None) -> Tree:
    """Return a tree without points."""
    return Tree(None, domain or [], weights, domain)


def insert_point(rng: Xoshiro, tree: Tree, x: Point, lifetime: float, max_depth: float = INF) -> None:
    """Extend the tree by `x` (MT+, Alg. 5): afterwards it has the law of a tree sampled with `x` among its rows.

    Alg. 5 draws an exponential time at each node on the path and descends if the time is too late. Exponential times
    are memoryless, so one draw suffices. This budget is spent at the rate at which each node on the path would be cut
    off from `x`, for the lifetime of the node.
    """
    if tree.root is None:
        tree.root = plant([x], tree.weights, lifetime, tree.domain).root
    else:
        budget = rng.exponential()
        tree.root = extend_block(rng, tree.root, list(x), tree.weights, budget, 0.0, 0.0, lifetime, max_depth)
    set_regions(tree)


def extend_block(
    rng: Xoshiro,
    j: Node,
    x: Point,
    weights: Point,
    budget: float,
    hazard: float,
    parent_time: float,
    lifetime: float,
    max_depth: float,
) -> Node:
    """Extend the subtree of `j` (MTx of Alg. 5); `hazard` is the spent budget. Return the node now in the place of `j`.

    A leaf at the maximal depth may hide cuts, and hides the one from `x` too.
    """
    rate, before = extension(j.box, weights, x), hazard
    if rate > 0:
        hazard += (j.time - parent_time) * rate
    if hazard > budget and j.depth < max_depth:
        tau = parent_time + (budget - before) / rate
        if not j.is_leaf:
            tau = min(tau, j.time)  # only rounding can exceed it
        if not j.is_leaf or tau < lifetime:
            return cut_off(rng, j, x, weights, rate, tau, lifetime, max_depth)
    j.count += 1
    j.box = hull(j.box, bounding_box([x]))
    if j.is_leaf:
        j.rows.append(x)
    elif child_of(j, x) is j.left:
        j.left = extend_block(rng, j.left, x, weights, budget, hazard, j.time, lifetime, max_depth)
    else:
        j.right = extend_block(rng, j.right, x, weights, budget, hazard, j.time, lifetime, max_depth)
    return j


def cut_off(
    rng: Xoshiro, j: Node, x: Point, weights: Point, rate: float, tau: float, lifetime: float, max_depth: float
) -> Node:
    """Return a new parent of `j` and of a leaf for `x`; its cut falls uniformly between the box and the point."""
    gaps = [w * s.distance(v) for w, s, v in zip(weights, j.box, x, strict=True)]
    delta, place = sample_dimension(rng, gaps, rate)
    if isinstance(j.box[delta], Cube):
        xi = question_at(j.box[delta].new(x[delta]), place / weights[delta])
        is_above = not goes_left(x, delta, xi)
    else:
        xi, is_above = sample_gap(rng, j.box[delta], x[delta])
    box = bounding_box([x])
    leaf = Node(j.depth + 1, [], box, 1, lifetime, rows=[x])
    parent = Node(j.depth, [], hull(j.box, box), j.count + 1, tau, delta, xi)
    push_down(j, lifetime, max_depth)
    parent.left, parent.right = (j, leaf) if is_above else (leaf, j)
    return parent


def sample_gap(rng: Xoshiro, s: Side, value: float) -> tuple[float, bool]:
    """Draw a location between a side and a value beyond it; return it and whether the value is above the side."""
    share = rng.uniform()
    if value > s.high:
        xi = s.high + share * (value - s.high)
        return (xi if xi < value else s.high), True
    xi = value + share * (s.low - value)
    return (xi if xi < s.low else value), False


def push_down(j: Node, lifetime: float, max_depth: float) -> None:
    """Move the subtree of `j` one level down; hide cuts that reach the maximal depth."""
    j.depth += 1
    if j.depth == max_depth:
        hide_cuts(j, lifetime)
    elif not j.is_leaf:
        push_down(j.left, lifetime, max_depth)
        push_down(j.right, lifetime, max_depth)


def hide_cuts(j: Node, lifetime: float) -> None:
    """Make `j` a leaf of all the rows below it."""
    j.rows, j.time = rows_below(j), lifetime
    j.feature = j.cut = j.left = j.right = None


def delete_point(rng: Xoshiro, tree: Tree, x: Point, lifetime: float, max_depth: float = INF) -> None:
    """Restrict the tree to its rows without `x` (MT-, instead of Alg. 6): it has the law of a tree sampled without `x`.

    By projectivity the restriction of a tree to a subset of its rows is a tree of the subset. So times do not change,
    boxes shrink, and a cut that no longer separates rows is removed. Only cuts hidden by the maximal depth are drawn.
    """
    tree.root = restrict_block(rng, tree.root, list(x), tree.weights, lifetime, max_depth)
    set_regions(tree)


def restrict_block(rng: Xoshiro, j: Node, x: Point, weights: Point, lifetime: float, max_depth: float) -> Node | None:
    """Remove `x` from the subtree of `j`; return the node now in the place of `j`, None if no row is left."""
    if j.is_leaf:
        j.rows.remove(x)
        if not j.rows:
            return None
        j.box = bounding_box(j.rows)
    else:
        is_left = child_of(j, x) is j.left
        child, sibling = (j.left, j.right) if is_left else (j.right, j.left)
        child = restrict_block(rng, child, x, weights, lifetime, max_depth)
        if child is None:
            pull_up(rng, sibling, j.time, weights, lifetime, max_depth)
            return sibling
        j.left, j.right = (child, sibling) if is_left else (sibling, child)
        j.box = hull(j.left.box, j.right.box)
    j.count -= 1
    return j


def pull_up(rng: Xoshiro, j: Node, parent_time: float, weights: Point, lifetime: float, max_depth: float) -> None:
    """Move the subtree of `j` one level up; draw the next cut of leaves that were at the maximal depth.

    That cut follows the birth of the leaf: the time of its parent, or for `j` itself that of its former parent.
    """
    is_hidden = j.depth == max_depth
    j.depth -= 1
    if is_hidden:
        sample_mondrian_block(rng, j, j.rows, weights, parent_time, lifetime, max_depth)
    elif not j.is_leaf:
        pull_up(rng, j.left, j.time, weights, lifetime, max_depth)
        pull_up(rng, j.right, j.time, weights, lifetime, max_depth)


def delete_point_by_rescaling(rng: Xoshiro, tree: Tree, x: Point, lifetime: float, max_depth: float = INF) -> None:
    """Delete `x` by Alg. 6 as printed (MT-), to show that it breaks the law of the tree.

    From the root down, while the box of a node shrinks from linear dimension L to L' without `x`, its time tau becomes
    tau * L / L', the time with the same mass under Exp(L') as before under Exp(L); if that is not before the lifetime,
    the subtree becomes a leaf. Then `x` is removed. The paper does not mention cuts that no longer separate rows; they
    are removed, as in robust random cut forests, whose deletion the paper adapts.
    """
    j = tree.root
    while not j.is_leaf:
        remaining = rows_below(j)
        remaining.remove(list(x))
        box = bounding_box(remaining)
        if box == j.box:  # x is internal
            break
        length = linear_dimension(box, tree.weights)
        j.time = j.time * linear_dimension(j.box, tree.weights) / length if length > 0 else INF
        if j.time >= lifetime:
            hide_cuts(j, lifetime)
            break
        j = child_of(j, x)
    delete_point(rng, tree, x, lifetime, max_depth)


def set_regions(tree: Tree) -> None:
    """Set the known world and the region of every node from boxes and cuts."""
    if tree.root is None:
        tree.world = tree.domain or []
        return
    tree.world = tree.root.box if tree.domain is None else hull(tree.root.box, tree.domain)
    set_region(tree.root, tree.world)


def set_region(j: Node, region: Box) -> None:
    j.region = region
    if not j.is_leaf:
        below, above = sides_of_cut(j.cell, j.feature, j.cut)
        set_region(j.left, below)
        set_region(j.right, above)


# ---- probabilities -------------------------------------------------------------------------------------------------


def set_polya_parameters(tree: Tree, gamma: float, *, is_open: bool) -> None:
    """Set the mass of every node (Alg. 2 and 4).

    If the world is open, its outside has a share with prior Beta(gamma / 2, gamma / 2). The root is then restricted to
    its box within the known world, with prior strength gamma.
    """
    g, root = Fraction(gamma), tree.root
    n = tree.n_outside + root.count
    tree.outside_mass = (g / 2 + tree.n_outside) / (g + n) if is_open else Fraction(0)
    restrict(root, g, 1 - tree.outside_mass)
    update_polya_parameters(root, g)


def update_polya_parameters(j: Node, gamma: Fraction) -> None:
    if j.is_leaf:
        return
    mu = cut_mean(j, gamma)
    strength = gamma * (2 * j.depth + 2) ** 2
    restrict(j.left, strength, mu * j.mass)
    restrict(j.right, strength, (1 - mu) * j.mass)
    update_polya_parameters(j.left, gamma)
    update_polya_parameters(j.right, gamma)


def cut_mean(j: Node, gamma: Fraction) -> Fraction:
    """Return the mean share of the left side (SetCutParameters)."""
    polya_depth = j.depth if j.box is None else 2 * j.depth
    strength = gamma * (polya_depth + 1) ** 2
    length_0, length_1 = j.left.region[j.feature].length, j.right.region[j.feature].length
    chi_0 = strength * length_0 / (length_0 + length_1) + j.left.count
    chi_1 = strength * length_1 / (length_0 + length_1) + j.right.count
    return chi_0 / (chi_0 + chi_1)


def restriction_mean(j: Node, strength: Fraction) -> Fraction:
    """Return the mean share of the box in its region, 1 without live dimensions (SetRestrictionParameters)."""
    if j.box is None:
        return Fraction(1)
    f = live_share(j.box, j.region)
    if f == 1:
        return f
    rho_in = strength * f + j.count
    rho_out = strength * (1 - f)
    return rho_in / (rho_in + rho_out)


def restrict(j: Node, strength: Fraction, mass: Fraction) -> None:
    """Split the mass of a region between the box of `j` and its complementary leaf (Restrict)."""
    mu = restriction_mean(j, strength)
    j.mass, j.complement_mass = mu * mass, (1 - mu) * mass


def complement_volume(j: Node, world: Box) -> Fraction:
    return volume(j.region, world) - volume(j.cell, world)


def outside_volume(tree: Tree) -> float:
    """Return the logarithm of the integral of exp(-D * reach(x)) over all x beyond the known world.

    Over all of space the integral is a product: for each feature the side of the world plus L / (D * weight) at both
    ends. Features without weight or length, and categories, do not count.
    """
    n_features, size = len(tree.world), Fraction(linear_dimension(tree.world, tree.weights))
    grown = product(
        1 + 2 * size / (n_features * Fraction(float(w)) * s.length)
        for s, w in zip(tree.world, tree.weights, strict=True)
        if isinstance(s, Side) and w * s.extent > 0
    )
    return 0.0 if grown == 1 else log(volume(tree.world, tree.world) * (grown - 1))


# ---- leaves and cells of points --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """The leaf of a point: its kind, its node (None outside), log-mass and log-density."""

    kind: int
    node: Node | None
    log_mass: float
    log_density: float


def leaves(tree: Tree) -> Iterator[Fraction]:
    """Yield the masses of all leaves: observed, complementary, and the outside."""
    for j in preorder(tree.root):
        if j.is_leaf:
            yield j.mass
        yield j.complement_mass
    yield tree.outside_mass


def find_leaf(tree: Tree, x: Point) -> Leaf:
    """Walk down from the root until a box excludes `x` or the cuts end."""
    if not holds(tree.world, x):
        return outside_leaf(tree, x)
    j = tree.root
    while True:
        if j.box is not None and not holds_live(j.box, x):
            mass = log(j.complement_mass)
            return Leaf(COMPLEMENTARY, j, mass, mass - log(complement_volume(j, tree.world)))
        below = child_of(j, x)
        if below is None:
            mass = log(j.mass)
            return Leaf(observed_kind(tree, j), j, mass, mass - log(volume(j.cell, tree.world)))
        j = below


def observed_kind(tree: Tree, j: Node) -> int:
    """Return Type I if the box is collapsed where the world is not; a cell of a process is Type II unless empty."""
    if j.count == 0:
        return COMPLEMENTARY
    if j.box is not None and any(b.lacks(w) for b, w in zip(j.box, tree.world, strict=True)):
        return OBSERVED_I
    return OBSERVED_II


def outside_leaf(tree: Tree, x: Point) -> Leaf:
    """Return the leaf beyond the known world; its mass falls with the reach, distance divided by size of the world."""
    size = linear_dimension(tree.world, tree.weights)
    reach = extension(tree.world, tree.weights, x) / (size if size > 0 else 1.0)
    mass = log(tree.outside_mass)
    density = mass - outside_volume(tree) - len(tree.world) * reach
    return Leaf(OUTSIDE, None, mass - math.log1p(reach), density)


def log_cell_mass(tree: Tree, x: Point, t: float) -> float:
    """Return the log-mass of the cell of `x` at lifetime `t`.

    While a node lives, a point outside its box is cut off from it at a rate of its distance: the extension of the tree
    to the point (Alg. 5), integrated out. The regions of a process reach as far as its domain.
    """
    j, born, log_weight = tree.root, 0.0, 0.0
    while True:
        rate = extension(tree.world if j.box is None else j.box, tree.weights, x)
        elapsed = min(j.time, t) - born
        if rate > 0 and elapsed > 0:
            log_weight -= elapsed * rate
        if j.is_leaf or j.time > t:
            return log_weight + log(j.mass)
        j, born = child_of(j, x), j.time
