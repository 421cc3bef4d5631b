"""Tables of other libraries: what is missing in them is missing here, and names of columns are kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from forests import made

from polyaforest import SeriesMPF, StreamingMPF

ROWS = np.random.default_rng(5).normal(size=(200, 2)).round(3)


def with_gap(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows[7, 0] = np.nan
    return rows


def masked(rows: np.ndarray) -> np.ma.MaskedArray:
    table = np.ma.masked_array(rows.copy())
    table[7, 0] = np.ma.masked
    table.data[7, 0] = 10**9  # the value under the mask does not count
    return table


class Capsule:
    """A table of which nothing is known but Arrow's interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


def scores(X: object, **parameters: object) -> np.ndarray:
    forest = made(StreamingMPF, n_estimators=4, random_state=0, missing="marginalise", **parameters)
    return forest.fit(X).score_samples(X)


def test_masked_values_are_missing():
    expected = scores(with_gap(ROWS))
    np.testing.assert_array_equal(scores(masked(ROWS)), expected)
    np.testing.assert_array_equal(scores(list(masked(ROWS))), expected)


def test_masked_integers_are_missing_and_others_are_checked():
    whole = (100 * ROWS).astype(np.int64)
    np.testing.assert_array_equal(scores(masked(whole)), scores(with_gap(whole.astype(float))))
    too_large = masked(whole)
    too_large[3, 1] = 2**53 + 1
    with pytest.raises(ValueError, match="row 3, column 1 is the integer 9007199254740993"):
        scores(too_large)


def test_masked_values_are_refused_where_none_may_be_missing():
    with pytest.raises(ValueError, match="row 7, column 0 is missing"):
        StreamingMPF(n_estimators=4, missing="error").fit(masked(ROWS))


def test_masked_values_of_a_stream():
    streams = [StreamingMPF(n_estimators=4, window=64, random_state=0, missing="marginalise") for _ in range(2)]
    for stream, rows in zip(streams, (masked(ROWS), with_gap(ROWS)), strict=True):
        stream.partial_fit(rows[:7])
        stream.insert(rows[7])
    np.testing.assert_array_equal(streams[0].points_, streams[1].points_)


def test_masked_readings_of_a_series():
    readings, gappy = masked(ROWS)[:, 0], with_gap(ROWS)[:, 0]
    judged = [
        SeriesMPF(StreamingMPF(n_estimators=4, window=64, random_state=0), shingle=2).detect_then_learn(line).scores
        for line in (readings, gappy)
    ]
    np.testing.assert_array_equal(*judged)


@pytest.mark.parametrize("dtype", ["Int64", "Float64"])
def test_nullable_columns_of_pandas(dtype):
    whole = (100 * ROWS).round()
    frame = pd.DataFrame(with_gap(whole), columns=["a", "b"]).astype(dtype)
    np.testing.assert_array_equal(scores(frame), scores(pd.DataFrame(with_gap(whole), columns=["a", "b"])))


def test_arrow_tables():
    frame = pl.DataFrame(with_gap(ROWS), schema=["a", "b"], nan_to_null=True)
    forest = StreamingMPF(n_estimators=4, random_state=0, missing="marginalise").fit(Capsule(frame))
    assert forest.feature_names_in_.tolist() == ["a", "b"]
    np.testing.assert_array_equal(forest.score_samples(Capsule(frame)), scores(frame))


def test_tables_and_batches_of_pyarrow():
    pytest.importorskip("pyarrow")
    frame = pl.DataFrame(with_gap(ROWS), schema=["a", "b"], nan_to_null=True)
    table = frame.to_arrow()
    np.testing.assert_array_equal(scores(table), scores(frame))
    np.testing.assert_array_equal(scores(table.to_batches()[0]), scores(frame))


def test_a_lazy_frame_says_what_to_call():
    with pytest.raises(TypeError, match=r"X is a LazyFrame, whose rows are not computed yet: pass X\.collect\(\)"):
        StreamingMPF(n_estimators=4).fit(pl.LazyFrame(ROWS))


def test_a_sparse_matrix_says_what_to_call():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match="toarray"):
        StreamingMPF(n_estimators=4).fit(sparse.csr_matrix(ROWS))
