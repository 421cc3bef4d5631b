"""The benchmark of files: each is read as meant, its errors are in it, and a small run goes from end to end."""

import numpy as np
import pytest

from benchmarks import files
from benchmarks.registry import main
from benchmarks.shared.results import read


@pytest.mark.parametrize("name", files.FILES)
def test_file_is_read_as_meant_and_holds_its_errors(name):
    file = files.FILES[name](np.random.default_rng(5))
    table, rows, is_read = files.opened(file, name)
    assert is_read, (table.columns, table.rejected[:1])
    for row, column in file.errors.items():
        k = table.columns.used.index(column)
        values = rows.rows[:, k]
        if column in table.columns.categories:
            assert (values == values[row]).sum() <= 3
        else:
            assert not np.isnan(values[row])
            low, high = np.nanquantile(np.delete(values, list(file.errors)), [0.001, 0.999])
            assert not low <= values[row] <= high, (column, values[row])


def test_ranks_count_findings():
    scores = np.array([0.0, -9, -8, 0, 0, 0, -5, 0, -7])
    assert files.ranks_of(scores, [2, 6], 0) == [2, 4]
    assert files.ranks_of(scores, [2, 6], 1) == [1, 3]
    flagged = scores < -4
    assert files.others(flagged, [1, 6], 0) == 2
    assert files.others(flagged, [1], 1) == 2
    assert np.isnan(files.others(None, [1], 1))


@pytest.mark.slow
def test_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "QUICK_DATA", ("penguins",))
    (tmp_path / "files.md").write_text("<!-- begin files -->\n<!-- end files -->\n")
    main(["run", "files", "--quick"], tmp_path, tmp_path)
    rows = read(tmp_path / "files.csv")
    assert [row["method"] for row in rows] == list(files.METHODS)
    assert float(rows[0]["found"]) == float(rows[0]["named"]) == float(rows[0]["read"]) == 1
    assert "| penguins | 9 | 100% |" in (tmp_path / "files.md").read_text()
