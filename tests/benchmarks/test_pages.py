"""The tables under docs/benchmarks contain the figures of the files under benchmarks/results."""

import csv
import shutil

import pytest

from benchmarks import accuracy, missing, mixed, nab
from benchmarks.registry import NAMES, load
from benchmarks.shared.pages import PAGES
from benchmarks.shared.results import RESULTS, read


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


PARTIAL = {  # by benchmark and file, which rows a quick run has
    "accuracy": {
        "accuracy": lambda row: row["data"] in accuracy.QUICK_DATA and row["method"] in accuracy.QUICK_METHODS
    },
    "density": {"density": lambda row: row["n"] in ("100", "300")},
    "explanations": {"explanations": lambda row: row["seed"] == "0"},
    "forecasts": {"forecasts": lambda row: row["family"] == "NAB" or (row["family"], row["horizon"]) == ("ECG", "1")},
    "missing": {"missing": lambda row: row["data"] in missing.QUICK_DATA and row["seed"] == "0"},
    "mixed": {
        "mixed": lambda row: row["data"] in mixed.QUICK_DATA and row["seed"] == "0",
        "mixed-pairs": lambda row: row["data"] in mixed.QUICK_PAIRS and row["seed"] == "0",
        "mixed-clean": lambda row: row["data"] in mixed.QUICK_PAIRS and row["seed"] == "0",
    },
    "nab": {
        "nab": lambda row: row["seed"] == "0",
        "nab-tuning": lambda row: True,
        "nab-series": lambda row: row["series"] in nab.QUICK and row["seed"] == "0",
    },
    "privacy": {"privacy": lambda row: row["data"] in ("pima", "breastw") and row["seed"] == "0"},
    "toy": {"toy": lambda row: row["method"] != "rrcf" and row["seed"] == "0"},
}


@pytest.mark.parametrize("name", PARTIAL)
def test_pages_accept_the_results_of_a_quick_run(name, tmp_path):
    pages = shutil.copytree(PAGES, tmp_path / "pages")
    for file, is_kept in PARTIAL[name].items():
        rows = [row for row in read(RESULTS / f"{file}.csv") if is_kept(row)]
        with (tmp_path / f"{file}.csv").open("w", newline="") as copy:
            writer = csv.DictWriter(copy, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    load(name).render(tmp_path, pages)
    assert any((pages / page.name).read_text("utf-8") != page.read_text("utf-8") for page in PAGES.glob("*.md"))
