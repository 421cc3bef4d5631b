import numpy as np
import pytest

from benchmarks import tuning
from benchmarks.shared.pages import fill
from benchmarks.shared.results import Results, read
from polyaforest import StreamingMPF, datasets


def toys(name):
    return datasets.make_toy("two blobs tight", seed=len(name), n=120)


def test_halves_contain_every_set_once_and_related_ones_together():
    first, second = tuning.halves()
    assert sorted([*first, *second]) == sorted([*datasets.TABLES, *datasets.SERIES])
    assert len(first) == len(second) == 20
    for name, other in tuning.RELATED.items():
        assert (name in first) == (other in first)


def test_large_sets_are_thinned_and_rare_anomalies_kept(monkeypatch):
    X = np.arange(10_000.0)[:, None]
    y = (X[:, 0] < 3).astype(np.int8)
    monkeypatch.setattr(datasets, "load", lambda name: datasets.Dataset(name, X, y))
    thinned = tuning.load("smtp")
    assert thinned.X.shape == (tuning.MOST_ROWS, 1)
    assert thinned.y.sum() == 3
    assert len(np.unique(thinned.X)) == tuning.MOST_ROWS
    assert ((thinned.X[:, 0] < 3) == thinned.y).all()


def test_a_mixture_of_the_default_sizes_at_the_default_lifetimes_is_near_the_default():
    X = toys("glass").X
    scores = dict(tuning.scores_of_mixtures(X, 0))
    assert len(scores) == 2 * len(tuning.MIXTURES) * len(tuning.LIFETIMES)
    mixture = scores["mean of logs, rows 8 to 64, lifetimes 1/4 to 16"]
    assert np.corrcoef(mixture, StreamingMPF(random_state=0).fit(X).score_samples(X))[0, 1] > 0.95


@pytest.mark.slow
def test_a_run_resumes_and_fills_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "load", toys)
    monkeypatch.setattr(tuning, "SEEDS", (0,))
    names = [name for half in tuning.halves() for name in half[:2]]
    results = Results("tuning", ("data", "setting", "seed"), tmp_path)
    tuning.measure(results, names[:1])
    n_settings = len(list(results))
    tuning.measure(Results("tuning", ("data", "setting", "seed"), tmp_path), names)
    rows = read(tmp_path / "tuning.csv")
    assert len(rows) == len(names) * n_settings
    (tmp_path / "accuracy.md").write_text(
        "<!-- begin halves --><!-- end halves -->\n<!-- begin tuning --><!-- end tuning -->\n"
    )
    tuning.render(rows, tmp_path)
    page = (tmp_path / "accuracy.md").read_text()
    assert page.count("\n| ") == n_settings + 2
    assert "| sMPF, 100 trees | " in page


def test_leads_are_means_over_sets_of_means_over_seeds():
    (first, *_), (second, *_) = tuning.halves()
    rows = [
        {"data": name, "setting": setting, "seed": str(seed), "auc": str(auc)}
        for name in tuning.halves()[0][:2] + tuning.halves()[1][:2]
        for setting, seed, auc in [
            (tuning.REFERENCE, 0, 0.5),
            (tuning.REFERENCE, 1, 0.7),
            ("ours", 0, 0.7 if name in (first, second) else 0.6),
            ("ours", 1, 0.7 if name in (first, second) else 0.6),
        ]
    ]
    assert tuning.summary(rows) == [["ours", "+0.0500 ± 0.0500", "+0.0500 ± 0.0500", "2 of 4"]]


def test_streams_are_scored_before_they_are_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "as_stream", toys)
    monkeypatch.setattr(tuning, "SEEDS", (0,))
    results = Results("tuning-streams", ("data", "setting", "seed"), tmp_path)
    tuning.measure(results, ["glass", "heart"], streams=True)
    expected = StreamingMPF(window=60, random_state=0).score_then_learn(toys("glass").X)
    scores = dict(tuning.scores_of_streams(toys("glass").X, 0))
    np.testing.assert_array_equal(scores["typicality, samples, lifetimes 1/4 to 16"], expected)
    (tmp_path / "accuracy.md").write_text("<!-- begin streams --><!-- end streams -->")
    tuning.render_streams(list(results), tmp_path)
    assert (tmp_path / "accuracy.md").read_text().count("\n| ") == len(tuning.STREAMS) + 2


@pytest.mark.parametrize("page", ["no block", "<!-- begin tuning --><!-- end tuning -->" * 2])
def test_a_page_must_have_a_block_once(tmp_path, page):
    (tmp_path / "accuracy.md").write_text(page)
    with pytest.raises(ValueError, match="blocks named tuning, not one"):
        fill("accuracy", "tuning", "text", tmp_path)
