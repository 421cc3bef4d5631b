"""The accuracy benchmark from end to end, on generated data."""

import os
import shutil
import time

import numpy as np
import pytest

from benchmarks import accuracy, runtime
from benchmarks.shared import methods, paper
from benchmarks.shared.pages import PAGES
from benchmarks.shared.results import Results, read
from polyaforest.datasets import make_mulcross, make_toy

SEEDS = 2


@pytest.fixture(scope="module")
def sets():
    made = [make_mulcross(600, 60), make_toy("single blob", n=200)]
    return {data.name: (data.X, data.y) for data in made}


@pytest.fixture
def results(tmp_path):
    return Results("accuracy", accuracy.KEYS, tmp_path)


def counting(log):
    """A method that leaves a line in a file each time it is run; each run has a process of its own."""

    def method(X, seed):
        with log.open("a") as file:
            file.write("ran\n")
        return np.abs(X).sum(axis=1)

    return method


def failing(X, seed):
    raise ValueError("no entropy\nin chosen feature")


def sleeping(X, seed):
    time.sleep(60)


def busy(X, seed):
    while True:
        pass


def dying(X, seed):
    os._exit(7)


def test_methods_are_measured_on_every_set_with_every_seed(sets, results):
    ours = {name: methods.METHODS[name] for name in ("bMPF", "sMPF", "iForest")}
    accuracy.run(sets, ours, SEEDS, 120, results)
    rows = read(results.path)
    assert {(row["data"], row["method"], row["seed"]) for row in rows} == {
        (data, method, str(seed)) for data in sets for method in ours for seed in range(SEEDS)
    }
    assert all(row["reason"] == "" and float(row["seconds"]) > 0 for row in rows)
    assert all(float(row["auc"]) > 0.7 and 0 < float(row["ap"]) <= 1 for row in rows)


def test_the_same_seed_gives_the_same_scores():
    data = make_mulcross(300, 30)
    for name in ("bMPF", "sMPF", "bMPF paper", "sMPF paper", "iForest"):
        first, again, other = (methods.METHODS[name](data.X, seed) for seed in (3, 3, 4))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


def test_a_resumed_run_measures_only_what_is_missing(sets, results, tmp_path):
    log = tmp_path / "log"
    accuracy.run(sets, {"counting": counting(log)}, 1, 60, results)
    assert len(log.read_text().splitlines()) == len(sets)
    resumed = Results("accuracy", accuracy.KEYS, tmp_path)
    accuracy.run(sets, {"counting": counting(log)}, SEEDS, 60, resumed)
    assert len(log.read_text().splitlines()) == SEEDS * len(sets)
    assert len(read(results.path)) == SEEDS * len(sets)


def test_a_run_records_a_failure_and_continues(sets, results, tmp_path):
    accuracy.run(sets, {"failing": failing, "dying": dying, "counting": counting(tmp_path / "log")}, 1, 60, results)
    reasons = {row["method"]: row["reason"] for row in read(results.path)}
    assert reasons == {
        "failing": "ValueError: no entropy in chosen feature",
        "dying": "its process ended with code 7",
        "counting": "",
    }
    assert {row["auc"] for row in results if row["method"] == "failing"} == {""}


def test_a_slow_method_is_stopped_and_not_tried_with_another_seed(sets, results):
    name = next(iter(sets))
    accuracy.run({name: sets[name]}, {"busy": busy}, SEEDS, 1, results)
    assert [row["reason"] for row in read(results.path)] == ["took longer than 1 s", "another seed took too long"]


def test_a_method_that_only_waits_is_stopped(sets, results, monkeypatch):
    monkeypatch.setattr(accuracy, "PATIENCE", 1)
    name = next(iter(sets))
    accuracy.run({name: sets[name]}, {"sleeping": sleeping}, 1, 1, results)
    assert [row["reason"] for row in read(results.path)] == ["took longer than 1 s in all"]


def test_the_plan_is_ordered_by_seed_then_size():
    X, y = np.zeros((10, 2)), np.zeros(10)
    tasks = accuracy.plan({"large": (X, y), "small": (X[:5], y[:5])}, ["iForest", "PCA"], 2)
    assert [(task.data, task.method, task.seed) for task in tasks] == [
        ("small", "iForest", 0),
        ("small", "PCA", 0),
        ("large", "iForest", 0),
        ("large", "PCA", 0),
        ("small", "iForest", 1),
        ("large", "iForest", 1),
    ]


def row(data, method, seed, auc, reason=""):
    return {"data": data, "method": method, "seed": str(seed), "auc": auc, "ap": auc, "seconds": "1", "reason": reason}


def test_a_deterministic_method_counts_for_every_seed():
    rows = [row("wine", "iForest", 0, "0.7"), row("wine", "iForest", 1, "0.8"), row("wine", "PCA", 0, "0.9")]
    auc = accuracy.frame(rows)
    assert auc["PCA"].tolist() == [0.9, 0.9]
    assert auc["iForest"].tolist() == [0.7, 0.8]


def test_the_page_shows_means_deviations_winners_and_printed_figures(tmp_path):
    shutil.copy(PAGES / "paper-tables.md", tmp_path)
    rows = [
        *(row("wine", "iForest", seed, auc) for seed, auc in enumerate(("0.70", "0.80"))),
        *(row("wine", "bMPF", seed, auc) for seed, auc in enumerate(("0.90", "0.94"))),
        row("wine", "kNN", 0, "", "took longer than 9 s"),
        row("mulcross", "iForest", 0, "0.97"),
        row("mulcross", "bMPF", 0, "0.97"),
        row("yeast_erl", "iForest", 0, "0.996"),
        *(row(name, method, 0, "0.5") for name in ("http", "musk") for method in paper.CLASSICAL_METHODS),
    ]
    accuracy.render(rows, tmp_path)
    text = (tmp_path / "paper-tables.md").read_text("utf-8")
    assert "| wine | **0.920 ± 0.028** | 0.750 ± 0.071 | *0.746 ± 0.025* |" in text
    assert "| mulcross[^mulcross] | **0.970** | **0.970** | – |" in text  # a tie, one seed, nothing printed
    assert "| `yeast_erl` | – | **0.996** |" in text
    assert "| kNN | wine | took longer than 9 s |" in text
    assert "[^mulcross]: Generated" in text


def test_headings_of_the_classical_table_are_compared_in_every_order():
    swapped = {"SVM": "LOF", "LOF": "SVM", "kNN": "kNN", "PCA": "PCA"}
    rows = [
        row(data, swapped[method], 0, str(value))
        for data, values in paper.CLASSICAL.items()
        for method, value in zip(paper.CLASSICAL_METHODS, values, strict=True)
    ]
    assert "read as LOF, SVM, kNN, PCA it would be 0.000" in accuracy.classical(accuracy.frame(rows))


def test_features_are_scaled_for_peers_only_when_there_are_many():
    seen = []

    def spy(X, seed):
        seen.append(X)
        return X[:, 0]

    rng = np.random.default_rng(0)
    few, many = rng.normal(size=(20, 49)), rng.normal(size=(20, 50))
    for X in (few, many):
        methods.narrowed(spy)(X, 0)
    assert seen[0] is few
    assert seen[1].min() == 0
    assert seen[1].max() == pytest.approx(1)


def test_the_papers_tables_are_complete():
    assert len(paper.AUC) == 40
    assert all(len(pairs) == len(paper.METHODS) for pairs in paper.AUC.values())
    winners = dict.fromkeys(paper.METHODS, 0)
    for pairs in paper.AUC.values():
        for group in (slice(0, 3), slice(3, 5)):
            best = max(pair[0] for pair in pairs[group] if pair)
            for method, pair in zip(paper.METHODS[group], pairs[group], strict=True):
                winners[method] += pair is not None and pair[0] == best
    assert winners["sMPF"] == 23  # the paper's own count of its wins
    assert winners["rrcf"] == 17


def test_methods_take_turns_and_the_best_round_counts(monkeypatch):
    turns = []
    taken = {("quick", 0): 0.5, ("quick", 1): 0.3, ("quick", 2): 0.4, ("slow", 0): runtime.LONG + 1}

    def method_called(name):
        return lambda X, seed: turns.append((name, seed))

    def clock(task):
        task()
        return taken[turns[-1]]

    monkeypatch.setattr(runtime, "seconds", clock)
    best = runtime.best_of({name: method_called(name) for name in ("quick", "slow")}, np.zeros((3, 2)))
    assert turns == [("quick", 0), ("slow", 0), ("quick", 1), ("quick", 2)]
    assert best == {"quick": 0.3, "slow": runtime.LONG + 1}


def test_running_times_are_measured_and_shown_on_the_page(sets, tmp_path):
    shutil.copy(PAGES / "paper-tables.md", tmp_path)
    results = Results("runtime", runtime.KEYS, tmp_path)
    runtime.run(sets, {"iForest": methods.METHODS["iForest"]}, results)
    assert {row["data"] for row in read(results.path)} == set(sets)
    seconds = dict(zip(runtime.TIMED, ("0.5", "1", "2", "3", "4", "5"), strict=True))
    runtime.render([{"data": "glass", "method": name, "seconds": value} for name, value in seconds.items()], tmp_path)
    text = (tmp_path / "paper-tables.md").read_text("utf-8")
    assert "| glass | 0.50 (1) | 1.00 (2) | 2.00 (4) | *1.6* | 3.00 (6) | *9.5* | 4.00 (8) | 5.00 (10) |" in text
