"""Blocks of scored records of one key, stored as columns, and their summaries for the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import numpy as np
import orjson

from polyaforest.kernels.arrays import Array
from polyaforest.tables.categories import Categories, Texts
from polyaforest.tables.validation import NamedRows

__all__ = [
    "FLAGGED", "KEPT_OUT", "MUTED", "NOT_CHECKED", "NOT_LEARNED", "Band", "Block", "BucketSummary", "Buckets",
    "ScoredRecord", "seal", "unseal",
]  # fmt: skip

FLAGGED, MUTED, NOT_LEARNED, NOT_CHECKED = 1, 2, 4, 8  # bits of flags
KEPT_OUT = 16  # not learned because of `drift = "keep"`
_NO_POINT = -1
_SEAL = b"POLYA\x02\xff\xff"  # NaN as a number, impossible as a length: data without a checksum never starts like this
_CHECKSUM = 8  # bytes


def seal(text: bytes, place: bytes) -> bytes:
    """Prepend a checksum to data of the file; it covers the place of the data in the file too."""
    return b"".join([_SEAL, _checksum(text, place), text])


def unseal(text: bytes, place: bytes) -> bytes:
    """Return the data given to `seal`; raise ValueError if its checksum does not match.

    Data of an earlier release has no checksum and is returned unchecked.
    """
    if text[: len(_SEAL)] != _SEAL:
        return text
    start = len(_SEAL) + _CHECKSUM
    if text[len(_SEAL) : start] != _checksum(text[start:], place):
        raise ValueError("its checksum does not match")
    return text[start:]


def _checksum(text: bytes, place: bytes) -> bytes:
    return blake2b(text, key=place, digest_size=_CHECKSUM).digest()


class Band(NamedTuple):
    """The expected range of each field."""

    low: list[float]
    middle: list[float]
    high: list[float]


class ScoredRecord(NamedTuple):
    """A scored record."""

    position: int  # number in the stream, from 1
    number: int  # number in its key, from 0
    time: float
    score: float
    p_value: float
    threshold: float
    flags: int
    point: int | str | None  # key of the point in the model, None if not learned
    values: list[float]
    band: Band | None  # expected range
    texts: Mapping[int, str] = {}  # of its categories, by column; never written to
    weight: int = 1  # how many times it counts


@dataclass(frozen=True)
class Block:
    """Scored records of one key, in order."""

    positions: Array  # int64 (n,)
    numbers: Array  # int64 (n,)
    times: Array  # float64 (n,)
    scores: Array  # float64 (n,)
    p_values: Array  # float32 (n,)
    thresholds: Array  # float32 (n,)
    flags: Array  # uint8 (n,)
    points: Array  # int64 (n,); -1 if not learned or named
    values: Array  # float64 (n, C)
    bands: Array  # float32 (n, 3, C)
    weights: Array  # int64 (n,): how many times each record counts
    names: tuple[str | None, ...]  # keys of points that have names; empty if none has
    texts: Mapping[tuple[int, float], str] = field(default_factory=dict)  # of categories, by column and code

    @classmethod
    def of(cls, samples: Sequence[ScoredRecord]) -> Self:
        """Return records as columns."""
        n, n_fields = len(samples), len(samples[0].values)
        bands = np.full((n, 3, n_fields), np.nan, np.float32)
        for i, sample in enumerate(samples):
            if sample.band is not None:
                bands[i] = sample.band
        names = [sample.point if isinstance(sample.point, str) else None for sample in samples]
        points = [sample.point if isinstance(sample.point, int) else _NO_POINT for sample in samples]
        position, number, time, score, p_value, threshold, flags = list(zip(*samples, strict=True))[:7]
        return cls(
            np.array(position, np.int64),
            np.array(number, np.int64),
            np.array(time, np.float64),
            np.array(score, np.float64),
            np.array(p_value, np.float32),
            np.array(threshold, np.float32),
            np.array(flags, np.uint8),
            np.array(points, np.int64),
            np.array([sample.values for sample in samples], np.float64).reshape(n, n_fields),
            bands,
            np.array([sample.weight for sample in samples], np.int64),
            tuple(names) if any(name is not None for name in names) else (),
            {(k, sample.values[k]): text for sample in samples for k, text in sample.texts.items()},
        )

    @classmethod
    def joined(cls, blocks: Sequence[Self]) -> Self:
        """Concatenate consecutive blocks."""
        columns = [np.concatenate([getattr(block, name) for block in blocks]) for name in _COLUMNS]
        names: tuple[str | None, ...] = ()
        if any(block.names for block in blocks):
            names = tuple(name for block in blocks for name in block.names or (None,) * len(block))
        texts = {place: text for block in blocks for place, text in block.texts.items()}
        return cls(**dict(zip(_COLUMNS, columns, strict=True)), names=names, texts=texts)

    def __len__(self) -> int:
        return len(self.positions)

    def where(self, is_kept: Array) -> Self:
        """Return the records where a mask is True."""
        names = tuple(name for name, kept in zip(self.names, is_kept.tolist(), strict=False) if kept)
        columns = {name: getattr(self, name)[is_kept] for name in _COLUMNS}
        coded = {k for k, _ in self.texts}
        known = {(k, code) for k in coded for code in np.unique(columns["values"][:, k]).tolist()}
        texts = {place: text for place, text in self.texts.items() if place in known}  # deleted records leave none
        return replace(self, **columns, names=names, texts=texts)

    def named_rows(self, fields: Sequence[str], categories: Sequence[str]) -> NamedRows:
        """Return the values in the form that detectors accept, given the fields and which of them are categories."""
        coded = tuple(place for place, name in enumerate(fields) if name in categories)
        encoding = Categories(coded, len(fields), self.texts_by_code) if coded else None
        return NamedRows(self.values, list(fields), encoding)

    @property
    def texts_by_code(self) -> Texts:
        """The texts of categories; a code is that of one text in every column."""
        return {code: text for (_, code), text in self.texts.items()}

    @property
    def sample_weight(self) -> dict[str, Any]:
        """The weights of records as argument of detectors, none if each counts once: a series takes none."""
        return {} if (self.weights == 1).all() else {"sample_weight": self.weights.astype(np.float64)}

    def point_keys(self) -> list[int | str | None]:
        """Return the key of each record in the model, that of its first copy; None if it was not learned."""
        names = self.names or (None,) * len(self)
        return [
            name if name is not None else None if point == _NO_POINT else point
            for name, point in zip(names, self.points.tolist(), strict=True)
        ]

    def to_bytes(self) -> bytes:
        """Serialise the block."""
        facts = {"n": len(self), "fields": self.values.shape[1], "names": self.names or None}
        texts = [(*place, text) for place, text in self.texts.items()]
        is_weighted = bool((self.weights != 1).any())
        header = orjson.dumps(facts | ({"texts": texts} if texts else {}) | ({"weighted": True} if is_weighted else {}))
        names = _COLUMNS if is_weighted else _COLUMNS[:-1]
        columns = [np.ascontiguousarray(getattr(self, name)).tobytes() for name in names]
        return b"".join([len(header).to_bytes(4, "little"), header, *columns])

    @classmethod
    def of_bytes(cls, text: bytes) -> Self:
        """Read a block written by `to_bytes`."""
        start = 4 + int.from_bytes(text[:4], "little")
        header = orjson.loads(text[4:start])
        types, columns = _columns(header["n"], header["fields"]), []
        for dtype, shape in types if header.get("weighted") else types[:-1]:
            count = int(np.prod(shape))
            columns.append(np.frombuffer(text, dtype, count, start).reshape(shape))
            start += count * np.dtype(dtype).itemsize
        if len(columns) < len(types):
            columns.append(np.ones(header["n"], np.int64))
        texts = {(int(k), float(code)): str(text) for k, code, text in header.get("texts", ())}
        return cls(**dict(zip(_COLUMNS, columns, strict=True)), names=tuple(header["names"] or ()), texts=texts)


_COLUMNS = [one.name for one in fields(Block) if one.name not in ("names", "texts")]


def _columns(n: int, n_fields: int) -> list[tuple[Any, tuple[int, ...]]]:
    """Return the dtype and shape of each column of a block."""
    wide = [(np.float64, (n, n_fields)), (np.float32, (n, 3, n_fields))]
    types = (np.int64, np.int64, np.float64, np.float64, np.float32, np.float32, np.uint8, np.int64)
    return [*((dtype, (n,)) for dtype in types), *wide, (np.int64, (n,))]


@dataclass(frozen=True)
class BucketSummary:
    """A series summarised for the screen: each part covers one or several records."""

    times: Array  # float64 (n,): the mean time
    counts: Array  # int64 (n,)
    flagged: Array  # int64 (n,)
    scores: Array  # float64 (n,): the lowest
    p_values: Array  # float64 (n,): the lowest
    thresholds: Array  # float64 (n,): the last
    wide: Array  # float64 (n, 6, C): minimum, maximum and mean; low, middle and high of the expected range

    @classmethod
    def of_records(cls, block: Block) -> Self:
        """Return one part per record of a block."""
        values, bands = block.values[:, None, :], block.bands.astype(np.float64)
        return cls(
            block.times,
            np.ones(len(block), np.int64),
            (block.flags & FLAGGED).astype(np.int64),
            block.scores,
            block.p_values.astype(np.float64),
            block.thresholds.astype(np.float64),
            np.concatenate([values, values, values, bands], axis=1),
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate consecutive summaries."""
        return cls(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)))

    def reduced(self, groups: Array) -> Self:
        """Merge the parts of each run of equal numbers in `groups`, (n,), which must be sorted."""
        starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
        counts = np.add.reduceat(self.counts, starts)
        weights = self.counts[:, None]
        means = [_mean(self.wide[:, part], weights, starts) for part in range(2, 6)]
        wide = [np.fmin.reduceat(self.wide[:, 0], starts), np.fmax.reduceat(self.wide[:, 1], starts), *means]
        ends = np.append(starts[1:], len(groups)) - 1
        return type(self)(
            np.add.reduceat(self.times * self.counts, starts) / counts,
            counts,
            np.add.reduceat(self.flagged, starts),
            np.fmin.reduceat(self.scores, starts),
            np.fmin.reduceat(self.p_values, starts),
            self.thresholds[ends],
            np.stack(wide, axis=1),
        )

    def to_bytes(self) -> bytes:
        """Serialise the summary."""
        narrow = (self.times, self.counts, self.flagged, self.scores, self.p_values, self.thresholds)
        wide = self.wide.reshape(len(self.times), -1)
        return np.column_stack([*narrow, wide]).astype(np.float64).tobytes()

    @classmethod
    def of_bytes(cls, text: bytes, n_parts: int) -> Self:
        """Read a summary written by `to_bytes`."""
        table = np.frombuffer(text, np.float64).reshape(n_parts, -1)
        times, counts, flagged, scores, p_values, thresholds = table[:, :6].T
        wide = table[:, 6:].reshape(n_parts, 6, -1)
        return cls(times, counts.astype(np.int64), flagged.astype(np.int64), scores, p_values, thresholds, wide)

    def strip(self) -> bytes:
        """Serialise only times, counts, flags and p-values."""
        columns = np.column_stack([self.times, self.counts, self.flagged, self.p_values])
        return columns.astype(np.float64).tobytes()

    def inside(self, start: float, end: float) -> Self:
        """Return the parts between two times."""
        is_inside = (self.times >= start) & (self.times <= end)
        return type(self)(*(getattr(self, one.name)[is_inside] for one in fields(self)))


def _mean(values: Array, weights: Array, starts: Array) -> Array:
    """Return weighted means of runs of rows, ignoring NaN; NaN if a run has no other value."""
    is_known = ~np.isnan(values)
    total = np.add.reduceat(np.where(is_known, values, 0.0) * weights, starts)
    n = np.add.reduceat(is_known * weights, starts)
    with np.errstate(invalid="ignore"):
        return np.where(n > 0, total / np.maximum(n, 1), np.nan)


class Buckets(NamedTuple):
    """Equal spans of time."""

    start: float
    end: float
    n: int

    @property
    def width(self) -> float:
        """Width of a bucket in seconds."""
        return (self.end - self.start) / self.n

    def reduce(self, parts: BucketSummary) -> BucketSummary:
        """Merge the parts of each non-empty bucket; minimum and maximum are kept, so that spikes stay visible."""
        inside = parts.inside(self.start, self.end)
        if not len(inside.times):
            return inside
        places = self.places(inside.times)
        order = np.argsort(places, kind="stable")
        columns = (getattr(inside, one.name)[order] for one in fields(BucketSummary))
        return BucketSummary(*columns).reduced(places[order])

    def places(self, times: Array) -> Array:
        """Return the bucket number of each time; times outside go to the nearest bucket."""
        return np.clip(np.floor((times - self.start) / self.width), 0, self.n - 1).astype(np.int64)
