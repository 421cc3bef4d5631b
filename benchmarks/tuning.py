"""Choice of the default settings: AUC by score, sample sizes, lifetimes, prior and depth.

Settings are chosen on one half of the data sets and checked on the other; one setting serves all data sets. Writes
results/tuning.csv for tables and results/tuning-streams.csv for streams, a row per data set, setting and seed, and
fills docs/benchmarks/accuracy.md. A run resumes where it was interrupted. At most 4,000 rows of a data set are used,
with a proportional share of its anomalies.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from tqdm import tqdm

from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results
from polyaforest import BatchMPF, StreamingMPF, Tree, datasets
from polyaforest.model.fitted import FittedStream

FILES = ("tuning", "tuning-streams")
SEEDS = (0, 1, 2)
MOST_ROWS = 4_000
RARE = 10  # a sample with fewer anomalies takes all there are
RELATED = {"thyroid": "annthyroid", "satimage-2": "satellite"}  # share their rows, and so their half
REFERENCE = "IsolationForest"
ROLES = ("to choose by", "to check with")

SIZES = (8, 16, 32, 64, 128, 256)
MIXTURES = {"8 to 64": SIZES[:4], "8 to 256": SIZES, "32 to 256": SIZES[2:], "256": SIZES[5:]}
LIFETIMES = {
    "1/8 to 8": np.geomspace(0.125, 8, 7),
    "1/4 to 16": np.geomspace(0.25, 16, 7),
    "1/2 to 32": np.geomspace(0.5, 32, 7),
    "1/2 to 8": np.geomspace(0.5, 8, 5),
}
TREES_PER_SIZE = 25
STREAMS = {  # score, samples, lifetimes
    "typicality, samples, lifetimes 1/4 to 16": ("typicality", "auto", np.geomspace(0.25, 16, 7)),
    "typicality, samples, lifetimes 1/4 to 4": ("typicality", "auto", np.geomspace(0.25, 4, 5)),
    "typicality, samples, lifetimes 1/2 to 32": ("typicality", "auto", np.geomspace(0.5, 32, 7)),
    "multiscale, samples, lifetimes 1/2 to 5": ("multiscale", "auto", np.geomspace(0.5, 5, 5)),
    "typicality, all points, lifetimes 1/8 to 2": ("typicality", None, np.geomspace(0.125, 2, 5)),
    "typicality, all points, lifetimes 1/4 to 4": ("typicality", None, np.geomspace(0.25, 4, 5)),
    "typicality, all points, lifetimes 1/2 to 5": ("typicality", None, np.geomspace(0.5, 5, 5)),
    "typicality, all points, lifetimes 1/4 to 16": ("typicality", None, np.geomspace(0.25, 16, 7)),
    "multiscale, all points, lifetimes 1/2 to 5": ("multiscale", None, np.geomspace(0.5, 5, 5)),
    "log_mass, all points": ("log_mass", None, np.geomspace(0.5, 5, 5)),
}
WINDOW = 256
LEARNING = 100  # rows of a stream that are learned before scores count
PRIORS = (1e-9, 0.01, 0.1)
DEPTHS = (8, 12)


def halves() -> tuple[list[str], list[str]]:
    """Return data sets to choose by and data sets to check with: every other name of the tables, and of the series."""
    first: list[str] = []
    second: list[str] = []
    for names in (sorted(set(datasets.TABLES) - set(RELATED)), sorted(datasets.SERIES)):
        first += names[::2]
        second += names[1::2]
    for name, other in RELATED.items():
        (first if other in first else second).append(name)
    return first, second


def load(name: str) -> datasets.Dataset:
    """Return a data set, thinned at random if it is large."""
    data = datasets.load(name) if name in datasets.TABLES else datasets.shingled(datasets.load_series(name))
    if len(data.X) <= MOST_ROWS:
        return data
    rng = np.random.default_rng(0)
    kept = rng.choice(len(data.X), MOST_ROWS, replace=False)
    odd = np.flatnonzero(data.y)
    if data.y[kept].sum() < RARE:
        kept = np.concatenate([odd, rng.choice(np.flatnonzero(data.y == 0), MOST_ROWS - len(odd), replace=False)])
    return data._replace(X=data.X[kept], y=data.y[kept])


def scores(X: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every setting and its scores, higher for normal rows."""
    yield REFERENCE, IsolationForest(random_state=seed).fit(X).score_samples(X)
    yield from scores_of_mixtures(X, seed)
    for prior in PRIORS:
        yield (
            f"sMPF, prior {prior:g}",
            StreamingMPF(tree=Tree(prior_strength=prior), random_state=seed).fit(X).score_samples(X),
        )
    for n_trees in (100, 200):
        yield f"sMPF, {n_trees} trees", StreamingMPF(n_estimators=n_trees, random_state=seed).fit(X).score_samples(X)
    for score in ("log_mass", "mass", "multiscale"):
        yield f"bMPF, {score}", BatchMPF(score_type=score, random_state=seed).fit(X).score_samples(X)
    for depth in DEPTHS:
        yield f"bMPF, depth {depth}", BatchMPF(tree=Tree(max_depth=depth), random_state=seed).fit(X).score_samples(X)
    for prior in PRIORS:
        yield (
            f"bMPF, prior {prior:g}",
            BatchMPF(tree=Tree(prior_strength=prior), random_state=seed).fit(X).score_samples(X),
        )


def scores_of_mixtures(X: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield scores of trees of several sizes, combined by the mean of logarithms or the logarithm of the mean."""
    half = max(len(X) // 2, 1)
    forests = {
        size: StreamingMPF(n_estimators=TREES_PER_SIZE, max_samples=min(size, half), random_state=1000 * seed + size)
        for size in SIZES
    }
    for forest in forests.values():
        forest.fit(X)
    for span, lifetimes in LIFETIMES.items():
        logs, masses = {}, {}
        for size, forest in forests.items():
            forest._stream.lifetimes = lifetimes  # not a parameter: it serves all data
            logs[size], masses[size] = forest.score_samples(X), forest.mass(X, lifetimes)
        for name, sizes in MIXTURES.items():
            yield f"mean of logs, rows {name}, lifetimes {span}", np.mean([logs[size] for size in sizes], axis=0)
            mean = np.mean([masses[size] for size in sizes], axis=0)
            yield (
                f"log of means, rows {name}, lifetimes {span}",
                np.log(np.maximum(mean, np.finfo(float).tiny)).mean(axis=1),
            )


def scores_of_streams(X: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Score rows as a stream before they are learned, by every setting; the first is what others compare to."""
    window = min(WINDOW, len(X) // 2)
    for setting, (score, max_samples, lifetimes) in STREAMS.items():
        forest = StreamingMPF(window=window, score_type=score, max_samples=max_samples, random_state=seed)
        with patch.dict(FittedStream.grids, {"multiscale": lifetimes, score: lifetimes}):  # not a parameter
            scores = forest.score_then_learn(X)
        yield setting, scores


def as_stream(name: str) -> datasets.Dataset:
    """Return a raw series, or a table in a random order."""
    if name in datasets.SERIES:
        return datasets.shingled(datasets.load_series(name))
    data = load(name)
    order = np.random.default_rng(1).permutation(len(data.X))
    return data._replace(X=data.X[order], y=data.y[order])


def measure(results: Results, names: list[str], *, streams: bool = False) -> None:
    """Measure what the file lacks."""
    last = next(iter(STREAMS)) if streams else REFERENCE  # is written last: once it is there, all is
    for name in tqdm(names):
        missing = [seed for seed in SEEDS if (name, last, seed) not in results]
        if not missing:
            continue
        data = as_stream(name) if streams else load(name)
        start = min(LEARNING, len(data.y) // 4) if streams else 0
        for seed in missing:
            settings = scores_of_streams(data.X, seed) if streams else scores(data.X, seed)
            found = [(setting, roc_auc_score(data.y[start:], -score[start:])) for setting, score in settings]
            for setting, auc in reversed(found):
                results.add({"data": name, "setting": setting, "seed": seed, "auc": float(auc)})


def means_by_set(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, float]]:
    """Return the mean AUC of every setting over the seeds on every data set."""
    auc: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        auc.setdefault(row["setting"], {}).setdefault(row["data"], []).append(float(row["auc"]))
    return {setting: {name: float(np.mean(found)) for name, found in sets.items()} for setting, sets in auc.items()}


def summary(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return for every setting its mean lead over the reference on either half, its error, and how often it leads."""
    means = means_by_set(rows)
    reference = means.pop(REFERENCE)
    lines = []
    for setting, found in means.items():
        line = [setting]
        for half in halves():
            leads = np.array([found[name] - reference[name] for name in half if name in found])
            line.append(f"{leads.mean():+.4f} ± {leads.std(ddof=1) / np.sqrt(len(leads)):.4f}")
        lines.append([*line, f"{sum(found[name] > reference[name] for name in found)} of {len(found)}"])
    return sorted(lines, key=lambda line: -float(line[1].split()[0]))


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the page from the rows of the file on tables."""
    names = [f"- {role}: {', '.join(half)}" for role, half in zip(ROLES, halves(), strict=True)]
    fill("accuracy", "halves", "\n".join(names), directory)
    head = [f"{REFERENCE}, its AUC", *half_means(means_by_set(rows)[REFERENCE]), ""]
    fill("accuracy", "tuning", table(["setting", *ROLES, "ahead on"], [head, *summary(rows)]), directory)


def render_streams(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the page from the rows of the file on streams."""
    lines = [[setting, *half_means(found)] for setting, found in means_by_set(rows).items()]
    lines.sort(key=lambda line: line[1], reverse=True)
    fill("accuracy", "streams", table(["setting", *ROLES], lines), directory)


def half_means(found: Mapping[str, float]) -> list[str]:
    """Return the mean over the data sets of either half."""
    return [f"{np.mean([found[name] for name in half if name in found]):.4f}" for half in halves()]


def render_both(tables: Sequence[Mapping[str, str]], streams: Sequence[Mapping[str, str]], pages: Path) -> None:
    """Fill the page from the rows of both files."""
    render(tables, pages)
    render_streams(streams, pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the files lack."""
    for name in FILES:
        measure(Results(name, ("data", "setting", "seed"), directory), options.data, streams=name == FILES[1])


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render_both, *FILES),
    options={
        "--data": {"nargs": "+", "default": [name for half in halves() for name in half], "metavar": "NAME"},
    },
)
