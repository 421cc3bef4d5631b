"""Pictures look as they did: drawn without words, which differ between fonts, and compared with those in tests/images.

    python -m tests.plots.test_pictures

draws those in tests/images again. Look at them before you commit them.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import pytest
from comparisons import compared
from forests import made
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text

from polyaforest import BatchMPF, StreamingMPF, plots
from polyaforest.explain import ContextWindow, Explanation
from polyaforest.series import Forecast

pytestmark = pytest.mark.end_to_end

IMAGES = Path(__file__).parents[1] / "images"
MOST_DIFFERENT = 10.0  # the root of the mean square over all pixels, of 255: releases of matplotlib differ by up to 7
PLAIN = (np.arange(160).reshape(80, 2) * [37, 53] % [61, 59]) / 10.0
ROWS = np.vstack([PLAIN, PLAIN / 4 + 1.0])  # no generator, whose numbers another release may change
SHALLOW = {"n_estimators": 2, "max_depth": 5, "random_state": 1}
SCORES = -1.0 - 0.3 * np.sin(np.arange(120)) - 5.0 * (np.arange(120) // 6 == 11)


def tree() -> StreamingMPF:
    return made(StreamingMPF, max_samples=None, **SHALLOW).fit(ROWS)


def process() -> BatchMPF:
    return made(BatchMPF, **SHALLOW).fit(ROWS)


WAVE = np.sin(np.arange(120) / 9.0) - 2.0 * (np.arange(120) // 6 == 11)


def band(width: float) -> Forecast:
    middle = np.sin(np.arange(120) / 9.0)[:, None]
    return Forecast(middle, middle - width, middle + width, middle)


def context(width: float) -> Explanation:
    parts = [part[:72] for part in band(width)[:3]]
    bits = np.maximum(np.abs(WAVE[:72, None] - parts[0]) - 0.5, 0.0)
    nothing = np.zeros(1)
    seen = ContextWindow(["wave"], 60.0 * np.arange(72), WAVE[:72, None], *parts, bits)
    return Explanation(nothing, ["wave"], 9.0, 1.0, nothing, nothing, True, None, np.arange(1), None, "", seen)


def explained(value: float = 9.0):
    rows = np.hstack([ROWS, ROWS[::-1]])
    odd = rows[:30].copy()
    odd[12:16, 1] = value
    odd[20:24, 2] = -value
    return StreamingMPF(n_estimators=20, random_state=1).fit(rows).explain(odd)


LABELS = np.arange(120) % 3 == 0
METHODS = {"a": SCORES - 0.2 * LABELS, "b": SCORES - LABELS}

# each plot, and a similar one that the comparison must distinguish
PICTURES = {
    "partition": (
        lambda ax: plots.partition(tree(), X=ROWS, ax=ax),
        lambda ax: plots.partition(tree(), 1, X=ROWS, ax=ax),
    ),
    "shaded": (
        lambda ax: plots.partition(process(), shade=True, colorbar=False, ax=ax),
        lambda ax: plots.partition(process(), 1, shade=True, colorbar=False, ax=ax),
    ),
    "density": (
        lambda ax: plots.density(tree(), X=ROWS, resolution=60, ax=ax),
        lambda ax: plots.density(tree(), "mass", X=ROWS, resolution=60, ax=ax),
    ),
    "trace": (
        lambda ax: plots.trace(SCORES, SCORES**2, threshold=-3.0, windows=[(90, 100)], ax=ax),
        lambda ax: plots.trace(SCORES, SCORES**2, threshold=-9.0, windows=[(90, 100)], ax=ax),
    ),
    "trace-expected": (
        lambda ax: plots.trace(SCORES, WAVE, flagged=SCORES < -3.0, expected=band(0.5), ax=ax),
        lambda ax: plots.trace(SCORES, WAVE, flagged=SCORES < -3.0, expected=band(0.9), ax=ax),
    ),
    "context": (
        lambda ax: plots.context_window(context(0.5), ax=ax),
        lambda ax: plots.context_window(context(0.9), ax=ax),
    ),
    "attribution-bars": (
        lambda ax: plots.attribution_bars(explained(15.0)[13], ax=ax),
        lambda ax: plots.attribution_bars(explained(15.0)[21], ax=ax),
    ),
    "attribution-map": (
        lambda ax: plots.attribution_map(explained(), ax=ax),
        lambda ax: plots.attribution_map(explained(4.0), ax=ax),
    ),
    "tree": (lambda ax: plots.tree(tree(), ax=ax), lambda ax: plots.tree(tree(), 1, ax=ax)),
    "credible-bands": (
        lambda ax: plots.credible_bands(tree(), ROWS[:25], ax=ax),
        lambda ax: plots.credible_bands(tree(), ROWS[:25], level=0.5, ax=ax),
    ),
    "shares": (
        lambda ax: plots.shares(compared(), ax=ax),
        lambda ax: plots.shares(compared(after=0.6), ax=ax),
    ),
    "roc": (lambda ax: plots.roc(LABELS, METHODS, ax=ax), lambda ax: plots.roc(LABELS, {"b": METHODS["b"]}, ax=ax)),
    "precision-recall": (
        lambda ax: plots.precision_recall(LABELS, METHODS, ax=ax),
        lambda ax: plots.precision_recall(LABELS, METHODS, higher="anomalous", ax=ax),
    ),
}


def save(draw, file: Path) -> Path:
    """Draw with matplotlib's defaults, at a fixed position, without text."""
    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=(3.6, 2.8), dpi=80)
        draw(figure.add_axes((0.06, 0.08, 0.88, 0.86)))
        figure.canvas.draw()  # words of axes are only there once they have been drawn
        for text in figure.findobj(Text):
            text.set_visible(False)
        for ax in figure.axes:
            ax.tick_params(which="both", length=0)
            if ax.get_legend() is not None:
                ax.get_legend().set_visible(False)  # its place goes by the width of its words
        figure.savefig(file, metadata={"Software": None})
    return file


def difference(name: str, draw, folder: Path) -> str | None:
    """Matplotlib's message if a picture differs from the stored image, else None."""
    return compare_images(IMAGES / f"{name}.png", save(draw, folder / f"{name}.png"), MOST_DIFFERENT)


@pytest.mark.parametrize("name", PICTURES)
def test_picture_matches_stored_image(name, tmp_path):
    assert difference(name, PICTURES[name][0], tmp_path) is None


@pytest.mark.parametrize("name", PICTURES)
def test_different_picture_is_distinguished(name, tmp_path):
    assert difference(name, PICTURES[name][1], tmp_path) is not None


def test_gallery_shows_all_functions():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "gallery.md").read_text("utf-8")
    functions = [name for name in plots.__all__ if name.islower()]
    assert [name for name in functions if f"plots.{name}(" not in page] == []


def test_all_stored_images_are_compared():
    kept = {file.stem for file in IMAGES.glob("*.png")}
    assert {name for name in kept if not name.startswith("page-")} == set(PICTURES)  # those are of the service


if __name__ == "__main__":
    for name, (draw, _) in PICTURES.items():
        print(save(draw, IMAGES / f"{name}.png"))
