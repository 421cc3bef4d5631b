"""The prequential loop: score each row, learn it, and delete the points that leave.

Each tree processes all rows of a chunk before the next tree starts, so that its arrays stay in the cache.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import LEAST_LOG, NONE, SCORE_LOG_CELLS, SCORE_LOG_MASS, SCORE_NOTHING, Array
from polyaforest.kernels.branches import set_cells
from polyaforest.kernels.geometry import are_distinguishable, contains_live, first_category, log_live_share
from polyaforest.kernels.jit import jit_borrowing, jit_borrowing_helper, jit_inline
from polyaforest.kernels.online import delete_point, fetch, insert_point, plant, trace, tree_of
from polyaforest.kernels.polya import (
    EVEN,
    SLIVER,
    box_share,
    cut_share,
    cut_strength,
    log_world_share,
    posterior_mean,
    restriction_strength,
    within_mean,
    world_reach,
    world_share,
)
from polyaforest.kernels.sampling import has_gap, is_drawn, is_member, is_sampled, keep_to_size, take_next
from polyaforest.kernels.simd import LANES, ascending, count_of, larger, load, pick, smaller, spread, store, within

BLOCK = 5  # trees whose masses are summed together, for any number of threads
_FETCH_PAYS = 16  # nodes per row up to which fetching the whole tree first is faster ...
_MANY_ROWS = 16  # ... for at least this many rows
_FLIGHT = 256.0  # step in which logarithms of totals rise: so rarely that branches are predictable
UNSCORED = -2  # marks a row that is only learned
_FAINT = 1e-150  # a product of means below this is continued as a logarithm


class StreamChunk(NamedTuple):
    """Rows of a stream, and the insertions and deletions that each causes."""

    rows: Array  # float64 (n, D)
    slots: Array  # int32 (n,): the slot of a row, NONE if it is not learned
    until: Array  # int32 (n,): how many of `leaving` are deleted once the row is learned
    leaving: Array  # int32 (m,): slots of points to delete, in this order
    gappy: Array = np.empty((0, 0))  # float64 (g, D): rows with missing values, scored by marginal walks ...
    gaps: Array = np.empty(0, np.int32)  # int32 (n,): ... instead of a row; else NONE, or UNSCORED. (0,): all NONE


class Scoring(NamedTuple):
    """Parameters of the score."""

    kind: int  # one of SCORE_...
    lifetimes: Array  # float64 (S,): ascending; the times of SCORE_CELLS and SCORE_LOG_CELLS, none for other scores
    gamma: float
    is_open: bool
    domain: Array  # float64 (2, D)


class Totals(NamedTuple):
    """Sums of masses over blocks of trees: `sums` times exp(`tops`), which cannot underflow.

    Logarithms of masses use only `sums`.
    """

    sums: Array  # float64 (blocks, S, n), zeros at first
    tops: Array  # float64 (blocks, S, n), -inf at first
    cells: Array  # float64 (T, g, S): log-masses of the cells that rows with gaps may be in, by tree


@jit_borrowing
def run_chunk(forest, points, first, last, chunk, limits, scoring, samples, totals, walk):
    """Score and learn the rows of `chunk`, one after another, in the trees from `first` up to `last`."""
    rows, values = chunk.rows, points.values
    for t in range(first, last):
        tree, sampled = tree_of(forest, points, t), is_sampled(samples, t)
        sums, tops = totals.sums[t // BLOCK], totals.tops[t // BLOCK]
        n_left, n_came, n_gone = 0, NONE, 0
        if rows.shape[0] >= _MANY_ROWS and tree.size[0] < rows.shape[0] * _FETCH_PAYS:
            fetch(tree, walk)
        for i in range(np.uint32(rows.shape[0])):
            slot, gap = chunk.slots[i], chunk.gaps[i] if chunk.gaps.shape[0] > 0 else NONE
            joins = slot != NONE and (not sampled or is_drawn(samples, t, np.uint32(slot)))
            length = np.uint32(0)
            if gap >= 0:
                score_gappy(tree, chunk.gappy, np.uint32(gap), scoring, walk, totals.cells[t, np.uint32(gap)])
            if tree.size[0] > 0 and (joins or (scoring.kind != SCORE_NOTHING and gap == NONE)):
                length = trace(tree, rows, i, walk)
            if gap == NONE and length > 0 and scoring.lifetimes.shape[0] > 0:
                score_cells(tree, length, scoring, walk, sums, tops, i)
            elif gap == NONE and scoring.kind != SCORE_NOTHING:
                score_leaf(tree, rows, length, scoring, walk, sums, tops, i)
            if joins:
                take_in(tree, rows, i, np.uint32(slot), length, limits, walk)
                if sampled:
                    keep_to_size(tree, values, samples, t, limits, walk)
            while n_left < chunk.until[i]:
                slot = np.uint32(chunk.leaving[n_left])
                n_left += 1
                if is_member(tree, slot):
                    delete_point(tree, values, slot, limits, walk)
                    if has_gap(samples, t):
                        n_came, n_gone = catch_up(chunk, samples, n_came, n_gone, i + 1, n_left, walk)
                        take_next(tree, values, walk.is_held, samples, t, limits, walk)


@jit_inline
def score_gappy(tree, X, i, scoring, walk, log_masses):
    """Write the log-masses of the cells that a row with gaps may be in to `log_masses`, (S,)."""
    if tree.size[0] > 0:
        set_cells(tree, X, i, scoring, walk, log_masses)
    else:
        log_masses[:] = math.log(empty_mass(scoring)) if scoring.is_open else -np.inf


@jit_inline
def take_in(tree, X, i, slot, length, limits, walk):
    """Insert row `i`, the point in `slot`, into the tree; the row was traced unless the tree is empty."""
    if length == 0:
        plant(tree, X, i, slot, limits.lifetime)
    else:
        insert_point(tree, X, i, slot, length, limits, walk)


@jit_inline
def catch_up(chunk, samples, n_came, n_gone, now_came, now_gone, walk):
    """Update `walk.is_held` to `now_came` rows of the chunk and `now_gone` of `leaving`.

    It reflects `n_came` and `n_gone`, or is unset if `n_came` is NONE. Only trees that lose a point need it, which are
    few in a short chunk.
    """
    if n_came == NONE:
        n_came = 0
        for slot in range(samples.is_held.shape[0]):
            walk.is_held[slot] = samples.is_held[slot]
    while n_came < now_came:
        if n_came > 0:
            n_gone = mark_removed(chunk, n_gone, chunk.until[n_came - 1], walk)
        if chunk.slots[n_came] != NONE:
            walk.is_held[np.uint32(chunk.slots[n_came])] = True
        n_came += 1
    return n_came, mark_removed(chunk, n_gone, now_gone, walk)


@jit_inline
def mark_removed(chunk, n_gone, now_gone, walk):
    """Mark the points of `leaving` up to `now_gone` as deleted."""
    while n_gone < now_gone:
        walk.is_held[np.uint32(chunk.leaving[n_gone])] = False
        n_gone += 1
    return n_gone


@jit_inline
def score_cells(tree, length, scoring, walk, sums, tops, i):
    """Add the masses of a traced row's cells at the lifetimes, or the mean of their logarithms, to the totals."""
    n_lifetimes, is_log = scoring.lifetimes.shape[0], scoring.kind == SCORE_LOG_CELLS
    set_means(length, scoring.gamma, walk)
    set_masses(tree, length, scoring, walk)
    product, total = 1.0, 0.0
    for s in range(n_lifetimes):
        lifetime = scoring.lifetimes[s]
        step = alive_at(lifetime, length, walk)
        rate, elapsed = walk.rates[step], min(lifetime, walk.births[step + np.uint32(1)]) - walk.births[step]
        hazard = walk.hazards[step] + (elapsed * rate if rate > 0.0 and elapsed > 0.0 else 0.0)
        if not is_log:
            add(sums, tops, s, i, walk.masses[step], walk.scales[step] - hazard)
            continue
        total += max(walk.scales[step] - hazard, LEAST_LOG)
        product *= walk.masses[step]  # one logarithm for several masses
        if product < _FAINT:
            total += math.log(product)
            product = 1.0
    if is_log:
        sums[0, i] += (total + math.log(product)) / n_lifetimes


@jit_inline
def alive_at(lifetime, length, walk):
    """Return the step of a path that is alive at a `lifetime`: the number of nodes after the first born by then."""
    n_born = 0
    for k in range(1, length, LANES):
        live = within(length - k)
        n_born += count_of(load(walk.births, k, live, np.inf) <= spread(lifetime))
    return np.uint32(n_born)


@jit_inline
def set_means(length, gamma, walk):
    """Set the share of mass that each box on a path passes to the next, from the volumes of boxes."""
    one, strength, least = spread(1.0), spread(gamma), spread(SLIVER)
    for k in range(0, length - 1, LANES):
        live = within(length - 1 - k)
        depth = ascending(float(k))
        for_cut, for_box = depth + depth + one, depth + depth + one + one
        for_cut, for_box = strength * for_cut * for_cut, strength * for_box * for_box
        share = larger(load(walk.parts, k, live, 1.0) / load(walk.sides, k, live, 1.0), least)
        whole, part = load(walk.volumes, k, live, 1.0), load(walk.volumes, k + 1, live, 1.0)
        n, n_child = load(walk.counts, k, live, 1.0), load(walk.counts, k + 1, live, 1.0)
        f = pick(n_child == one, one, smaller(part / (whole * share), one))  # the box of a single point is collapsed
        mean = (for_cut * share + n_child) * (for_box * f + n_child)
        store(walk.means, k, live, mean / ((for_cut + n) * (for_box + n_child)))


@jit_inline
def set_masses(tree, length, scoring, walk):
    """Set the masses of the boxes on a traced row's path."""
    gamma, j = scoring.gamma, walk.path[0]
    n = tree.counts[j]
    mass, scale = within_mean(gamma, scoring.is_open, n), 0.0
    if not scoring.domain[0, 0] > scoring.domain[1, 0]:
        mass *= posterior_mean(gamma, world_share(tree.lower, tree.upper, j, scoring.domain, tree.n_categories), n, n)
    walk.masses[0], walk.scales[0] = mass, scale
    for step in range(length - np.uint32(1)):
        below = step + np.uint32(1)
        if walk.counts[below] == 1.0 or are_distinguishable(walk.volumes[below], walk.volumes[step]):
            mass *= walk.means[step]
        else:
            mean, f = enter_child(tree, step, gamma, walk)
            n = tree.counts[walk.path[below]]
            mass *= mean * posterior_mean(restriction_strength(gamma, np.float64(step)), f, n, n)
        if mass < _FAINT:
            scale += math.log(mass)
            mass = 1.0
        walk.masses[below], walk.scales[below] = mass, scale


@jit_inline
def enter_child(tree, step, gamma, walk):
    """Return the mean of a cut on a path, and f of the box of the child it leads to."""
    lower, upper, j, child = tree.lower, tree.upper, walk.path[step], walk.path[step + np.uint32(1)]
    delta, xi, is_left = np.uint32(tree.feature[j]), tree.cut[j], tree.left[j] == child
    is_number = delta < np.uint32(first_category(lower.shape[1], tree.n_categories))
    share = cut_share(lower[j, delta], upper[j, delta], xi, is_left) if is_number else EVEN
    whole, part = walk.volumes[step], walk.volumes[step + np.uint32(1)]
    f = box_share(lower, upper, j, delta, xi, is_left, child, share, whole, part, tree.n_categories)
    strength = cut_strength(gamma, np.float64(step), True)
    return posterior_mean(strength, share, tree.counts[child], tree.counts[j]), f


@jit_borrowing_helper
def score_leaf(tree, X, length, scoring, walk, sums, tops, i):
    """Add the mass of a traced row's leaf, or its logarithm, to the totals."""
    if length == 0:
        mass, log_weight = empty_mass(scoring), 0.0
    else:
        mass, log_weight = leaf_mass(tree, X, length, scoring, walk, i)
    if scoring.kind in (SCORE_LOG_MASS, SCORE_LOG_CELLS):
        sums[0, i] += log_weight + (math.log(mass) if mass > 0.0 else -np.inf)
        return
    for s in range(sums.shape[0]):
        add(sums, tops, s, i, mass, log_weight)


@jit_inline
def empty_mass(scoring):
    """Return the mass that an empty tree gives to any row: the known world and its outside are equally likely."""
    return posterior_mean(scoring.gamma, 0.5, 0, 0) if scoring.is_open else 0.0


@jit_inline
def leaf_mass(tree, X, length, scoring, walk, i):
    """Return the mass of a traced row's leaf: a number, and the logarithm of a factor."""
    lower, upper, gamma, j = tree.lower, tree.upper, scoring.gamma, walk.path[0]
    n = tree.counts[j]
    mass, scale = within_mean(gamma, scoring.is_open, n), 0.0
    reach = world_reach(lower, upper, j, scoring.domain, tree.weights, X, i, tree.n_categories)
    if reach >= 0.0:  # not 1 - mass, which rounds to 0 if the prior is weak
        outside = posterior_mean(gamma, 0.5, 0, n) if scoring.is_open else 0.0
        return outside / (1.0 + reach), 0.0
    f, strength, step = world_share(lower, upper, j, scoring.domain, tree.n_categories), gamma, np.uint32(0)
    while True:
        n = tree.counts[j]
        if not contains_live(lower, upper, j, X, i, tree.n_categories):
            return mass * posterior_mean(strength, share_left_out(tree, step, scoring, walk), 0, n), scale
        mass *= posterior_mean(strength, f, n, n)
        if step + np.uint32(1) == length:
            return mass, scale
        mean, f = enter_child(tree, step, gamma, walk)
        mass *= mean
        strength = restriction_strength(gamma, np.float64(step))
        if mass < _FAINT:
            scale += math.log(mass)
            mass = 1.0
        step += np.uint32(1)
        j = walk.path[step]


@jit_inline
def share_left_out(tree, step, scoring, walk):
    """Return 1 - f of a box on a path, exact where f is near 1."""
    j = walk.path[step]
    if step == 0:
        return -math.expm1(log_world_share(tree.lower, tree.upper, j, scoring.domain, tree.n_categories))
    above = walk.path[step - np.uint32(1)]
    is_left, delta = tree.left[above] == j, tree.feature[above]
    whole, part = (tree.lower[above], tree.upper[above]), (tree.lower[j], tree.upper[j])
    return -math.expm1(log_live_share(*whole, delta, tree.cut[above], is_left, *part, tree.n_categories))


@jit_inline
def add(sums, tops, s, i, mass, log_weight):
    """Add `mass` times exp(`log_weight`) to a total."""
    top = tops[s, i]
    if log_weight > top:
        raised = _FLIGHT * np.ceil(log_weight / _FLIGHT)
        sums[s, i] *= math.exp(top - raised)
        tops[s, i] = top = raised
    if log_weight == top:
        sums[s, i] += mass
    else:
        sums[s, i] += mass * math.exp(log_weight - top)
