"""DriftMonitor with categories: changes, detectors, deletion, files and invalid input."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from polyaforest import ModelFileError, SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.drift import DriftMonitor
from polyaforest.drift.windows import SharedTrees
from polyaforest.kernels.boxes import as_codes
from polyaforest.storage.codec import pack, unpack
from polyaforest.tables.categories import ABSENT, Codes, encode

GOLDEN = Path(__file__).parents[1] / "golden" / "monitor-0-numbers.monitor"
N, CHANGE = 256, 600
HOSTILE = "<b>x</b>\x1b[31m\u202e"


def stream(n: int = 900, new: str = "XK", share: float = 0.3, seed: int = 0) -> pd.DataFrame:
    """Requests from countries; after the change some come from a new one."""
    rng = np.random.default_rng(seed)
    countries = np.array(["DE", "FR", "US", "IT"], dtype=object)[rng.choice(4, n, p=[0.5, 0.3, 0.1, 0.1])]
    countries[(np.arange(n) >= CHANGE) & (rng.random(n) < share)] = new
    return pd.DataFrame({"country": countries, "latency": rng.gamma(8.0, 4.0, n), "tier": rng.choice(["a", "b"], n)})


def monitor(**given: object) -> DriftMonitor:
    settings = {"reference": N, "random_state": 0, "n_estimators": 8, "categorical_features": ["country", "tier"]}
    return DriftMonitor(**{**settings, **given})


def forest(**given: object) -> StreamingMPF:
    settings = {"n_estimators": 8, "window": 300, "random_state": 0, "categorical_features": ["country", "tier"]}
    return StreamingMPF(**{**settings, **given})


def beside(detector: StreamingMPF, on_drift: str = "report") -> DriftMonitor:
    return DriftMonitor.beside(detector, reference=N, n_estimators=8, random_state=0, on_drift=on_drift)


def test_monitor_names_a_new_category() -> None:
    changes = monitor().update(stream())
    assert changes
    assert all(CHANGE <= change.noticed < CHANGE + 150 for change in changes[:1])
    drift = next(change for change in changes if change.kind == "drift")
    assert abs(drift.start - CHANGE) < 30
    assert "the share of records with country = XK has risen from 0 % to " in str(drift)


def test_monitor_raises_no_alarm_without_a_change() -> None:
    trace = monitor().follow(stream(1500, share=0.0))
    assert trace.changes == []
    assert set(trace.status) <= {"learning", "normal", "outlier"}


def test_monitor_detects_a_changed_combination() -> None:
    """Half of the rows are of country DE, and half of tier b, before and after."""
    rows = stream(share=0.0)
    rows.loc[CHANGE:, "tier"] = np.where(rows.loc[CHANGE:, "country"] == "DE", "b", "a")
    changes = monitor().update(rows)
    assert abs(changes[-1].start - CHANGE) < 30
    words = " ".join(region for change in changes for region in change.regions)
    assert all(one in words for one in ("the share of records with country ", " and tier = "))


def test_categorical_features_accepts_types_names_positions_and_masks() -> None:
    rows = stream(400)
    expected = monitor().follow(rows).evidence
    typed = rows.astype({"country": "category", "tier": "category"})
    for given, table in (
        ("from_dtype", typed),
        ("from_dtype", pl.from_pandas(typed)),
        ([0, 2], rows),
        ([True, False, True], rows.to_numpy()),
    ):
        assert np.array_equal(monitor(categorical_features=given).follow(table).evidence, expected, equal_nan=True)


def test_monitor_rejects_text_that_is_not_categorical() -> None:
    with pytest.raises(ValueError, match=r"column 'country' is .*name it in categorical_features"):
        monitor(categorical_features="from_dtype").update(stream(400))
    followed = monitor()
    followed.update(stream(400))
    with pytest.raises(ValueError, match="latency"):
        followed.update(stream(10).assign(latency="fast"))
    assert followed.n_seen_ == 400


def test_monitor_detects_missing_categories() -> None:
    rows = stream(share=0.0)
    rows.loc[CHANGE:, "country"] = rows.loc[CHANGE:, "country"].where(np.arange(len(rows) - CHANGE) % 3 > 0, None)
    changes = monitor().update(rows)
    assert any("country is missing has risen" in region for change in changes for region in change.regions)


def test_cuts_of_categories_are_questions() -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.random(N), encode(rng.choice(list("abcdef"), N))[0]])
    rows[::9, 1] = np.nan
    trees = SharedTrees(rows, np.arange(N), np.random.SeedSequence(0), 5, n_categories=1)
    cuts, codes = trees.cuts, as_codes(np.where(np.isnan(rows[:, 1]), ABSENT, rows[:, 1]))
    asked = 0
    for t in range(5):
        for i in range(0, N, 7):
            j = cuts.root[t]
            while cuts.left[t, j] >= 0:
                is_category = cuts.feature[t, j] == 1
                asked += is_category
                is_yes = codes[i] >> int(cuts.cut[t, j]) & 1 if is_category else rows[i, 0] > cuts.cut[t, j]
                j = cuts.right[t, j] if is_yes else cuts.left[t, j]
            assert trees.leaves[i, t] == j
    assert asked > 0


# ---- beside a detector -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fitted", [False, True])
def test_a_monitor_has_the_categories_of_its_detector(is_fitted: bool) -> None:
    rows, detector = stream(), forest()
    if is_fitted:
        detector.partial_fit(stream(50, seed=1))
    followed = beside(detector, "relearn")
    detected, changes = followed.detect_then_learn(rows)
    assert detected.scores.shape == (len(rows),)
    drift = next(change for change in changes if change.kind == "drift")
    assert "country = XK has risen" in str(drift)
    assert str(drift).endswith("the model has started to relearn.")
    assert followed.encoding_.columns == (0, 2)
    assert detector.categories_["country"] == ["DE", "FR", "IT", "US", "XK"]


def test_a_detector_learns_the_same_with_and_without_a_monitor() -> None:
    rows = stream(500)
    for table, given in ((rows, ["country", "tier"]), (rows.to_numpy(), [0, 2])):
        plain, watched = forest(categorical_features=given), forest(categorical_features=given)
        expected = plain.detect_then_learn(table)
        detected, _ = beside(watched).detect_then_learn(table)
        assert np.array_equal(detected.scores, expected.scores)
        assert watched.points_.tolist() == plain.points_.tolist()


def test_a_monitor_passes_codes_unchanged() -> None:
    rows = stream(400)
    codes = np.column_stack([rows["latency"], encode(rows["country"])[0]])
    detector = forest(categorical_features=Codes(1)).partial_fit(codes[:10])
    followed = beside(detector)
    followed.detect_then_learn(codes[10:])
    assert np.array_equal(detector.points_, codes[-300:])


def test_a_monitor_of_a_series_has_no_categories() -> None:
    followed = DriftMonitor.beside(SeriesMPF(), reference=N)
    assert followed.categorical_features is None


# ---- deletion and files ----------------------------------------------------------------------------------------------


def test_delete_removes_points_and_their_texts() -> None:
    rows = stream(500, share=0.0)
    rows.loc[400, "country"] = "secret"
    one, other = monitor(), monitor()
    one.update(rows)
    one.delete(400)
    kept = [i for i in range(len(rows)) if i != 400]
    other.update(rows.iloc[kept], keys=kept)
    assert np.array_equal(one.evidence_, other.evidence_)
    assert b"secret" not in _texts_of(one)
    assert np.array_equal(DriftMonitor.of_bytes(one.to_bytes()).evidence_, one.evidence_)


def _texts_of(one: DriftMonitor) -> bytes:
    return unpack(one.to_bytes())[1]["texts"].tobytes()


@pytest.mark.parametrize("n", [100, 300, 700])
def test_a_saved_monitor_continues_bit_for_bit(n: int) -> None:
    rows = stream()
    whole, part, file = monitor(), monitor(), io.BytesIO()
    expected = whole.update(rows)
    before = part.update(rows[:n])
    part.save(file)
    file.seek(0)
    again = DriftMonitor.load(file)
    assert again.encoding_.columns == (0, 2)
    assert before + again.update(rows[n:]) == expected
    assert again.to_bytes() == whole.to_bytes()


def test_the_monitor_is_saved_with_the_model() -> None:
    rows, whole, part = stream(), forest(), forest()
    _, expected = beside(whole).detect_then_learn(rows)
    _, before = beside(part).detect_then_learn(rows[:450])
    again = loads(part.to_bytes())
    _, after = beside(again).detect_then_learn(rows[450:])
    assert before + after == expected
    assert again.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("given", [["country", "tier"], [0, 2], [True, False, True]])
def test_results_do_not_depend_on_chunks(given: list[object]) -> None:
    rows = stream()
    one, many = monitor(categorical_features=given), monitor(categorical_features=given)
    expected, reported = one.update(rows), []
    for start, stop in pairwise([0, 1, 140, 255, 256, 600, 611, 899, 900]):
        reported += many.update(rows[start:stop])
    assert reported == expected
    assert many.to_bytes() == one.to_bytes()


def test_texts_of_departed_points_are_dropped() -> None:
    rows = stream(1200, share=0.0)
    followed = monitor(reference=128, windows=[8, 100])
    for start in range(0, 12_000, 1200):
        rows["country"] = [f"c{start + i}" for i in range(len(rows))]
        followed.update(rows)
    assert len(followed.encoding_.texts) < 4096 + 2 * 1200
    assert len(unpack(followed.to_bytes())[1]["texts"].tobytes()) < 20 * 3 * 256


def test_states_without_categories_of_an_early_version_are_read() -> None:
    again = DriftMonitor.of_bytes(GOLDEN.read_bytes())
    assert (again.n_seen_, again.windows_.tolist(), again.encoding_) == (300, [8, 32], None)
    assert again.holds(299)
    again.update(np.random.default_rng(1).normal(size=(50, 2)))
    assert DriftMonitor.of_bytes(again.to_bytes()).to_bytes() == again.to_bytes()


def test_states_of_numbers_have_no_categories() -> None:
    followed = DriftMonitor(reference=128, random_state=0, n_estimators=2)
    followed.update(np.random.default_rng(0).normal(size=(200, 2)))
    header, arrays = unpack(followed.to_bytes())
    assert "categories" not in header
    assert "categorical_features" not in header["parameters"]
    assert "texts" not in arrays


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda header, arrays: arrays.pop("texts"), "no columns of them, or the other way round"),
        (lambda header, arrays: header.pop("categories"), "no columns of them, or the other way round"),
        (lambda header, arrays: header.update(categories=[7]), r"invalid categorical columns \[7\]"),
        (lambda header, arrays: arrays["reference/values"].__setitem__((3, 2), 0.5), "must be codes"),
        (lambda header, arrays: arrays["points/values"].__setitem__((3, 1), -1.0), "must be codes"),
        (lambda header, arrays: arrays.update(texts=np.frombuffer(b"[1]", np.uint8)), "must be a list of strings"),
    ],
)
def test_damaged_states_are_rejected(damage: object, message: str) -> None:
    followed = monitor()
    followed.update(stream(400))
    header, arrays = unpack(followed.to_bytes())
    arrays = {name: part.copy() for name, part in arrays.items()}
    damage(header, arrays)
    with pytest.raises(ModelFileError, match=message):
        DriftMonitor.of_bytes(pack(header, arrays))


def test_changes_escape_hostile_categories() -> None:
    changes = monitor().update(stream(new=HOSTILE))
    words = " ".join(map(str, changes))
    assert "\\x1b[31m\\u202e" in words
    assert "\x1b" not in words
    assert "\u202e" not in words


def test_river_monitor_accepts_strings() -> None:
    river = pytest.importorskip("polyaforest.adapters.river")
    followed, rows = river.DriftMonitor(reference=N, n_estimators=8, seed=0), stream()
    noticed = []
    for i, row in enumerate(rows.to_dict("records")):
        followed.update({**row, "tier": None} if i % 100 == 99 else row)
        noticed += [i] if followed.drift_detected else []
    assert noticed
    assert CHANGE <= noticed[0] < CHANGE + 150
    assert followed.monitor.encoding_.columns == (0, 2)
    assert followed.change is None or "country = XK" in " ".join(followed.change.regions)
    with pytest.raises(ValueError, match="'latency' is 'fast', which is not a number"):
        followed.update({"latency": "fast", "country": "DE", "tier": "a"})
