"""Rows that lack values: scored over all that they may be, learned by a stated rule, and filled in when asked."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from forests import made
from gaps import NONE, hide, leaves_of, plain_cells, plain_mass
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError
from streams import assert_whole, bits

import polyaforest
from polyaforest import BatchMPF, EpsilonPhi, LeafKind, Reservoir, StreamingMPF, Window
from polyaforest.forest import draws, imputation, stream
from polyaforest.kernels import traversal as walks

NAN = np.nan
RNG = np.random.default_rng(0)
ROWS = RNG.normal([3.0, -1.0, 0.5], [1.0, 20.0, 0.1], size=(24, 3))
ROWS[:, 2] = ROWS[:, 2].round(1)  # ties, so that boxes collapse
PATTERNS = [np.array(hidden) for hidden in product([False, True], repeat=3)]
SCORES = ["typicality", "multiscale", "mass", "log_mass"]
ESTIMATORS = [StreamingMPF, BatchMPF]
DOMAINS = {"open": None, "closed": "data", "fixed": [[-9.0, -200.0, -2.0], [90.0, 200.0, 3.0]]}
GAPPY = np.array([[3.0, NAN, 0.5], [NAN, NAN, 0.4], [NAN, NAN, NAN], [50.0, NAN, 0.5], [3.0, -1.0, 0.5]])


@pytest.fixture(params=ESTIMATORS)
def estimator(request):
    return request.param


def build(estimator=StreamingMPF, **parameters):
    shallow = {"max_depth": 4} if estimator is BatchMPF else {}
    return made(estimator, **{"n_estimators": 3, "random_state": 0, "missing": "marginalise"} | shallow | parameters)


def probes():
    """Rows within the data, between them and beyond them."""
    return np.vstack([ROWS[:3], ROWS[:3].mean(axis=0), ROWS[0] + [5.0, 0.0, 0.0], [9.0, 90.0, 2.0]])


def edges_along(forest, k):
    """All places along a feature where trees change: their cuts, and the sides of their boxes."""
    edges = forest.cut[forest.feature == k]
    return (
        np.concatenate([edges, forest.lower[..., k].ravel(), forest.upper[..., k].ravel()])
        if forest.lower.shape[2]
        else edges
    )


# ---- scoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_mass_is_total_over_possible_leaves(estimator, domain):
    forest = build(estimator, domain=DOMAINS[domain], prior_strength=0.3).fit(ROWS)
    for hidden in PATTERNS[1:]:
        rows = hide(probes(), hidden)
        masses = forest.tree_masses(rows)
        for t in range(3):
            expected = [plain_mass(forest.forest_, forest.posterior_, t, x) for x in rows]
            assert_allclose(masses[:, t], expected, rtol=1e-10, err_msg=str(hidden))
        assert_allclose(forest.mass(rows), masses.mean(axis=1), rtol=1e-12)


@pytest.mark.parametrize("domain", DOMAINS)
def test_possible_leaves_are_those_of_all_values(estimator, domain):
    """Every place where anything changes along the feature, and its neighbours, tell all leaves there are."""
    forest = build(estimator, domain=DOMAINS[domain], prior_strength=0.3, max_depth=3).fit(ROWS)
    trees, known = forest.forest_, forest.posterior_
    for x, k in [(ROWS[0], 0), (ROWS[1], 1), (ROWS[2], 2), (ROWS.mean(axis=0), 0)]:
        edges = edges_along(trees, k)
        places = np.unique(
            np.concatenate([edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf), [-1e3, 1e3]])
        )
        rows = np.repeat(x[None], len(places), axis=0)
        rows[:, k] = places
        nodes, kinds = forest.leaves(rows)
        gappy = x.copy()
        gappy[k] = NAN
        for t in range(3):
            total = 0.0
            for node, kind in {(int(n), int(c)) for n, c in zip(nodes[:, t], kinds[:, t], strict=True)}:
                if kind == LeafKind.OUTSIDE:
                    total += math.exp(known.outside[t])
                elif kind == LeafKind.COMPLEMENTARY and trees.lower.shape[2]:
                    total += math.exp(known.complement[t, node])
                else:
                    total += math.exp(known.inside[t, node])
            assert forest.tree_masses(gappy[None])[0, t] == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("domain", DOMAINS)
def test_empty_row_has_mass_one(estimator, domain):
    forest = build(estimator, domain=DOMAINS[domain]).fit(ROWS)
    nothing = np.full((1, 3), NAN)
    assert_allclose(forest.tree_masses(nothing), 1.0, rtol=1e-12)
    assert_allclose(forest.log_density(nothing), 0.0, atol=1e-10)
    # at a lifetime a row has the cells alone: neither the outside nor what restrictions left out
    known, trees = forest.posterior_, forest.forest_
    left_out = [
        sum(math.exp(log_mass) for log_mass, _ in leaves_of(trees, known, t))
        - sum(math.exp(known.inside[t, j]) for j in range(trees.size[t]) if trees.left[t, j] == NONE)
        for t in range(3)
    ]
    latest = forest.mass(nothing, lifetime=forest._fitted.grown_until)
    assert_allclose(latest, 1 - np.mean(left_out) - np.exp(known.outside).mean(), rtol=1e-10)


def test_mass_at_lifetime_is_total_over_possible_cells(estimator):
    forest = build(estimator).fit(ROWS)
    times = [0.0, 0.3, 1.0, 4.0, 20.0, np.inf]
    for hidden in PATTERNS[1:]:
        rows = hide(probes(), hidden)
        masses = forest.mass(rows, lifetime=times)
        for i, x in enumerate(rows):
            for s, time in enumerate(times):
                each = [plain_cells(forest.forest_, forest.posterior_, t, x, time) for t in range(3)]
                expected = np.mean([sum(math.exp(log_mass) for _, log_mass in cells) for cells in each])
                assert masses[i, s] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_scores_follow_from_marginal_masses(estimator, score):
    forest = build(estimator, score_type=score).fit(ROWS)
    scores = forest.score_samples(GAPPY)
    if score == "mass":
        expected = forest.mass(GAPPY)
    elif score == "log_mass":
        expected = np.log(forest.tree_masses(GAPPY)).mean(axis=1)
    elif score == "multiscale":
        expected = np.log(forest.mass(GAPPY, lifetime=forest.lifetimes_)).mean(axis=1)
    else:
        logs = [
            [
                np.logaddexp.reduce([m for _, m in plain_cells(forest.forest_, forest.posterior_, t, x, time)])
                for t in range(3)
                for time in forest.lifetimes_
            ]
            for x in GAPPY
        ]
        expected = np.mean(logs, axis=1)
    assert_allclose(scores, expected, rtol=1e-9, atol=1e-12)
    assert_array_equal(forest.decision_function(GAPPY), scores - forest.offset_)
    assert_array_equal(forest.predict(GAPPY), np.where(scores >= forest.offset_, 1, -1))


@pytest.mark.parametrize("window", ["auto", 16])
@pytest.mark.parametrize("score", SCORES)
def test_complete_rows_keep_their_scores_bit_for_bit(window, score):
    forest, strict = (
        build(window=window, score_type=score, missing=missing).fit(ROWS) for missing in ("marginalise", "error")
    )
    mixed = np.vstack([GAPPY, ROWS])
    is_whole = ~np.isnan(mixed).any(axis=1)
    for method, more in {
        "score_samples": {},
        "mass": {},
        "tree_masses": {},
        "log_density": {},
        "epsilon_level": {"phi": 0.5},
    }.items():
        assert_array_equal(
            getattr(forest, method)(mixed, **more)[is_whole], getattr(strict, method)(mixed[is_whole], **more)
        )
    assert_array_equal(
        forest.mass(mixed, lifetime=[1.0, 2.0])[is_whole], strict.mass(mixed[is_whole], lifetime=[1.0, 2.0])
    )
    assert forest.offset_ == strict.offset_


def test_far_rows_keep_order_when_masses_underflow(estimator):
    forest = build(estimator, score_type="multiscale").fit(ROWS)
    far = np.array([[10.0**power, NAN, NAN] for power in (4, 5, 6)])
    scores = forest.score_samples(far)
    assert np.isfinite(scores).all()
    assert (np.diff(scores) < 0).all()


def test_verdicts_use_marginal_masses(estimator):
    forest = build(estimator).fit(ROWS)
    masses = np.sort(forest.tree_masses(GAPPY), axis=1)
    assert_array_equal(forest.epsilon_level(GAPPY, phi=0.5), masses[:, 1])
    forest.set_params(score_type=EpsilonPhi(0.5, 0.5))
    assert_array_equal(forest.predict(GAPPY) == -1, masses[:, 1] <= 0.5)


@pytest.mark.parametrize("weights", ["auto", [1.0, 0.0, 2.0]])
@pytest.mark.parametrize("domain", DOMAINS)
def test_density_integrates_missing_features_out(estimator, domain, weights):
    """Along the missing feature the density changes at edges only within the world, and falls exponentially beyond."""
    forest = build(estimator, domain=DOMAINS[domain], prior_strength=0.3, feature_weights=weights, n_estimators=1).fit(
        ROWS
    )
    trees, known, k = forest.forest_, forest.posterior_, 0
    low, high = known.world[:, 0, k]
    edges = edges_along(trees, k)
    edges = np.unique(np.clip(np.append(edges, [low, high]), low, high))
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    for x in (ROWS[0], ROWS[1], np.array([0.0, 150.0, 0.5])):
        rows = np.repeat(x[None], len(middles), axis=0)
        rows[:, k] = middles
        total = np.exp(forest.log_density(rows)) @ widths
        beyond = np.array([x, x])
        beyond[:, k] = low - np.array([1e-9, 1e-9 + (high - low)])
        if known.outside[0] > -np.inf:
            first, second = forest.log_density(beyond)
            total += 2 * np.exp(first) * (high - low) / (first - second)  # the integral of an exponential, both ways
        gappy = x.copy()
        gappy[k] = NAN
        assert np.exp(forest.log_density(gappy[None])[0]) == pytest.approx(total, rel=1e-6)


def test_empty_forest_gives_mass_of_one_half():
    forest = build(window=5)
    forest.partial_fit(ROWS[:1]).delete(0)
    assert_array_equal(forest.mass(GAPPY), 0.5)
    assert_allclose(forest.score_samples(GAPPY), np.log(0.5))


# ---- learning --------------------------------------------------------------------------------------------------------


def plain_donor(row, k, donors, spread):
    """The place of the first of the nearest donors, by distance in what both have."""

    def distance(donor):
        shared = ~np.isnan(row) & ~np.isnan(donor)
        return np.mean(np.abs(row - donor)[shared] / spread[shared]) if shared.any() else np.inf

    return min(range(len(donors)), key=lambda d: distance(donors[d]))


def spread_of(column, donors):
    return math.sqrt((np.nanmax(column) - np.nanmin(column)) * np.abs(donors - donors.mean()).mean())


def test_table_is_imputed_from_nearest_rows_with_value(monkeypatch):
    monkeypatch.setattr(imputation, "MOST", 8)
    monkeypatch.setattr(imputation, "_AT_ONCE", 3)
    rows = hide(ROWS, np.random.default_rng(1).random(ROWS.shape) < 0.3)
    rows[5] = [NAN, -1.0, NAN]
    order = np.argsort(draws.priorities(np.zeros(1, np.uint64), np.arange(len(rows)))[0])
    donors = [order[~np.isnan(rows[order, k])][:8] for k in range(3)]
    spread = np.array([spread_of(column, column[donors[k]]) for k, column in enumerate(rows.T)])
    filled = imputation.fill_table(StreamingMPF(), rows)
    assert_array_equal(filled[~np.isnan(rows)], rows[~np.isnan(rows)])
    for i, k in np.argwhere(np.isnan(rows)):
        assert filled[i, k] == rows[donors[k][plain_donor(rows[i], k, rows[donors[k]], spread)], k]


def test_rows_without_common_features_cycle_through_donors():
    rows = np.array([[1.0, 2.0], [NAN, NAN], [3.0, 4.0], [NAN, NAN]])
    assert_array_equal(imputation.fill_table(StreamingMPF(), rows)[[1, 3], 0], [3.0, 3.0])
    rows = np.array([[1.0, 2.0], [NAN, NAN], [NAN, NAN], [3.0, 4.0]])
    assert_array_equal(imputation.fill_table(StreamingMPF(), rows)[1:3], [[3.0, 4.0], [1.0, 2.0]])


def test_complete_table_is_not_changed():
    assert imputation.fill_table(StreamingMPF(), ROWS) is ROWS


@pytest.mark.parametrize("window", ["auto", 16, None])
def test_forest_fitted_on_gaps_equals_forest_of_imputed_table(window):
    rows = hide(ROWS, np.random.default_rng(2).random(ROWS.shape) < 0.2)
    parameters = {"window": window, "max_depth": 5}
    forest = build(**parameters).fit(rows)
    filled = build(**parameters).fit(imputation.fill_table(forest, rows))
    for mine, theirs in zip(forest.forest_, filled.forest_, strict=True):
        assert_array_equal(mine, theirs)


def test_threshold_of_batch_forest_uses_raw_rows():
    rows = hide(ROWS, np.random.default_rng(2).random(ROWS.shape) < 0.2)
    forest = build(BatchMPF, contamination=0.25)
    assert (forest.fit_predict(rows) == -1).sum() == 6


@pytest.mark.parametrize("window", [12, Window(duration=9.0), Reservoir(12, half_life=10)])
@pytest.mark.parametrize("score", SCORES)
def test_stream_with_gaps_is_same_row_by_row_and_in_chunks(window, score):
    rows = hide(ROWS, np.random.default_rng(3).random(ROWS.shape) < 0.2)
    rows[0] = ROWS[0]
    times = np.arange(24.0)
    given = {} if window == 12 else {"times": times}
    whole = build(window=window, score_type=score)
    scores = whole.score_then_learn(rows, **given)
    for size in (1, 7):
        parts, found = build(window=window, score_type=score), []
        for start in range(0, 24, size):
            part = slice(start, start + size)
            found.append(parts.score_then_learn(rows[part], **{name: values[part] for name, values in given.items()}))
        assert_array_equal(np.concatenate(found), scores)
        assert bits(parts) == bits(whole)
    assert bits(build(window=window, score_type=score).partial_fit(rows, **given)) == bits(whole)
    assert_whole(whole)


@pytest.mark.parametrize("score", SCORES)
def test_stream_scores_row_as_score_samples_before_learning(score):
    forest = build(window=12, score_type=score).partial_fit(ROWS[:14])
    for row in (GAPPY[:1], ROWS[14:15], GAPPY[1:2], GAPPY[2:3]):
        before = forest.score_samples(row)
        assert_allclose(forest.score_then_learn(row), before, rtol=1e-12)


def test_stream_learns_point_with_values_of_donor():
    forest = build(window=10).partial_fit([[0.0, 10.0], [1.0, 20.0], [5.0, 30.0]])
    key = forest.insert([1.1, NAN])
    assert_array_equal(forest.points_[-1], [1.1, 20.0])
    forest.insert([NAN, NAN])  # nothing to go by: the latest
    assert_array_equal(forest.points_[-1], [1.1, 20.0])
    forest.delete(key)
    assert_array_equal(forest.points_, [[0.0, 10.0], [1.0, 20.0], [5.0, 30.0], [1.1, 20.0]])
    assert_whole(forest)


def test_latest_of_equally_near_donors_is_used(monkeypatch):
    assert_array_equal(imputation.fill_row(np.array([1.0, NAN]), np.array([[1.0, 1.0], [3.0, 2.0]])), [1.0, 3.0])
    monkeypatch.setattr(imputation, "MOST", 2)
    forest = build(window=10).partial_fit([[1.0, 2.0], [8.0, 3.0], [9.0, 4.0]])
    forest.partial_fit([[1.0, NAN], [8.5, NAN]])
    assert_array_equal(forest.points_[-2:], [[1.0, 3.0], [8.5, 4.0]])


def test_summary_imputes_from_its_trees(monkeypatch):
    monkeypatch.setattr(stream, "WARM_UP", 8)
    forest = build(window=None, max_depth=4).partial_fit(ROWS[:20])
    other = build(window=None, max_depth=4).partial_fit(ROWS[:20])
    assert not hasattr(forest, "points_")
    forest.partial_fit(GAPPY[:1])
    other.partial_fit(other.impute(GAPPY[:1], how="mode"))
    assert bits(forest) == bits(other)


def test_batch_forest_imputes_rows_from_their_chunk():
    setting = {"domain": DOMAINS["fixed"]}
    rows = hide(ROWS, np.random.default_rng(4).random(ROWS.shape) < 0.2)
    forest = build(BatchMPF, **setting).fit(ROWS)
    forest.partial_fit(rows)
    forest.delete_rows(imputation.fill_table(forest, rows))
    assert_array_equal(forest.forest_.counts, build(BatchMPF, **setting).fit(ROWS).forest_.counts)
    merged = build(BatchMPF, **setting).fit(ROWS) + build(BatchMPF, **setting).fit(rows)
    assert merged.n_points_ == 48


# ---- filling in ------------------------------------------------------------------------------------------------------


def test_mean_is_weighted_mean_of_cell_centres():
    forest = build(missing="error").fit(ROWS)
    trees, known = forest.forest_, forest.posterior_
    filled = forest.impute(GAPPY)
    for i, x in enumerate(GAPPY):
        for k in np.flatnonzero(np.isnan(x)):
            means = []
            for time in (8.0, 16.0):
                cells = [(t, j, log) for t in range(3) for j, log in plain_cells(trees, known, t, x, time)]
                logs = np.array([log for _, _, log in cells])
                centres = [(trees.lower[t, j, k] + trees.upper[t, j, k]) / 2 for t, j, _ in cells]
                means.append(np.average(centres, weights=np.exp(logs - logs.max())))
            assert filled[i, k] == pytest.approx(np.mean(means), rel=1e-9)


def test_mode_is_centre_of_one_cell():
    forest = build().fit(ROWS)
    trees, known = forest.forest_, forest.posterior_
    filled = forest.impute(GAPPY[:4], how="mode")
    for x, found in zip(GAPPY[:4], filled, strict=True):
        cells = [(log, t, j) for t in range(3) for j, log in plain_cells(trees, known, t, x, 16.0)]
        _, t, j = max(cells, key=lambda cell: cell[0])
        assert_allclose(found, np.where(np.isnan(x), (trees.lower[t, j] + trees.upper[t, j]) / 2, x))


def test_cells_of_process_are_weighted_by_mass_over_width():
    forest = build(BatchMPF, n_estimators=1, max_depth=1, domain=[[0.0, 0.0], [1.0, 1.0]], feature_weights=[1.0, 0.0])
    rows = np.random.default_rng(5).random((40, 2)) * [0.3, 1.0]
    forest.fit(rows)
    xi, (left, right) = forest.forest_.cut[0, 0], np.exp(forest.posterior_.inside[0, 1:3])
    weights = [left / xi, right / (1 - xi)]
    expected = np.average([xi / 2, (1 + xi) / 2], weights=weights)
    gappy = np.array([[NAN, 0.5], [0.5, NAN]])
    assert_allclose(forest.impute(gappy), [[expected, 0.5], [0.5, 0.5]], rtol=1e-9)
    assert forest.impute(gappy, how="mode")[0, 0] in (xi / 2, (1 + xi) / 2)


@pytest.mark.parametrize("how", ["mean", "mode"])
def test_impute_keeps_observed_values_and_input(estimator, how):
    forest = build(estimator).fit(ROWS)
    before = GAPPY.copy()
    filled = forest.impute(GAPPY, how=how)
    assert_array_equal(GAPPY, before)
    assert np.isfinite(filled).all()
    assert_array_equal(filled[~np.isnan(GAPPY)], GAPPY[~np.isnan(GAPPY)])
    assert_array_equal(forest.impute(ROWS, how=how), ROWS)
    assert forest.impute(ROWS) is not ROWS


def test_imputed_values_follow_observed_values():
    x = np.linspace(0, 1, 64)
    rows = np.stack([x, 100 * x], axis=1)
    forest = build(n_estimators=10, max_samples=None).fit(rows)
    found = forest.impute([[0.1, NAN], [0.9, NAN], [NAN, 50.0]])
    assert_allclose(found[:2, 1], [10, 90], atol=5)
    assert found[2, 0] == pytest.approx(0.5, abs=0.05)


def test_mean_lies_between_clusters_and_mode_in_one():
    rows = np.vstack([RNG.normal([0.0, -10.0], 0.1, (20, 2)), RNG.normal([0.0, 10.0], 0.1, (30, 2))])
    forest = build(n_estimators=5, max_samples=None).fit(rows)
    assert abs(forest.impute([[0.0, NAN]])[0, 1]) < 9
    assert abs(abs(forest.impute([[0.0, NAN]], how="mode")[0, 1]) - 10) < 0.5


@pytest.mark.parametrize("score", SCORES)
def test_unit_of_time_is_derived_from_lifetimes(estimator, score):
    plain = build(estimator, score_type=score, feature_weights=None).fit(ROWS)
    scaled = build(estimator, score_type=score, feature_weights=[4.0, 4.0, 4.0]).fit(ROWS)
    assert plain._fitted.unit_of_time == pytest.approx(4 * scaled._fitted.unit_of_time)
    assert build(estimator, score_type=score).fit(ROWS)._fitted.unit_of_time == pytest.approx(1.0)
    if estimator is StreamingMPF:
        stream = build(score_type=score, feature_weights=[4.0, 4.0, 4.0], window=100).fit(ROWS)
        assert stream._fitted.unit_of_time == pytest.approx(scaled._fitted.unit_of_time)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_missing_error_rejects_gaps(estimator):
    forest = build(estimator, missing="error").fit(ROWS)
    for method in (forest.fit, forest.score_samples, forest.mass, forest.log_density):
        with pytest.raises(ValueError, match=r'NaN: row 0, column 1 is missing .* set missing="impute"'):
            method(GAPPY)


@pytest.mark.parametrize("method", ["leaves", "delete_rows"])
def test_methods_for_complete_rows_reject_gaps(method, estimator):
    forest = build(estimator).fit(ROWS)
    with pytest.raises(ValueError, match=r"row 0, column 1 is missing .* complete rows: .* impute"):
        getattr(forest, method)(GAPPY)
    assert forest.n_points_ == 24


def test_infinity_is_always_rejected(estimator):
    forest = build(estimator).fit(ROWS)
    bad = GAPPY.copy()
    bad[1, 2] = np.inf
    for method in (forest.fit, forest.partial_fit, forest.score_samples, forest.impute):
        if estimator is StreamingMPF and method == forest.partial_fit:
            continue  # a table cannot continue
        with pytest.raises(ValueError, match="infinity: row 1, column 2 is inf"):
            method(bad)
    with pytest.raises(ValueError, match="row 1, column 2 is 1e"):
        forest.score_samples(np.where(np.isinf(bad), 1e101, bad))


def test_column_without_values_is_rejected_by_name(estimator):
    frame = pd.DataFrame({"load": [1.0, 2.0], "heat": [NAN, NAN]})
    with pytest.raises(ValueError, match="column 'heat' is missing in all 2 rows"):
        build(estimator).fit(frame)
    with pytest.raises(ValueError, match="column 1 is missing in all 2 rows"):
        build(BatchMPF).fit(ROWS[:, :2]).partial_fit(frame.to_numpy())


def test_unknown_options_are_rejected(estimator):
    with pytest.raises(InvalidParameterError, match="missing"):
        build(estimator, missing="drop").fit(ROWS)
    with pytest.raises(ValueError, match='how must be "mean" or "mode"'):
        build(estimator).fit(ROWS).impute(GAPPY, how="median")


def test_impute_requires_fitted_nonempty_forest(estimator):
    with pytest.raises(NotFittedError):
        build(estimator).impute(GAPPY)
    forest = build(window=5)
    forest.partial_fit(ROWS[:1]).delete(0)
    with pytest.raises(ValueError, match="an empty forest cannot impute"):
        forest.impute(GAPPY)
    with pytest.raises(ValueError, match="X has 2 features"):
        build(estimator).fit(ROWS).impute(GAPPY[:, :2])


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_gaps_in_frames_and_lists_are_accepted(estimator):
    forest = build(estimator).fit(ROWS)
    expected = forest.score_samples(GAPPY)
    lists = [[None if np.isnan(value) else value for value in row] for row in GAPPY.tolist()]
    assert_array_equal(forest.score_samples(lists), expected)
    named = build(estimator).fit(pd.DataFrame(ROWS, columns=["a", "b", "c"]))
    assert_array_equal(named.score_samples(pd.DataFrame(GAPPY, columns=["a", "b", "c"]).astype("Float64")), expected)


def test_tag_reports_whether_gaps_are_allowed(estimator):
    assert build(estimator).__sklearn_tags__().input_tags.allow_nan
    assert not clone(build(estimator, missing="error")).__sklearn_tags__().input_tags.allow_nan


def test_results_do_not_depend_on_threads(estimator, monkeypatch):
    monkeypatch.setattr(walks, "BLOCK", 5)
    rows = np.vstack([hide(ROWS[:3], hidden) for hidden in PATTERNS])
    one, two = (build(estimator, n_jobs=n_jobs).fit(ROWS) for n_jobs in (1, 2))
    assert_array_equal(one.score_samples(rows), two.score_samples(rows))
    assert_array_equal(one.impute(rows), two.impute(rows))


def test_files_keep_missing_parameter(estimator, tmp_path):
    forest = build(estimator).fit(ROWS)
    forest.save(tmp_path / "new.mpf")
    again = polyaforest.load(tmp_path / "new.mpf")
    assert again.missing == "marginalise"
    assert_array_equal(again.score_samples(GAPPY), forest.score_samples(GAPPY))
