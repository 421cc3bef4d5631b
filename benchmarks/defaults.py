"""Where the default settings come from: AUC on public data sets as one choice varies at a time.

Choices: the lifetimes of the multiscale score and the prior strength of `StreamingMPF`, the score and prior strength of
`BatchMPF`; scikit-learn's `IsolationForest` stands beside them. One setting has to serve all data sets.
Writes results/defaults.csv, a row per data set and setting. At most 60,000 rows of a set are used.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

from _common import data_directory, write
from polyaforest import BatchMPF, StreamingMPF

SEEDS = (0, 1)
TIMES = np.geomspace(0.1, 32, 11)
WINDOWS = {"0.1 to 1": (0, 5), "0.3 to 3": (2, 7), "0.6 to 6": (3, 8), "1 to 10": (4, 9), "0.1 to 10": (0, 9)}
PRIORS = (1e-9, 0.001, 0.01, 0.1)
MOST_ROWS = 60_000


def data_sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The labelled tables, and the NAB series as windows of ten values labelled by their first."""
    directory = data_directory()
    if directory is None:
        sys.exit("no data: set POLYAFOREST_DATA to a directory of npz files with X and y")
    sets = {}
    for path in sorted(directory.glob("*.npz")):
        with np.load(path) as stored:
            if "X" in stored:
                sets[path.stem] = thin(np.asarray(stored["X"], float), stored["y"])
    for path in sorted((directory / "nab").glob("*.npz")):
        with np.load(path) as stored:
            windows = np.lib.stride_tricks.sliding_window_view(stored["value"].astype(float), 10)
            sets[f"nab {path.stem}"] = windows.copy(), stored["label"][: len(windows)]
    return sets


def thin(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `MOST_ROWS` rows, drawn at random."""
    if len(X) <= MOST_ROWS:
        return X, y
    kept = np.random.default_rng(0).choice(len(X), MOST_ROWS, replace=False)
    return X[kept], y[kept]


def settings(X: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Scores of every setting, higher for normal rows."""
    scores = {"IsolationForest": IsolationForest(random_state=seed).fit(X).score_samples(X)}
    forest = StreamingMPF(random_state=seed, n_jobs=2).fit(X)
    log_mass = np.log(np.maximum(forest.mass(X, lifetime=TIMES), 1e-300))
    for name, (first, last) in WINDOWS.items():
        scores[f"sMPF, lifetimes {name}"] = log_mass[:, first:last].mean(axis=1)
    for prior in PRIORS:
        small = StreamingMPF(prior_strength=prior, random_state=seed, n_jobs=2).fit(X)
        scores[f"sMPF, prior {prior:g}"] = small.score_samples(X)
        for score in ("mass", "log_mass", "multiscale"):
            batch = BatchMPF(prior_strength=prior, score=score, random_state=seed, n_jobs=2).fit(X)
            scores[f"bMPF, {score}, prior {prior:g}"] = batch.score_samples(X)
    return scores


def main() -> None:
    """Compare, print means over tables and over NAB series, write."""
    rows: list[dict[str, Any]] = []
    for name, (X, y) in data_sets().items():
        auc: dict[str, list[float]] = {}
        for seed in SEEDS:
            for setting, score in settings(X, seed).items():
                auc.setdefault(setting, []).append(roc_auc_score(y, -score))
        rows += [{"data": name, "setting": setting, "auc": round(np.mean(found), 4)} for setting, found in auc.items()]
        print(name, file=sys.stderr)
    for setting in dict.fromkeys(row["setting"] for row in rows):
        chosen = [row for row in rows if row["setting"] == setting]
        means = [
            np.mean([row["auc"] for row in chosen if row["data"].startswith("nab ") == nab]) for nab in (False, True)
        ]
        print(f"{setting:32s}  tables {means[0]:.4f}   NAB {means[1]:.4f}")
    write("defaults", rows)


if __name__ == "__main__":
    main()
