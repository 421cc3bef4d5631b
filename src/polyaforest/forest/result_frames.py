"""Results of detectors (`Detections`) as frames and as HTML for notebooks."""

from __future__ import annotations

import html
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from polyaforest.forest.grades import severity
from polyaforest.util.text import count, label

__all__ = ["FrameKind", "kind_of", "to_frame", "to_html"]

_MOST_SHOWN = 20  # flagged rows in a notebook
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # notebooks would typeset dollar signs in names as formulas


class FrameKind(NamedTuple):
    """The library of a frame, and its index if it has one."""

    library: str
    index: Any = None


def kind_of(rows: Any) -> FrameKind | None:
    """Return the library of a frame; None for arrays and frames of other libraries."""
    library = type(rows).__module__.partition(".")[0]
    if library == "pandas" and hasattr(rows, "index"):
        return FrameKind(library, rows.index)
    return FrameKind(library) if library == "polars" else None


def to_frame(found: Any, kind: FrameKind | None) -> Any:
    """Return the results as a frame."""
    kind = kind or FrameKind("pandas" if find_spec("pandas") else "polars")
    library = import_module(kind.library)
    if kind.library == "polars":
        return library.DataFrame(_columns(found)).with_columns(library.col("severity").cast(library.Int8))
    frame = library.DataFrame(_columns(found)).astype({"severity": "Int8"})
    is_same = kind.index is not None and len(kind.index) == len(frame)
    return frame.set_axis(kind.index, axis=0) if is_same else frame


def _columns(found: Any) -> dict[str, Any]:
    """Return the columns of the frame, by name."""
    columns: dict[str, Any] = {
        "score": found.scores,
        "p_value": found.p_values,
        "threshold": found.thresholds,
        "is_anomaly": found.is_anomaly,
        "severity": _grades(found),
    }
    if len(found.novelty):
        columns["novelty"] = found.novelty
    if found.explanations:
        reasons = {i: _reason(explanation) for i, explanation in found.explanations.items()}
        columns["reason"] = [reasons.get(i) for i in range(len(found.scores))]
    return columns


def _grades(found: Any) -> list[int | None]:
    """Return the severity of each row; None if unknown, or not flagged."""
    bits = found.tail_bits if len(found.tail_bits) else np.full(len(found.scores), np.nan)
    pairs = zip(bits.tolist(), found.is_anomaly.tolist(), strict=True)
    return [severity(one) if is_anomaly else None for one, is_anomaly in pairs]


def _reason(explanation: Any) -> str:
    """Return an explanation in one line."""
    if explanation.summary:
        return str(explanation.summary)
    parts = [
        f"{label(one.name)} {explanation.format_value(one.feature, one.value)} {one.direction} "
        f"({one.seen or f'usual {explanation.format_typical(one.feature)}'})"
        for one in explanation.readings
    ]
    return "; ".join(parts) or explanation.region


def to_html(found: Any, kind: FrameKind | None) -> str:
    """Return the flagged rows as a table, the most anomalous first."""
    flagged = np.flatnonzero(found.is_anomaly)
    scored = int(np.isfinite(found.scores).sum())
    verb = "stands" if len(flagged) == 1 else "stand"
    lines = [f"<p><b>{len(flagged):,} of {count(scored, 'scored row')} {verb} out.</b></p>"]
    if len(flagged):
        order = flagged[np.argsort(found.scores[flagged], kind="stable")]
        grades, index = _grades(found), None if kind is None else kind.index
        names = range(len(found.scores)) if index is None or len(index) != len(found.scores) else index
        rows = [
            [
                str(names[i]),
                f"{found.scores[i]:.4g}",
                f"{found.p_values[i]:.2g}",
                "" if grades[i] is None else str(grades[i]),
                _reason(found.explanations[i]) if i in found.explanations else "",
            ]
            for i in order[:_MOST_SHOWN].tolist()
        ]
        lines.append(_table(("row", "score", "p", "severity", "reason" if found.explanations else ""), rows))
        if len(order) > _MOST_SHOWN:
            lines.append(f"<p>{count(len(order) - _MOST_SHOWN, 'more row')}: see to_frame().</p>")
    return f'<div class="{_NO_MATH}">{"".join(lines)}</div>'


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a table, every cell escaped."""
    left = 'style="text-align:left"'
    head = "".join(f"<th {left}>{html.escape(cell)}</th>" for cell in heads)
    lines = ("".join(f"<td {left}>{html.escape(label(cell, 300))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
