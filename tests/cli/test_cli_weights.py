"""`--weight COLUMN` counts each row by its weight, and does not use the column as a feature."""

import json

import numpy as np
import polars as pl
import pytest

import polyaforest

NAMES = ["x", "y"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write a table with weights, and the table of repeated rows."""
    place, rng = tmp_path_factory.mktemp("weights"), np.random.default_rng(0)
    rows = np.vstack([rng.normal(size=(300, 2)).round(3), [[9.0, -9.0]]])
    table = pl.DataFrame(rows, schema=NAMES).with_columns(
        pl.Series("n", [*rng.integers(0, 4, 300).tolist(), 1]), pl.Series("who", [f"p{i}" for i in range(301)])
    )
    table.write_csv(place / "weighted.csv")
    repeated(table).write_csv(place / "repeated.csv")
    return place


def repeated(table):
    """Repeat each row by its weight, and drop the weights."""
    return table.drop("n")[np.arange(len(table)).repeat(table["n"].to_numpy())]


def model(path):
    return polyaforest.load(path).to_bytes(notes={})


@pytest.mark.parametrize("options", [[], ["--stream", "--window", 100], ["--batch"]])
def test_fit_learns_rows_by_weight(cli, files, tmp_path, options):
    one, other = tmp_path / "one.mpf", tmp_path / "other.mpf"
    code, _, said = cli("fit", files / "weighted.csv", "--weight", "n", "-m", one, *options)
    assert code == 0
    assert "using x, y (2 of 4 columns)" in said
    assert "Weights from n." in said
    assert cli("fit", files / "repeated.csv", "-m", other, *options)[0] == 0
    assert model(one) == model(other)
    if "--batch" in options:
        like = tmp_path / "like.mpf"
        assert cli("fit", files / "weighted.csv", "--weight", "n", "-m", like, *options, "--like", one)[0] == 0
        assert (polyaforest.load(like).forest_.counts == polyaforest.load(one).forest_.counts).all()


def test_forget_deletes_all_copies_of_a_row(cli, files, tmp_path):
    path = tmp_path / "named.mpf"
    assert cli("fit", files / "weighted.csv", "--weight", "n", "--id", "who", "-m", path)[0] == 0
    weights = pl.read_csv(files / "weighted.csv")["n"]
    before = polyaforest.load(path)
    assert before.n_points_ == weights.sum()
    heavy = int(weights.arg_max())
    assert weights[heavy] == 3
    assert cli("forget", "-m", path, "--id", f"p{heavy}")[0] == 0
    assert polyaforest.load(path).n_points_ == weights.sum() - 3


@pytest.mark.parametrize("options", [[], ["--stream"], ["--batch"], ["--by", "side"]])
def test_detect_scores_each_row_once_against_weighted_rows(cli, files, tmp_path, options):
    frame = pl.read_csv(files / "weighted.csv").with_columns(side=pl.Series(["a", "b", "a"] * 100 + ["a"]))
    given, out = tmp_path / "given.csv", tmp_path / "out.jsonl"
    frame.write_csv(given)
    code, report, said = cli("detect", given, "--weight", "n", "--columns", "x,y", "--out", out, *options)
    assert code == 0, said
    assert options == ["--batch"] or "row 301" in report
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 301
    twice = tmp_path / "repeated.csv"
    weights = frame["n"]
    repeated(frame).write_csv(twice)
    again = tmp_path / "again.jsonl"
    assert cli("detect", twice, "--columns", "x,y", "--out", again, *options)[0] == 0
    scores = [json.loads(line)["score"] for line in again.read_text().splitlines()]
    first = (weights.cum_sum() - weights).to_list()
    for place, (line, weight) in enumerate(zip(lines, weights.to_list(), strict=True)):
        if weight:
            assert line["score"] == scores[first[place]]


def test_invalid_weights_are_reported_and_their_rows_skipped(cli, tmp_path):
    rng = np.random.default_rng(0)
    cells = ["1", "-2", "", "many", "1e99", "0.5", *["1"] * 60]
    lines = [f"{x:.3f},{cell}" for x, cell in zip(rng.normal(size=len(cells)), cells, strict=True)]
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(["x,n", *lines]) + "\n")
    code, _, said = cli("detect", path, "--weight", "n")
    assert code == 0
    assert "Skipped 4 invalid rows" in said
    assert "column 'n' is '-2', not a weight" in said
    assert cli("detect", path, "--weight", "n", "--strict")[0] == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weight", "nowhere"], "nowhere"),
        (["--weight", "who"], "'who' of"),
        (["--weight", "n", "--columns", "x,n"], "cannot be used for anything else"),
        (["--weight", "n", "--series"], "independent rows"),
        (["--weight", "n", "--shingle", "4"], "independent rows"),
    ],
)
def test_invalid_weight_column_is_rejected(cli, files, options, said):
    code, _, words = cli("detect", files / "weighted.csv", *options)
    assert code in (2, 3)
    assert said in words
