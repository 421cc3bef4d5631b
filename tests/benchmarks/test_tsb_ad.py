"""Published results and ours in one table, and runs that resume."""

import numpy as np
import pytest

from benchmarks import tsb_ad
from benchmarks.shared.results import Results

ROW = {"file": "007_NAB_x.csv", "family": "NAB", "source": "x", "n": "60", "window": "4", "POLY": "0.25"}


@pytest.fixture
def case():
    """A series with one event at its highest value."""
    values, y = np.zeros(60), np.zeros(60, int)
    values[30], y[30] = 5.0, 1
    return tsb_ad.case_of(ROW, {"007/v": values, "007/y": y})


def test_a_row_of_the_published_table_names_its_series(case):
    assert (case.name, case.family, case.window, case.values.shape) == ("007", "NAB", 4, (60, 1))
    assert case.published == {"POLY": 0.25}


def test_a_run_resumes(case, tmp_path, monkeypatch):
    runs = []
    monkeypatch.setitem(tsb_ad.MODES, "polyaforest, live", lambda values: runs.append(1) or values[:, 0])
    for _ in range(2):
        tsb_ad.measure([case], Results("tsb-ad", ("detector", "series"), tmp_path), ["polyaforest, live"])
    assert len(runs) == 1
    found = {row["detector"]: float(row["vus_pr"]) for row in Results("tsb-ad", ("detector", "series"), tmp_path)}
    assert found["POLY"] == 0.25
    assert found["polyaforest, live"] > 0.5


def test_detectors_without_all_series_are_left_out():
    rows = [{"detector": "POLY", "family": "NAB", "series": one, "vus_pr": one} for one in ("0.5", "1")]
    rows += [{**rows[0], "detector": "polyaforest, live"}]
    assert tsb_ad.results_table(rows).splitlines()[0] == "|  | mean | NAB (2) |"
    assert tsb_ad.results_table(rows).splitlines()[2:] == ["| POLY | 0.750 | 0.750 |"]
