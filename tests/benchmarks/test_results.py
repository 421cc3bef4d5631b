from benchmarks.shared.results import Results, read


def test_results_contain_what_was_measured(tmp_path):
    first = Results("speed", ("data", "seed"), tmp_path)
    first.add({"data": "glass", "seed": 0, "auc": 1 / 3})
    assert ("glass", 0) in first
    again = Results("speed", ("data", "seed"), tmp_path)
    assert ("glass", 0) in again
    assert ("glass", 1) not in again
    assert list(again) == [{"data": "glass", "seed": "0", "auc": "0.333333"}]


def test_forget_removes_rows_by_value(tmp_path):
    results = Results("speed", ("data", "seed"), tmp_path)
    for data, seed in (("glass", 0), ("glass", 1), ("wine", 0)):
        results.add({"data": data, "seed": seed, "auc": 0.5})
    results.forget(data="glass", seed=1)
    results.forget(data="letter")
    assert [(row["data"], row["seed"]) for row in read(tmp_path / "speed.csv")] == [("glass", "0"), ("wine", "0")]
    results.forget(data="glass")
    assert [row["data"] for row in Results("speed", ("data", "seed"), tmp_path)] == ["wine"]


def test_read_skips_remarks(tmp_path):
    (tmp_path / "speed.csv").write_text("# two cores\ndata,seconds\nglass,1\n")
    assert read(tmp_path / "speed.csv") == [{"data": "glass", "seconds": "1"}]
