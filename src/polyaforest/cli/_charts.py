"""Small inline pictures for reports, as SVG: a distribution, the levels of a column, a series with its band.

All text is escaped; nothing is loaded and nothing runs.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.util.numbers import number
from polyaforest.util.text import label

__all__ = ["distribution", "levels", "places", "series"]

_WIDTH, _HEIGHT = 320, 116
_LEFT, _RIGHT, _TOP, _BOTTOM = 8.0, 8.0, 18.0, 18.0
_BINS = 36
_TAIL = 0.005  # share of values at each end that may lie outside the picture
_ROW = 17.0  # height of a level
_LONGEST = 20  # characters of a level
_MOST_LEVELS = 6
_CHARACTER = 6.8  # width, about


def distribution(values: Array, value: float, usual: tuple[float, float], name: str) -> str:
    """Draw the values of a column as a histogram, with the usual range shaded and one value marked."""
    values = values[np.isfinite(values)]
    if not len(values) or not np.isfinite(value):
        return ""
    low, high = np.quantile(values, [_TAIL, 1 - _TAIL])
    low, high = min(float(low), usual[0]), max(float(high), usual[1])
    width = high - low or abs(high) or 1.0
    low, high = low - 0.05 * width, high + 0.05 * width
    is_far = not low - 2 * width <= value <= high + 2 * width
    start, end = (low, high) if is_far else (min(low, value - 0.03 * width), max(high, value + 0.03 * width))
    # a value far outside is drawn at the edge, behind a break of the axis
    inner = _LEFT + 34 * (is_far and value < low), _WIDTH - _RIGHT - 34 * (is_far and value > high)

    def x_of(one: float) -> float:
        return inner[0] + (one - start) / (end - start) * (inner[1] - inner[0])

    counts, edges = np.histogram(values, bins=_BINS, range=(start, end))
    heights = np.sqrt(counts / max(counts.max(), 1)) * (_HEIGHT - _TOP - _BOTTOM)
    floor = _HEIGHT - _BOTTOM
    bars = "".join(
        f'<rect x="{x_of(left):.1f}" y="{floor - height:.1f}" width="{max(x_of(right) - x_of(left) - 0.6, 0.6):.1f}" '
        f'height="{height:.1f}"/>'
        for left, right, height in zip(edges[:-1], edges[1:], np.maximum(heights, 1.2 * (counts > 0)), strict=True)
        if height > 0
    )
    band = x_of(usual[0]), max(x_of(usual[1]), x_of(usual[0]) + 1.5)
    at = (_LEFT + 6 if value < low else _WIDTH - _RIGHT - 6) if is_far else x_of(value)
    scale = usual[1] - usual[0] or width
    texts = [_text(x_of(usual[0]), floor + 13, number(usual[0], scale), "end" if usual[0] > start else "start", "axis")]
    if usual[1] != usual[0]:
        texts.append(_text(x_of(usual[1]), floor + 13, number(usual[1], scale), "start", "axis"))
    broken = (
        f'<path class="break" d="M{(inner[1] + 10 if value > high else inner[0] - 16):.1f} {floor + 4} l6 -8"/>'
        * is_far
    )
    return _svg(
        _HEIGHT,
        f"Distribution of {label(name)}, with {number(value, scale)} marked",
        f'<rect class="band" x="{band[0]:.1f}" y="{_TOP - 4}" width="{band[1] - band[0]:.1f}" '
        f'height="{floor - _TOP + 4:.1f}"/><g class="bars">{bars}</g>'
        f'<path class="axis" d="M{_LEFT} {floor} H{_WIDTH - _RIGHT}"/>{broken}'
        f'<path class="mark" d="M{at:.1f} {_TOP - 4} V{floor}"/>'
        f"{_text(at, _TOP - 7, number(value, scale), _anchor(at), 'value')}{''.join(texts)}",
    )


def levels(counts: Sequence[tuple[str, int]], marked: str, name: str) -> str:
    """Draw how often each level of a column occurs, the most frequent first, and one of them marked."""
    ordered = sorted(counts, key=lambda level: -level[1])
    shown = ordered[:_MOST_LEVELS]
    if marked not in [text for text, _ in shown]:
        shown = [*shown[: _MOST_LEVELS - 1], (marked, dict(ordered).get(marked, 0))]
    others = len(ordered) - len([text for text, _ in shown if text in dict(ordered)])
    most = max((n for _, n in shown), default=1) or 1
    left = min(max(len(label(text, _LONGEST)) for text, _ in shown) * _CHARACTER + 8, 0.5 * _WIDTH)
    room = _WIDTH - left - 60
    rows = []
    for k, (text, n) in enumerate(shown):
        y = 4 + _ROW * k
        kind = "marked" if text == marked else "bars"
        length = max(room * n / most, 1.5 if n else 0)
        rows.append(
            f"{_text(left - 5, y + 11, label(text, _LONGEST), 'end', kind)}"
            f'<g class="{kind}"><rect x="{left:.1f}" y="{y}" width="{length:.1f}" height="{_ROW - 4}"/></g>'
            f"{_text(left + length + 4, y + 11, f'{n:,}', 'start', kind)}"
        )
    if others > 0:
        rows.append(_text(left - 5, 4 + _ROW * len(shown) + 11, f"{others:,} more", "end", "axis"))
    height = 8 + _ROW * (len(shown) + (others > 0))
    return _svg(height, f"Levels of {label(name)}, with {label(marked)} marked", "".join(rows))


def series(readings: Array, median: Array, low: Array, high: Array, name: str) -> str:
    """Draw a series up to its last reading, which is marked, with the band that was expected."""
    both = np.concatenate([readings, low, high])
    both = both[np.isfinite(both)]
    if not len(both):
        return ""
    bottom, top = float(both.min()), float(both.max())
    room = top - bottom or 1.0
    x = np.linspace(_LEFT, _WIDTH - _RIGHT - 4, len(readings))
    y = _HEIGHT - _BOTTOM + 8 - (np.array([readings, median, low, high]) - bottom) / room * (_HEIGHT - _TOP - 14)
    known = np.isfinite(y[2]) & np.isfinite(y[3])
    band = ""
    if known.sum() > 1:
        points = [*zip(x[known], y[3][known], strict=True), *zip(x[known][::-1], y[2][known][::-1], strict=True)]
        band = f'<polygon class="band" points="{_points(points)}"/>'
    lines = "".join(
        f'<polyline class="{kind}" points="{_points(zip(x[part], row[part], strict=True))}"/>'
        for kind, row in (("median", y[1]), ("line", y[0]))
        for part in _runs(np.isfinite(row))
    )
    mark = ""
    if np.isfinite(y[0][-1]):
        width = float(high[-1] - low[-1])
        value = number(float(readings[-1]), width if np.isfinite(width) and width > 0 else room)
        mark = f'<circle class="dot" cx="{x[-1]:.1f}" cy="{y[0][-1]:.1f}" r="3.5"/>' + _text(
            _WIDTH - _RIGHT, max(y[0][-1] - 7, 10), value, "end", "value"
        )
    return _svg(_HEIGHT, f"{label(name)} up to this reading, with the expected band", band + lines + mark)


def places(findings: Sequence[tuple[float, int | None, str]], span: tuple[float, float]) -> str:
    """Draw where findings are: dots on a line by position and severity, each with its place as a tooltip."""
    width, height = 960, 74
    room = span[1] - span[0] or 1.0
    dots = "".join(
        f'<circle class="s{grade or 1}" cx="{10 + (at - span[0]) / room * (width - 20):.1f}" '
        f'cy="{56 - 9 * (grade or 1)}" r="{3.5 + 0.5 * (grade or 1)}"><title>{_escaped(words)}</title></circle>'
        for at, grade, words in reversed(findings)
    )
    body = f'<path class="axis" d="M6 62 H{width - 6}"/>{dots}'
    return _svg(height, "Where the findings are; higher is more severe", body, width)


def _svg(height: float, words: str, body: str, width: float = _WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{_escaped(words)}">'
        f"<title>{_escaped(words)}</title>{body}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str, kind: str) -> str:
    x = min(max(x, 2.0), _WIDTH - 2.0)
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escaped(words)}</text>'


def _anchor(x: float) -> str:
    return "start" if x < 0.25 * _WIDTH else "end" if x > 0.75 * _WIDTH else "middle"


def _points(points: object) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)  # type: ignore[attr-defined]


def _runs(known: Array) -> list[slice]:
    """Return the stretches where values are known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(first, last) for first, last in edges.reshape(-1, 2).tolist()]


def _escaped(words: str) -> str:
    return html.escape(words, quote=True)
