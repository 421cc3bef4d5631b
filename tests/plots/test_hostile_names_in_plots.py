"""Names of every kind are drawn as they are written: no formula, no TeX, no box for want of a shape, no collapse."""

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import pandas as pd
import pytest
from comparisons import compared
from matplotlib.figure import Figure

from polyaforest import BatchMPF, StreamingMPF, Tree, plots

NAMES = [
    "$a^$", r"$\frac$", "_hidden", "a_b^c", "two\nlines", "\x1b[31m\x00", "x" * 5000,
    "日本", "👩‍💻", "\u202eabc", "עברית", ""
]  # fmt: skip
ROWS = np.random.default_rng(0).normal(size=(60, 2))


def forest(names):
    return BatchMPF(n_estimators=5, tree=Tree(max_depth=4), random_state=0).fit(pd.DataFrame(ROWS, columns=names))


def explained(names):
    return forest(names).explain(pd.DataFrame(ROWS[:3] + 9.0, columns=names))


DRAWN = {
    "trace": lambda names, ax: plots.trace(ROWS[:, 0], ROWS, names=names, ax=ax),
    "roc": lambda names, ax: plots.roc(ROWS[:, 0] > 0, dict(zip(names, ROWS.T, strict=True)), ax=ax),
    "partition": lambda names, ax: plots.partition(forest(names), ax=ax),
    "tree": lambda names, ax: plots.tree(forest(names), ax=ax),
    "attribution_bars": lambda names, ax: plots.attribution_bars(explained(names)[0], ax=ax),
    "attribution_map": lambda names, ax: plots.attribution_map(explained(names), ax=ax),
    "shares": lambda names, ax: plots.shares(compared(names), ax=ax),
}


def draw(kind, names, path):
    figure = Figure(figsize=(7, 5), layout="constrained")
    DRAWN[kind](names, figure.add_subplot())
    figure.savefig(path)  # warnings, of letters without a shape or axes without room, are errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:12]))
def test_a_name_is_drawn(kind, name, tmp_path):
    draw(kind, [name, "other"], tmp_path / "drawn.svg")


@pytest.mark.parametrize("k", range(len(DRAWN)), ids=list(DRAWN))
def test_two_names_are_drawn(k, tmp_path):
    first = 2 * k % len(NAMES)
    draw(list(DRAWN)[k], NAMES[first : first + 2], tmp_path / "drawn.svg")
    draw(list(DRAWN)[k], ["$a^$", "other"], tmp_path / "drawn.svg")


def test_characters_without_glyph_are_distinguished():
    drawn = plots.trace(ROWS[:, 0], ROWS, names=["日本", "日木"], ax=Figure().add_subplot())
    labels = [panel.get_ylabel().replace("\n", "") for panel in drawn.panels]
    assert labels == [r"\u65e5\u672c", r"\u65e5\u6728"]


def test_dollar_signs_are_dollar_signs():
    drawn = plots.trace(ROWS[:, 0], ROWS, names=["$a^$", "b"], ax=Figure().add_subplot())
    label = drawn.panels[0].yaxis.label
    assert (label.get_text(), label.get_parse_math(), label.get_usetex()) == ("$a^$", False, False)


def test_long_texts_leave_room_for_bars_and_titles():
    rows = pd.DataFrame({"a long name of a column of categories": ["a long level " * 9, "another level " * 9] * 30})
    rows["the_total_number_of_requests_handled_in_the_interval"] = ROWS[:, 0]
    forest = StreamingMPF(n_estimators=5, max_samples=16, categorical_features=[0], random_state=0).fit(rows)
    figure = Figure(figsize=(9, 9), layout="constrained")
    above, below = figure.subfigures(2, 1)
    title = above.suptitle("A title of the plot", x=0.01, ha="left")
    drawn = plots.trace(ROWS[:, 0], ROWS, names=[*map(str, rows.columns)], ax=above.subplots())
    bars = plots.attribution_bars(forest.explain(rows.iloc[:1])[0], ax=below.subplots())
    figure.draw_without_rendering()
    assert bars.ax.get_window_extent().width > 0.5 * figure.get_window_extent().width
    for panel in drawn.panels:
        assert not panel.yaxis.label.get_window_extent().overlaps(title.get_window_extent())
