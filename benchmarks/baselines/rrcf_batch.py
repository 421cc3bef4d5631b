"""Random cut forests on a whole table: `rrcf` as the paper ran it, and `krcf`, the Rust port of Amazon's forest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module

import numpy as np

DECIMALS = 9  # to which `rrcf` rounds values before it looks for duplicates


class TookTooLong(TimeoutError):  # noqa: N818, it says what happened
    """A method was not done by its deadline."""


def rrcf_scores(
    X: np.ndarray, n_trees: int = 500, tree_size: int = 256, seed: int = 0, deadline: float | None = None
) -> np.ndarray:
    """Return the codisplacement of each row, averaged over the trees that hold it; higher is more anomalous.

    The rows in a random order are cut into disjoint trees, as many as are full; this is done again in other orders
    until there are `n_trees` trees or more. Rows that no tree holds by then share one more tree, with others that fill
    it up. Raises `TookTooLong` where the scores are not there after `deadline` seconds.
    """
    end = time.monotonic() + (np.inf if deadline is None else deadline)
    rng = np.random.RandomState(seed)  # the only kind of generator that the library takes
    tree_size = min(tree_size, len(X))
    total, n_held = np.zeros(len(X)), np.zeros(len(X))
    for held in disjoint_trees(len(X), n_trees, tree_size, rng):
        if time.monotonic() >= end:
            raise TookTooLong(f"rrcf had {int(n_held.sum()) // tree_size} of {n_trees} trees after {deadline} seconds")
        total[held] += codisplacements(X[held], rng)
        n_held[held] += 1

    left_out = np.flatnonzero(n_held == 0)
    if len(left_out):
        others = rng.choice(np.flatnonzero(n_held), tree_size - len(left_out), replace=False)
        total[left_out] = codisplacements(X[np.append(left_out, others)], rng)[: len(left_out)]
    return total / np.maximum(n_held, 1)


def disjoint_trees(n_rows: int, n_trees: int, tree_size: int, rng: np.random.RandomState) -> Iterator[np.ndarray]:
    """Return the rows of each tree: full rounds of disjoint trees, until there are `n_trees` or more."""
    per_round = n_rows // tree_size
    for _ in range(-(-n_trees // per_round)):
        yield from rng.permutation(n_rows)[: per_round * tree_size].reshape(per_round, tree_size)


def codisplacements(rows: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Return the codisplacement of each row in one tree of all; 0 where all are equal, which the library cannot cut."""
    rounded = np.around(rows, DECIMALS)
    if (rounded == rounded[0]).all():
        return np.zeros(len(rows))
    tree = import_module("rrcf").RCTree(rows, precision=DECIMALS, random_state=rng)
    return np.array([tree.codisp(i) for i in range(len(rows))])


def krcf_scores(X: np.ndarray, n_trees: int = 100, tree_size: int = 256, seed: int = 0) -> np.ndarray:
    """Return the score that `krcf` gives each row once it has learned all of them; higher is more anomalous.

    All rows are learned in one pass and in a random order: each tree keeps a random sample of them, in which by default
    those that came early have slowly faded. Only then is every row scored, whether or not a tree holds it.
    """
    options = {
        "dimensions": X.shape[1],
        "shingle_size": 1,
        "internal_shingling": False,
        "num_trees": n_trees,
        "sample_size": tree_size,
        "output_after": 1,  # by default the score is 0 until a quarter of `tree_size` has been seen
        "random_seed": seed,
        "parallel_execution_enabled": False,
    }
    forest = import_module("krcf").RandomCutForest(options)
    for i in np.random.default_rng(seed).permutation(len(X)):
        forest.update(X[i])
    return np.array([forest.score(row) for row in X])
