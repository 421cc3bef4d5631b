"""What `detect` does with rows: a whole table judged at once, or a stream judged row by row as it is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import polars as pl

from polyaforest.cli._report import count, moment
from polyaforest.core.arrays import Array
from polyaforest.core.validation import NamedRows
from polyaforest.decision.thresholds import line_below_bulk
from polyaforest.io.tables import BadInput, Chunk

if TYPE_CHECKING:
    from polyaforest.explain import Explanation

RATE = 0.001  # share of ordinary rows that may be flagged where nobody has said
LEAST_ROWS = 8  # of a table: fewer cannot say what is usual
LEAST_PER_KEY = 3  # rows, on average
_ROWS_THAT_TELL = 20  # whether keys come again
_AT_ONCE = 65_536  # rows whose masses are looked up, tree by tree, at a time
_MOST_FORESTS = 32  # of keys that are kept for explanations; others are fitted again if need be
_UNNAMED = re.compile(r"^x(\d+)(?=$|\[)")  # a feature by its number
_DEPTH = 10  # of trees whose leaves are to mean something by themselves


@dataclass(frozen=True)
class Rule:
    """Which rows are flagged, and by what kind of forest."""

    kind: str | None = None  # "batch", "stream" or None for a table
    seed: int = 0
    window: int = 1024
    shingle: int | None = None
    false_alarm_rate: float | None = None
    epsilon: float | None = None
    phi: float = 0.8
    n_jobs: int | None = -1  # threads, which change no result: all there are

    @property
    def expected(self) -> float | None:
        """The share of ordinary rows that is flagged by chance, if anybody can tell."""
        return None if self.epsilon is not None else self.false_alarm_rate or RATE

    @property
    def is_stream(self) -> bool:
        """Whether rows are judged one after another, by those before them."""
        return self.kind == "stream"


class Judged(NamedTuple):
    """Rows and what was found about them; NaN where a row could not be judged."""

    chunk: Chunk
    scores: Array  # higher is more normal
    p_values: Array
    is_anomaly: Array
    explanations: dict[int, Explanation]  # by the row's place among these


def frame(rows: Array, names: list[str]) -> NamedRows:
    """Rows under the names of their columns; no copy, since a table may fill most of the memory."""
    return NamedRows(rows, names)


def new_forest(rule: Rule) -> Any:
    """The detector that a rule asks for, with nothing learned yet."""
    from polyaforest import BatchMPF, StreamingMPF

    common: dict[str, Any] = {"missing": "marginalise", "random_state": rule.seed, "n_jobs": rule.n_jobs}
    if rule.kind == "batch":
        return BatchMPF(**common)
    if rule.is_stream:
        forest = StreamingMPF(window=rule.window, false_alarm_rate=rule.false_alarm_rate, **common)
        return forest if rule.shingle is None else _series(forest, rule.shingle)
    if rule.epsilon is not None:
        return StreamingMPF(max_samples=None, max_depth=_DEPTH, score="log_mass", **common)
    return StreamingMPF(**common)


def _series(forest: Any, shingle: int) -> Any:
    """A detector of time series around a forest."""
    from polyaforest.timeseries import SeriesMPF

    return SeriesMPF(forest, shingle=shingle)


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """The rows of a table that are judged together."""

    places: Array  # of its rows in the table
    forest: Any  # None if it is not kept
    line: float | None = None  # score from which on rows are not flagged, if it goes by scores


@dataclass
class TableJudge:
    """A table judged as a whole, every row by all others; by key, if there are any, each a table of its own."""

    whole: Chunk
    names: list[str]
    rule: Rule
    groups: list[Group] = field(init=False, default_factory=list)
    p_values: Array = field(init=False, default_factory=lambda: np.empty(0))
    too_small: dict[str, int] = field(init=False, default_factory=dict)  # keys with too few rows, and how many

    def judge(self) -> Judged:
        """All rows with their verdicts; those of keys with too few rows have none."""
        n = len(self.whole.rows)
        scores, p_values, is_anomaly = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.bool_)
        least = self._least_rows()
        refuse_names_of_rows(self.whole.keys)
        for key, places in places_by_key(self.whole.keys, n).items():
            if len(places) < least:
                self.too_small[key] = len(places)
                continue
            rows = self._rows_at(places)
            forest = new_forest(self.rule).fit(rows)
            scores[places] = forest.score_samples(rows)
            p_values[places] = shares_as_strange(scores[places])
            is_anomaly[places] = self._flags(forest, rows, scores[places], p_values[places])
            kept = forest if len(self.groups) < _MOST_FORESTS else None
            self.groups.append(Group(places, kept, self._line(scores[places], is_anomaly[places])))
        self.p_values = p_values
        if not self.groups:
            raise BadInput(self._why_too_few(least))
        return Judged(self.whole, scores, p_values, is_anomaly, {})

    def explain(self, places: Iterable[int]) -> dict[int, Explanation]:
        """Why flagged rows, those at these places, are as strange as they are; missing values are filled in first."""
        wanted = np.fromiter(places, np.int64)
        found: dict[int, Explanation] = {}
        for group in self.groups:
            mine = wanted[np.isin(wanted, group.places)]
            if len(mine):
                forest = group.forest or self._fitted(group.places)
                reasons = explain_rows(forest, self.whole.rows[mine], self.names, group.line)
                found |= zip(mine.tolist(), reasons, strict=True)
        for place, explanation in found.items():
            explanation.is_anomaly, explanation.p_value = True, float(self.p_values[place])
        return found

    def _fitted(self, places: Array) -> Any:
        """The forest of some rows, the same every time."""
        return new_forest(self.rule).fit(self._rows_at(places))

    def _rows_at(self, places: Array) -> NamedRows:
        """Some rows of the table, or the table itself if these are all."""
        rows = self.whole.rows
        return frame(rows if len(places) == len(rows) else rows[places], self.names)

    def _flags(self, forest: Any, rows: NamedRows, scores: Array, p_values: Array) -> Array:
        """Which rows stand out."""
        if self.rule.epsilon is not None:
            return in_small_leaves(forest, rows, self.rule.epsilon, self.rule.phi)
        if self.rule.false_alarm_rate is not None:
            return np.asarray(p_values <= self.rule.false_alarm_rate)
        return np.asarray(scores < line_below_bulk(scores, RATE))

    def _line(self, scores: Array, is_anomaly: Array) -> float | None:
        """The lowest score that is not flagged, by which to say what would have been normal."""
        return None if self.rule.epsilon is not None or is_anomaly.all() else float(scores[~is_anomaly].min())

    def _least_rows(self) -> int:
        """The fewest rows that can be judged: p-values go by ranks, and the lowest of n is 1 / n."""
        rate = self.rule.false_alarm_rate
        return LEAST_ROWS if rate is None else max(LEAST_ROWS, int(np.ceil(1 / rate * (1 - 1e-12))))

    def _why_too_few(self, least: int) -> str:
        """Why nothing could be judged, and what to do."""
        n, rate = len(self.whole.rows), self.rule.false_alarm_rate
        purpose = "to tell what is usual" if rate is None else f"for a false alarm rate of {rate:g}"
        if self.whole.keys is None:
            return f"there are only {count(n, 'row')}: it takes at least {least:,} {purpose}"
        return (
            f"none of the {len(self.too_small):,} values of the key column has the {least:,} rows that it takes "
            f"{purpose}: leave --key out, or give more rows"
        )


def places_by_key(keys: list[str] | None, n: int) -> dict[str, Array]:
    """Where the rows of each key are, in order; all of them under no name if there are no keys."""
    if keys is None:
        return {"": np.arange(n)}
    groups = pl.DataFrame({"key": keys}, schema={"key": pl.String}).with_row_index("place")
    parts = groups.partition_by("key", as_dict=True, maintain_order=True)
    return {str(key): part["place"].to_numpy().astype(np.int64) for (key,), part in parts.items()}


def shares_as_strange(scores: Array) -> Array:
    """p-values of rows among themselves: the share of them that are at least as strange, the row itself included."""
    return np.asarray(np.searchsorted(np.sort(scores), scores, side="right") / len(scores))


def in_small_leaves(forest: Any, rows: NamedRows, epsilon: float, phi: float) -> Array:
    """Which rows are (epsilon, phi)-anomalies, some at a time: there is a mass for every row and tree."""
    parts = [forest.is_anomaly(part, epsilon, phi) for part in _slices(rows)]
    return np.concatenate(parts)


def _slices(rows: NamedRows) -> Iterator[NamedRows]:
    return (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))


def explain_rows(forest: Any, rows: Array, names: list[str], line: float | None) -> Iterator[Explanation]:
    """The explanations of rows, of values that are there or were filled in by the forest."""
    named = frame(rows, names)
    whole = frame(forest.impute(named), names) if np.isnan(rows).any() else named
    return iter(forest.explain(whole, line=line))


# ---- streams ---------------------------------------------------------------------------------------------------------


class StreamJudge:
    """Rows judged one after another, each by those before it; by key, if there are any, each a stream of its own.

    Models of keys that did not come for long wait in a temporary file, so that any number of them can be followed.
    """

    def __init__(self, names: list[str], rule: Rule) -> None:
        from polyaforest.live.model_store import Stock

        self.names, self.rule = names, rule
        self._models = Stock(None, lambda: new_forest(rule))
        self._latest: dict[str, float] = {}  # time that has come of a key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._models.close()

    def judge(self, chunk: Chunk) -> Judged:
        """Rows with their verdicts, and the reasons of those flagged. Afterwards they are learned."""
        n = len(chunk.rows)
        scores, p_values, is_anomaly = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.bool_)
        explanations: dict[int, Explanation] = {}
        for key, places in places_by_key(chunk.keys, n).items():
            forest = self._models[key].detector
            told = places if self.rule.shingle else places[lacking_at_first(forest, chunk.rows[places]) :]
            if not len(told):
                continue
            judged, reasons = self._advance(key, chunk, told)
            scores[told], p_values[told], is_anomaly[told] = judged[:3]
            explanations |= {int(told[i]): explanation for i, explanation in reasons.items()}
        return Judged(chunk, scores, p_values, is_anomaly, explanations)

    def _advance(self, key: str, chunk: Chunk, places: Array) -> tuple[Any, dict[int, Explanation]]:
        """Let the model of a key judge and learn its rows of a chunk."""
        from polyaforest.live.judging import judge_and_explain

        forest: Any = self._models[key].detector
        times = None
        if self.rule.shingle and chunk.times is not None:
            times = chunk.times[places]
            refuse_disorder(times, chunk.numbers[places], self._latest.get(key, -np.inf))
            self._latest[key] = float(times[-1])
        judged, reasons = judge_and_explain(forest, chunk.rows[places], times=times)
        return judged, {i: named(explanation, self.names) for i, explanation in reasons.items()}


def named(explanation: Explanation, columns: list[str]) -> Explanation:
    """An explanation whose features go by numbers, x0 or in a shingle x0[-3], with the names of the columns."""
    names = [_UNNAMED.sub(lambda found: columns[int(found[1])], name) for name in explanation.names]
    words = explanation._words
    blamed = [blame._replace(name=names[blame.feature]) for blame in words.blamed]
    explanation.names, explanation._words = names, words._replace(blamed=blamed)
    return explanation


def lacking_at_first(forest: Any, rows: Array) -> int:
    """How many rows to leave out until a complete one comes, for a forest that has nothing to fill gaps with yet."""
    if hasattr(forest, "forest_") and forest.n_points_:
        return 0
    is_whole = ~np.isnan(rows).any(axis=1)
    return int(is_whole.argmax()) if is_whole.any() else len(rows)


def refuse_disorder(times: Array, numbers: Array, latest: float = -np.inf) -> None:
    """Raise if a row of a time series is earlier than the one before it."""
    before = np.concatenate([[latest], times[:-1]])
    if (times < before).any():
        at = int((times < before).argmax())
        raise BadInput(
            f"row {numbers[at]:,} is from {moment(times[at])}, and the row before it from {moment(before[at])}: "
            "readings of a time series must come in the order of time, so sort the file by it first, or judge each "
            "series by itself (--key)"
        )


def refuse_names_of_rows(keys: list[str] | None) -> None:
    """Raise if keys are rather the names of single rows."""
    if keys is None or len(keys) < _ROWS_THAT_TELL:
        return
    n_keys = len(set(keys))
    if n_keys * LEAST_PER_KEY > len(keys):
        raise BadInput(
            f"the key column has {n_keys:,} different values in {len(keys):,} rows, so that hardly any row would have "
            "others to be compared with: give it as --id, if it names rows, and leave --key out"
        )


# ---- rows ------------------------------------------------------------------------------------------------------------


def gathered(chunks: Iterable[Chunk]) -> Chunk:
    """All chunks as one, which grows as they come: together with the whole, the parts would take twice the memory."""
    whole: list[Any] | None = None
    for chunk in chunks:
        whole = [_own(part) for part in chunk] if whole is None else list(map(_extended, whole, chunk))
    if whole is None:
        raise ValueError("there are no rows to gather")
    return Chunk(*whole)


def _own(part: Any) -> Any:
    """A field of the first chunk, as what can grow."""
    return part.copy() if isinstance(part, np.ndarray) else part


def _extended(whole: Any, part: Any) -> Any:
    """A field that has grown by that of the next chunk, in place."""
    if isinstance(whole, list):
        whole.extend(part)
    elif whole is not None:
        n = len(whole)
        whole.resize((n + len(part), *whole.shape[1:]), refcheck=False)  # nobody else has seen it yet
        whole[n:] = part
    return whole


def chosen_of(chunk: Chunk, places: Array) -> Chunk:
    """Some rows of a chunk."""
    return Chunk(*(_chosen(field, places) for field in chunk))


def _chosen(field: Any, places: Array) -> Any:
    """Some values of a field."""
    if field is None:
        return None
    return [field[i] for i in places.tolist()] if isinstance(field, list) else field[places]


def pieces_of(chunks: Iterable[Chunk], n: int) -> Iterator[Chunk]:
    """The rows of chunks, `n` at a time."""
    for chunk in chunks:
        for start in range(0, len(chunk.numbers), n):
            yield chosen_of(chunk, np.arange(start, min(start + n, len(chunk.numbers))))


def with_keys_that_come_again(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks, refused if the keys of the first hardly ever come again."""
    for number, chunk in enumerate(chunks):
        if number == 0:
            refuse_names_of_rows(chunk.keys)
        yield chunk


def flagged_of(judged: Judged) -> Judged:
    """The flagged rows alone."""
    places = np.flatnonzero(judged.is_anomaly)
    explanations = {j: judged.explanations[i] for j, i in enumerate(places.tolist()) if i in judged.explanations}
    scores, p_values, is_anomaly = judged.scores[places], judged.p_values[places], judged.is_anomaly[places]
    return Judged(chosen_of(judged.chunk, places), scores, p_values, is_anomaly, explanations)


def worst_places(judged: Judged, most: int) -> list[int]:
    """Where the flagged rows are, the worst of them if they are too many."""
    places = np.flatnonzero(judged.is_anomaly)
    worst = np.argsort(judged.scores[places], kind="stable")[:most]
    return [int(place) for place in np.sort(places[worst])]
