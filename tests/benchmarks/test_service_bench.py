"""The benchmark of the service: its data, its tables, and the page that holds them."""

import json
import shutil

import pytest

from benchmarks import service
from benchmarks.registry import main
from benchmarks.shared.pages import PAGES
from benchmarks.shared.results import RESULTS, read


def test_the_page_shows_the_results(tmp_path):
    pages = shutil.copytree(PAGES, tmp_path / "pages")
    rows = read(RESULTS / "service.csv")
    assert {row["part"] for row in rows} == set(service.PARTS)
    service.render(rows, pages)
    assert (pages / "service.md").read_text("utf-8") == (PAGES / "service.md").read_text("utf-8")


def test_batches_have_the_requested_records():
    texts = list(service.bodies(25, 3, 10))
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    assert [len(text.splitlines()) for text in texts] == [10, 10, 5]
    assert [record["key"] for record in records[:4]] == ["key-0", "key-1", "key-2", "key-0"]
    assert len(records[0]) == 2 + service.FIELDS
    assert len({record["time"] for record in records}) == 25


@pytest.mark.slow
def test_a_quick_run_measures_every_part(tmp_path):
    pages = shutil.copytree(PAGES, tmp_path / "pages")
    main(["run", "service", "--quick"], tmp_path, pages)
    rows = read(tmp_path / "service.csv")
    assert {row["part"] for row in rows} == set(service.PARTS)
    assert all(float(row["records"]) > 0 for row in rows)
