"""The parts of watch: the model store, outputs that can be rewound, and the loop."""

import json
import sqlite3
from contextlib import closing, contextmanager, suppress
from io import BytesIO

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from list_source import ListSource

from polyaforest import ModelFileError, SeriesMPF, StreamingMPF
from polyaforest.forest import learn
from polyaforest.forest.calibration import RunningCalibration
from polyaforest.io.outputs import FileLines, PipeLines
from polyaforest.io.records import RecordReader
from polyaforest.judge import open_store, read_model, read_notes
from polyaforest.judge.watcher import Cadence, Watcher
from polyaforest.kernels.arrays import SCORE_NOTHING
from polyaforest.storage.model_store import is_model_store
from polyaforest.tables.validation import NamedRows

ROWS = np.random.default_rng(8).normal(size=(220, 2))
ROWS[[150, 151, 200]] = [[30.0, 0.0], [25.0, 25.0], [0.0, -40.0]]


NAMED = NamedRows(ROWS, ["cpu", "disk"])


def forest():
    return StreamingMPF(n_estimators=5, window=40, missing="marginalise", random_state=1)


def series():
    return SeriesMPF(forest(), shingle=3)


# ---- the model store -------------------------------------------------------------------------------------------------


def fed(store, keys=("a", "b", "c"), rounds=4):
    """Return the scores of models that learn in turn."""
    return [
        store[key].detector.score_then_learn(ROWS[20 * turn : 20 * turn + 20] + place)
        for turn in range(rounds)
        for place, key in enumerate(keys)
    ]


def test_models_moved_to_disk_continue_bit_for_bit(tmp_path):
    with open_store(None, forest) as roomy, open_store(tmp_path / "m", forest, max_bytes=1) as tight:
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(fed(roomy), fed(tight), strict=True))
        assert (roomy.n_in_memory, tight.n_in_memory) == (3, 1)
        assert len(tight) == 3


def test_only_committed_changes_survive(tmp_path):
    with open_store(tmp_path / "m", forest, max_bytes=1) as store:
        fed(store, rounds=2)
        store.commit({"position": 17})
        expected = [store[key].detector.score_samples(ROWS) for key in "abc"]
        fed(store, rounds=3)  # models are moved to disk, but not committed
    with open_store(tmp_path / "m", forest) as store:
        assert store.notes == {"position": 17}
        assert all(
            np.array_equal(store[key].detector.score_samples(ROWS), e) for key, e in zip("abc", expected, strict=True)
        )
    assert read_notes(tmp_path / "m") == ({"position": 17}, ["a", "b", "c"])
    assert np.array_equal(read_model(tmp_path / "m", "b").score_samples(ROWS), expected[1])
    with pytest.raises(KeyError, match="'d'"):
        read_model(tmp_path / "m", "d")


def test_notes_of_a_key_are_saved(tmp_path):
    with open_store(tmp_path / "m", forest, max_bytes=1) as store:
        fed(store, rounds=1)
        store["a"].notes["rows"] = 7
        fed(store, rounds=1)
        assert store["a"].notes == {"rows": 7}


def test_key_can_be_deleted(tmp_path):
    with open_store(tmp_path / "m", forest) as store:
        fed(store, rounds=1)
        store.delete("b")
        with pytest.raises(KeyError, match="no model of 'z'"):
            store.delete("z")
        store.commit({})
        assert len(store) == 2
    assert read_notes(tmp_path / "m")[1] == ["a", "c"]


def test_store_allows_one_writer_and_several_readers(tmp_path):
    with open_store(tmp_path / "m", forest) as store:
        fed(store, rounds=1)
        store.commit({"n": 1})
        with pytest.raises(BlockingIOError, match="in use"):
            open_store(tmp_path / "m", forest)
        assert read_notes(tmp_path / "m")[0] == {"n": 1}


def test_lock_is_held_during_a_commit(tmp_path):
    with open_store(tmp_path / "m", forest) as store:
        store._file.execute("COMMIT")  # as in the middle of a commit
        with pytest.raises(BlockingIOError, match="in use"):
            open_store(tmp_path / "m", forest)
        store._file.execute("BEGIN IMMEDIATE")
    open_store(tmp_path / "m", forest).close()


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "text").write_text("nothing of the kind" * 100)
    with pytest.raises(ModelFileError, match="not a model store"):
        open_store(tmp_path / "text", forest)
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE cats (name TEXT)")
    other.close()
    for use in (lambda: open_store(tmp_path / "other", forest), lambda: read_notes(tmp_path / "other")):
        with pytest.raises(ModelFileError, match="not a model store of polyaforest"):
            use()
    with pytest.raises(FileNotFoundError):
        read_notes(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="directory to write to does not exist"):
        open_store(tmp_path / "no" / "where", forest)
    with pytest.raises(IsADirectoryError):
        open_store(tmp_path, forest)
    open_store(tmp_path / "new", forest).close()
    with sqlite3.connect(tmp_path / "new") as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(ModelFileError, match="upgrade"):
        open_store(tmp_path / "new", forest)
    assert is_model_store(tmp_path / "new")
    assert not is_model_store(tmp_path / "text")


def test_full_disk_raises_and_keeps_the_last_commit(tmp_path):
    with open_store(tmp_path / "m", forest) as store:
        fed(store, rounds=1)
        store.commit({"n": 1})
        (n_pages,) = store._file.execute("PRAGMA page_count").fetchone()
        store._file.execute(f"PRAGMA max_page_count = {n_pages}")
        fed(store, keys="defgh", rounds=2)
        with pytest.raises(OSError, match="full"):
            store.commit({"n": 2})
    assert read_notes(tmp_path / "m") == ({"n": 1}, ["a", "b", "c"])


def test_damaged_model_is_rejected(tmp_path):
    with open_store(tmp_path / "m", forest) as store:
        fed(store, rounds=1)
        store.commit({})
    with sqlite3.connect(tmp_path / "m") as file:
        file.execute("UPDATE models SET model = substr(model, 1, 1000) WHERE key = 'a'")
    file.close()
    with pytest.raises(ModelFileError, match="the model of 'a'"):
        read_model(tmp_path / "m", "a")


# ---- outputs ---------------------------------------------------------------------------------------------------------


def test_rewind_removes_lines_after_the_mark(tmp_path):
    lines = FileLines(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    empty = lines.mark()
    lines.write(b"one\n")
    mark = lines.mark()
    lines.write(b"two\n")
    lines.rewind(mark)
    assert (tmp_path / "out").read_bytes() == b"one\n"
    lines.write(b"three\n")
    assert (tmp_path / "out").read_bytes() == b"one\nthree\n"
    lines.rewind({**mark, "path": str(tmp_path / "no" / "another")})
    lines.rewind({**mark, "length": 1000})
    lines.rewind(None)
    assert (tmp_path / "out").read_bytes() == b"one\nthree\n"
    lines.rewind(empty)
    assert (tmp_path / "out").read_bytes() == b""
    lines.close()


def test_renamed_output_is_continued_in_a_new_file(tmp_path):
    lines, path = FileLines(str(tmp_path / "out")), tmp_path / "out"
    lines.write(b"one\n")
    lines.mark()
    assert not lines.has_moved
    path.rename(tmp_path / "out.1")
    lines.write(b"two\n")  # all lines until the next mark go to one file
    assert lines.has_moved
    lines.mark()
    lines.write(b"three\n")
    lines.close()
    assert (path.read_bytes(), (tmp_path / "out.1").read_bytes()) == (b"three\n", b"one\ntwo\n")
    assert lines.notices == []


def test_device_needs_no_sync():
    with closing(FileLines("/dev/null")) as lines:
        lines.write(b"x")
        assert lines.mark() is None
        assert not lines.has_moved


def test_slow_pipe_receives_all_lines():
    class Narrow:
        taken = b""

        def write(self, lines):
            self.taken += bytes(lines[:3])
            return len(lines[:3])

    narrow = Narrow()
    PipeLines(narrow).write(b"one line\nanother\n")
    assert narrow.taken == b"one line\nanother\n"


def test_full_disk_error_names_the_file():
    with closing(FileLines("/dev/full")) as lines, pytest.raises(OSError, match="/dev/full"):
        lines.write(b"x")


def test_unwritable_path_raises_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileLines(str(tmp_path / "no" / "out"))
    with pytest.raises(IsADirectoryError):
        FileLines(str(tmp_path))


# ---- the loop --------------------------------------------------------------------------------------------------------


def as_lines(rows, hosts=2, **more):
    return [
        json.dumps({"host": f"web-{i % hosts}", "cpu": row[0], "disk": row[1], **more}).encode()
        for i, row in enumerate(rows.tolist())
    ]


@contextmanager
def watching(folder, source, store, **options):
    reader = options.pop("reader", None) or RecordReader(key="host")
    out, bad = FileLines(str(folder / "out")), FileLines(str(folder / "bad"))
    with closing(Watcher(source, reader, store, out, bad, **options)) as loop:
        yield loop


def written(folder, name="out"):
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_record_has_a_line_and_flagged_ones_have_reasons(tmp_path):
    rows = np.repeat(ROWS, 2, axis=0)
    with open_store(None, forest) as store, watching(tmp_path, ListSource(as_lines(rows)), store) as loop:
        loop.resume()
        loop.run()
    lines = written(tmp_path)
    assert [line["position"] for line in lines] == [str(i) for i in range(len(rows))]
    expected = forest().detect_then_learn(ROWS)
    for host in (0, 1):
        mine = lines[host::2]
        assert {line["key"] for line in mine} == {f"web-{host}"}
        assert [line["score"] for line in mine] == expected.scores.tolist()
        assert [line["is_anomaly"] for line in mine] == expected.is_anomaly.tolist()
    assert lines[300]["reasons"][0]["feature"] == "cpu"
    assert lines[300]["reasons"][0]["side"] == "high"
    assert "cpu >" in lines[300]["region"]
    assert all("reasons" not in line for line in lines if not line["is_anomaly"])
    assert loop.counts.anomalies == 2 * expected.is_anomaly.sum()


@pytest.mark.parametrize("at_once", [1, 16, 40, 500])
@pytest.mark.parametrize("make", [forest, series])
def test_lines_equal_the_results_of_the_detector_for_any_batch_size(tmp_path, make, at_once):
    rows = ROWS.copy()
    rows[200, 0] = np.nan
    records = [line.replace(b"NaN", b"null") for line in as_lines(rows, hosts=1)]
    with (
        open_store(None, make) as store,
        watching(tmp_path, ListSource(records, at_once=at_once), store) as loop,
    ):
        loop.run()
    expected = make().detect_then_learn(NamedRows(rows, ["cpu", "disk"]), explain=True)
    lines = written(tmp_path)
    assert expected.is_anomaly[150]
    assert expected.is_anomaly[200] == (make is forest)  # a series imputes the gap
    for name, values in (("score", expected.scores), ("p_value", expected.p_values)):
        assert [line[name] for line in lines] == [None if np.isnan(value) else value for value in values.tolist()]
    assert [line["is_anomaly"] for line in lines] == expected.is_anomaly.tolist()
    assert [i for i, line in enumerate(lines) if "reasons" in line] == sorted(expected.explanations)
    for i, why in expected.explanations.items():
        assert lines[i]["region"] == why.region
        assert [reason["feature"] for reason in lines[i]["reasons"]] == [
            attributions.name for attributions in why.attributions
        ]


@pytest.mark.parametrize("at_once", [1, 7, 300])
@pytest.mark.parametrize("make", [forest, series])
def test_each_row_is_scored_once(tmp_path, monkeypatch, make, at_once):
    n_scored = n_judged = 0
    run_chunk, learn_scores = learn.run_chunk, RunningCalibration.judge_then_learn

    def count_scored(trees, points, chunk, limits, scoring, *rest):
        nonlocal n_scored
        n_scored += len(chunk.rows) if scoring.kind != SCORE_NOTHING else 0
        return run_chunk(trees, points, chunk, limits, scoring, *rest)

    def count_judged(self, scores, *rest):
        nonlocal n_judged
        n_judged += len(scores)
        return learn_scores(self, scores, *rest)

    monkeypatch.setattr(learn, "run_chunk", count_scored)
    monkeypatch.setattr(RunningCalibration, "judge_then_learn", count_judged)
    with (
        open_store(None, make) as store,
        watching(tmp_path, ListSource(as_lines(ROWS), at_once=at_once), store) as loop,
    ):
        loop.run()
    n_rows = len(ROWS) - (2 * 2 if make is series else 0)  # a series has no scores before its first complete shingle
    assert loop.counts.anomalies > 0
    assert (n_scored, n_judged) == (n_rows, n_rows)


def test_bad_records_are_quarantined_with_a_reason_and_affect_no_others(tmp_path):
    good = as_lines(ROWS, hosts=1)
    bad = [b"\xff\xfe", b"{", b"[1]", b'{"host": "web-0", "cpu": 1e400, "disk": 1}', b'{"cpu": 1, "disk": 2}']
    bad += [b'{"host": "web-0", "cpu": "hot", "disk": 2}', b'{"host": "web-0"}', b'{"host": "new", "cpu": null}']
    mixed = [*good[:50], *bad, *good[50:]]
    for name, records in (("mixed", mixed), ("clean", good)):
        (tmp_path / name).mkdir()
        with open_store(None, forest) as store, watching(tmp_path / name, ListSource(records, [60]), store) as loop:
            loop.run()
    scores = [[line["score"] for line in written(tmp_path / name)] for name in ("mixed", "clean")]
    assert scores[0] == scores[1]
    aside = written(tmp_path / "mixed", "bad")
    assert [line["position"] for line in aside] == [str(50 + i) for i in range(len(bad))]
    assert all(line["reason"] for line in aside)
    assert not (tmp_path / "clean" / "bad").exists()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_streams_may_begin_with_missing_values(tmp_path, size):
    late = ROWS.copy()
    late[:60, 1] = late[9] = np.nan
    lines = [line.replace(b"NaN", b"null") for line in as_lines(late, hosts=1)]
    reader = RecordReader(columns=["cpu", "disk"], key="host")
    with (
        open_store(None, forest) as store,
        watching(tmp_path, ListSource(lines, [size] * 99), store, reader=reader) as loop,
    ):
        loop.run()
    expected = forest().detect_then_learn(np.delete(late, 9, axis=0))
    assert [line["score"] for line in written(tmp_path)] == expected.scores.tolist()
    assert [line["position"] for line in written(tmp_path, "bad")] == ["9"]


@pytest.mark.parametrize("size", [1, 5, 40])
def test_only_the_record_that_the_model_rejects_is_quarantined(tmp_path, size):
    huge = b'{"host": "web-0", "cpu": 1e101, "disk": 0.0}'  # beyond the accepted range
    records = as_lines(ROWS, hosts=1)
    with (
        open_store(None, forest) as store,
        watching(tmp_path, ListSource([*records[:33], huge, *records[33:]], [size] * 99), store) as loop,
    ):
        loop.run()
        assert store["web-0"].detector.n_seen_ == len(ROWS)
    assert [line["position"] for line in written(tmp_path, "bad")] == ["33"]
    assert [line["score"] for line in written(tmp_path)] == forest().score_then_learn(ROWS).tolist()


def test_only_anomalies_writes_flagged_records(tmp_path):
    with (
        open_store(None, forest) as store,
        watching(tmp_path, ListSource(as_lines(ROWS, hosts=1)), store, only_anomalies=True) as loop,
    ):
        loop.run()
    expected = np.flatnonzero(forest().detect_then_learn(ROWS).is_anomaly)
    assert [int(line["position"]) for line in written(tmp_path)] == expected.tolist()


def test_flagged_neighbours_form_events(tmp_path):
    with (
        open_store(None, forest) as store,
        watching(tmp_path, ListSource(as_lines(ROWS, hosts=1), [7, 151, 3]), store, writes_events=True) as loop,
    ):
        loop.run()
    lines = [line["event"] for line in written(tmp_path)]
    events = [event for event in lines if event["state"] == "ended"]
    begun = [event for event in lines if event["state"] == "begun"]
    assert [event["first"] for event in begun] == [event["first"] for event in events]
    assert all(event["first"] == event["last"] for event in begun)
    both = [event for event in events if event["first"] <= 150 <= event["last"]]
    assert both[0]["n_flagged"] >= 2
    assert {"cpu", "disk"} == set(both[0]["attributions"])
    assert sum(event["n_flagged"] for event in events) == forest().detect_then_learn(ROWS).is_anomaly.sum()


def test_records_can_be_deleted_by_id(tmp_path):
    records = [
        json.dumps({"user": f"u{i % 60}", "cpu": a, "disk": b}).encode() for i, (a, b) in enumerate(ROWS.tolist())
    ]
    with (
        open_store(None, forest) as store,
        watching(tmp_path, ListSource(records), store, reader=RecordReader(id="user")) as loop,
    ):
        loop.run()
        assert {key.split("\x1f")[0] for key in store[""].detector.keys_} <= {f"u{i}" for i in range(60)}


class KilledError(Exception):
    """Simulates the end of the process."""


class DyingSource(ListSource):
    """A source that kills the process after a number of reads."""

    def __init__(self, *args, reads):
        super().__init__(*args)
        self._reads = reads

    def read(self, most, wait):
        if not self._reads:
            raise KilledError
        self._reads -= 1
        return super().read(most, wait)


@settings(
    max_examples=examples(8),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    deaths=st.lists(st.integers(0, 6), max_size=4),
    sizes=st.lists(st.integers(1, 60), max_size=8),
    every=st.integers(30, 90),
    writes_events=st.booleans(),
    make=st.sampled_from([forest, series]),
)
def test_crash_at_any_read_loses_and_repeats_no_record(tmp_path_factory, deaths, sizes, every, writes_events, make):
    records = as_lines(ROWS)
    records.insert(100, b"junk")

    def live(folder, source):
        with (
            open_store(folder / "m", make, max_bytes=1) as store,
            watching(folder, source, store, cadence=Cadence(every, 1e9, 50), writes_events=writes_events) as loop,
        ):
            loop.resume()
            loop.run()
            return loop.counts

    calm, rough = tmp_path_factory.mktemp("calm"), tmp_path_factory.mktemp("rough")
    expected = live(calm, ListSource(records))
    for reads in deaths:
        with suppress(KilledError):  # unless the source ends before
            live(rough, DyingSource(records, sizes, reads=reads))
    assert live(rough, ListSource(records, sizes)) == expected
    for name in ("out", "bad"):
        assert written(rough, name) == written(calm, name)
    for key in ("web-0", "web-1"):
        one, other = (read_model(folder / "m", key).score_samples(NAMED) for folder in (calm, rough))
        assert np.array_equal(one, other, equal_nan=True)


def test_series_shorter_than_a_shingle_resumes(tmp_path):
    for n in (2, 50):
        with (
            open_store(tmp_path / "m", series) as store,
            watching(tmp_path, ListSource(as_lines(ROWS[:n], 1)), store) as loop,
        ):
            loop.resume()
            loop.run()
    expected = series().score_then_learn(ROWS[:50])
    assert [line["score"] for line in written(tmp_path)] == [None if np.isnan(s) else s for s in expected.tolist()]


def test_another_source_is_read_from_its_beginning(tmp_path):
    for where, rows in (("a", ROWS[:100]), ("b", ROWS[100:])):
        with (
            open_store(tmp_path / "m", forest) as store,
            watching(tmp_path, ListSource(as_lines(rows, hosts=1)), store, where=where) as loop,
        ):
            assert not loop.resume()
            loop.run()
    assert [line["score"] for line in written(tmp_path)] == forest().score_then_learn(ROWS).tolist()


def test_skip_seen_skips_records_of_a_source_that_starts_over(tmp_path):
    for n in (100, len(ROWS)):
        with (
            open_store(tmp_path / "m", forest) as store,
            watching(tmp_path, ListSource(as_lines(ROWS[:n], hosts=1), can_replay=False), store) as loop,
        ):
            loop.resume(skip_seen=True)
            loop.run()
    assert [line["score"] for line in written(tmp_path)] == forest().score_then_learn(ROWS).tolist()


def test_lines_added_by_others_after_the_end_are_kept(tmp_path):
    for n in (100, len(ROWS)):
        with (
            open_store(tmp_path / "m", forest) as store,
            watching(tmp_path, ListSource(as_lines(ROWS[:n], hosts=1)), store) as loop,
        ):
            loop.resume()
            loop.run()
        with (tmp_path / "out").open("a") as file:
            file.write('{"score": "of another"}\n')
    assert [line["score"] for line in written(tmp_path)].count("of another") == 2
    assert len(written(tmp_path)) == len(ROWS) + 2


def test_undelivered_records_are_not_committed(tmp_path):
    class Deaf(BytesIO):
        def write(self, lines):
            raise BrokenPipeError

    with open_store(tmp_path / "m", forest) as store, closing(FileLines(str(tmp_path / "bad"))) as bad:
        loop = Watcher(ListSource(as_lines(ROWS)), RecordReader(key="host"), store, PipeLines(Deaf()), bad)
        loop.resume()
        with pytest.raises(BrokenPipeError):
            loop.run()
    assert read_notes(tmp_path / "m")[0]["position"] == 0


# ---- records that turn out to be a time series -----------------------------------------------------------------------


def metric(n, hosts=("a",), seed=0):
    """Return records with a daily period for each host, ten minutes apart; the host "noise" has no order."""
    rng = np.random.default_rng(seed)
    levels = 20 + 5 * np.sin(np.arange(n) * 2 * np.pi / 144) + rng.normal(scale=0.3, size=n)
    noise = rng.normal(size=n)
    return [
        json.dumps(
            {"time": f"{np.datetime64('2026-03-02') + np.timedelta64(600 * i, 's')}", "host": host,
             "cpu": float(noise[i] if host == "noise" else levels[i])}
        ).encode()
        for i in range(n)
        for host in hosts
    ]  # fmt: skip


def roomy():
    return StreamingMPF(n_estimators=8, window=600, missing="marginalise", random_state=1)


def models_of(folder, records, sizes=(), **options):
    """Watch records; return the models, the lines and the messages."""
    said = []
    with (
        open_store(folder / "m", roomy) as store,
        watching(folder, ListSource(records, list(sizes)), store, notify=said.append, **options) as loop,
    ):
        loop.resume()
        loop.run()
    keys = read_notes(folder / "m")[1]
    return {key: read_model(folder / "m", key) for key in keys}, written(folder), said


def test_key_is_scored_as_a_series_once_its_records_are_one(tmp_path):
    models, lines, said = models_of(tmp_path, metric(700, ["a", "noise"]), finds_series=True)
    assert isinstance(models["a"], SeriesMPF)
    assert isinstance(models["noise"], StreamingMPF)
    assert len(said) == 1
    assert said[0].startswith("from record 33 on")
    rows = [json.loads(record) for record in metric(700)]
    values, times = [[row["cpu"]] for row in rows], [np.datetime64(row["time"]) for row in rows]
    first = roomy()
    before = first.detect_then_learn(NamedRows(np.array(values[:32]), ["cpu"]), times=times[:32])
    after = SeriesMPF.from_stream(first).detect_then_learn(NamedRows(np.array(values[32:]), ["cpu"]), times=times[32:])
    mine = [line["score"] for line in lines if line["key"] == "a"]
    assert mine == [*before.scores.tolist(), *after.scores.tolist()]
    assert not np.isnan(after.scores).any()  # no second warm-up
    new = [line.get("novelty", 0.0) for line in lines if line["key"] == "a"]
    assert new == [*[0.0] * 32, *np.nan_to_num(after.novelty).tolist()]
    assert any(new)


def test_series_are_detected_at_the_same_record_for_any_batches_and_restarts(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    records = metric(640)
    _, expected, _ = models_of(whole, records, finds_series=True)
    for n in (20, 31, 33, 511, 513, 640):
        models_of(parts, records[:n], [7, 150], finds_series=True)
    assert [line["score"] for line in written(parts)] == [line["score"] for line in expected]


def test_series_are_detected_only_on_request_and_with_times(tmp_path):
    models, _, said = models_of(tmp_path, metric(600))
    assert isinstance(models["a"], StreamingMPF)
    assert not said
    timeless = [json.dumps({"host": "b", "cpu": json.loads(record)["cpu"]}).encode() for record in metric(600)]
    other = tmp_path / "other"
    other.mkdir()
    models, _, said = models_of(other, timeless, finds_series=True)
    assert isinstance(models["b"], StreamingMPF)
    assert not said


def test_deleted_record_is_missing_in_the_series():
    values, times = np.sin(np.arange(520) / 8)[:, None], 60.0 * np.arange(520)
    stream = StreamingMPF(n_estimators=8, window=600, random_state=1).partial_fit(
        values, keys=[f"r{i}" for i in range(520)], times=times
    )
    stream.delete(["r100", "r101", "r300"])
    series = SeriesMPF.from_stream(stream)
    assert series.n_seen_ == 520
    assert not series.holds("r100")
    assert series.holds("r102")
    values[[100, 101, 300]] = np.nan
    plain = SeriesMPF(StreamingMPF(n_estimators=8, window=600, random_state=1)).partial_fit(values, times=times)
    ahead, when = np.sin(np.arange(520, 560) / 8), 60.0 * np.arange(520, 560)
    assert np.array_equal(series.score_samples(ahead, times=when), plain.score_samples(ahead, times=when))


def test_evicted_records_count_as_seen():
    values, times = np.sin(np.arange(1024) / 8)[:, None], 60.0 * np.arange(1024)
    stream = StreamingMPF(n_estimators=8, window=400, random_state=1).partial_fit(values, times=times)
    series = SeriesMPF.from_stream(stream)
    assert series.n_seen_ == 1024
    assert series.keys_[0] >= 624
    assert series.delete(700).n_points_ < 400 - 96
    with pytest.raises(ValueError, match="random sample"):
        SeriesMPF.from_stream(StreamingMPF(window="auto").fit(np.random.default_rng(0).normal(size=(5000, 1))))
