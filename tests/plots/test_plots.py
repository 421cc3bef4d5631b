"""Plots match the forest, draw on the given Axes, and have no side effects."""

import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from comparisons import compared
from forests import some_trees, with_trees
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.path import Path
from sklearn.exceptions import NotFittedError
from sklearn.metrics import auc, average_precision_score, roc_auc_score

from polyaforest import BatchMPF, StreamingMPF, Tree, plots
from polyaforest.drift import DriftMonitor
from polyaforest.explain import ContextWindow, Explanation
from polyaforest.plots._nodes import nodes_of
from polyaforest.plots._trace import spans_of
from polyaforest.plots._tree import share_of
from polyaforest.plots.canvas import HIGH, LOW
from polyaforest.series import Forecast

RNG = np.random.default_rng(0)
PLANE = pd.DataFrame(RNG.normal([20.0, 5.0], [4.0, 1.0], size=(40, 2)), columns=["load", "latency"])
SPACE = RNG.normal(size=(40, 4))
SMALL = {"n_estimators": 3, "tree": Tree(max_depth=4), "random_state": 1}
FORESTS = {
    "table": lambda rows: StreamingMPF(max_samples=None, **SMALL).fit(rows),
    "stream": lambda rows: StreamingMPF(window=25, **SMALL).partial_fit(rows),
    "summary": lambda rows: StreamingMPF(window=None, **SMALL).partial_fit(rows),
    "process": lambda rows: BatchMPF(**SMALL).fit(rows),
    "known world": lambda rows: StreamingMPF(
        n_estimators=3,
        max_samples=None,
        tree=Tree(max_depth=4, domain=[np.min(rows, axis=0) - 2.0, np.max(rows, axis=0) + 3.0]),
        random_state=1,
    ).fit(rows),
}
SCORES = np.r_[np.linspace(-1.0, -2.0, 20), -9.0, -8.0, np.linspace(-2.0, -1.0, 18)]
BAND = Forecast(PLANE.to_numpy(), PLANE.to_numpy() - 1.0, PLANE.to_numpy() + 1.0, PLANE.to_numpy() + 0.1)


def context_of(times, n_channels=2, summary="load is lower than $its$ rhythm"):
    """Explanation of a context window that ends below its forecast."""
    readings = np.tile(np.r_[np.zeros(20), -5.0 * np.ones(4)][:, None], n_channels)
    expected = np.where(np.arange(24)[:, None] < 12, np.nan, np.zeros((24, n_channels)))
    bits = np.where(readings < 0, 3.0, -0.1)
    seen = ContextWindow(
        [f"x{c}" for c in range(n_channels)], times, readings, expected, expected - 1, expected + 1, bits
    )
    none = np.zeros(1)
    return Explanation(none, ["x0"], 9.0, 1.0, none, none, True, None, np.arange(1), None, summary, seen)


CONTEXT = context_of(np.full(24, np.nan))

COMPARED = compared()


WATCHING = DriftMonitor(reference=128, windows=[8, 40], n_estimators=3, random_state=0)
FOLLOWED = WATCHING.follow(np.append(np.random.default_rng(0).normal(size=160), np.full(40, 9.0))[:, None])
RUNS = [(160, WATCHING.run_lengths()), (199, WATCHING.run_lengths())]


@pytest.fixture(scope="module", params=FORESTS)
def forest(request):
    return FORESTS[request.param](PLANE)


@pytest.fixture(scope="module")
def table():
    return FORESTS["table"](PLANE)


@pytest.fixture(scope="module")
def wide():
    return StreamingMPF(n_estimators=8, random_state=0).fit(SPACE)


@pytest.fixture(scope="module")
def odd(wide):
    return wide.explain(np.array([[0.0, 9.0, 0.1, -6.0]]))[0]


@pytest.fixture
def ax():
    """Axes of a figure that pyplot does not manage."""
    return Figure().subplots()


def drawers(table, wide, odd):
    """All plot functions with arguments."""
    labels = np.arange(40) % 3 == 0
    return {
        "partition": partial(plots.partition, table, X=PLANE),
        "partition shaded": partial(plots.partition, table, shade=True),
        "density": partial(plots.density, table, X=PLANE, flag=True, resolution=9),
        "score": partial(plots.density, table, "score", resolution=9),
        "trace": partial(plots.trace, SCORES, PLANE, threshold=-5.0, windows=[(3, 5)]),
        "trace of scores": partial(plots.trace, SCORES),
        "trace expected": partial(plots.trace, SCORES, PLANE, expected=BAND),
        "context_window": partial(plots.context_window, CONTEXT),
        "attribution_bars": partial(plots.attribution_bars, odd),
        "attribution_map": partial(plots.attribution_map, wide.explain(SPACE[:5])),
        "tree": partial(plots.tree, table),
        "credible_bands": partial(plots.credible_bands, table, PLANE[:5]),
        "credible_bands of many": partial(plots.credible_bands, table, pd.concat([PLANE] * 2)),
        "shares": partial(plots.shares, COMPARED),
        "drift": partial(plots.drift, FOLLOWED, np.arange(200.0), windows=[8, 40], run_lengths=RUNS),
        "drift alone": partial(plots.drift, FOLLOWED),
        "roc": partial(plots.roc, labels, {"a": SCORES, "b": -SCORES}),
        "precision_recall": partial(plots.precision_recall, labels, SCORES),
    }


NAMES = list(drawers(None, StreamingMPF(n_estimators=1, random_state=0).fit(SPACE), None))


@pytest.fixture(params=NAMES)
def draw(request, table, wide, odd):
    return drawers(table, wide, odd)[request.param]


# ---- all plots -------------------------------------------------------------------------------------------------------


def test_plot_draws_on_given_axes(draw, ax):
    before = plt.get_fignums()
    drawn = draw(ax=ax)
    assert drawn._fields[0] == "ax"
    assert drawn.ax is ax
    assert ax.has_data() or ax.collections
    assert plt.get_fignums() == before
    ax.figure.canvas.draw()


def test_plot_creates_figure_without_axes(draw):
    before = plt.get_fignums()
    drawn = draw()
    (number,) = set(plt.get_fignums()) - set(before)
    assert drawn.ax.figure.number == number
    drawn.ax.figure.canvas.draw()  # warnings, such as for a layout that does not fit, are errors
    plt.close(drawn.ax.figure)


def test_plot_does_not_show_or_change_settings(draw, ax, monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "show", lambda *_, **__: shown.append(True))
    before, backend = dict(mpl.rcParams), mpl.get_backend()
    draw(ax=ax)
    assert not shown
    assert dict(mpl.rcParams) == before
    assert mpl.get_backend() == backend


def test_plot_rejects_other_than_axes(draw):
    with pytest.raises(TypeError, match="ax must be Axes, or None for a new figure; got Figure"):
        draw(ax=Figure())


def test_all_functions_are_tested():
    functions = {name for name in plots.__all__ if name.islower()}
    assert {name.split()[0] for name in NAMES} - {"score"} == functions


def test_error_leaves_no_figure(table):
    before = plt.get_fignums()
    for mistake in (
        lambda: plots.partition(table, tree=99),
        lambda: plots.density(table, "colour"),
        lambda: plots.trace(SCORES, windows=[(5, 3)]),
        lambda: plots.roc([0, 1], [1.0, 2.0, 3.0]),
    ):
        with pytest.raises(ValueError, match=r"."):
            mistake()
    assert plt.get_fignums() == before


def test_matplotlib_is_imported_on_first_use():
    script = """
import sys
import polyaforest, polyaforest.plots as plots
print("matplotlib" in sys.modules, "numba" in sys.modules)
sys.modules["matplotlib"] = None
try:
    plots.trace([1.0, 2.0])
except ImportError as problem:
    print(problem.name, problem)
del sys.modules["matplotlib"]
from matplotlib.figure import Figure
plots.trace([1.0, 2.0], ax=Figure().subplots())
print("matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "False False",
        'matplotlib polyaforest.plots needs matplotlib: pip install "polyaforest[plots]"',
        "False",
    ]


@pytest.mark.parametrize("draw", [plots.partition, plots.density, plots.tree])
def test_plot_rejects_other_than_forest(draw):
    with pytest.raises(NotFittedError):
        draw(StreamingMPF())
    with pytest.raises(TypeError, match="must be a fitted BatchMPF or StreamingMPF; got list"):
        draw([1, 2])
    emptied = StreamingMPF(window=3, n_estimators=2).partial_fit([[1.0, 2.0]])
    emptied.delete(0)
    with pytest.raises(ValueError, match="holds no points"):
        draw(emptied)


@pytest.mark.parametrize("draw", [plots.partition, plots.tree])
def test_plot_rejects_unknown_tree(draw, table):
    with pytest.raises(ValueError, match="no tree 3: the forest has 3 trees, numbered from 0"):
        draw(table, 3)


# ---- the plane -------------------------------------------------------------------------------------------------------


def one_tree(forest, tree):
    """A forest of one tree of `forest`, as its owner."""
    return with_trees(deepcopy(forest), some_trees(forest.forest_, [tree]))


def colour_at(cells, points):
    """Value of the uppermost cell that holds each point, or NaN."""
    found = np.full(len(points), np.nan)
    for path, value in zip(cells.get_paths(), cells.get_array(), strict=True):
        found[Path(path.vertices).contains_points(points)] = value
    return found


@pytest.mark.parametrize("tree", [0, 2])
def test_partition_cells_show_density_of_tree(forest, tree, ax):
    drawn = plots.partition(forest, tree, shade=True, ax=ax)
    world = forest.posterior_.world[:, tree]
    points = np.random.default_rng(3).uniform(*world, size=(300, 2))
    expected = one_tree(forest, tree).log_density(pd.DataFrame(points, columns=PLANE.columns)) / np.log(10)
    assert colour_at(drawn.cells, points) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", FORESTS)
def test_partition_draws_plane_through_row(kind, ax):
    forest = FORESTS[kind](SPACE)
    row = forest.posterior_.world[:, 1].mean(axis=0)
    drawn = plots.partition(forest, 1, shade=True, features=(2, 0), at=row, ax=ax)
    shown = np.random.default_rng(4).uniform(*forest.posterior_.world[:, 1][:, [2, 0]], size=(200, 2))
    points = np.tile(row, (200, 1))
    points[:, [2, 0]] = shown
    expected = one_tree(forest, 1).log_density(points) / np.log(10)
    assert colour_at(drawn.cells, shown) == pytest.approx(expected, abs=1e-9)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x2", "x0")


def test_partition_draws_cuts_within_their_boxes(forest, ax):
    drawn = plots.partition(forest, 1, X=PLANE, ax=ax)
    cut = [node for node in nodes_of(forest, 1) if node.feature >= 0]
    segments = drawn.cuts.get_segments()
    assert len(segments) == len(cut) > 3
    for node, ends in zip(cut, segments, strict=True):
        assert ends[:, node.feature].tolist() == [node.cut] * 2
        assert (node.part[0] <= ends).all()
        assert (ends <= node.part[1]).all()
    first, last = np.argmin([node.time for node in cut]), np.argmax([node.time for node in cut])
    assert drawn.cuts.get_linewidths()[first] > drawn.cuts.get_linewidths()[last]
    assert len(drawn.points.get_offsets()) == len(PLANE)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("load", "latency")
    n_boxes = 1 if isinstance(forest, BatchMPF) else forest.forest_.size[1]
    assert len(drawn.boxes.get_paths()) == n_boxes


@pytest.mark.parametrize(("kind", "lifetime"), [("density", None), ("mass", None), ("mass", 1.5), ("score", None)])
def test_density_matches_forest_at_pixels(forest, kind, lifetime, ax):
    drawn = plots.density(forest, kind, lifetime=lifetime, domain=[[10, 2], [30, 8]], resolution=6, ax=ax)
    steps = (np.arange(6) + 0.5) / 6
    pixels = pd.DataFrame([(10 + 20 * x, 2 + 6 * y) for y in steps for x in steps], columns=PLANE.columns)
    expected = {
        "density": lambda: forest.log_density(pixels) / np.log(10),
        "mass": lambda: np.log10(forest.mass(pixels, lifetime)),
        "score": lambda: forest.score_samples(pixels),
    }[kind]()
    assert np.asarray(drawn.image.get_array()).ravel() == pytest.approx(expected, abs=1e-9)
    assert drawn.image.get_extent() == [10, 30, 2, 8]


def test_density_on_plane_matches_forest(wide, ax):
    drawn = plots.density(wide, "score", features=("x3", "x1"), at=[0.5, 0, -0.5, 0], resolution=5, ax=ax)
    left, right, bottom, top = drawn.image.get_extent()
    middle = np.array([[0.5, (bottom + top) / 2, -0.5, (left + right) / 2]])
    assert drawn.image.get_array()[2, 2] == pytest.approx(wide.score_samples(middle)[0])


def test_density_rings_flagged_rows(table, ax):
    rows = pd.concat([PLANE, pd.DataFrame([[40.0, 9.0]], columns=PLANE.columns)])
    drawn = plots.density(table, "score", X=rows, flag=True, resolution=20, ax=ax)
    rings = [part.get_offsets() for part in ax.collections if part is not drawn.points and hasattr(part, "get_sizes")]
    n_flagged = int((table.predict(rows) < 0).sum())
    assert [len(offsets) for offsets in rings if len(offsets)][-1] == n_flagged >= 1
    assert drawn.threshold.levels.tolist() == [table.offset_]


def test_density_clips_mass_0(ax):
    closed = StreamingMPF(
        n_estimators=3, tree=Tree(max_depth=4, domain="data"), score_type="log_mass", random_state=1
    ).fit(PLANE)
    for kind in ("density", "mass", "score"):
        drawn = plots.density(closed, kind, resolution=8, domain=[[-50, -50], [60, 60]], ax=ax)
        assert np.isfinite(drawn.image.get_clim()).all()
        assert np.isfinite(drawn.image.get_array()).all()


@pytest.mark.parametrize("draw", [plots.partition, plots.density])
def test_plot_rejects_invalid_plane(draw, wide, table):
    one = StreamingMPF(n_estimators=2, random_state=0).fit(SPACE[:, :1])
    with pytest.raises(ValueError, match=r"the forest has 1: fit it on two columns"):
        draw(one)
    with pytest.raises(ValueError, match=r"the forest has 4: pass two features, and a row as at"):
        draw(wide)
    with pytest.raises(ValueError, match="the forest has 4 features: pass a row as at"):
        draw(wide, features=(0, 1))
    with pytest.raises(ValueError, match="unknown feature 'cpu'; features are 'load', 'latency'"):
        draw(table, features=("load", "cpu"))
    with pytest.raises(ValueError, match="no feature 7: there are 4 features, numbered from 0"):
        draw(wide, features=(0, 7), at=np.zeros(4))
    with pytest.raises(ValueError, match="distinct; got 'load' twice"):
        draw(table, features=("load", 0))
    with pytest.raises(ValueError, match="features must be two names or indices"):
        draw(table, features=["load"])
    with pytest.raises(ValueError, match="one row of 4 features; got 3 values"):
        draw(wide, features=(0, 1), at=[1, 2, 3])
    with pytest.raises(ValueError, match="at is nan in feature 'x3': pass a finite value"):
        draw(wide, features=(0, 1), at=[1, 2, 3, np.nan])
    with pytest.raises(ValueError, match=r"lower and upper bounds|outside the domain of tree 0"):
        draw(wide, features=(0, 1), at=[0, 0, 99, 0], **({"domain": [[1, 1], [0, 0]]} if draw is plots.density else {}))


def test_density_rejects_invalid_settings(table):
    with pytest.raises(ValueError, match="kind must be one of 'density', 'mass', 'score'; got 'colour'"):
        plots.density(table, "colour")
    with pytest.raises(ValueError, match="lifetime requires kind"):
        plots.density(table, lifetime=2.0)
    with pytest.raises(ValueError, match="resolution must be at least 2"):
        plots.density(table, resolution=1)


# ---- a stream --------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.floats(0.1, 10))
def test_spans_cover_exactly_flagged_rows(flags, step):
    x = step * np.arange(len(flags))
    spans = spans_of(np.array(flags), x)
    covered = [any(first < place < last for first, last in spans) for place in x]
    assert covered == flags
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def flagged_rows(drawn):
    return np.flatnonzero(np.isfinite(drawn.flagged[-1].get_ydata())).tolist()


def test_trace_flags_rows_below_threshold(ax):
    drawn = plots.trace(SCORES, threshold=-5.0, ax=ax)
    assert flagged_rows(drawn) == [20, 21]
    (span,) = drawn.spans[0].get_paths()
    assert (span.vertices[:, 0].min(), span.vertices[:, 0].max()) == (19.5, 21.5)
    assert set(drawn.threshold.get_ydata()) == {-5.0}
    assert drawn.scores.get_ydata().tolist() == SCORES.tolist()


def test_trace_flags_rows_above_threshold_when_higher_is_anomalous(ax):
    drawn = plots.trace(-SCORES, threshold=5.0, higher="anomalous", ax=ax)
    assert flagged_rows(drawn) == [20, 21]
    assert "more anomalous" in ax.get_ylabel()


@pytest.mark.parametrize("threshold", [-np.inf, float(np.finfo(float).min)])
def test_trace_omits_threshold_that_flags_nothing(ax, threshold):
    assert plots.trace(np.arange(5.0), threshold=threshold, ax=ax).threshold is None


def test_trace_accepts_varying_threshold_and_flags(ax):
    running = np.where(np.arange(40) < 21, -99.0, -5.0)
    assert flagged_rows(plots.trace(SCORES, threshold=running, ax=ax)) == [21]
    assert flagged_rows(plots.trace(SCORES, threshold=-5.0, flagged=np.arange(40) == 7, ax=ax)) == [7]
    assert plots.trace(SCORES, threshold=-99.0, ax=ax).flagged == []


def test_trace_draws_one_panel_per_channel(ax):
    drawn = plots.trace(SCORES, PLANE, threshold=-5.0, ax=ax)
    assert [panel.get_ylabel() for panel in drawn.panels] == ["load", "latency"]
    assert [line.get_ydata().tolist() for line in drawn.values] == [PLANE[name].tolist() for name in PLANE]
    assert len(drawn.flagged) == len(drawn.spans) == 3
    for panel in drawn.panels:
        assert panel.get_shared_x_axes().joined(panel, ax)


@pytest.mark.parametrize("make", [lambda: Figure().subplots(), lambda: Figure().add_axes((0.2, 0.1, 0.7, 0.8))])
def test_trace_panels_fill_space_of_axes(make):
    ax = make()
    room = ax.get_position()
    places = [panel.get_position() for panel in (*plots.trace(SCORES, PLANE, ax=ax).panels, ax)]
    assert places[0].y1 == pytest.approx(room.y1)
    assert places[-1].y0 == pytest.approx(room.y0)
    assert all(above.y0 > below.y1 for above, below in pairwise(places))


@pytest.mark.parametrize("zone", [None, UTC])
def test_trace_accepts_dates(ax, zone):
    start = datetime(2026, 3, 2, tzinfo=zone)
    dates = [start + timedelta(hours=hour) for hour in range(40)]
    naive = [date.replace(tzinfo=None) for date in dates]
    drawn = plots.trace(SCORES, times=dates, threshold=-5.0, windows=[(naive[3], naive[5])], ax=ax)
    ax.figure.canvas.draw()
    from matplotlib.dates import date2num

    window = drawn.windows[0].get_paths()[0].vertices[:, 0]
    assert (window.min(), window.max()) == pytest.approx((date2num(naive[3]), date2num(naive[5])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": np.zeros(39)}, "values must have one row for each of the 40 scores; got shape"),
        ({"values": np.zeros((40, 9))}, "choose at most 8; got 9"),
        ({"values": np.zeros(40), "names": ["a", "b"]}, "one name for each of the 1 channels; got 2"),
        ({"times": np.arange(3)}, "one time for each of the 40 rows; got shape"),
        ({"times": ["noon"] * 40}, "times must be numbers or dates; got <U4"),
        ({"times": [0.0, np.nan] * 20}, "time 1 is missing"),
        ({"times": [np.datetime64("NaT")] * 40}, "time 0 is missing"),
        ({"threshold": [1.0, 2.0]}, "threshold must be a number or one for each of the 40 rows"),
        ({"flagged": np.zeros(40)}, "flagged must be True or False for each of the 40 rows; got float64"),
        ({"flagged": np.zeros(4, bool)}, "flagged must be True or False for each of the 40 rows"),
        ({"windows": [(1, 2), (5, 3)]}, "window 1 ends before it begins"),
        ({"windows": [(1, 2, 3)]}, "window 0 must be a pair"),
        ({"higher": "up"}, 'higher must be "normal" or "anomalous"'),
    ],
)
def test_trace_rejects_mismatched_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.trace(SCORES, **arguments)


def test_trace_draws_forecast_behind_channels(ax):
    drawn = plots.trace(SCORES, PLANE, expected=BAND, ax=ax)
    assert len(drawn.bands) == 2
    for c, (band, values) in enumerate(zip(drawn.bands, drawn.values, strict=True)):
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == BAND.low[:, c].min()
        assert heights.max() == BAND.high[:, c].max()
        assert band.get_zorder() < values.get_zorder()
    assert plots.trace(SCORES, PLANE, ax=Figure().subplots()).bands == []
    with pytest.raises(ValueError, match="expected must have the shape of values, 40 rows and 1 channels"):
        plots.trace(SCORES, PLANE["load"], expected=BAND)


@pytest.mark.parametrize(
    ("times", "first"), [(np.full(24, np.nan), -23), (np.arange(24.0), 0.0), (1.7e9 + 60 * np.arange(24.0), None)]
)
def test_context_window_is_drawn_with_forecast(times, first, ax):
    drawn = plots.context_window(context_of(times), ax=ax)
    assert (drawn.ax, len(drawn.panels), len(drawn.values)) == (ax, 1, 2)
    if first is not None:
        assert drawn.values[0].get_xdata()[0] == first
    for line, band, marks in zip(drawn.expected, drawn.bands, drawn.bits, strict=True):
        assert np.isnan(line.get_ydata()).sum() == 12
        assert band.get_paths()[0].vertices[:, 1].max() == 1.0
        ends = [segment[1, 1] for segment in marks.get_segments()]
        assert sum(end > 0 for end in ends) == 4  # what makes a row less odd has no mark
    title = drawn.panels[0].get_title("left")
    assert title == "load is lower than $its$ rhythm"
    assert len(plots.context_window(context_of(times), channels=["x1"], ax=Figure().subplots()).values) == 1


def test_context_window_rejects_invalid_input(odd):
    with pytest.raises(ValueError, match="has no context window"):
        plots.context_window(odd)
    with pytest.raises(ValueError, match="choose 1 to 8 channels"):
        plots.context_window(context_of(np.arange(24.0), n_channels=9))
    with pytest.raises(ValueError, match="unknown feature 'y'"):
        plots.context_window(CONTEXT, channels=["y"])


def test_dates_are_labelled_for_four_days(ax):
    days = np.datetime64("2026-03-05") + np.arange(96).astype("timedelta64[h]")
    drawn = plots.trace(np.zeros(96), times=days, ax=ax)
    drawn.ax.figure.canvas.draw()  # a warning would be an error
    assert 3 <= len(drawn.ax.get_xticks()) <= 8


def test_trace_rejects_scores_that_are_not_numbers():
    with pytest.raises(ValueError, match="scores is NaN in row 2"):
        plots.trace([1.0, 2.0, np.nan])
    with pytest.raises(ValueError, match="scores must contain one number per row; got shape"):
        plots.trace(np.zeros((3, 2)))


# ---- attribution ---------------------------------------------------------------------------------------------------


def test_bars_sum_to_surprise(odd, ax):
    for top in (1, 2, 8):
        drawn = plots.attribution_bars(odd, top=top, ax=ax)
        lengths = [bar.get_width() for bar in drawn.bars]
        assert sum(lengths) == pytest.approx(odd.surprise - odd.typical, abs=1e-9)
        assert len(lengths) == min(top + 1, 4)


def test_bars_label_unusual_features_and_side(odd, ax):
    drawn = plots.attribution_bars(odd, ax=ax)
    names = [label.get_text() for label in ax.get_yticklabels()]
    worst = {names[place].split(" = ")[0]: place for place in (0, 1)}
    assert set(worst) == {"x1", "x3"}
    for name, side, colour in (("x1", "high", HIGH), ("x3", "low", LOW)):
        assert drawn.bars[worst[name]].get_facecolor() == to_rgba(colour)
        assert f"too {side}" in drawn.labels[worst[name]].get_text()
    assert "usual" in names[0]
    assert ax.get_title(loc="left").startswith("Anomalous")
    words = " ".join(text.get_text() for text in ax.texts).replace("\n", " ")
    assert f"{odd.surprise:.1f} bits of surprise" in words
    assert odd.region in words
    widths = [bar.get_width() for bar in drawn.bars]
    assert widths == sorted(widths, reverse=True)


def test_bars_are_grey_without_attributions(wide, ax):
    drawn = plots.attribution_bars(wide.explain(np.median(SPACE, axis=0)[None])[0], ax=ax)
    assert not {to_rgba(HIGH), to_rgba(LOW)} & {bar.get_facecolor() for bar in drawn.bars}


def test_infinite_bits_have_finite_bar(ax):
    closed = BatchMPF(tree=Tree(domain="data"), n_estimators=4, random_state=0).fit(SPACE)
    drawn = plots.attribution_bars(closed.explain(np.array([[0.0, 99.0, 0.0, 0.0]]))[0], ax=ax)
    assert np.isfinite([bar.get_width() for bar in drawn.bars]).all()
    assert "∞" in drawn.labels[0].get_text()
    ax.figure.canvas.draw()


def test_bars_reject_other_than_one_explanation(wide, odd):
    with pytest.raises(TypeError, match="draws one row, got 3"):
        plots.attribution_bars(wide.explain(SPACE[:3]))
    with pytest.raises(TypeError, match=r"expected an Explanation, such as forest.explain\(X\)\[0\]; got ndarray"):
        plots.attribution_bars(SPACE[0])
    with pytest.raises(ValueError, match="top must be at least 1"):
        plots.attribution_bars(odd, top=0)


def bits_of(drawn):
    """Values of a map, features by rows."""
    n_features, n_rows = np.array(drawn.mesh.get_coordinates().shape[:2]) - 1
    return np.asarray(drawn.mesh.get_array()).reshape(n_features, n_rows)


def test_map_shows_larger_side_of_each_feature(wide, ax):
    rows = np.vstack([SPACE[:6], [[0, 9, 0, 0]], [[0, 0, 0, -9]]])
    explained = wide.explain(rows)
    drawn = plots.attribution_map(explained, ax=ax)
    bits = bits_of(drawn)
    assert bits[1, 6] == pytest.approx(explained.high[6, 1])
    assert bits[3, 7] == pytest.approx(-explained.low[7, 3])
    assert bits[1, 6] > 1
    assert bits[3, 7] < -1
    low, high = drawn.mesh.get_clim()
    assert low == -high == -np.abs(bits).max()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x0", "x1", "x2", "x3"]


def test_map_shows_chosen_features(wide, ax):
    explained = wide.explain(np.vstack([SPACE[:6], [[0, 9, 0, -9]]]))
    whole = bits_of(plots.attribution_map(explained, ax=ax))
    named = bits_of(plots.attribution_map(explained, features=["x3", 1], ax=ax))
    assert np.array_equal(named, whole[[3, 1]])
    worst = plots.attribution_map(explained, top=2, limit=1.0, ax=ax)
    assert np.array_equal(bits_of(worst), np.clip(whole[[1, 3]], -1, 1))
    assert worst.mesh.get_clim() == (-1.0, 1.0)


def test_map_unfolds_shingles(wide, ax):
    explained = wide.explain(SPACE[:3])  # of 2 steps of 2 channels
    signed = bits_of(plots.attribution_map(explained, ax=ax)).T
    unfolded = bits_of(plots.attribution_map(explained, n_steps=2, ax=ax)).T
    steps = signed.reshape(3, 2, 2)
    expected = [steps[0, 0], (steps[0, 1] + steps[1, 0]) / 2, (steps[1, 1] + steps[2, 0]) / 2, steps[2, 1]]
    assert unfolded == pytest.approx(np.array(expected))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["channel 0", "channel 1"]


def test_map_of_one_shingle_ends_at_step_0(ax):
    columns = ["cpu[t-1]", "load[t-1]", "cpu[t]", "load[t]"]
    forest = StreamingMPF(n_estimators=2, random_state=0).fit(pd.DataFrame(SPACE, columns=columns))
    drawn = plots.attribution_map(forest.explain(pd.DataFrame(SPACE[:1], columns=columns))[0], n_steps=2, ax=ax)
    assert drawn.mesh.get_coordinates()[0, :, 0].tolist() == [-1.5, -0.5, 0.5]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cpu", "load"]


def test_map_accepts_dates(wide, ax):
    days = np.datetime64("2026-03-01") + np.arange(5)
    drawn = plots.attribution_map(wide.explain(SPACE[:5]), times=days, ax=ax)
    edges = np.asarray(drawn.mesh.get_coordinates()[0, :, 0])
    assert np.diff(edges) == pytest.approx(np.ones(5))
    ax.figure.canvas.draw()


def test_map_rejects_mismatched_input(wide):
    explained = wide.explain(SPACE[:5])
    with pytest.raises(ValueError, match="n_steps must divide the number of features, 4; got 3"):
        plots.attribution_map(explained, n_steps=3)
    with pytest.raises(ValueError, match="unknown feature 'cpu'"):
        plots.attribution_map(explained, features=["cpu"])
    with pytest.raises(ValueError, match="features must be a list of names"):
        plots.attribution_map(explained, features="x1")
    with pytest.raises(ValueError, match="one time for each of the 5 rows"):
        plots.attribution_map(explained, times=[1, 2])
    with pytest.raises(ValueError, match="one time for each of the 6 steps"):
        plots.attribution_map(explained, n_steps=2, times=np.arange(5))
    with pytest.raises(ValueError, match="top must be at least 1"):
        plots.attribution_map(explained, top=0)
    with pytest.raises(TypeError, match="one or more explanations of rows"):
        plots.attribution_map([])
    with pytest.raises(TypeError, match="one or more explanations of rows"):
        plots.attribution_map(SPACE)
    assert isinstance(explained[0], Explanation)


# ---- a tree ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_depth", [0, 1, 3, 99])
def test_tree_shows_all_cuts_and_mass(forest, max_depth, ax):
    drawn = plots.tree(forest, 1, max_depth=max_depth, ax=ax)
    nodes = nodes_of(forest, 1)
    cuts = [node for node in nodes if node.feature >= 0 and node.depth < max_depth]
    ends = [node for node in nodes if node.depth == max_depth or (node.feature < 0 and node.depth < max_depth)]
    assert len(drawn.cuts) == len(cuts)
    assert len(drawn.labels) == len(ends) == len(cuts) + 1
    assert len(drawn.branches.get_paths()) == len(cuts) + len(ends)
    assert [node.n_rows for node in ends] == [
        int(label.get_text().split("\n")[1].replace(",", "")) for label in drawn.labels
    ]
    left_out = sum(np.exp(node.log_masses[1]) for node in cuts)  # by the boxes of what is cut
    assert sum(share_of(node) for node in ends) + left_out == pytest.approx(share_of(nodes[0]))


def test_tree_places_nodes_in_columns_and_cuts_at_times(forest, ax):
    drawn = plots.tree(forest, ax=ax)
    cuts = [node for node in nodes_of(forest, 0, 4) if node.feature >= 0 and node.depth < 4]
    assert [text.xy[1] for text in drawn.cuts] == [node.time for node in cuts]
    ends = drawn.ends.get_offsets()[:, 0].tolist()
    assert ends == list(range(len(ends)))
    between = sorted(text.xy[0] for text in drawn.cuts)
    assert between == [end + 0.5 for end in ends[:-1]]
    top, bottom = ax.get_ylim()[::-1]
    assert top < min(node.time for node in cuts) <= max(node.time for node in cuts) < bottom


def test_tree_labels_cuts(table, ax):
    drawn = plots.tree(table, max_depth=1, precision=2, ax=ax)
    root = nodes_of(table, 0)[0]
    assert drawn.cuts[0].get_text() == f"{PLANE.columns[root.feature]}\n≤ {root.cut:.2g}"
    large = plots.tree(FORESTS["table"](PLANE * 1e5), max_depth=1, ax=ax)
    assert large.cuts[0].get_text().split("≤ ")[1].count(",") >= 1
    long = PLANE.rename(columns={"load": "requests per second", "latency": "milliseconds to answer"})
    drawn = plots.tree(FORESTS["table"](long), max_depth=1, ax=ax)
    assert drawn.cuts[0].get_text().split("\n")[0] in ("requests …cond", "millisec…swer")


def test_tree_fills_leaves_and_leaves_inner_ends_hollow(table, ax):
    drawn = plots.tree(table, max_depth=3, ax=ax)
    is_leaf = [
        node.feature < 0 for node in nodes_of(table, 0) if node.depth == 3 or (node.feature < 0 and node.depth < 3)
    ]
    fills = drawn.ends.get_facecolors()
    assert len({tuple(fill) for fill in fills[np.array(is_leaf)]} & {tuple(ax.get_facecolor())}) == 0
    assert {tuple(fill) for fill in fills[~np.array(is_leaf)]} == {tuple(ax.get_facecolor())}


def test_tree_of_one_row_is_leaf(ax):
    drawn = plots.tree(StreamingMPF(n_estimators=1).fit([[1.0, 2.0]]), ax=ax)
    assert (len(drawn.cuts), len(drawn.labels)) == (0, 1)
    plots.partition(StreamingMPF(n_estimators=1).fit([[1.0, 2.0]]), shade=True, ax=ax)
    ax.figure.canvas.draw()


def test_tree_rejects_negative_depth(table):
    with pytest.raises(ValueError, match="max_depth must not be negative"):
        plots.tree(table, max_depth=-1)


# ---- intervals -------------------------------------------------------------------------------------------------------


def ends_of(drawn):
    return np.array([path.vertices[:, 1] for path in drawn.intervals.get_paths()])


def test_bands_match_forest(forest, ax):
    drawn = plots.credible_bands(forest, PLANE[:6], level=0.5, lifetime=1.0, ax=ax)
    assert drawn.masses.get_ydata() == pytest.approx(forest.mass(PLANE[:6], 1.0))
    expected = forest.credible_interval(PLANE[:6], 0.5, 1.0)
    assert ends_of(drawn) == pytest.approx(np.maximum(expected, 1e-6 * drawn.masses.get_ydata().min()))
    assert "50%" in ax.get_ylabel()
    assert ax.get_yscale() == "log"


def test_bands_accept_masses_and_intervals(ax):
    masses, intervals = [0.1, 0.001], [[0.05, 0.2], [0.0, 0.01]]
    drawn = plots.credible_bands(masses=masses, intervals=intervals, ax=ax)
    assert drawn.masses.get_ydata().tolist() == masses
    assert ends_of(drawn)[0].tolist() == [0.05, 0.2]
    assert 0 < ends_of(drawn)[1, 0] < ax.get_ylim()[0] < 0.001
    by_mass = plots.credible_bands(masses=masses, intervals=intervals, sort=True, ax=ax)
    assert by_mass.masses.get_ydata().tolist() == sorted(masses)
    many = plots.credible_bands(masses=[0.1] * 61, intervals=[[0.05, 0.2]] * 61, ax=ax)
    assert len(many.intervals.get_paths()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "pass a forest and rows X, or both masses and intervals"),
        ({"masses": [0.1]}, "pass a forest and rows X, or both masses and intervals"),
        ({"masses": [0.1], "intervals": [0.1, 0.2]}, "intervals must have shape \\(1, 2\\); got"),
        ({"masses": [0.1, 0.1], "intervals": [[0, 1], [0.3, 0.2]]}, r"interval of row 1 must be .* got \[0.3, 0.2\]"),
        ({"masses": [0.1], "intervals": [[np.nan, 1]]}, "interval of row 0 must be"),
        ({"masses": [0.1], "intervals": [[0, 1]], "level": 1.5}, "level must be between 0 and 1"),
        ({"masses": [0.1], "intervals": [[0, 1]], "times": [1], "sort": True}, "by mass and by time"),
        ({"masses": [0.1], "intervals": [[0, 1]], "times": [1, 2]}, "one time for each of the 1 rows"),
    ],
)
def test_bands_reject_mismatched_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.credible_bands(**arguments)


# ---- curves ----------------------------------------------------------------------------------------------------------

CURVES = [(plots.roc, roc_auc_score), (plots.precision_recall, average_precision_score)]
TRUTH = RNG.random(60) < 0.3
NORMALITY = RNG.normal(size=60).round(1) - 1.5 * TRUTH


@pytest.mark.parametrize(("draw", "measure"), CURVES)
def test_areas_match_scikit_learn_in_both_directions(draw, measure, ax):
    expected = measure(TRUTH, -NORMALITY)
    assert draw(TRUTH, NORMALITY, ax=ax).areas == {"": pytest.approx(expected)}
    assert draw(TRUTH, -NORMALITY, higher="anomalous", ax=ax).areas == {"": pytest.approx(expected)}
    assert draw(np.where(TRUTH, -1, 1), NORMALITY, ax=ax).areas == {"": pytest.approx(expected)}
    assert draw(TRUTH.astype(int), np.exp(9 * NORMALITY), ax=ax).areas == {"": pytest.approx(expected)}
    assert draw(TRUTH, -NORMALITY, ax=ax).areas[""] < expected


@pytest.mark.parametrize(("draw", "measure"), CURVES)
def test_curves_of_methods_are_distinguished_and_ranked(draw, measure, ax):
    methods = {"weak": NORMALITY + 9 * np.sin(np.arange(60)), **{f"m{k}": NORMALITY for k in range(7)}}
    drawn = draw(TRUTH, methods, ax=ax)
    assert len(drawn.lines) == len(methods)
    assert (
        len({(line.get_color(), str(line.get_linestyle()), line._dash_pattern[1] is None) for line in drawn.lines}) > 6
    )
    texts = [text.get_text() for text in drawn.legend.get_texts()]
    assert texts[-1] == f"weak  {'AUC' if draw is plots.roc else 'AP'} {drawn.areas['weak']:.3f}"
    assert drawn.areas["weak"] == pytest.approx(measure(TRUTH, -methods["weak"]))


def test_area_under_line_matches_label(ax):
    drawn = plots.roc(TRUTH, NORMALITY, ax=ax)
    assert auc(*drawn.lines[0].get_data()) == pytest.approx(drawn.areas[""])
    drawn = plots.precision_recall(TRUTH, NORMALITY, ax=ax)
    recall, precision = drawn.lines[0].get_data()
    assert -np.diff(recall) @ precision[:-1] == pytest.approx(drawn.areas[""])
    assert (recall.max(), recall.min()) == (1.0, 0.0)


def test_infinite_scores_are_ranked(ax):
    scores = np.where(TRUTH, -np.inf, NORMALITY)
    assert plots.roc(TRUTH, scores, ax=ax).areas[""] == 1.0


@pytest.mark.parametrize("draw", [plots.roc, plots.precision_recall])
@pytest.mark.parametrize(
    ("y", "scores", "message"),
    [
        ([0, 0], [1.0, 2.0], "only one class"),
        ([0, 2], [1.0, 2.0], "y must be 1 for anomalies and 0 for normal rows, .* got 0, 2"),
        ([0, np.nan], [1.0, 2.0], "y is NaN in row 1"),
        ([0, 1], [1.0, np.nan], "scores is NaN in row 1"),
        ([0, 1], {"mine": [1.0]}, "scores of 'mine' must contain one number for each of the 2 rows"),
        ([0, 1], {}, "scores is empty"),
    ],
)
def test_curves_reject_invalid_input(draw, y, scores, message):
    with pytest.raises(ValueError, match=message):
        draw(y, scores)


# ---- shares ----------------------------------------------------------------------------------------------------------


def test_shares_are_drawn_with_intervals(ax):
    drawn = plots.shares(COMPARED, ax=ax)
    np.testing.assert_allclose(drawn.before.get_offsets()[:, 0], [0.01, 0.3])
    np.testing.assert_allclose(drawn.after.get_offsets()[:, 0], [0.06, 0.2])
    ends = [(line[0][0], line[1][0]) for line in drawn.intervals.get_segments()]
    assert ends == [(0.005, 0.02), (0.25, 0.35), (0.05, 0.07), (0.15, 0.25)]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["u > 4", "v is missing"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["monday", "tuesday"]
    assert len(plots.shares(COMPARED, top=1, ax=ax).before.get_offsets()) == 1


def test_shares_report_no_region(ax):
    drawn = plots.shares(replace(COMPARED, regions=[]), ax=ax)
    assert drawn.before is None
    assert "no region" in ax.texts[0].get_text()


def test_shares_reject_other_than_comparison():
    with pytest.raises(TypeError, match=r"result of polyaforest\.drift\.compare"):
        plots.shares([1.0])
    with pytest.raises(ValueError, match="top must be at least 1"):
        plots.shares(COMPARED, top=0)


# ---- drift -----------------------------------------------------------------------------------------------------------


def test_drift_draws_evidence_thresholds_and_starts_of_changes(ax):
    drawn = plots.drift(FOLLOWED, np.arange(200.0), windows=[8, 40], run_lengths=RUNS, names=["load"], ax=ax)
    np.testing.assert_array_equal(drawn.evidence[1].get_ydata(), FOLLOWED.evidence[:, 1])
    np.testing.assert_array_equal(drawn.thresholds[0].get_ydata(), FOLLOWED.thresholds[:, 0])
    assert {mark.get_xdata()[0] for mark in drawn.changes} == {FOLLOWED.changes[0].start}
    assert len({*drawn.panels, drawn.ax}) == 3
    assert drawn.panels[0].lines[0].get_ydata().tolist() == list(range(200))
    assert drawn.posterior.get_array().shape[1] == 2


def test_drift_rejects_invalid_input(ax):
    with pytest.raises(TypeError, match=r"DriftMonitor\.follow"):
        plots.drift(SCORES, ax=ax)
    with pytest.raises(ValueError, match="one row for each"):
        plots.drift(FOLLOWED, SCORES, ax=ax)
    with pytest.raises(ValueError, match="windows has 1 lengths, but the trace has 2 windows"):
        plots.drift(FOLLOWED, windows=[8], ax=ax)
