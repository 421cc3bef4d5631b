"""The history of a stream, read at the resolution of a screen."""

import pytest

from polyaforest.service.blocks import FLAGGED, Buckets, ScoredRecord
from polyaforest.service.database import Database
from polyaforest.service.history import RecordHistory

N, STEP = 1500, 60.0


@pytest.fixture
def history(tmp_path):
    """A day of one key on disk, one record a minute, one of them flagged."""
    database = Database(str(tmp_path / "history"))
    history = RecordHistory(database, 10**6, 1e9)
    samples = [
        ScoredRecord(i + 1, i, i * STEP, -1.0, 0.5, -9.0, FLAGGED if i == 700 else 0, i, [float(i)], None)
        for i in range(N)
    ]
    history.append({"web": samples}, N)
    history.flush()
    yield history
    database.close()


@pytest.mark.parametrize("n_buckets", [10, 180, N])
def test_lanes_have_no_gaps_where_there_are_records(history, n_buckets):
    buckets = Buckets(0.0, N * STEP, n_buckets)
    ((lane,), _) = history.lanes(buckets, 5)
    assert sum(lane.n) == N
    assert min(lane.n) > 0
    assert [i for i, n in enumerate(lane.flagged) if n] == [700 * n_buckets // N]
