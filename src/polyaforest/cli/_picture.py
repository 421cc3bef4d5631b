"""The picture that `detect` draws: scores over time with what is flagged, and what is to blame for the worst of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest.cli._judging import Judged, chosen_of, gathered
from polyaforest.cli._report import Finding, is_date, place_in_words
from polyaforest.core.arrays import Array
from polyaforest.core.text import label
from polyaforest.io.tables import BadInput
from polyaforest.persistence.modelfile import refuse_irregular

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Columns

FORMATS = (".pdf", ".png", ".svg")
_MOST_ROWS = 40_000  # that are kept to be drawn, besides those flagged
_MOST_CHANNELS = 4
_DOTS_PER_INCH = 140
_LONGEST_HEADING = 100  # characters


def check_place(path: str) -> None:
    """Raise unless a picture can be drawn there."""
    from polyaforest.plots._canvas import matplotlib

    if os.path.splitext(path)[1].lower() not in FORMATS:
        raise BadInput(f"{path} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]} to be drawn")
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise BadInput(f"{path} cannot be written: there is no directory {os.path.dirname(path)}. Make it first.")
    refuse_irregular(path)
    matplotlib()


class Sketch:
    """The rows to draw: all of them, or if they are too many a random part and all that are flagged.

    Parameters
    ----------
    columns : Columns
        Of the table.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._share = 1.0  # of the rows that are not flagged
        self._parts: list[Judged] = []
        self._n_kept = 0

    def add(self, judged: Judged) -> Judged:
        """Take rows in, and hand them on."""
        self._keep(judged)
        while self._n_kept > _MOST_ROWS:
            self._share /= 2
            parts, self._parts, self._n_kept = self._parts, [], 0
            for part in parts:
                self._keep(part)
        return judged

    def draw(self, path: str, findings: list[Finding]) -> None:
        """Draw the rows, those of the key of the worst finding if there are keys, and what is to blame for that."""
        from matplotlib.figure import Figure

        from polyaforest.plots import blame_bars, trace

        worst = findings[0] if findings else None
        rows = self._rows_of(None if worst is None else worst.key)
        explanation = None if worst is None else worst.explanation
        channels = self._channels(explanation)
        heights = [1.6 + 1.1 * len(channels)] + ([] if explanation is None else [1.6 + 0.5 * _n_bars(explanation)])
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
            _head(panels[1], f"The worst: {place_in_words(worst)}")
            blame_bars(explanation, ax=panels[1].subplots())
        figure.savefig(path, dpi=_DOTS_PER_INCH)

    def _keep(self, judged: Judged) -> None:
        """Keep the rows that are flagged, and of the others those whose number falls within the share."""
        numbers = judged.chunk.numbers.astype(np.uint64)
        lots = (numbers * np.uint64(2_654_435_761)) % np.uint64(2**32)  # so that rows that alternate are drawn alike
        is_judged = np.isfinite(judged.scores)
        places = np.flatnonzero(is_judged & (judged.is_anomaly | (lots < self._share * 2**32)))
        self._n_kept += int((~judged.is_anomaly[places]).sum())
        self._parts.append(_some(judged, places))

    def _rows_of(self, key: str | None) -> Judged:
        """The rows of a key, or all, in the order of time."""
        if not any(len(part.scores) for part in self._parts):
            raise BadInput("no row could be judged, so there is nothing to draw")
        chunk = gathered(part.chunk for part in self._parts)
        scores, p_values, is_anomaly = map(np.concatenate, zip(*(part[1:4] for part in self._parts), strict=True))
        rows = Judged(chunk, scores, p_values, is_anomaly, {})
        if key is not None and chunk.keys is not None:
            rows = _some(rows, np.flatnonzero(np.array(chunk.keys, dtype=object) == key))
        times = rows.chunk.times
        return rows if times is None else _some(rows, np.argsort(times, kind="stable"))

    def _channels(self, explanation: Explanation | None) -> list[int]:
        """The columns to show: those to blame first, in the order of the table."""
        n = len(self.columns.used)
        bits = np.zeros(n) if explanation is None else explanation.parts
        if len(bits) != n:  # a shingle: its steps one after another
            bits = bits[: len(bits) // n * n].reshape(-1, n).sum(axis=0)
        return sorted(np.argsort(-bits, kind="stable")[:_MOST_CHANNELS].tolist())

    def _title(self, rows: Judged, worst: Finding | None) -> str:
        """How many rows are flagged, and whose."""
        whose = ""
        if self.columns.key and worst is not None and worst.key is not None:
            whose = f"{label(self.columns.key)} {label(worst.key)}: "
        n_flagged = int(rows.is_anomaly.sum())
        thinned = "" if self._share == 1 else f" ({self._share:.2g} of the others drawn)"
        return f"{whose}{n_flagged:,} rows flagged{thinned}" if n_flagged else f"{whose}nothing stands out"


def _some(judged: Judged, places: Array) -> Judged:
    """Some of the rows, without their explanations."""
    scores, p_values, is_anomaly = judged.scores[places], judged.p_values[places], judged.is_anomaly[places]
    return Judged(chosen_of(judged.chunk, places), scores, p_values, is_anomaly, {})


def _head(panel: Any, words: str) -> None:
    """The heading of a part of the picture, which names rows and keys."""
    from polyaforest.plots._canvas import drawable, plain

    plain(panel.suptitle(drawable(words, _LONGEST_HEADING), x=0.01, ha="left", fontsize=11))


def _n_bars(explanation: Explanation) -> int:
    """How many bars there will be."""
    return min(len(explanation.names), 9)


def _dates(times: Array | None) -> Any:
    """Times as dates, if they are."""
    if times is None or not all(is_date(time) for time in (times.min(), times.max())):
        return times
    return (times * 1e6).astype("datetime64[us]")
