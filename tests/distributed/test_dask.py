"""Detectors on a Dask cluster of real processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from effort import mostly_slow
from extras import import_without
from numpy.testing import assert_array_equal
from waiting import until

from polyaforest import BatchMPF, StreamingMPF, Window

dask = pytest.importorskip("dask", reason="dask is not installed: pip install polyaforest[dask]")
pytest.importorskip("distributed", reason="dask's scheduler is not installed: pip install polyaforest[dask]")
da, dd = pytest.importorskip("dask.array"), pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")

from distributed import Client, LocalCluster  # noqa: E402 -- only where it is installed

from polyaforest.distributed import dask as forests  # noqa: E402

pytestmark = pytest.mark.end_to_end

N_TREES = 12
ROWS = np.random.default_rng(0).normal(size=(6000, 3))
GAPS = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.05, np.nan, ROWS)
FRAME = pd.DataFrame(GAPS, columns=["a", "b", "c"], index=np.arange(6000) * 10)
KINDS = {"streaming": StreamingMPF, "batch": BatchMPF}


@pytest.fixture(scope="module")
def client():
    """Two processes on this machine."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 3, "distributed.worker.daemon": True}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def build(kind, **given):
    return KINDS[kind](n_estimators=N_TREES, random_state=0, **given)


@pytest.mark.parametrize("kind", KINDS)
def test_fit_equals_local_fit(kind, client):
    local = build(kind).fit(GAPS)
    array = da.from_array(GAPS, chunks=((1, 2500, 0, 3499), (2, 1)))
    fitted = forests.fit(build(kind), array)
    assert fitted.to_bytes() == local.to_bytes()
    for method in ("score_samples", "p_value", "predict"):
        found = getattr(forests, method)(fitted, array)
        assert isinstance(found, da.Array)
        assert_array_equal(found.compute(), getattr(local, method)(GAPS))
    assert_array_equal(forests.explain(fitted, array[:50]).compute(), local.explain(GAPS[:50]).parts)


@pytest.mark.parametrize("kind", KINDS)
def test_fit_with_weights_equals_local_fit(kind, client):
    weights = np.random.default_rng(2).choice([0.0, 0.5, 1.0, 2.25], 6000)
    local = build(kind).fit(GAPS, sample_weight=weights)
    chunks = (1, 2500, 0, 3499)
    array, own = da.from_array(GAPS, chunks=(chunks, 3)), da.from_array(weights, chunks=(chunks,))
    assert forests.fit(build(kind), array, sample_weight=own).to_bytes() == local.to_bytes()
    with pytest.raises(ValueError, match="sample_weight has 1 chunks, but X has 4"):
        forests.fit(build(kind), array, sample_weight=own.rechunk(-1))
    with pytest.raises(TypeError, match="sample_weight must be a Dask array or series; got ndarray"):
        forests.fit(build(kind), array, sample_weight=weights)
    with pytest.raises(ValueError, match="in the chunk that starts at row 1: the weight of row 3 is -1"):
        forests.fit(build(kind), array, sample_weight=da.where(da.arange(6000, chunks=(chunks,)) == 4, -1, own))


def test_fit_accepts_frame_with_series_of_weights(client):
    weights = pd.Series(np.arange(6000) % 3, index=FRAME.index)
    frame, own = dd.from_pandas(FRAME, npartitions=5), dd.from_pandas(weights, npartitions=5)
    local = build("batch", contamination=0.05).fit(FRAME, sample_weight=weights)
    fitted = forests.fit(build("batch", contamination=0.05), frame, sample_weight=own)
    assert_array_equal(fitted.forest_.counts, local.forest_.counts)
    scores = np.sort(local.score_samples(FRAME).repeat(weights))
    assert abs(np.searchsorted(scores, fitted.offset_) / len(scores) - 0.05) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_frames_keep_names_and_index(kind, client):
    local = build(kind).fit(FRAME)
    frame = dd.from_pandas(FRAME, npartitions=5)
    fitted = forests.fit(build(kind), frame)
    assert fitted.to_bytes() == local.to_bytes()
    for method in ("score_samples", "p_value", "predict"):
        found = getattr(forests, method)(fitted, frame).compute()
        assert found.name == method
        assert_array_equal(found.index, FRAME.index)
        assert_array_equal(found, getattr(local, method)(FRAME))
    lowest = np.sort(local.score_samples(FRAME))[20]
    said = forests.explain(fitted, frame[forests.score_samples(fitted, frame) < lowest]).compute()
    pd.testing.assert_frame_equal(said, local.explain(FRAME[local.score_samples(FRAME) < lowest]).to_frame())
    assert len(said) == 20
    with pytest.raises(ValueError, match="feature names should match"):
        forests.score_samples(fitted, frame[["b", "a", "c"]]).compute()


def test_fit_counts_chunks_of_unknown_length(client):
    array = da.from_array(ROWS, chunks=(1000, 3))
    some = array[array[:, 0] > 0]
    assert np.isnan(some.chunks[0]).all()
    fitted = forests.fit(build("streaming"), some)
    assert fitted.to_bytes() == build("streaming").fit(ROWS[ROWS[:, 0] > 0]).to_bytes()


def test_contamination_flags_share_of_rows(client):
    array = da.from_array(ROWS, chunks=(700, 3))
    fitted = forests.fit(build("batch", contamination=0.02), array)
    assert abs((forests.predict(fitted, array).compute() == -1).sum() - 120) <= 4


def test_fit_rejects_bad_input(client):
    with pytest.raises(TypeError, match="must be a two-dimensional Dask array or frame"):
        forests.fit(build("batch"), ROWS)
    with pytest.raises(ValueError, match="depends on the order"):
        forests.fit(build("streaming", window=Window(9)), da.from_array(ROWS))
    bad = ROWS.copy()
    bad[4321, 1] = np.inf
    with pytest.raises(ValueError, match=r"row 321, column 1"):
        forests.fit(build("batch"), da.from_array(bad, chunks=(1000, 3)))


def retried(dask_scheduler):
    """Keys of tasks that a worker lost and that were retried successfully."""
    log = list(dask_scheduler.transition_log)
    lost = {entry[0] for entry in log if entry[1] == "processing" and entry[2] == "released"}
    return [str(key) for key in lost if any(entry[0] == key and entry[2] == "memory" for entry in log)]


@pytest.mark.slow
def test_killed_worker_does_not_change_result(client):
    rows = np.random.default_rng(2).normal(size=(40_000, 3))
    array = da.from_array(rows, chunks=(1000, 3))
    pids, killed = client.run(os.getpid), []

    def counting():
        """Workers with counting tasks."""
        given = client.processing()
        return [worker for worker in given if any("polyaforest-count" in str(key) for key in given[worker])]

    def kill():
        found = []
        until(lambda: found.extend(counting()) or found, seconds=120)
        killed.append(pids[found[0]])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    fitted = forests.fit(BatchMPF(n_estimators=200, random_state=0), array)
    killer.join()
    assert len(killed) == 1
    lost = client.run_on_scheduler(retried)
    assert any("polyaforest-count" in key for key in lost)
    assert fitted.to_bytes() == BatchMPF(n_estimators=200, random_state=0).fit(rows).to_bytes()


@pytest.mark.parametrize("kind", [BatchMPF, StreamingMPF])
def test_fit_with_categories_equals_local_fit(kind):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"country": pd.Categorical(rng.choice(["DE", "FR"], 300)), "amount": rng.normal(size=300)})
    table, local = dd.from_pandas(frame, npartitions=3), kind(n_estimators=10, random_state=0).fit(frame)
    with dask.config.set(scheduler="synchronous"):
        fitted = forests.fit(kind(n_estimators=10, random_state=0), table)
        assert fitted.to_bytes() == local.to_bytes()
        assert_array_equal(forests.score_samples(fitted, table).compute(), local.score_samples(frame))
        assert list(forests.explain(fitted, table).compute())[-2:] == ["bits: country", "bits: amount"]


@pytest.mark.parametrize("absent", mostly_slow(["dask", "datasketches"]))
def test_import_error_names_missing_package(absent):
    message = f'polyaforest.distributed.dask needs {absent}: pip install "polyaforest[dask]"'
    assert import_without(absent, "polyaforest.distributed.dask") == f"ModuleNotFoundError {absent} {message}"
