"""Random numbers for kernels: one xoshiro256++ generator per tree.

The state is stored with the tree, so results do not depend on the number of threads, on how work is split into calls,
or on saving and loading. Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.kernels.jit import jit_borrowing, jit_inline

_ROTATE_OUTPUT = np.uint64(23)
_ROTATE_STATE = np.uint64(45)
_SHIFT_STATE = np.uint64(17)
_WORD = np.uint64(64)
_DISCARD = np.uint64(11)
_UNIT = 2.0**-53


def seed_states(seed: np.random.SeedSequence, n_trees: int) -> Array:
    """Return one independent generator state per tree, uint64 (n_trees, 4)."""
    return np.stack([child.generate_state(4, np.uint64) for child in seed.spawn(n_trees)])


def seeds_of_stream(seed: np.random.SeedSequence, n_trees: int) -> tuple[Array, Array, Array, np.random.SeedSequence]:
    """Return the states of a stream's trees, (n_trees, 4), and policy, (4,), the seeds of its samples, and the seed.

    The seed returned has spawned the others. Results are cached: the streams of many keys start with the same seed.
    """
    entropy = tuple(seed.entropy) if isinstance(seed.entropy, list) else seed.entropy
    key, size, n_before = seed.spawn_key, seed.pool_size, seed.n_children_spawned
    states, policy, samples = (part.copy() for part in _seeds_of_stream(entropy, key, size, n_before, n_trees))
    return states, policy, samples, _seed_after(entropy, key, size, n_before + n_trees + 2)


@lru_cache(16)
def _seeds_of_stream(entropy: Any, key: tuple[int, ...], size: int, n_before: int, n_trees: int) -> tuple[Array, ...]:
    seed = _seed_after(entropy, key, size, n_before)
    states = seed_states(seed, n_trees)
    policy, samples = seed.spawn(2)
    return states, policy.generate_state(4, np.uint64), samples.generate_state(n_trees, np.uint64)


def _seed_after(entropy: Any, key: tuple[int, ...], size: int, n_spawned: int) -> np.random.SeedSequence:
    """Return a seed that has spawned `n_spawned` others."""
    return np.random.SeedSequence(entropy, spawn_key=key, pool_size=size, n_children_spawned=n_spawned)


@jit_inline
def next_word(state):
    """Advance `state` (uint64, shape (4,)) and return 64 random bits."""
    total = state[0] + state[3]
    result = ((total << _ROTATE_OUTPUT) | (total >> (_WORD - _ROTATE_OUTPUT))) + state[0]
    shifted = state[1] << _SHIFT_STATE
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = (state[3] << _ROTATE_STATE) | (state[3] >> (_WORD - _ROTATE_STATE))
    return result


@jit_inline
def uniform(state):
    """Draw a float64 in [0, 1) with 53 random bits."""
    return (next_word(state) >> _DISCARD) * _UNIT


@jit_inline
def exponential(state):
    """Draw from Exp(1); never infinite, since 1 - uniform is at least 2**-53."""
    return -math.log(1.0 - uniform(state))


@jit_borrowing
def fill_exponentials(state, out):
    """Fill `out` with draws from Exp(1)."""
    for i in range(out.shape[0]):
        out[i] = exponential(state)
