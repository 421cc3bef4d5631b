"""Number of Hypothesis examples, in the run of each change and in the long run (`make test-all`)."""

import os
import random

import pytest
from hypothesis import settings

FULL, QUICK = "full", "quick"
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", QUICK)
SEED = "TEST_SEED"  # environment variable that repeats the examples and seeds of a run

# Examples differ in each run, so a few per run add up over many runs.
settings.register_profile(FULL, deadline=None, print_blob=True)
settings.register_profile(QUICK, settings.get_profile(FULL), max_examples=20)
settings.load_profile(PROFILE)


def examples(n):
    """Number of examples in this run for a test with `n` in the long run."""
    return n if PROFILE == FULL else max(1, n // 5)


def mostly_slow(values, *always):
    """Parameters of a test: the indices `always`, by default the first, in each run; the others in the long run."""
    return [value if i in (always or (0,)) else _slow(value) for i, value in enumerate(values)]


def _slow(value):
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.slow])
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)


def seed_of_run(given):
    """Seed of this run: `given`, else from the environment, else random; child processes share it."""
    seed = int(os.environ.get(SEED) or random.SystemRandom().getrandbits(32)) if given is None else int(given)
    os.environ[SEED] = str(seed)
    return seed
