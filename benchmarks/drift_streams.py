"""Changes of streams: how soon detectors notice them at equal rates of false alarms; where and when ours says they are.

Every detector has one parameter that trades delay for false alarms. It is set, on streams that do not change, so that a
false alarm comes once in TARGET points or more seldom; then delays are measured. Writes results/drift-rates.csv (first
alarms on streams without change), results/drift-streams.csv (on streams with one) and results/drift-skab.csv; fills
docs/benchmarks/drift-streams.md. A run can be stopped and taken up again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from river import drift
from tqdm import tqdm

from _pages import PAGES, fill, scratch, table
from _results import RESULTS, Results
from polyaforest.drift import DriftMonitor

Array = np.ndarray
PAGE = "drift-streams"
OURS = "DriftMonitor"
TARGET = 2000  # points between false alarms
N_REFERENCE, N_BEFORE, N_AFTER, N_NULL = 1024, 500, 1500, 4000
WITHIN = 1000  # points in which a change has to be noticed
N_TRIALS, N_NULLS = 6, 5
N_SKAB = 400  # first rows of a SKAB series, which are normal

# ---- streams ---------------------------------------------------------------------------------------------------------


def plain(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return independent normal rows."""
    return rng.standard_normal((n, d))


def seasonal(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return rows whose first feature has a season of 100 points."""
    rows = rng.standard_normal((n, d))
    rows[:, 0] = 1.5 * np.sin(2 * np.pi * np.arange(n) / 100) + 0.5 * rows[:, 0]
    return rows


def autocorrelated(n: int, rng: np.random.Generator, d: int) -> Array:
    """Return rows in which each depends on the one before."""
    rows = rng.standard_normal((n + 50, d))
    for i in range(1, len(rows)):
        rows[i] += 0.6 * rows[i - 1]
    return rows[50:] * 0.8  # of variance 1


def shifted(rows: Array, rng: np.random.Generator) -> Array:
    """Move the first feature by its standard deviation."""
    return rows + np.eye(rows.shape[1])[0]


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


Make = Callable[[int, np.random.Generator, int], Array]
NULLS: dict[str, tuple[Make, int]] = {
    "normal, 1 feature": (plain, 1),
    "normal, 5 features": (plain, 5),
    "seasonal, 2 features": (seasonal, 2),
    "autocorrelated, 2 features": (autocorrelated, 2),
}
CHANGES: dict[str, tuple[str, Callable[[Array, np.random.Generator], Array], set[str]]] = {  # with features that change
    "mean": ("normal, 1 feature", shifted, {"x0"}),
    "mean of 1 of 5": ("normal, 5 features", shifted, {"x0"}),
    "variance of 1 of 5": ("normal, 5 features", spread, {"x0"}),
    "correlation of 2 of 5": ("normal, 5 features", correlated, {"x0", "x1"}),
    "a corner with 2 %": ("normal, 5 features", cornered, {"x0", "x1"}),
    "gradual, 1 of 5": ("normal, 5 features", ramped, {"x0"}),
    "mean, seasonal": ("seasonal, 2 features", shifted, {"x0"}),
    "mean, autocorrelated": ("autocorrelated, 2 features", shifted, {"x0"}),
}

# ---- detectors: the first alarm for every setting of their parameter -------------------------------------------------


def ours(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of DriftMonitor, of which only the bars depend on the setting, by its logarithm."""
    ends = [1e4, 1e12]
    watching = [DriftMonitor(false_alarms_every=every, random_state=seed).fit(reference) for every in ends]
    evidence = watching[1].follow(rows).evidence
    for k, length in enumerate(watching[1].windows_.tolist()):
        evidence[: length - 1, k] = -np.inf  # windows that are not full say nothing
    low, high = (one.bars_ for one in watching)
    slopes = (high - low) / np.log(ends[1] / ends[0])
    return [first((evidence > low + slopes * np.log(every / ends[0])).any(axis=1)) for every in settings]


def adwin(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of river's ADWIN, one for each feature, which share the confidence."""
    return [first_of(reference, rows, lambda d=delta: drift.ADWIN(delta=d / rows.shape[1])) for delta in settings]


def page_hinkley(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of river's Page–Hinkley test, one for each feature."""
    return [first_of(reference, rows, lambda h=height: drift.PageHinkley(threshold=h)) for height in settings]


def kswin(reference: Array, rows: Array, settings: Sequence[float], seed: int) -> list[int]:
    """Return first alarms of river's KSWIN, one for each feature: up to an alarm, p-values do not depend on alpha."""
    lowest = np.ones(len(rows))
    for column, later in zip(reference.T, rows.T, strict=True):
        detector = drift.KSWIN(alpha=1e-300, seed=seed)
        for value in column[-200:].tolist():
            detector.update(value)
        for i, value in enumerate(later.tolist()):
            detector.update(value)
            lowest[i] = min(lowest[i], detector.p_value)
    return [first(lowest <= alpha / rows.shape[1]) for alpha in settings]


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
    OURS: (ours, [50, 100, 200, 500, 1000, 2000, 5000, 20000]),
    "ADWIN": (adwin, [0.5, 0.2, 0.05, 0.01, 0.002, 2e-4, 1e-5, 1e-7]),
    "KSWIN": (kswin, [0.01, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-7, 1e-10]),
    "Page–Hinkley": (page_hinkley, [10, 15, 20, 30, 40, 60, 100, 200]),
    "CUSUM": (cusum, [3, 4, 5, 6, 7, 8, 12, 20]),
    "never": (never, [0]),
    "always": (always, [0]),
}

# ---- measuring -------------------------------------------------------------------------------------------------------


def run_nulls(results: Results, n_streams: int) -> None:
    """Find first alarms on streams that do not change."""
    tasks = [(null, name, stream) for stream in range(n_streams) for null in NULLS for name in METHODS]
    for null, name, stream in tqdm([task for task in tasks if (*task, "0") not in results], disable=None):
        make, d = NULLS[null]
        rng = np.random.default_rng([list(NULLS).index(null), stream])
        rows = make(N_REFERENCE + N_NULL, rng, d)
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
    for number in range(len(METHODS[name][1])):
        if time_between(rows, null, name, number) >= TARGET:
            return number
    return None


def run_changes(results: Results, nulls: Sequence[Mapping[str, str]], n_trials: int) -> None:
    """Find first alarms on streams that change, at the setting chosen for each detector."""
    tasks = [(change, name, trial) for trial in range(n_trials) for change in CHANGES for name in METHODS]
    for change, name, trial in tqdm([task for task in tasks if task not in results], disable=None):
        null, apply, features = CHANGES[change]
        number = chosen(nulls, null, name)
        if name == "always":
            number = 0
        if number is None:
            results.add(_fact(change, name, trial, ""))
            continue
        make, d = NULLS[null]
        rng = np.random.default_rng([100 + list(CHANGES).index(change), trial])
        rows = make(N_REFERENCE + N_BEFORE + N_AFTER, rng, d)
        after = N_REFERENCE + N_BEFORE
        rows[after:] = apply(rows[after:], rng)
        detect, settings = METHODS[name]
        alarm = detect(rows[:N_REFERENCE], rows[N_REFERENCE:], [settings[number]], trial)[0]
        told = dated(rows, settings[number], trial, features) if name == OURS else {}
        results.add({**_fact(change, name, trial, alarm), **told})


def _fact(change: str, name: str, trial: int, alarm: Any) -> dict[str, Any]:
    return {"change": change, "method": name, "trial": trial, "alarm": alarm, "error": "", "located": ""}


def dated(rows: Array, every: float, seed: int, features: set[str]) -> dict[str, Any]:
    """Return by how many points ours misses the start of the change, and whether it names the right features alone."""
    watching = DriftMonitor(false_alarms_every=every, random_state=seed).fit(rows[:N_REFERENCE])
    changes = watching.update(rows[N_REFERENCE:])
    lasting = [
        one
        for one in changes
        if one.kind not in ("burst", "return to normal") and one.noticed >= N_REFERENCE + N_BEFORE
    ]
    if not lasting:
        return {}
    named = {
        name for name in (f"x{k}" for k in range(rows.shape[1])) if lasting[0].regions and name in lasting[0].regions[0]
    }
    return {"error": lasting[0].start - N_REFERENCE - N_BEFORE, "located": int(bool(named) and named <= features)}


def run_skab(results: Results) -> None:
    """Find first alarms on the test benches of SKAB, whose first rows are normal."""
    folder = Path(os.environ["POLYAFOREST_DATA"]) / "series"
    for path in tqdm(sorted(folder.glob("SKAB_*.npz")), disable=None):
        with np.load(path) as file:
            rows, labels = file["test"].astype(np.float64), file["y"].astype(int)
        rows = rows[:, rows[:N_SKAB].std(axis=0) > 0]
        start = int(np.argmax(labels[N_SKAB:])) + N_SKAB
        end = start + int(np.argmin(np.append(labels[start:], 0)))
        for name, (detect, settings) in METHODS.items():
            if (path.stem, name) in results:
                continue
            number = {OURS: 5, "ADWIN": 4, "KSWIN": 4, "Page–Hinkley": 4, "CUSUM": 4}.get(name, 0)
            alarm = detect(rows[:N_SKAB], rows[N_SKAB:], [settings[number]], 0)[0] + N_SKAB
            results.add(
                {"series": path.stem, "method": name, "alarm": alarm, "start": start, "end": end, "rows": len(rows)}
            )


# ---- the page --------------------------------------------------------------------------------------------------------


def rates_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show the points between false alarms of ours, by what was asked for."""
    settings = METHODS[OURS][1]
    lines = []
    for null in NULLS:
        times = [time_between(rows, null, OURS, number) for number in range(len(settings))]
        lines.append([null, *(f"{time:,.0f}" for time in times)])
    return table(["asked for", *(f"{int(every):,}" for every in settings)], lines)


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
            f1 = 2 * len(hits) / (2 * len(hits) + false + (len(delay) - len(hits) - false) + false)
            delays[name] = median([one if 0 <= one < WITHIN else WITHIN for one in delay if one >= 0] or [WITHIN])
            shown = f"{delays[name]:.0f}" if delays[name] < WITHIN else f">{WITHIN}"
            cells[name] = f"{shown} ({f1:.2f})"
        real = {name: delay for name, delay in delays.items() if name not in ("never", "always")}
        best = min(real.values(), default=0)
        lines.append(
            [change, *(f"**{cells[name]}**" if real.get(name) == best < WITHIN else cells[name] for name in METHODS)]
        )
    n_trials = len({row["trial"] for row in rows})
    return table([f"change (up to {n_trials} streams each)", *METHODS], lines)


def dates_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show by how much ours misses the start of changes, and how often it names the right features."""
    lines = []
    for change in CHANGES:
        own = [row for row in rows if row["change"] == change and row["method"] == OURS and row["error"] != ""]
        errors = [abs(int(row["error"])) for row in own]
        located = [int(row["located"]) for row in own]
        shown = f"{median(errors):.0f}" if errors else "–"
        lines.append([change, len(own), shown, f"{sum(located)} of {len(located)}"])
    return table(["change", "found", "date missed by, median points", "right features named, and no others"], lines)


def skab_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Show what became of the event of each series."""
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


def main() -> None:
    """Measure, then fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one trial each; files and pages stay as they are")
    parser.add_argument("--render", action="store_true", help="fill the page from the files alone")
    given = parser.parse_args()
    place = scratch(PAGE) if given.quick else None
    where = place or RESULTS
    nulls = Results("drift-rates", ("null", "method", "stream", "number"), where)
    changes = Results("drift-streams", ("change", "method", "trial"), where)
    skab = Results("drift-skab", ("series", "method"), where)
    if not given.render:
        run_nulls(nulls, 1 if given.quick else N_NULLS)
        run_changes(changes, list(nulls), 1 if given.quick else N_TRIALS)
        run_skab(skab)
    fill(PAGE, "rates", rates_table(list(nulls)), place or PAGES)
    fill(PAGE, "delays", delays_table(list(changes)), place or PAGES)
    fill(PAGE, "dates", dates_table(list(changes)), place or PAGES)
    fill(PAGE, "skab", skab_table(list(skab)), place or PAGES)


if __name__ == "__main__":
    main()
