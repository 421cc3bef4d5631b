"""The walk-through notebook runs, and finds what it plants."""

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_notebook", ROOT / "docs" / "make_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notebook_is_up_to_date(maker):
    saved = json.loads(maker.PATH.read_text("utf-8"))
    sources = ["".join(cell["source"]) for cell in saved["cells"]]
    assert sources == [source for _, source in maker.CELLS], "run: python docs/make_notebook.py"
    assert all(cell["outputs"] for cell in saved["cells"] if cell["cell_type"] == "code")


def test_notebook_runs_and_finds_what_it_plants(maker):
    names = {}
    shown = [maker.run(source, names, 1)[-1]["data"] for kind, source in maker.CELLS if kind == "code"]
    assert all("text/html" in data for data in shown)
    flagged = names["findings"].filter("is_anomaly")["row"].to_list()
    assert {1200, 1700} <= set(flagged)
    assert len(flagged) < 20
    assert names["seen"].is_anomaly[24 * 25 + 6]
    assert "Changed" in "".join(shown[-1]["text/html"])
