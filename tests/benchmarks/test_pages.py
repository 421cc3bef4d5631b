"""The pages under docs/benchmarks say what the files under benchmarks/results say."""

import shutil

import pytest
from effort import mostly_slow

import accuracy
import density
import explanations
import missing
import mixed
import nab
import privacy
import runtime
import series
import single_features
import thresholds
import toy
import tuning
from _pages import PAGES
from _results import RESULTS, read

RENDERERS = {
    "accuracy": (accuracy.render, "paper-tables"),
    "runtime": (runtime.render, "paper-tables"),
    "tuning": (tuning.render, "accuracy"),
    "tuning-streams": (tuning.render_streams, "accuracy"),
    "toy": (toy.render, "toy"),
    "density": (density.render, "density"),
    "missing": (missing.render, "missing"),
    "mixed": (mixed.render, "mixed"),
    "privacy": (privacy.render, "privacy"),
    "single-features": (single_features.render, "single-features"),
    "thresholds": (thresholds.render, "thresholds"),
}


@pytest.fixture
def pages(tmp_path):
    return shutil.copytree(PAGES, tmp_path / "pages")


@pytest.mark.parametrize("name", mostly_slow(RENDERERS, *range(len(RENDERERS) - 1)))  # the last takes seconds
def test_tables_are_those_of_the_files(name, pages):
    render, page = RENDERERS[name]
    render(read(RESULTS / f"{name}.csv"), pages)
    assert (pages / f"{page}.md").read_text("utf-8") == (PAGES / f"{page}.md").read_text("utf-8")


def test_tables_of_nab_are_those_of_the_files(pages):
    nab.render(RESULTS, pages)
    assert (pages / "nab.md").read_text("utf-8") == (PAGES / "nab.md").read_text("utf-8")


def test_tables_of_series_are_those_of_the_files(pages):
    series.render(RESULTS, pages)
    assert (pages / "series.md").read_text("utf-8") == (PAGES / "series.md").read_text("utf-8")


@pytest.mark.parametrize("part", explanations.FILES)
def test_tables_of_explanations_are_those_of_the_files(part, pages):
    name, _ = explanations.FILES[part]
    explanations.render(part, read(RESULTS / f"{name}.csv"), pages)
    assert (pages / "explanations.md").read_text("utf-8") == (PAGES / "explanations.md").read_text("utf-8")
