"""The Numenta Anomaly Benchmark as a stream: each point of 58 series is scored before it is learned.

Every detector is tuned on one half of the series over the same small grid, and then runs over all of them. Writes
results/nab-tuning.csv, results/nab.csv and results/nab-series.csv, fills docs/benchmarks/nab.md and draws nab.png.
Scores are cached in .cache/nab, so a run resumes where it was interrupted.
"""

from __future__ import annotations

import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr
from sklearn.metrics import roc_auc_score

from benchmarks.registry import Benchmark, only
from benchmarks.shared.nab_scoring import OUTSIDE, PROFILES, Corpus, probation, windows_of
from benchmarks.shared.pages import PAGES, ROOT, fill, table
from benchmarks.shared.results import RESULTS, Results, picked, read
from polyaforest import StreamingMPF
from polyaforest.datasets import NAB, Series, load_series

Array = NDArray[Any]

CACHE = ROOT / ".cache" / "nab"
SHINGLES = (1, 4)
WINDOWS = (256, 1024, 4096)
SECOND_LOOKS = 3  # settings at which a detector's other variant is tried
TUNING_TREES, TREES = 50, 100
SEEDS = (0, 1, 2)
ROWS_A_CALL = 1000
MEMORY = 8000  # scores of its past that a detector's new score is compared with
HALVES = ("tuning", "reported")
PARTS = ("tune", "report")
PICTURED = ("realKnownCause/rogue_agent_key_hold", "realAdExchange/exchange-4_cpc_results")

QUICK = [name for name in NAB if name.startswith("realAdExchange")]  # six short ones


# ---- detectors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A detector and its settings."""

    detector: str
    variant: str
    shingle: int = 1
    window: int = 256
    trees: int = TREES
    seed: int = 0

    @property
    def folder(self) -> str:
        """Where its scores are kept."""
        words = (self.detector, self.variant, f"k{self.shingle}", f"w{self.window}", f"t{self.trees}", f"s{self.seed}")
        return "-".join(words).replace(" ", "_")


def shingles(value: Array, size: int) -> Array:
    """Return rows of the last `size` values up to each point, padded with the first value."""
    padded = np.concatenate([np.full(size - 1, value[0]), value])
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(padded, size))


def ours(rows: Array, setting: Setting) -> Array:
    """Score by StreamingMPF over a window: minus the logarithm of a point's mass, or its mean over scales.

    The resolution of leaf masses depends on the number of points, so every tree holds all of them. An average point of
    n has a mass of 1 / n; the relative log mass is relative to that.
    """
    is_relative = setting.variant == "relative log mass"
    score = "multiscale" if setting.variant == "multiscale" else "log_mass"
    forest = StreamingMPF(
        n_estimators=setting.trees,
        window=setting.window,
        max_samples=None,
        score_type=score,
        random_state=setting.seed,
        n_jobs=1,
    )
    starts = range(0, len(rows), ROWS_A_CALL)
    surprise = -np.concatenate([forest.score_then_learn(rows[start : start + ROWS_A_CALL]) for start in starts])
    n_held = np.clip(np.arange(len(rows)), 1, setting.window)
    return surprise - np.log(n_held) if is_relative else surprise


def krcf(rows: Array, setting: Setting) -> Array:
    """Run the Rust port of Amazon's random cut forest; each tree samples the stream, with old points fading."""
    shape = {"dimensions": rows.shape[1], "shingle_size": 1, "internal_shingling": False}
    size = {"num_trees": setting.trees, "sample_size": setting.window, "random_seed": setting.seed}
    forest = import_module("krcf").RandomCutForest({**shape, **size, "parallel_execution_enabled": False})
    return score_then_learn(rows.tolist(), getattr(forest, setting.variant), forest.update)


def rcf3(rows: Array, setting: Setting) -> Array:
    """Run another random cut forest in Rust, which samples the same way."""
    shape = {"input_dim": rows.shape[1], "shingle_size": 1, "internal_shingling": False}
    size = {"num_trees": setting.trees, "capacity": setting.window, "seed": setting.seed}
    forest = import_module("rcf3").Forest(**shape, **size)
    return score_then_learn(rows.tolist(), getattr(forest, setting.variant), forest.update)


def half_space_trees(rows: Array, setting: Setting) -> Array:
    """Run Half-Space Trees of river after a running min-max scaling, as in river's documentation."""
    scaler = import_module("river.preprocessing").MinMaxScaler()
    height = int(setting.variant.removeprefix("height "))
    trees = import_module("river.anomaly").HalfSpaceTrees(
        n_trees=setting.trees, height=height, window_size=setting.window, seed=setting.seed
    )

    def learn(row: dict[int, float]) -> None:
        scaler.learn_one(row)
        trees.learn_one(scaler.transform_one(row))

    observations = [dict(enumerate(row)) for row in rows.tolist()]
    return score_then_learn(observations, lambda row: trees.score_one(scaler.transform_one(row)), learn)


def chance(rows: Array, setting: Setting) -> Array:
    """Draw random numbers, as a baseline."""
    return np.random.default_rng([setting.seed, zlib.crc32(rows.tobytes())]).random(len(rows))


def score_then_learn(rows: Iterable[Any], score: Callable[[Any], float], learn: Callable[[Any], object]) -> Array:
    """Return the prequential loop of a detector that takes one row at a time."""
    scores = []
    for row in rows:
        scores.append(score(row))
        learn(row)
    return np.array(scores)


class Detector(NamedTuple):
    """A detector; higher scores are more anomalous."""

    run: Callable[[Array, Setting], Array]
    variants: tuple[str, ...]  # the one it is tried with first, and others
    shingles: tuple[int, ...] = SHINGLES
    windows: tuple[int, ...] = WINDOWS


OURS = "polyaforest"
CHANCE = "random numbers"
DETECTORS = {
    OURS: Detector(ours, ("log mass", "multiscale", "relative log mass")),
    "krcf": Detector(krcf, ("score", "displacement_score")),
    "rcf3": Detector(rcf3, ("score", "displacement_score")),
    # these score nothing before their first window is full: 4,096 points are more than most series have
    "river HalfSpaceTrees": Detector(half_space_trees, ("height 8", "height 4"), windows=WINDOWS[:2]),
    CHANCE: Detector(chance, ("uniform",), (1,), (1,)),
}


def scores_of(series: Series, setting: Setting, cache: Path) -> Array:
    """Return the raw scores of a series, one per point, from the cache if they are there."""
    file = cache / setting.folder / f"{series.name.replace('/', '-')}.npy"
    if file.exists():
        return np.load(file)
    scores = DETECTORS[setting.detector].run(shingles(series.value, setting.shingle), setting)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part.npy")
    np.save(partial, scores)
    partial.replace(file)  # whole or not at all
    return scores


# ---- processing of scores, the same for all detectors ----------------------------------------------------------------


def running_mean(values: Array, span: int) -> Array:
    """Return the mean of the last `span` values up to each, or of as many as there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - span, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def likelihood(scores: Array, span: int = 1) -> Array:
    """Return Numenta's anomaly likelihood: -log10 of the Gaussian tail probability of the recent mean."""
    recent = running_mean(scores, span)
    origin = recent[0]  # keeps the sums small
    centre = running_mean(recent - origin, MEMORY)
    variance = np.maximum(running_mean((recent - origin) ** 2, MEMORY) - centre**2, 0.0)
    past_centre, past_variance = np.append(0.0, centre[:-1]) + origin, np.append(0.0, variance[:-1])
    spread = np.sqrt(past_variance + 1e-6 * past_centre**2 + 1e-12)  # a constant past is no reason for alarm
    return -log_ndtr(-(recent - past_centre) / spread) / np.log(10)


def tail(scores: Array, share: float = 0.05, every: int = 50) -> Array:
    """Return -log10 of the p-value of a score: its rank in the past, and an exponential tail for the top `share`."""
    surprise = np.zeros(len(scores))
    for start in range(every, len(scores), every):  # the past is taken stock of now and then, which saves time
        past, now = np.sort(scores[max(start - MEMORY, 0) : start]), scores[start : start + every]
        edge = past[int(len(past) * (1 - share))]
        beyond = past[past > edge] - edge
        scale = max(beyond.mean() if len(beyond) else 0.0, 1e-3 * abs(edge), 1e-12)
        rank = (1 + len(past) - np.searchsorted(past, now)) / (1 + len(past))
        in_tail = np.maximum(now - edge, 0.0) / scale / np.log(10) - np.log10(share)
        surprise[start : start + every] = np.where(now > edge, in_tail, -np.log10(np.maximum(rank, share)))
    return surprise


def hush(scores: Array, span: int) -> Array:
    """Silence a point unless it scores above all of the `span` points before it: one alarm, not a hundred."""
    if not span:
        return scores
    padded = np.concatenate([np.full(span, -np.inf), scores])
    before = np.lib.stride_tricks.sliding_window_view(padded, span)[:-1].max(axis=1)
    return np.where(scores > before, scores, -np.inf)


CONVERSIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda scores: scores,
    "likelihood": likelihood,
    "likelihood of 10": lambda scores: likelihood(scores, 10),
    "tail": tail,
}
HUSHES = (0, 100, 200)


class Processing(NamedTuple):
    """Processing of raw scores before the threshold."""

    conversion: str = "none"
    hush: int = 0

    def __call__(self, scores: Array) -> Array:
        """Apply it to the scores of one series, causally."""
        return hush(CONVERSIONS[self.conversion](scores), self.hush)


RAW = Processing()
PROCESSINGS = [Processing(*pair) for pair in product(CONVERSIONS, HUSHES)]


# ---- tuning ----------------------------------------------------------------------------------------------------------


def halves(names: Iterable[str]) -> dict[str, list[str]]:
    """Return every other series of each folder for tuning, the others for the report."""
    parts: dict[str, list[str]] = {half: [] for half in HALVES}
    for _, folder in groupby(sorted(names), key=lambda name: name.split("/")[0]):
        members = list(folder)
        parts["tuning"] += members[::2]
        parts["reported"] += members[1::2]
    return parts


class Trial(NamedTuple):
    """A setting, the processing of its scores, and its result on the tuning half."""

    setting: Setting
    processing: Processing
    score: float


class Bench:
    """The series, where scores are kept, and where results go."""

    def __init__(self, series: Iterable[Series], cache: Path = CACHE, results: Path = RESULTS) -> None:
        self.series = {one.name: one for one in series}
        self.halves = {**halves(self.series), "all": sorted(self.series)}
        self.corpora = {
            half: Corpus([self.series[name].label for name in members]) for half, members in self.halves.items()
        }
        self.cache = cache
        keys = ("detector", "variant", "shingle", "window", "conversion", "hush")
        self.tuning = Results("nab-tuning", keys, results)
        self.totals = Results("nab", ("detector", "scores", "profile", "half", "seed"), results)
        self.by_series = Results("nab-series", ("detector", "seed", "series"), results)

    def scores(self, setting: Setting, half: str) -> list[Array]:
        """Return raw scores of the series of a half."""
        return [scores_of(self.series[name], setting, self.cache) for name in self.halves[half]]

    def tune(self, detector: str) -> None:
        """Try the grid with a detector's first variant, and its other variant where the first did best."""
        contender = DETECTORS[detector]
        first, *others = contender.variants
        for shingle, window in product(contender.shingles, contender.windows):
            self._try(Setting(detector, first, shingle, window, TUNING_TREES))
        best = {}
        for trial in self.trials(detector):
            if trial.setting.variant == first:
                best[trial.setting] = max(trial.score, best.get(trial.setting, -np.inf))
        for setting, variant in product(sorted(best, key=best.__getitem__)[-SECOND_LOOKS:], others):
            self._try(replace(setting, variant=variant))

    def _try(self, setting: Setting) -> None:
        """Score a setting with each processing, unless that has been done."""
        columns = {key: getattr(setting, key) for key in ("detector", "variant", "shingle", "window")}
        if all((*columns.values(), *processing) in self.tuning for processing in PROCESSINGS):
            return
        start, scores = time.perf_counter(), self.scores(setting, "tuning")
        print(f"{setting.folder}: {time.perf_counter() - start:.0f} s", flush=True)
        for processing in PROCESSINGS:
            outcome = self.corpora["tuning"].best([processing(score) for score in scores], PROFILES["standard"])
            if (*columns.values(), *processing) not in self.tuning:
                self.tuning.add({**columns, **processing._asdict(), "score": outcome.score})

    def trials(self, detector: str) -> list[Trial]:
        """Return what has been tried with a detector."""
        return [trial_of(row) for row in self.tuning if row["detector"] == detector]

    # ---- the report --------------------------------------------------------------------------------------------------

    def report(self, detector: str, seed: int) -> None:
        """Run a detector over all series with what was chosen for it, for raw scores and for the best processing."""
        for name, chosen in choices(self.trials(detector)).items():
            setting = replace(chosen.setting, trees=TREES, seed=seed)
            if (detector, name, list(PROFILES)[-1], "all", seed) in self.totals:
                continue
            scores = dict(zip(self.halves["all"], self.scores(setting, "all"), strict=True))
            processed = {series: chosen.processing(score) for series, score in scores.items()}
            self._add_totals({"detector": detector, "scores": name, "seed": seed}, processed)
            if name == "processed":
                self._add_series({"detector": detector, "seed": seed}, scores, processed)

    def _add_totals(self, columns: dict[str, Any], processed: dict[str, Array]) -> None:
        """Return the benchmark's scores of each half under each profile."""
        for profile_name, profile in PROFILES.items():
            learned = None
            for half, members in self.halves.items():
                scores = [processed[series] for series in members]
                best = self.corpora[half].best(scores, profile)
                learned = best.threshold if learned is None else learned  # the tuning half comes first
                key = (columns["detector"], columns["scores"], profile_name, half, columns["seed"])
                if key not in self.totals:
                    carried = self.corpora[half].at(scores, learned, profile)
                    place = {"detector": key[0], "scores": key[1], "profile": key[2], "half": key[3], "seed": key[4]}
                    self.totals.add({**place, "score": best.score, "threshold": best.threshold, "carried": carried})

    def _add_series(self, columns: dict[str, Any], raw: dict[str, Array], processed: dict[str, Array]) -> None:
        """Add by series how well raw scores rank, and what is flagged at the common threshold."""
        threshold = self.corpora["all"].best(list(processed.values()), PROFILES["standard"]).threshold
        for name, series in self.series.items():
            if (columns["detector"], columns["seed"], name) in self.by_series:
                continue
            half = next(half for half, members in self.halves.items() if name in members)
            corpus = Corpus([series.label])
            flags = processed[name][probation(len(series.label)) :] >= threshold
            place = {"detector": columns["detector"], "seed": columns["seed"], "series": name, "half": half}
            counts = {
                "windows": corpus.n_windows,
                "found": len(np.unique(corpus.window[flags & (corpus.window != OUTSIDE)])),
                "false_alarms": int((flags & (corpus.window == OUTSIDE)).sum()),
            }
            self.by_series.add({**place, "auc": ranking(raw[name], series.label), **counts})


def ranking(scores: Array, label: Array) -> float | str:
    """Return the area under the ROC curve after the probation; empty for a series that has no window there."""
    start = probation(len(label))
    is_anomaly = label[start:] != 0
    return float(roc_auc_score(is_anomaly, scores[start:])) if is_anomaly.any() and not is_anomaly.all() else ""


def trial_of(row: dict[str, str]) -> Trial:
    """Return a row of results/nab-tuning.csv."""
    setting = Setting(row["detector"], row["variant"], int(row["shingle"]), int(row["window"]), TUNING_TREES)
    return Trial(setting, Processing(row["conversion"], int(row["hush"])), float(row["score"]))


def choices(trials: Iterable[Trial]) -> dict[str, Trial]:
    """Return the best trial with raw scores, and the best of all; of equals, the first tried."""
    trials = list(trials)
    raw = [trial for trial in trials if trial.processing == RAW]
    return {name: max(group, key=lambda trial: trial.score) for name, group in (("raw", raw), ("processed", trials))}


# ---- the page --------------------------------------------------------------------------------------------------------


def average(values: Iterable[float]) -> str:
    """Return mean and standard deviation over seeds."""
    values = list(values)
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{mean(values):.1f}"


def totals_table(rows: Sequence[dict[str, str]], scores: str) -> str:
    """Return NAB's scores of all detectors, by half for the standard profile, of all series for the others."""
    header = ["", "reported half", "reported half, threshold of the tuning half", "all 58", *list(PROFILES)[1:]]

    def line(detector: str) -> list[str]:
        def cell(half: str, profile: str = "standard", column: str = "score") -> str:
            return average(picked(rows, column, detector=detector, scores=scores, half=half, profile=profile))

        others = [cell("all", profile) for profile in list(PROFILES)[1:]]
        return [detector, cell("reported"), cell("reported", column="carried"), cell("all"), *others]

    return table(header, [line(detector) for detector in DETECTORS if any(row["detector"] == detector for row in rows)])


def choices_table(trials: dict[str, list[Trial]]) -> str:
    """Return what each detector was found to do best with on the tuning half."""
    header = ["", "scores", "shingle", "window or sample", "variant", "conversion", "hush", "tuning half"]
    rows = []
    for detector, tried in trials.items():
        for name, (setting, processing, score) in choices(tried).items():
            chosen = (setting.shingle, setting.window, setting.variant)
            rows.append([detector, name, *chosen, *processing, f"{score:.1f}"])
    return table(header, rows)


def series_table(rows: Sequence[dict[str, str]]) -> str:
    """Return what the detectors find on all series, and how they rank points, in the mean over seeds."""
    detectors = [name for name in DETECTORS if any(row["detector"] == name for row in rows)]

    def line(detector: str) -> list[str]:
        own = [row for row in rows if row["detector"] == detector]
        n_seeds = len({row["seed"] for row in own})
        sums = [sum(int(row[column]) for row in own) / n_seeds for column in ("found", "windows", "false_alarms")]
        aucs = {half: [float(row["auc"]) for row in own if row["auc"] and row["half"] == half] for half in HALVES}
        found, windows, alarms = sums
        return [
            detector,
            f"{found:.0f} of {windows:.0f}",
            f"{alarms:.0f}",
            *(f"{mean(auc):.3f}" for auc in aucs.values()),
        ]

    return table(["", "windows found", "false alarms", "AUC, tuning half", "AUC, reported half"], map(line, detectors))


def render(results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Write the tables of the page from the CSV files."""
    totals, tuning = read(results / "nab.csv"), read(results / "nab-tuning.csv")
    trials = {name: [trial_of(row) for row in tuning if row["detector"] == name] for name in DETECTORS}
    fill("nab", "processed", totals_table(totals, "processed"), pages)
    fill("nab", "raw", totals_table(totals, "raw"), pages)
    fill("nab", "choices", choices_table({name: tried for name, tried in trials.items() if tried}), pages)
    fill("nab", "series", series_table(read(results / "nab-series.csv")), pages)


def draw(bench: Bench, file: Path) -> None:
    """Draw two series with NAB's windows, and below them our surprise with the threshold and the alarms."""
    import matplotlib as mpl  # noqa: PLC0415 - only here

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    chosen = choices(bench.trials(OURS))["processed"]
    setting = replace(chosen.setting, trees=TREES)
    processed = [chosen.processing(scores) for scores in bench.scores(setting, "all")]
    threshold = bench.corpora["all"].best(processed, PROFILES["standard"]).threshold
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 2, figsize=(10.0, 4.8), sharex="col", layout="constrained")
        for column, name in zip(axes.T, PICTURED, strict=True):
            series = bench.series[name]
            draw_series(column, series, scores_of(series, setting, bench.cache), chosen.processing, threshold)
        figure.align_ylabels()
        handles = {text: handle for handle, text in zip(*gathered(axes[:, 0]), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130, metadata={"Software": None})
        plt.close(figure)


def gathered(axes: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Return the legend entries of several axes."""
    pairs = [axis.get_legend_handles_labels() for axis in axes]
    return [handle for handles, _ in pairs for handle in handles], [text for _, texts in pairs for text in texts]


BLUE, ORANGE, SHADE, GREY = "#0072B2", "#D55E00", "#F0E442", "#999999"  # safe for colour-blind readers


def draw_series(axes: Sequence[Any], series: Series, raw: Array, processing: Processing, threshold: float) -> None:
    """Draw one column of the picture."""
    points = np.arange(len(raw))
    start = probation(len(raw))
    above, below = axes
    above.plot(points, series.value, color=BLUE, linewidth=0.7, label="value")
    above.set(title=series.name.split("/")[1].replace("_", " "), ylabel="value")
    below.plot(points, raw, color=GREY, linewidth=0.6, label="surprise")
    below.axhline(threshold, color=ORANGE, linewidth=1.0, linestyle="--", label="line for all 58 series")
    flagged = np.flatnonzero(processing(raw) >= threshold)
    flagged = flagged[flagged >= start]
    below.plot(flagged, raw[flagged], "v", color=ORANGE, markersize=6, linestyle="none", label="alarm")
    below.set(xlabel="point", ylabel="surprise")
    below.xaxis.set_major_formatter("{x:,.0f}")
    for axis in axes:
        for first, last in windows_of(series.label):
            name = "window of an anomaly" if first == windows_of(series.label)[0][0] and axis is above else None
            axis.axvspan(first, last, color=SHADE, alpha=0.5, linewidth=0, label=name)
        label = "probation, not scored" if axis is above else None
        axis.axvspan(0, start, color=GREY, alpha=0.15, linewidth=0, label=label)
        axis.margins(x=0)


def draw_all(directory: Path, pages: Path) -> None:
    """Draw the picture of the page, if the results have its series."""
    if {row["series"] for row in read(directory / "nab-series.csv")} >= set(PICTURED):
        draw(Bench(map(load_series, NAB), results=directory), pages / "images" / "nab.png")


def measure_all(options: Namespace, directory: Path) -> None:
    """Tune detectors, then run them over all series."""
    bench = Bench(map(load_series, QUICK if options.quick else NAB), results=directory)
    for detector in options.detectors if "tune" in options.part else ():
        bench.tune(detector)
    for seed, detector in product(options.seeds[:1] if options.quick else options.seeds, options.detectors):
        if "report" in options.part:
            bench.report(detector, seed)


BENCHMARK = Benchmark(
    measure_all,
    render,
    draw_all,
    quick="six series and one seed",
    options={
        "--detectors": only(DETECTORS),
        "--seeds": {"nargs": "+", "type": int, "default": SEEDS, "help": "only these"},
        "--part": only(PARTS),
    },
    peers=("krcf", "rcf3", "river"),
)
