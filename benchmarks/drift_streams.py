"""Change detection in streams: delay at equal rates of false alarms, and what is reported about each change.

Every detector has one parameter that trades delay for false alarms. It is set on streams without a change, so that
false alarms are at least TARGET points apart on average; then delays are measured. Writes results/drift-rates.csv
(first alarms on streams without a change), results/drift-streams.csv (on streams with one), results/drift-skab.csv and
results/drift-nab.csv; fills docs/benchmarks/drift-streams.md. A run resumes where it was interrupted.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import patch

import numpy as np
from river import drift
from scipy import stats
from scipy.signal import lfilter
from tqdm import tqdm

from benchmarks.registry import Benchmark, only
from benchmarks.shared.pages import fill, table
from benchmarks.shared.results import Results, read
from polyaforest.drift import DriftMonitor

Array = np.ndarray
_SCIPY_TEST = stats.ks_2samp
PAGE = "drift-streams"
OURS = "DriftMonitor"
DUMMIES = ("never", "always")
TARGET = 2000  # points between false alarms
N_REFERENCE, N_BEFORE, N_AFTER, N_NULL = 1024, 300, 1000, 4000
WITHIN = N_AFTER  # points in which a change has to be noticed
N_TRIALS, N_NULLS = 12, 12
N_SKAB = 400  # first rows of a SKAB series, which are normal
NAB_SHARE, NAB_LEAST, NAB_MOST = 0.15, 256, N_REFERENCE  # rows of a reference: NAB's probation, within limits
NAB_SHIFT = 1.5  # standard deviations by which the median changes across a labelled window, if it is a level shift

# ---- streams ---------------------------------------------------------------------------------------------------------


def plain(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return independent normal rows."""
    return rng.standard_normal((n, d))


def rounded(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return rows of few different values."""
    return np.round(rng.standard_normal((n, d)))


def seasonal(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return rows whose first feature has a season of 100 points."""
    rows = rng.standard_normal((n, d))
    rows[:, 0] = 1.5 * np.sin(2 * np.pi * np.arange(n) / 100) + 0.5 * rows[:, 0]
    return rows


def autocorrelated(n: int, rng: np.random.Generator, d: int, memory: float = 0.6) -> Array:
    """Return rows of variance 1 in which each depends on the one before."""
    rows = lfilter([np.sqrt(1 - memory**2)], [1.0, -memory], rng.standard_normal((n + 200, d)), axis=0)
    return rows[200:]


def lasting(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return rows in which each depends much on the one before."""
    return autocorrelated(n, rng, d, 0.9)


def electricity(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return prices and demands of two grids every half hour, and what flows between them: days, weeks, memory."""
    hours = np.arange(n) / 2
    day, week = np.sin(2 * np.pi * hours / 24), np.where(hours // 24 % 7 < 5, 0.4, -1.0)
    noise = autocorrelated(n, rng, d, 0.8)
    demand = day[:, None] + week[:, None] + 0.5 * noise[:, :2]
    price = np.exp(0.5 * demand + 0.3 * noise[:, 2:4])
    return np.column_stack([price, demand, demand[:, 0] - demand[:, 1] + 0.3 * noise[:, 4]])


def insects(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return wingbeats of insects of six kinds, in random order: skewed features that depend on each other."""
    kinds = np.random.default_rng(7).normal(size=(6, d))  # the same in every stream
    mixing = np.random.default_rng(8).normal(size=(d, d)) * 0.2 + 0.6 * np.eye(d)
    return np.exp(0.3 * (kinds[rng.integers(6, size=n)] + rng.standard_normal((n, d)) @ mixing))


def shifted(rows: Array, rng: np.random.Generator) -> Array:
    """Move the first feature by its standard deviation."""
    return rows + np.eye(rows.shape[1])[0]


def nudged(rows: Array, rng: np.random.Generator) -> Array:
    """Move all features by half their standard deviation."""
    return rows + 0.5


def spread(rows: Array, rng: np.random.Generator) -> Array:
    """Spread the first feature."""
    return rows * np.where(np.arange(rows.shape[1]) == 0, 1.7, 1.0)


def correlated(rows: Array, rng: np.random.Generator) -> Array:
    """Let the first two features depend on each other."""
    moved = rows.copy()
    moved[:, 1] = 0.8 * rows[:, 0] + 0.6 * rows[:, 1]
    return moved


def cornered(rows: Array, rng: np.random.Generator) -> Array:
    """Move two rows in a hundred to a corner of the first two features."""
    moved, is_moved = rows.copy(), rng.random(len(rows)) < 0.02
    moved[is_moved, :2] = 2.6 + 0.2 * rng.standard_normal((is_moved.sum(), 2))
    return moved


def ramped(rows: Array, rng: np.random.Generator) -> Array:
    """Move the first feature slowly, by two standard deviations in 500 points."""
    moved = rows.copy()
    moved[:, 0] += np.minimum(np.arange(len(rows)) / 250, 2.0)
    return moved


def dearer(rows: Array, rng: np.random.Generator) -> Array:
    """Raise the first price by a third."""
    return rows * np.where(np.arange(rows.shape[1]) == 0, 4 / 3, 1.0)


def warmer(rows: Array, rng: np.random.Generator) -> Array:
    """Let one insect in five beat its wings faster: three features rise together."""
    moved, is_moved = rows.copy(), rng.random(len(rows)) < 0.2
    moved[np.ix_(is_moved, [0, 1, 2])] *= 1.6
    return moved


def warming(rows: Array, rng: np.random.Generator) -> Array:
    """Let all insects beat their wings faster little by little: three features rise by 40 % in 500 points."""
    moved = rows.copy()
    moved[:, :3] *= 1 + 0.4 * np.minimum(np.arange(len(rows)) / 500, 1.0)[:, None]
    return moved


Make = Callable[[int, np.random.Generator, int], Array]
NULLS: dict[str, tuple[Make, int]] = {
    "normal, 1 feature": (plain, 1),
    "normal, 5 features": (plain, 5),
    "ties, 3 features": (rounded, 3),
    "seasonal, 2 features": (seasonal, 2),
    "AR(0.6), 2 features": (autocorrelated, 2),
    "AR(0.9), 2 features": (lasting, 2),
    "electricity-like, 5 features": (electricity, 5),
    "INSECTS-like, 6 features": (insects, 6),
}
CHANGES: dict[str, tuple[str, Callable[[Array, np.random.Generator], Array], set[str]]] = {  # with features that change
    "mean": ("normal, 1 feature", shifted, {"x0"}),
    "mean of 1 of 5": ("normal, 5 features", shifted, {"x0"}),
    "mean of all 5, by half": ("normal, 5 features", nudged, {"x0", "x1", "x2", "x3", "x4"}),
    "variance of 1 of 5": ("normal, 5 features", spread, {"x0"}),
    "correlation of 2 of 5": ("normal, 5 features", correlated, {"x0", "x1"}),
    "a corner with 2 %": ("normal, 5 features", cornered, {"x0", "x1"}),
    "gradual, 1 of 5": ("normal, 5 features", ramped, {"x0"}),
    "mean, seasonal": ("seasonal, 2 features", shifted, {"x0"}),
    "mean, AR(0.6)": ("AR(0.6), 2 features", shifted, {"x0"}),
    "mean, AR(0.9)": ("AR(0.9), 2 features", shifted, {"x0"}),
    "electricity-like, a price": ("electricity-like, 5 features", dearer, {"x0"}),
    "INSECTS-like, 1 in 5": ("INSECTS-like, 6 features", warmer, {"x0", "x1", "x2"}),
    "INSECTS-like, gradual": ("INSECTS-like, 6 features", warming, {"x0", "x1", "x2"}),
}

# ---- detectors: the first alarm for every setting of their parameter -------------------------------------------------


def ours(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of DriftMonitor: up to the first, evidence does not depend on the setting."""
    watching = DriftMonitor(false_alarms_every=1e12, random_state=seed).fit(reference)
    evidence = watching.follow(rows).evidence
    for k, length in enumerate(watching.windows_.tolist()):
        evidence[: length - 1, k] = -np.inf  # windows that are not full say nothing
    return [first((evidence > watching.thresholds_for(every)).any(axis=1)) for every in settings]


def adwin(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of river's ADWIN, one for each feature, which share the confidence."""
    return [first_of(reference, rows, lambda d=delta: drift.ADWIN(delta=d / rows.shape[1])) for delta in settings]


def page_hinkley(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of river's Page–Hinkley test, one for each feature."""
    return [first_of(reference, rows, lambda h=height: drift.PageHinkley(threshold=h)) for height in settings]


def kswin(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of river's KSWIN, one for each feature: up to an alarm, p-values do not depend on alpha."""
    lowest = np.ones(len(rows))
    with patch.object(stats, "ks_2samp", _ks_2samp):
        for column, later in zip(reference.T, rows.T, strict=True):
            detector = drift.KSWIN(alpha=1e-300, seed=seed)
            for value in column[-200:].tolist():
                detector.update(value)
            for i, value in enumerate(later.tolist()):
                detector.update(value)
                lowest[i] = min(lowest[i], detector.p_value)
    return [first(lowest <= alpha / rows.shape[1]) for alpha in settings]


def _ks_2samp(a: list[float], b: list[float], method: str) -> tuple[float, float]:
    """Return what scipy's function does for samples of one size; p-values are remembered, which takes less time."""
    both = np.sort(np.concatenate([a, b]))
    most = np.abs(
        np.searchsorted(np.sort(a), both, side="right") - np.searchsorted(np.sort(b), both, side="right")
    ).max()
    return most / len(a), _p_value(int(most), len(a))


@cache
def _p_value(most: int, n: int) -> float:
    """Return the p-value of two samples of `n` whose numbers up to some value differ by `most` at the most."""
    return float(_SCIPY_TEST(np.arange(n), np.arange(n) + most - 0.5, method="auto").pvalue)


def cusum(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of two-sided CUSUMs with slack 1/2, one for each feature, after standardising."""
    scaled = (rows - reference.mean(axis=0)) / reference.std(axis=0)
    highest = np.zeros(len(rows))
    up, down = np.zeros((2, rows.shape[1]))
    for i, row in enumerate(scaled):
        up, down = np.maximum(up + row - 0.5, 0.0), np.maximum(down - row - 0.5, 0.0)
        highest[i] = max(up.max(), down.max())
    return [first(highest > height) for height in settings]


def never(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Never raise an alarm."""
    return [len(rows)] * len(settings)


def always(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Raise an alarm at once."""
    return [0] * len(settings)


def first(is_alarm: Array) -> int:
    """Return the place of the first alarm, or the number of rows if there is none."""
    return int(np.argmax(is_alarm)) if is_alarm.any() else len(is_alarm)


def first_of(reference: Array, rows: Array, make: Callable[[], Any]) -> int:
    """Return the first alarm of a detector for each feature, which has seen the reference."""
    mean, deviation = reference.mean(axis=0), reference.std(axis=0)
    found = len(rows)
    for column, later in zip(((reference - mean) / deviation).T, ((rows - mean) / deviation).T, strict=True):
        detector = make()
        for value in column.tolist():
            detector.update(value)
        for i, value in enumerate(later[:found].tolist()):
            detector.update(value)
            if detector.drift_detected:
                found = i
                break
    return found


Detect = Callable[[Array, Array, Sequence[float], int], list[int]]
METHODS: dict[str, tuple[Detect, list[float]]] = {  # with settings, the most sensitive first
    OURS: (ours, [150, 250, 500, 1000, 1500, 2000, 3000, 4000, 8000, 20000]),
    "ADWIN": (adwin, [0.99 * 10 ** (-((n / 6) ** 2)) for n in range(36)]),
    "KSWIN": (kswin, [1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6, 1e-8, 1e-12, 1e-20]),
    "Page–Hinkley": (page_hinkley, [10 * 1.15**n for n in range(32)]),
    "CUSUM": (cusum, [3 * 1.08**n for n in range(64)]),
    "never": (never, [0]),
    "always": (always, [0]),
}

# ---- measuring -------------------------------------------------------------------------------------------------------


def run_nulls(results: Results, names: Iterable[str], n_streams: int) -> None:
    """Find first alarms on streams that do not change."""
    tasks = [(null, name, stream) for stream in range(n_streams) for null in NULLS for name in names]
    for null, name, stream in tqdm([task for task in tasks if (*task, "0") not in results], disable=None):
        make, d = NULLS[null]
        rows = make(N_REFERENCE + N_NULL, np.random.default_rng([2000 + list(NULLS).index(null), stream]), d)
        detect, settings = METHODS[name]
        alarms = detect(rows[:N_REFERENCE], rows[N_REFERENCE:], settings, stream)
        for number, (setting, alarm) in enumerate(zip(settings, alarms, strict=True)):
            facts = {"null": null, "method": name, "stream": stream, "number": number, "setting": setting}
            results.add({**facts, "alarm": alarm, "points": min(alarm + 1, N_NULL)})


def time_between(rows: Iterable[Mapping[str, str]], null: str, name: str, number: int) -> float:
    """Return the points between false alarms of a setting."""
    own = [row for row in rows if row["null"] == null and row["method"] == name and row["number"] == str(number)]
    n_alarms = sum(int(row["alarm"]) < N_NULL for row in own)
    return sum(int(row["points"]) for row in own) / max(n_alarms, 0.5)


def chosen(rows: Sequence[Mapping[str, str]], null: str, name: str) -> int | None:
    """Return the most sensitive setting with as few false alarms as wanted; None if there is none."""
    if name in DUMMIES:
        return 0
    for number in range(len(METHODS[name][1])):
        if time_between(rows, null, name, number) >= TARGET:
            return number
    return None


def run_changes(results: Results, nulls: Sequence[Mapping[str, str]], names: Iterable[str], n_trials: int) -> None:
    """Find first alarms on streams that change, at the setting chosen for each detector."""
    tasks = [(change, name, trial) for trial in range(n_trials) for change in CHANGES for name in names]
    for change, name, trial in tqdm([task for task in tasks if task not in results], disable=None):
        null, apply, features = CHANGES[change]
        number = chosen(nulls, null, name)
        if number is None:
            results.add(_fact(change, name, trial, ""))
            continue
        make, d = NULLS[null]
        rng = np.random.default_rng([3000 + list(CHANGES).index(change), trial])
        rows = make(N_REFERENCE + N_BEFORE + N_AFTER, rng, d)
        after = N_REFERENCE + N_BEFORE
        rows[after:] = apply(rows[after:], rng)
        detect, settings = METHODS[name]
        if name == OURS:
            reported = report_of(rows, settings[number], trial, features)
        else:
            reported = {"alarm": detect(rows[:N_REFERENCE], rows[N_REFERENCE:], [settings[number]], trial)[0]}
        results.add({**_fact(change, name, trial, ""), **reported})


def _fact(change: str, name: str, trial: int, alarm: Any) -> dict[str, Any]:
    facts = {"change": change, "method": name, "trial": trial, "alarm": alarm}
    return {**facts, "error": "", "named": "", "right": "", "log10_odds": ""}


def report_of(rows: Array, every: float, seed: int, features: set[str]) -> dict[str, Any]:
    """Return our first alarm and the last report of the change, if it is reported as lasting.

    By how many points it misses the start; features that the clearest region names, and how many of them changed; odds.
    """
    watching = DriftMonitor(false_alarms_every=every, random_state=seed).fit(rows[:N_REFERENCE])
    changes = watching.update(rows[N_REFERENCE:])
    alarm = {"alarm": changes[0].noticed - N_REFERENCE if changes else len(rows) - N_REFERENCE}
    is_lasting = [one.kind not in ("burst", "return to normal") and one.state == "begun" for one in changes]
    lasting = [
        one for one, is_one in zip(changes, is_lasting, strict=True) if is_one and one.noticed >= N_REFERENCE + N_BEFORE
    ]
    if not lasting:
        return alarm
    last = lasting[-1]
    named = {name for name in (f"x{k}" for k in range(rows.shape[1])) if last.regions and name in last.regions[0]}
    odds = f"{last.log_odds / np.log(10):.1f}"
    counts = {"named": len(named), "right": len(named & features)}
    return {**alarm, "error": last.start - N_REFERENCE - N_BEFORE, **counts, "log10_odds": odds}


def run_skab(results: Results, names: Iterable[str]) -> None:
    """Find first alarms on the test benches of SKAB, whose first rows are normal."""
    folder = Path(os.environ["POLYAFOREST_DATA"]) / "series"
    for path in tqdm(sorted(folder.glob("SKAB_*.npz")), disable=None):
        with np.load(path) as file:
            rows, labels = file["test"].astype(np.float64), file["y"].astype(int)
        rows = rows[:, rows[: N_SKAB // 2].std(axis=0) > 0]
        start = int(np.argmax(labels[N_SKAB:])) + N_SKAB
        end = start + int(np.argmin(np.append(labels[start:], 0)))
        _run_series(results, path.stem, names, rows, N_SKAB, (start, end))


def run_nab(results: Results, names: Iterable[str]) -> None:
    """Find first alarms on the series of NAB that have a level shift."""
    for series, values, n, window in level_shifts():
        _run_series(results, series, names, values[:, None], n, window)


def level_shifts() -> Iterator[tuple[str, Array, int, tuple[int, int]]]:
    """Yield name, values, rows of the reference and labelled window of every series of NAB with a level shift.

    That is the first labelled window after the reference across which the median changes by more than NAB_SHIFT
    standard deviations: those of the values before, as many as two windows; after it, too. What is right is an alarm
    in the window or in as many rows after it.
    """
    with np.load(Path(os.environ["POLYAFOREST_DATA"]) / "nab_all.npz") as file:
        for series in sorted({key.rsplit("/", 1)[0] for key in file.files}):
            values, labels = file[f"{series}/value"], file[f"{series}/label"]
            n = int(min(max(NAB_SHARE * len(values), NAB_LEAST), NAB_MOST))
            ends = np.flatnonzero(np.diff(np.concatenate([[0], labels, [0]])))
            for start, end in ends.reshape(-1, 2).tolist():
                width = end - start
                before, after = values[max(start - 2 * width, 0) : start], values[end : end + 2 * width]
                is_long = start >= n and len(after) >= width
                if is_long and abs(np.median(after) - np.median(before)) > NAB_SHIFT * before.std():
                    yield series, values, n, (start, end + width)
                    break


def _run_series(
    results: Results, series: str, names: Iterable[str], rows: Array, n: int, event: tuple[int, int]
) -> None:
    """Find the first alarm of every detector on a series whose first `n` rows are the reference."""
    for name in names:
        if (series, name) in results:
            continue
        detect, settings = METHODS[name]
        setting = float(TARGET) if name == OURS else quietest(detect, settings, rows[: n // 2], rows[n // 2 : n])
        alarm = detect(rows[:n], rows[n : event[1]], [setting], 0)[0] + n  # later alarms do not count
        facts = {"series": series, "method": name, "setting": setting, "alarm": alarm}
        results.add({**facts, "start": event[0], "end": event[1], "rows": len(rows)})


def quietest(detect: Detect, settings: Sequence[float], reference: Array, rows: Array) -> float:
    """Return the most sensitive setting without an alarm on rows that are normal; the last if all raise one."""
    alarms = detect(reference, rows, settings, 0)
    return next((one for one, alarm in zip(settings, alarms, strict=True) if alarm == len(rows)), settings[-1])


# ---- the page --------------------------------------------------------------------------------------------------------


def rates_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show the points between false alarms of ours, by what was asked for."""
    settings = METHODS[OURS][1]
    lines = []
    for null in NULLS:
        times = [time_between(rows, null, OURS, number) for number in range(len(settings))]
        lines.append([null, *(f"{time:,.0f}" for time in times)])
    return table(["asked for", *(f"{int(every):,}" for every in settings)], lines)


def settings_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show the points between false alarms of every detector at the setting that was chosen for it."""
    names = [name for name in METHODS if name not in DUMMIES]
    lines = []
    for null in NULLS:
        numbers = {name: chosen(rows, null, name) for name in names}
        cells = [
            "–"
            if number is None
            else f"{time_between(rows, null, name, number):,.0f} (at {METHODS[name][1][number]:.3g})"
            for name, number in numbers.items()
        ]
        lines.append([null, *cells])
    return table(["stream", *names], lines)


def delays_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show median delays and F1 of every detector; the shortest delay in bold."""
    lines = []
    for change in CHANGES:
        delays: dict[str, float] = {}
        cells: dict[str, str] = {}
        for name in METHODS:
            own = [row for row in rows if row["change"] == change and row["method"] == name]
            if not own or any(row["alarm"] == "" for row in own):
                cells[name] = "–"
                continue
            delay = [int(row["alarm"]) - N_BEFORE for row in own]
            hits = [one for one in delay if 0 <= one < WITHIN]
            false = sum(one < 0 for one in delay)
            f1 = 2 * len(hits) / (len(hits) + false + len(delay))
            delays[name] = median([min(one, WITHIN) for one in delay if one >= 0] or [WITHIN])
            shown = f"{delays[name]:.0f}" if delays[name] < WITHIN else f">{WITHIN}"
            cells[name] = f"{shown} ({f1:.2f})"
        real = {name: delay for name, delay in delays.items() if name not in DUMMIES}
        best = min(real.values(), default=0)
        lines.append(
            [change, *(f"**{cells[name]}**" if real.get(name) == best < WITHIN else cells[name] for name in METHODS)]
        )
    n_trials = len({row["trial"] for row in rows})
    return table([f"change ({n_trials} streams each)", *METHODS], lines)


def reports_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return what our reports of the changes say: date, features and odds."""
    lines = []
    for change in CHANGES:
        every = [row for row in rows if row["change"] == change and row["method"] == OURS]
        own = [row for row in every if row["error"] != ""]
        if not own:
            lines.append([change, f"0 of {len(every)}", "–", "–", "–", "–"])
            continue
        errors = [abs(int(row["error"])) for row in own]
        named, right = ([int(row[column]) for row in own] for column in ("named", "right"))
        precision = mean(n / of for n, of in zip(right, named, strict=True) if of) if any(named) else 0.0
        odds = median(float(row["log10_odds"]) for row in own)
        cells = [f"{len(own)} of {len(every)}", f"{median(errors):.0f}", f"{sum(map(bool, named))} of {len(own)}"]
        lines.append([change, *cells, f"{precision:.2f}", f"10^{odds:.0f}"])
    heads = [
        "change",
        "reported as lasting",
        "start missed by, median points",
        "with a region",
        "precision of its features",
    ]
    return table([*heads, "odds, median"], lines)


def series_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show what became of the events of series."""
    lines = []
    for name in METHODS:
        own = [row for row in rows if row["method"] == name]
        hits = [row for row in own if int(row["start"]) <= int(row["alarm"]) < int(row["end"])]
        early = sum(int(row["alarm"]) < int(row["start"]) for row in own)
        delays = [int(row["alarm"]) - int(row["start"]) for row in hits]
        f1 = 2 * len(hits) / max(len(hits) + early + len(own), 1)
        shown = f"{median(delays):.0f}" if delays else "–"
        lines.append([name, f"{len(hits)} of {len(own)}", early, shown, f"{f1:.2f}"])
    return table(["detector", "events noticed", "false alarms before", "delay, median rows", "F1"], lines)


FILES = {  # by name, the columns that identify a measurement
    "drift-rates": ("null", "method", "stream", "number"),
    "drift-streams": ("change", "method", "trial"),
    "drift-skab": ("series", "method"),
    "drift-nab": ("series", "method"),
}


def render(directory: Path, pages: Path) -> None:
    """Fill the tables of the page."""
    nulls, changes, skab, nab = (read(directory / f"{name}.csv") for name in FILES)
    fill(PAGE, "rates", rates_table(nulls), pages)
    fill(PAGE, "settings", settings_table(nulls), pages)
    fill(PAGE, "delays", delays_table(changes), pages)
    fill(PAGE, "reports", reports_table(changes), pages)
    fill(PAGE, "skab", series_table(skab), pages)
    fill(PAGE, "nab", series_table(nab), pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the files lack."""
    nulls, changes, skab, nab = (Results(name, keys, directory) for name, keys in FILES.items())
    run_nulls(nulls, options.methods, 1 if options.quick else N_NULLS)
    run_changes(changes, list(nulls), options.methods, 1 if options.quick else N_TRIALS)
    run_skab(skab, options.methods)
    run_nab(nab, options.methods)


BENCHMARK = Benchmark(
    measure_all,
    render,
    quick="one trial of each change",
    options={"--methods": only(METHODS)},
    peers=("river",),
)
