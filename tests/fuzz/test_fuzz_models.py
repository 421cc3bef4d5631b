"""Whatever a sealed model file says, it is refused when it is loaded, or works: no hang, no crash, no odd number."""

import random
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
from crafted import changed, good_models
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from use_models import verdict

from polyaforest.persistence.modelfile import write_model

pytestmark = pytest.mark.fuzz


@cache
def good():
    with tempfile.TemporaryDirectory() as folder:
        return good_models(Path(folder))


@settings(max_examples=examples(300))
@given(seed=st.integers(0, 2**64 - 1))
def test_a_file_with_changes_is_refused_or_works(seed):
    rng = random.Random(seed)
    name = rng.choice(sorted(good()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.mpf"
        write_model(path, *changed(*good()[name], rng))
        assert verdict(path)[0] in ("refused", "works")
