"""The recipe for MLflow in the docs works; runs where mlflow is installed."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyaforest import StreamingMPF

mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # MLflow recommends type hints by a warning
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"


def test_model_of_the_recipe_gives_the_detections_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 3)), columns=["x0", "x1", "x2"])
    frame.loc[7, "x2"] = 20.0
    detector = StreamingMPF(random_state=0).fit(frame)
    detector.save("model.mpf")
    section = PAGE.read_text("utf-8").split("## MLflow\n")[1]
    model, use = re.findall(r"^```py\n(.*?)^```$", section, re.M | re.S)
    Path("detector.py").write_text(model, "utf-8")
    names = {"frame": frame}
    exec(use, names)
    pd.testing.assert_frame_equal(names["found"], detector.detect(frame).to_frame())
    assert names["found"]["is_anomaly"][7]
