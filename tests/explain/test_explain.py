"""Explanations: the parts add up, are those of the rules, attribution the guilty, and are well put."""

import json
import math
import pickle
import sys

import numpy as np
import pytest
from effort import mostly_slow
from forests import made, without_derived
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from streams import assert_whole, bits

from polyaforest import BatchMPF, ModelFileError, Reservoir, StreamingMPF, Tree
from polyaforest.explain import context
from polyaforest.explain.explanation import Explanation, Explanations
from polyaforest.explain.words import odds, share_of_points
from polyaforest.forest import attribute
from polyaforest.kernels.arrays import NONE
from polyaforest.model.base import Offset
from polyaforest.util.numbers import number

SCORES = ["typicality", "multiscale", "log_mass", "mass"]
LOW, HIGH = 0, 1
CHANGES = {
    "learn": lambda forest, rows: forest.partial_fit(rows),
    "insert": lambda forest, rows: forest.insert(rows[0]),
    "delete": lambda forest, rows: forest.delete(forest.keys_[3:9]),
    "rebuild": lambda forest, rows: forest.rebuild(),
    "fit": lambda forest, rows: forest.fit(rows),
}


def table(n=60, n_features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, n_features))


def probes(rows):
    """Rows of the table, rows near, rows outside in one feature or all, and far off."""
    near = rows[:3] + 0.1
    one_off = rows[:2].copy()
    one_off[0, 0], one_off[1, -1] = 9.0, -9.0
    return np.vstack([rows[:4], near, one_off, np.full((1, rows.shape[1]), 50.0)])


def with_duplicates():
    return np.repeat(np.round(table(20)), 3, axis=0)


def with_a_constant():
    rows = table(40)
    rows[:, 1] = 3.0
    return rows


def streamed(**parameters):
    forest = made(StreamingMPF, **parameters)
    forest.partial_fit(table(50))
    return forest.partial_fit(table(30, seed=1))


DOMAIN = [[-5.0] * 3, [5.0] * 3]
FORESTS = {
    "table": lambda **p: made(StreamingMPF, **p).fit(table()),
    "capped": lambda **p: made(StreamingMPF, tree=Tree(max_depth=3), max_samples=None, **p).fit(table()),
    "mortal": lambda **p: made(StreamingMPF, tree=Tree(lifetime=1.0), **p).fit(table()),
    "duplicates": lambda **p: made(StreamingMPF, max_samples=None, **p).fit(with_duplicates()),
    "constant": lambda **p: made(StreamingMPF, **p).fit(with_a_constant()),
    "domain": lambda **p: made(StreamingMPF, tree=Tree(domain=DOMAIN), **p).fit(table()),
    "weights": lambda **p: made(StreamingMPF, tree=Tree(feature_weights=[0.0, 1.0, 2.0]), **p).fit(table()),
    "window": lambda **p: streamed(window=40, **p),
    "reservoir": lambda **p: streamed(window=Reservoir(30), **p),
    "warming up": lambda **p: streamed(window=None, max_depth=4, **p),
    "summary": lambda **p: (
        made(StreamingMPF, window=None, tree=Tree(max_depth=4), **p).fit(table()).partial_fit(table(30, seed=1))
    ),
    "process": lambda **p: made(BatchMPF, tree=Tree(max_depth=5), **p).fit(table()),
    "process with a domain": lambda **p: made(
        BatchMPF, tree=Tree(max_depth=5, domain=[[-1.0] * 3, [1.0] * 3]), **p
    ).fit(table()),
}


def forest_of(kind, score="typicality", **parameters):
    return FORESTS[kind](score_type=score, n_estimators=6, random_state=0, **parameters)


# ---- a plain reading of the rules ------------------------------------------------------------------------------------


def naive_attributions(forest, row):
    """Naive attributions of a row by feature and side, and the base of all rows, by the rules of the docs, in bits."""
    lifetimes = forest.lifetimes_ if forest.score_type in ("typicality", "multiscale") else [None]
    n_trees, boxed = len(forest.forest_.left), forest.forest_.lower.shape[2] > 0
    parts, base = np.zeros((2, len(row))), 0.0
    for t in range(n_trees):
        walks = [NaiveWalk(forest, t, row, life) for life in lifetimes]
        base += sum(walk.run() for walk in walks)
        by_cuts, by_distance = (sum(getattr(walk, name) for walk in walks) for name in ("parts", "distances"))
        if boxed and by_distance.any():
            rate = walks[-1].distances.sum()  # the chance is that of being together until the last lifetime
            chance = math.exp(-rate) if rate < math.log(1e4) else 0.0
            by_cuts = chance * by_cuts + (1 - chance) * by_cuts.sum() * by_distance / by_distance.sum()
        parts += by_cuts + by_distance
    scale = n_trees * len(lifetimes) * math.log(2)
    return parts / scale, base / scale


class NaiveWalk:
    """One row's walk down one tree, to its cell at a lifetime or to its leaf, charging features as it goes."""

    def __init__(self, model, t, row, life):
        self.forest, self.prior, self.t, self.row, self.life = model.forest_, model.prior_, t, row, life
        self.parts, self.distances = np.zeros((2, len(row))), np.zeros((2, len(row)))
        self.boxed = self.forest.lower.shape[2] > 0
        self.weights = self.forest.weights[t]

    def run(self):
        forest, t, gamma = self.forest, self.t, self.prior.strength
        root = forest.root[t]
        low, high = forest.domain[0].copy(), forest.domain[1].copy()
        if self.boxed:
            low, high = np.minimum(low, forest.lower[t, root]), np.maximum(high, forest.upper[t, root])
        n_out, n = forest.outside[t], forest.counts[t, root]
        outside = (gamma / 2 + n_out) / (gamma + n + n_out) if self.prior.is_open else 0.0
        excess = np.maximum(np.maximum(low - self.row, self.row - high), 0)
        if self.life is None and excess.any():
            reach = (self.weights * excess).sum() / ((self.weights * (high - low)).sum() or 1.0)
            amount = math.log(1 - outside) - math.log(outside) + math.log1p(reach)
            if not self.boxed:  # cuts attribute as for the nearest point of the domain
                self.visit(root, 0, (low, high), 0.0, gamma)
                if self.parts.sum() > amount:
                    self.parts *= max(amount, 0) / self.parts.sum()
                amount -= self.parts.sum()
            self.attribute_missed(excess, low, amount)
        else:
            self.visit(root, 0, (low, high), 0.0, gamma)
        return -math.log(1 - outside)

    def visit(self, j, depth, region, began, strength):
        forest, t = self.forest, self.t
        box, n = region, forest.counts[t, j]
        if self.boxed:
            box = forest.lower[t, j], forest.upper[t, j]
            if self.restrict(region, box, n, strength):
                return
        ends = forest.time[t, j]
        is_leaf = forest.left[t, j] == NONE
        if self.life is not None:
            until = min(self.life, ends)
            edge = box if self.boxed else forest.domain
            self.distances[LOW] += (until - began) * self.weights * np.maximum(edge[0] - self.row, 0)
            self.distances[HIGH] += (until - began) * self.weights * np.maximum(self.row - edge[1], 0)
            is_leaf |= self.life < ends
        if not is_leaf:
            self.cross(j, depth, box, ends)

    def restrict(self, region, box, n, strength):
        """Attribute the restriction to a box; return whether the row is outside it."""
        live = box[0] < box[1]
        shares = np.where(live, (box[1] - box[0]) / np.where(live, region[1] - region[0], 1.0), 1.0)
        f = shares.prod()
        excess = np.maximum(np.maximum(box[0] - self.row, self.row - box[1]), 0) * live
        if self.life is None and excess.any():
            self.attribute_missed(excess, box[0], -math.log(strength * (1 - f) / (strength + n)))
            return True
        if f < 1:
            amount = -math.log((strength * f + n) / (strength + n))
            for k in np.flatnonzero(shares < 1):
                below, above = box[0][k] - region[0][k], region[1][k] - box[1][k]
                part = amount * math.log(shares[k]) / math.log(f)
                self.parts[HIGH, k] += part * below / (below + above)
                self.parts[LOW, k] += part * above / (below + above)
        return False

    def cross(self, j, depth, box, ends):
        forest, t, gamma = self.forest, self.t, self.prior.strength
        k, xi = forest.feature[t, j], forest.cut[t, j]
        goes_left = self.row[k] <= xi
        child = (forest.left if goes_left else forest.right)[t, j]
        a = gamma * (2 * depth + 1 if self.boxed else depth + 1) ** 2
        share = ((xi - box[0][k]) if goes_left else (box[1][k] - xi)) / (box[1][k] - box[0][k])
        mean = (a * share + forest.counts[t, child]) / (a + forest.counts[t, j])
        self.parts[LOW if goes_left else HIGH, k] -= math.log(mean)
        side = box[0].copy(), box[1].copy()
        side[1 if goes_left else 0][k] = xi
        self.visit(child, depth + 1, side, ends, gamma * (2 * depth + 2) ** 2)

    def attribute_missed(self, excess, lower, amount):
        shares = self.weights * excess
        shares = shares / shares.sum() if shares.any() else (excess > 0) / (excess > 0).sum()
        for k in np.flatnonzero(shares):
            self.parts[LOW if self.row[k] < lower[k] else HIGH, k] += amount * shares[k]


@pytest.mark.plain
@pytest.mark.parametrize("score", mostly_slow(SCORES, 0, 2))
@pytest.mark.parametrize("kind", FORESTS)
def test_parts_match_naive_reference(kind, score):
    forest = forest_of(kind, score)
    rows = probes(table())
    lifetimes = forest.lifetimes_ if score in ("typicality", "multiscale") else np.empty(0)
    attributions, base = attribute.attribute_rows(forest.forest_, forest.posterior_, rows, lifetimes, None)
    for row, attribution in zip(rows, attributions, strict=True):
        expected, expected_base = naive_attributions(forest, row)
        assert_allclose(attribution, expected, rtol=1e-9, atol=1e-9)
        assert base == pytest.approx(expected_base, abs=1e-12)


@pytest.mark.parametrize("score", mostly_slow(SCORES, 0, 3))
@pytest.mark.parametrize("kind", FORESTS)
def test_parts_add_up(kind, score):
    forest = forest_of(kind, score)
    rows = probes(table())
    said = forest.explain(rows)
    assert_allclose(said.parts.sum(axis=1), said.surprise - said.typical, rtol=0, atol=1e-9)
    assert_array_equal(said.parts, said.low + said.high)
    if score in ("typicality", "log_mass"):
        assert_allclose(said.surprise, -forest.score_samples(rows) / math.log(2), rtol=1e-12, atol=1e-9)
    assert_array_equal(said.is_anomaly, forest.predict(rows) < 0)


@pytest.mark.parametrize("kind", ["table", "window", "process"])
@pytest.mark.parametrize("score", ["typicality", "log_mass"])
def test_bits_do_not_depend_on_other_rows_threads_or_frames(kind, score, monkeypatch):
    forest = forest_of(kind, score)
    rows = probes(table())
    whole = forest.explain(rows)
    for i in range(len(rows)):
        assert_array_equal(forest.explain(rows[i : i + 1]).low[0], whole.low[i])
    monkeypatch.setattr(attribute, "_ROWS_AT_ONCE", 2)
    assert_array_equal(forest.set_params(n_jobs=2).explain(rows).parts, whole.parts)
    for answer in (False, True):
        monkeypatch.setattr(attribute, "uses_table", lambda forest, n_rows, answer=answer: answer)
        assert_array_equal(forest.explain(rows).parts, whole.parts)


@pytest.mark.parametrize("kind", ["process", "process with a domain"])
@pytest.mark.parametrize("score", ["typicality", "log_mass"])
def test_typical_of_process_is_mean_over_counted_rows(kind, score):
    forest = forest_of(kind, score)
    rows = table()
    within = rows[((rows >= forest.forest_.domain[0]) & (rows <= forest.forest_.domain[1])).all(axis=1)]
    assert forest.explain(within).parts.mean(axis=0) == pytest.approx(0, abs=1e-9)


def test_typical_of_stream_is_mean_over_points_held(monkeypatch):
    monkeypatch.setattr(context, "_PAIRS", 10**6)  # all points for every tree
    forest = forest_of("window")
    assert forest.explain(forest.points_).parts.mean(axis=0) == pytest.approx(0, abs=1e-9)


def test_few_points_per_tree_estimate_typical_well():
    forest = StreamingMPF(window=100, random_state=0).partial_fit(table(300))
    parts = forest.explain(forest.points_).parts.mean(axis=0)
    assert 0 < np.abs(parts).max() < 0.25


def test_typical_of_stream_does_not_depend_on_chunks_or_files(tmp_path):
    rows, row = table(300), table(1, seed=7)
    whole = StreamingMPF(window=100, random_state=0).partial_fit(rows)
    by_row = StreamingMPF(window=100, random_state=0)
    for i in range(len(rows)):
        by_row.partial_fit(rows[i : i + 1])
    whole.save(tmp_path / "forest.mpf")
    again, said = StreamingMPF.load(tmp_path / "forest.mpf"), whole.explain(row)
    for other in (by_row.explain(row), again.explain(row)):
        assert other.typical == said.typical
        assert_array_equal(other.parts, said.parts)


@pytest.mark.parametrize("score", ["typicality", "log_mass"])
def test_posterior_along_paths_equals_full_posterior_bit_for_bit(score):
    forest = StreamingMPF(window=100, random_state=0, score_type=score)
    forest.detect_then_learn(table(300))
    few = forest.explain(probes(table())[:3])
    fitted = forest._fitted
    assert fitted._posterior is None
    is_derived = ~np.isnan(fitted._paths.inside)
    assert 0 < is_derived.sum() < forest.forest_.size.sum()
    for name in ("inside", "complement", "inside_volume", "complement_volume"):
        assert_array_equal(getattr(fitted._paths, name)[is_derived], getattr(forest.posterior_, name)[is_derived])
    assert_array_equal(forest.explain(probes(table())[:3]).parts, few.parts)


def test_stream_leaves_its_arrays_to_unread_explanations_once():
    forest, row = streamed(window=40, n_estimators=3, random_state=0), table(1)
    kept, words = forest.explain(row), str(forest.explain(row))
    arrays = forest.forest_
    forest.insert(row[0])
    assert forest.forest_ is not arrays  # the explanation has them
    arrays = forest.forest_
    forest.insert(row[0])
    assert forest.forest_ is arrays
    assert str(kept) == words


def test_fitted_rows_are_typical_on_average():
    rows = table(200)
    parts = StreamingMPF(n_estimators=30, random_state=0).fit(rows).explain(rows).parts
    assert np.abs(parts.mean(axis=0)).max() < 0.25


def test_surprise_is_infinite_outside_closed_domain():
    forest = StreamingMPF(
        tree=Tree(domain="data"), score_type="log_mass", max_samples=None, n_estimators=4, random_state=0
    )
    rows = table()
    outside = rows[:1].copy()
    outside[0, 1] = 9.0
    said = forest.fit(rows).explain(outside)[0]
    assert said.surprise == np.inf
    assert said.parts[1] == said.high[1] == np.inf
    assert np.isfinite(said.parts[[0, 2]]).all()
    assert [attribution.name for attribution in said.attributions] == ["x1"]
    facts = json.loads(said.to_json())
    assert facts["surprise"] is None
    assert "inf" in str(said)
    assert "width:100%" in said._repr_html_()


def test_emptied_stream_reports_no_feature():
    forest = streamed(window=40, n_estimators=3, random_state=0)
    forest.delete(forest.keys_)
    said = forest.explain(table(1))[0]
    assert said.surprise == said.typical == pytest.approx(1.0)
    assert not said.parts.any()
    assert "no feature stands out" in str(said)


# ---- cut off ---------------------------------------------------------------------------------------------------------


def test_far_row_has_bits_from_distances_only():
    forest = forest_of("table")
    row = np.array([[0.0, 40.0, 0.0]])
    attributions, _ = attribute.attribute_rows(forest.forest_, forest.posterior_, row, forest.lifetimes_, None)
    expected = np.zeros((2, 3))
    for t in range(6):
        walks = [NaiveWalk(forest, t, row[0], life) for life in forest.lifetimes_]
        for walk in walks:
            walk.run()
        distances = sum(walk.distances for walk in walks)
        assert math.exp(-walks[-1].distances.sum()) < 1e-4
        expected += distances * (1 + sum(walk.parts.sum() for walk in walks) / distances.sum())
    assert_allclose(attributions[0], expected / (6 * len(forest.lifetimes_) * math.log(2)), rtol=1e-9)


def test_attributions_are_continuous_at_edge_of_box():
    forest = StreamingMPF(tree=Tree(max_depth=0), max_samples=None, n_estimators=2, random_state=0).fit(table())
    edge = forest.forest_.upper[0, forest.forest_.root[0]]
    rows = np.array([edge, edge + 1e-9, edge + 1e-6, edge + 0.1])
    parts = forest.explain(rows).parts
    assert_allclose(parts[1], parts[0], atol=1e-6)
    assert_allclose(parts[2], parts[0], atol=1e-3)
    assert np.abs(parts[3] - parts[0]).max() > 0.1


def test_cuts_attribute_row_outside_domain_like_nearest_inside():
    forest = forest_of("process", "log_mass")
    low, high = forest.forest_.domain
    row = np.array([[0.0, high[1] + 1e6, 0.0]])
    lifetimes = np.empty(0)
    attributions, within = (
        attribute.attribute_rows(forest.forest_, forest.posterior_, rows, lifetimes, None)[0].sum(axis=1)[0]
        for rows in (row, np.clip(row, low, high))
    )
    assert_allclose(attributions[[0, 2]], within[[0, 2]])
    assert attributions[1] > within[1]


def test_cuts_share_bits_when_outside_gets_none():
    rows = np.concatenate([table(400) * 0.3, table(100) + 9.0])
    forest = BatchMPF(tree=Tree(max_depth=8, domain=[[-1.0] * 3, [1.0] * 3]), n_estimators=6, random_state=0).fit(rows)
    far = np.array([[-1.1, 0.9, -0.9]])
    attributions, base = attribute.attribute_rows(forest.forest_, forest.posterior_, far, np.empty(0), None)
    assert (attributions >= -1e-12).all()
    assert attributions[0].sum() + base == pytest.approx(-forest.score_samples(far)[0] / math.log(2))
    assert attributions[0].sum() < forest.explain(np.clip(far, -1, 1)).surprise[0] - base


# ---- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", ["table", "duplicates", "window", "summary", "process"])
def test_verdicts_agree_with_scores(kind, score):
    forest = forest_of(kind, score, false_alarm_rate=0.1)
    rows = np.vstack([probes(table()), with_duplicates()])
    said = forest.explain(rows)
    assert_array_equal(said.is_anomaly, forest.predict(rows) < 0)
    assert_array_equal(said.p_values, forest.p_value(rows))
    for i in (0, -1):
        assert said[i].p_value == said.p_values[i]
        assert said[i].is_anomaly == said.is_anomaly[i]


@pytest.mark.parametrize("score", ["typicality", "log_mass"])
def test_explain_skips_scoring_when_surprise_is_score(score, monkeypatch):
    forest = forest_of("process", score)
    rows = probes(table())
    scores, asked = forest.score_samples(rows), []
    forest._model.offset = Offset(forest._policy, float(np.sort(scores)[2]) * (1 + 1e-9))
    forest.p_value(rows)  # which calibrates the forest
    expected = forest.predict(rows) == -1
    monkeypatch.setattr(forest, "_scores", asked.append)
    assert_array_equal(forest.explain(rows).is_anomaly, expected)
    assert asked == []


# ---- the guilty ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "window", "summary", "process"])
@pytest.mark.parametrize("score", ["typicality", "log_mass"])
@pytest.mark.parametrize(("value", "side"), [(9.0, "high"), (-9.0, "low")])
def test_anomalous_feature_is_attributed_on_right_side(kind, score, value, side):
    row = np.zeros((1, 3))
    row[0, 1] = value
    said = forest_of(kind, score, contamination=0.05).explain(row)[0]
    assert said.is_anomaly
    attribution = said.attributions[0]
    assert (attribution.feature, attribution.name, attribution.value, attribution.side) == (1, "x1", value, side)
    assert attribution.bits == said.parts[1] == said.parts.max()
    assert attribution.usual[0] < 0 < attribution.usual[1]
    low, high = attribution.expected
    assert -5 < low < high < 5


def test_exactly_two_anomalous_features_are_attributed():
    rows = table(150, 8)
    row = np.zeros((1, 8))
    row[0, [2, 5]] = 6.0, -6.0
    said = StreamingMPF(n_estimators=30, random_state=0).fit(rows).explain(row)[0]
    assert {(attribution.feature, attribution.side) for attribution in said.attributions} == {(2, "high"), (5, "low")}
    assert "x2 >" in said.region
    assert "x5 ≤" in said.region


def test_value_between_clusters_is_bounded_on_both_sides():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-5, 0.3, (60, 1)), rng.normal(5, 0.3, (60, 1))])
    said = StreamingMPF(n_estimators=30, random_state=0).fit(rows).explain([[0.0]])[0]
    sides = {condition.side: condition.bound for condition in said._words.conditions}
    assert -6 < sides[HIGH] < 0 < sides[LOW] < 6
    assert " < x0 ≤ " in said.region


def test_typical_row_has_no_attributions():
    said = StreamingMPF(n_estimators=30, random_state=0).fit(table(150)).explain([[0.0, 0.0, 0.0]])[0]
    assert not said.is_anomaly
    assert said.attributions == []
    assert said.region == "no feature stands out"
    assert said.share == pytest.approx(1, abs=0.01)


def test_slightly_surprising_row_has_no_attributions():
    forest = StreamingMPF(n_estimators=4, random_state=0).fit(table(150))
    said = forest.explain(table(200, seed=1))
    excess = said.surprise - said.typical
    few = [one for one, bits in zip(said, excess, strict=True) if bits < 0.5]
    assert any(one.parts.max() > 0.5 for one in few), "for which its other features make good"
    assert not any(one.attributions for one in few)
    assert all(one.attributions for one, bits in zip(said, excess, strict=True) if bits >= 1.0)


def test_expected_range_is_normal_and_values_beyond_are_not():
    forest = StreamingMPF(n_estimators=30, random_state=0).fit(table(150))
    row = np.array([0.2, 8.0, -0.3])
    (attribution,) = forest.explain(row[None])[0].attributions

    def with_value(value):
        return forest.predict([[row[0], value, row[2]]])[0]

    low, high = attribution.expected
    assert with_value(low) == with_value(high) == 1
    assert with_value(high + 0.3) == -1


def test_expected_is_none_when_no_value_is_normal():
    forest = StreamingMPF(n_estimators=30, random_state=0).fit(table(150))
    said = forest.explain([[8.0, 8.0, 8.0]], features=["x0"])[0]
    assert [attribution.expected for attribution in said.attributions] == [None]
    assert "no value" in str(said)


def test_share_of_region_counts_points_held():
    forest = streamed(window=40, n_estimators=6, random_state=0)
    row = np.array([[0.0, 1.0, 0.0]])
    said = forest.explain(row)[0]
    low, high = np.full(3, -np.inf), np.full(3, np.inf)
    for k, side, bound in said._words.conditions:
        (high if side == LOW else low)[k] = bound
    n = ((forest.points_ > low) & (forest.points_ <= high)).all(axis=1).sum()
    assert said.share == pytest.approx((n + 0.5) / 41)
    assert said.share_interval[0] < said.share < said.share_interval[1]


@pytest.mark.plain
@pytest.mark.parametrize("kind", ["table", "duplicates", "process", "process with a domain"])
def test_counts_in_trees_equal_counts_of_points(kind):
    forest = forest_of(kind)
    low, high = np.array([-0.5, -np.inf, -np.inf]), np.array([np.inf, 0.5, np.inf])
    counts = attribute.count_within(forest.forest_, forest.posterior_.world, low, high)
    for t, count in enumerate(counts):
        assert count == pytest.approx(naive_count(forest, t, low, high))


def naive_count(model, t, low, high):
    """Points of one tree within bounds, leaf by leaf."""
    forest, total = model.forest_, 0.0

    def visit(j, box):
        nonlocal total
        if forest.lower.shape[2]:
            box = forest.lower[t, j].copy(), forest.upper[t, j].copy()
        if forest.left[t, j] == NONE:
            length = box[1] - box[0]
            inside = np.clip(np.minimum(box[1], high) - np.maximum(box[0], low), 0, None)
            is_in = (box[0] > low) & (box[0] <= high)
            total += forest.counts[t, j] * np.where(length > 0, inside / np.where(length > 0, length, 1), is_in).prod()
            return
        k, xi = forest.feature[t, j], forest.cut[t, j]
        left, right = (box[0].copy(), box[1].copy()), (box[0].copy(), box[1].copy())
        left[1][k] = right[0][k] = xi
        visit(forest.left[t, j], left)
        visit(forest.right[t, j], right)

    visit(forest.root[t], model.posterior_.world[:, t])
    return total


def test_similar_points_are_held_normal_and_nearest():
    forest = streamed(window=40, n_estimators=6, random_state=0)
    said = forest.explain([[0.1, 0.1, 6.0]])[0]
    assert len(said.similar) == 3
    for key, values in said.similar:
        assert_array_equal(forest.points_[forest.keys_.index(key)], values)
    assert (forest.score_samples(np.array([values for _, values in said.similar])) >= forest.offset_).all()
    distances = np.abs(forest.points_ - [0.1, 0.1, 6.0]) @ forest.forest_.weights.mean(axis=0)
    nearest = forest.points_[np.argsort(distances)]
    normal = nearest[forest.score_samples(nearest) >= forest.offset_]
    assert_array_equal([values for _, values in said.similar], normal[:3])


@pytest.mark.parametrize("kind", ["process", "summary"])
def test_forests_without_points_have_no_similar_points(kind):
    assert forest_of(kind).explain([[0.1, 0.1, 6.0]])[0].similar == []


# ---- files and streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "window", "summary", "process"])
def test_loaded_forest_gives_same_explanations(kind, tmp_path):
    forest = forest_of(kind)
    forest.save(tmp_path / "forest.mpf")
    again = type(forest).load(tmp_path / "forest.mpf")
    rows = probes(table())
    assert_array_equal(again.explain(rows).parts, forest.explain(rows).parts)
    assert again.explain(rows).to_dicts() == forest.explain(rows).to_dicts()
    assert pickle.loads(pickle.dumps(forest)).explain(rows).to_dicts() == forest.explain(rows).to_dicts()


@pytest.mark.parametrize("kind", ["table", "process"])
def test_forest_of_early_version_explains(kind):
    forest = forest_of(kind)
    usual = forest.explain(table(1))[0].usual
    forest._model.quantiles = None
    without_derived(forest)
    said = forest.explain([[0.0, 9.0, 0.0]])[0]
    assert said.attributions[0].name == "x1"
    assert (np.abs(said.usual - usual) < 1.5).all()


def test_quantiles_of_wrong_shape_are_rejected(tmp_path):
    forest = forest_of("process")
    forest._model.quantiles = forest._model.quantiles[:, :2].copy()
    forest.save(tmp_path / "forest.mpf")
    with pytest.raises(ModelFileError, match="quantiles"):
        BatchMPF.load(tmp_path / "forest.mpf")


def test_deleted_points_leave_no_trace_in_reference():
    forest = streamed(window=40, n_estimators=3, random_state=0)
    forest.insert([77.0, 0.0, 0.0], key="secret")
    assert 77.0 in forest.explain(table(1))._snapshot.reference.quantiles
    forest.delete("secret")
    assert forest._model.quantiles is None
    assert 77.0 not in forest.explain(table(1))._snapshot.reference.quantiles


@pytest.mark.parametrize("change", CHANGES)
def test_explanations_describe_the_forest_before_later_changes(change):
    forest = streamed(window=40, n_estimators=3, random_state=0)
    rows = table(20, seed=5)
    late, early, few = forest.explain(rows), forest.explain(rows).materialise(), forest.explain(rows[:2])
    words, twin = str(early), pickle.loads(pickle.dumps(forest))
    for detector in (forest, twin):
        CHANGES[change](detector, rows)
        assert_whole(detector)
    assert bits(forest) == bits(twin)  # the copy for the explanations changes nothing
    assert str(early) == str(late) == words
    assert str(few[0]) == str(early[0])


def test_explanations_of_table_survive_refit():
    forest = StreamingMPF(n_estimators=6, random_state=0).fit(table())
    rows = np.array([[0.0, 9.0, 0.0]])
    before, late = str(forest.explain(rows)), forest.explain(rows)
    forest.fit(table(seed=3) * 100)
    assert str(late) == before


def test_explanations_copy_rows():
    rows = table(2)
    said = forest_of("table").explain(rows)
    values = said.values.copy()
    rows[:] = 0
    assert_array_equal(said.values, values)


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def servers():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    return pd.DataFrame({"cpu": rng.uniform(2, 61, 150), "latency": rng.normal(200, 40, 150), "disk": rng.random(150)})


@pytest.fixture
def odd(servers):
    row = servers.iloc[[0]].copy()
    row[["cpu", "latency"]] = 97.2, 512.0
    return row


def test_report_shows_verdict_share_and_normal_values(servers, odd):
    said = StreamingMPF(n_estimators=30, random_state=0).fit(servers).explain(odd)[0]
    report = str(said)
    assert report.startswith("Anomalous: ")
    assert "times less likely than a typical point" in report
    assert "cpu > " in said.region
    assert "latency > " in said.region
    assert "points fall here [" in said.region
    assert "would be normal" in report
    assert report.count("too high") == 2
    assert "█" in report
    assert max(map(len, report.splitlines())) <= 100


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (-3.0, "as likely as"),
        (0.9, "as likely as"),
        (1.0, "about 2 times"),
        (10.2, "about 1,200 times"),
        (25.0, "more than a million times"),
        (np.inf, "more than a million times"),
    ],
)
def test_bits_are_formatted_as_odds(bits, words):
    assert words in odds(bits)


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (93.1234, 59.0, "93"),
        (2.0, 59.0, "2"),
        (0.41234, 0.05, "0.412"),
        (-0.001, 3.0, "0"),
        (512.0, 0.0, "512"),
        (1_234_567.0, 2e6, "1,234,567"),
        (1.7e9 + 0.25, 1.0, "1700000000.25"),
        (3e-12, 1e-12, "3e-12"),
        (0.0, 0.0, "0"),
        (np.inf, 1.0, "inf"),
    ],
)
def test_numbers_are_formatted_to_scale(value, scale, text):
    assert number(value, scale) == text


@pytest.mark.parametrize(
    ("share", "interval", "words"),
    [
        (0.0003, (0.0001, 0.0009), "about 3 in 10,000 points fall here [1–9 in 10,000]"),
        (0.0001, (0.0, 0.0004), "about 1 in 10,000 points fall here [0–4 in 10,000]"),
        (0.97, (0.9, 0.99), "about 10 in 10 points fall here [9–10 in 10]"),
        (0.002, (0.0004, 0.005), "about 2 in 1,000 points fall here [0.4–5 in 1,000]"),
    ],
)
def test_shares_are_formatted_with_interval(share, interval, words):
    assert share_of_points(share, interval) == words


def test_names_are_escaped_in_html(servers):
    hostile = servers.rename(columns={"cpu": "<script>alert('x')</script>"})
    row = hostile.iloc[[0]].copy()
    row.iloc[0, 0] = 500.0
    said = StreamingMPF(n_estimators=10, random_state=0).fit(hostile).explain(row)
    assert "<script>" in str(said)
    for page in (said[0]._repr_html_(), said._repr_html_()):
        assert "<script>" not in page
        assert "&lt;script&gt;" in page


def test_keys_are_escaped_in_html():
    forest = StreamingMPF(window=40, n_estimators=6, random_state=0)
    forest.partial_fit(table(30), keys=[f"<b>{i}" for i in range(30)])
    page = forest.explain([[0.0, 9.0, 0.0]])[0]._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>1" not in page


def test_json_round_trips(servers, odd):
    said = StreamingMPF(n_estimators=30, random_state=0).fit(servers).explain(odd)
    facts = json.loads(said.to_json())
    assert facts == said.to_dicts() == [said[0].to_dict()]
    assert json.loads(said[0].to_json(indent=2)) == facts[0]
    assert facts[0]["surprise"] == said.surprise[0]
    assert sum(feature["bits"] for feature in facts[0]["features"]) == pytest.approx(said.surprise[0] - said.typical)
    assert {attribution["name"] for attribution in facts[0]["attributions"]} == {"cpu", "latency"}


def test_frames_have_feature_names_and_index_of_rows(servers, odd):
    forest = StreamingMPF(n_estimators=30, random_state=0).fit(servers)
    frame = forest.explain(odd.set_axis(["web-3"], axis=0)).to_frame()
    assert list(frame.index) == ["web-3"]
    assert [name for name in frame if name.startswith("bits")] == ["bits: cpu", "bits: latency", "bits: disk"]
    assert frame.filter(like="bits").sum(axis=1).iloc[0] == pytest.approx((frame.surprise - frame.typical).iloc[0])
    assert frame.is_anomaly.tolist() == [True]


def test_to_frame_without_pandas_raises_import_error(monkeypatch):
    said = forest_of("table").explain(table(1))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        said.to_frame()


def test_explanations_are_a_sequence():
    said = forest_of("table").explain(table(5))
    assert isinstance(said, Explanations)
    assert len(said) == 5
    assert all(isinstance(one, Explanation) for one in said)
    assert said[-1] is said[4]
    assert said[1:3] == [said[1], said[2]]
    with pytest.raises(IndexError):
        said[5]
    assert repr(said).startswith("<5 explanations")


def test_explanations_can_be_pickled():
    said = forest_of("table").explain(probes(table()))
    again = pickle.loads(pickle.dumps(said))
    assert str(again) == str(said)
    assert_array_equal(again.parts, said.parts)


def test_fold_sums_parts_by_time_step():
    rows = table(120, 6)
    row = np.zeros((1, 6))
    row[0, 3] = 9.0  # the second channel of the second of three steps
    said = StreamingMPF(n_estimators=30, random_state=0).fit(rows).explain(row)
    folded = said.fold(3)
    assert folded.shape == (1, 3, 2)
    assert np.unravel_index(folded[0].argmax(), (3, 2)) == (1, 1)
    assert_array_equal(said[0].fold(3), folded[0])
    assert folded.sum() == pytest.approx(said.surprise[0] - said.typical)
    with pytest.raises(ValueError, match="6 features cannot be divided into 4"):
        said.fold(4)


def test_features_limits_reported_features():
    row = [[9.0, 9.0, 0.0]]
    forest = forest_of("table")
    assert {attribution.name for attribution in forest.explain(row)[0].attributions} == {"x0", "x1"}
    some = forest.explain(row, features=["x1", 2])
    assert [attribution.name for attribution in some[0].attributions] == ["x1"]
    assert_array_equal(some.parts, forest.explain(row).parts)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["x11"], "no feature 'x11': did you mean 'x1'"),
        (["speed"], "no feature 'speed': features are x0, x1, x2"),
        ([3], "feature 3 is out of range for 3 features"),
        ("x1", "must be a list"),
    ],
)
def test_unknown_features_raise_with_name(features, message):
    with pytest.raises(ValueError, match=message):
        forest_of("table").explain(table(1), features=features)


@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
def test_unfitted_forest_raises_on_explain(detector):
    with pytest.raises(NotFittedError):
        detector().explain(table(1))


def test_missing_value_raises_with_missing_error():
    row = table(1)
    row[0, 1] = np.nan
    with pytest.raises(ValueError, match="row 0"):
        forest_of("table", missing="error").explain(row)


@pytest.mark.parametrize("scale", [1e-98, 1e-9, 1.0, 1e9, 1e90])
def test_text_works_at_any_scale(scale):
    rows = table(40) * scale
    said = StreamingMPF(n_estimators=8, random_state=0).fit(rows).explain([[0.0, 30 * scale, 0.0]])[0]
    assert np.isfinite(said.parts).all()
    assert said.attributions[0].name == "x1"
    assert "x1 > " in str(said)
