"""Gather samples of metrics into records: one value per field, for each key and moment.

Senders spread the samples of one moment over several requests. A record is complete once it has a sample of every
series that its key had lately, or once a later record of its key is complete, or after a time of waiting. Records of a
key leave in the order of their times; a sample that comes after its record has left is late and is dropped, so a
repeated request changes nothing.
"""

from __future__ import annotations

import time as clock
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

import orjson

from polyaforest.io.records import LONGEST_KEY
from polyaforest.io.sources.prometheus import TIME
from polyaforest.service.config import KEY, MetricsConfig
from polyaforest.service.samples import Kind, MetricSample, series_id, why_not_a_time
from polyaforest.settings.metrics import MetricSelector

__all__ = ["LATE", "Gathered", "Gatherer"]

LATE = "it came after its record was complete"  # as when a request is repeated
_LATELY = 5  # records of a key within which its series are expected again
_MOST_SERIES = 200_000
_MOST_PENDING = 100_000  # records
_MOST_UNMAPPED = 1000  # names of metrics to remember
_LONGEST_NAME = 200
_LONGEST_GAP = 3600.0  # seconds between two samples of a counter that still give a rate


class Gathered(NamedTuple):
    """What became of the samples of a request."""

    n_used: int
    n_other: int  # of metrics that no field has
    rejected: Counter[str]  # reasons

    @property
    def n_invalid(self) -> int:
        """Number of samples that can never be used."""
        return self.rejected.total() - self.rejected[LATE]

    @property
    def words(self) -> str:
        """Why samples were rejected."""
        return "; ".join(f"{n:,} samples: {reason}" for reason, n in self.rejected.most_common(5))


@dataclass
class _Pending:
    """A record that is being gathered."""

    time: float
    due: float  # by the monotonic clock
    # of each series: its field, its value, whether that is a rate, and its time
    values: dict[bytes, tuple[str, float | None, bool, float]] = field(default_factory=dict)

    def line(self, key: str | None) -> bytes | None:
        """Return the record as JSON; None if it has no value."""
        of_field: dict[str, list[tuple[float, bool]]] = {}
        for name, value, is_rate, _ in self.values.values():
            if value is not None:
                of_field.setdefault(name, []).append((value, is_rate))
        if not of_field:
            return None
        fields: dict[str, Any] = {TIME: self.time} | ({} if key is None else {KEY: key})
        for name, found in of_field.items():
            total = sum(value for value, _ in found)
            fields[name] = total if found[0][1] else total / len(found)
        return orjson.dumps(fields)


class Gatherer:
    """Gathers the samples of a stream into records, in the memory of one thread at a time.

    Parameters
    ----------
    rule : MetricsConfig
    why_ahead : callable
        Returns why a time is too far in the future, or None.
    latest : mapping of str to float
        Time of the latest record of each key.
    steady : callable
        A monotonic clock.
    """

    def __init__(
        self,
        rule: MetricsConfig,
        why_ahead: Callable[[float], str | None],
        latest: Mapping[str, float],
        steady: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.rule, self._why_ahead, self._steady = rule, why_ahead, steady
        self._selectors: dict[str, list[tuple[str, MetricSelector]]] = {}
        for name, selector in rule.selectors.items():
            self._selectors.setdefault(selector.name, []).append((name, selector))
        self._latest = dict(latest)
        self._pending: dict[str, list[_Pending]] = {}  # by key, in the order of their times
        self._n_pending = 0
        self._expected: dict[str, dict[bytes, int]] = {}  # last record with each series, by key
        self._n_records: Counter[str] = Counter()  # by key
        self._totals: dict[bytes, tuple[float, float, float]] = {}  # time, value and weight of counters
        self._forgot = steady()
        self.unmapped: Counter[str] = Counter()  # samples by name of the metric
        self.n_used = self.n_late = self.n_rejected = 0
        self.ready: list[bytes] = []  # complete records, until they are taken

    # ---- samples -----------------------------------------------------------------------------------------------------

    def add(self, samples: Iterable[MetricSample]) -> Gathered:
        """Add the samples of a request; complete records are then in `ready`."""
        rejected: Counter[str] = Counter()
        n_used = n_other = 0
        keys: set[str] = set()
        for sample in sorted(samples, key=lambda one: one.time):
            fields = self._fields_of(sample)
            if not fields:
                n_other += 1
                continue
            reason, key = self._add(sample, fields)
            if reason is None:
                n_used += 1
                keys.add(key)
            else:
                rejected[reason] += 1
        for key in keys:
            self._leave(key)
        self.n_used += n_used
        self.n_rejected += rejected.total()
        return Gathered(n_used, n_other, rejected)

    def _fields_of(self, sample: MetricSample) -> list[tuple[str, MetricSelector]]:
        """Return the fields that a sample belongs to."""
        known = self._selectors.get(sample.name)
        if known is None:
            name = sample.name[:_LONGEST_NAME]
            if name in self.unmapped or len(self.unmapped) < _MOST_UNMAPPED:
                self.unmapped[name] += 1
            return []
        return [one for one in known if one[1].matches(sample.labels)]

    def _add(self, sample: MetricSample, fields: list[tuple[str, MetricSelector]]) -> tuple[str | None, str]:
        """Add a sample; return why it cannot be used, if so, and its key."""
        key = self._key_of(sample)
        reason = "it has none of the labels of `by`" if key is None else None
        if key is not None and len(key) > LONGEST_KEY:
            reason = f"its key is longer than {LONGEST_KEY:,} characters"
        reason = reason or why_not_a_time(sample.time) or self._why_ahead(sample.time)
        if reason is None and not (isfinite(sample.value) and isfinite(sample.weight)):
            reason = "its value is not finite"
        series = series_id(sample)
        is_known = series + fields[0][0].encode() in self._totals
        if reason is None and len(self._totals) >= _MOST_SERIES and not is_known:
            reason = f"the stream has more than {_MOST_SERIES:,} series"
        if reason is not None or key is None:
            return reason, ""
        for name, selector in fields:
            reason = self._enter(key, sample, (series + name.encode(), name), selector)
        return reason, key

    def _key_of(self, sample: MetricSample) -> str | None:
        """Return the key of a sample; None if it lacks all labels of the key."""
        parts = [sample.labels.get(name, "") for name in self.rule.by]
        if not parts:
            return ""
        return "/".join(parts) if any(parts) else None

    def _enter(self, key: str, sample: MetricSample, place: tuple[bytes, str], selector: MetricSelector) -> str | None:
        """Enter a sample into the record of its key and moment; return why not, if it comes too late."""
        series, name = place
        record = self._record_of(key, sample.time, series)
        if record is None:
            self.n_late += 1
            return LATE
        if isinstance(record, str):
            return record
        if series not in record.values:  # otherwise it came twice
            record.values[series] = (name, *self._value_of(series, sample, selector), sample.time)
        return None

    def _record_of(self, key: str, time: float, series: bytes) -> _Pending | str | None:
        """Return the pending record of a moment, a new one if there is none; None if it has left, or why not."""
        if time <= self._latest.get(key, float("-inf")):
            return None
        records = self._pending.setdefault(key, [])
        for record in records:
            known = record.values.get(series)
            if abs(record.time - time) < self.rule.within if known is None else known[3] == time:
                return record
        if self._n_pending >= _MOST_PENDING:
            return f"more than {_MOST_PENDING:,} records are incomplete"
        record = _Pending(time, self._steady() + self.rule.wait)
        records.append(record)
        records.sort(key=lambda one: one.time)
        self._n_pending += 1
        return record

    def _value_of(self, series: bytes, sample: MetricSample, selector: MetricSelector) -> tuple[float | None, bool]:
        """Return the value of a sample, None if it is not known yet, and whether it is a rate."""
        kind = sample.kind
        if selector.function == "value" or (kind is Kind.GAUGE and selector.function is None):
            self._totals[series] = (sample.time, 0.0, 0.0)
            return sample.value, False
        before = self._totals.get(series)
        is_mean = kind in (Kind.MEAN, Kind.MEAN_DELTA)
        if before is None or sample.time > before[0]:
            self._totals[series] = (sample.time, sample.value, sample.weight)
        if kind is Kind.MEAN_DELTA:
            return (sample.value / sample.weight if sample.weight > 0 else None), False
        since = sample.start if kind is Kind.DELTA and sample.start else None if before is None else before[0]
        if since is None or not 0.0 < sample.time - since <= _LONGEST_GAP:
            return None, not is_mean
        if kind is Kind.DELTA:
            return sample.value / (sample.time - since), True
        value, weight = _increase(sample, before)
        if is_mean:
            return (value / weight if weight > 0 else None), False
        return value / (sample.time - since), True

    # ---- records -----------------------------------------------------------------------------------------------------

    def _leave(self, key: str) -> None:
        """Move the records of a key to `ready`, up to the last complete or overdue one."""
        records, now = self._pending.get(key, []), self._steady()
        expected = self._expected.get(key, {}).keys()
        n = next(
            (
                place
                for place in range(len(records), 0, -1)
                if records[place - 1].due <= now or (expected and expected <= records[place - 1].values.keys())
            ),
            0,
        )
        for record in records[:n]:
            self._take(key, record)
        self._n_pending -= n
        del records[:n]
        if not records:
            self._pending.pop(key, None)

    def _take(self, key: str, record: _Pending) -> None:
        """Complete a record."""
        self._latest[key] = max(record.time, self._latest.get(key, record.time))
        self._n_records[key] += 1
        number, expected = self._n_records[key], self._expected.setdefault(key, {})
        expected.update(dict.fromkeys(record.values, number))
        for series in [one for one, last in expected.items() if last <= number - _LATELY]:
            del expected[series]
        line = record.line(key if self.rule.by else None)
        if line is not None:
            self.ready.append(line)

    def check(self) -> None:
        """Complete overdue records, and now and then forget series that have ended."""
        now = self._steady()
        if now - self._forgot > _LONGEST_GAP:
            self._forgot = now
            newest = max((total[0] for total in self._totals.values()), default=0.0)
            self._totals = {one: total for one, total in self._totals.items() if total[0] >= newest - _LONGEST_GAP}
        for key in [key for key, records in self._pending.items() if any(record.due <= now for record in records)]:
            self._leave(key)

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Return what a restart needs: incomplete records, and records that wait for the inbox."""
        pending = [
            (key, record.time, [(series.hex(), *value) for series, value in record.values.items()])
            for key, records in self._pending.items()
            for record in records
        ]
        return orjson.dumps({"pending": pending, "ready": [line.decode() for line in self.ready]})

    def totals(self) -> bytes:
        """Return the last samples of counters, with which rates continue after a restart."""
        return orjson.dumps([(series.hex(), *total) for series, total in self._totals.items()])

    def restore(self, state: bytes | None, totals: bytes | None) -> None:
        """Restore a state, without the records that have left since; ignore fields that no longer exist."""
        fields = self.rule.fields
        for key, time, values in orjson.loads(state)["pending"] if state else ():
            known = {bytes.fromhex(series): (name, value, bool(rate), at) for series, name, value, rate, at in values}
            known = {series: value for series, value in known.items() if value[0] in fields}
            if known and time > self._latest.get(key, float("-inf")):
                self._pending.setdefault(key, []).append(_Pending(time, self._steady() + self.rule.wait, known))
                self._n_pending += 1
        if state:
            self.ready = [line.encode() for line in orjson.loads(state)["ready"]]
        for series, *total in orjson.loads(totals) if totals else ():
            self._totals[bytes.fromhex(series)] = (total[0], total[1], total[2])


def _increase(sample: MetricSample, before: tuple[float, float, float] | None) -> tuple[float, float]:
    """Return the increase of a counter and of its number of observations; a counter that fell began again at 0."""
    assert before is not None
    if sample.value < before[1] or sample.weight < before[2]:
        return sample.value, sample.weight
    return sample.value - before[1], sample.weight - before[2]
