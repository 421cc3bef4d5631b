"""The picture that `detect` draws: scores over time, flagged rows, and the attribution of the worst one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.text import label
from polyaforest.detection.pipeline import Detected
from polyaforest.detection.report import Finding, format_place, is_date
from polyaforest.io.tables import BadInput, gather
from polyaforest.persistence.modelfile import refuse_irregular

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Columns

FORMATS = (".pdf", ".png", ".svg")
_MOST_ROWS = 40_000  # to draw, besides the flagged ones
_MOST_CHANNELS = 4
_DOTS_PER_INCH = 140
_LONGEST_HEADING = 100  # characters


def check_place(path: str) -> None:
    """Raise unless a picture can be written there."""
    from polyaforest.plots._canvas import matplotlib

    if os.path.splitext(path)[1].lower() not in FORMATS:
        raise BadInput(f"{path} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise BadInput(f"{path} cannot be written: there is no directory {os.path.dirname(path)}. Create it first.")
    refuse_irregular(path)
    matplotlib()


class Picture:
    """The rows to draw: all of them, or of many a random part and all flagged ones."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._share = 1.0  # of the rows that are not flagged
        self._parts: list[Detected] = []
        self._n_kept = 0

    def add(self, found: Detected) -> Detected:
        """Add rows, and return them."""
        self._keep(found)
        while self._n_kept > _MOST_ROWS:
            self._share /= 2
            parts, self._parts, self._n_kept = self._parts, [], 0
            for part in parts:
                self._keep(part)
        return found

    def draw(self, path: str, findings: list[Finding]) -> None:
        """Draw the rows, of several partitions those of the worst finding, and its attribution."""
        from matplotlib.figure import Figure

        from polyaforest.plots import blame_bars, trace

        worst = findings[0] if findings else None
        rows = self._rows_of(None if worst is None else worst.partition)
        explanation = None if worst is None else worst.explanation
        channels = self._channels(explanation)
        heights = [1.6 + 1.1 * len(channels)]
        if explanation is not None:
            heights.append(1.6 + 0.5 * min(len(explanation.names), 9))  # a bar each
        figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
        panels = np.atleast_1d(figure.subfigures(len(heights), 1, height_ratios=heights, hspace=0.04))
        trace(
            rows.scores,
            rows.chunk.rows[:, channels],
            times=_dates(rows.chunk.times),
            flagged=rows.is_anomaly,
            names=[self.columns.used[k] for k in channels],
            ax=panels[0].subplots(),
        )
        _head(panels[0], self._title(rows, worst))
        if explanation is not None and worst is not None:
            _head(panels[1], f"The worst: {format_place(worst)}")
            blame_bars(explanation, ax=panels[1].subplots())
        figure.savefig(path, dpi=_DOTS_PER_INCH)

    def _keep(self, found: Detected) -> None:
        """Keep flagged rows, and a share of the others by a hash of their number."""
        numbers = found.chunk.numbers.astype(np.uint64)
        hashes = (numbers * np.uint64(2_654_435_761)) % np.uint64(2**32)  # partitions may alternate
        is_judged = np.isfinite(found.scores)
        places = np.flatnonzero(is_judged & (found.is_anomaly | (hashes < self._share * 2**32)))
        self._n_kept += int((~found.is_anomaly[places]).sum())
        self._parts.append(found._replace(explanations={}).select(places))

    def _rows_of(self, partition: str | None) -> Detected:
        """Return the rows of a partition, or all, by time."""
        if not any(len(part.scores) for part in self._parts):
            raise BadInput("no row could be judged, so there is nothing to draw")
        chunk = gather(part.chunk for part in self._parts)
        scores, p_values, is_anomaly = map(np.concatenate, zip(*(part[1:4] for part in self._parts), strict=True))
        rows = Detected(chunk, scores, p_values, is_anomaly, {})
        if partition is not None and chunk.keys is not None:
            rows = rows.select(np.flatnonzero(np.array(chunk.keys, dtype=object) == partition))
        times = rows.chunk.times
        return rows if times is None else rows.select(np.argsort(times, kind="stable"))

    def _channels(self, explanation: Explanation | None) -> list[int]:
        """Return the columns to show: those with the most bits, in the order of the table."""
        n = len(self.columns.used)
        bits = np.zeros(n) if explanation is None else explanation.parts
        if len(bits) != n:  # a shingle holds its steps one after another
            bits = bits[: len(bits) // n * n].reshape(-1, n).sum(axis=0)
        return sorted(np.argsort(-bits, kind="stable")[:_MOST_CHANNELS].tolist())

    def _title(self, rows: Detected, worst: Finding | None) -> str:
        """Return how many rows are flagged, and of which partition."""
        whose = ""
        if self.columns.key and worst is not None and worst.partition is not None:
            whose = f"{label(self.columns.key)} {label(worst.partition)}: "
        n_flagged = int(rows.is_anomaly.sum())
        thinned = "" if self._share == 1 else f" ({self._share:.2g} of the others drawn)"
        return f"{whose}{n_flagged:,} rows flagged{thinned}" if n_flagged else f"{whose}nothing stands out"


def _head(panel: Any, words: str) -> None:
    """Set the heading of a panel."""
    from polyaforest.plots._canvas import drawable, plain

    plain(panel.suptitle(drawable(words, _LONGEST_HEADING), x=0.01, ha="left", fontsize=11))


def _dates(times: Array | None) -> Any:
    """Return times as dates, if they are dates."""
    if times is None or not all(is_date(time) for time in (times.min(), times.max())):
        return times
    return (times * 1e6).astype("datetime64[us]")
