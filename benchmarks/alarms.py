"""Alarms as an operator sees them: events found, alarms that are right, delays, lengths and false alarms.

`SeriesMPF` raises its own alarms. Every peer gets one limit per family, at which it raises as many alarms in all series
of the family together as `SeriesMPF()`. On clean generated series, where every alarm is false, it keeps the limit of
the family `cloud`. Writes results/alarms-scores.csv (rankings, a row per series), results/alarms.csv (alarms, a row per
family) and results/alarms-clean.csv, and fills docs/benchmarks/alarms.md. Verdicts are cached in .cache/alarms, a file
per series, so a run resumes where it was interrupted.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.registry import Benchmark, again, of_rows, only
from benchmarks.series import Case, pieces
from benchmarks.shared.alarm_detectors import DETECTORS, OURS, OWN_ALARMS, PEERS, Verdicts
from benchmarks.shared.alarm_series import CLEAN, CLOUD, FAMILIES, GENERATORS, cases_of
from benchmarks.shared.alarms import Tally, limit_for, soft_average_precision, tally
from benchmarks.shared.pages import PAGES, ROOT, fill, table
from benchmarks.shared.results import RESULTS, Results, present

Array = NDArray[Any]
Rows = Sequence[dict[str, str]]

CACHE = ROOT / ".cache" / "alarms"
WARM_UP = 352  # readings that `SeriesMPF` with context windows needs before its first score
ASKED = 1.0  # false alarms per 1,000 readings that `SeriesMPF()` is asked for
QUICK_CLEAN = 2  # generated series in a quick run
QUICK_READINGS = 1200
MOST_JOBS = 2


class Run(NamedTuple):
    """What a detector said of a series."""

    verdicts: Verdicts
    seconds: float


class Bench:
    """The series by family, the cache of verdicts, and the files of results."""

    def __init__(self, cases: dict[str, list[Case]], cache: Path = CACHE, results: Path = RESULTS) -> None:
        self.cases, self.cache = cases, cache
        self.rankings = Results("alarms-scores", ("detector", "family", "series"), results)
        self.totals = Results("alarms", ("detector", "family"), results)
        self.clean = Results("alarms-clean", ("detector", "series"), results)

    # ---- verdicts ----------------------------------------------------------------------------------------------------

    def prepare(self, names: Iterable[str], n_jobs: int) -> None:
        """Run detectors on all series that have no verdicts in the cache."""
        wanted = [(name, case) for cases in self.cases.values() for case in cases for name in names]
        wanted = [(name, case) for name, case in wanted if not self.file(name, case).exists()]
        if n_jobs == 1 or len(wanted) < 2:
            for name, case in wanted:
                _report(name, case, run(name, case, self.file(name, case)))
            return
        with ProcessPoolExecutor(n_jobs, get_context("spawn")) as pool:
            running = {pool.submit(run, name, case, self.file(name, case)): (name, case) for name, case in wanted}
            for done in as_completed(running):
                _report(*running[done], done.result())

    def file(self, name: str, case: Case) -> Path:
        """Return where the verdicts on a series are kept."""
        series = f"{case.family}-{case.name}".replace("/", "-").replace(" ", "_")
        return self.cache / name.replace(" ", "_") / f"{series}.npz"

    def load(self, name: str, case: Case) -> Run:
        """Return verdicts from the cache."""
        with np.load(self.file(name, case)) as stored:
            flags = stored.get("flags")
            return Run(Verdicts(stored["scores"], flags), float(stored["seconds"]))

    def forget(self, name: str) -> None:
        """Drop what there is of a detector on these series, to run it again; of ours, all that was matched with it."""
        for family, cases in self.cases.items():
            self.rankings.forget(detector=name, family=family)
            self.totals.forget(**({"family": family} if name == OURS else {"detector": name, "family": family}))
            for case in cases:
                self.file(name, case).unlink(missing_ok=True)
        if name == OURS:
            self.clean.forget()
        else:
            self.clean.forget(detector=name)

    # ---- results -----------------------------------------------------------------------------------------------------

    def measure(self, names: Sequence[str]) -> None:
        """Add all results that are missing, from the verdicts in the cache."""
        for family in self.cases:
            if family == CLEAN:
                continue
            for name in names:
                self._rank(name, family)
                if (name, family) not in self.totals:
                    self._count(name, family)
        for name in names if CLEAN in self.cases else ():
            self._count_false(name)

    def _rank(self, name: str, family: str) -> None:
        """Add how well the scores rank labelled readings first, in each series."""
        for case in self.cases[family]:
            if (name, family, case.name) in self.rankings:
                continue
            (scores, _), seconds = self.load(name, case)
            place = {"detector": name, "family": family, "series": case.name, "readings": len(scores)}
            found = {
                column: _or_empty(soft_average_precision(case.y[start:], scores[start:]))
                for column, start in (("ap", case.start), ("ap_later", max(case.start, WARM_UP)))
            }
            self.rankings.add({**place, **found, "seconds": seconds})

    def _count(self, name: str, family: str) -> None:
        """Add the alarms in all series of a family together: its own, or as many as ours."""
        cases = self.cases[family]
        limit = None if name in OWN_ALARMS else self._limit(name, family)
        total = sum((tally(flags, y) for flags, y in self._flags(name, cases, limit)), Tally())
        self.totals.add(
            {
                "detector": name,
                "family": family,
                "series": len(cases),
                "readings": total.n_readings,
                "events": total.n_events,
                "found": total.n_found,
                "alarms": total.n_alarms,
                "hits": total.n_hits,
                "recall": _or_empty(total.recall),
                "precision": _or_empty(total.precision),
                "per_1000": total.per_thousand,
                "delay": _or_empty(total.delay),
                "length_ratio": _or_empty(total.length_ratio),
                "limit": "" if limit is None else limit,
            }
        )

    def _limit(self, name: str, family: str) -> float:
        """Return the limit at which a detector raises as many alarms in a family as ours."""
        cases = self.cases[family]
        n_ours = sum(tally(flags, y).n_alarms for flags, y in self._flags(OURS, cases))
        return limit_for([self.load(name, case).verdicts.scores[case.start :] for case in cases], n_ours)

    def _flags(self, name: str, cases: Iterable[Case], limit: float | None = None) -> Iterator[tuple[Array, Array]]:
        """Yield the flags and labels of each series, from the first reading that counts."""
        for case in cases:
            scores, flags = self.load(name, case).verdicts
            if limit is not None:
                flags = scores >= limit
            assert flags is not None
            yield flags[case.start :], case.y[case.start :]

    def _count_false(self, name: str) -> None:
        """Add the alarms on each clean series: its own, or at the limit of the production metrics."""
        limits = [row["limit"] for row in self.totals if row["detector"] == name and row["family"] == CLOUD]
        if not limits:
            return
        limit = None if name in OWN_ALARMS else float(limits[0])
        for case in self.cases[CLEAN]:
            if (name, case.name) in self.clean:
                continue
            ((flags, y),) = self._flags(name, [case], limit)
            total = tally(flags, y)
            place = {"detector": name, "series": case.name, "readings": total.n_readings, "asked": ASKED}
            self.clean.add({**place, "alarms": total.n_alarms, "per_1000": total.per_thousand})


def run(name: str, case: Case, file: Path) -> float:
    """Run a detector on a series, and keep its verdicts in a file; return the seconds it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, on constant readings
        begun = time.perf_counter()
        scores, flags = DETECTORS[name](case.values)
        seconds = time.perf_counter() - begun
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part.npz")
    own = {} if flags is None else {"flags": np.asarray(flags, bool)}
    np.savez(partial, scores=np.asarray(scores, float), seconds=seconds, **own)
    partial.replace(file)  # whole or not at all
    return seconds


def _report(name: str, case: Case, seconds: float) -> None:
    print(f"{name}, {case.family} {case.name}: {seconds:.1f} s", flush=True)


def _or_empty(value: float) -> float | str:
    """Return a number, or nothing instead of NaN."""
    return "" if np.isnan(value) else float(value)


# ---- the page --------------------------------------------------------------------------------------------------------


def _number(text: str, form: str = ".2f") -> str:
    return f"{float(text):{form}}" if text else ""


def alarms_table(rows: Rows, family: str) -> str:
    """Return the alarms of each detector in a family."""
    own = {row["detector"]: row for row in rows if row["family"] == family}
    header = ["", "recall", "precision", "alarms", "per 1,000", "delay", "length ratio", "limit"]

    def line(name: str) -> list[str]:
        row = own[name]
        shown = [_number(row["recall"]), _number(row["precision"]), row["alarms"], _number(row["per_1000"])]
        limit = _number(row["limit"], ".3g") if row["limit"] else "its own"
        return [name, *shown, _number(row["delay"], "g"), _number(row["length_ratio"]), limit]

    return table(header, map(line, (name for name in DETECTORS if name in own)))


def families_of(rows: Rows) -> list[str]:
    """Return the families that have results."""
    return present(rows, "family", FAMILIES)


def totals_text(rows: Rows) -> str:
    """Return a table of alarms for each family."""
    return "\n\n".join(
        f"**{family}**, {_size(rows, family)}:\n\n{alarms_table(rows, family)}" for family in families_of(rows)
    )


def _size(rows: Rows, family: str) -> str:
    row = next(row for row in rows if row["family"] == family)
    return f"{row['series']} series, {int(row['readings']):,} readings, {row['events']} events"


def rankings_table(rows: Rows) -> str:
    """Return the average precision of each detector by family, over all readings and after the warm-up."""
    families = families_of(rows)

    def cell(name: str, family: str, column: str) -> str:
        own = [
            float(row[column]) for row in rows if row["detector"] == name and row["family"] == family and row[column]
        ]
        return f"{mean(own):.3f}" if own else ""

    def line(name: str) -> list[str]:
        return [name, *(cell(name, family, column) for family in families for column in ("ap", "ap_later"))]

    header = ["", *(f"{family}{part}" for family in families for part in ("", f", after {WARM_UP}"))]
    return table(header, map(line, present(rows, "detector", DETECTORS)))


def clean_table(rows: Rows) -> str:
    """Return the false alarms per 1,000 readings of each detector, by kind of series."""

    def cell(name: str, kind: str) -> str:
        own = [row for row in rows if row["detector"] == name and row["series"].rpartition(", seed")[0] == kind]
        n_readings = sum(int(row["readings"]) for row in own)
        return f"{1000 * sum(int(row['alarms']) for row in own) / n_readings:.2f}" if n_readings else ""

    kinds = [kind for kind in GENERATORS if any(row["series"].startswith(f"{kind}, seed") for row in rows)]
    names = present(rows, "detector", DETECTORS)
    return table(["", *names], ([kind, *(cell(name, kind) for name in names)] for kind in kinds))


def render(rankings: Rows, totals: Rows, clean: Rows, pages: Path = PAGES) -> None:
    """Fill the tables of the page."""
    fill("alarms", "alarms", totals_text(totals), pages)
    fill("alarms", "rankings", rankings_table(rankings), pages)
    fill("alarms", "clean", clean_table(clean), pages)


# ---- the command line ------------------------------------------------------------------------------------------------


def load(families: Iterable[str], is_quick: bool) -> dict[str, list[Case]]:
    """Return the series of families, or pieces of a few for a quick run."""
    found = {family: cases_of(family) for family in families}
    if not is_quick:
        return found
    return {family: _some(family, cases) for family, cases in found.items()}


def _some(family: str, cases: list[Case]) -> list[Case]:
    if family != CLEAN:
        return pieces(cases)
    return [
        case._replace(values=case.values[:QUICK_READINGS], y=case.y[:QUICK_READINGS]) for case in cases[:QUICK_CLEAN]
    ]


def installed(names: Iterable[str]) -> list[str]:
    """Return the detectors that can run: ours first, and no peer whose library is missing."""
    missing = [name for name in names if name in PEERS and find_spec(name) is None]
    for name in missing:
        print(f"{name} is not installed: left out", flush=True)
    return sorted({OURS, *names} - set(missing), key=list(DETECTORS).index)


def measure_all(options: Namespace, directory: Path) -> None:
    """Run detectors on all series that they have no verdicts on, and add the missing results."""
    bench = Bench(load(options.family, options.quick), CACHE / "quick" if options.quick else CACHE, directory)
    for name in () if options.again is None else options.again or (OURS,):
        bench.forget(name)
    names = installed(options.detector)
    bench.prepare(names, options.jobs)
    bench.measure(names)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "alarms-scores", "alarms", "alarms-clean"),
    quick="pieces of two generated series and of one series of each family",
    options={
        "--family": only((*FAMILIES, CLEAN)),
        "--detector": only(DETECTORS),
        "--again": again(DETECTORS),
        "--jobs": {"type": int, "choices": range(1, MOST_JOBS + 1), "default": 1, "help": "processes; 1 by default"},
    },
    peers=PEERS,
)
