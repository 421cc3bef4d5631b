"""The tables under docs/benchmarks contain the figures of the files under benchmarks/results."""

import shutil

import pytest

from benchmarks.registry import NAMES, load
from benchmarks.shared.pages import PAGES
from benchmarks.shared.results import RESULTS


@pytest.mark.parametrize("name", NAMES)
def test_pages_show_the_results(name, tmp_path):
    render = load(name).render
    if render is None:
        pytest.skip("fills no table")
    if name == "ranks":
        pytest.importorskip("pingouin")
    pages = shutil.copytree(PAGES, tmp_path / "pages")
    render(RESULTS, pages)
    for page in PAGES.glob("*.md"):
        assert (pages / page.name).read_text("utf-8") == page.read_text("utf-8")
