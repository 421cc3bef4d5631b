"""Results are written atomically, in every format."""

import errno
import os
import subprocess
import sys

import numpy as np
import orjson
import polars as pl
import pytest

from polyaforest.io.results import Results
from polyaforest.io.tables import BadInput

FIRST = {
    "row": np.array([1, 2]),
    "score": np.array([0.1 + 0.2, np.nan]),
    "p": [None, None],
    "attributions": [["cpu", "a"], []],
}
SECOND = {"row": np.array([3]), "score": np.array([-1.5]), "p": [0.5], "attributions": [None]}
NONE = {"row": np.array([], int), "score": np.array([]), "p": [], "attributions": []}


def write_all(path, format=None):
    with Results(str(path), format) as results:
        for part in (FIRST, NONE, SECOND):
            results.write(part)


def test_writes_csv(tmp_path):
    write_all(tmp_path / "found.csv")
    lines = ["row,score,p,attributions", '1,0.30000000000000004,,"cpu, a"', "2,,,", "3,-1.5,0.5,"]
    assert (tmp_path / "found.csv").read_text().splitlines() == lines
    write_all(tmp_path / "found.tsv")
    assert (tmp_path / "found.tsv").read_text().splitlines()[1] == "1\t0.30000000000000004\t\tcpu, a"


def test_writes_json_lines(tmp_path):
    write_all(tmp_path / "found.jsonl")
    rows = [orjson.loads(line) for line in (tmp_path / "found.jsonl").read_bytes().splitlines()]
    assert rows == [
        {"row": 1, "score": 0.1 + 0.2, "p": None, "attributions": ["cpu", "a"]},
        {"row": 2, "score": None, "p": None, "attributions": []},
        {"row": 3, "score": -1.5, "p": 0.5, "attributions": None},
    ]


def test_writes_parquet(tmp_path):
    write_all(tmp_path / "found.parquet")
    frame = pl.read_parquet(tmp_path / "found.parquet")
    assert frame.schema == {"row": pl.Int64, "score": pl.Float64, "p": pl.Float64, "attributions": pl.List(pl.String)}
    rows = [(1, 0.1 + 0.2, None, ["cpu", "a"]), (2, None, None, []), (3, -1.5, 0.5, None)]
    assert frame.rows() == rows
    assert os.listdir(tmp_path) == ["found.parquet"]


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_error_leaves_old_file_unchanged(tmp_path, form):
    old = tmp_path / f"old.{form}"
    old.write_text("precious")

    def interrupted(path):
        with Results(str(path)) as results:
            results.write(FIRST)
            raise KeyboardInterrupt

    for path in (old, tmp_path / f"new.{form}"):
        with pytest.raises(KeyboardInterrupt):
            interrupted(path)
    assert os.listdir(tmp_path) == [old.name]
    assert old.read_text() == "precious"
    write_all(old)
    assert old.read_bytes() != b"precious"


def test_rejects_unwritable_path_early(tmp_path):
    with pytest.raises(BadInput, match=r"nowhere does not exist. Create the directory first"):
        Results(str(tmp_path / "nowhere" / "found.csv"))
    with pytest.raises(BadInput, match="is a directory"):
        Results(str(tmp_path), "csv")
    with pytest.raises(BadInput, match=r"Cannot infer the format of .* Use the extension \.csv"):
        Results(str(tmp_path / "found.xls"))
    with pytest.raises(BadInput, match="Unknown format 'xml'"):
        Results("-", "xml")
    assert os.listdir(tmp_path) == []


def test_rejects_changed_columns(tmp_path):
    with Results(str(tmp_path / "a.csv")) as results:
        results.write({"a": [1]})
        with pytest.raises(ValueError, match="columns must stay the same"):
            results.write({"b": [1]})
    with pytest.raises(ValueError, match="within a `with` block"):
        results.write({"a": [1]})


def test_standard_output_supports_every_format(tmp_path):
    program = (
        "import sys; from polyaforest.io.results import Results\n"
        "print('first', flush=False)\n"
        "for form in ('csv', 'parquet'):\n"
        "    with Results('-', form) as results: results.write({'a': [1, 2]})\n"
        "with Results('/dev/stdout', 'jsonl') as results: results.write({'a': [3]})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=tmp_path)
    text, parquet = done.stdout.split(b"PAR1", 1)
    assert text == b"first\na\n1\n2\n"
    body, after = (b"PAR1" + parquet).rsplit(b"PAR1", 1)
    assert pl.read_parquet(body + b"PAR1")["a"].to_list() == [1, 2]
    assert after == b'{"a":3}\n'
    assert os.listdir(tmp_path) == []


def test_full_disk_leaves_nothing_behind(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), Results("/dev/full", "csv") as results:
        results.write({"a": np.arange(100_000)})
