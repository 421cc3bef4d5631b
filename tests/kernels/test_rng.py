"""Random numbers of the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import all_from_python
from reference.naive import Xoshiro

from polyaforest.kernels import rng as helpers

pytestmark = pytest.mark.plain

rng = all_from_python(helpers, "next_word", "uniform", "exponential")

# the first outputs of the authors' C code from the state 1, 2, 3, 4
PUBLISHED = [
    41943041,
    58720359,
    3588806011781223,
    3591011842654386,
    9228616714210784205,
    9973669472204895162,
    14011001112246962877,
    12406186145184390807,
    15849039046786891736,
    10450023813501588000,
]
STATES = [[1, 2, 3, 4], [2**64 - 1, 0, 0, 0], [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 7]]


def kernel_state(words):
    return np.array(words, np.uint64)


def test_words_match_published_values():
    state, reference = kernel_state([1, 2, 3, 4]), Xoshiro([1, 2, 3, 4])
    assert [int(rng.next_word(state)) for _ in PUBLISHED] == PUBLISHED
    assert [reference.next_word() for _ in PUBLISHED] == PUBLISHED


@pytest.mark.parametrize("words", STATES)
def test_words_and_state_match_reference(words):
    state, reference = kernel_state(words), Xoshiro(words)
    assert [int(rng.next_word(state)) for _ in range(200)] == [reference.next_word() for _ in range(200)]
    assert state.tolist() == reference.s


@pytest.mark.parametrize("words", STATES)
def test_uniforms_and_exponentials_match_reference_exactly(words):
    state, reference = kernel_state(words), Xoshiro(words)
    for _ in range(200):
        assert rng.uniform(state) == reference.uniform()
        assert rng.exponential(state) == reference.exponential()


def test_uniforms_cover_half_open_unit_interval():
    state = kernel_state(STATES[2])
    draws = np.array([rng.uniform(state) for _ in range(2000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.03


def states_whose_next_word_is(word):
    """Return a state whose next output is `word`: with s0 = 0 the output is s3 rotated by 23."""
    return kernel_state([0, 1, 2, ((word >> 23) | (word << 41)) & (2**64 - 1)])


def test_largest_word_gives_uniform_below_one_and_finite_exponential():
    largest = 2**64 - 1
    assert int(rng.next_word(states_whose_next_word_is(largest))) == largest
    assert rng.uniform(states_whose_next_word_is(largest)) == 1 - 2.0**-53
    assert rng.exponential(states_whose_next_word_is(largest)) == pytest.approx(53 * np.log(2))


def test_smallest_word_gives_zero():
    assert rng.uniform(states_whose_next_word_is(0)) == 0
    assert rng.exponential(states_whose_next_word_is(0)) == 0


def test_states_of_trees_differ_and_depend_only_on_the_seed():
    states = helpers.seed_states(np.random.SeedSequence(5), 3)
    assert states.shape == (3, 4)
    assert states.dtype == np.uint64
    assert len({tuple(state) for state in states.tolist()}) == 3
    np.testing.assert_array_equal(states, helpers.seed_states(np.random.SeedSequence(5), 3))
    np.testing.assert_array_equal(states[:2], helpers.seed_states(np.random.SeedSequence(5), 2))
