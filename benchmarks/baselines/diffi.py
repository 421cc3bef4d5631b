"""Local DIFFI (Carletti, Terzi and Susto, 2023): how much each feature had to do with a row being isolated early.

A row that an isolation tree isolates after h cuts of the most that there can be, H = ⌈log2 of the rows per tree⌉, adds
1/h − 1/H to the account of a feature for each of its cuts on the way. The importance of a feature is the mean of what
was added over all its cuts in all trees.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from sklearn.ensemble import IsolationForest
from sklearn.tree import ExtraTreeRegressor


def local_diffi(forest: IsolationForest, X: np.ndarray) -> np.ndarray:
    """Return the importance of each feature for each row, of the shape of X; 0 for a feature never cut on the way."""
    rows = np.ascontiguousarray(X, dtype=np.float32)  # as the trees compare them
    longest = np.ceil(np.log2(forest.max_samples_))
    added, n_cuts = np.zeros(rows.shape), np.zeros(rows.shape)
    for tree, features in zip(forest.estimators_, forest.estimators_features_, strict=True):
        cuts = np.zeros(rows.shape)
        cuts[:, features] = cuts_per_feature(tree, rows[:, features])
        depth = cuts.sum(axis=1)
        is_cut = depth > 0  # a tree of equal rows is a leaf: nothing is isolated by nothing
        added[is_cut] += cuts[is_cut] * (1 / depth[is_cut] - 1 / longest)[:, None]
        n_cuts += cuts
    return added / np.maximum(n_cuts, 1)


def cuts_per_feature(tree: ExtraTreeRegressor, rows: np.ndarray) -> np.ndarray:
    """Return how often each feature is cut between the root and the leaf of each row."""
    cut_nodes = np.flatnonzero(tree.tree_.feature >= 0)
    shape = (tree.tree_.node_count, rows.shape[1])
    which = csr_array((np.ones(cut_nodes.size), (cut_nodes, tree.tree_.feature[cut_nodes])), shape)
    return (csr_array(tree.decision_path(rows), dtype=float) @ which).toarray()
