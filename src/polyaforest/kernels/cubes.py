"""Categories as corners of a cube of yes/no questions.

The code of a category has a bit for each question. A cube is a pair of codes (low, high): the questions that all its
corners answer with yes, and those that any corner does. Each question is an axis with two places. It is *live* where
the answers differ; then its length is 1 / `APART`, so that two categories are at distance 1 on average. These axes
behave like the axes of boxes of numbers.
"""

import math

import numpy as np

from polyaforest.kernels.boxes import APART
from polyaforest.kernels.jit import jit_borrowing_helper, jit_inline
from polyaforest.kernels.simd import count_bits


@jit_inline
def live_questions(low, high):
    """Return the questions that the corners of a cube answer differently, as bits."""
    return np.int64(low) ^ np.int64(high)


@jit_inline
def new_questions(low, high, code):
    """Return the questions, as bits, whose answer by `code` is new to the cube; 0 if it is missing."""
    if math.isnan(code):
        return np.int64(0)
    word = np.int64(code)
    return (np.int64(low) & ~word) | (word & ~np.int64(high))


@jit_inline
def length(low, high):
    """Return the total length of the live questions of a cube."""
    return count_bits(live_questions(low, high)) / APART


@jit_inline
def distance(low, high, code):
    """Return by how much a cube must grow to hold `code`."""
    return count_bits(new_questions(low, high, code)) / APART


@jit_inline
def meet(a, b):
    """Return the questions that both answer with yes."""
    return np.float64(np.int64(a) & np.int64(b))


@jit_inline
def join(a, b):
    """Return the questions that either answers with yes."""
    return np.float64(np.int64(a) | np.int64(b))


@jit_inline
def says_no(code, question):
    """Return whether a category goes left of a cut by `question`."""
    return (np.int64(code) >> np.int64(question)) & np.int64(1) == 0


@jit_inline
def low_side(high, question):
    """Return the upper end of the part of a cube that answers `question` with no."""
    return np.float64(np.int64(high) & ~(np.int64(1) << np.int64(question)))


@jit_inline
def high_side(low, question):
    """Return the lower end of the part of a cube that answers `question` with yes."""
    return np.float64(np.int64(low) | (np.int64(1) << np.int64(question)))


@jit_inline
def choose_question(questions, place):
    """Return the number of the question at a `place` along the `questions`, from the lowest bit up."""
    before = min(np.int64(place * APART), count_bits(questions) - 1)  # rounding may overshoot the last
    for _ in range(before):
        questions &= questions - np.int64(1)
    lowest = questions & -questions
    return np.float64(count_bits(lowest - np.int64(1)))


# ---- all categories of a box, from dimension `first` on; not inlined, so that loops over numbers keep registers ------


@jit_borrowing_helper
def add_lengths(total, lower, upper, weights, first):
    """Add the weighted lengths of the cubes of a box to a `total`."""
    for k in range(first, lower.shape[0]):
        total += weights[k] * length(lower[k], upper[k])
    return total


@jit_borrowing_helper
def add_distances(total, lower, upper, j, weights, X, i, first):
    """Add the weighted distances of row `i` of `X` from the cubes of box `j` to a `total`."""
    for k in range(first, lower.shape[1]):
        total += weights[k] * distance(lower[j, k], upper[j, k], X[i, k])
    return total


@jit_borrowing_helper
def are_held(lower, upper, j, X, i, first):
    """Return whether the cubes of box `j` hold the categories of row `i` of `X`."""
    questions = np.int64(0)
    for k in range(first, lower.shape[1]):
        questions |= new_questions(lower[j, k], upper[j, k], X[i, k])
    return questions == 0


@jit_borrowing_helper
def are_live(lower, upper, j, first):
    """Return whether any of the cubes of box `j` has a live question."""
    is_live = False
    for k in range(first, lower.shape[1]):
        is_live |= lower[j, k] < upper[j, k]
    return is_live


@jit_borrowing_helper
def grow_all(lower, upper, j, X, i, first):
    """Grow the cubes of box `j` until they hold row `i` of `X`."""
    for k in range(first, lower.shape[1]):
        lower[j, k], upper[j, k] = meet(lower[j, k], X[i, k]), join(upper[j, k], X[i, k])


@jit_borrowing_helper
def set_hulls(lower, upper, j, a, b, first):
    """Make the cubes of box `j` the hulls of those of boxes `a` and `b`."""
    for k in range(first, lower.shape[1]):
        lower[j, k], upper[j, k] = meet(lower[a, k], lower[b, k]), join(upper[a, k], upper[b, k])
