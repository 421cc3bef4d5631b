"""Monitors of streams: results do not depend on chunks, and deletion is exact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyaforest.drift import DriftMonitor

pytestmark = pytest.mark.property

_REFERENCE = 128
_LENGTHS = [8, 40, 100]


def _rows(seed: int, shift: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.round(rng.normal(size=(420, 2)), 1)  # with ties
    rows[rng.random(rows.shape) < 0.02] = np.nan
    rows[300:, 0] += shift
    return rows


def _monitor() -> DriftMonitor:
    return DriftMonitor(reference=_REFERENCE, windows=_LENGTHS, n_estimators=3, random_state=0)


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 50), shift=st.sampled_from([0.0, 1.0, 5.0]), cuts=st.lists(st.integers(0, 420), max_size=8))
def test_results_do_not_depend_on_chunks(seed: int, shift: float, cuts: list[int]) -> None:
    rows = _rows(seed, shift)
    whole, parts = _monitor(), _monitor()
    trace = whole.follow(rows)
    ends = [0, *sorted(cuts), len(rows)]
    pieces = [parts.follow(rows[start:stop]) for start, stop in pairwise(ends) if stop > start]
    assert np.concatenate([piece.status for piece in pieces]).tolist() == trace.status.tolist()
    assert [change for piece in pieces for change in piece.changes] == trace.changes
    assert parts.to_bytes() == whole.to_bytes()


def _mixed(seed: int) -> np.ndarray:
    """Rows whose last column is a category, sometimes missing, and new in one of ten."""
    rng, rows = np.random.default_rng(seed), _rows(seed, 0.0)[:291].astype(object)
    rows[:, 1] = [None if u < 0.05 else f"new{i}" if u > 0.9 else "abc"[i % 3] for i, u in enumerate(rng.random(291))]
    return rows


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 50),
    gone=st.sets(st.integers(_REFERENCE, 290), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 291), max_size=5),
)
def test_deletion_of_categories_is_exact_for_any_chunks(seed: int, gone: set[int], cuts: list[int]) -> None:
    rows, kept = _mixed(seed), [i for i in range(291) if i not in gone]
    first, second = (_monitor().set_params(categorical_features=[1]) for _ in range(2))
    changes = []
    for start, stop in pairwise([0, *sorted(cuts), len(rows)]):
        if stop > start:
            changes += first.update(rows[start:stop])
    changes += second.update(rows[kept], keys=kept)
    assume(not changes)
    first.delete(sorted(gone))
    assert (first.evidence_ == second.evidence_).all()
    assert DriftMonitor.of_bytes(first.to_bytes()).evidence_.tolist() == first.evidence_.tolist()


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 50),
    gone=st.sets(st.integers(_REFERENCE, 290), min_size=1, max_size=30),
    late=st.booleans(),
)
def test_deletion_of_recent_points_is_exact(seed: int, gone: set[int], late: bool) -> None:
    rows, unwanted = _rows(seed, 0.0)[:291], sorted(gone)
    first, second = _monitor(), _monitor()
    changes = []
    if late:
        changes += first.update(rows)
        assume(not changes)
        first.delete(unwanted)
    else:  # each on arrival
        for i, row in enumerate(rows):
            changes += first.update(row[None])
            if i in gone:
                first.delete(i)
    kept = [i for i in range(len(rows)) if i not in gone]
    changes += second.update(rows[kept], keys=kept)
    assume(not changes)  # changes reported before a deletion stay unchanged
    assert (first.evidence_ == second.evidence_).all()
    assert (first.run_lengths().probabilities == second.run_lengths().probabilities).all()
    more = _rows(seed + 1, 0.0)[:60]
    assert (first.follow(more).evidence == second.follow(more).evidence).all()


@settings(max_examples=examples(32))
@given(seed=st.integers(0, 50), gone=st.sets(st.integers(0, _REFERENCE + 19), min_size=1, max_size=20))
def test_counts_of_a_reference_after_deletion_are_those_of_the_remaining_points(seed: int, gone: set[int]) -> None:
    n = _REFERENCE + 20
    rows, kept = _rows(seed, 0.0)[:n], [i for i in range(n) if i not in gone]
    first = _monitor().fit(rows).delete(sorted(gone))
    assert first.windows_.tolist() == _LENGTHS
    trees = first._follower.trees
    assert (trees.counts == trees.count(trees.find(rows[kept]))).all()
    assert trees.counts[np.arange(3), trees.cuts.root].tolist() == [len(kept)] * 3
