"""Makes the model files that later releases must be able to read: run once for every new version of the format.

    python tests/golden/make.py

writes <version>-<name>.mpf and <version>-<name>.json, what the model must answer, beside this file. Never make those of
an older version again: it is the old release's bytes that must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from polyaforest import BatchMPF, Reservoir, StreamingMPF, Window
from polyaforest.persistence.modelfile import FORMAT_VERSION

HERE = Path(__file__).parent
ROWS = (np.arange(120).reshape(40, 3) * 37 % 61) / 7.0  # no generator, whose numbers another release may change
MORE = (np.arange(60).reshape(20, 3) * 41 % 59) / 6.0
TIMES = np.arange(40.0)

MODELS = {
    "table": lambda: StreamingMPF(n_estimators=2, random_state=1).fit(ROWS),
    "batch": lambda: BatchMPF(n_estimators=2, max_depth=3, random_state=1, domain=[[0] * 3, [9] * 3]).fit(ROWS),
    "window": lambda: StreamingMPF(n_estimators=2, random_state=1, window=12).partial_fit(ROWS, keys=range(1007, 1047)),
    "time": lambda: StreamingMPF(
        n_estimators=2, random_state=1, window=Window(15, duration=9.5), max_depth=3, lifetime=3.0, score="log_mass"
    ).partial_fit(ROWS, times=TIMES),
    "reservoir": lambda: StreamingMPF(
        n_estimators=2, random_state=1, window=Reservoir(8, half_life=20), feature_weights=[1.0, 0.5, 0.0]
    ).partial_fit(ROWS, keys=[f"point {i}" for i in range(40)]),
    "summary": lambda: StreamingMPF(n_estimators=2, random_state=1, window=None, max_depth=3, score="mass").fit(ROWS),
}


def answers(model: Any) -> dict[str, Any]:
    """What a model says of rows, and if it follows a stream, how it goes on."""
    said = {"scores": model.score_samples(MORE).tolist(), "mass": model.mass(MORE).tolist(), "n": model.n_points_}
    if getattr(model, "_stream", None) is None:
        return said
    if model._stream.keeps_points:
        said["keys"] = model.keys_
    return {
        **said,
        "scores on": model.score_then_learn(MORE, times=np.arange(40.0, 60.0)).tolist(),
        "n on": model.n_points_,
    }


if __name__ == "__main__":
    for name, make in MODELS.items():
        model = make()
        model.save(HERE / f"{FORMAT_VERSION}-{name}.mpf")
        (HERE / f"{FORMAT_VERSION}-{name}.json").write_text(json.dumps(answers(model)), "utf-8")
