"""Make the model files and model stores that later releases must be able to read: once for every new format version.

    python tests/golden/make.py

writes <version>-<name>.mpf and <version>-<name>.json, what the model must answer, beside this file; block-<version>-
<name>.block and .json, the same of what `to_bytes` makes; and store-<version>-<name>.models and .json, what `watch`
must answer to further records. history-1.history is a history of the service as releases without checksums wrote it; a
test makes what later ones write. Never make those of an older version again: it is the old release's bytes that must
stay readable, so files that are there are left alone. Stores of version 0 have models as archives.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from polyaforest import BatchMPF, Reservoir, SeriesMPF, StreamingMPF, Tree, Window
from polyaforest.storage.codec import VERSION
from polyaforest.storage.modelfile import FORMAT_VERSION

HERE = Path(__file__).parent
ROWS = (np.arange(120).reshape(40, 3) * 37 % 61) / 7.0  # no generator, whose numbers another release may change
MORE = (np.arange(60).reshape(20, 3) * 41 % 59) / 6.0
TIMES = np.arange(40.0)
WORDS = np.array(["DE", "FR", "", "Pólya", "7"], dtype=object)
_STEPS = np.arange(600)
_COURSE = np.stack([np.abs(_STEPS % 12 - 6) + _STEPS * 37 % 61 / 30, _STEPS // 50 % 2], axis=1)
READINGS, NEXT = _COURSE[:560], _COURSE[560:]  # a rhythm, and a switch

MODELS = {
    "table": lambda: StreamingMPF(n_estimators=2, random_state=1).fit(ROWS),
    "batch": lambda: BatchMPF(n_estimators=2, tree=Tree(max_depth=3, domain=[[0] * 3, [9] * 3]), random_state=1).fit(
        ROWS
    ),
    "window": lambda: StreamingMPF(n_estimators=2, random_state=1, window=12).partial_fit(ROWS, keys=range(1007, 1047)),
    "time": lambda: StreamingMPF(
        n_estimators=2,
        random_state=1,
        window=Window(15, duration=9.5),
        tree=Tree(max_depth=3, lifetime=3.0),
        score_type="log_mass",
    ).partial_fit(ROWS, times=TIMES),
    "reservoir": lambda: StreamingMPF(
        n_estimators=2, random_state=1, window=Reservoir(8, half_life=20), tree=Tree(feature_weights=[1.0, 0.5, 0.0])
    ).partial_fit(ROWS, keys=[f"point {i}" for i in range(40)]),
    "summary": lambda: StreamingMPF(
        n_estimators=2, random_state=1, window=None, tree=Tree(max_depth=3), score_type="mass"
    ).fit(ROWS),
    "courses": lambda: _judged(SeriesMPF(StreamingMPF(n_estimators=3, random_state=1, window=50)), READINGS),
    "categories": lambda: StreamingMPF(
        n_estimators=2, random_state=1, window=12, categorical_features=[0, 2]
    ).partial_fit(mixed(ROWS)),
    "counted": lambda: BatchMPF(
        n_estimators=2, tree=Tree(max_depth=5), random_state=1, categorical_features=[True, False, True]
    ).fit(mixed(ROWS)),
}
# The versions of files and of blocks that there are of models of a kind: the first, and the last that these need.
FILES, BLOCKS = dict.fromkeys(MODELS, (1, 3)), dict.fromkeys(MODELS, (1, 2))
FILES["courses"], BLOCKS["courses"] = (3, FORMAT_VERSION), (1, VERSION)
for _name in ("categories", "counted"):
    FILES[_name], BLOCKS[_name] = (FORMAT_VERSION, FORMAT_VERSION), (VERSION, VERSION)
STORE_VERSION = 2  # the last of the blocks in stores, which have no categories


def mixed(rows: np.ndarray) -> np.ndarray:
    """Rows whose first and last features are categories."""
    words = WORDS[np.floor(rows).astype(int) % len(WORDS)]
    return np.column_stack([words[:, 0], rows[:, 1].astype(object), words[:, 2]])


def _judged(series: SeriesMPF, readings: np.ndarray) -> SeriesMPF:
    series.detect_then_learn(readings, times=60.0 * np.arange(len(readings)))
    return series


def answers(model: Any) -> dict[str, Any]:
    """What a model says of rows, and if it follows a stream, how it goes on."""
    if isinstance(model, SeriesMPF):
        times = 60.0 * np.arange(len(READINGS), len(READINGS) + len(NEXT))
        said = {"periods": list(model.periods_), "keys": model.keys_, "scores": model.score_samples(NEXT, times=times)}
        judged, columns = model.detect_then_learn(NEXT, times=times), ("scores", "p_values", "thresholds", "novelty")
        return {
            **said,
            "scores": said["scores"].tolist(),
            **{f"{name} on": getattr(judged, name).tolist() for name in columns},
            "n on": model.n_points_,
        }
    more = MORE if model.is_categorical_ is None else mixed(MORE)
    said = {"scores": model.score_samples(more).tolist(), "mass": model.mass(more).tolist(), "n": model.n_points_}
    if not isinstance(model, StreamingMPF) or model.is_frozen_:
        return said
    if model.keeps_points_:
        said["keys"] = model.keys_
    return {
        **said,
        "scores on": model.score_then_learn(more, times=np.arange(40.0, 60.0)).tolist(),
        "n on": model.n_points_,
    }


RECORDS = [
    {"host": f"web-{i % 2}", "order": f"o-{i}", "cpu": None if i == 30 else i * 37 % 61 / 7, "disk": i * 41 % 59 / 6}
    for i in range(60)
]
STORES = {
    "streams": ["--by", "host", "--id", "order"],
    "series": ["--columns", "cpu,disk", "--shingle", "3"],
}


def run(*arguments: str, text: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run the program in a process of its own."""
    command = [sys.executable, "-m", "polyaforest", *arguments]
    return subprocess.run(command, input=text, capture_output=True, check=False)


def watch(store: Path, name: str, records: list[dict[str, Any]], run: Callable[..., Any] = run) -> list[dict[str, Any]]:
    """Let `watch` judge and learn records by the models of a store; return its lines."""
    files = ["--model", str(store), "--quarantine", "/dev/null", "--quiet"]
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    done = run("watch", *STORES[name], "--trees", "2", "--window", "12", *files, text=text)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [{field: line.get(field) for field in ("key", "id", "score", "p_value")} for line in lines]


def make_store(name: str) -> None:
    """Make a store, unless it is there."""
    store = HERE / f"store-{STORE_VERSION}-{name}.models"
    if store.exists():
        return
    watch(store, name, RECORDS[:40])
    store.with_name(f"{store.name}-lock").unlink()
    with tempfile.TemporaryDirectory() as folder:
        lines = watch(Path(shutil.copy(store, folder)), name, RECORDS[40:])
    store.with_suffix(".json").write_text(json.dumps(lines), "utf-8")


def make_model(path: Path, model: Any) -> None:
    """Make a file or a block, unless it is there."""
    if path.exists():
        return
    if path.suffix == ".block":
        path.write_bytes(model.to_bytes())
    else:
        model.save(path)
    path.with_suffix(".json").write_text(json.dumps(answers(model)), "utf-8")


if __name__ == "__main__":
    for name in STORES:
        make_store(name)
    for name, make in MODELS.items():
        make_model(HERE / f"{FILES[name][1]}-{name}.mpf", make())
        make_model(HERE / f"block-{BLOCKS[name][1]}-{name}.block", make())
