"""Whatever a model file or block with a right checksum says, it is refused, or works: no hang, crash or odd number."""

import random
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
from crafted import changed, good_blocks, good_models
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from use_models import verdict

from polyaforest.storage.codec import pack
from polyaforest.storage.modelfile import write_model

pytestmark = pytest.mark.fuzz


@cache
def good():
    with tempfile.TemporaryDirectory() as folder:
        return good_models(Path(folder))


@cache
def compact():
    return good_blocks()


@settings(max_examples=examples(300))
@given(seed=st.integers(0, 2**64 - 1))
def test_changed_file_is_rejected_or_works(seed):
    rng = random.Random(seed)
    name = rng.choice(sorted(good()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.mpf"
        write_model(path, *changed(*good()[name], rng))
        assert verdict(path)[0] in ("refused", "works")


@settings(max_examples=examples(300))
@given(seed=st.integers(0, 2**64 - 1))
def test_changed_block_is_rejected_or_works(seed):
    rng = random.Random(seed)
    name = rng.choice(sorted(compact()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.block"
        path.write_bytes(pack(*changed(*compact()[name], rng), is_compact=rng.random() < 0.5))
        assert verdict(path)[0] in ("refused", "works")
