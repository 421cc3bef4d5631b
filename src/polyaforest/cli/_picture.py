"""The plot of `detect`: scores over time with flagged rows.

Below is the attribution of the worst row or, for a time series, the context windows of the worst events with what was
expected.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from polyaforest.cli._reports import Finding, format_place, format_span
from polyaforest.io.tables import BadInput, gather
from polyaforest.judge.table import Detected
from polyaforest.kernels.arrays import Array
from polyaforest.storage.modelfile import check_regular_file, replacing
from polyaforest.util.dates import is_date
from polyaforest.util.text import label

if TYPE_CHECKING:
    from polyaforest.explain import ContextWindow, Explanation
    from polyaforest.io.tables import TableColumns
    from polyaforest.plots import TracePlot
    from polyaforest.series import Forecast

FORMATS = (".pdf", ".png", ".svg")
_MOST_ROWS = 40_000  # to draw, besides the flagged ones
_MOST_CHANNELS = 4
_MOST_CONTEXTS = 4  # context windows to draw
_DOTS_PER_INCH = 140
_LONGEST_HEADING = 100  # characters
_LONGEST_LINE = 68  # above a context window
_CONTEXT_HEIGHT = 2.6


def check_place(path: str) -> None:
    """Raise if a plot cannot be written to this path."""
    from polyaforest.plots.canvas import matplotlib

    if os.path.splitext(path)[1].lower() not in FORMATS:
        raise BadInput(f"{path} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise BadInput(f"{path} cannot be written: there is no directory {os.path.dirname(path)}. Create it first.")
    check_regular_file(path)
    matplotlib()


class Picture:
    """The rows to draw: all flagged ones, and at most `_MOST_ROWS` of the others, sampled."""

    def __init__(self, columns: TableColumns) -> None:
        self.columns = columns
        self._share = 1.0  # of the rows that are not flagged
        self._parts: list[Detected] = []
        self._n_kept = 0
        self.expect: Callable[[Array], Forecast | None] | None = None  # what was expected at rows, by their numbers

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
        """Draw the rows and the attribution of the worst finding; with partitions, only the rows of its partition."""
        from matplotlib.figure import Figure

        from polyaforest.plots import attribution_bars, trace

        worst = findings[0] if findings else None
        rows = self._rows_of(None if worst is None else worst.partition)
        explanation = None if worst is None else worst.explanation
        events = [
            (rank, finding)
            for rank, finding in enumerate(findings, 1)
            if worst is not None and finding.partition == worst.partition and _context_of(finding) is not None
        ][:_MOST_CONTEXTS]
        channels = self._channels(explanation)
        names = [self.columns.numeric[k] for k in channels]
        heights = [1.6 + (1.7 if events else 1.1) * len(channels)]
        if events:
            heights += [_CONTEXT_HEIGHT] * -(-len(events) // 2)
        elif explanation is not None:
            heights.append(1.6 + 0.5 * min(len(explanation.names), 9))  # a bar each
        figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
        panels = np.atleast_1d(figure.subfigures(len(heights), 1, height_ratios=heights, hspace=0.04))
        expected = None if self.expect is None else self.expect(rows.chunk.numbers)
        drawn = trace(
            rows.scores,
            rows.chunk.rows[:, [self.columns.used.index(name) for name in names]],
            times=_dates(rows.chunk.times),
            flagged=rows.is_anomaly,
            expected=None if expected is None else type(expected)(*(part[:, channels] for part in expected)),
            names=names,
            ax=panels[0].subplots(),
        )
        _set_heading(panels[0], self._title(rows, worst, has_band=expected is not None))
        if events:
            _number_events(drawn, events)
            for panel, pair in zip(panels[1:], (events[:2], events[2:]), strict=False):
                _draw_contexts(panel, pair)
        elif explanation is not None and worst is not None:
            _set_heading(panels[1], f"Worst finding: {format_place(worst)}")
            attribution_bars(explanation, ax=panels[1].subplots())
        with replacing(os.path.realpath(path)) as file:
            figure.savefig(file, format=os.path.splitext(path)[1][1:].lower(), dpi=_DOTS_PER_INCH)

    def _keep(self, found: Detected) -> None:
        """Keep flagged rows, and a share of the others by a hash of their number."""
        numbers = found.chunk.numbers.astype(np.uint64)
        hashes = (numbers * np.uint64(2_654_435_761)) % np.uint64(2**32)  # partitions may alternate
        is_scored = np.isfinite(found.scores)
        places = np.flatnonzero(is_scored & (found.is_anomaly | (hashes < self._share * 2**32)))
        self._n_kept += int((~found.is_anomaly[places]).sum())
        self._parts.append(found._replace(explanations={}).select(places))

    def _rows_of(self, partition: str | None) -> Detected:
        """Return the rows of a partition, or all, by time."""
        if not any(len(part.scores) for part in self._parts):
            raise BadInput("no row could be scored, so there is nothing to draw")
        chunk = gather(part.chunk for part in self._parts)
        columns = zip(*((*part[1:4], *part[5:]) for part in self._parts), strict=True)
        scores, p_values, is_anomaly, thresholds, bits = map(np.concatenate, columns)
        rows = Detected(chunk, scores, p_values, is_anomaly, {}, thresholds, bits)
        if partition is not None and chunk.keys is not None:
            rows = rows.select(np.flatnonzero(np.array(chunk.keys, dtype=object) == partition))
        times = rows.chunk.times
        return rows if times is None else rows.select(np.argsort(times, kind="stable"))

    def _channels(self, explanation: Explanation | None) -> list[int]:
        """Return the numeric columns to draw: those with the most bits, in the order of the table."""
        n = len(self.columns.numeric)
        bits = np.zeros(n) if explanation is None else explanation.parts
        if self.columns.categories and explanation is not None and explanation.categories is not None:
            bits = bits[~explanation.categories.mask]
        if explanation is not None and explanation.context is not None:
            bits = explanation.by_step().sum(axis=0)
        elif len(bits) != n:  # a shingle holds its steps one after another
            bits = bits[: len(bits) // n * n].reshape(-1, n).sum(axis=0)
        return sorted(np.argsort(-bits, kind="stable")[:_MOST_CHANNELS].tolist())

    def _title(self, rows: Detected, worst: Finding | None, *, has_band: bool) -> str:
        """Return a title: the partition, the number of flagged rows, and what the band shows."""
        whose = ""
        if self.columns.key and worst is not None and worst.partition is not None:
            whose = f"{label(self.columns.key)} {label(worst.partition)}: "
        n_flagged = int(rows.is_anomaly.sum())
        thinned = "" if self._share == 1 else f" ({self._share:.2g} of the others drawn)"
        band = "; the band shows what was expected" if has_band else ""
        return f"{whose}{n_flagged:,} rows flagged{thinned}{band}" if n_flagged else f"{whose}nothing stands out{band}"


def _context_of(finding: Finding) -> ContextWindow | None:
    return None if finding.explanation is None else finding.explanation.context


def _number_events(drawn: TracePlot, events: list[tuple[int, Finding]]) -> None:
    """Write the ranks of events above the first panel, at their times."""
    from polyaforest.plots.canvas import SMALL, VERMILION

    panel = (*drawn.panels, drawn.ax)[0]
    for rank, finding in events:
        if finding.time is not None:
            times = _dates(np.array([finding.time]))
            x = float(panel.convert_xunits(times[0]))
            panel.annotate(
                str(rank),
                (x, 1.0),
                (0, 2),
                xycoords=panel.get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                fontsize=SMALL,
                color=VERMILION,
            )


def _draw_contexts(panel: Any, events: list[tuple[int, Finding]]) -> None:
    """Draw the context windows of events side by side, each for the channel with the most bits."""
    from polyaforest.plots import context_window
    from polyaforest.plots.canvas import drawable, plain

    for ax, (rank, finding) in zip(panel.subplots(1, 2, squeeze=False)[0], events, strict=False):
        explanation = finding.explanation
        assert explanation is not None
        worst = int(explanation.by_step().sum(axis=0).argmax())
        context_window(explanation, channels=[worst], ax=ax)
        words = [f"{rank}. {format_span(finding) or format_place(finding)}", explanation.summary]
        lines = [line for text in words for line in wrap(drawable(text, _LONGEST_HEADING), _LONGEST_LINE)]
        plain(ax.set_title("\n".join(lines), loc="left", fontsize=8.5))
    for ax in panel.axes[len(events) :]:
        ax.remove()


def _set_heading(panel: Any, words: str) -> None:
    """Set the heading of a panel."""
    from polyaforest.plots.canvas import drawable, plain

    plain(panel.suptitle(drawable(words, _LONGEST_HEADING), x=0.01, ha="left", fontsize=11))


def _dates(times: Array | None) -> Any:
    """Convert times to dates, if they are dates."""
    if times is None or not all(is_date(time) for time in (times.min(), times.max())):
        return times
    return (times * 1e6).astype("datetime64[us]")
