"""Leave-one-out masses of the rows that a Mondrian process has counted."""

import math

import numpy as np

from polyaforest.kernels.jit import jit
from polyaforest.kernels.polya import cut_strength, posterior_mean
from polyaforest.kernels.traversal import climb, descend, new_descent


@jit
def left_out_masses(forest, known, gamma, is_open, X, lifetimes, log_masses):
    """Write the log-masses of the cells of rows at each of the ascending lifetimes to `log_masses`, (T, S, n).

    The rows must lie within the domain and have been counted. Each row is left out of the counts of its own path;
    volumes do not change.
    """
    path, descent = np.empty(forest.left.shape[1], np.uint32), new_descent(X.shape[0], forest.left.shape[1])
    nodes = descent.nodes
    for t in range(forest.left.shape[0]):
        counts, parent, time, root = forest.counts[t], forest.parent[t], forest.time[t], np.uint32(forest.root[t])
        volume, n_all = known.inside_volume[t], counts[root] + forest.outside[t]
        within = math.log1p(-posterior_mean(gamma, 0.5, forest.outside[t], n_all - 1)) if is_open else 0.0
        descend(forest, t, X, np.inf, descent)
        for i in range(X.shape[0]):
            step = climb(parent, nodes[i], path) - 1
            mass, depth, s = within, 0, 0
            while s < lifetimes.shape[0]:
                j = path[step]
                if step == 0 or lifetimes[s] < time[j]:
                    log_masses[t, s, i] = mass
                    s += 1
                    continue
                step -= 1
                child = path[step]
                share = math.exp(volume[child] - volume[j])
                strength = cut_strength(gamma, np.float64(depth), False)
                mass += math.log(posterior_mean(strength, share, counts[child] - 1, counts[j] - 1))
                depth += 1
