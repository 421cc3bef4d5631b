"""Accuracy of detectors on time series: six families, one half of each for tuning and one for the report.

Causal detectors score each step before they learn it; the others see the whole series, and are marked. Writes
results/series.csv, results/series-nab.csv and results/series-nab-halves.csv, and fills docs/benchmarks/series.md.
Scores are cached in .cache/series, so a run resumes where it was interrupted.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.registry import Benchmark, only
from benchmarks.shared.metrics import auc, average_precision, vus_pr
from benchmarks.shared.nab_scoring import PROFILES, Corpus, probation
from benchmarks.shared.pages import PAGES, ROOT, fill, table
from benchmarks.shared.results import RESULTS, Results, read
from benchmarks.shared.series_detectors import DETECTORS, NOVELTY, OURS, PEERS, SEED
from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.datasets import NAB, data_directory, load_series
from polyaforest.series import find_events

Array = NDArray[Any]

CACHE = ROOT / ".cache" / "series"
HALVES = ("choose", "report")
MEASURES = {"vus_pr": "VUS-PR", "auc_pr": "AUC-PR", "auc_roc": "AUC"}
LIMIT = 0.02  # of novelty, for all series: a fiftieth of the range
MERGED = 64  # flagged steps at most so far apart are one alarm
QUICK_STEPS = (600, 300)  # of a series in a quick run: before its first anomaly, and from there on
WARM_UP_STEPS = 400  # scored once before time is taken: detectors import and compile on first use


# ---- series ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A series with its labels."""

    family: str
    name: str
    half: str
    values: Array  # (n, channels)
    y: Array  # (n,), 1 where something is wrong
    start: int  # the first step that is scored


def load_all() -> list[Case]:
    """Return all series, by family and name."""
    found = [*map(nab_case, NAB), *map(stored_case, sorted(series_directory().glob("*.npz")))]
    found.sort(key=lambda case: case[:2])
    families = groupby(found, key=lambda case: case.family)
    return [case._replace(half=HALVES[place % 2]) for _, cases in families for place, case in enumerate(cases)]


def pieces(cases: Iterable[Case]) -> list[Case]:
    """Return a piece around the first anomaly of one series of each family, for a quick run."""
    labelled = [case for case in cases if case.y.any()]
    return [shortened(next(group)) for _, group in groupby(labelled, key=lambda case: case.family)]


def shortened(case: Case) -> Case:
    """Return the steps around the first anomaly."""
    before, after = QUICK_STEPS
    anomaly = int(np.argmax(case.y))
    kept = slice(max(anomaly - before, 0), anomaly + after)
    start = min(max(case.start - kept.start, 0), anomaly - kept.start)
    return case._replace(values=case.values[kept], y=case.y[kept], start=start)


def series_directory() -> Path:
    """Return where the series are that the package itself cannot load."""
    directory = data_directory()
    if directory is None or not (directory / "series").is_dir():
        raise FileNotFoundError("no series found: set POLYAFOREST_DATA to a directory with series/*.npz")
    return directory / "series"


def nab_case(name: str) -> Case:
    """Return a series of NAB; its probation is not scored."""
    series = load_series(name)
    start = probation(len(series.value))
    return Case("NAB", name, "", series.value[:, None].astype(float), (series.label != 0).astype(np.int8), start)


def stored_case(file: Path) -> Case:
    """Return a series of `train`, `test` and `y`; values before `test` are learned, but not scored."""
    family, _, name = file.stem.partition("_")
    with np.load(file) as arrays:
        train, test, y = (arrays[key] for key in ("train", "test", "y"))
    before = train[:0] if np.array_equal(train, test[: len(train)]) else train
    values = np.ascontiguousarray(np.concatenate([before, test]), dtype=float)
    labels = np.concatenate([np.zeros(len(before)), y != 0]).astype(np.int8)
    return Case(family, name, "", values, labels, len(before))


# ---- measures --------------------------------------------------------------------------------------------------------


def evaluate(scores: Array, y: Array) -> dict[str, float]:
    """Return how well scores, higher for anomalies, rank the labelled steps first; NaN counts as most normal."""
    ranked = filled(scores)
    return {"vus_pr": vus_pr(y, ranked), "auc_pr": average_precision(y, ranked), "auc_roc": auc(y, ranked)}


def filled(scores: Array) -> Array:
    """Return the scores with the lowest in the place of NaN."""
    scores = np.asarray(scores, dtype=float)
    is_missing = np.isnan(scores)
    return np.where(is_missing, 0.0 if is_missing.all() else np.nanmin(scores), scores)


def on_unit_scale(scores: Sequence[Array], is_causal: bool) -> list[Array]:
    """Map the scores of several series into [0, 1]: all by one map, or each by its own if the future may be seen."""
    whole = [filled(score) for score in scores]
    lows, highs = [score.min() for score in whole], [score.max() for score in whole]
    if is_causal:
        lows, highs = [min(lows)] * len(whole), [max(highs)] * len(whole)
    spans = [high - low or 1.0 for low, high in zip(lows, highs, strict=True)]
    return [(score - low) / span for score, low, span in zip(whole, lows, spans, strict=True)]


# ---- runs ------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """What a detector made of a series."""

    scores: Array  # one per step
    seconds: float


class Bench:
    """The series, where scores are kept, and where results go."""

    def __init__(self, cases: Sequence[Case], cache: Path = CACHE, results: Path = RESULTS) -> None:
        self.cases, self.cache = cases, cache
        self.results = Results("series", ("detector", "family", "series"), results)
        self.nab = Results("series-nab", ("detector", "profile"), results)
        self.halves = Results("series-nab-halves", ("detector", "half"), results)
        self._is_warm: set[str] = set()

    def measure(self, name: str) -> None:
        """Run a detector over all series that it has no results of, then score it by the rules of NAB."""
        for case in self.cases:
            if (name, case.family, case.name) in self.results:
                continue
            scores, seconds = self.run(name, case)
            y = case.y[case.start :]
            found = evaluate(scores[case.start :], y) if y.any() else dict.fromkeys(MEASURES, "")
            place = {"detector": name, "family": case.family, "series": case.name, "half": case.half}
            self.results.add({**place, **found, "steps": len(scores), "seconds": seconds})
            print(f"{name}, {case.family} {case.name}: {seconds:.1f} s", flush=True)
        self._score_by_nab(name)

    def run(self, name: str, case: Case) -> Run:
        """Return the scores of a series, from the cache if they are there."""
        file = self.file(name, case)
        if file.exists():
            with np.load(file) as stored:
                return Run(stored["scores"], float(stored["seconds"]))
        made = self._timed(name, case.values)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".part.npz")
        np.savez(partial, scores=made.scores, seconds=made.seconds)
        partial.replace(file)  # whole or not at all
        return made

    def file(self, name: str, case: Case) -> Path:
        """Return where the scores of a series are kept."""
        return self.cache / name.replace(" ", "_") / f"{case.family}-{case.name.replace('/', '-')}.npz"

    def forget(self, name: str) -> None:
        """Drop all there is of a detector, to run it again."""
        self.results.forget(detector=name)
        self.nab.forget(detector=name)
        for case in self.cases:
            self.file(name, case).unlink(missing_ok=True)

    def _timed(self, name: str, values: Array) -> Run:
        """Run a detector; what libraries say of constant and repeated stretches is not shown."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name not in self._is_warm:
                DETECTORS[name].run(np.random.default_rng(0).normal(size=(WARM_UP_STEPS, 2)))
                self._is_warm.add(name)
            start = time.perf_counter()
            scores = DETECTORS[name].run(values)
            return Run(np.asarray(scores, dtype=float), time.perf_counter() - start)

    def _score_by_nab(self, name: str) -> None:
        """Add what the best threshold for all series of NAB earns under each profile."""
        cases = [case for case in self.cases if case.family == "NAB"]
        if not cases or all((name, profile) in self.nab for profile in PROFILES):
            return
        scores = on_unit_scale([self.run(name, case).scores for case in cases], DETECTORS[name].is_causal)
        corpus = Corpus([case.y for case in cases])
        for profile, weights in PROFILES.items():
            best = corpus.best(scores, weights)
            if (name, profile) not in self.nab:
                self.nab.add({"detector": name, "profile": profile, "score": best.score, "threshold": best.threshold})


OWN_ALARMS = "polyaforest, its own alarms"
OWN_LIMIT = f"polyaforest, novelty of {LIMIT} or more"


def score_alarms(bench: Bench) -> None:
    """Add what the alarms of `SeriesMPF()` earn by NAB's rules: the first flagged step of each event, no threshold."""
    cases = [case for case in bench.cases if case.family == "NAB"]
    _add_flags(bench, OWN_ALARMS, [alarms(case.values) for case in cases])


def score_novelty(bench: Bench) -> None:
    """Add what novelty earns by NAB's rules at a limit set beforehand, and in each half at its best threshold."""
    cases = [case for case in bench.cases if case.family == "NAB"]
    scores = [filled(bench.run(NOVELTY, case).scores) for case in cases]
    _add_flags(bench, OWN_LIMIT, [score >= LIMIT for score in scores])
    bench.halves.forget(detector=NOVELTY)
    weights, thresholds = PROFILES["standard"], dict[str, float]()
    for half in (*HALVES, "all"):
        own = [i for i, case in enumerate(cases) if half in (case.half, "all")]
        corpus = Corpus([cases[i].y for i in own])
        if not corpus.n_windows:
            continue
        found = corpus.best([scores[i] for i in own], weights)
        thresholds[half] = found.threshold
        carried = corpus.at([scores[i] for i in own], thresholds.get(HALVES[0], found.threshold), weights)
        fixed = corpus.at([scores[i] for i in own], LIMIT, weights)
        place = {"detector": NOVELTY, "half": half, "score": found.score, "threshold": found.threshold}
        bench.halves.add({**place, "carried": carried, "fixed": fixed})


def _add_flags(bench: Bench, name: str, flags: Sequence[Array]) -> None:
    """Add what flags on the series of NAB earn under each profile."""
    corpus = Corpus([case.y for case in bench.cases if case.family == "NAB"])
    bench.nab.forget(detector=name)
    for profile, weights in PROFILES.items():
        bench.nab.add({"detector": name, "profile": profile, "score": corpus.of_flags(flags, weights), "threshold": ""})


def alarms(values: Array) -> Array:
    """Return at which steps `SeriesMPF()` raises an alarm."""
    found = SeriesMPF(StreamingMPF(random_state=SEED)).detect_then_learn(values)
    begins = np.zeros(len(values), bool)
    begins[[event.first for event in find_events(found.is_anomaly, filled(found.scores), merge=MERGED)]] = True
    return begins


# ---- the page --------------------------------------------------------------------------------------------------------

Rows = Sequence[dict[str, str]]


def family_means(rows: Rows, name: str, half: str, measure: str) -> dict[str, float]:
    """Return the mean of a measure over the series of a half, for each family that has any."""
    own = [row for row in rows if row["detector"] == name and row["half"] == half and row[measure]]
    families = sorted({row["family"] for row in own})
    return {family: mean(float(row[measure]) for row in own if row["family"] == family) for family in families}


def mean_of_families(rows: Rows, name: str, half: str, measure: str) -> float:
    """Return the mean over families of the mean within each, NaN if there is none."""
    means = family_means(rows, name, half, measure)
    return mean(means.values()) if means else float("nan")


def ranked(rows: Rows) -> list[str]:
    """Return the detectors that have results on all series, causal ones first, each kind by its headline."""
    counts = {name: sum(row["detector"] == name for row in rows) for name in DETECTORS}
    complete = [name for name, count in counts.items() if count and count == max(counts.values())]
    return sorted(
        complete,
        key=lambda name: (not DETECTORS[name].is_causal, -mean_of_families(rows, name, "report", "vus_pr")),
    )


def marked(name: str) -> str:
    """Return the name of a detector with a mark if it sees the future."""
    return name if DETECTORS[name].is_causal else f"{name} *"


def summary_table(rows: Rows) -> str:
    """Return all measures of all detectors, for both halves, and their speed."""
    columns = [(half, measure) for half in reversed(HALVES) for measure in MEASURES]
    header = ["", *(f"{MEASURES[measure]}, {half}" for half, measure in columns), "ms a step"]

    def line(name: str) -> list[str]:
        own = [row for row in rows if row["detector"] == name]
        pace = 1000 * sum(float(row["seconds"]) for row in own) / sum(int(row["steps"]) for row in own)
        return [marked(name), *(f"{mean_of_families(rows, name, *column):.3f}" for column in columns), f"{pace:.2f}"]

    return table(header, map(line, ranked(rows)))


def family_table(rows: Rows, half: str, measure: str = "vus_pr") -> str:
    """Return a measure by family, for a half."""
    families = sorted({row["family"] for row in rows if row["half"] == half})

    def line(name: str) -> list[str]:
        means = family_means(rows, name, half, measure)
        return [marked(name), *(f"{means[family]:.3f}" if family in means else "" for family in families)]

    return table(["", *families], map(line, ranked(rows)))


def nab_table(rows: Rows, totals: Rows) -> str:
    """Return NAB's scores under its three profiles."""
    scores = {(row["detector"], row["profile"]): f"{float(row['score']):.1f}" for row in totals}
    lines = [[marked(name), *(scores.get((name, profile), "") for profile in PROFILES)] for name in ranked(rows)]
    own = [[name, *(scores.get((name, profile), "") for profile in PROFILES)] for name in (OWN_ALARMS, OWN_LIMIT)]
    return table(["", *PROFILES], [*(line for line in own if any(line[1:])), *lines])


def halves_table(rows: Rows) -> str:
    """Return NAB's standard score of novelty by half: at the best threshold, that of the choose half, and the limit."""
    columns = {"score": "best threshold", "carried": "that of the choose half", "fixed": f"{LIMIT}"}
    lines = [[row["half"], *(f"{float(row[column]):.1f}" for column in columns)] for row in rows]
    return table(["", *columns.values()], lines)


def render(results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Write the tables of the page from the CSV files."""
    rows, totals = read(results / "series.csv"), read(results / "series-nab.csv")
    fill("series", "summary", summary_table(rows), pages)
    for half in HALVES:
        fill("series", half, family_table(rows, half), pages)
    fill("series", "nab", nab_table(rows, totals), pages)
    if (results / "series-nab-halves.csv").exists():
        fill("series", "nab halves", halves_table(read(results / "series-nab-halves.csv")), pages)


def bench_of(options: Namespace, directory: Path) -> Bench:
    """Return all series, or pieces of a few for a quick run, with their cached scores."""
    if options.quick:
        return Bench(pieces(load_all()), CACHE / "quick", directory)
    return Bench(load_all(), CACHE, directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Run detectors on all series that they have no results of."""
    bench = bench_of(options, directory)
    for name in options.detector:
        if options.again:
            bench.forget(name)
        bench.measure(name)
        if name == OURS:
            score_alarms(bench)
        if name == NOVELTY:
            score_novelty(bench)


BENCHMARK = Benchmark(
    measure_all,
    render,
    quick="a piece of one series of each family",
    options={
        "--detector": only(DETECTORS),
        "--again": {"action": "store_true", "help": "run these detectors again"},
    },
    peers=PEERS,
)
