"""Records of the history, judged and learned again by a detector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from polyaforest.core.validation import NamedRows
from polyaforest.decision.thresholds import Detections
from polyaforest.live import Detector
from polyaforest.live.series import decide, n_until_decision
from polyaforest.service.blocks import Block

__all__ = ["PIECE", "Replayed", "replay"]

PIECE = 1024  # records at a time


class Replayed(NamedTuple):
    """A piece of the records."""

    detector: Detector  # that goes on
    judge: Detector  # that judged the piece
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
    """Judge and learn records piece by piece.

    Parameters
    ----------
    detector : StreamingMPF or SeriesMPF
        Changed in place; once it finds out that records are a time series, another one takes its place.
    block : Block
        The records.
    fields : list of str
        Their fields.
    is_timed, finds_series : bool
        Whether records have times, and whether the detector finds out if they are a time series.
    explain : bool
        Whether to explain flagged records.
    at_once : int
        The most records in a piece.
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
