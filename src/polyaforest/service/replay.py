"""Replay of the history: a detector scores and learns stored records again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from polyaforest.forest.thresholds import Detections
from polyaforest.judge.models import Detector
from polyaforest.judge.series import decide, n_until_decision
from polyaforest.service.blocks import Block
from polyaforest.tables.validation import NamedRows

__all__ = ["PIECE", "Replayed", "replay"]

PIECE = 1024  # records at a time


class Replayed(NamedTuple):
    """A replayed piece of the records."""

    detector: Detector  # for the next piece
    judge: Detector  # that scored this piece
    block: Block
    detected: Detections


def replay(
    detector: Detector,
    block: Block,
    fields: list[str],
    *,
    is_timed: bool,
    finds_series: bool,
    explain: bool = False,
    at_once: int = PIECE,
) -> Iterator[Replayed]:
    """Score and learn records piece by piece.

    Parameters
    ----------
    detector : StreamingMPF or SeriesMPF
        Changed in place, and replaced once it detects that the records are a time series.
    block : Block
        The records.
    fields : list of str
        Names of the fields.
    is_timed, finds_series : bool
        Whether records have times, and whether to detect if they are a time series.
    explain : bool
        Whether to explain flagged records.
    at_once : int
        Largest number of records in a piece.
    """
    start = 0
    while start < len(block):
        n = min(at_once, n_until_decision(detector)) if finds_series else at_once
        place = np.arange(len(block))
        piece = block.where((place >= start) & (place < start + n))
        times = piece.times if is_timed else None
        keys = list(piece.names) if piece.names else None
        rows = NamedRows(piece.values, fields)
        detected = detector.detect_then_learn(rows, keys=keys, times=times, explain=explain)
        before, detector = detector, decide(detector) if finds_series and is_timed else detector
        yield Replayed(detector, before, piece, detected)
        start += n
