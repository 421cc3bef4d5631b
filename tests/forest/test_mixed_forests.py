"""Forests of numbers and categories: checks of their arrays, and detectors on mixed data."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from forests import made
from numpy.testing import assert_allclose, assert_array_equal

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest.detectors import loads
from polyaforest.detectors.tables import TableFit
from polyaforest.forest import score
from polyaforest.forest.integrity import CorruptForestError, check_forest
from polyaforest.forest.stream_checks import check_stream
from polyaforest.kernels.arrays import QUESTIONS

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 2**QUESTIONS, 6).astype(np.float64)
N = 60
KINDS = RNG.integers(6, size=N)
ROWS = np.column_stack([RNG.normal(size=N) + 3 * KINDS, CODES[KINDS], CODES[KINDS % 2]])
NEW = np.array([[0.0, 5.0, CODES[0]], [3.0, CODES[1], 7.0]])  # with categories never seen


def streaming(**parameters):
    return made(StreamingMPF, n_categories=2, n_estimators=4, random_state=0, **parameters)


def batch(**parameters):
    return made(BatchMPF, n_categories=2, n_estimators=4, random_state=0, **parameters)


def fresh(forest):
    return type(forest)(*(part.copy() for part in forest))


def question(forest):
    """Return the first node of tree 0 that is cut by a question."""
    return int(np.flatnonzero((forest.feature[0] >= 1) & (forest.left[0] >= 0))[0])


def not_a_question(forest):
    forest.cut[0, question(forest)] = QUESTIONS


def half_a_question(forest):
    forest.cut[0, question(forest)] += 0.5


def another_question(forest):
    j = question(forest)
    forest.cut[0, j] = (forest.cut[0, j] + 1) % QUESTIONS


def too_few_answers(forest):
    j = question(forest)
    forest.upper[0, j, 1:] = forest.lower[0, j, 1:]


def half_an_answer(forest):
    forest.lower[0, forest.root[0], 2] += 0.5


def too_many_categories(forest):
    forest.n_categories[0] = 4


def a_domain_of_no_codes(forest):
    forest.domain[:, 1] = [-1.0, 3.0]


@pytest.mark.parametrize(
    "corrupt",
    [not_a_question, half_a_question, another_question, too_few_answers, half_an_answer, too_many_categories],
)
def test_detects_corruption_of_cubes(corrupt):
    forest = fresh(streaming(max_samples=None).fit(ROWS).forest_)
    check_forest(forest, ROWS)
    corrupt(forest)
    with pytest.raises(CorruptForestError):
        check_forest(forest, ROWS)


def asked_again(forest):
    """Repeat a question below the node that asks it."""
    j = question(forest)
    for child in (forest.left[0, j], forest.right[0, j]):
        if forest.left[0, child] >= 0:
            forest.feature[0, child], forest.cut[0, child] = forest.feature[0, j], forest.cut[0, j]


@pytest.mark.parametrize("corrupt", [not_a_question, half_a_question, asked_again, a_domain_of_no_codes])
def test_detects_corruption_of_regions(corrupt):
    forest = fresh(batch(tree=Tree(max_depth=6)).fit(ROWS).forest_)
    check_forest(forest, ROWS)
    corrupt(forest)
    with pytest.raises(CorruptForestError):
        check_forest(forest, ROWS)


def test_rejects_points_without_valid_codes():
    stream = streaming(window=30).partial_fit(ROWS)._stream
    check_stream(stream)
    stream.points.values[0, 1] = 0.25
    with pytest.raises(CorruptForestError, match="codes"):
        check_stream(stream)


@pytest.mark.parametrize("build", [streaming, batch])
def test_files_and_bytes_are_complete(build, tmp_path):
    forest = build().fit(ROWS)
    forest.save(tmp_path / "model")
    for again in (type(forest).load(tmp_path / "model"), loads(forest.to_bytes()), copy.deepcopy(forest)):
        assert again._n_categories == 2
        assert_array_equal(again.score_samples(NEW), forest.score_samples(NEW))


def test_batches_merge_and_unmerge_exactly():
    shared = {"tree": Tree(domain=[[-5.0], [25.0]])}
    whole, first, second = (batch(**shared).fit(rows) for rows in (ROWS, ROWS[:20], ROWS[20:]))
    merged = first + second
    assert_array_equal(merged.forest_.counts, whole.forest_.counts)
    assert_array_equal(merged.score_samples(NEW), whole.score_samples(NEW))
    assert_array_equal(merged.delete_rows(ROWS[20:]).forest_.counts, first.forest_.counts)


@pytest.mark.parametrize("build", [streaming, batch])
def test_table_in_parts_matches_whole_table(build):
    whole, parts = build().fit(ROWS), TableFit(build(), 3)
    ids = np.arange(N)
    pieces = [slice(0, 7), slice(7, 40), slice(40, N)]
    survey = sum((parts.look(ROWS[p], ids[p]) for p in pieces[1:]), start=parts.look(ROWS[pieces[0]], ids[pieces[0]]))
    count = parts.begin(survey)
    counts = None
    if count is not None:
        counts = sum((count(ROWS[p], ids[p]) for p in pieces[1:]), start=count(ROWS[pieces[0]], ids[pieces[0]]))
    assert_array_equal(parts.finish(counts).score_samples(NEW), whole.score_samples(NEW))


@pytest.mark.parametrize("build", [streaming, batch])
def test_missing_categories_are_imputed_from_the_row(build):
    forest = build(missing="marginalise", tree=Tree(max_depth=12)).fit(np.tile(ROWS, (4, 1)))
    gappy = ROWS[:20].copy()
    gappy[:, 2] = np.nan
    assert (forest.impute(gappy)[:, 2] == ROWS[:20, 2]).mean() > 0.9  # the other category decides
    assert np.isfinite(forest.score_samples(gappy)).all()


def test_imputes_category_of_known_world_if_none_is_known():
    forest = batch().fit(ROWS).delete_rows(ROWS[:1])
    (codes, _) = score.known_categories(forest.forest_, None)
    assert forest.forest_.domain[0, 1] == codes[0]


def test_summary_imputes_categories_of_its_boxes():
    forest = streaming(window=None, tree=Tree(max_depth=12)).fit(ROWS)
    assert set(score.known_categories(forest.forest_, None)[0]) <= set(CODES)


def test_new_categories_are_surprising():
    forest = streaming().fit(ROWS)
    known = forest.score_samples(ROWS[:10]).mean()
    unseen = ROWS[:10].copy()
    unseen[:, 1] = RNG.integers(0, 2**QUESTIONS, 10)
    parts = forest.explain(unseen).parts
    assert forest.score_samples(unseen).mean() < known
    assert (parts.argmax(axis=1) == 1).mean() > 0.7
    assert np.isfinite(forest.mass(unseen)).all()


def test_features_can_be_added_before_the_categories():
    forest = streaming(window=40).partial_fit(ROWS)
    forest.add_features([1.5])
    assert_array_equal(forest.points_[:, 1], 1.5)
    assert_array_equal(forest.points_[:, 2:], ROWS[-40:, 1:])
    forest.partial_fit(np.insert(ROWS[:3], 1, 2.0, axis=1))
    check_stream(forest._stream)


def test_rejects_category_outside_closed_domain():
    forest = batch(tree=Tree(domain="data")).fit(ROWS)
    with pytest.raises(ValueError, match=r"row 0, column 1 is a category that the domain does not contain"):
        forest.partial_fit(unlike_all())


def unlike_all():
    """Use a row whose category answers a question differently from all others."""
    always_yes = int(np.bitwise_and.reduce(ROWS[:, 1].astype(np.int64)))
    silent = ~int(np.bitwise_or.reduce(ROWS[:, 1].astype(np.int64))) & (2**QUESTIONS - 1)
    flipped = int(ROWS[0, 1]) ^ (always_yes | silent)
    assert flipped != ROWS[0, 1]
    return [[ROWS[0, 0], float(flipped), ROWS[0, 2]]]


def test_scores_of_a_stream_match_the_posterior():
    forest = streaming(window=25)
    for row in ROWS[:40]:
        if hasattr(forest, "forest_"):
            before = forest.score_samples(row[None])
            assert_allclose(forest.score_then_learn(row[None]), before, rtol=1e-12)
        else:
            forest.partial_fit(row[None])


@pytest.mark.parametrize("codes", [(8.0, 9.0, 8.0), (1215011343576477.0, 74433853207599.0, 1215002753641885.0)])
def test_bits_of_a_batch_are_zero_on_average(codes):
    rows = np.array(codes)[:, None]
    batch = made(BatchMPF, n_categories=1, n_estimators=3, score_type="typicality", max_depth=4, random_state=0)
    assert_allclose(batch.fit(rows).explain(rows).parts.mean(axis=0), 0, atol=1e-9)
