"""Explanations: whether attributions find the features that cause an anomaly, and how long they take.

Three parts, each with its own file and tables in docs/benchmarks/explanations.md. *guilty*: rows with known anomalous
features, and how many of them rank first (results/explanations.csv). *masking*: anomalies of the paper's data sets with
the values of the top features replaced, and how normal that makes them (results/explanations-masking.csv). *time*:
microseconds per row (results/explanations-time.csv). A run resumes where it was interrupted; `--again` measures methods
again. Times are comparable only within a run, so all are measured together.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import norm, t
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from benchmarks.baselines.diffi import local_diffi
from benchmarks.registry import Benchmark, again, only
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results, picked, present, read
from polyaforest import BatchMPF, StreamingMPF
from polyaforest.datasets import TABLES, load

Array = np.ndarray
Rows = Sequence[Mapping[str, str]]

PAGE = "explanations"
FILES = {
    "guilty": ("explanations", ("family", "features", "guilty", "method", "seed")),
    "masking": ("explanations-masking", ("data", "method", "seed")),
    "time": ("explanations-time", ("features", "method")),
}
N_TREES, TREE_SIZE = 100, 256


# ---- who explains ----------------------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """A fitted detector: scores of rows, and attributions to features. Higher is more anomalous."""

    scores: Callable[[Array], Array]
    attribute: Callable[[Array], Array]


def oddness(detector: Any) -> Callable[[Array], Array]:
    """Return the scores of a detector, higher for anomalies."""
    return lambda rows: -detector.score_samples(rows)


def polya_forest(X: Array, seed: int, *, detector: type) -> Fitted:
    """Fit one of our forests: bits of surprise by feature."""
    forest = detector(random_state=seed).fit(X)
    return Fitted(oddness(forest), lambda rows: forest.explain(rows).parts)


def tree_shap(X: Array, seed: int) -> Fitted:
    """Fit scikit-learn's isolation forest with SHAP values, which explain path lengths: short for anomalies."""
    forest = IsolationForest(n_estimators=N_TREES, random_state=seed).fit(X)
    explainer = import_module("shap").TreeExplainer(forest)
    return Fitted(oddness(forest), lambda rows: -explainer.shap_values(rows))


def depth_importance(X: Array, seed: int) -> Fitted:
    """Fit scikit-learn's isolation forest with local DIFFI."""
    forest = IsolationForest(n_estimators=N_TREES, random_state=seed).fit(X)
    return Fitted(oddness(forest), partial(local_diffi, forest))


def random_cuts(X: Array, seed: int, *, library: str) -> Fitted:
    """Fit a random cut forest, with its attributions, on standardised rows in random order."""
    scaler = Scaler(X)
    forest = RANDOM_CUT_FORESTS[library](X.shape[1], seed)
    for row in np.random.default_rng(seed).permutation(scaler(X)):
        forest.update(row)
    return Fitted(
        lambda rows: np.array([forest.score(row) for row in scaler(rows)]),
        lambda rows: np.array([ATTRIBUTIONS[library](forest.attribution(row)) for row in scaler(rows)]),
    )


def krcf(n_features: int, seed: int) -> Any:
    """Return an empty forest of the `krcf` library."""
    size = {"num_trees": N_TREES, "sample_size": TREE_SIZE, "output_after": 1, "random_seed": seed}
    shape = {"dimensions": n_features, "shingle_size": 1, "internal_shingling": False}
    return import_module("krcf").RandomCutForest({**shape, **size, "parallel_execution_enabled": False})


def rcf3(n_features: int, seed: int) -> Any:
    """Return an empty forest of the `rcf3` library."""
    size = {"num_trees": N_TREES, "capacity": TREE_SIZE, "output_after": 1, "seed": seed}
    return import_module("rcf3").Forest(input_dim=n_features, internal_shingling=False, **size)


RANDOM_CUT_FORESTS: dict[str, Callable[[int, int], Any]] = {"krcf": krcf, "rcf3": rcf3}
# Both libraries split the attribution of a feature into a part for high values and one for low values.
ATTRIBUTIONS: dict[str, Callable[[Any], Array]] = {
    "krcf": lambda sides: np.add(sides["high"], sides["low"]),
    "rcf3": lambda features: np.array([sides["above"] + sides["below"] for sides in features]),
}


def deviations(X: Array, seed: int) -> Fitted:
    """Score values by their distance from the median of their column, in median absolute deviations."""
    centre = np.median(X, axis=0)
    away = np.abs(X - centre)
    spread = np.median(away, axis=0)
    spread = np.where(spread > 0, spread, away.mean(axis=0))  # more than half of a column may be equal
    spread = np.where(spread > 0, spread, 1.0)

    def attribute(rows: Array) -> Array:
        return np.abs(rows - centre) / spread

    return Fitted(lambda rows: attribute(rows).mean(axis=1), attribute)


def chance(X: Array, seed: int) -> Fitted:
    """Draw random attributions, as a baseline; the scores are those of `deviations`."""
    rng = np.random.default_rng(seed)
    return Fitted(deviations(X, seed).scores, lambda rows: rng.random(rows.shape))


METHODS: dict[str, Callable[[Array, int], Fitted]] = {
    "sMPF": partial(polya_forest, detector=StreamingMPF),
    "bMPF": partial(polya_forest, detector=BatchMPF),
    "SHAP": tree_shap,
    "DIFFI": depth_importance,
    "krcf": partial(random_cuts, library="krcf"),
    "rcf3": partial(random_cuts, library="rcf3"),
    "z-score": deviations,
    "random": chance,
}
OURS = ("sMPF", "bMPF")


class Scaler:
    """Columns brought to mean 0 and standard deviation 1, those of a table to be."""

    def __init__(self, X: Array) -> None:
        self.mean, deviation = X.mean(axis=0), X.std(axis=0)
        self.deviation = np.where(deviation > 0, deviation, 1.0)

    def __call__(self, rows: Array) -> Array:
        """Return the rows in these units."""
        return (rows - self.mean) / self.deviation


# ---- guilty features that are known ----------------------------------------------------------------------------------

N_NORMAL, N_SPOILED, N_EXPLAINED = 1000, 20, 30
N_FEATURES, N_GUILTY, N_SEEDS = (10, 50), (1, 2, 4), 4
BLOCK = 5  # features that hang together, where any do; at most two of them are guilty at once


def drawn_guilty(rng: np.random.Generator, n_rows: int, n_features: int, n_guilty: int) -> Array:
    """Choose guilty features of each row at random, at most two of a block."""
    within = rng.random((n_rows, n_features // BLOCK, BLOCK)).argsort(axis=2).argsort(axis=2)
    order = np.where(within < 2, rng.random(within.shape), 1.0).reshape(n_rows, n_features)
    return order.argsort(axis=1).argsort(axis=1) < n_guilty


def sides(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw −1 or 1 at random."""
    return rng.choice([-1.0, 1.0], size=shape)


def shifted(rng: np.random.Generator, guilty: Array) -> Array:
    """Draw independent Gaussian features, guilty ones 3.5 to 6 deviations off."""
    odd = sides(rng, guilty.shape) * rng.uniform(3.5, 6.0, guilty.shape)
    return np.where(guilty, odd, rng.normal(size=guilty.shape))


def disagreeing(rng: np.random.Generator, guilty: Array) -> Array:
    """Draw blocks of features with correlation 0.9; a guilty one is mirrored: normal alone, anomalous in its block."""
    n_rows, n_features = guilty.shape
    shape = (n_rows, n_features // BLOCK, 1)
    clear = sides(rng, shape) * rng.uniform(1.0, 2.0, shape)  # a mirrored zero would be no lie
    common = np.where(guilty.any(axis=1)[:, None, None], clear, rng.normal(size=shape))
    rows = np.sqrt(0.9) * common + np.sqrt(0.1) * rng.normal(size=(*shape[:2], BLOCK))
    return np.where(guilty, -1.0, 1.0) * rows.reshape(guilty.shape)


def clustered(rng: np.random.Generator, guilty: Array, *, is_between: bool) -> Array:
    """Draw four clusters; guilty values are those of another cluster, or midway between two."""
    n_rows, n_features = guilty.shape
    centres = rng.permuted(np.tile([-6.0, -2.0, 2.0, 6.0], (n_features, 1)), axis=1).T
    own = rng.integers(4, size=n_rows)
    other = centres[(own + rng.integers(1, 4, size=n_rows)) % 4]
    odd = rng.choice([-4.0, 0.0, 4.0], size=guilty.shape) if is_between else other
    noise = rng.normal(scale=np.where(guilty & is_between, 0.3, 0.7))
    return np.where(guilty, odd, centres[own]) + noise


def heavy_tailed(rng: np.random.Generator, guilty: Array) -> Array:
    """Draw Gaussian and Student features with 2 degrees of freedom; guilty values are one in 3,000 to 100,000."""
    is_heavy = np.arange(guilty.shape[1]) % 2 == 0
    rows = np.where(is_heavy, rng.standard_t(2, guilty.shape), rng.normal(size=guilty.shape))
    tail = 10 ** -rng.uniform(3.5, 5.0, guilty.shape) / 2
    odd = sides(rng, guilty.shape) * np.where(is_heavy, t.isf(tail, 2), norm.isf(tail))
    return np.where(guilty, odd, rows)


FAMILIES: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "shift": shifted,
    "correlation": disagreeing,
    "other cluster": partial(clustered, is_between=False),
    "between clusters": partial(clustered, is_between=True),
    "heavy tails": heavy_tailed,
}


class Case(NamedTuple):
    """A table with a few anomalies in it, others of the same kind to explain, and which of their values are guilty."""

    table: Array
    rows: Array
    guilty: Array


def make_case(family: str, n_features: int, n_guilty: int, seed: int) -> Case:
    """Draw a case."""
    rng = np.random.default_rng([list(FAMILIES).index(family), n_features, n_guilty, seed])
    guilty = drawn_guilty(rng, N_NORMAL + N_SPOILED + N_EXPLAINED, n_features, n_guilty)
    guilty[:N_NORMAL] = False
    rows = FAMILIES[family](rng, guilty)
    return Case(rows[:-N_EXPLAINED], rows[-N_EXPLAINED:], guilty[-N_EXPLAINED:])


def ranked(attributions: Array, seed: int = 0) -> Array:
    """Return the features of each row by attribution, the largest first; ties in random order, to favour no column."""
    ties = np.random.default_rng(seed).random(attributions.shape)
    return np.lexsort((ties, -attributions), axis=1)


def precision(guilty: Array, order: Array) -> float:
    """Return the share of guilty features among the first, as many as are guilty; the mean over rows."""
    n_guilty = guilty.sum(axis=1)
    is_first = np.arange(guilty.shape[1]) < n_guilty[:, None]
    found = (np.take_along_axis(guilty, order, axis=1) & is_first).sum(axis=1)
    return float(np.mean(found / n_guilty))


def run_guilty(results: Results, names: Iterable[str], n_seeds: int) -> None:
    """Measure the precision of every method on every family that is not in the file."""
    settings = [(f, d, k) for f in FAMILIES for d in N_FEATURES for k in N_GUILTY]
    tasks = [(*setting, name, seed) for seed in range(n_seeds) for setting in settings for name in names]
    for task in tqdm([task for task in tasks if task not in results], desc="guilty", disable=None):
        *setting, name, seed = task
        case = make_case(*setting, seed)
        order = ranked(METHODS[name](case.table, seed).attribute(case.rows))
        results.add({**dict(zip(results.keys, task, strict=True)), "precision": precision(case.guilty, order)})


# ---- values of top features replaced ---------------------------------------------------------------------------------

MOST_ROWS, MOST_EXPLAINED, MOST_MASKED, MASKING_SEEDS = 2000, 20, 8, 2
NEIGHBOURS = 5
JUDGES, REPAIRS = ("knn", "lof"), ("median", "nearest")
DETECTORS: dict[str, type] = {"iforest": IsolationForest, "smpf": StreamingMPF}
QUICK_DATA = ("wine", "glass", "ecoli", "vertebral")


class Judge:
    """Somebody who belongs to no method: how far rows are from normal ones, in standardised features."""

    def __init__(self, normal: Array) -> None:
        self.scaler = Scaler(normal)
        scaled = self.scaler(normal)
        self.neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(scaled)
        self.factor = LocalOutlierFactor(novelty=True).fit(scaled)
        self.usual = {
            "knn": float(np.median(self.neighbours.kneighbors()[0].mean(axis=1))),
            "lof": float(np.median(-self.factor.negative_outlier_factor_)),
        }

    def scores(self, rows: Array) -> dict[str, Array]:
        """Return the mean distance to the nearest normal rows, and the local outlier factor among them."""
        scaled = self.scaler(rows)
        return {
            "knn": self.neighbours.kneighbors(scaled)[0].mean(axis=1),
            "lof": -self.factor.score_samples(scaled),
        }


class Trial(NamedTuple):
    """Half of a set to fit on, anomalies of the other half to explain, and the normal rows to repair them with."""

    table: Array
    rows: Array
    normal: Array
    judge: Judge
    detectors: dict[str, Callable[[Array], Array]]  # detectors whose scores judge the attributions of all methods


def make_trial(X: Array, y: Array, seed: int) -> Trial:
    """Divide a data set in two and choose the true anomalies of the second half that the judge finds most anomalous."""
    rng = np.random.default_rng(seed)
    halves = [np.empty(0, int), np.empty(0, int)]
    for label in (0, 1):
        of_label = rng.permutation(np.flatnonzero(y == label))
        of_label = of_label[: max(2, round(2 * MOST_ROWS * len(of_label) / max(len(y), 2 * MOST_ROWS)))]
        halves = [np.append(half, part) for half, part in zip(halves, np.array_split(of_label, 2), strict=True)]
    fitted, held = halves
    normal = X[fitted[y[fitted] == 0]]
    judge = Judge(normal)
    anomalies = X[held[y[held] == 1]]
    oddest = np.argsort(-judge.scores(anomalies)["knn"], kind="stable")[:MOST_EXPLAINED]
    table = X[fitted]
    detectors = {name: oddness(detector(random_state=seed).fit(table)) for name, detector in DETECTORS.items()}
    return Trial(table, anomalies[oddest], normal, judge, detectors)


def repaired(trial: Trial, order: Array, n_masked: int, repair: str) -> Array:
    """Replace the first features of `order` in rows: by the medians of the normal rows, or by the values of the
    normal row that is nearest in the features that stay.
    """
    masked = np.zeros(order.shape, bool)
    np.put_along_axis(masked, order[:, :n_masked], True, axis=1)
    if repair == "median":
        return np.where(masked, np.median(trial.normal, axis=0), trial.rows)
    rows, normal = trial.judge.scaler(trial.rows), trial.judge.scaler(trial.normal)
    nearest = [cdist(row[None, ~mask], normal[:, ~mask]).argmin() for row, mask in zip(rows, masked, strict=True)]
    return np.where(masked, trial.normal[nearest], trial.rows)


def recovery(before: Array, after: Array, usual: float) -> float:
    """Return the share of excess anomaly that is removed: 1 for all of it, negative if rows became more anomalous.

    Rows that the judge does not find more anomalous than usual are left out.
    """
    is_odd = before > usual
    gone = (before - after)[is_odd] / (before - usual)[is_odd]
    return float(np.clip(gone, -1.0, 1.0).mean()) if is_odd.any() else float("nan")


def share_odder(scores: Array, among: Array) -> float:
    """Return the mean share of `among` that is at least as anomalous as a row with one of these scores."""
    ranks = np.searchsorted(np.sort(among), scores, side="left")
    return float(1.0 - ranks.mean() / len(among))


def masking(trial: Trial, fitted: Fitted) -> dict[str, Any]:
    """Return areas under the curves over the number of features replaced: by judge and repair, and by the own score."""
    order = ranked(fitted.attribute(trial.rows))
    steps = range(1, min(MOST_MASKED, order.shape[1] - 1) + 1)
    before, scorers = trial.judge.scores(trial.rows), {**trial.detectors, "own": fitted.scores}
    among = {name: scores(trial.table) for name, scores in scorers.items()}
    measured = {"features": order.shape[1], "rows": len(trial.rows), "steps": len(steps)}
    for name, scores in scorers.items():
        measured[f"{name} start"] = share_odder(scores(trial.rows), among[name])
    for repair in REPAIRS:
        after = [repaired(trial, order, k, repair) for k in steps]
        judged = [trial.judge.scores(rows) for rows in after]
        for judge in JUDGES:
            areas = [recovery(before[judge], step[judge], trial.judge.usual[judge]) for step in judged]
            measured[f"{judge} {repair}"] = mean(areas)
        for name, scores in scorers.items():
            measured[f"{name} {repair}"] = mean(share_odder(scores(rows), among[name]) for rows in after)
    return measured


def run_masking(results: Results, names: Iterable[str], sets: Iterable[str], n_seeds: int) -> None:
    """Measure every method on every set that is not in the file."""
    for data in sets:
        wanted = [(name, seed) for seed in range(n_seeds) for name in names if (data, name, seed) not in results]
        if not wanted:
            continue
        _, X, y = load(data)
        trials = {seed: make_trial(X, y, seed) for seed in {seed for _, seed in wanted}}
        for name, seed in tqdm(wanted, desc=data, disable=None):
            measured = masking(trials[seed], METHODS[name](trials[seed].table, seed))
            results.add({"data": data, "method": name, "seed": seed, **measured})


# ---- time ------------------------------------------------------------------------------------------------------------

N_BATCH, N_SINGLE, N_ROUNDS = 1000, 100, 5


def run_time(results: Results, names: Sequence[str], n_batch: int) -> None:
    """Time microseconds per row, in one call and row by row: medians of rounds in which all methods take turns.

    Processor time counts, because the machine may be busy; every method has one thread.
    """
    for n_features in N_FEATURES:
        if all((n_features, name) in results for name in names):
            continue
        results.forget(features=n_features)
        case = make_case("shift", n_features, 2, 0)
        rows = np.resize(case.table, (n_batch, n_features))
        fitted = {name: METHODS[name](case.table, 0) for name in names}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for name in names:
            fitted[name].attribute(rows[:2])  # compiles, or loads compiled code
        for name in [*names] * N_ROUNDS:
            attribute = fitted[name].attribute
            found[name].append(
                (processor_seconds(attribute, [rows]), processor_seconds(attribute, rows[:N_SINGLE, None]))
            )
        for name, pairs in found.items():
            batch, single = map(median, zip(*pairs, strict=True))
            measured = {"batch": 1e6 * batch / n_batch, "single": 1e6 * single / N_SINGLE}
            results.add({"features": n_features, "method": name, **measured})


def processor_seconds(attribute: Callable[[Array], Array], batches: Iterable[Array]) -> float:
    """Return the processor time to explain batches of rows, one call for each."""
    start = time.process_time()
    for rows in batches:
        attribute(rows)
    return time.process_time() - start


# ---- the page --------------------------------------------------------------------------------------------------------


def line(label: Sequence[object], values: Sequence[float], form: str = "{:.2f}", *, best: Any = max) -> list[object]:
    """Return a line of a table, its best figure in bold."""
    texts = [form.format(value) for value in values]
    top = form.format(best(values))
    return [*label, *(f"**{text}**" if text == top else text for text in texts)]


JUDGE_NAMES = {
    "knn": "nearest neighbours",
    "lof": "local outlier factor",
    "iforest": "isolation forest",
    "smpf": "sMPF",
}


def guilty_table(rows: Rows) -> str:
    """Return mean precision by family and number of features, by number of guilty features, and over all."""
    names = present(rows, "method", METHODS)

    def means(**wanted: Any) -> list[float]:
        return [mean(picked(rows, "precision", method=name, **wanted)) for name in names]

    lines = [
        line([family, d, "1, 2, 4"], means(family=family, features=d))
        for family in present(rows, "family", FAMILIES)
        for d in present(rows, "features", N_FEATURES)
    ]
    lines += [line(["all", "all", k], means(guilty=k)) for k in present(rows, "guilty", N_GUILTY)]
    return table(["family", "features", "guilty", *names], [*lines, line(["mean", "", ""], means())])


def masking_table(rows: Rows) -> str:
    """Return means over data sets, by judge and repair, and on how many our default is ahead."""
    names, sets = present(rows, "method", METHODS), present(rows, "data", TABLES)
    lines = []
    for judge, repair in product((*JUDGES, *DETECTORS), REPAIRS):
        found = {name: set_means(rows, f"{judge} {repair}", name, sets) for name in names}
        lines.append(line([JUDGE_NAMES[judge], repair], [mean(found[name]) for name in names]))
        if OURS[0] in names:
            lines.append(["", "*sMPF ahead*", *(ahead(found[OURS[0]], found[name]) for name in names)])
    return table(["judge", "values from", *names], lines)


def own_table(rows: Rows) -> str:
    """Return the share of all rows that a method finds as anomalous as the explained rows, before and after repair."""
    names, sets = present(rows, "method", METHODS), present(rows, "data", TABLES)
    words = {"start": "none yet", **{repair: repair for repair in REPAIRS}}
    lines = [
        [word, *(f"{mean(set_means(rows, f'own {moment}', name, sets)):.2f}" for name in names)]
        for moment, word in words.items()
    ]
    return table(["values from", *names], lines)


def set_means(rows: Rows, column: str, name: str, sets: Iterable[str]) -> list[float]:
    """Return the mean over seeds of a column, by set."""
    return [mean(picked(rows, column, method=name, data=data)) for data in sets]


def ahead(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return on how many data sets ours is larger, of those that differ in the third decimal."""
    differences = [round(a - b, 3) for a, b in zip(ours, theirs, strict=True)]
    n_different = sum(difference != 0 for difference in differences)
    return f"*{sum(difference > 0 for difference in differences)} of {n_different}*" if n_different else ""


def sets_table(rows: Rows) -> str:
    """Return the recovery that nearest neighbours see, with values of the nearest normal row, set by set."""
    names = present(rows, "method", METHODS)
    lines = []
    for data in present(rows, "data", TABLES):
        n_features = next(row["features"] for row in rows if row["data"] == data)
        values = [mean(picked(rows, "knn nearest", method=name, data=data)) for name in names]
        lines.append(line([data, n_features], values))
    return table(["set", "features", *names], lines)


def time_table(rows: Rows) -> str:
    """Return microseconds per row, and as multiples of our default."""
    names = present(rows, "method", METHODS)
    lines = []
    for n_features in present(rows, "features", N_FEATURES):
        for column, word in (("batch", "many rows a call"), ("single", "one row a call")):
            values = [picked(rows, column, features=n_features, method=name)[0] for name in names]
            lines.append([n_features, word, *(f"{short(value)} ({short(value / values[0])}×)" for value in values)])
    return table(["features", "", *names], lines)


def short(value: float) -> str:
    """Return a number in about two figures."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


BLOCKS: dict[str, dict[str, Callable[[Rows], str]]] = {
    "guilty": {"guilty": guilty_table},
    "masking": {"masking": masking_table, "own": own_table, "sets": sets_table},
    "time": {"time": time_table},
}


def render(part: str, rows: Rows, directory: Path = PAGES) -> None:
    """Fill the tables of one part from the rows of its file."""
    for block, text in BLOCKS[part].items():
        fill(PAGE, block, text(rows), directory)


def render_all(directory: Path, pages: Path) -> None:
    """Fill the tables of those parts that have a file."""
    for part, (name, _) in FILES.items():
        path = directory / f"{name}.csv"
        if path.exists():
            render(part, read(path), pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the files lack."""
    names, is_quick = list(METHODS), options.quick
    measures: dict[str, Callable[[Results], None]] = {
        "guilty": lambda results: run_guilty(results, names, 1 if is_quick else N_SEEDS),
        "masking": lambda results: run_masking(
            results, names, QUICK_DATA if is_quick else TABLES, 1 if is_quick else MASKING_SEEDS
        ),
        "time": lambda results: run_time(results, names, 100 if is_quick else N_BATCH),
    }
    for part in options.part:
        name, keys = FILES[part]
        results = Results(name, keys, directory)
        results.forget_methods(options.again, OURS)
        with threadpool_limits(1):
            measures[part](results)


BENCHMARK = Benchmark(
    measure_all,
    render_all,
    quick="one seed, small sets, few rows to time",
    options={
        "--part": only(FILES),
        "--again": again(METHODS),
    },
    peers=("krcf", "rcf3", "shap"),
)
