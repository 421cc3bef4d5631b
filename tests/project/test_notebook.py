"""The notebooks of the examples are up to date, run, and find what they plant."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from effort import mostly_slow

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["payments", "sensor-drift", "server-metrics", "walkthrough"]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_notebook", ROOT / "docs" / "make_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_all(maker):
    """Run a notebook; return its names, and what its cells of code show."""

    def run(name):
        names = {}
        codes = [source for kind, source in maker.cells_of(maker.NOTEBOOKS[name]) if kind == "code"]
        return names, [maker.run(source, names, 1) for source in codes]

    return run


def test_every_notebook_is_made_and_tested(maker):
    assert sorted(maker.NOTEBOOKS) == NAMES == sorted(path.stem for path in maker.EXAMPLES.glob("*.ipynb"))


def test_docs_name_every_notebook():
    page = (ROOT / "docs" / "how-to" / "examples.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `([\w-]+)\.ipynb`", page, re.M)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_up_to_date(maker, name):
    saved = json.loads(maker.path_of(name).read_text("utf-8"))
    kinds = {"markdown": "text", "code": "code"}
    cells = [(kinds[cell["cell_type"]], "".join(cell["source"])) for cell in saved["cells"]]
    assert cells == maker.cells_of(maker.NOTEBOOKS[name]), f"run: python docs/make_notebook.py {name}"
    assert all(cell["outputs"] for cell in saved["cells"] if cell["cell_type"] == "code")


def check_walkthrough(names, shown):
    assert all("text/html" in outputs[-1]["data"] for outputs in shown)
    flagged = names["findings"].filter("is_anomaly")["row"].to_list()
    assert {1200, 1700} <= set(flagged)
    assert len(flagged) < 20
    assert names["seen"].is_anomaly[24 * 20 + 6]
    assert "Changed" in "".join(shown[-1][-1]["data"]["text/html"])


def check_payments(names, shown):
    assert {1000, 2000} <= set(names["found"].is_anomaly.nonzero()[0])
    assert names["found"].is_anomaly.sum() < 8
    assert names["is_anomaly"].to_list() == [False, True, True]


def check_sensor_drift(names, shown):
    first = names["changes"][0]
    start = names["times"][names["aging"]]
    assert start <= names["times"][first.start] < start + 5 * 86400
    assert names["found"].is_anomaly.nonzero()[0].tolist() == [1500]


def check_server_metrics(names, shown):
    assert {659, 2208, 2212, 2216, 2543} <= set(names["flagged"]["row"])
    assert names["flagged"].height < 40
    begins = [line.split(" ", 2)[:2] for line in shown[3][0]["text"]]
    assert ["2026-03-04", "14:35:00+00:00"] in begins
    assert ["2026-03-05", "20:00:00+00:00"] in begins


CHECKS = [check_payments, check_sensor_drift, check_server_metrics, check_walkthrough]


@pytest.mark.parametrize(("name", "check"), mostly_slow(list(zip(NAMES, CHECKS, strict=True)), 0, 3))
def test_notebook_runs_and_finds_what_it_plants(run_all, name, check):
    check(*run_all(name))
