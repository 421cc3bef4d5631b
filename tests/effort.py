"""How hard tests try: examples of Hypothesis in the run of every change, and in the long one (`make test-all`)."""

import os
import random

import pytest
from hypothesis import settings

FULL, QUICK = "full", "quick"
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", QUICK)
SEED = "TEST_SEED"  # repeats a run: its examples, and the seeds of statistical tests

# Examples are other ones in every run: few of them find in many runs what many find in one.
settings.register_profile(FULL, deadline=None, print_blob=True)
settings.register_profile(QUICK, settings.get_profile(FULL), max_examples=20)
settings.load_profile(PROFILE)


def examples(n):
    """The number of examples for a test that tries `n` in the long run."""
    return n if PROFILE == FULL else max(1, n // 5)


def mostly_slow(values, *always):
    """Parameters of a test: those numbered `always`, by default the first, in every run, the others in the long one."""
    return [value if i in (always or (0,)) else _slow(value) for i, value in enumerate(values)]


def _slow(value):
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.slow])
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)


def seed_of_run(given):
    """The seed of this run: `given`, or of the environment, or a fresh one, which processes started here share."""
    seed = int(os.environ.get(SEED) or random.SystemRandom().getrandbits(32)) if given is None else int(given)
    os.environ[SEED] = str(seed)
    return seed
