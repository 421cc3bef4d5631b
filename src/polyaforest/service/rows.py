"""Scored records of the history as rows: for the API as JSON, for other programs as CSV and Parquet."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import numpy as np
import polars as pl

from polyaforest.service.blocks import FLAGGED, MUTED, NOT_LEARNED, Block
from polyaforest.service.history import RecordHistory
from polyaforest.util.text import printable

__all__ = ["csv_parts", "pages", "parquet_parts", "rows_of", "time_text"]

_FLAGS = {"is_anomaly": FLAGGED, "is_muted": MUTED, "is_learned": NOT_LEARNED}
_PAGE = 8192  # records
_PIECE = 1 << 20  # bytes


def time_text(time: float) -> str | None:
    """Return a time in RFC 3339; None if it is out of range."""
    try:
        return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def pages(
    history: RecordHistory,
    keys: Sequence[str],
    span: tuple[float, float],
    after: tuple[str, int] | None = None,
    most: int | None = None,
) -> Iterator[tuple[str, Block]]:
    """Yield blocks of records by key, in the order of keys and positions, at most `most` records in total.

    Parameters
    ----------
    history : RecordHistory
    keys : sequence of str
        Sorted.
    span : (float, float)
        Times of the first and last record.
    after : (str, int), optional
        Key and position of the last record before.
    most : int, optional
    """
    left = float("inf") if most is None else most
    for key in keys:
        if after is not None and key < after[0]:
            continue
        position = after[1] if after is not None and key == after[0] else -1
        while left > 0:
            block = history.read_after(key, position, span, int(min(left, _PAGE)))
            if block is None:
                break
            yield key, block
            left -= len(block)
            position = int(block.positions[-1])


def rows_of(key: str, block: Block, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a block as JSON values."""
    texts = block.texts
    for i in range(len(block)):
        values = block.values[i].tolist()
        band = block.bands[i].astype(np.float64).tolist()
        flags = int(block.flags[i])
        yield {
            "position": int(block.positions[i]),
            "time": time_text(float(block.times[i])),
            "key": key,
            "score": _number(block.scores[i]),
            "p_value": _number(block.p_values[i]),
            "threshold": _number(block.thresholds[i]),
            **{name: bool(flags & bit) != (name == "is_learned") for name, bit in _FLAGS.items()},
            "weight": int(block.weights[i]),
            "values": {
                name: texts.get((k, values[k]), _number(values[k])) for k, name in enumerate(fields) if k < len(values)
            },
            "expected": {
                name: {"low": low, "middle": middle, "high": high}
                for name, *(low, middle, high) in zip(fields, *(map(_number, part) for part in band), strict=False)
                if middle is not None
            },
        }


def _number(value: Any) -> float | None:
    number = float(value)
    return number if isfinite(number) else None


def _frame(key: str, block: Block, fields: Sequence[str], weight: str | None) -> pl.DataFrame:
    """Return the records of a block as a table; fields that the block lacks are empty. `weight` names the weights."""
    n, width = len(block), block.values.shape[1]
    micros = np.where(np.isfinite(block.times), block.times, 0.0) * 1e6
    columns: dict[str, Any] = {
        "time": pl.Series(micros.clip(-6e16, 2.5e17).astype(np.int64)).cast(pl.Datetime("us", "UTC")),
        "key": [key] * n,
        "position": block.positions,
        "score": block.scores,
        "p_value": block.p_values.astype(np.float64),
        "threshold": block.thresholds.astype(np.float64),
    }
    columns |= {name: ((block.flags & bit) > 0) != (name == "is_learned") for name, bit in _FLAGS.items()}
    if weight is not None:
        columns[_unused(weight, columns)] = block.weights
    for k, name in enumerate(fields):
        values = block.values[:, k] if k < width else np.full(n, np.nan)
        texts = {code: text for (place, code), text in block.texts.items() if place == k}
        is_text = bool(texts)
        columns[_unused(name, columns)] = (
            [texts.get(value) for value in values.tolist()] if is_text else pl.Series(values).fill_nan(None)
        )
        for i, part in enumerate(("low", "middle", "high")):
            band = block.bands[:, i, k].astype(np.float64) if k < width else np.full(n, np.nan)
            columns[_unused(f"{name}.{part}", columns)] = pl.Series(band).fill_nan(None)
    return pl.DataFrame(columns)


def _unused(name: str, columns: dict[str, Any]) -> str:
    """Return a name that no other column has."""
    while name in columns:
        name += "_"
    return name


def csv_parts(
    found: Iterator[tuple[str, Block]], fields: Sequence[str], coded: Sequence[str], weight: str | None = None
) -> Iterator[bytes]:
    """Yield a table as CSV, times in RFC 3339; text that a spreadsheet would take for a formula gets an apostrophe."""
    is_first = True
    for key, block in found:
        frame = _typed(_frame(_plain(key), block, fields, weight), coded)
        text = frame.write_csv(include_header=is_first, datetime_format="%Y-%m-%dT%H:%M:%S%.fZ")
        is_first = False
        yield text.encode()


def _plain(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    text = printable(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def _typed(frame: pl.DataFrame, coded: Sequence[str]) -> pl.DataFrame:
    """Return a table whose categories are text, also where all are missing."""
    return frame.with_columns(pl.col(name).cast(pl.String) for name in coded if name in frame.columns)


def parquet_parts(
    found: Iterator[tuple[str, Block]], fields: Sequence[str], coded: Sequence[str], weight: str | None = None
) -> Iterator[bytes]:
    """Yield a table as Parquet, written to temporary files first."""
    with tempfile.TemporaryDirectory(prefix="polyaforest-") as folder:
        n = 0
        for n, (key, block) in enumerate(found, 1):
            _typed(_frame(key, block, fields, weight), coded).write_parquet(os.path.join(folder, f"{n:09d}.parquet"))
        whole = os.path.join(folder, "all")
        if n:
            pl.scan_parquet(os.path.join(folder, "*.parquet")).sink_parquet(whole)
        else:
            pl.DataFrame({"time": pl.Series([], dtype=pl.Datetime("us", "UTC"))}).write_parquet(whole)
        with open(whole, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
