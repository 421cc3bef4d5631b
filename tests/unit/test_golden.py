"""Model files of every version of the format, as the release that had it wrote them, can still be read."""

import json
from pathlib import Path

import pytest
from golden.make import MODELS, answers

import polyaforest
from polyaforest.persistence.modelfile import FORMAT_VERSION

FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.mpf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_old_file_is_read_and_answers_as_it_did(path):
    expected = json.loads(path.with_suffix(".json").read_text("utf-8"))
    for name, answer in answers(polyaforest.load(path)).items():
        assert answer == (expected[name] if name == "keys" else pytest.approx(expected[name], rel=1e-9)), name


def test_there_is_a_file_of_every_kind_for_every_version():
    assert {path.stem for path in FILES} == {
        f"{version}-{name}" for version in range(1, FORMAT_VERSION + 1) for name in MODELS
    }
