"""Explanations add up to the scores, for any data."""

import math

import numba
import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import depths, feature_weights, matrices, mixed, prior_strengths, probes, seeds

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest.forest import attribute

pytestmark = [pytest.mark.property, pytest.mark.plain]

SCORES = ["typicality", "multiscale", "log_mass", "mass"]
TREES = 3
FAR = 1e290  # surprise that scores no longer measure


def assert_adds_up(forest, rows):
    """Check that parts are finite and sum to the surprise beyond the typical, which is the score if it is in bits."""
    said = forest.explain(rows)
    assert np.isfinite(said.parts).all()
    size = np.abs(said.low).sum(axis=1) + np.abs(said.high).sum(axis=1) + np.abs(said.typical)
    errors = said.parts.sum(axis=1) - (said.surprise - said.typical)
    assert (np.abs(errors) <= 1e-12 * size + 1e-9).all()
    if forest.score_type in ("typicality", "log_mass"):
        scored = np.minimum(-forest.score_samples(rows) / math.log(2), FAR)
        assert_allclose(np.minimum(said.surprise, FAR), scored, rtol=1e-9, atol=1e-9)
    lifetimes = forest.lifetimes_ if forest.score_type in ("typicality", "multiscale") else np.empty(0)
    attributions, _ = attribute.attribute_rows(forest.forest_, forest.posterior_, rows, lifetimes, None)
    assert (attributions > -1e-9).all()  # no cut, box or distance makes a row less surprising than certain
    return said


@given(st.data(), mixed(matrices()), st.sampled_from(SCORES), depths, prior_strengths, seeds)
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
def test_attributions_of_trees_add_up(data, table, score, max_depth, prior_strength, seed):
    rows, n_categories = table
    forest = made(
        StreamingMPF,
        n_categories=n_categories,
        n_estimators=TREES,
        score_type=score,
        tree=Tree(
            max_depth=max_depth,
            prior_strength=prior_strength,
            feature_weights=data.draw(st.just("auto") | feature_weights(rows.shape[1])),
        ),
        max_samples=data.draw(st.sampled_from(["auto", None])),
        random_state=seed,
    ).fit(rows)
    assert_adds_up(forest, probes(rows, seed, n_categories))


@given(mixed(matrices()), st.sampled_from(SCORES), st.sampled_from([0, 1, 4, 7]), prior_strengths, seeds)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_attributions_of_processes_add_up_with_zero_mean(table, score, max_depth, prior_strength, seed):
    rows, n_categories = table
    forest = made(
        BatchMPF,
        n_categories=n_categories,
        n_estimators=TREES,
        score_type=score,
        tree=Tree(max_depth=max_depth, prior_strength=prior_strength),
        random_state=seed,
    ).fit(rows)
    assert_adds_up(forest, probes(rows, seed, n_categories))
    assert_allclose(forest.explain(rows).parts.mean(axis=0), 0, atol=1e-9)


@given(mixed(matrices(max_features=3)), st.sampled_from(SCORES), st.sampled_from([2, 5]), depths, seeds)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_attributions_of_streams_add_up_through_updates(table, score, window, max_depth, seed):
    rows, n_categories = table
    forest = made(
        StreamingMPF,
        n_categories=n_categories,
        n_estimators=TREES,
        window=window,
        score_type=score,
        tree=Tree(max_depth=max_depth),
        random_state=seed,
    )
    forest.partial_fit(rows)
    questions = probes(rows, seed, n_categories)
    before = assert_adds_up(forest, questions)
    forest.partial_fit(rows[::-1].copy())
    forest.delete(forest.keys_[:1])
    assert_adds_up(forest, questions)
    assert_allclose(before.parts.sum(axis=1), before.surprise - before.typical, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="searches for expected ranges take long in plain Python")
@given(matrices(max_features=3), seeds)
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
def test_every_row_has_an_explanation_in_words(rows, seed):
    forest = StreamingMPF(n_estimators=TREES, random_state=seed).fit(rows)
    said = forest.explain(probes(rows, seed))
    for one in said:
        assert str(one)
        assert one._repr_html_()
        assert one.to_json()
        assert 0 <= one.share_interval[0] <= one.share <= one.share_interval[1] <= 1
        for condition in one._words.conditions:
            value = one.values[condition.feature]
            assert value > condition.bound if condition.side else value <= condition.bound
    assert_array_equal(said.parts, forest.explain(said.values).parts)
