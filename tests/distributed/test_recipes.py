"""Recipes for engines without an adapter run as printed on the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import polyaforest
from polyaforest import StreamingMPF

pytestmark = pytest.mark.end_to_end

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md"


def recipe_with(word):
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (recipe,) = (block for block in blocks if word in block)
    return recipe


def test_duckdb_scores_with_vectorised_function():
    pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    pa = pytest.importorskip("pyarrow")
    recipe = recipe_with("duckdb")
    rows = np.random.default_rng(0).normal(size=(5000, 2))
    forest = StreamingMPF(n_estimators=10, random_state=0).fit(rows)
    namespace = {"forest": forest, "np": np, "servers": pa.table({"cpu": rows[:, 0], "latency": rows[:, 1]})}
    exec(recipe, namespace)
    scores = forest.score_samples(rows)
    assert namespace["oddest"] == [(*rows[i], scores[i]) for i in np.argsort(scores)[:3]]


@pytest.mark.slow
def test_ray_scores_with_class(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "ray[data]"')
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = np.random.default_rng(0).normal(size=(5000, 2))
    forest = StreamingMPF(n_estimators=10, random_state=0).fit(rows)
    forest.save(tmp_path / "servers.mpf")
    (tmp_path / "servers").mkdir()
    parquet.write_table(pa.table({"cpu": rows[:, 0], "latency": rows[:, 1]}), tmp_path / "servers" / "part.parquet")
    monkeypatch.chdir(tmp_path)
    recipe = recipe_with("ray.data").replace("servers.mpf", str(tmp_path / "servers.mpf")).replace("=4", "=1")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        namespace = {"np": np, "polyaforest": polyaforest, "ray": ray}
        exec(recipe, namespace)
        scored = namespace["scored"].to_pandas()
    finally:
        ray.shutdown()
    assert np.array_equal(np.sort(scored["score"]), np.sort(forest.score_samples(rows)))
